/* engine/flags.h - the command-line options of an engine, shared by every program that opens
 * one. The table has three parts. backend/opts.c and engine/opts.c hold the options that are
 * fields of rose_backend_opts and rose_engine_opts; flags.c holds the others. Main thread. */
#ifndef ROSE_ENGINE_FLAGS_H
#define ROSE_ENGINE_FLAGS_H

#include "backend/opts.h"
#include "base/cpuinfo.h"
#include "base/opts.h"
#include "engine/engine.h"

enum {
    ROSE_ENGINE_OPT_ROWS = 32, /* of engine/opts.c */
    ROSE_ENGINE_FLAG_ROWS = ROSE_BACKEND_OPT_ROWS + ROSE_ENGINE_OPT_ROWS + 12
};

/* What the options set. */
typedef struct rose_engine_flags {
    rose_engine_opts opts;   /* the options as parsed; rose_engine_flags_read completes them */
    const char *device;      /* for rose_backend_pick */
    const char *load_format; /* for rose_model_open_as */
    const char *engine_cpus;
    const char *speculative_config; /* JSON; NULL = the default */
    bool speculation;
    bool cpu_affinity;
    int cpus[ROSE_MAX_CPUS]; /* filled by rose_engine_flags_read */
} rose_engine_flags;

/* Set every option to its default. */
void rose_engine_flags_init(rose_engine_flags *f);

/* Writes the option rows, which point into f and carry their defaults, to rows; returns how many
 * (<= ROSE_ENGINE_FLAG_ROWS). */
size_t rose_engine_flags_rows(rose_engine_flags *f, rose_opt *rows);

/* Returns the row of the engine option `name` with another destination, for a program that
 * passes the value on. A CHOICE takes the value of an enum as text; otherwise kind is that of
 * the row. */
rose_opt rose_engine_flags_row(const char *name, rose_opt_kind kind, void *dest);

/* Writes the rows of rose_engine_opts alone, without those of its backend part. */
size_t rose_engine_opts_rows(rose_engine_opts *o, rose_opt *rows);

/* Call after parsing: *o becomes f->opts with the CPUs of the threads; it borrows f->cpus.
 * Errors: INVAL (a CPU list that cannot be read or is not allowed; steps of fewer tokens than
 * sequences; a --speculative-config that cannot be read). */
rose_status rose_engine_flags_read(rose_engine_flags *f, rose_engine_opts *o, rose_err *err);

/* Parses "0-3,6" to cpus[0..n); only CPUs that this process may use. Errors: INVAL, which names
 * the wrong part. */
rose_status rose_cpu_list_parse(const char *text, int *cpus, uint32_t cap, uint32_t *n,
                                rose_err *err);

#endif
