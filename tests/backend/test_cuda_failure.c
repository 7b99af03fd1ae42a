/* tests/backend/test_cuda_failure.c - what can go wrong with a GPU, each in a process of its own,
 * since a broken context stays broken: no device, no memory, an illegal address in the middle of a
 * step, a device that does not answer. Each time a clear line, an error for every open request, and
 * an end: a child that hangs fails the test. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cuda_fixture.h"

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine.h"

enum { CHILD_SECONDS = 60, N_REQS = 40, OK = 0, SKIP = 77 };

/* In the child: like assert_true, without cmocka. */
#define CHECK(what)                                                                                \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what);                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* The exit code of run() in a new process; -1 if a signal, the alarm among them, ended it. */
static int in_child(void (*run)(void))
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGALRM, SIG_DFL);
        alarm(CHILD_SECONDS);
        run();
        exit(OK); /* with everything that exit runs, as a program ends */
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect(void (*run)(void))
{
    const int code = in_child(run);
    if (code == SKIP) skip();
    assert_int_equal(code, OK);
}

static const rose_backend_ops *gpu(void)
{
    const rose_backend_ops *ops;
    rose_err err = {""};
    if (rose_backend_cuda(&ops, 0, &err) != ROSE_OK) {
        printf("no GPU: %s\n", err.msg);
        fflush(stdout);
        _exit(SKIP);
    }
    return ops;
}

static const fx_shape g_shape = {"small",  2,     64,    4,     128,  500, 128, ROSE_ACT_GELU_TANH,
                                 ROSE_F32, false, false, false, false};

static rose_model *model(void)
{
    return fx_model(&g_shape, 3);
}

/* ---- no device ---- */

static void no_device(void)
{
    const rose_backend_ops *ops = (const void *)1;
    rose_err err = {""};
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    CHECK(rose_backend_cuda(&ops, 0, &err) == ROSE_E_UNSUPPORTED);
    CHECK(ops == NULL && strstr(err.msg, "no usable NVIDIA GPU: ") != NULL);
    printf("%s\n", err.msg);
    CHECK(rose_backend_pick(&ops, "cuda", &err) == ROSE_E_UNSUPPORTED);
    CHECK(rose_backend_pick(&ops, "auto", &err) == ROSE_OK && strcmp(ops->name, "cpu") == 0);
}

static void test_no_device(void **state)
{
    (void)state;
    expect(no_device);
}

/* ---- no memory ---- */

static void *hog(uint64_t leave)
{
    void *p = NULL;
    size_t free_bytes, total;
    CHECK(cudaMemGetInfo(&free_bytes, &total) == cudaSuccess && free_bytes > leave);
    while (cudaMalloc(&p, free_bytes - leave) != cudaSuccess)
        leave += 64u << 20;
    cudaGetLastError();
    return p;
}

static void no_memory(void)
{
    const rose_backend_ops *ops = gpu();
    rose_model *m = model();
    rose_backend_opts o;
    rose_memory_plan p, none;
    rose_err err = {""};
    void *ctx = (void *)1;
    rose_backend_opts_default(&o);
    CHECK(ops->plan(m, &o, &p, &err) == ROSE_OK);
    CHECK(p.total == p.weights + p.kv + p.scratch + p.graphs && p.total <= p.available);
    void *all = hog(48u << 20);
    CHECK(ops->plan(m, &o, &none, &err) == ROSE_E_NOMEM); /* refused before anything is loaded */
    printf("%s\n", err.msg);
    CHECK(strstr(err.msg, "weights") && strstr(err.msg, "scratch") && strstr(err.msg, "graphs"));
    cudaFree(all);
    all = hog(8u << 20); /* gone between plan and open */
    err.msg[0] = '\0';
    CHECK(ops->open(&ctx, m, &o, &p, &err) == ROSE_E_NOMEM && ctx == NULL);
    printf("%s\n", err.msg);
    CHECK(strstr(err.msg, "memory") != NULL);
    cudaFree(all);
    CHECK(ops->open(&ctx, m, &o, &p, &err) == ROSE_OK); /* nothing is broken */
    ops->close(ctx);
    fx_model_free(m);
}

static void test_no_memory(void **state)
{
    (void)state;
    expect(no_memory);
}

