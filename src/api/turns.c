/* api/turns.c - see turns.h. The queue is a list that is searched: it has some hundred turns at
 * most, and a turn takes milliseconds. */
#include "api/turns.h"

#include <assert.h>
#include <stddef.h>

enum { MAX_PASSED = 8 };

void rose_api_turns_init(rose_api_turns *t, uint32_t max_running, uint32_t max_waiting)
{
    assert(max_running >= 1 && max_running <= ROSE_API_MAX_RUNNING);
    *t = (rose_api_turns){.max_running = max_running, .max_waiting = max_waiting};
}

static bool is_gone(const rose_api_turn *x)
{
    /* relaxed: only saves work */
    return atomic_load_explicit(x->gone, memory_order_relaxed);
}

static uint64_t *last_turn(rose_api_turns *t, const rose_api_turn *x)
{
    return &t->served[x->client % ROSE_API_CLIENTS];
}

static bool may_begin(const rose_api_turns *t, const rose_api_turn *x)
{
    const uint32_t most_last = t->max_running > 1 ? t->max_running - 1 : 1;
    if (is_gone(x)) return t->n_running < ROSE_API_MAX_RUNNING;
    if (t->n_running >= t->max_running) return false;
    if (x->nth == ROSE_API_LAST_TURN && t->n_last >= most_last) return false;
    for (uint32_t i = 0; i < t->n_running; i++)
        if (t->running[i]->text == x->text) return false;
    return true;
}

static void begin(rose_api_turns *t, rose_api_turn *x)
{
    t->running[t->n_running++] = x;
    t->n_last += x->nth == ROSE_API_LAST_TURN;
    if (!is_gone(x)) *last_turn(t, x) = ++t->now;
}

/* Should x come before y, which arrived earlier? */
static bool comes_before(rose_api_turns *t, const rose_api_turn *x, const rose_api_turn *y)
{
    const bool later_first = t->n_passed >= MAX_PASSED;
    if (is_gone(x) != is_gone(y)) return is_gone(x);
    if (x->nth != y->nth) return (x->nth > y->nth) == later_first;
    return *last_turn(t, x) < *last_turn(t, y);
}

/* The place of the turn that should begin now; NULL: none may. passed: a later one, which could
 * begin as well, stays. */
static rose_api_turn **find_next(rose_api_turns *t, bool no_long, bool *passed)
{
    rose_api_turn **best = NULL;
    uint32_t latest = 0;
    for (rose_api_turn **at = &t->first; *at != NULL; at = &(*at)->next) {
        if ((no_long && (*at)->is_long) || !may_begin(t, *at)) continue;
        if ((*at)->nth > latest) latest = (*at)->nth;
        if (best == NULL || comes_before(t, *at, *best)) best = at;
    }
    *passed = best != NULL && (*best)->nth < latest;
    return best;
}

rose_status rose_api_turns_ask(rose_api_turns *t, rose_api_turn *x)
{
    uint32_t n_own = 0;
    bool passed;
    if (find_next(t, false, &passed) == NULL && may_begin(t, x)) {
        begin(t, x);
        return ROSE_OK;
    }
    for (const rose_api_turn *y = t->first; y != NULL; y = y->next)
        n_own += y->client == x->client;
    if (t->n_waiting + n_own >= t->max_waiting) return ROSE_E_FULL;
    t->n_waiting++;
    return ROSE_E_EMPTY;
}

void rose_api_turns_wait(rose_api_turns *t, rose_api_turn *x)
{
    rose_api_turn **at = &t->first;
    while (*at != NULL)
        at = &(*at)->next;
    x->next = NULL;
    *at = x;
}

rose_api_turn *rose_api_turns_next(rose_api_turns *t, bool no_long)
{
    bool passed;
    rose_api_turn **at = find_next(t, no_long, &passed);
    if (at == NULL) return NULL;
    rose_api_turn *x = *at;
    *at = x->next;
    t->n_waiting--;
    t->n_passed = passed ? t->n_passed + 1 : 0;
    begin(t, x);
    return x;
}

void rose_api_turns_end(rose_api_turns *t, rose_api_turn *x)
{
    uint32_t i = 0;
    while (t->running[i] != x)
        i++;
    t->running[i] = t->running[--t->n_running];
    t->n_last -= x->nth == ROSE_API_LAST_TURN;
}

bool rose_api_turns_wanted(const rose_api_turns *t, const rose_api_turn *x)
{
    if (!is_gone(x)) return true;
    for (const rose_api_turn *y = t->first; y != NULL; y = y->next)
        if (y->text == x->text && !is_gone(y)) return true;
    return false;
}
