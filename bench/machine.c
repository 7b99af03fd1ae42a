/* bench/machine.c - see machine.h. It measures with the CPU backend's own thread pool. It loads 16
 * bytes at a time into four sums. With loads of 8 bytes, two cores of an EPYC (Zen 4) reach 45 GB/s
 * of the 66 that its memory gives. */
#include "bench/machine.h"

#include <stdlib.h>
#include <string.h>

#include "backend/parts.h"
#include "base/clock.h"
#include "bench/stats.h"

enum {
    LINE = 64,
    MAX_STREAMS = 8,
    PASSES = 5, /* of each loop; the fastest counts */
    BARRIERS = 20000,
    JOBS = 2000
};
#ifdef ROSE_DEBUG /* a slow build, whose figures mean nothing */
#define READ_BYTES (UINT64_C(4) << 20)
#else
#define READ_BYTES (UINT64_C(256) << 20) /* far beyond any cache that two cores have */
#endif

typedef struct reading {
    const uint8_t *base;
    uint32_t n_streams, prefetch_bytes;
    uint64_t sink[ROSE_POOL_MAX_THREADS]; /* keeps the loads alive; once a pass */
} reading;

/* Reads n_streams parts at once. The prefetch may go past the end, which the CPU ignores. */
static inline uint64_t read_lines(const uint8_t *at, uint64_t bytes, uint32_t n_streams,
                                  uint32_t ahead)
{
    typedef uint64_t pair __attribute__((vector_size(16)));
    const uint64_t part = bytes / n_streams / LINE * LINE;
    pair a = {0}, b = {0}, c = {0}, d = {0}; /* an array of them would stay in memory */
    for (uint64_t i = 0; i < part; i += LINE) {
        for (uint32_t s = 0; s < n_streams; s++) {
            const uint8_t *line = at + s * part + i;
            pair x[LINE / 16];
            if (ahead > 0) __builtin_prefetch((const void *)((uintptr_t)line + ahead));
            memcpy(x, line, sizeof x);
            a ^= x[0];
            b ^= x[1];
            c ^= x[2];
            d ^= x[3];
        }
    }
    a ^= b ^ c ^ d;
    return a[0] ^ a[1];
}

static void fill_thread(void *arg, uint32_t tid, uint32_t n)
{
    uint8_t *base = arg;
    const uint64_t begin = READ_BYTES * tid / n, end = READ_BYTES * (tid + 1) / n;
    memset(base + begin, 1, end - begin);
}

static void read_thread(void *arg, uint32_t tid, uint32_t n)
{
    reading *r = arg;
    const uint64_t begin = READ_BYTES * tid / n / LINE * LINE;
    const uint64_t end = READ_BYTES * (tid + 1) / n / LINE * LINE;
    r->sink[tid] = read_lines(r->base + begin, end - begin, r->n_streams, r->prefetch_bytes);
}

static void measure_read(rose_machine *m, rose_pool *pool, const uint8_t *base)
{
    static const uint32_t ahead[] = {0, 1024, 2048, 4096, 8192};
    reading r = {.base = base};
    for (r.n_streams = 1; r.n_streams <= MAX_STREAMS; r.n_streams *= 2) {
        for (size_t i = 0; i < sizeof ahead / sizeof *ahead; i++) {
            r.prefetch_bytes = ahead[i];
            for (int pass = 0; pass < PASSES; pass++) {
                const uint64_t start = rose_now_ns();
                rose_pool_run(pool, read_thread, &r);
                const double rate = (double)READ_BYTES / (double)(rose_now_ns() - start) * 1e9;
                if (rate <= m->read_bytes_per_s) continue;
                m->read_bytes_per_s = rate;
                m->n_streams = r.n_streams;
                m->prefetch_bytes = r.prefetch_bytes;
            }
        }
    }
}

typedef struct barriers {
    rose_pool *pool;
    double *ns; /* [BARRIERS] written by thread 0 */
} barriers;

