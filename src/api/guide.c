/* api/guide.c - see guide.h. A guide is a matcher of grammar/grammar.h. The engine owns it from
 * submit on. */
#include "api/guide.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/profile.h"

/* ---- the grammars of the model ---- */

void rose_api_grammars_init(rose_api_grammars *g, size_t max_bytes)
{
    pthread_mutex_init(&g->lock, NULL);
    atomic_init(&g->cache, NULL);
    g->max_bytes = max_bytes;
}

void rose_api_grammars_free(rose_api_grammars *g)
{
    rose_grammar_cache_destroy(atomic_load_explicit(&g->cache, memory_order_relaxed));
    pthread_mutex_destroy(&g->lock);
}

/* acquire: pairs with the release store in make_cache */
static rose_grammar_cache *cache_of(const rose_api_grammars *g)
{
    return atomic_load_explicit(&g->cache, memory_order_acquire);
}

void rose_api_grammars_read(const rose_api_grammars *g, rose_grammar_cache_stats *out)
{
    rose_grammar_cache *c = cache_of(g);
    *out = (rose_grammar_cache_stats){0};
    if (c != NULL) rose_grammar_cache_read(c, out);
}

/* Builds the vocabulary and the empty cache. With the lock. */
static rose_status make_cache(rose_api *a, rose_grammar_cache **out, rose_err *err)
{
    const rose_engine *e = rose_api_engine(a);
    const rose_arch *arch = rose_engine_arch(e);
    const rose_prof_span span = rose_prof_begin("api.vocabulary");
    const rose_status st = rose_grammar_cache_open(out, a->tok, arch->vocab_size, arch->eos_ids,
                                                   arch->n_eos, a->grammars.max_bytes, err);
    rose_prof_end(&span);
    if (st == ROSE_OK) atomic_store_explicit(&a->grammars.cache, *out, memory_order_release);
    return st;
}

static rose_status get_cache(rose_api *a, rose_grammar_cache **out, rose_err *err)
{
    rose_status st = ROSE_OK;
    if ((*out = cache_of(&a->grammars)) != NULL) return ROSE_OK;
    pthread_mutex_lock(&a->grammars.lock);
    if ((*out = cache_of(&a->grammars)) == NULL) st = make_cache(a, out, err);
    pthread_mutex_unlock(&a->grammars.lock);
    return st;
}

/* The text of a grammar; kind and order are those of grammar/grammar.h. */
typedef struct source {
    rose_grammar_kind kind;
    bool order;
    const char *text;
    size_t len;
} source;

/* *too_costly becomes true if the grammar needs a turn with more steps. */
static rose_status compile(rose_api_job *j, const source *s, bool *too_costly, rose_err *err)
{
    rose_grammar_cache *c;
    uint64_t work = 0;
    static const uint64_t steps[ROSE_API_LAST_TURN + 1] = {ROSE_API_FIRST_STEPS,
                                                           ROSE_API_SECOND_STEPS, 0};
    const uint64_t most = j->api->workers != NULL ? steps[j->turn.nth] : 0;
    const rose_grammar_opts own = {
        .max_work = most, .work = &work, .stop = rose_api_workers_idle, .stop_arg = j};
    rose_status st = get_cache(j->api, &c, err);
    if (st != ROSE_OK) return st;
    const rose_prof_span span = rose_prof_begin("api.grammar");
    st = rose_grammar_cache_get(&j->grammar, c, s->kind, s->order, s->text, s->len, &own, err);
    rose_prof_end_with(&span, "bytes", s->len);
    *too_costly = most > 0 && st == ROSE_E_UNSUPPORTED && work > most;
    return st;
}

/* Compiles as soon as it is this job's turn. EMPTY: later; FULL: never. */
static rose_status compile_in_turn(rose_api_job *j, const source *s, rose_err *err)
{
    rose_api_workers *w = j->api->workers;
    bool too_costly = false;
    /* Other threads read the text of a turn that runs. */
    if (j->right != ROSE_API_TURN_RUNS)
        j->turn.text = rose_grammar_cache_key(s->kind, s->order, s->text, s->len);
    rose_status st = rose_api_workers_may_compile(w, j);
    if (st != ROSE_OK) return st;
    st = compile(j, s, &too_costly, err);
    rose_api_workers_compiled(w, j);
    if (!too_costly) return st;
    j->turn.nth++;
    return compile_in_turn(j, s, err);
}

static bool load_source(rose_api_job *j, const source *s, const char *param)
{
    rose_err err = {0};
    rose_grammar_cache *c = cache_of(&j->api->grammars);
    if (j->phase == ROSE_API_READING_HERE) {
        j->declined = true;
        return false;
    }
    snprintf(j->guided_by, sizeof j->guided_by, "%s", param);
    rose_status st = ROSE_E_EMPTY;
    if (c != NULL)
        st = rose_grammar_cache_find(&j->grammar, c, s->kind, s->order, s->text, s->len, &err);
    if (st == ROSE_E_EMPTY) st = compile_in_turn(j, s, &err);
    j->declined = st == ROSE_E_EMPTY;
    if (st == ROSE_OK || st == ROSE_E_EMPTY) return st == ROSE_OK;
    if (st == ROSE_E_FULL && err.msg[0] == '\0') {
        rose_api_fail_status(&j->err, st, NULL, rose_api_engine(j->api));
        return false;
    }
    if (st == ROSE_E_FULL)
        return rose_api_fail(&j->err, 429, "rate_limit_exceeded", param, "%s", err.msg);
    rose_api_fail_status(&j->err, st, &err, NULL);
    if (j->err.status == 400) snprintf(j->err.param, sizeof j->err.param, "%s", param);
    return false;
}

bool rose_api_guide_load(rose_api_job *j, const rose_api_structure *s)
{
    source from = {s->kind, s->schema_order, rose_json_text(s->value),
                   rose_json_text_len(s->value)};
    rose_api_out text = {0};
    if (!s->any) return true;
    if (s->value != NULL && from.text == NULL) {
        rose_api_put_json(&text, s->value);
        from.text = text.b.data;
        from.len = text.b.len;
    }
    const bool ok = text.oom ? rose_api_fail_nomem(&j->err) : load_source(j, &from, s->param);
    rose_api_out_free(&text);
    return ok;
}

/* ---- guides: the engine calls a matcher ---- */

static const rose_guide_ops guide_ops = ROSE_MATCHER_GUIDE;

void rose_api_guide_destroy(rose_guide *g)
{
    if (g->ops != NULL) g->ops->destroy(g->state);
    *g = (rose_guide){0};
}

bool rose_api_guides_create(rose_api_job *j)
{
    rose_err err = {0};
    for (uint32_t i = 0; j->grammar != NULL && i < j->n_choices; i++) {
        rose_matcher *m;
        if (rose_matcher_create(&m, j->grammar, &err) != ROSE_OK)
            return rose_api_fail_nomem(&j->err);
        j->choices[i].guide = (rose_guide){.ops = &guide_ops, .state = m};
    }
    return true;
}
