/* bench/offline_driver.c - runs the offline workload through a script of tools/drivers, one for
 * each rival, in the rival's own Python.
 *
 * The script reads a file with the token ids of every run, warm-up runs first. At its end it prints
 * one line of JSON: {"runs": [{total_s, input_tokens, output_tokens}], "extra": {...}}. A script
 * that sees tokens as they come adds to each run "first_s" and "last_s", lists with one time for
 * each prompt, counted from the start of the run. "ready_at_s" (monotonic clock) is when the first
 * run began. "resident_peak_bytes" is the most memory that the process had. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "bench/offline_internal.h"
#include "bench/results.h"
#include "bench/stats.h"

const char *const rose_offline_drivers[ROSE_OFFLINE_DRIVERS] = {"vllm", "sglang", "trtllm",
                                                                "transformers", "llama"};

enum { MAX_OUTPUT = 64 << 20, MAX_PATH = 4096 };

static bool write_run(FILE *f, const rose_offline_work *w, uint64_t seed, uint32_t *ids)
{
    fprintf(f, "{\"seed\":%llu,\"prompts\":[", (unsigned long long)(seed & INT64_MAX));
    for (uint32_t i = 0; i < w->n; i++) {
        rose_offline_prompt(w, seed, i, ids);
        fputs(i > 0 ? ",[" : "[", f);
        for (uint32_t j = 0; j < w->rows[i].n_in; j++)
            fprintf(f, "%s%u", j > 0 ? "," : "", ids[j]);
        fputc(']', f);
    }
    fputs("],\"output_lens\":[", f);
    for (uint32_t i = 0; i < w->n; i++)
        fprintf(f, "%s%u", i > 0 ? "," : "", w->rows[i].n_out);
    return fputs("]}", f) >= 0;
}

static rose_status write_workload(const char *path, const rose_offline *r, const char *model,
                                  rose_err *err)
{
    const rose_offline_work *w = &r->work;
    const uint32_t warmup = r->o->warmup, repeats = r->o->repeats;
    const size_t len = strlen(model);
    if (!rose_utf8_is_valid(model, len))
        return rose_fail(
            err, ROSE_E_INVAL,
            "%s: a script gets the path of its model as JSON, and this path is not UTF-8", model);
    rose_json *head =
        rose_json_pack("{s:s, s:f, s:f, s:i, s:b, s:i, s:i}", "model", model, "temperature",
                       (double)w->temperature, "top_p", (double)w->top_p, "top_k", (int)w->top_k,
                       "send_seed", w->send_seed, "max_batch_size",
                       (int)r->o->server.engine.opts.backend.max_seqs, "warmup", (int)warmup);
    uint32_t *ids = malloc(rose_offline_longest(w) * sizeof *ids);
    FILE *f = fopen(path, "w");
    bool ok = f != NULL && ids != NULL && head != NULL && fputs("{\"options\":", f) >= 0 &&
              rose_json_dumpf(head, f, 0) == 0 && fputs(",\"runs\":[", f) >= 0;
    for (uint32_t i = 0; i < warmup + repeats && ok; i++) {
        if (i > 0) fputc(',', f);
        ok = write_run(f, w, rose_offline_seed(w, i < warmup, i < warmup ? i : i - warmup), ids);
    }
    if (ok) ok = fputs("]}\n", f) >= 0;
    if (f != NULL && fclose(f) != 0) ok = false;
    free(ids);
    rose_json_decref(head);
    return ok ? ROSE_OK : rose_fail(err, ROSE_E_IO, "cannot write %s: %s", path, strerror(errno));
}

/* Finds the script in --drivers, else in share/roseinfer/drivers of an installation, else in
 * tools/drivers of the source tree. */
static rose_status find_script(const char *dir, const char *name, char *path, size_t cap,
                               rose_err *err)
{
    static const char *const beside[] = {"../share/roseinfer/drivers", "../tools/drivers",
                                         "../../tools/drivers"};
    char self[MAX_PATH];
    if (dir != NULL) {
        snprintf(path, cap, "%s/%s.py", dir, name);
        if (rose_file_exists(path)) return ROSE_OK;
        return rose_fail(err, ROSE_E_NOTFOUND, "no %s.py in %s", name, dir);
    }
    snprintf(self, sizeof self, "%s", rose_self_path());
    char *slash = strrchr(self, '/');
    if (slash != NULL) *slash = '\0';
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++) {
        if (snprintf(path, cap, "%s/%s/%s.py", self, beside[i], name) < (int)cap &&
            rose_file_exists(path))
            return ROSE_OK;
    }
    return rose_fail(err, ROSE_E_NOTFOUND,
                     "%s.py was not found near this program; --drivers DIR names its folder", name);
}

