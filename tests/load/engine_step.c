/* tests/load/engine_step.c - `load engine` measures what the engine itself costs in a step. A
 * backend that computes nothing takes the time from the end of one collect() to the start of the
 * next step(). That covers delivery, waking the consumer, taking events, planning and building the
 * batch. The engine's own stamps of the parts are reported as well; they leave out taking events
 * and the bookkeeping in between.
 *
 * The consumer is this thread, as in `bench offline`. The plan is also measured alone:
 * rose_sched_next() on the same number of sequences. */
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/allocguard.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/opts.h"
#include "base/profile.h"
#include "bench/results.h"
#include "engine/engine.h"
#include "load/load.h"
#include "sched/sched.h"

enum { WARM_STEPS = 100, VOCAB = 50257 };
/* --record: blocks of RECORD_BLOCK steps, in turn without and with the recorder. The first
 * RECORD_SETTLE steps of each block do not count. A recording has room for more events than a block
 * makes. */
enum { RECORD_BLOCK = 100, RECORD_SETTLE = 20, RECORD_EVENTS = 4096 };

typedef struct bench_opts {
    uint32_t running; /* 0 = measure 64, 256 and 1024 in turn */
    uint32_t steps, input_len, device_us;
    bool prefix_cache, record;
} bench_opts;

typedef struct figures {
    double mean, p50, p99, min; /* ns */
} figures;

/* HOST is the whole time from collect() to step(). RECORDED is the same while the recorder runs. */
typedef enum part { HOST, PLAN, BATCH, DELIVER, N_PARTS, RECORDED = N_PARTS } part;
static const char *const part_names[N_PARTS + 1] = {"host", "plan", "batch", "deliver",
                                                    "host_recorded"};

/* The backend that computes nothing. There is one at a time. The engine thread writes it, and
 * others read it only after `full` is true. */
typedef struct instant {
    rose_memory_plan plan;
    uint32_t *ids; /* [max_seqs], constant ids */
    uint32_t n_outputs, n_seqs;
    /* when the last step was collected; 0 = that was not a full decode step */
    uint64_t collected_ns;
    uint64_t device_ns; /* how long a step takes on the pretended device */
    uint64_t until_ns;  /* when the current step is done */
    uint64_t n_steps;
    uint32_t n_samples, cap;
    uint64_t *samples[N_PARTS]; /* [cap] each, owned */
    uint64_t *recorded; /* [cap], owned: HOST while the recorder runs; NULL without --record */
    uint32_t n_recorded;
    uint64_t n_events, n_dropped; /* events of all recordings */
    const rose_engine *engine;    /* borrowed; set before the first step */
    atomic_bool full;
    atomic_bool go; /* the first step waits for this, so that all requests are there */
} instant;

static instant g_instant;

static rose_status instant_plan(const rose_model *m, const rose_backend_opts *o,
                                rose_memory_plan *out, rose_err *err)
{
    (void)m, (void)err;
    *out = (rose_memory_plan){.dtype = ROSE_COMPUTE_F32,
                              .max_seqs = o->max_seqs,
                              .max_step_tokens = o->max_step_tokens,
                              .max_model_len = o->max_model_len,
                              .n_threads = 1,
                              .n_pools = 1,
                              .pools = {{.n_blocks = o->kv_pages, .tokens = ROSE_KV_PAGE_TOKENS}}};
    return ROSE_OK;
}

static rose_status instant_open(void **ctx, const rose_model *m, const rose_backend_opts *o,
                                const rose_memory_plan *p, rose_err *err)
{
    (void)m, (void)o;
    *ctx = &g_instant;
    g_instant.plan = *p;
    g_instant.ids = calloc(p->max_seqs, sizeof *g_instant.ids);
    return g_instant.ids != NULL ? ROSE_OK : rose_fail(err, ROSE_E_NOMEM, "out of memory");
}

