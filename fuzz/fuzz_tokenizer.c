/* fuzz_tokenizer - two things by the first byte of the input:
 *   even: the rest is a tokenizer.json; if it opens, a fixed hostile text is encoded and decoded;
 *   odd:  the rest is text for the checked-in tiny tokenizer (tests/tokenizer/data/tiny, found from
 *         ROSE_ROOT, default "."): token bytes must concatenate to the text, and the incremental
 *         detokeniser must agree with the whole decode.
 * Build with clang -fsanitize=fuzzer, or with replay_main.c. Writes below TMPDIR (default /tmp). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "tokenizer/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "fuzz_tokenizer: %s\n", #cond);                                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static void check_text(const rose_tokenizer *t, const char *text, size_t len, bool lossless)
{
    rose_encoder *e = NULL;
    rose_ids ids = {0};
    rose_buf whole = {0}, bytes = {0}, pieces = {0};
    rose_detok d = {0};
    rose_err err;

    CHECK(rose_encoder_create(&e, t, &err) == ROSE_OK);
    if (rose_encode(e, text, len, 0, &ids, &err) != ROSE_OK) goto done; /* a pattern that gave up */
    CHECK(rose_decode(t, ids.data, ids.len, 0, &whole, &err) == ROSE_OK);
    CHECK(rose_buf_reserve(&pieces, whole.len + rose_detok_cap(t) + 12) == ROSE_OK);
    for (size_t i = 0; i < ids.len; i++) {
        size_t n;
        const char *token = rose_tokenizer_token_bytes(t, ids.data[i], &n);
        CHECK(token != NULL && rose_buf_add(&bytes, token, n) == ROSE_OK);
        CHECK(rose_buf_reserve(&pieces, rose_detok_cap(t)) == ROSE_OK);
        pieces.len += rose_detok_push(&d, t, ids.data[i], 0, pieces.data + pieces.len);
    }
    pieces.len += rose_detok_finish(&d, pieces.data + pieces.len);
    CHECK(pieces.len == whole.len && memcmp(pieces.data, whole.data, whole.len) == 0);
    if (lossless) CHECK(bytes.len == len && (len == 0 || memcmp(bytes.data, text, len) == 0));
done:
    rose_ids_free(&ids);
    rose_buf_free(&whole);
    rose_buf_free(&bytes);
    rose_buf_free(&pieces);
    rose_encoder_destroy(e);
}

static void fuzz_json(const uint8_t *data, size_t size)
{
    static const char text[] =
        "It's  <s>a\xcc\x81\n\n \xff\xe2\x82 caf\xc3\xa9 123\xe3\x80\x80<|endoftext|> x";
    const char *tmp = getenv("TMPDIR");
    char dir[256], path[300];
    rose_tokenizer *t = NULL;
    rose_err err;

    snprintf(dir, sizeof dir, "%s/rose-fuzz-XXXXXX", tmp != NULL ? tmp : "/tmp");
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(data, 1, size, f) == size && fclose(f) == 0);
    if (rose_tokenizer_open(&t, dir, &err) == ROSE_OK)
        check_text(t, text, sizeof text - 1, false);
    else
        CHECK(t == NULL && err.msg[0] != '\0');
    rose_tokenizer_close(t);
    unlink(path);
    rmdir(dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static rose_tokenizer *tiny;
    rose_log_set_level(ROSE_LOG_OFF); /* it warns of tokens */
    if (size == 0) return 0;
    if ((data[0] & 1) == 0) {
        fuzz_json(data + 1, size - 1);
        return 0;
    }
    if (tiny == NULL) {
        const char *root = getenv("ROSE_ROOT");
        char dir[512];
        rose_err err;
        snprintf(dir, sizeof dir, "%s/tests/tokenizer/data/tiny", root != NULL ? root : ".");
        CHECK(rose_tokenizer_open(&tiny, dir, &err) == ROSE_OK);
    }
    check_text(tiny, (const char *)data + 1, size - 1, true);
    return 0;
}
