/* bench/kernels.c - the matrix products of GPT-2 124M at many row counts, ours and the vendor
 * library's in the same run (backend/kernel_bench.h says what is timed). A table on standard
 * output, or JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/kernel_bench.h"
#include "base/opts.h"
#include "bench/bench.h"

typedef struct options {
    const char *device, *dtype, *library;
    uint32_t repeats, max_rows;
    bool json;
} options;

typedef struct matrix {
    const char *name;
    rose_kernel_role role;
    uint32_t n_out, n_in;
} matrix;

static const matrix g_matrices[] = {
    {"qkv", ROSE_KERNEL_QKV, 2304, 768},    {"proj", ROSE_KERNEL_RESIDUAL, 768, 768},
    {"fc1", ROSE_KERNEL_ACT, 3072, 768},    {"fc2", ROSE_KERNEL_RESIDUAL, 768, 3072},
    {"head", ROSE_KERNEL_HEAD, 50304, 768}, /* 50257 outputs in whole tiles */
};
static const uint32_t g_rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192, 32768};

enum {
    N_MATRICES = sizeof g_matrices / sizeof *g_matrices,
    N_ROWS = sizeof g_rows / sizeof *g_rows
};

/* -1 = go on, else the exit code. */
static int parse(int argc, char **argv, options *o)
{
    const rose_opt opts[] = {
        {.name = "device",
         .kind = ROSE_OPT_CHOICE,
         .dest = &o->device,
         .choices = "cuda",
         .help = "where the products run"},
        {.name = "dtype",
         .kind = ROSE_OPT_CHOICE,
         .dest = &o->dtype,
         .choices = "float16|bfloat16",
         .help = "of weights and activations; sums are fp32"},
        {.name = "library",
         .kind = ROSE_OPT_STRING,
         .dest = &o->library,
         .arg = "PATH",
         .help = "libcublasLt.so; without it the usual names are tried"},
        {.name = "max-rows",
         .kind = ROSE_OPT_U32,
         .dest = &o->max_rows,
         .arg = "N",
         .min = 1,
         .max = 32768,
         .help = "leave out larger products (the head takes 10 GB at 32768)"},
        {.name = "repeats",
         .kind = ROSE_OPT_U32,
         .dest = &o->repeats,
         .arg = "N",
         .min = 1,
         .max = 1000,
         .help = "alternating runs of each side, of which the medians count"},
        {.name = "json",
         .kind = ROSE_OPT_FLAG,
         .dest = &o->json,
         .help = "one JSON object on standard output"},
    };
    const rose_command cmd = {
        .usage = "roseinfer bench kernels [options]",
        .about = "Matrix products of GPT-2 124M on the GPU beside cuBLASLt (best of 8 algorithms), "
                 "in one run:\nmicroseconds a product from CUDA graphs of 12, each with weights "
                 "of its own.",
        .opts = opts,
        .n_opts = sizeof opts / sizeof *opts,
    };
    uint32_t n_args;
    return rose_opts_parse(&cmd, argc, argv, NULL, &n_args);
}

static void print_one(const options *o, const matrix *m, uint32_t rows, const rose_kernel_times *t,
                      bool first)
{
    const double flop = 2.0 * rows * m->n_out * m->n_in;
    if (o->json)
        printf("%s\n  {\"matrix\": \"%s\", \"n_out\": %u, \"n_in\": %u, \"rows\": %u, "
               "\"own_us\": %.3f, \"library_us\": %.3f, \"library_over_own\": %.3f, "
               "\"own_tflops\": %.1f}",
               first ? "" : ",", m->name, m->n_out, m->n_in, rows, t->own_us, t->library_us,
               t->library_us / t->own_us, flop / t->own_us * 1e-6);
    else
        printf("%-5s %5u x %-4u %6u rows  %9.2f us  %9.2f us  %5.2f  %6.1f\n", m->name, m->n_out,
               m->n_in, rows, t->own_us, t->library_us, t->library_us / t->own_us,
               flop / t->own_us * 1e-6);
    fflush(stdout);
}

static rose_status run(rose_kernel_bench *b, const options *o, rose_err *err)
{
    rose_status st = ROSE_OK;
    if (o->json)
        printf("{\"bench\": \"kernels\", \"about\": \"%s\", \"dtype\": \"%s\", \"repeats\": %u, "
               "\"products\": [",
               rose_kernel_bench_about(b), o->dtype, o->repeats);
    else
        printf("%s, %s\n%-32s %12s %13s  %5s  %s\n", rose_kernel_bench_about(b), o->dtype, "",
               "roseinfer", "cuBLASLt", "ratio", "TFLOP/s");
    for (int i = 0; i < N_MATRICES; i++)
        for (int j = 0; j < N_ROWS && g_rows[j] <= o->max_rows && st == ROSE_OK; j++) {
            const matrix *m = &g_matrices[i];
            const rose_kernel_shape s = {m->role, m->n_out, m->n_in, g_rows[j]};
            rose_kernel_times t;
            st = rose_kernel_bench_run(b, &s, o->repeats, &t, err);
            if (st == ROSE_OK) print_one(o, m, g_rows[j], &t, i == 0 && j == 0);
        }
    if (o->json) puts("\n]}");
    return st;
}

int rose_bench_kernels(int argc, char **argv)
{
    options o = {.device = "cuda", .dtype = "float16", .repeats = 21, .max_rows = 32768};
    rose_kernel_shape largest[N_MATRICES];
    rose_kernel_bench *b = NULL;
    rose_err err = {""};

    int rc = parse(argc, argv, &o);
    if (rc >= 0) return rc;
    const rose_compute dtype =
        strcmp(o.dtype, "bfloat16") == 0 ? ROSE_COMPUTE_BF16 : ROSE_COMPUTE_F16;
    for (int i = 0; i < N_MATRICES; i++)
        largest[i] = (rose_kernel_shape){g_matrices[i].role, g_matrices[i].n_out,
                                         g_matrices[i].n_in, o.max_rows};
    rose_status st = rose_kernel_bench_open(&b, dtype, largest, N_MATRICES, o.library, &err);
    if (st == ROSE_OK) st = run(b, &o, &err);
    if (st != ROSE_OK) fprintf(stderr, "roseinfer: %s\n", err.msg);
    rose_kernel_bench_close(b);
    return st == ROSE_OK ? 0 : 1;
}