/* Shares of the GPU's memory; and what an open really takes is at most what was planned. */
static void shares(void)
{
    const rose_backend_ops *ops = gpu();
    fx_shape shape = g_shape;
    rose_model *m = model();
    shape.n_layers = 48;
    rose_model *deep = fx_model(&shape, 3);
    rose_backend_opts o;
    rose_memory_plan p;
    rose_err err = {""};
    void *ctx;
    size_t before, after, total;
    rose_backend_opts_default(&o);
    CHECK(ops->plan(deep, &o, &p, &err) == ROSE_OK);
    CHECK(cudaMemGetInfo(&before, &total) == cudaSuccess);
    CHECK(ops->open(&ctx, deep, &o, &p, &err) == ROSE_OK);
    CHECK(cudaMemGetInfo(&after, &total) == cudaSuccess);
    printf("48 layers: planned %.1f MiB, of it %.1f for graphs; these took %.1f\n",
           (double)p.total / 1048576, (double)p.graphs / 1048576,
           ((double)(before - after) - (double)(p.total - p.graphs)) / 1048576);
    CHECK(before - after <= p.total);
    ops->close(ctx);
    fx_model_free(deep);
    CHECK(cudaMemGetInfo(&before, &total) == cudaSuccess);
    o.cuda.memory_utilization = 0.3f;
    CHECK(ops->plan(m, &o, &p, &err) == ROSE_OK);
    CHECK(p.total <= (uint64_t)(0.3001 * (double)total));
    CHECK(p.total + p.pools[0].block_bytes > (uint64_t)(0.2999 * (double)total) ||
          p.pools[0].n_blocks == INT32_MAX);
    CHECK(ops->open(&ctx, m, &o, &p, &err) == ROSE_OK);
    CHECK(cudaMemGetInfo(&after, &total) == cudaSuccess);
    printf("planned %.1f MiB, of it %.1f for graphs; taken %.1f MiB\n", (double)p.total / 1048576,
           (double)p.graphs / 1048576, (double)(before - after) / 1048576);
    CHECK(before - after <= p.total);
    ops->close(ctx);
    o.cuda.memory_utilization = 0.0001f; /* less than the weights */
    CHECK(ops->plan(m, &o, &p, &err) == ROSE_E_INVAL);
    o.cuda.memory_utilization = 1.5f;
    CHECK(ops->plan(m, &o, &p, &err) == ROSE_E_INVAL);
    o.cuda.memory_utilization = 0.0001f;
    o.kv_bytes = UINT64_C(64) << 20; /* comes first */
    CHECK(ops->plan(m, &o, &p, &err) == ROSE_OK && p.kv <= o.kv_bytes);
    for (rose_prefill way = ROSE_PREFILL_AUTO; way <= ROSE_PREFILL_AUTO2; way++) {
        o.cuda.prefill = way;
        CHECK(ops->plan(m, &o, &p, &err) == ROSE_OK);
        CHECK(p.prefill == (way == ROSE_PREFILL_NAIVE ? ROSE_PREFILL_NAIVE : ROSE_PREFILL_FLASH));
    }
    fx_model_free(m);
}

static void test_shares(void **state)
{
    (void)state;
    expect(shares);
}

/* ---- a step that breaks: through the engine ---- */

static const rose_backend_ops *g_ops;
static void (*g_break)(rose_cuda *);
static uint32_t g_n_steps, g_break_at;

static rose_status breaking_step(void *ctx, const rose_batch *b, uint64_t *ticket, rose_err *err)
{
    if (++g_n_steps == g_break_at) g_break(ctx);
    return g_ops->step(ctx, b, ticket, err);
}

/* Address 4096 is nobody's: the embedding kernel faults, and the context with it. */
static void fault(rose_cuda *c)
{
    c->use_graphs = false;
    c->ranks[0].scratch.x = (float *)(uintptr_t)4096;
}

/* The stream waits for a word that nobody writes. */
static void stall(rose_cuda *c)
{
    typedef int wait_value(cudaStream_t stream, unsigned long long at, uint32_t value,
                           unsigned flags);
    void *entry = NULL;
    enum cudaDriverEntryPointQueryResult found;
    CHECK(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &entry, 12000, cudaEnableDefault,
                                           &found) == cudaSuccess);
    CHECK(entry != NULL && found == cudaDriverEntryPointSuccess);
    wait_value *wait = NULL;
    memcpy(&wait, &entry, sizeof wait);
    CHECK(wait(c->ranks[0].stream, (unsigned long long)(uintptr_t)c->ranks[0].scratch.rules,
               0x12345678, 1) == 0);
}

typedef struct client {
    rose_engine *e;
    rose_wakeq *sink;
    rose_request *r[N_REQS];
    uint32_t n_error, n_tokens;
} client;

static void submit_all(client *k)
{
    const rose_request_rules rules = {
        .repetition = 1.2f, .logprobs = true, .n_top = 3, .prompt_logprobs = true};
    rose_err err = {""};
    for (uint32_t i = 0; i < N_REQS; i++) {
        uint32_t prompt[20];
        for (uint32_t j = 0; j < 20; j++)
            prompt[j] = (i * 7 + j) % 500;
        const rose_request_opts o = {.prompt = prompt,
                                     .n_prompt = 1 + i % 20,
                                     .max_tokens = 60,
                                     .sampling = {.top_p = 1},
                                     .rules = i % 3 == 0 ? &rules : NULL,
                                     .ignore_eos = true,
                                     .sink = k->sink};
        rose_status st = rose_engine_submit(k->e, &o, &k->r[i], &err);
        CHECK(st == ROSE_OK || st == ROSE_E_BACKEND); /* it may have failed by now */
    }
}

