/* tests/load/soak.c - runs `load soak`: more load than the server can take, for long. First a
 * closed loop measures the capacity. Then an open loop sends requests of mixed lengths at a
 * multiple of the capacity. Some clients read slowly and some leave early. /health is asked ten
 * times per second, /metrics and /proc once per second.
 *
 * One thread, which sleeps most of the time, so that it takes little from a server on the same
 * CPUs. How late the client was is reported. Every wait has a limit: if the server hangs or dies,
 * the run ends with a report. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/progress.h"
#include "bench/prompts.h"
#include "bench/stats.h"
#include "load/held.h"
#include "load/soak_internal.h"

enum {
    TICK_NS = 100000000,
    SAMPLE_NS = 1000000000,
    HUNG_MS = 10000,
    TRACE_ROWS = 4096,
    SETTLE_S = 60,
    MAX_CAPACITY_RUNS = 20,
    SAME_STALL_NS = 20000000
};

typedef enum visit_kind { K_LOAD, K_SLOW, K_LEAVE, K_CLOSED, K_HEALTH, K_METRICS } visit_kind;

/* One soak at a time: what is reported, and what only the run itself needs. */
typedef struct run {
    rose_soak s;
    rose_prompts *prompts;
    rose_load_trace trace; /* the lengths of the requests */
    rose_visitors *visitors;
    rose_random random;
    rose_buf body;
    uint64_t n_made;
    bool health_under_way, metrics_under_way;
    uint64_t n_closed_done;
} run;

static run g_run;
static volatile sig_atomic_t stop_asked;

static void on_signal(int sig)
{
    (void)sig;
    stop_asked = 1;
}

/* ---- replies ---- */

static void fail_visit(rose_soak *s, const rose_visit *v)
{
    if (s->n_failed++ == 0)
        snprintf(s->first_error, sizeof s->first_error,
                 "%s with status %d after %.1f ms, %" PRIu64 " bytes%s",
                 rose_visit_end_name(v->end), v->status[0],
                 (double)(v->end_ns - v->start_ns) * 1e-6, v->bytes_in,
                 v->has_error ? ", an error in the stream" : "");
}

static void note_reply(rose_soak *s, const rose_visit *v)
{
    const int status = v->status[0];
    if (v->end == ROSE_VISIT_REPLIED && status != 200) {
        if (status == 429) {
            s->n_refused++;
            s->n_refused_bare += !v->retry_after;
        } else if (s->n_other_status++ == 0) {
            s->other_status = status;
        }
        return;
    }
    if (v->has_error) {
        fail_visit(s, v);
    } else if (v->plan.kind == K_LEAVE && v->end == ROSE_VISIT_LEFT) {
        s->n_left++;
    } else if (v->plan.kind == K_SLOW && v->end == ROSE_VISIT_CLOSED) {
        s->n_slow_dropped++;
    } else if (v->end != ROSE_VISIT_REPLIED) {
        fail_visit(s, v);
    } else {
        s->n_ok++;
        s->n_slow_ok += v->plan.kind == K_SLOW;
        if (v->plan.kind == K_SLOW) return;
        rose_spread_add(&s->ttft, v->first_ns - v->start_ns);
        rose_spread_add(&s->e2e, v->end_ns - v->start_ns);
    }
}

static void note_health(run *r, const rose_visit *v)
{
    rose_soak *s = &r->s;
    r->health_under_way = false;
    if (v->end != ROSE_VISIT_REPLIED || v->status[0] != 200) {
        s->n_health_failed++;
        if (v->end == ROSE_VISIT_LEFT) s->hung = true;
        return;
    }
    const uint64_t took = v->end_ns - v->start_ns;
    rose_spread_add(&s->health, took);
    if ((double)took * 1e-6 < (double)s->o->health_ms) return;
    if (s->n_slow_health < ROSE_SOAK_MAX_STALLS)
        s->slow_health[s->n_slow_health] = (rose_slow_health){v->start_ns, v->end_ns};
    s->n_slow_health++;
}

