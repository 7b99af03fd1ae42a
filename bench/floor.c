/* bench/floor.c - see floor.h. */
#include "bench/floor.h"

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