static bool has_all(const instant *g)
{
    return g->n_samples == g->cap && (g->recorded == NULL || g->n_recorded == g->cap);
}

/* Turns the recorder on or off after each block of steps. Nothing else differs between the two
 * halves. */
static void switch_recording(instant *g)
{
    rose_prof_result r = {0};
    if (g->recorded == NULL || g->n_steps % RECORD_BLOCK != 0) return;
    rose_alloc_guard_end();
    if (rose_prof_recording())
        rose_prof_stop(NULL, &r, NULL);
    else
        /* if this fails, n_recorded stays as it is and the next block tries again */
        rose_prof_start(RECORD_EVENTS, NULL);
    rose_alloc_guard_begin("engine step");
    g->n_events += r.n_events;
    g->n_dropped += r.n_dropped;
}

static void take_sample(instant *g, uint64_t now)
{
    if (g->recorded != NULL && g->n_steps % RECORD_BLOCK < RECORD_SETTLE) return;
    if (rose_prof_recording()) {
        if (g->n_recorded < g->cap) g->recorded[g->n_recorded++] = now - g->collected_ns;
        return;
    }
    if (g->n_samples == g->cap) return;
    /* of the step before this one */
    const rose_engine_stats last = rose_engine_get_stats(g->engine);
    g->samples[PLAN][g->n_samples] = last.last_plan_ns;
    g->samples[BATCH][g->n_samples] = last.last_batch_ns;
    g->samples[DELIVER][g->n_samples] = last.last_deliver_ns;
    g->samples[HOST][g->n_samples++] = now - g->collected_ns;
}

static rose_status instant_step(void *ctx, const rose_batch *b, uint64_t *ticket, rose_err *err)
{
    instant *g = ctx;
    (void)ticket, (void)err;
    while (!atomic_load_explicit(&g->go, memory_order_acquire))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    uint64_t now = rose_now_ns();
    bool decode = b->n_seqs == g->plan.max_seqs && b->n_tokens == b->n_seqs;
    if (decode && g->collected_ns != 0 && ++g->n_steps > WARM_STEPS) {
        take_sample(g, now);
        switch_recording(g);
    }
    g->until_ns = g->device_ns > 0 ? rose_now_ns() + g->device_ns : 0;
    g->n_outputs = b->n_outputs;
    g->n_seqs = decode ? b->n_seqs : 0;
    if (has_all(g)) atomic_store_explicit(&g->full, true, memory_order_release);
    return ROSE_OK;
}

static rose_status instant_collect(void *ctx, uint64_t ticket, rose_step_result *out, rose_err *err)
{
    instant *g = ctx;
    (void)ticket, (void)err;
    /* spin, as a host does that waits for a GPU */
    while (g->until_ns != 0 && rose_now_ns() < g->until_ns) {
    }
    out->n_outputs = g->n_outputs;
    out->ids = g->ids;
    g->collected_ns = g->n_seqs > 0 ? rose_now_ns() : 0;
    return ROSE_OK;
}

static void instant_close(void *ctx)
{
    if (ctx == NULL) return;
    free(g_instant.ids);
    g_instant.ids = NULL;
}

static const rose_backend_ops instant_ops = {.name = "instant",
                                             .plan = instant_plan,
                                             .open = instant_open,
                                             .step = instant_step,
                                             .collect = instant_collect,
                                             .close = instant_close};

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static figures summarise(uint64_t *v, uint32_t n)
{
    double sum = 0;
    qsort(v, n, sizeof *v, by_value);
    for (uint32_t i = 0; i < n; i++)
        sum += (double)v[i];
    return (figures){sum / n, (double)v[n / 2], (double)v[(uint64_t)n * 99 / 100], (double)v[0]};
}

/* The number of output tokens that a request needs, so that all requests decode together for long
 * enough. */
