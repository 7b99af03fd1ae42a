/* bench/bench_tokenizer.c - encoding and decoding speed on one thread. The file is cut at line ends
 * into texts of about --chunk-bytes (0: one text); each repeat encodes all of them with a new
 * encoder (cold cache), then decodes all ids. tools/bench_tokenizer.py runs this against the
 * `tokenizers` package on the same texts. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "bench/bench.h"
#include "tokenizer/tokenizer.h"

enum { MAX_REPEATS = 1000 };

typedef struct options {
    const char *model, *file;
    long repeats, chunk_bytes;
    bool json;
} options;

typedef struct repeat {
    uint64_t encode_ns, decode_ns;
} repeat;

static const char usage[] =
    "usage: roseinfer bench tokenizer MODEL --file FILE [options]\n"
    "  --file FILE        text to encode, UTF-8\n"
    "  --repeats N        timed passes, each with a new encoder (default 5)\n"
    "  --chunk-bytes N    cut the file at line ends into texts of about N bytes; 0 = one text\n"
    "                     (default 4096)\n"
    "  --json             one JSON object on stdout\n";

static bool parse_count(const char *text, long lo, long hi, long *out)
{
    char *end;
    *out = strtol(text, &end, 10);
    return *text != '\0' && *end == '\0' && *out >= lo && *out <= hi;
}

/* 0 = go on, else the exit status plus one. */
static int parse(int argc, char **argv, options *o)
{
    static const struct option longs[] = {{"file", required_argument, NULL, 'f'},
                                          {"repeats", required_argument, NULL, 'r'},
                                          {"chunk-bytes", required_argument, NULL, 'c'},
                                          {"json", no_argument, NULL, 'j'},
                                          {"help", no_argument, NULL, 'h'},
                                          {NULL, 0, NULL, 0}};
    int c;
    bool ok = true;
    optind = 1;
    while (ok && (c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'f')
            o->file = optarg;
        else if (c == 'r')
            ok = parse_count(optarg, 1, MAX_REPEATS, &o->repeats);
        else if (c == 'c')
            ok = parse_count(optarg, 0, 1L << 30, &o->chunk_bytes);
        else if (c == 'j')
            o->json = true;
        else if (c == 'h') {
            fputs(usage, stdout);
            return 1;
        } else
            ok = false;
    }
    if (ok && optind == argc - 1) o->model = argv[optind];
    if (ok && o->model != NULL && o->file != NULL) return 0;
    fputs(usage, stderr);
    return 3;
}

/* Length of the text at p: up to the first line end at or behind chunk bytes. */
static size_t chunk_len(const char *p, size_t left, size_t chunk)
{
    if (chunk == 0 || left <= chunk) return left;
    const char *nl = memchr(p + chunk, '\n', left - chunk);
    return nl != NULL ? (size_t)(nl - p) + 1 : left;
}

static rose_status one_repeat(const rose_tokenizer *t, const rose_map *text, const options *o,
                              rose_ids *ids, rose_buf *decoded, repeat *r, rose_err *err)
{
    rose_encoder *e = NULL;
    const char *p = (const char *)text->data, *end = p + text->size;
    ids->len = decoded->len = 0;
    rose_status st = rose_encoder_create(&e, t, err);
    uint64_t start = rose_now_ns();
    while (p < end && st == ROSE_OK) {
        size_t n = chunk_len(p, (size_t)(end - p), (size_t)o->chunk_bytes);
        st = rose_encode(e, p, n, 0, ids, err);
        p += n;
    }
    r->encode_ns = rose_now_ns() - start;
    rose_encoder_destroy(e);
    if (st != ROSE_OK) return st;
    start = rose_now_ns();
    st = rose_decode(t, ids->data, ids->len, 0, decoded, err);
    r->decode_ns = rose_now_ns() - start;
    return st;
}

static double mb_per_s(size_t bytes, uint64_t ns)
{
    return ns > 0 ? (double)bytes * 1e3 / (double)ns : 0.0;
}

static void print_result(const options *o, const repeat *r, size_t bytes, size_t n_ids, bool same)
{
    if (o->json)
        printf("{\"bench\": \"tokenizer\", \"bytes\": %zu, \"tokens\": %zu, \"round_trip\": %s, "
               "\"repeats\": [",
               bytes, n_ids, same ? "true" : "false");
    else
        printf("%zu bytes, %zu tokens, round trip %s\n", bytes, n_ids, same ? "equal" : "DIFFERS");
    for (long i = 0; i < o->repeats; i++) {
        if (o->json)
            printf("%s{\"encode_ns\": %" PRIu64 ", \"decode_ns\": %" PRIu64 "}", i > 0 ? ", " : "",
                   r[i].encode_ns, r[i].decode_ns);
        else
            printf("encode %8.1f MB/s   decode %8.1f MB/s\n", mb_per_s(bytes, r[i].encode_ns),
                   mb_per_s(bytes, r[i].decode_ns));
    }
    if (o->json) puts("]}");
}

int rose_bench_tokenizer(int argc, char **argv)
{
    options o = {.repeats = 5, .chunk_bytes = 4096};
    rose_tokenizer *t = NULL;
    rose_map text = {0};
    rose_ids ids = {0};
    rose_buf decoded = {0};
    repeat *r = NULL;
    rose_err err = {""};

    int parsed = parse(argc, argv, &o);
    if (parsed != 0) return parsed - 1;
    rose_status st = rose_tokenizer_open(&t, o.model, &err);
    if (st == ROSE_OK) st = rose_file_map(&text, o.file, &err);
    if (st == ROSE_OK && (r = calloc((size_t)o.repeats, sizeof *r)) == NULL)
        st = rose_fail(&err, ROSE_E_NOMEM, "bench tokenizer: out of memory");
    for (long i = 0; i < o.repeats && st == ROSE_OK; i++)
        st = one_repeat(t, &text, &o, &ids, &decoded, &r[i], &err);
    if (st == ROSE_OK) {
        bool same = decoded.len == text.size &&
                    (text.size == 0 || memcmp(decoded.data, text.data, text.size) == 0);
        print_result(&o, r, text.size, ids.len, same);
    } else {
        fprintf(stderr, "%s\n", err.msg);
    }
    free(r);
    rose_buf_free(&decoded);
    rose_ids_free(&ids);
    rose_file_unmap(&text);
    rose_tokenizer_close(t);
    return st == ROSE_OK ? 0 : 1;
}
