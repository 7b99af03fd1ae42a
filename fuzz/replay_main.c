/* Runs a fuzz target over files given as arguments: replays a corpus, or one crash, without
 * libFuzzer. Build: the target and this file, any compiler. Exit 1 if a file cannot be read. */
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        rose_buf text = {0};
        rose_err err = {""};
        if (rose_file_read(&text, argv[i], 64u << 20, &err) != ROSE_OK) {
            fprintf(stderr, "%s\n", err.msg);
            return 1;
        }
        LLVMFuzzerTestOneInput((const uint8_t *)(text.len > 0 ? text.data : ""), text.len);
        rose_buf_free(&text);
    }
    printf("%d inputs replayed\n", argc - 1);
    return 0;
}
