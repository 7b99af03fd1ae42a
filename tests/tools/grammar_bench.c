/* build/tests/tools/grammar_bench TOKENIZER FILE [ordered|closed]: for tests/grammar/maskbench.py.
 * Each line of FILE is
 * {"name", "schema", "tests": [[token ids], ...]}, or with "kind" and "text" in place of "schema"
 * (tests/grammar/costs.py); for each it prints one line of JSON: how long
 * compiling and the masks took, in nanoseconds of CPU time, and which texts the grammar allowed.
 * `ordered`: with schema_order; `closed`: as the server compiles. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "grammar/grammar.h"

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* other programs share the machine */
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Follows the ids: a mask before each, and whether the text may end after the last. A mask that
 * fails is noted in out. */
static bool follow(rose_grammar *g, const rose_json *ids, uint32_t *mask, rose_json *times,
                   rose_json *out)
{
    rose_matcher *m;
    rose_err err = {""};
    bool ok = rose_matcher_create(&m, g, &err) == ROSE_OK;
    for (size_t i = 0; ok && i < rose_json_count(ids); i++) {
        uint32_t id = (uint32_t)rose_json_number_value(rose_json_at(ids, i));
        uint64_t start = now_ns();
        rose_status st = rose_matcher_mask(m, mask, &err);
        bool allowed = st == ROSE_OK && (mask[id / 32] >> (id % 32) & 1);
        ok = allowed && rose_matcher_accept(m, id, &err) == ROSE_OK;
        rose_json_append_new(times, rose_json_integer((int64_t)(now_ns() - start)));
        if (st != ROSE_OK || (allowed && !ok))
            rose_json_set_new(out, "failed", rose_json_string(err.msg));
    }
    ok = ok && rose_matcher_accepting(m);
    rose_matcher_destroy(m);
    return ok;
}

/* "kind": 1 for a schema (the default), and so on as in rose_grammar_kind. */
static rose_grammar_kind kind_of(const rose_json *job)
{
    const rose_json *kind = rose_json_get(job, "kind");
    return kind == NULL ? ROSE_GRAMMAR_JSON_SCHEMA : (rose_grammar_kind)rose_json_int(kind);
}

static rose_json *run_one(const rose_json *job, rose_vocab_trie *v, rose_grammar_opts *opts,
                          uint32_t *mask)
{
    uint64_t work = 0;
    const rose_json *given = rose_json_get(job, "text");
    char *text = given != NULL ? strdup(rose_json_text(given))
                               : rose_json_dumps(rose_json_get(job, "schema"), ROSE_JSON_COMPACT);
    rose_json *out = rose_json_object(), *allowed = rose_json_array(), *times = rose_json_array();
    rose_grammar *g;
    rose_matcher *m;
    rose_err err = {""};
    opts->work = &work;
    uint64_t start = now_ns();
    rose_status st = rose_grammar_compile(&g, kind_of(job), text, strlen(text), v, opts, &err);
    rose_json_set_new(out, "compile_ns", rose_json_integer((int64_t)(now_ns() - start)));
    rose_json_set_new(out, "work", rose_json_integer((int64_t)work));
    rose_json_set(out, "name", rose_json_get(job, "name"));
    if (st != ROSE_OK) {
        rose_json_set_new(out, "error", rose_json_string(err.msg));
    } else if (rose_matcher_create(&m, g, &err) == ROSE_OK) {
        size_t i;
        rose_json *ids;
        rose_matcher_mask(m, mask, &err);
        rose_json_set_new(out, "first_ns", rose_json_integer((int64_t)(now_ns() - start)));
        rose_matcher_destroy(m);
        rose_json_each_item (rose_json_get(job, "tests"), i, ids)
            rose_json_append_new(allowed, rose_json_boolean(follow(g, ids, mask, times, out)));
        rose_json_set_new(out, "bytes", rose_json_integer((int64_t)rose_grammar_bytes(g)));
        rose_grammar_unref(g);
    }
    rose_json_set_new(out, "allowed", allowed);
    rose_json_set_new(out, "mask_ns", times);
    free(text);
    return out;
}

int main(int argc, char **argv)
{
    rose_grammar_opts opts = {.schema_order = argc > 3 && strcmp(argv[3], "ordered") == 0,
                              .closed = argc > 3 && strcmp(argv[3], "closed") == 0};
    rose_tokenizer *t;
    rose_vocab_trie *v;
    rose_err err = {""};
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    if (argc < 3)
        return fprintf(stderr, "usage: grammar_bench TOKENIZER FILE [ordered|closed]\n"), 2;
    FILE *f = fopen(argv[2], "r");
    if (f == NULL) return perror(argv[2]), 1;
    if (rose_tokenizer_open(&t, argv[1], &err) != ROSE_OK)
        return fprintf(stderr, "%s\n", err.msg), 1;
    uint32_t n_ids = rose_tokenizer_vocab_size(t), eos = n_ids - 1;
    uint64_t start = now_ns();
    if (rose_vocab_trie_open(&v, t, n_ids, &eos, 1, &err) != ROSE_OK)
        return fprintf(stderr, "%s\n", err.msg), 1;
    printf("{\"vocabulary_ns\": %llu}\n", (unsigned long long)(now_ns() - start));
    uint32_t *mask = calloc(n_ids / 32 + 1, sizeof *mask);
    while ((n = getline(&line, &cap, f)) > 0) {
        rose_json *job;
        rose_json_error e;
        if (rose_json_parse(&job, line, (size_t)n, ROSE_JSON_NUL, &e) != ROSE_OK) {
            printf("{\"error\": \"the line is not JSON\"}\n");
            continue;
        }
        rose_json *out = run_one(job, v, &opts, mask);
        rose_json_dumpf(out, stdout, ROSE_JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        rose_json_decref(out);
        rose_json_decref(job);
    }
    free(line);
    free(mask);
    fclose(f);
    rose_vocab_trie_unref(v);
    rose_tokenizer_close(t);
    return 0;
}