static void note_metrics(run *r, const rose_visit *v)
{
    rose_soak *s = &r->s;
    r->metrics_under_way = false;
    if (v->end != ROSE_VISIT_REPLIED || v->status[0] != 200 || v->body.data == NULL ||
        s->n_samples == ROSE_SOAK_MAX_SAMPLES)
        return;
    rose_soak_sample *p = &s->samples[s->n_samples++];
    p->t_ns = rose_now_ns();
    rose_watch_parse(&p->w, v->body.data, v->body.len);
    if (s->server.proc.pid == 0) return;
    rose_watch_process(&p->w, s->server.proc.pid);
    p->gpu = rose_gpu_memory_read(s->server.proc.pid);
}

static void on_done(void *user, const rose_visit *v)
{
    run *r = user;
    switch ((visit_kind)v->plan.kind) {
    case K_LOAD:
    case K_SLOW:
    case K_LEAVE:
        note_reply(&r->s, v);
        break;
    case K_CLOSED:
        r->n_closed_done += v->end == ROSE_VISIT_REPLIED && v->status[0] == 200;
        break;
    case K_HEALTH:
        note_health(r, v);
        break;
    case K_METRICS:
        note_metrics(r, v);
        break;
    }
}

static void on_gap(void *user, const rose_visit *v, uint64_t from_ns, uint64_t to_ns,
                   const char *piece, size_t n)
{
    rose_soak *s = &((run *)user)->s;
    (void)v;
    const uint64_t gap = to_ns > from_ns ? to_ns - from_ns : 0;
    rose_spread_add(&s->itl, gap);
    if ((double)gap * 1e-6 < (double)s->o->stall_ms) return;
    uint32_t held = rose_held_tokens(s->tok, piece, n, s->scratch);
    if ((double)gap * 1e-6 / (held + 1) >= (double)s->o->stall_ms)
        held = 0; /* the waiting tokens alone do not explain the silence */
    rose_stall *last =
        s->n_stalls > 0 && s->n_stalls <= ROSE_SOAK_MAX_STALLS ? &s->stalls[s->n_stalls - 1] : NULL;
    if (last != NULL && to_ns < last->to_ns + SAME_STALL_NS && (last->n_held > 0) == (held > 0)) {
        last->n_streams++;
        if (gap > last->to_ns - last->from_ns) {
            last->from_ns = from_ns;
            last->to_ns = to_ns;
            last->n_held = held;
        }
        return;
    }
    if (s->n_stalls < ROSE_SOAK_MAX_STALLS)
        s->stalls[s->n_stalls] = (rose_stall){from_ns, to_ns, 1, held};
    s->n_stalls++;
}

/* ---- requests ---- */

static rose_status make_request(run *r, bool stream, rose_buf *out)
{
    const uint64_t i = r->n_made++;
    const rose_prompt_spec spec = {
        .mode = ROSE_PROMPT_UNIQUE, .seed = r->s.o->seed, .variant = i / TRACE_ROWS};
    const uint32_t row = (uint32_t)(i % TRACE_ROWS);
    rose_buf *b = &r->body;
    b->len = 0;
    rose_status st = rose_buf_addf(
        b,
        "{\"model\":\"%s\",\"max_tokens\":%u,\"temperature\":0.8,\"seed\":%" PRIu64
        ",\"ignore_eos\":true%s,\"return_token_ids\":true,\"prompt\":",
        r->s.server.model, r->trace.rows[row].n_out, i, stream ? ",\"stream\":true" : "");
    if (st == ROSE_OK) st = rose_prompt_write(r->prompts, &spec, &r->trace, row, b);
    if (st == ROSE_OK) st = rose_buf_add(b, "}", 1);
    if (st != ROSE_OK) return st;
    return rose_request_write(out, &r->s.server.url, "/v1/completions", NULL, b->data, b->len);
}

