/* build/tests/tools/grammar_bench TOKENIZER FILE [ordered]: for tests/grammar/maskbench.py. Each
 * line of FILE is
 * {"name", "schema", "tests": [[token ids], ...]}; for each it prints one line of JSON: how long
 * compiling and the masks took, in nanoseconds, and which texts the grammar allowed. `ordered`:
 * with schema_order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "grammar/grammar.h"

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Follows the ids: a mask before each, and whether the text may end after the last. A mask that
 * fails is noted in out. */
static bool follow(rose_grammar *g, const json_t *ids, uint32_t *mask, json_t *times, json_t *out)
{
    rose_matcher *m;
    rose_err err = {""};
    bool ok = rose_matcher_create(&m, g, &err) == ROSE_OK;
    for (size_t i = 0; ok && i < json_array_size(ids); i++) {
        uint32_t id = (uint32_t)json_number_value(json_array_get(ids, i));
        uint64_t start = now_ns();
        rose_status st = rose_matcher_mask(m, mask, &err);
        bool allowed = st == ROSE_OK && (mask[id / 32] >> (id % 32) & 1);
        ok = allowed && rose_matcher_accept(m, id, &err) == ROSE_OK;
        json_array_append_new(times, json_integer((json_int_t)(now_ns() - start)));
        if (st != ROSE_OK || (allowed && !ok))
            json_object_set_new(out, "failed", json_string(err.msg));
    }
    ok = ok && rose_matcher_accepting(m);
    rose_matcher_destroy(m);
    return ok;
}

static json_t *run_one(const json_t *job, rose_vocab_trie *v, const rose_grammar_opts *opts,
                       uint32_t *mask)
{
    char *text = json_dumps(json_object_get(job, "schema"), JSON_COMPACT | JSON_ENCODE_ANY);
    json_t *out = json_object(), *allowed = json_array(), *times = json_array();
    rose_grammar *g;
    rose_matcher *m;
    rose_err err = {""};
    uint64_t start = now_ns();
    rose_status st =
        rose_grammar_compile(&g, ROSE_GRAMMAR_JSON_SCHEMA, text, strlen(text), v, opts, &err);
    json_object_set_new(out, "compile_ns", json_integer((json_int_t)(now_ns() - start)));
    json_object_set(out, "name", json_object_get(job, "name"));
    if (st != ROSE_OK) {
        json_object_set_new(out, "error", json_string(err.msg));
    } else if (rose_matcher_create(&m, g, &err) == ROSE_OK) {
        size_t i;
        json_t *ids;
        rose_matcher_mask(m, mask, &err);
        json_object_set_new(out, "first_ns", json_integer((json_int_t)(now_ns() - start)));
        rose_matcher_destroy(m);
        json_array_foreach(json_object_get(job, "tests"), i, ids)
            json_array_append_new(allowed, json_boolean(follow(g, ids, mask, times, out)));
        json_object_set_new(out, "bytes", json_integer((json_int_t)rose_grammar_bytes(g)));
        rose_grammar_unref(g);
    }
    json_object_set_new(out, "allowed", allowed);
    json_object_set_new(out, "mask_ns", times);
    free(text);
    return out;
}

int main(int argc, char **argv)
{
    rose_grammar_opts opts = {.schema_order = argc > 3};
    rose_tokenizer *t;
    rose_vocab_trie *v;
    rose_err err = {""};
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    if (argc < 3) return fprintf(stderr, "usage: grammar_bench TOKENIZER FILE [ordered]\n"), 2;
    FILE *f = fopen(argv[2], "r");
    if (f == NULL) return perror(argv[2]), 1;
    if (rose_tokenizer_open(&t, argv[1], &err) != ROSE_OK)
        return fprintf(stderr, "%s\n", err.msg), 1;
    uint32_t n_ids = rose_tokenizer_vocab_size(t), eos = n_ids - 1;
    uint64_t start = now_ns();
    if (rose_vocab_trie_open(&v, t, n_ids, &eos, 1, &err) != ROSE_OK)
        return fprintf(stderr, "%s\n", err.msg), 1;
    printf("{\"vocabulary_ns\": %llu, \"vocabulary_bytes\": %zu}\n",
           (unsigned long long)(now_ns() - start), rose_vocab_trie_bytes(v));
    uint32_t *mask = calloc(n_ids / 32 + 1, sizeof *mask);
    while ((n = getline(&line, &cap, f)) > 0) {
        json_t *job;
        json_error_t e;
        if (rose_json_parse(&job, line, (size_t)n, JSON_ALLOW_NUL, &e) != ROSE_OK &&
            rose_json_parse(&job, line, (size_t)n, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e) !=
                ROSE_OK) {
            printf("{\"error\": \"the line is not JSON\"}\n");
            continue;
        }
        json_t *out = run_one(job, v, &opts, mask);
        json_dumpf(out, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(out);
        json_decref(job);
    }
    free(line);
    free(mask);
    fclose(f);
    rose_vocab_trie_unref(v);
    rose_tokenizer_close(t);
    return 0;
}
