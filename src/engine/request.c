/* engine/request.c - see request_internal.h. The consumer's side of a request, cancelling, and
 * the futex on which the engine thread sleeps. No scheduling and no backend here. */
#include "engine/request_internal.h"

#include <assert.h>
#include <linux/futex.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { CACHE_LINE = 64 };

/* ---- the port ---- */

rose_port *rose_port_create(void)
{
    rose_port *p = aligned_alloc(CACHE_LINE, sizeof *p);
    if (p == NULL) return NULL;
    atomic_init(&p->refs, 1);
    atomic_init(&p->asleep, 0);
    atomic_init(&p->cancel, NULL);
    return p;
}

void rose_port_unref(rose_port *p)
{
    if (p == NULL) return;
    /* acq_rel: the thread that drops the last reference sees the writes of all others */
    if (atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
    for (rose_request *r = rose_port_take_cancels(p), *next; r != NULL; r = next) {
        next = r->cancel_next;
        rose_request_unref(r); /* cancelled after the engine had ended */
    }
    free(p);
}

void rose_port_wake(rose_port *p)
{
    /* acq_rel: if this exchange comes before the one in sleep_prepare, it publishes our earlier
     * writes. If it comes after, it reads 1 and wakes. Both write one variable, so one of the
     * two holds. */
    if (atomic_exchange_explicit(&p->asleep, 0, memory_order_acq_rel) == 0) return;
    (void)syscall(SYS_futex, (uint32_t *)(void *)&p->asleep, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

void rose_port_sleep_prepare(rose_port *p)
{
    atomic_exchange_explicit(&p->asleep, 1, memory_order_acq_rel); /* pairs with wake */
}

void rose_port_sleep(rose_port *p, uint64_t timeout_ns)
{
    const struct timespec t = {.tv_nsec = (long)timeout_ns};
    /* an early return of the wait (a signal, a spurious wake-up) is harmless: the caller looks
     * for events and waits again */
    (void)syscall(SYS_futex, (uint32_t *)(void *)&p->asleep, FUTEX_WAIT_PRIVATE, 1,
                  timeout_ns != 0 ? &t : NULL, NULL, 0);
}

void rose_port_sleep_done(rose_port *p)
{
    /* relaxed: this store only saves later wakers a system call */
    atomic_store_explicit(&p->asleep, 0, memory_order_relaxed);
}

rose_request *rose_port_take_cancels(rose_port *p)
{
    if (atomic_load_explicit(&p->cancel, memory_order_relaxed) == NULL) return NULL;
    /* acquire: pairs with the release in rose_request_cancel; the links are complete */
    return atomic_exchange_explicit(&p->cancel, NULL, memory_order_acquire);
}

/* ---- life ---- */

rose_request *rose_request_create(const rose_request_opts *o, uint32_t max_tokens, rose_port *port,
                                  const rose_rules_ctx *c)
{
    /* n_prompt and max_tokens are below 2^29 (the scheduler's limit), so nothing overflows in 64
     * bits */
    size_t events = ((size_t)max_tokens + 1) * sizeof(rose_event);
    size_t bytes = sizeof(rose_request) + events + (size_t)o->n_prompt * sizeof(uint32_t);
    bytes = (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    rose_request *r = aligned_alloc(CACHE_LINE, bytes);
    if (r == NULL) return NULL;
    memset(r, 0, sizeof *r);
    const bool guided = o->guide.ops != NULL && max_tokens > 0;
    if ((o->rules != NULL && (r->rules = rose_rules_create(o->rules, c)) == NULL) ||
        (o->pool != ROSE_POOL_NONE && (r->state = calloc(c->width, sizeof *r->state)) == NULL) ||
        (guided && (r->guided = rose_guided_create(o, c)) == NULL)) {
        free(r->state);
        free(r->rules);
        free(r);
        return NULL;
    }
    if (o->guide.ops != NULL && !guided) o->guide.ops->destroy(o->guide.state);
    uint32_t *prompt = (uint32_t *)(void *)((unsigned char *)r->events + events);
    memcpy(prompt, o->prompt, (size_t)o->n_prompt * sizeof(uint32_t));
    r->port = port;
    r->sink = o->sink;
    r->user = o->user;
    r->sampling = o->sampling;
    r->prompt = prompt;
    r->n_prompt = o->n_prompt;
    r->max_tokens = max_tokens;
    r->n_run = rose_request_n_run(o->n_prompt, max_tokens, o->pool);
    r->pool = o->pool;
    r->width = c->width;
    r->ignore_eos = o->ignore_eos;
    r->skip_prefix_cache = o->skip_prefix_cache;
    r->prof_id = o->prof_id;
    r->priority = o->priority;
    r->same_prompt = o->same_prompt;
    r->seq = UINT32_MAX;
    atomic_init(&r->refs, 1);
    atomic_init(&r->cancel_state, ROSE_CANCEL_NO);
    atomic_init(&r->begun, false);
    atomic_init(&r->word, 0);
    /* relaxed: the engine holds a reference while any thread submits */
    atomic_fetch_add_explicit(&port->refs, 1, memory_order_relaxed);
    return r;
}

bool rose_request_add_text(rose_request *r, const rose_spec *s, const rose_request_opts *o)
{
    r->text = rose_spec_text_create(s, r->prompt, r->n_prompt, r->max_tokens, r->salt,
                                    o->prediction, o->n_prediction);
    return r->text != NULL;
}

void rose_request_unref(rose_request *r)
{
    /* acq_rel: the thread that drops the last reference sees the writes of the other thread */
    if (atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) != 1) return;
    rose_spec_text_destroy(r->text);
    rose_guided_destroy(r->guided);
    free(r->rules);
    free(r->state);
    free(r);
}

void rose_request_release(rose_request *r)
{
    if (r == NULL) return;
    rose_port *port = r->port;
    rose_request_unref(r);
    rose_port_unref(
        port); /* after r, because the end of the port frees the requests in its cancel stack */
}

/* ---- events ---- */

void rose_request_append(rose_request *r, const rose_event *ev)
{
    assert(r->n_events <= r->max_tokens);
    r->events[r->n_events++] = *ev;
}

bool rose_request_publish(rose_request *r)
{
    /* release: pairs with the acquire in poll; the events are complete before they are counted */
    uint64_t old =
        atomic_exchange_explicit(&r->word, (uint64_t)r->n_events << 1 | 1, memory_order_acq_rel);
    return (old & 1) == 0;
}

rose_status rose_request_poll(rose_request *r, rose_event *out)
{
    /* acquire: pairs with the exchange in publish */
    uint64_t word = atomic_load_explicit(&r->word, memory_order_acquire);
    if (word >> 1 == r->n_polled) {
        word = (uint64_t)r->n_polled << 1 | 1;
        /* release on success: our reads are over before the engine may signal us again */
        if (atomic_compare_exchange_strong_explicit(&r->word, &word, (uint64_t)r->n_polled << 1,
                                                    memory_order_acq_rel, memory_order_acquire))
            return ROSE_E_EMPTY;
        if (word >> 1 == r->n_polled) return ROSE_E_EMPTY; /* polled without having been told */
    }
    *out = r->events[r->n_polled++];
    return ROSE_OK;
}

const rose_logprob *rose_request_logprobs(const rose_request *r, uint32_t i)
{
    return r->rules->reports + (size_t)i * (1 + r->rules->out.n_top);
}

const rose_logprob *rose_request_prompt_logprobs(const rose_request *r, uint32_t pos)
{
    return r->rules->prompt_reports + (size_t)pos * (1 + r->rules->prompt_n_top);
}

bool rose_request_finish_state(rose_request *r)
{
    bool finite = true;
    for (uint32_t i = 0; i < r->width; i++) {
        if (r->pool == ROSE_POOL_MEAN) r->state[i] /= (float)r->n_prompt;
        finite = finite && isfinite(r->state[i]);
    }
    return finite;
}

const float *rose_request_state(const rose_request *r)
{
    return r->state;
}

const char *rose_request_guide_error(const rose_request *r)
{
    return r->guided != NULL && r->guide_failed ? r->guided->err.msg : NULL;
}

void *rose_request_user(const rose_request *r)
{
    return r->user;
}

uint32_t rose_request_cached_tokens(const rose_request *r)
{
    return r->n_cached;
}

rose_request_guesses rose_request_get_guesses(const rose_request *r)
{
    return r->guesses;
}

uint64_t rose_request_admitted_ns(const rose_request *r)
{
    return r->times.admitted;
}

const uint32_t *rose_request_prompt(const rose_request *r)
{
    return r->prompt;
}

bool rose_request_has_begun(const rose_request *r)
{
    return atomic_load_explicit(&r->begun, memory_order_relaxed); /* a flag by itself */
}

rose_request_times rose_request_get_times(const rose_request *r)
{
    return r->times;
}

void rose_request_cancel(rose_request *r)
{
    uint32_t state = ROSE_CANCEL_NO;
    /* relaxed: the thread that wins pushes r, and the push publishes */
    if (!atomic_compare_exchange_strong_explicit(&r->cancel_state, &state, ROSE_CANCEL_ASKED,
                                                 memory_order_relaxed, memory_order_relaxed))
        return;
    rose_port *p = r->port; /* stays valid: r is not released before we return */
    /* relaxed: the caller's reference keeps r alive meanwhile */
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    rose_request *top = atomic_load_explicit(&p->cancel, memory_order_relaxed);
    do {
        r->cancel_next = top;
        /* release: pairs with the acquire in take_cancels */
    } while (!atomic_compare_exchange_weak_explicit(&p->cancel, &top, r, memory_order_release,
                                                    memory_order_relaxed));
    rose_port_wake(p);
}
