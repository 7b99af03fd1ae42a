/* Properties that need others (dependentRequired, dependencies with lists): random objects of few
 * properties. Every sequence of members is tried, whole and as a beginning: a beginning is allowed
 * if and only if a valid object starts with it, so that no text runs into a dead end. */
#include "grammar_text.h"

static rose_vocab_trie *v;

enum { N = 4, OTHER = N, MAX_TEXT = 256 };

typedef struct world {
    uint64_t seed;
    bool needs[N][N], required[N], never[N], other, ordered;
    int max, min; /* members; -1: no bound */
    rose_grammar *g;
} world;

static unsigned rnd(world *w, unsigned n)
{
    w->seed = w->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(w->seed >> 33) % n;
}

static bool is_valid(const world *w, const int *seq, int n)
{
    bool there[N + 1] = {false};
    for (int i = 0; i < n; i++) {
        if (seq[i] == OTHER ? !w->other : w->never[seq[i]]) return false;
        if (w->ordered && i > 0 && seq[i] <= seq[i - 1]) return false;
        there[seq[i]] = true;
    }
    for (int i = 0; i < N; i++) {
        if (w->required[i] && !there[i]) return false;
        for (int j = 0; j < N; j++)
            if (there[i] && w->needs[i][j] && !there[j]) return false;
    }
    return (w->max < 0 || n <= w->max) && n >= w->min;
}

/* Does a valid object begin with seq[0..n)? At most one member has another name. */
static bool can_end(const world *w, int *seq, int n)
{
    if (is_valid(w, seq, n)) return true;
    for (int next = 0; next <= OTHER; next++) {
        bool seen = false;
        for (int i = 0; i < n; i++)
            seen = seen || seq[i] == next;
        if (seen) continue;
        seq[n] = next;
        if (can_end(w, seq, n + 1)) return true;
    }
    return false;
}

/* Are all bytes of the text accepted, and if `whole`, may it end? */
static bool accepts(const world *w, const char *text, bool whole)
{
    rose_matcher *m;
    bool ok = true;
    assert_int_equal(rose_matcher_create(&m, w->g, NULL), ROSE_OK);
    for (const char *c = text; *c != '\0' && ok; c++)
        ok = rose_matcher_accept(m, (uint8_t)*c, NULL) == ROSE_OK;
    if (ok) check_mask(m);
    if (whole) ok = ok && rose_matcher_accepting(m);
    rose_matcher_destroy(m);
    return ok;
}

/* All sequences that go on from seq[0..n). */
static void try_all(world *w, const char *schema, int *seq, int n)
{
    char text[MAX_TEXT] = "{";
    for (int i = 0; i < n; i++)
        snprintf(text + strlen(text), 16, "%s\"%c\":1", i > 0 ? "," : "", "abcdz"[seq[i]]);
    int copy[N + 2];
    memcpy(copy, seq, sizeof copy);
    const bool want = can_end(w, copy, n);
    if (accepts(w, text, false) != want) fail_msg("%s: %s should be %d", schema, text, want);
    strcat(text, "}");
    const bool valid = is_valid(w, seq, n);
    if (accepts(w, text, true) != valid) fail_msg("%s: %s should be %d", schema, text, valid);
    for (int next = 0; next <= OTHER && want; next++) {
        bool seen = false;
        for (int i = 0; i < n; i++)
            seen = seen || seq[i] == next;
        if (seen) continue;
        seq[n] = next;
        try_all(w, schema, seq, n + 1);
    }
}

static void write_schema(const world *w, char *to, bool old)
{
    char *at = to + sprintf(to, "{\"type\":\"object\",\"properties\":{");
    for (int i = 0; i < N; i++)
        at += sprintf(at, "%s\"%c\":%s", i > 0 ? "," : "", 'a' + i,
                      w->never[i] ? "false" : "{\"enum\":[1]}");
    at += sprintf(at, "},\"required\":[");
    for (int i = 0, k = 0; i < N; i++)
        if (w->required[i]) at += sprintf(at, "%s\"%c\"", k++ > 0 ? "," : "", 'a' + i);
    at += sprintf(at, "],\"%s\":{", old ? "dependencies" : "dependentRequired");
    for (int i = 0; i < N; i++) {
        at += sprintf(at, "%s\"%c\":[", i > 0 ? "," : "", 'a' + i);
        for (int j = 0, k = 0; j < N; j++)
            if (w->needs[i][j]) at += sprintf(at, "%s\"%c\"", k++ > 0 ? "," : "", 'a' + j);
        at += sprintf(at, "]");
    }
    at += sprintf(at, "},\"additionalProperties\":%s", w->other ? "{\"enum\":[1]}" : "false");
    if (w->max >= 0) at += sprintf(at, ",\"maxProperties\":%d", w->max);
    if (w->min > 0) at += sprintf(at, ",\"minProperties\":%d", w->min);
    sprintf(at, "}");
}