static rose_status send_load(run *r)
{
    rose_soak *s = &r->s;
    const uint32_t dice = rose_random_u32(&r->random) % 100;
    rose_visit_plan p = {.kind = K_LOAD, .watch_gaps = true};
    if (rose_visitors_n_active(r->visitors) >=
        s->o->connections) { /* the slots that remain are for /health and /metrics */
        s->n_unsent++;
        return ROSE_OK;
    }
    if (dice < s->o->slow_percent) {
        p = (rose_visit_plan){.kind = K_SLOW,
                              .receive_buffer_bytes = 4096,
                              .sip_bytes = 300 + rose_random_u32(&r->random) % 3000,
                              .sip_ms = 50};
    } else if (dice < s->o->slow_percent + s->o->leave_percent) {
        p = (rose_visit_plan){.kind = K_LEAVE, .fresh = true};
        p.reset = rose_random_u32(&r->random) % 2 == 0;
        if (rose_random_u32(&r->random) % 2 == 0)
            p.leave_bytes = 1 + rose_random_u32(&r->random) % 8000;
        else
            p.leave_ms = 1 + rose_random_u32(&r->random) % 2000;
    }
    rose_status st = make_request(r, true, &p.bytes);
    if (st == ROSE_OK) st = rose_visitors_start(r->visitors, &p);
    rose_buf_free(&p.bytes);
    s->n_sent += st == ROSE_OK;
    return st;
}

static rose_status send_get(run *r, visit_kind kind, const char *path)
{
    rose_visit_plan p = {.kind = (int)kind, .keep_body = kind == K_METRICS, .leave_ms = HUNG_MS};
    rose_status st = rose_request_write(&p.bytes, &r->s.server.url, path, NULL, NULL, 0);
    if (st == ROSE_OK) {
        if (kind == K_HEALTH)
            r->health_under_way = true;
        else
            r->metrics_under_way = true;
        st = rose_visitors_start(r->visitors, &p);
    }
    return st;
}

/* ---- the loops ---- */

static rose_status open_visitors(run *r, rose_err *err)
{
    const rose_visitors_opts o = {.url = &r->s.server.url,
                                  .max = r->s.o->connections + 2,
                                  .timeout_ms = r->s.o->timeout_s * 1000,
                                  .done = on_done,
                                  .on_gap = on_gap,
                                  .user = r};
    return rose_visitors_create(&r->visitors, &o, err);
}

/* Measures the requests per second that the server completes while `concurrency` requests are
 * always under way. Counting begins after the first `concurrency` replies, which may take longer
 * than the time that was asked for. */
static rose_status measure_capacity(run *r, rose_err *err)
{
    const rose_soak_opts *o = r->s.o;
    const uint64_t start = rose_now_ns(), whole = (uint64_t)((double)o->capacity_s * 1e9);
    uint64_t counted_from = 0, n_before = 0, last = start;
    rose_status st = open_visitors(r, err);
    while (st == ROSE_OK && !stop_asked) {
        const uint64_t now = rose_now_ns();
        if (now - start > whole * MAX_CAPACITY_RUNS) break;
        if (counted_from != 0 && now - counted_from > whole / 3 * 2) break;
        if (counted_from == 0 && now - start > whole / 3 && r->n_closed_done >= o->concurrency) {
            counted_from = now;
            n_before = r->n_closed_done;
        }
        while (st == ROSE_OK && rose_visitors_n_active(r->visitors) < o->concurrency) {
            rose_visit_plan p = {.kind = K_CLOSED};
            st = make_request(r, true, &p.bytes);
            if (st == ROSE_OK) st = rose_visitors_start(r->visitors, &p);
        }
        if (st == ROSE_OK) st = rose_visitors_turn(r->visitors, now + TICK_NS);
        last = rose_now_ns();
        if (rose_server_dead(&r->s.server, r->s.died, sizeof r->s.died))
            st = rose_fail(err, ROSE_E_CLOSED, "%s", r->s.died);
    }
    rose_visitors_destroy(r->visitors);
    r->visitors = NULL;
    if (st == ROSE_OK && counted_from != 0 && last > counted_from)
        r->s.capacity_rps =
            (double)(r->n_closed_done - n_before) / ((double)(last - counted_from) * 1e-9);
    if (st == ROSE_OK && !(r->s.capacity_rps > 0))
        st = rose_fail(err, ROSE_E_CLOSED,
                       "%" PRIu64
                       " requests were completed in %.1f s, too few to measure the capacity",
                       r->n_closed_done, (double)(last - start) * 1e-9);
    return st;
}

