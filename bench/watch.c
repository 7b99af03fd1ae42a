/* bench/watch.c - see watch.h. */
#include "bench/watch.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

enum { GET_TIMEOUT_MS = 5000, MAX_NUMBER = 64, MAX_LABELS = 512 };

/* Finds the next sample of a metric, at *line or later, and moves *line to the line after it.
 * labels gets the text between name and value. False: there is no further sample. */
static bool next_sample(const char **line, const char *end, const char *name, double *value,
                        char labels[MAX_LABELS])
{
    const size_t n = strlen(name);
    while (*line < end) {
        const char *from = *line, *nl = memchr(from, '\n', (size_t)(end - from));
        const char *stop = nl != NULL ? nl : end, *at = stop;
        char number[MAX_NUMBER];
        *line = stop + 1;
        if ((size_t)(stop - from) <= n || memcmp(from, name, n) != 0 ||
            (from[n] != '{' && from[n] != ' '))
            continue;
        while (at > from + n && at[-1] != ' ')
            at--;
        snprintf(number, sizeof number, "%.*s", (int)(stop - at), at);
        snprintf(labels, MAX_LABELS, "%.*s", (int)(at - (from + n)), from + n);
        *value = strtod(number, NULL);
        return true;
    }
    return false;
}

/* As rose_watch_metric; counts the samples in *n. */
static double sum_samples(const char *text, size_t len, const char *name, uint32_t *n)
{
    char labels[MAX_LABELS];
    double sum = 0, value;
    *n = 0;
    for (const char *line = text; next_sample(&line, text + len, name, &value, labels); ++*n)
        sum += value;
    return sum;
}

double rose_watch_metric(const char *text, size_t len, const char *name)
{
    uint32_t n;
    return sum_samples(text, len, name, &n);
}

void rose_watch_parse_guesses(rose_watch_guesses *out, const char *text, size_t len)
{
    static const char places[] = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    char labels[MAX_LABELS];
    uint32_t n[3];
    double value;
    *out = (rose_watch_guesses){0};
    out->drafts = sum_samples(text, len, "vllm:spec_decode_num_drafts_total", &n[0]);
    out->draft_tokens = sum_samples(text, len, "vllm:spec_decode_num_draft_tokens_total", &n[1]);
    out->accepted = sum_samples(text, len, "vllm:spec_decode_num_accepted_tokens_total", &n[2]);
    out->known = n[0] > 0 && n[1] > 0 && n[2] > 0;
    for (const char *line = text; next_sample(&line, text + len, places, &value, labels);) {
        const char *p = strstr(labels, "position=\"");
        const unsigned long at = p != NULL ? strtoul(p + 10, NULL, 10) : ROSE_WATCH_PLACES;
        if (at >= ROSE_WATCH_PLACES) continue;
        out->accepted_at[at] += value;
        if (at >= out->n_places) out->n_places = (uint32_t)at + 1;
    }
}

rose_watch_guesses rose_watch_read_guesses(const rose_url *u, const char *key)
{
    rose_watch_guesses g = {0};
    rose_buf body = {0};
    int status;
    if (rose_http_call(u, "/metrics", key, NULL, GET_TIMEOUT_MS, &status, &body, NULL) == ROSE_OK &&
        status == 200 && body.len > 0)
        rose_watch_parse_guesses(&g, body.data, body.len);
    rose_buf_free(&body);
    return g;
}

rose_watch_guesses rose_watch_guesses_since(const rose_watch_guesses *before,
                                            const rose_watch_guesses *after)
{
    rose_watch_guesses d = *after;
    d.drafts -= before->drafts;
    d.draft_tokens -= before->draft_tokens;
    d.accepted -= before->accepted;
    for (uint32_t i = 0; i < d.n_places; i++)
        d.accepted_at[i] -= before->accepted_at[i];
    d.known =
        before->known && after->known && d.drafts >= 0 && d.draft_tokens >= 0 && d.accepted >= 0;
    return d;
}