static void random_objects(void **state)
{
    world w = {.seed = 20261128};
    int n_compiled = 0;
    (void)state;
    for (int round = 0; round < 400; round++) {
        char schema[1024];
        rose_err err = {""};
        int seq[N + 2] = {0}, empty[N + 2] = {0};
        for (int i = 0; i < N; i++) {
            w.required[i] = rnd(&w, 6) == 0;
            w.never[i] = rnd(&w, 8) == 0;
            for (int j = 0; j < N; j++)
                w.needs[i][j] = rnd(&w, 4) == 0;
        }
        w.other = rnd(&w, 2) == 0;
        w.ordered = round % 2 == 1;
        w.max = rnd(&w, 3) == 0 ? (int)rnd(&w, N + 1) : -1;
        w.min = w.max < 0 && !w.ordered && rnd(&w, 3) == 0 ? (int)rnd(&w, N) : 0;
        if (w.min > 0) w.other = false; /* several others could fill it up */
        write_schema(&w, schema, round % 4 < 2);
        const rose_grammar_opts opts = {.max_space = UINT32_MAX, .schema_order = w.ordered};
        const rose_status st = rose_grammar_compile(&w.g, ROSE_GRAMMAR_JSON_SCHEMA, schema,
                                                    strlen(schema), v, &opts, &err);
        const bool some = can_end(&w, empty, 0);
        if (some != (st == ROSE_OK)) fail_msg("%s: %s", schema, err.msg);
        if (!some) continue;
        n_compiled++;
        try_all(&w, schema, seq, 0);
        rose_grammar_unref(w.g);
    }
    assert_true(n_compiled > 200);
}

/* Names without a schema of their own, and a hundred names that need each other. */
static void named(void **state)
{
    static const text_case cases[] = {
        {"{\"dependentRequired\": {\"a\": [\"b\"], \"b\": [\"c\"]}}",
         {"{}", "{\"x\":1}", "{\"a\":1,\"b\":2,\"c\":3}", "{\"c\":1,\"x\":{},\"b\":1}", "3"},
         {"{\"a\":1}", "{\"a\":1,\"b\":1}", "{\"b\":1}"}},
        {"{\"allOf\": [{\"dependentRequired\": {\"a\": [\"b\"]}}, {\"required\": [\"a\"]}], "
         "\"type\": \"object\", \"dependencies\": {\"b\": {\"required\": [\"c\"]}}}",
         {"{\"a\":1,\"b\":1,\"c\":1}"},
         {"{}", "{\"a\":1,\"b\":1}"}},
    };
    char text[8192], *at = text + sprintf(text, "{\"type\":\"object\",\"dependentRequired\":{");
    (void)state;
    check_cases(v, ROSE_GRAMMAR_JSON_SCHEMA, cases, sizeof cases / sizeof cases[0]);
    for (int i = 0; i < 100; i++)
        at += sprintf(at, "%s\"p%d\":[\"p%d\"]", i > 0 ? "," : "", i, (i + 1) % 100);
    strcpy(at, "}}");
    uint64_t work = 0;
    rose_grammar *g;
    const rose_grammar_opts opts = {.work = &work};
    assert_int_equal(
        rose_grammar_compile(&g, ROSE_GRAMMAR_JSON_SCHEMA, text, strlen(text), v, &opts, NULL),
        ROSE_OK);
    assert_true(work < 500000); /* it was more than the limit */
    assert_true(allows(g, "{\"x\":1}"));
    assert_false(allows(g, "{\"p0\":1,\"p1\":1}"));
    rose_grammar_unref(g);
}

static void refused(void **state)
{
    (void)state;
    check_refused(v, ROSE_GRAMMAR_JSON_SCHEMA,
                  "{\"dependentRequired\": {\"a\": [\"b\"]}, \"minProperties\": 1, "
                  "\"maxProperties\": 3}",
                  ROSE_E_UNSUPPORTED, "#/minProperties");
    check_refused(v, ROSE_GRAMMAR_JSON_SCHEMA,
                  "{\"enum\": [{\"a\": 1}], \"dependentRequired\": {\"a\": [\"b\"]}}",
                  ROSE_E_UNSUPPORTED, "#/dependentRequired");
    check_refused(v, ROSE_GRAMMAR_JSON_SCHEMA,
                  "{\"type\": \"object\", \"dependentRequired\": {\"a\": [\"b\"]}, "
                  "\"required\": [\"a\"], \"properties\": {\"b\": false}}",
                  ROSE_E_INVAL, "no text");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_objects),
        cmocka_unit_test(named),
        cmocka_unit_test(refused),
    };
    v = small_vocab();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rose_vocab_trie_unref(v);
    return failed != 0;
}
