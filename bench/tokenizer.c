/* bench/tokenizer.c - `roseinfer bench tokenizer` measures encoding and decoding on one thread. The
 * file is cut at line ends into texts of about --chunk-bytes (0: one text). Each repeat encodes all
 * texts with a new encoder, whose cache is empty, and then decodes all ids.
 * tools/bench_tokenizer.py compares it with the Python package `tokenizers` on the same texts. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/opts.h"
#include "bench/bench.h"
#include "tokenizer/tokenizer.h"

typedef struct options {
    const char *model, *file;
    uint32_t repeats, chunk_bytes;
    bool json;
} options;

typedef struct repeat {
    uint64_t encode_ns, decode_ns;
} repeat;

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, options *o)
{
    const rose_opt opts[] = {
        ROSE_ROW_STRING("file", &o->file, "FILE", "text to encode, UTF-8 (required)"),
        ROSE_ROW_U32("repeats", &o->repeats, "N", 1, 1000, "timed passes, each with a new encoder"),
        ROSE_ROW_U32("chunk-bytes", &o->chunk_bytes, "N", 0, 1u << 30,
                     "cut the file at line ends into texts of about N bytes; 0 = one text"),
        ROSE_ROW_FLAG("json", &o->json, "one JSON object on standard output"),
    };
    const int rc = rose_opts_parse_one(
        "roseinfer bench tokenizer MODEL --file FILE [options]",
        "Bytes per second of encoding and decoding on one thread. tools/bench_tokenizer.py "
        "compares it with\nthe Python package tokenizers in one run.",
        opts, sizeof opts / sizeof *opts, argc, argv, &o->model);
    if (rc >= 0 || o->file != NULL) return rc;
    fprintf(stderr, "roseinfer: bench tokenizer needs --file FILE (see --help)\n");
    return 2;
}

/* The length of the text at p: up to the end of the line in which byte number `chunk` lies. */
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
        size_t n = chunk_len(p, (size_t)(end - p), o->chunk_bytes);
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
    for (uint32_t i = 0; i < o->repeats; i++) {
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

    int rc = parse(argc, argv, &o);
    if (rc >= 0) return rc;
    rose_status st = rose_tokenizer_open(&t, o.model, &err);
    if (st == ROSE_OK) st = rose_file_map(&text, o.file, &err);
    if (st == ROSE_OK && (r = calloc(o.repeats, sizeof *r)) == NULL)
        st = rose_fail(&err, ROSE_E_NOMEM, "bench tokenizer: out of memory");
    for (uint32_t i = 0; i < o.repeats && st == ROSE_OK; i++)
        st = one_repeat(t, &text, &o, &ids, &decoded, &r[i], &err);
    if (st == ROSE_OK) {
        bool same = decoded.len == text.size &&
                    (text.size == 0 || memcmp(decoded.data, text.data, text.size) == 0);
        print_result(&o, r, text.size, ids.len, same);
    }
    free(r);
    rose_buf_free(&decoded);
    rose_ids_free(&ids);
    rose_file_unmap(&text);
    rose_tokenizer_close(t);
    return st == ROSE_OK ? 0 : rose_die(&err);
}
