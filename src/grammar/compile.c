/* grammar/compile.c - from the text of a request to a grammar, and the life of a grammar. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "grammar/match_internal.h"

static void set_defaults(rose_grammar_opts *o, const rose_grammar_opts *given)
{
    *o = given != NULL ? *given : (rose_grammar_opts){0};
    if (o->max_space == 0) o->max_space = 1;
    if (o->max_states == 0) o->max_states = 1000000;
    if (o->max_depth == 0) o->max_depth = 200;
    if (o->max_stack == 0) o->max_stack = 1000;
    if (o->max_work == 0) o->max_work = 30000000;
    if (o->max_compile_bytes == 0) o->max_compile_bytes = (size_t)256 << 20;
    if (o->max_run_bytes == 0) o->max_run_bytes = (size_t)32 << 20;
    if (o->max_live_bytes == 0) o->max_live_bytes = (size_t)2 << 30;
}

/* Everything that can fail while compiling jumps out of here. */
static rose_status build(gr_build *b, gr_program *p, gr_node (*front)(gr_build *, void *),
                         void *arg)
{
    if (setjmp(b->trap) != 0) return b->st;
    rose_gr_nodes_init(b);
    gr_node root = front(b, arg);
    rose_gr_program_make(b, root, p);
    return ROSE_OK;
}

enum { SLOW_STEPS = 100000 }; /* about 3 ms */

/* With the lock, or before others have g. */
static void note_bytes(rose_grammar *g)
{
    const size_t now = sizeof *g + g->program_bytes + g->s.bytes;
    /* relaxed: figures for statistics and for bounds that need not be exact */
    const size_t before = atomic_exchange_explicit(&g->bytes, now, memory_order_relaxed);
    atomic_fetch_add_explicit(&g->vocab->grammar_bytes, now - before, memory_order_relaxed);
}

/* Refuses a grammar if the others that live are too many. Checked again after compiling, because
 * others may have been compiled at the same time. */
static rose_status check_live(rose_grammar *g, const char *what, rose_err *err)
{
    if (rose_gr_live_bytes(g) - rose_grammar_bytes(g) <= g->opts.max_live_bytes) return ROSE_OK;
    return rose_fail(err, ROSE_E_FULL,
                     "%s: the grammars of the running and waiting requests have more than %zu MiB; "
                     "try again when some of them have ended",
                     what, g->opts.max_live_bytes >> 20);
}

static rose_status prepare(rose_grammar *g, rose_vocab_trie *v)
{
    g->walk = malloc((v->max_token + 2) * sizeof *g->walk);
    if (g->walk == NULL) return ROSE_E_NOMEM;
    g->program_bytes = g->p.n_ops * sizeof(gr_op) + g->p.n_edges * sizeof(gr_edge) +
                       g->p.n_targets * sizeof(uint32_t) + g->p.n_loops * sizeof(gr_loop) +
                       g->p.n_sets * sizeof(gr_set) + g->p.n_keys * sizeof(gr_keys);
    rose_status st = rose_gr_states_init(g);
    note_bytes(g);
    return st;
}

rose_status rose_gr_compile(rose_grammar **out, rose_vocab_trie *v, const rose_grammar_opts *opts,
                            const char *what, gr_node (*front)(gr_build *, void *), void *arg,
                            rose_err *err)
{
    rose_grammar *g = calloc(1, sizeof *g);
    gr_build *b = calloc(1, sizeof *b);
    rose_status st = ROSE_E_NOMEM;
    *out = NULL;
    if (g == NULL || b == NULL) {
        rose_fail(err, st, "%s: out of memory", what);
        free(g);
        free(b);
        return st;
    }
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->lock, NULL);
    set_defaults(&g->opts, opts);
    g->vocab = v;
    rose_vocab_trie_ref(v);
    b->err = err;
    b->what = what;
    b->opts = g->opts;
    st = check_live(g, what, err);
    if (st == ROSE_OK) st = build(b, &g->p, front, arg);
    if (st == ROSE_OK && (st = prepare(g, v)) != ROSE_OK)
        rose_fail(err, st,
                  st == ROSE_E_NOMEM ? "%s: out of memory"
                                     : "%s: the start has too many possible readings",
                  what);
    if (st == ROSE_OK) st = check_live(g, what, err);
    rose_gr_chunks_free(b->chunks[0]);
    rose_gr_chunks_free(b->chunks[1]);
    rose_json_decref(b->made);
    rose_json_decref(b->root);
    free(b);
    if (st == ROSE_OK)
        *out = g;
    else
        rose_grammar_unref(g);
    return st;
}