/* Returns the last line of text that is not empty; it ends the line in place. */
static char *last_line(char *text)
{
    size_t n = strlen(text);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' '))
        text[--n] = '\0';
    char *nl = strrchr(text, '\n');
    return nl != NULL ? nl + 1 : text;
}

/* Computes TTFT and TPOT of a run if the script gives the times of every prompt. */
static rose_status take_times(const rose_json *run, const rose_offline_work *w,
                              rose_offline_run *out, rose_err *err)
{
    const rose_json *firsts = rose_json_get(run, "first_s"), *lasts = rose_json_get(run, "last_s");
    rose_samples ttft = {0}, tpot = {0};
    rose_status st = ROSE_OK;
    if (firsts == NULL && lasts == NULL) return ROSE_OK;
    if (rose_json_count(firsts) != w->n || rose_json_count(lasts) != w->n)
        return rose_fail(err, ROSE_E_FORMAT, "the driver does not give times for %u prompts", w->n);
    for (uint32_t i = 0; i < w->n && st == ROSE_OK; i++) {
        const double first = rose_json_number_value(rose_json_at(firsts, i)),
                     last = rose_json_number_value(rose_json_at(lasts, i));
        if (!(first > 0) || !(last >= first) || last > out->total_s) {
            st =
                rose_fail(err, ROSE_E_FORMAT, "the driver gives impossible times for prompt %u", i);
            break;
        }
        st = rose_samples_add(&ttft, first);
        if (st == ROSE_OK && w->rows[i].n_out > 1)
            st = rose_samples_add(&tpot, (last - first) / (w->rows[i].n_out - 1));
        if (st != ROSE_OK) rose_fail(err, st, "out of memory");
    }
    rose_offline_times(out, &ttft, &tpot);
    return st;
}

static rose_status take_runs(const rose_json *o, const rose_offline_work *w, uint32_t repeats,
                             rose_offline_result *r, rose_err *err)
{
    const rose_json *runs = rose_json_get(o, "runs");
    if (rose_json_count(runs) != repeats)
        return rose_fail(err, ROSE_E_FORMAT, "the driver reports %zu runs of %u",
                         rose_json_count(runs), repeats);
    if ((r->runs = calloc(repeats, sizeof *r->runs)) == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < repeats; i++) {
        const rose_json *run = rose_json_at(runs, i);
        const double total_s = rose_json_number_value(rose_json_get(run, "total_s"));
        const int64_t in = rose_json_int(rose_json_get(run, "input_tokens")),
                      out = rose_json_int(rose_json_get(run, "output_tokens"));
        if (!(total_s > 0) || in < 1 || out < 1)
            return rose_fail(err, ROSE_E_FORMAT, "run %u of the driver has no time or no tokens",
                             i);
        r->runs[i] = (rose_offline_run){.total_s = total_s,
                                        .ttft_p50 = (double)NAN,
                                        .ttft_p99 = (double)NAN,
                                        .tpot_p50 = (double)NAN,
                                        .tpot_p99 = (double)NAN,
                                        .input_tokens = (uint64_t)in,
                                        .output_tokens = (uint64_t)out};
        rose_status st = take_times(run, w, &r->runs[i], err);
        if (st != ROSE_OK) return st;
        r->n_runs++;
    }
    rose_json_update(r->extra, rose_json_get(o, "extra"));
    return ROSE_OK;
}

/* Reads the start-up time and the memory use that the driver script reports. An impossible
 * figure is dropped, as if the script had not reported it. */
static void take_process(const rose_json *o, uint64_t start_ns, rose_offline_result *r)
{
    const double ready_at = rose_json_number_value(rose_json_get(o, "ready_at_s")),
                 ready_s = ready_at - (double)start_ns * 1e-9;
    const int64_t peak = rose_json_int(rose_json_get(o, "resident_peak_bytes"));
    if (ready_at > 0 && ready_s > 0) r->ready_s = ready_s;
    if (peak > 0) r->resident_peak_bytes = (uint64_t)peak;
}

