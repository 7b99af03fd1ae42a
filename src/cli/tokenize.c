/* cli/tokenize.c - `roseinfer tokenize` and `roseinfer detokenize`. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/opts.h"
#include "cli/cli.h"
#include "tokenizer/tokenizer.h"

/* These commands read a cached model of the hub but fetch none. */
static rose_status open_tokenizer(rose_tokenizer **t, const char *model, rose_err *err)
{
    rose_buf path = {0};
    const bool found = rose_cli_find_model(&model, &path, false, false, err);
    const rose_status st = found ? rose_tokenizer_open(t, model, err) : ROSE_E_NOTFOUND;
    rose_buf_free(&path);
    return st;
}

static void print_pieces(const rose_tokenizer *t, const rose_ids *ids)
{
    for (size_t i = 0; i < ids->len; i++) {
        size_t n = 0;
        const char *bytes = rose_tokenizer_token_bytes(t, ids->data[i], &n);
        printf("%" PRIu32 "\t\"", ids->data[i]);
        for (size_t j = 0; bytes != NULL && j < n; j++) {
            unsigned char c = (unsigned char)bytes[j];
            if (c == '"' || c == '\\')
                printf("\\%c", c);
            else if (c >= 0x20 && c < 0x7f)
                putchar(c);
            else
                printf("\\x%02x", c);
        }
        puts("\"");
    }
}

static void print_ids(const rose_ids *ids)
{
    for (size_t i = 0; i < ids->len; i++)
        printf("%s%" PRIu32, i > 0 ? " " : "", ids->data[i]);
    if (ids->len > 0) putchar('\n');
}

int rose_cmd_tokenize(int argc, char **argv)
{
    const char *prompt = NULL;
    bool pieces = false, count = false, special = true;
    const rose_opt opts[] = {
        ROSE_ROW_STRING("prompt", &prompt, "TEXT", "the text", .letter = 'p',
                        .unset = "standard input"),
        ROSE_ROW_FLAG("pieces", &pieces,
                      "one line per token: id, tab, the bytes that it stands for"),
        ROSE_ROW_FLAG("count", &count, "print only how many tokens"),
        ROSE_ROW_BOOL("special", &special, "recognise special tokens in the text"),
    };
    const char *model;
    const int rc = rose_opts_parse_one("roseinfer tokenize MODEL [-p TEXT] [options]",
                                       "Prints the token ids of a text, separated by spaces.", opts,
                                       sizeof opts / sizeof *opts, argc, argv, &model);
    if (rc >= 0) return rc;

    rose_err err = {{0}};
    rose_tokenizer *t = NULL;
    rose_encoder *e = NULL;
    rose_buf text = {0};
    rose_ids ids = {0};
    rose_status st = open_tokenizer(&t, model, &err);
    if (st == ROSE_OK) st = rose_encoder_create(&e, t, &err);
    if (st == ROSE_OK) st = rose_cli_text(&text, prompt, &err);
    if (st == ROSE_OK)
        st = rose_encode(e, text.data, text.len, special ? 0 : ROSE_ENCODE_PLAIN_SPECIAL, &ids,
                         &err);
    if (st == ROSE_OK && count) printf("%zu\n", ids.len);
    if (st == ROSE_OK && !count && pieces) print_pieces(t, &ids);
    if (st == ROSE_OK && !count && !pieces) print_ids(&ids);
    rose_ids_free(&ids);
    rose_buf_free(&text);
    rose_encoder_destroy(e);
    rose_tokenizer_close(t);
    return st == ROSE_OK ? 0 : rose_die(&err);
}

/* Ids separated by white space or commas. */
static rose_status parse_ids(const char *s, rose_ids *ids, rose_err *err)
{
    for (;;) {
        s += strspn(s, " \t\r\n,");
        if (*s == '\0') return ROSE_OK;
        const size_t n = strcspn(s, " \t\r\n,");
        char *end = NULL;
        errno = 0;
        unsigned long v = *s >= '0' && *s <= '9' ? strtoul(s, &end, 10) : ULONG_MAX;
        if (v > UINT32_MAX || errno != 0 || end != s + n)
            return rose_fail(err, ROSE_E_INVAL, "'%.*s' is not a token id", n < 40 ? (int)n : 40,
                             s);
        if (ids->len == ids->cap) {
            size_t cap = ids->cap < 64 ? 64 : ids->cap * 2;
            uint32_t *p = realloc(ids->data, cap * sizeof *p);
            if (p == NULL) return rose_fail(err, ROSE_E_NOMEM, "out of memory");
            ids->data = p;
            ids->cap = cap;
        }
        ids->data[ids->len++] = (uint32_t)v;
        s += n;
    }
}

int rose_cmd_detokenize(int argc, char **argv)
{
    const char *list = NULL;
    bool skip = false;
    const rose_opt opts[] = {
        ROSE_ROW_STRING("ids", &list, "LIST", "ids separated by spaces or commas", .letter = 'i',
                        .unset = "standard input"),
        ROSE_ROW_FLAG("skip-special", &skip, "leave special tokens out"),
    };
    const char *model;
    const int rc = rose_opts_parse_one("roseinfer detokenize MODEL [-i LIST] [options]",
                                       "Prints the text of token ids, with no newline added.", opts,
                                       sizeof opts / sizeof *opts, argc, argv, &model);
    if (rc >= 0) return rc;

    rose_err err = {{0}};
    rose_tokenizer *t = NULL;
    rose_buf in = {0}, out = {0};
    rose_ids ids = {0};
    rose_status st = open_tokenizer(&t, model, &err);
    if (st == ROSE_OK) st = rose_cli_text(&in, list, &err);
    if (st == ROSE_OK) st = parse_ids(in.data, &ids, &err);
    if (st == ROSE_OK)
        st = rose_decode(t, ids.data, ids.len, skip ? ROSE_DECODE_SKIP_SPECIAL : 0, &out, &err);
    if (st == ROSE_OK) fwrite(out.data, 1, out.len, stdout);
    rose_ids_free(&ids);
    rose_buf_free(&in);
    rose_buf_free(&out);
    rose_tokenizer_close(t);
    return st == ROSE_OK ? 0 : rose_die(&err);
}
