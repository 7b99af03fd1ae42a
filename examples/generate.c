/* examples/generate.c - the smallest program on the roseinfer library: continue a prompt.
 *
 *     cc generate.c -o generate $(pkg-config --cflags --libs roseinfer)
 *     ./generate models/rose-tiny "Once upon a time"
 */
#include <roseinfer.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    char err[ROSE_LIB_ERR];
    rose_lib *rose;
    rose_lib_request *request;
    rose_lib_piece piece;
    rose_lib_params params;

    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]);
        return 2;
    }
    if (rose_lib_open(&rose, argv[1], NULL, err) != 0) {
        fprintf(stderr, "%s\n", err);
        return 1;
    }
    rose_lib_params_default(&params);
    rose_lib_piece_init(&piece);
    params.max_tokens = 32;
    if (rose_lib_submit_text(rose, argv[2], strlen(argv[2]), &params, &request, err) != 0) {
        fprintf(stderr, "%s\n", err);
        rose_lib_close(rose);
        return 1;
    }
    while (rose_lib_next(request, &piece, -1) == 1)
        fwrite(piece.text, 1, piece.text_len, stdout);
    putchar('\n');
    rose_lib_release(request);
    rose_lib_close(rose);
    return piece.finish == ROSE_LIB_FAILED;
}
