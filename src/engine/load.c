/* engine/load.c - see load_internal.h. */
#include "engine/load_internal.h"

#define GET(x)    atomic_load_explicit(&(x), memory_order_relaxed)
#define SET(x, v) atomic_store_explicit(&(x), v, memory_order_relaxed)

/* Limits an estimate, which may be any number, to a range that is meaningful. */
static uint64_t whole(double x)
{
    const double most = 1e18;
    return x > 0 ? (uint64_t)(x < most ? x : most) : 0;
}

void rose_load_publish(rose_load *l, const rose_sched_load *now)
{
    SET(l->known_n_running, (uint64_t)now->known << 32 | now->n_running);
    SET(l->n_free, now->n_free);
    SET(l->busy_ns, whole(now->busy_ns));
    SET(l->base_ns, whole(now->base_ns));
    SET(l->prompt_ps, whole(now->prompt_ns * 1e3));
    SET(l->row_ps, whole(now->row_ns * 1e3));
    SET(l->place_ns, whole(now->place_ns));
    SET(l->miss_ppm, whole(now->miss * 1e6));
}

static rose_sched_load read_load(const rose_load *l)
{
    uint64_t known = GET(l->known_n_running);
    return (rose_sched_load){.known = known >> 32 != 0,
                             .n_running = (uint32_t)known,
                             .n_free = GET(l->n_free),
                             .busy_ns = (double)GET(l->busy_ns),
                             .base_ns = (double)GET(l->base_ns),
                             .prompt_ns = (double)GET(l->prompt_ps) * 1e-3,
                             .row_ns = (double)GET(l->row_ps) * 1e-3,
                             .place_ns = (double)GET(l->place_ns),
                             .miss = (double)GET(l->miss_ppm) * 1e-6};
}

void rose_load_count(rose_load *l, uint32_t n_rows, int32_t priority, int sign)
{
    /* subtracting is adding the complement */
    uint64_t rows = sign < 0 ? -(uint64_t)n_rows : n_rows;
    atomic_fetch_add_explicit(&l->rows, rows, memory_order_relaxed);
    if (priority != 0)
        atomic_fetch_add_explicit(&l->n_ranked, sign < 0 ? UINT32_MAX : 1, memory_order_relaxed);
}

uint32_t rose_load_rows(const rose_request_opts *o, bool prefix_cache)
{
    if (!o->same_prompt || !prefix_cache || o->skip_prefix_cache) return o->n_prompt;
    return (o->n_prompt - 1) % ROSE_KV_PAGE_TOKENS + 1;
}

bool rose_load_is_late(const rose_load *l, uint32_t n_waiting, uint32_t n_rows, int32_t priority,
                       uint64_t now_ns, uint64_t due_ns)
{
    const rose_sched_load load = read_load(l);
    if (priority != 0 || GET(l->n_ranked) > 0 || !load.known) return false;
    if (now_ns >= due_ns) return true;
    double rows = (double)GET(l->rows) * load.miss, own = n_rows * load.miss;
    return rose_sched_wait_ns(&load, n_waiting, rows, own) > (double)(due_ns - now_ns);
}

uint32_t rose_load_drain_s(const rose_load *l, uint32_t n_waiting)
{
    const rose_sched_load load = read_load(l);
    double rows = (double)GET(l->rows) * load.miss;
    double ns = n_waiting > 0 ? rose_sched_wait_ns(&load, n_waiting - 1, rows, 0) : 0;
    if (!(ns > 1e9)) return 1;
    return ns < ROSE_MAX_RETRY_S * 1e9 ? (uint32_t)(ns * 1e-9 + 0.999999999) : ROSE_MAX_RETRY_S;
}
