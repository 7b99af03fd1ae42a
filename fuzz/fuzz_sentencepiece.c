/* fuzz_sentencepiece - the input is a tokenizer.model of sentencepiece. If it opens, a fixed
 * hostile text is encoded with and without marks, decoded as a whole and in pieces; both must
 * agree, and message bytes must give no control token. Build with clang -fsanitize=fuzzer, or with
 * replay_main.c. Writes below TMPDIR (default /tmp). */
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
            fprintf(stderr, "fuzz_sentencepiece: %s\n", #cond);                                    \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static const char text[] = " It's  <s>a\xcc\x81\n\n \xff\xe2\x82 caf\xc3\xa9 123\xe3\x80\x80</s> "
                           "\xe2\x96\x81<unk><0x0A>ab [INST]x";

static void check_decode(const rose_tokenizer *t, const rose_ids *ids)
{
    rose_buf whole = {0}, pieces = {0};
    rose_detok d = {0};
    rose_err err;
    CHECK(rose_decode(t, ids->data, ids->len, 0, &whole, &err) == ROSE_OK);
    for (size_t i = 0; i < ids->len; i++) {
        CHECK(rose_buf_reserve(&pieces, rose_detok_cap(t)) == ROSE_OK);
        pieces.len += rose_detok_push(&d, t, ids->data[i], 0, pieces.data + pieces.len);
    }
    CHECK(rose_buf_reserve(&pieces, 12) == ROSE_OK);
    pieces.len += rose_detok_finish(&d, pieces.data + pieces.len);
    CHECK(pieces.len == whole.len && memcmp(pieces.data, whole.data, whole.len) == 0);
    rose_buf_free(&whole);
    rose_buf_free(&pieces);
}

static void check_text(const rose_tokenizer *t)
{
    const rose_mark_run all_message = {sizeof text - 1, false};
    rose_encoder *e = NULL;
    rose_ids ids = {0};
    rose_err err;

    CHECK(rose_encoder_create(&e, t, &err) == ROSE_OK);
    CHECK(rose_encode(e, text, sizeof text - 1, ROSE_ENCODE_ADD_SPECIAL, &ids, &err) == ROSE_OK);
    check_decode(t, &ids);
    ids.len = 0;
    CHECK(rose_encode_marked(e, text, sizeof text - 1, &all_message, 1, 0, &ids, &err) == ROSE_OK);
    check_decode(t, &ids);
    uint32_t unknown = UINT32_MAX; /* the one special token that plain text may give */
    for (size_t i = 0; i < ids.len; i++) {
        if (!rose_tokenizer_is_special(t, ids.data[i])) continue;
        CHECK(unknown == UINT32_MAX || unknown == ids.data[i]);
        unknown = ids.data[i];
    }
    rose_ids_free(&ids);
    rose_encoder_destroy(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *tmp = getenv("TMPDIR");
    char dir[256], path[300];
    rose_tokenizer *t = NULL;
    rose_err err;

    rose_log_set_level(ROSE_LOG_OFF);
    snprintf(dir, sizeof dir, "%s/rose-fuzz-XXXXXX", tmp != NULL ? tmp : "/tmp");
    CHECK(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/tokenizer.model", dir);
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL && fwrite(data, 1, size, f) == size && fclose(f) == 0);
    if (rose_tokenizer_open(&t, dir, &err) == ROSE_OK)
        check_text(t);
    else
        CHECK(t == NULL && err.msg[0] != '\0');
    rose_tokenizer_close(t);
    unlink(path);
    rmdir(dir);
    return 0;
}
