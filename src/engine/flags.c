/* engine/flags.c - see flags.h. */
#include "engine/flags.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void rose_engine_flags_init(rose_engine_flags *f)
{
    rose_opt rows[ROSE_ENGINE_FLAG_ROWS];
    memset(f, 0, sizeof *f);
    rose_engine_opts_default(&f->opts); /* what has no row, as engine_cpu */
    rose_opts_default(rows, rose_engine_flags_rows(f, rows));
}

size_t rose_engine_flags_rows(rose_engine_flags *f, rose_opt *rows)
{
    const rose_opt own[] = {
        ROSE_ROW_BRIEF_HEADING("Model and device"),
        ROSE_ROW_CHOICE(
            "device", &f->device, "auto|cpu|cuda",
            "where the model runs; auto is cuda if there is a usable GPU that can compute "
            "the model, else cpu",
            .sdef = "auto", .first = true),
        ROSE_ROW_CHOICE("load-format", &f->load_format, "auto|dummy",
                        "auto reads the weight files. dummy reads none: the weights are random, "
                        "in the shapes that config.json gives, to measure speed",
                        .sdef = "auto"),
    };
    const rose_opt speculation[] = {
        ROSE_ROW_BRIEF_HEADING("Speculative decoding"),
        ROSE_ROW_BOOL("speculation", &f->speculation,
                      "guess the next tokens and check several in one step, where that saves time. "
                      "No answer changes",
                      .def = true),
        ROSE_ROW_STRING("speculative-config", &f->speculative_config, "JSON",
                        "how tokens are guessed, with vLLM's names: {\"method\": \"suffix\"} or "
                        "{\"method\": \"ngram\", \"num_speculative_tokens\": 4, "
                        "\"prompt_lookup_max\": 5, \"prompt_lookup_min\": 2}",
                        .unset = "suffix, up to 15 tokens"),
    };
    const rose_opt cpu[] = {
        ROSE_ROW_BRIEF_HEADING("CPU"),
        ROSE_ROW_BOOL("cpu-affinity", &f->cpu_affinity,
                      "pin each compute thread to one CPU. Use it only if nothing else runs on "
                      "these CPUs: two servers would pin to the same ones"),
        ROSE_ROW_STRING("engine-cpus", &f->engine_cpus, "LIST",
                        "pin the compute threads to these CPUs, as 0-3,6", .unset = "not pinned"),
    };
    size_t n = sizeof own / sizeof *own;
    memcpy(rows, own, sizeof own);
    memcpy(rows + n, speculation, sizeof speculation);
    n += sizeof speculation / sizeof *speculation;
    n += rose_backend_opts_rows(&f->opts.backend, rows + n);
    n += rose_engine_opts_rows(&f->opts, rows + n);
    memcpy(rows + n, cpu, sizeof cpu);
    return n + sizeof cpu / sizeof *cpu;
}

rose_opt rose_engine_flags_row(const char *name, rose_opt_kind kind, void *dest)
{
    static rose_engine_flags unused;
    rose_opt rows[ROSE_ENGINE_FLAG_ROWS], row = {0};
    const size_t n = rose_engine_flags_rows(&unused, rows);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(rows[i].name, name) == 0) row = rows[i];
    }
    assert(row.kind == kind || (row.kind == ROSE_OPT_ENUM && kind == ROSE_OPT_CHOICE));
    row.kind = kind;
    row.dest = dest;
    row.first = false; /* the other program has its own --help */
    return row;
}

static bool is_allowed(int cpu)
{
    int allowed[ROSE_MAX_CPUS];
    uint32_t n = rose_cpus_allowed(allowed, ROSE_MAX_CPUS);
    for (uint32_t i = 0; i < n; i++) {
        if (allowed[i] == cpu) return true;
    }
    return false;
}

rose_status rose_cpu_list_parse(const char *text, int *cpus, uint32_t cap, uint32_t *n,
                                rose_err *err)
{
    const char *p = text;
    *n = 0;
    while (*p != '\0') {
        char *end;
        long a = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : -1;
        long b = a;
        if (a >= 0 && *end == '-' && end[1] >= '0' && end[1] <= '9') b = strtol(end + 1, &end, 10);
        if (a < 0 || b < a || b >= ROSE_MAX_CPUS || (*end != ',' && *end != '\0'))
            return rose_fail(err, ROSE_E_INVAL, "CPU list '%s': expected something like 0-3,6",
                             text);
        for (long c = a; c <= b; c++) {
            if (!is_allowed((int)c))
                return rose_fail(err, ROSE_E_INVAL,
                                 "CPU list '%s': this process may not use CPU %ld", text, c);
            if (*n == cap) return rose_fail(err, ROSE_E_INVAL, "CPU list '%s' is too long", text);
            cpus[(*n)++] = (int)c;
        }
        p = *end == ',' ? end + 1 : end;
    }
    if (*n == 0) return rose_fail(err, ROSE_E_INVAL, "the CPU list is empty");
    return ROSE_OK;
}

rose_status rose_engine_flags_read(rose_engine_flags *f, rose_engine_opts *o, rose_err *err)
{
    *o = f->opts;
    rose_backend_opts *b = &o->backend;
    if (b->max_step_tokens != 0 && b->max_step_tokens < b->max_seqs)
        return rose_fail(err, ROSE_E_INVAL,
                         "--max-num-batched-tokens %u is less than --max-num-seqs %u",
                         b->max_step_tokens, b->max_seqs);
    if (f->speculative_config != NULL) {
        rose_status st = rose_spec_opts_parse(&o->spec, f->speculative_config, err);
        if (st != ROSE_OK) return st;
    }
    if (!f->speculation) o->spec.method = ROSE_SPEC_NONE;
    b->cuda.guesses = rose_spec_wanted(&o->spec); /* for a plan before the engine makes its own */
    uint32_t n = 0;
    if (f->engine_cpus != NULL) {
        rose_status st = rose_cpu_list_parse(f->engine_cpus, f->cpus, ROSE_MAX_CPUS, &n, err);
        if (st != ROSE_OK) return st;
    } else {
        n = rose_cpus_allowed(f->cpus, ROSE_MAX_CPUS);
    }
    if (b->cpu.n_threads == 0) b->cpu.n_threads = n > 0 ? n : 1;
    if ((f->cpu_affinity || f->engine_cpus != NULL) && n > 0) {
        b->cpu.cpus = f->cpus;
        b->cpu.n_cpus = n;
        o->engine_cpu = f->cpus[0];
    }
    return ROSE_OK;
}