static void take_tick(rose_soak *s, uint64_t now)
{
    if (s->server.proc.pid == 0) return;
    if (s->n_ticks == s->cap_ticks) {
        uint32_t cap = s->cap_ticks == 0 ? 1024 : s->cap_ticks * 2;
        rose_soak_tick *p = cap <= ROSE_SOAK_MAX_TICKS ? realloc(s->ticks, cap * sizeof *p) : NULL;
        if (p == NULL) return; /* later stalls will have no explanation */
        s->ticks = p;
        s->cap_ticks = cap;
    }
    rose_soak_tick *t = &s->ticks[s->n_ticks++];
    t->t_ns = now;
    t->n_threads = rose_watch_cpu_wait(s->server.proc.pid, t->wait_ns);
}

typedef struct due {
    uint64_t request, tick, sample, end;
} due;

/* Does everything whose time has come. */
static rose_status act(run *r, due *d)
{
    rose_soak *s = &r->s;
    rose_status st = ROSE_OK;
    uint64_t now = rose_now_ns();
    while (st == ROSE_OK && d->request <= now && d->request < d->end) {
        rose_spread_add(&s->late, now - d->request);
        st = send_load(r);
        d->request += (uint64_t)(rose_random_exp(&r->random) / s->rate_rps * 1e9);
        now = rose_now_ns();
    }
    if (st == ROSE_OK && d->tick <= now) {
        if (!r->health_under_way) st = send_get(r, K_HEALTH, "/health");
        take_tick(s, now);
        d->tick = now + TICK_NS;
    }
    if (st == ROSE_OK && d->sample <= now) {
        if (!r->metrics_under_way) st = send_get(r, K_METRICS, "/metrics");
        rose_server_dead(&s->server, s->died, sizeof s->died);
        d->sample = now + SAMPLE_NS;
    }
    return st;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static double cpu_seconds(void)
{
    struct timespec t;
    return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0
               ? (double)t.tv_sec + (double)t.tv_nsec * 1e-9
               : 0;
}

static rose_status run_open_loop(run *r, rose_err *err)
{
    rose_soak *s = &r->s;
    const double cpu = cpu_seconds();
    rose_progress bar;
    rose_status st = open_visitors(r, err);
    const uint64_t start = rose_now_ns();
    due d = {start, start, start, start + (uint64_t)(s->o->duration_s * 1e9)};
    s->start_ns = s->end_ns = start;
    rose_progress_begin(&bar, "soak", (uint64_t)s->o->duration_s + 1);
    while (st == ROSE_OK && s->died[0] == '\0' && !s->hung && !stop_asked) {
        uint64_t now = rose_now_ns();
        if (now >= d.end) break;
        rose_progress_update(&bar, (now - start) / 1000000000u, "s");
        st = act(r, &d);
        if (st == ROSE_OK)
            st = rose_visitors_turn(r->visitors,
                                    least(least(d.request, d.tick), least(d.sample, d.end)));
    }
    s->stopped = stop_asked;
    s->end_ns = rose_now_ns();
    s->client_cpu_s = cpu_seconds() - cpu;
    rose_progress_end(&bar);
    /* requests that are running may end */
    const uint64_t last = rose_now_ns() + SETTLE_S * UINT64_C(1000000000);
    while (st == ROSE_OK && s->died[0] == '\0' && !s->hung && rose_now_ns() < last &&
           rose_visitors_n_active(r->visitors) > 0) {
        if (rose_now_ns() >= d.tick) {
            take_tick(s, rose_now_ns());
            d.tick += TICK_NS;
        }
        st = rose_visitors_turn(r->visitors, d.tick);
        rose_server_dead(&s->server, s->died, sizeof s->died);
    }
    rose_visitors_destroy(r->visitors);
    r->visitors = NULL;
    return st;
}

/* ---- before and after ---- */

static rose_status prepare(run *r, const char *model_dir, rose_err *err)
{
    const rose_soak_opts *o = r->s.o;
    rose_server_spec specs[ROSE_MAX_BACKENDS];
    uint32_t n;
    const rose_load_trace_gen g = {.seed = o->seed,
                                   .n = TRACE_ROWS,
                                   .rate = 1,
                                   .burstiness = 1,
                                   .in_median = (double)o->in_median,
                                   .in_sigma = (double)o->in_sigma,
                                   .out_median = (double)o->out_median,
                                   .out_sigma = (double)o->out_sigma};
    rose_status st = rose_server_list_parse(o->backend, specs, &n, err);
    if (st == ROSE_OK && n != 1) st = rose_fail(err, ROSE_E_INVAL, "--backend: one server");
    if (st == ROSE_OK) st = rose_prompts_open(&r->prompts, model_dir, err);
    if (st == ROSE_OK) st = rose_tokenizer_open(&r->s.tok, model_dir, err);
    if (st == ROSE_OK && (r->s.scratch = malloc(rose_detok_cap(r->s.tok))) == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    if (st == ROSE_OK) st = rose_load_trace_generate(&r->trace, &g, err);
    if (st != ROSE_OK) return st;
    const uint32_t context = rose_prompts_context(r->prompts);
    if (context >= 3) rose_load_trace_clamp(&r->trace, context, 0, 0);
    r->s.samples = calloc(ROSE_SOAK_MAX_SAMPLES, sizeof *r->s.samples);
    if (r->s.samples == NULL) return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    r->s.gpu_before_bytes = rose_gpu_memory_read(0).device_bytes;
    st =
        rose_server_start(&r->s.server, &specs[0], &o->server, model_dir, NULL, o->output_dir, err);
    if (st != ROSE_OK) return st;
    /* the server gets the priority that this program had; the client runs at a lower one */
    if (o->nice > 0 && setpriority(PRIO_PROCESS, 0, (int)o->nice) != 0)
        fprintf(stderr, "--nice %u has no effect\n", o->nice);
    return ROSE_OK;
}

static rose_status soak(run *r, rose_err *err)
{
    rose_soak *s = &r->s;
    const rose_soak_opts *o = s->o;
    rose_err ignored = {{0}};
    if (!rose_watch_settle(&s->fresh, &s->server, 0, SETTLE_S, err)) return ROSE_E_CLOSED;
    nanosleep(&(struct timespec){.tv_nsec = TICK_NS}, NULL);
    if (s->server.proc.pid != 0) rose_watch_process(&s->fresh, s->server.proc.pid);
    rose_status st = ROSE_OK;
    s->capacity_rps = (double)o->capacity;
    if (!(o->capacity > 0)) st = measure_capacity(r, err);
    if (st == ROSE_OK && !rose_watch_settle(&s->end, &s->server, s->fresh.open_fds, SETTLE_S, err))
        st = ROSE_E_CLOSED;
    if (st != ROSE_OK) return st;
    s->rate_rps = s->capacity_rps * (double)o->load;
    fprintf(stderr, "capacity %.1f requests/s; %.1f are sent for %.0f s\n", s->capacity_rps,
            s->rate_rps, o->duration_s);
    if ((st = run_open_loop(r, err)) != ROSE_OK) return st;
    if (s->died[0] == '\0' && !s->hung)
        s->settled = rose_watch_settle(&s->end, &s->server, s->fresh.open_fds, SETTLE_S, &ignored);
    return ROSE_OK;
}

static void catch_signals(void)
{
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    struct rlimit l; /* each request needs a connection */
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    if (getrlimit(RLIMIT_NOFILE, &l) == 0) {
        l.rlim_cur = l.rlim_max;
        setrlimit(RLIMIT_NOFILE, &l);
    }
}

int rose_soak_run(const char *model_dir, const rose_soak_opts *o, int argc, char **argv)
{
    run *r = &g_run;
    rose_err err = {{0}};
    *r = (run){.s.o = o, .random = {.seed = o->seed, .stream = 1}};
    catch_signals();
    rose_status st = prepare(r, model_dir, &err);
    if (st == ROSE_OK) st = soak(r, &err);
    rose_proc_stop(&r->s.server.proc, 60000);
    r->s.clean_exit = r->s.server.proc.ended && r->s.server.proc.status == 0;
    const int rc = st == ROSE_OK ? rose_soak_report(&r->s, argc, argv) : rose_die(&err);
    rose_server_stop(&r->s.server);
    rose_load_trace_free(&r->trace);
    rose_prompts_close(r->prompts);
    rose_buf_free(&r->body);
    rose_tokenizer_close(r->s.tok);
    free(r->s.scratch);
    free(r->s.samples);
    free(r->s.ticks);
    return rc;
}