static void barrier_thread(void *arg, uint32_t tid, uint32_t n)
{
    const barriers *b = arg;
    (void)n;
    uint64_t before = rose_now_ns();
    for (int i = 0; i < BARRIERS; i++) {
        rose_pool_barrier(b->pool);
        if (tid != 0) continue;
        const uint64_t now = rose_now_ns();
        b->ns[i] = (double)(now - before);
        before = now;
    }
}

static void nothing(void *arg, uint32_t tid, uint32_t n)
{
    (void)arg;
    (void)tid;
    (void)n;
}

static void measure_barriers(rose_machine *m, rose_pool *pool, double *ns)
{
    barriers b = {.pool = pool, .ns = ns};
    rose_pool_run(pool, barrier_thread, &b);
    rose_sort_f64(ns, BARRIERS);
    m->barrier_ns = ns[BARRIERS / 2];
    m->barrier_p99_ns = ns[BARRIERS / 100 * 99];
    for (int i = 0; i < JOBS; i++) {
        const uint64_t start = rose_now_ns();
        rose_pool_run(pool, nothing, NULL);
        ns[i] = (double)(rose_now_ns() - start);
    }
    rose_sort_f64(ns, JOBS);
    m->job_ns = ns[JOBS / 2];
}

rose_status rose_machine_measure(rose_machine *out, uint32_t n_threads, const int *cpus,
                                 uint32_t n_cpus, rose_err *err)
{
    rose_status st = ROSE_OK;
    rose_region region = {0};
    rose_pool *pool = NULL;
    double *ns = NULL;

    *out = (rose_machine){.n_threads = n_threads};
    if ((ns = malloc(BARRIERS * sizeof *ns)) == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "machine: out of memory");
        goto done;
    }
    if ((st = rose_region_map(&region, READ_BYTES, "machine", err)) != ROSE_OK) goto done;
    if ((st = rose_pool_create(&pool, n_threads, cpus, n_cpus, err)) != ROSE_OK) goto done;
    rose_pool_run(pool, fill_thread, region.base);
    measure_read(out, pool, region.base);
    measure_barriers(out, pool, ns);
done:
    rose_pool_destroy(pool);
    rose_region_unmap(&region);
    free(ns);
    return st;
}

void rose_machine_better(rose_machine *m, const rose_machine *again)
{
    if (again->read_bytes_per_s > m->read_bytes_per_s) {
        m->read_bytes_per_s = again->read_bytes_per_s;
        m->n_streams = again->n_streams;
        m->prefetch_bytes = again->prefetch_bytes;
    }
    if (again->barrier_ns < m->barrier_ns) m->barrier_ns = again->barrier_ns;
    if (again->barrier_p99_ns < m->barrier_p99_ns) m->barrier_p99_ns = again->barrier_p99_ns;
    if (again->job_ns < m->job_ns) m->job_ns = again->job_ns;
}

double rose_floor_ms(const rose_machine *m, uint64_t bytes)
{
    return (double)bytes / m->read_bytes_per_s * 1e3;
}

void rose_machine_print(FILE *f, const rose_machine *m)
{
    fprintf(f,
            "%u threads: reads %.1f GB/s (%u streams each, prefetched %u bytes ahead), barrier "
            "%.2f us (p99 %.2f), empty job %.2f us\n",
            m->n_threads, m->read_bytes_per_s * 1e-9, m->n_streams, m->prefetch_bytes,
            m->barrier_ns * 1e-3, m->barrier_p99_ns * 1e-3, m->job_ns * 1e-3);
}

rose_json *rose_machine_json(const rose_machine *m)
{
    return rose_json_pack("{s:i, s:f, s:i, s:i, s:f, s:f, s:f}", "threads", (int)m->n_threads,
                          "read_gb_per_s", m->read_bytes_per_s * 1e-9, "read_streams",
                          (int)m->n_streams, "read_prefetch_bytes", (int)m->prefetch_bytes,
                          "barrier_us", m->barrier_ns * 1e-3, "barrier_p99_us",
                          m->barrier_p99_ns * 1e-3, "job_us", m->job_ns * 1e-3);
}