/* ---- the kinds ---- */

typedef struct request {
    rose_grammar_kind kind;
    const char *text;
    size_t len;
} request;

static rose_json *parse_json(gr_build *b, const request *r)
{
    rose_json_error e;
    const unsigned flags = ROSE_JSON_ANY | ROSE_JSON_NUL;
    const rose_status st = rose_json_parse(&b->root, r->text, r->len, flags, &e);
    if (st == ROSE_E_NOMEM) rose_gr_fail(b, st, "out of memory");
    if (st != ROSE_OK)
        rose_gr_fail(b, ROSE_E_INVAL, "not JSON: %s (line %d, column %d)", e.text, e.line,
                     e.column);
    return b->root;
}

static gr_node choice(gr_build *b, const rose_json *list)
{
    size_t n = rose_json_count(list);
    if (n == 0) rose_gr_fail(b, ROSE_E_INVAL, "must be a list of at least one string");
    gr_word *words = rose_gr_take(b, n * sizeof *words);
    for (size_t i = 0; i < n; i++) {
        const rose_json *x = rose_json_at(list, i);
        if (!rose_json_is_string(x) || rose_json_text_len(x) == 0)
            rose_gr_fail(b, ROSE_E_INVAL, "item %zu must be a string that is not empty", i);
        words[i] = (gr_word){rose_json_text(x), rose_json_text_len(x)};
    }
    return rose_gr_words(b, words, n);
}

static gr_node front_end(gr_build *b, void *arg)
{
    const request *r = arg;
    switch (r->kind) {
    case ROSE_GRAMMAR_JSON_OBJECT:
        return rose_gr_any_object(b);
    case ROSE_GRAMMAR_JSON_SCHEMA:
        return rose_gr_schema(b, parse_json(b, r));
    case ROSE_GRAMMAR_REGEX:
        b->plain_class = true;
        return rose_gr_regex(b, r->text, r->len);
    case ROSE_GRAMMAR_CHOICE:
        return choice(b, parse_json(b, r));
    case ROSE_GRAMMAR_EBNF:
        b->plain_class = true;
        return rose_gr_ebnf(b, r->text, r->len);
    case ROSE_GRAMMAR_TAG:
        return rose_gr_tag(b, parse_json(b, r));
    default:
        rose_gr_fail(b, ROSE_E_INVAL, "unknown kind %d", (int)r->kind);
    }
}

rose_status rose_grammar_compile(rose_grammar **out, rose_grammar_kind kind, const char *text,
                                 size_t len, rose_vocab_trie *v, const rose_grammar_opts *opts,
                                 rose_err *err)
{
    static const char *const names[] = {"json_object", "json_schema", "regex",
                                        "choice",      "grammar",     "structural_tag"};
    request r = {kind, text, len};
    const char *what = (size_t)kind < sizeof names / sizeof names[0] ? names[kind] : "grammar";
    return rose_gr_compile(out, v, opts, what, front_end, &r, err);
}

void rose_grammar_ref(rose_grammar *g)
{
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
}

void rose_grammar_unref(rose_grammar *g)
{
    if (g == NULL) return;
    /* acq_rel: the last holder frees what the others have written */
    if (atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) != 1) return;
    rose_gr_free_gone(g);
    rose_gr_program_free(&g->p);
    rose_gr_states_free(&g->s);
    atomic_fetch_sub_explicit(&g->vocab->grammar_bytes, rose_grammar_bytes(g),
                              memory_order_relaxed);
    rose_vocab_trie_unref(g->vocab);
    pthread_mutex_destroy(&g->lock);
    free(g->work);
    free(g->found);
    free(g->seen);
    free(g->seen_stamp);
    free(g->walk);
    free(g);
}

void rose_gr_unlock(rose_grammar *g)
{
    note_bytes(g);
    /* relaxed: only a hint for the choice of a thread */
    if (g->steps > SLOW_STEPS) atomic_store_explicit(&g->slow, true, memory_order_relaxed);
    pthread_mutex_unlock(&g->lock);
}

size_t rose_grammar_bytes(rose_grammar *g)
{
    return atomic_load_explicit(&g->bytes, memory_order_relaxed);
}