void rose_watch_parse(rose_watch *out, const char *text, size_t len)
{
    const struct {
        const char *name;
        double *to;
    } all[] = {
        {"vllm:num_requests_running", &out->running},
        {"vllm:num_requests_waiting", &out->waiting},
        {"roseinfer:kv_pages", &out->kv_pages},
        {"roseinfer:kv_pages_free", &out->kv_pages_free},
        {"vllm:num_preemptions_total", &out->preemptions},
        {"roseinfer:engine_steps_total", &out->engine_steps},
        {"process_resident_memory_bytes", &out->resident_bytes},
        {"process_open_fds", &out->open_fds},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        *all[i].to = rose_watch_metric(text, len, all[i].name);
}

void rose_watch_process(rose_watch *out, pid_t pid)
{
    char path[64];
    uint64_t size, resident;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *f = fopen(path, "re");
    if (f != NULL) {
        if (fscanf(f, "%" SCNu64 " %" SCNu64, &size, &resident) == 2)
            out->resident_bytes = (double)resident * (double)sysconf(_SC_PAGESIZE);
        fclose(f);
    }
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *d = opendir(path);
    if (d == NULL) return;
    out->open_fds = 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        out->open_fds += e->d_name[0] != '.';
    closedir(d);
}

uint64_t rose_watch_peak_bytes(pid_t pid)
{
    char line[128];
    uint64_t kib = 0;
    snprintf(line, sizeof line, "/proc/%d/status", (int)pid);
    FILE *f = fopen(line, "re");
    if (f == NULL) return 0;
    while (fgets(line, sizeof line, f) != NULL && sscanf(line, "VmHWM: %" SCNu64, &kib) != 1)
        kib = 0;
    fclose(f);
    return kib * 1024;
}

uint32_t rose_watch_cpu_wait(pid_t pid, uint64_t wait_ns[ROSE_WATCH_MAX_THREADS])
{
    char path[320];
    uint64_t ran;
    uint32_t n = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *d = opendir(path);
    if (d == NULL) return 0;
    for (const struct dirent *e; n < ROSE_WATCH_MAX_THREADS && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", (int)pid, e->d_name);
        FILE *f = fopen(path, "re");
        if (f == NULL) continue; /* the thread has ended meanwhile */
        if (fscanf(f, "%" SCNu64 " %" SCNu64, &ran, &wait_ns[n]) == 2) n++;
        fclose(f);
    }
    closedir(d);
    return n;
}

rose_status rose_watch_read(rose_watch *out, const rose_server *s, rose_err *err)
{
    rose_buf body = {0};
    int status;
    *out = (rose_watch){0};
    rose_status st =
        rose_http_call(&s->url, "/metrics", NULL, NULL, GET_TIMEOUT_MS, &status, &body, err);
    if (st == ROSE_OK && status != 200)
        st = rose_fail(err, ROSE_E_FORMAT, "/metrics: HTTP status %d", status);
    if (st == ROSE_OK) rose_watch_parse(out, body.data, body.len);
    if (st == ROSE_OK && s->proc.pid != 0) rose_watch_process(out, s->proc.pid);
    rose_buf_free(&body);
    return st;
}

bool rose_watch_settle(rose_watch *out, const rose_server *s, double max_fds, uint32_t timeout_s,
                       rose_err *err)
{
    const struct timespec tick = {0, 20000000};
    const uint64_t end = rose_now_ns() + timeout_s * UINT64_C(1000000000);
    for (;;) {
        if (rose_watch_read(out, s, err) != ROSE_OK) return false;
        if (out->running <= 0 && out->waiting <= 0 && out->kv_pages_free >= out->kv_pages &&
            (max_fds <= 0 || out->open_fds <= max_fds))
            return true;
        if (rose_now_ns() > end) {
            rose_fail(err, ROSE_E_INTERNAL,
                      "after %u s: %.0f running, %.0f waiting, %.0f of %.0f pages free, %.0f "
                      "descriptors",
                      timeout_s, out->running, out->waiting, out->kv_pages_free, out->kv_pages,
                      out->open_fds);
            return false;
        }
        nanosleep(&tick, NULL);
    }
}