/* Until every request has ended. */
static void drain(client *k)
{
    uint32_t live = 0;
    for (uint32_t i = 0; i < N_REQS; i++)
        live += k->r[i] != NULL;
    while (live > 0) {
        void *p;
        rose_wakeq_wait(k->sink, 1000000000);
        rose_wakeq_clear(k->sink);
        while (rose_wakeq_pop(k->sink, &p) == ROSE_OK) {
            rose_event ev = {0};
            while (rose_request_poll(p, &ev) == ROSE_OK) {
                k->n_tokens += ev.has_token;
                if (ev.finish == ROSE_FINISH_NONE) continue;
                k->n_error += ev.finish == ROSE_FINISH_ERROR;
                rose_request_release(p);
                live--;
                break;
            }
        }
    }
}

/* Returns how long the requests took to end after the break, at most. */
static double broken_engine(void (*how)(rose_cuda *), uint32_t at, uint32_t timeout_ms)
{
    rose_model *m = model();
    rose_engine_opts o;
    rose_err err = {""};
    client k = {0};
    rose_backend_ops ops;
    g_ops = gpu();
    ops = *g_ops;
    ops.step = breaking_step;
    g_break = how;
    g_break_at = at;
    rose_engine_opts_default(&o);
    o.backend.max_seqs = 16; /* some requests wait */
    o.backend.max_step_tokens = 64;
    o.backend.cuda.timeout_ms = timeout_ms;
    o.max_queued = N_REQS;
    CHECK(rose_wakeq_create(&k.sink, N_REQS + 1, &err) == ROSE_OK);
    if (rose_engine_open(&k.e, &ops, m, &o, &err) != ROSE_OK) {
        fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    const uint64_t start = rose_now_ns();
    submit_all(&k);
    drain(&k);
    const double seconds = (double)(rose_now_ns() - start) * 1e-9;
    CHECK(k.n_error > 0 && k.n_tokens < N_REQS * 60);
    CHECK(rose_engine_get_stats(k.e).failed); /* /health turns by this */
    CHECK(rose_engine_get_stats(k.e).running == 0);
    rose_request *r;
    const rose_request_opts more = {.prompt = (const uint32_t[]){1},
                                    .n_prompt = 1,
                                    .max_tokens = 1,
                                    .sampling = {.top_p = 1},
                                    .sink = k.sink};
    CHECK(rose_engine_submit(k.e, &more, &r, &err) == ROSE_E_BACKEND);
    rose_engine_close(k.e);
    rose_wakeq_destroy(k.sink);
    fx_model_free(m);
    printf("%u requests ended with an error, %u tokens before, in %.2f s\n", k.n_error, k.n_tokens,
           seconds);
    return seconds;
}

static void faults_at_once(void)
{
    broken_engine(fault, 1, 60000);
}
static void faults_later(void)
{
    broken_engine(fault, 9, 60000);
}
static void stalls(void)
{
    double s = broken_engine(stall, 5, 700);
    CHECK(s >= 0.6);
}

static void test_sticky_error(void **state)
{
    (void)state;
    expect(faults_at_once);
    expect(faults_later);
}

static void test_no_answer(void **state)
{
    (void)state;
    expect(stalls);
}

/* ---- nothing is allocated after the start ---- */

static void flat(void)
{
    fx_device = "cuda";
    gpu();
    rose_model *m = model();
    fx_backend f = fx_open(m, ROSE_COMPUTE_F16, NULL, 0, 1);
    size_t before, after, total;
    fx_seq s = fx_seq_make(m, 1, 100);
    fx_run(&f, &s, 40, 40); /* the driver loads a kernel when it first runs */
    fx_run(&f, &s, 60, 1);
    CHECK(cudaMemGetInfo(&before, &total) == cudaSuccess);
    for (int i = 0; i < 50; i++) {
        fx_seq_drop(&f, &s);
        fx_run(&f, &s, 60, 7);
        fx_run(&f, &s, 100, 1);
    }
    CHECK(cudaMemGetInfo(&after, &total) == cudaSuccess);
    CHECK(before == after);
    fx_seq_free(&s);
    fx_close(&f);
    fx_model_free(m);
}

static void test_flat_memory(void **state)
{
    (void)state;
    expect(flat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_device), cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_shares),    cmocka_unit_test(test_sticky_error),
        cmocka_unit_test(test_no_answer), cmocka_unit_test(test_flat_memory),
    };
    rose_log_set_level(ROSE_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
