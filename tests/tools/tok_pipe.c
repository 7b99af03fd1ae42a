/* tok_pipe MODEL - encodes what it reads: the C side of tests/tokenizer/parity.py.
 * Request on stdin: u32 flags (of rose_encode), u32 length, text. Reply on stdout: u32 count, that
 * many u32 ids, u32 length, the text that these ids decode to. All little-endian. A failure to
 * encode replies count 0xffffffff, then length and message. Exit 1 if the tokenizer does not open
 * (message on stderr), 2 on a broken pipe. */
#include <stdio.h>
#include <stdlib.h>

#include "tokenizer/tokenizer.h"

static bool put_sized(const void *bytes, size_t n)
{
    uint32_t len = (uint32_t)n;
    return fwrite(&len, sizeof len, 1, stdout) == 1 && fwrite(bytes, 1, n, stdout) == n;
}

static bool reply(rose_tokenizer *t, rose_encoder *e, unsigned flags, const rose_buf *text)
{
    rose_ids ids = {0};
    rose_buf decoded = {0};
    rose_err err = {""};
    bool ok = rose_encode(e, text->data, text->len, flags, &ids, &err) == ROSE_OK &&
              rose_decode(t, ids.data, ids.len, 0, &decoded, &err) == ROSE_OK;
    uint32_t n = ok ? (uint32_t)ids.len : UINT32_MAX;
    bool sent = fwrite(&n, sizeof n, 1, stdout) == 1;
    if (ok) {
        sent = sent && fwrite(ids.data, sizeof *ids.data, ids.len, stdout) == ids.len;
        sent = sent && put_sized(decoded.data, decoded.len);
    } else {
        sent = sent && put_sized(err.msg, sizeof err.msg);
    }
    rose_ids_free(&ids);
    rose_buf_free(&decoded);
    return sent && fflush(stdout) == 0;
}

int main(int argc, char **argv)
{
    rose_tokenizer *t = NULL;
    rose_encoder *e = NULL;
    rose_buf text = {0};
    rose_err err = {""};
    uint32_t head[2];
    int rc = 0;

    if (argc != 2) {
        fprintf(stderr, "usage: tok_pipe MODEL\n");
        return 1;
    }
    if (rose_tokenizer_open(&t, argv[1], &err) != ROSE_OK ||
        rose_encoder_create(&e, t, &err) != ROSE_OK) {
        fprintf(stderr, "%s\n", err.msg);
        rc = 1;
        goto done;
    }
    while (fread(head, sizeof head, 1, stdin) == 1) {
        text.len = 0;
        if (rose_buf_reserve(&text, (size_t)head[1] + 1) != ROSE_OK ||
            fread(text.data, 1, head[1], stdin) != head[1]) {
            rc = 2;
            break;
        }
        text.len = head[1];
        if (!reply(t, e, head[0], &text)) {
            rc = 2;
            break;
        }
    }
done:
    rose_buf_free(&text);
    rose_encoder_destroy(e);
    rose_tokenizer_close(t);
    return rc;
}