static uint32_t output_len(const bench_opts *o, uint32_t n)
{
    /* besides n decodes, a step has 2048 rows for prompts */
    uint64_t prefill_steps = (uint64_t)n * o->input_len / (n + 2048u) + 2;
    return (uint32_t)prefill_steps + (o->record ? 3 : 1) * o->steps + 2 * WARM_STEPS +
           (o->record ? 4 * RECORD_BLOCK : 0);
}

/* Takes all events until all n requests are over. Cancels the requests when all samples are
 * there. */
static void consume(rose_wakeq *sink, rose_request **reqs, uint32_t n)
{
    bool cancelled = false;
    uint32_t open = n;
    while (open > 0) {
        void *p;
        rose_event ev;
        rose_wakeq_wait(sink, 10000000);
        rose_wakeq_clear(sink);
        while (rose_wakeq_pop(sink, &p) == ROSE_OK) {
            while (rose_request_poll(p, &ev) == ROSE_OK) {
                if (ev.finish == ROSE_FINISH_NONE) continue;
                open--;
                break; /* the request stays valid until all requests are over */
            }
        }
        if (cancelled || !atomic_load_explicit(&g_instant.full, memory_order_acquire)) continue;
        for (uint32_t i = 0; i < n; i++)
            rose_request_cancel(reqs[i]);
        cancelled = true;
    }
}

static rose_status submit_all(rose_engine *e, const bench_opts *o, uint32_t n, rose_wakeq *sink,
                              rose_request **reqs, uint32_t *n_open, rose_err *err)
{
    uint32_t *ids = calloc(o->input_len, sizeof *ids);
    if (ids == NULL) return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    const rose_request_opts ro = {.prompt = ids,
                                  .n_prompt = o->input_len,
                                  .max_tokens = output_len(o, n),
                                  .sampling = {.top_p = 1},
                                  .ignore_eos = true,
                                  .sink = sink};
    rose_status st = ROSE_OK;
    for (; *n_open < n && st == ROSE_OK; *n_open += st == ROSE_OK) {
        ids[0] = *n_open % VOCAB; /* no two prompts begin with the same id, so nothing is shared */
        st = rose_engine_submit(e, &ro, &reqs[*n_open], err);
    }
    free(ids);
    return st;
}

