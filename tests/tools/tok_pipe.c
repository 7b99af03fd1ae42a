/* tok_pipe MODEL - encodes what it reads: the C side of tests/tokenizer/parity.py and families.py.
 * MODEL: a folder, or a GGUF file. Request on stdin: u32 flags (of rose_encode), u32 length, text;
 * with MARKED in the flags also u32 number of runs, and for each run u32 bytes, u32 1 for a run of
 * the template. Reply on stdout: u32 count, that
 * many u32 ids, u32 length, the text that these ids decode to. All little-endian. A failure to
 * encode replies count 0xffffffff, then length and message. Exit 1 if the tokenizer does not open
 * (message on stderr), 2 on a broken pipe. */
#include <stdio.h>
#include <stdlib.h>

#include <string.h>

#include "tokenizer/tokenizer.h"

enum { MARKED = 256 };

typedef struct request {
    unsigned flags;
    rose_buf text; /* owned */
    rose_buf runs; /* owned; rose_mark_run */
} request;

static bool put_sized(const void *bytes, size_t n)
{
    uint32_t len = (uint32_t)n;
    return fwrite(&len, sizeof len, 1, stdout) == 1 && fwrite(bytes, 1, n, stdout) == n;
}

static bool read_u32(uint32_t *v)
{
    return fread(v, sizeof *v, 1, stdin) == 1;
}

/* The rest of a request whose flags were read. */
static bool read_request(request *r)
{
    uint32_t len, n, pair[2];
    r->text.len = r->runs.len = 0;
    if (!read_u32(&len) || rose_buf_reserve(&r->text, (size_t)len + 1) != ROSE_OK ||
        fread(r->text.data, 1, len, stdin) != len)
        return false;
    r->text.len = len;
    if ((r->flags & MARKED) == 0) return true;
    if (!read_u32(&n)) return false;
    for (; n > 0; n--) {
        if (fread(pair, sizeof pair, 1, stdin) != 1) return false;
        const rose_mark_run run = {pair[0], pair[1] != 0};
        if (rose_buf_add(&r->runs, &run, sizeof run) != ROSE_OK) return false;
    }
    return true;
}

static rose_status encode(rose_encoder *e, const request *r, rose_ids *ids, rose_err *err)
{
    const char *text = r->text.data;
    if ((r->flags & MARKED) == 0) return rose_encode(e, text, r->text.len, r->flags, ids, err);
    return rose_encode_marked(e, text, r->text.len, (const void *)r->runs.data,
                              r->runs.len / sizeof(rose_mark_run), r->flags & ~(unsigned)MARKED,
                              ids, err);
}

static rose_status open_model(rose_tokenizer **t, const char *path, rose_err *err)
{
    const size_t n = strlen(path);
    rose_gguf file = {0};
    if (n < 5 || strcmp(path + n - 5, ".gguf") != 0) return rose_tokenizer_open(t, path, err);
    rose_status st = rose_gguf_open(&file, path, err);
    if (st == ROSE_OK) st = rose_tokenizer_open_gguf(t, &file, err);
    rose_gguf_close(&file);
    return st;
}

static bool reply(rose_tokenizer *t, rose_encoder *e, const request *r)
{
    rose_ids ids = {0};
    rose_buf decoded = {0};
    rose_err err = {""};
    bool ok = encode(e, r, &ids, &err) == ROSE_OK &&
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
    request r = {0};
    rose_err err = {""};
    int rc = 0;

    if (argc != 2) {
        fprintf(stderr, "usage: tok_pipe MODEL\n");
        return 1;
    }
    if (open_model(&t, argv[1], &err) != ROSE_OK || rose_encoder_create(&e, t, &err) != ROSE_OK) {
        fprintf(stderr, "%s\n", err.msg);
        rc = 1;
        goto done;
    }
    while (rc == 0 && read_u32(&r.flags))
        if (!read_request(&r) || !reply(t, e, &r)) rc = 2;
done:
    rose_buf_free(&r.text);
    rose_buf_free(&r.runs);
    rose_encoder_destroy(e);
    rose_tokenizer_close(t);
    return rc;
}