static rose_status read_result(const char *path, const rose_offline_work *w, uint32_t repeats,
                               uint64_t start_ns, rose_offline_result *r, rose_err *err)
{
    rose_buf text = {0};
    rose_json_error e;
    rose_json *o = NULL;
    rose_status st = rose_file_read(&text, path, MAX_OUTPUT, err);
    if (st == ROSE_OK && rose_buf_str(&text) == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "out of memory");
    if (st == ROSE_OK) {
        const char *line = last_line(text.data);
        st = rose_json_parse(&o, line, strlen(line), 0, &e);
        if (st != ROSE_OK)
            rose_fail(err, st, "the last line of the driver is not JSON: %.100s", line);
    }
    if (st == ROSE_OK) st = take_runs(o, w, repeats, r, err);
    if (st == ROSE_OK) take_process(o, start_ns, r);
    rose_json_decref(o);
    rose_buf_free(&text);
    return st;
}

static rose_status wait_for(rose_proc *p, uint32_t timeout_s, const volatile sig_atomic_t *stop,
                            const char *log, rose_err *err)
{
    const struct timespec tick = {0, 20000000};
    const uint64_t deadline = rose_now_ns() + (uint64_t)timeout_s * 1000000000u;
    char how[32], line[256];
    while (rose_proc_running(p)) {
        if (stop != NULL && *stop) {
            rose_proc_stop(p, 5000);
            return rose_fail(err, ROSE_E_CLOSED, "interrupted");
        }
        if (rose_now_ns() > deadline) {
            rose_proc_stop(p, 5000);
            return rose_fail(err, ROSE_E_CLOSED, "not done after %u s", timeout_s);
        }
        nanosleep(&tick, NULL);
    }
    if (rose_proc_wait(p)) return ROSE_OK;
    rose_proc_describe(p, how, sizeof how);
    rose_proc_log_why(log, line, sizeof line);
    return rose_fail(err, ROSE_E_CLOSED, "the driver ended with %s: %s", how, line);
}

rose_status rose_offline_script(const rose_offline *r, const rose_offline_backend *b,
                                rose_offline_result *out, rose_err *err)
{
    const rose_offline_opts *o = r->o;
    const char *name = rose_offline_drivers[b->driver], *args = o->args[b->driver];
    const bool gguf = strcmp(name, "llama") == 0 && o->llama_model != NULL;
    const bool logs = r->dir[0] != '\0';
    char dir[] = "/tmp/rose-offline-XXXXXX", work[64], said[64], log[MAX_PATH], script[MAX_PATH];
    char *argv[ROSE_PROC_MAX_ARGS];
    uint32_t n = 0;
    rose_buf words[2] = {{0}}, cmd = {0};
    rose_proc p = {0};
    if (mkdtemp(dir) == NULL) return rose_fail(err, ROSE_E_IO, "cannot write to /tmp");
    snprintf(work, sizeof work, "%s/workload.json", dir);
    snprintf(said, sizeof said, "%s/out", dir);
    if (logs)
        snprintf(log, sizeof log, "%.3900s/%s.driver.log", r->dir, out->label);
    else
        snprintf(log, sizeof log, "%s/log", dir);
    rose_status st = find_script(o->drivers, name, script, sizeof script, err);
    if (st == ROSE_OK) st = write_workload(work, r, gguf ? o->llama_model : r->model_dir, err);
    if (st == ROSE_OK) st = rose_args_split(o->python[b->driver], &words[0], argv, &n, err);
    if (st == ROSE_OK && n + 3 < ROSE_PROC_MAX_ARGS) {
        argv[n++] = script;
        argv[n++] = work;
        if (args != NULL) st = rose_args_split(args, &words[1], argv, &n, err);
    }
    argv[n] = NULL;
    for (uint32_t i = 0; i < n && st == ROSE_OK; i++)
        st = rose_buf_addf(&cmd, "%s%s", i > 0 ? " " : "", argv[i]);
    out->extra = rose_json_pack("{s:o}", "cmd", rose_results_stringn(cmd.data, cmd.len));
    const uint64_t start_ns = rose_now_ns();
    if (st == ROSE_OK) st = rose_proc_start(&p, argv, said, log, NULL, 0, err);
    if (st == ROSE_OK) st = wait_for(&p, o->timeout_s, r->work.stop, log, err);
    if (st == ROSE_OK) st = read_result(said, &r->work, o->repeats, start_ns, out, err);
    unlink(work);
    unlink(said);
    if (!logs) unlink(log);
    rmdir(dir);
    for (int i = 0; i < 2; i++)
        rose_buf_free(&words[i]);
    rose_buf_free(&cmd);
    return st;
}