static rose_status measure_engine(const bench_opts *o, uint32_t n, figures out[N_PARTS + 1],
                                  rose_err *err)
{
    rose_engine *e = NULL;
    rose_wakeq *sink = NULL;
    rose_model m;
    uint32_t n_open = 0, len = o->input_len + output_len(o, n);
    rose_request **reqs = calloc(n, sizeof(rose_request *));
    rose_engine_opts eo;
    rose_engine_opts_default(&eo);
    eo.max_queued = n;
    eo.prefix_cache = o->prefix_cache;
    eo.backend = (rose_backend_opts){.max_seqs = n,
                                     .max_step_tokens = 2 * n + 2048,
                                     .max_model_len = len,
                                     .kv_pages = n * (len / ROSE_KV_PAGE_TOKENS + 1)};
    memset(&m, 0, sizeof m);
    m.arch.vocab_size = VOCAB;
    memset(&g_instant, 0, sizeof g_instant);
    g_instant.cap = o->steps;
    g_instant.device_ns = o->device_us * UINT64_C(1000);
    rose_status st = reqs != NULL ? ROSE_OK : rose_fail(err, ROSE_E_NOMEM, "out of memory");
    for (int i = 0; i < N_PARTS; i++) {
        g_instant.samples[i] = calloc(o->steps, sizeof *g_instant.samples[i]);
        if (g_instant.samples[i] == NULL) st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    }
    if (o->record && (g_instant.recorded = calloc(o->steps, sizeof(uint64_t))) == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    if (st == ROSE_OK) st = rose_wakeq_create(&sink, n + 1, err);
    /* with a pretended device, step() only enqueues, as on a GPU */
    rose_backend_ops ops = instant_ops;
    if (o->device_us > 0) ops.caps |= ROSE_CAP_AHEAD;
    eo.overlap = false; /* overlap would hide the host's work */
    if (st == ROSE_OK) st = rose_engine_open(&e, &ops, &m, &eo, err);
    g_instant.engine = e;
    if (st == ROSE_OK) st = submit_all(e, o, n, sink, reqs, &n_open, err);
    atomic_store_explicit(&g_instant.go, true, memory_order_release);
    for (uint32_t i = 0; i < n_open && st != ROSE_OK; i++)
        rose_request_cancel(reqs[i]);
    if (n_open > 0) consume(sink, reqs, n_open);
    for (uint32_t i = 0; i < n_open; i++)
        rose_request_release(reqs[i]);
    rose_engine_close(e);
    rose_prof_stop(NULL, NULL, NULL);
    if (st == ROSE_OK && !has_all(&g_instant))
        st = rose_fail(err, ROSE_E_INTERNAL, "%u of %u steps measured, %u recorded",
                       g_instant.n_samples, o->steps, g_instant.n_recorded);
    if (st == ROSE_OK && o->record) out[RECORDED] = summarise(g_instant.recorded, o->steps);
    free(g_instant.recorded);
    for (int i = 0; i < N_PARTS; i++) {
        if (st == ROSE_OK) out[i] = summarise(g_instant.samples[i], g_instant.n_samples);
        free(g_instant.samples[i]);
    }
    rose_wakeq_destroy(sink);
    free(reqs);
    return st;
}

/* Measures the scheduler alone: n sequences that decode, and one call for each step. */
static rose_status measure_plan(const bench_opts *o, uint32_t n, figures *out, rose_err *err)
{
    const uint32_t max_tokens = o->steps + WARM_STEPS + 1;
    rose_kv_pages *pages = NULL;
    rose_sched *s = NULL;
    rose_sched_opts so = {.max_seqs = n,
                          .max_step_tokens = n,
                          .max_model_len = 1 + max_tokens,
                          .max_queued = n,
                          .page_tokens = ROSE_KV_PAGE_TOKENS,
                          .chunked_prefill = true,
                          .decode_first = true};
    uint64_t *samples = calloc(o->steps, sizeof *samples);
    rose_status st = samples != NULL ? ROSE_OK : rose_fail(err, ROSE_E_NOMEM, "out of memory");
    if (st == ROSE_OK)
        st = rose_kv_pages_create(&pages, n * (max_tokens / ROSE_KV_PAGE_TOKENS + 1), err);
    so.n_pools = 1;
    so.pools[0] = pages;
    so.keeps_from = rose_pool_keeps_from;
    if (st == ROSE_OK) st = rose_sched_create(&s, &so, err);
    for (uint32_t i = 0, seq; i < n && st == ROSE_OK; i++)
        st = rose_sched_submit(s, &(rose_sched_request){.n_prompt = 1, .max_tokens = max_tokens},
                               &seq);
    for (uint32_t i = 0; i < WARM_STEPS + o->steps && st == ROSE_OK; i++) {
        rose_sched_plan p;
        uint64_t start = rose_now_ns();
        rose_sched_next(s, &p);
        if (i >= WARM_STEPS) samples[i - WARM_STEPS] = rose_now_ns() - start;
    }
    if (st == ROSE_OK) *out = summarise(samples, o->steps);
    rose_sched_destroy(s);
    rose_kv_pages_destroy(pages);
    free(samples);
    return st;
}

static rose_json *result_json(const bench_opts *o, uint32_t n, const figures parts[N_PARTS + 1],
                              const figures *plan)
{
    rose_json *r = rose_json_pack("{s:i, s:i, s:i, s:f, s:f}", "running", (int)n, "steps",
                                  (int)o->steps, "device_us", (int)o->device_us,
                                  "plan_alone_ns_p50", plan->p50, "plan_alone_ns_p99", plan->p99);
    if (o->record) {
        rose_json_set_new(r, "recorded_events", rose_json_integer((int64_t)g_instant.n_events));
        rose_json_set_new(r, "recorded_dropped", rose_json_integer((int64_t)g_instant.n_dropped));
    }
    for (int i = 0; i < N_PARTS + (o->record ? 1 : 0); i++) {
        const struct {
            const char *suffix;
            double v;
        } all[] = {{"mean", parts[i].mean},
                   {"p50", parts[i].p50},
                   {"p99", parts[i].p99},
                   {"min", parts[i].min}};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            char key[40];
            snprintf(key, sizeof key, "%s_ns_%s", part_names[i], all[k].suffix);
            rose_json_set_new(r, key, rose_json_real(all[k].v));
        }
    }
    return r;
}

static int run(const bench_opts *o, int argc, char **argv)
{
    static const uint32_t all[] = {64, 256, 1024};
    size_t n_sizes = o->running != 0 ? 1 : sizeof all / sizeof *all;
    rose_err err = {{0}};
    rose_json *list = rose_json_array();
    fprintf(stderr, "ns a step, p50/p99:          total           plan          batch        "
                    "deliver     plan alone\n");
    for (size_t i = 0; i < n_sizes; i++) {
        uint32_t n = o->running != 0 ? o->running : all[i];
        figures parts[N_PARTS + 1] = {{0}}, plan;
        if (measure_engine(o, n, parts, &err) != ROSE_OK ||
            measure_plan(o, n, &plan, &err) != ROSE_OK) {
            rose_json_decref(list);
            return rose_die(&err);
        }
        fprintf(stderr, "%7u running", n);
        for (int k = 0; k < N_PARTS; k++)
            fprintf(stderr, " %8.0f/%6.0f", parts[k].p50, parts[k].p99);
        fprintf(stderr, " %7.0f/%6.0f", plan.p50, plan.p99);
        if (o->record)
            fprintf(stderr, "  recorded %.0f (%.3f of it)", parts[RECORDED].p50,
                    parts[RECORDED].p50 / parts[HOST].p50);
        fputc('\n', stderr);
        rose_json_append_new(list, result_json(o, n, parts, &plan));
    }
    rose_json *root = rose_json_pack("{s:o, s:s, s:b, s:o}", "meta", rose_results_meta(argc, argv),
                                     "bench", "engine", "record", (int)o->record, "results", list);
    return rose_results_emit(root, NULL, "engine");
}

int rose_load_engine(int argc, char **argv)
{
    bench_opts o = {.running = 0, .steps = 2000, .input_len = 256, .prefix_cache = true};
    const rose_opt opts[] = {
        ROSE_ROW_U32("running", &o.running, "N", 0, 4096, "sequences that decode",
                     .unset = "64, 256 and 1024"),
        ROSE_ROW_U32("steps", &o.steps, "N", 10, 100000, "steps measured"),
        ROSE_ROW_U32("input-len", &o.input_len, "N", 1, 65536, "tokens of each prompt"),
        ROSE_ROW_U32("device-us", &o.device_us, "US", 0, 1000000,
                     "pretended time of a step on the device, which does not count; it gives the "
                     "consumer time to read the tokens of the step before"),
        ROSE_ROW_BOOL("prefix-cache", &o.prefix_cache,
                      "index each page that is full in the prefix cache"),
        ROSE_ROW_BOOL("record", &o.record,
                      "record every other block of a hundred steps, to show what recording costs"),
    };
    const rose_command cmd = {
        .usage = "load engine [options]",
        .about = "Host time of an engine step (deliver, wake, plan, build the batch) on a backend "
                 "that\ncomputes nothing. A table on standard error, JSON on standard output.",
        .opts = opts,
        .n_opts = sizeof opts / sizeof *opts,
    };
    uint32_t n_args;
    rose_log_set_level(ROSE_LOG_WARN);
    const int rc = rose_opts_parse(&cmd, argc, argv, NULL, &n_args);
    return rc >= 0 ? rc : run(&o, argc, argv);
}
