/* bench/kernels.c - `roseinfer bench kernels` times the GEMMs of a model at many row counts, ours
 * and those of the vendor's library in one run (kernels_internal.h says what is timed). On a
 * CPU it also measures how fast memory and threads are (machine.h). It prints a table or
 * JSON. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpuinfo.h"
#include "base/opts.h"
#include "bench/bench.h"
#include "bench/kernels_internal.h"
#include "bench/machine.h"
#include "bench/stats.h"
#include "engine/flags.h"

enum { MAX_POINTS = 32, MAX_ROWS = 32768, MAX_CPU_ROWS = 2048, MAX_REPEATS = 1000 };
/* GPT-2 124M; its 50257 tokens rounded up to whole tiles. */
enum { WIDTH = 768, N_LAYERS = 12, VOCAB = 50304 };
enum { CPU_REST_MS = 2 }; /* oneDNN's threads spin for a while after a pass */

typedef struct options {
    rose_kernel_opts kernel; /* of the device */
    const char *device, *dtype, *matrix, *row_list, *model, *load_format;
    rose_arch arch; /* of the model, if there is one */
    uint32_t repeats, max_rows, width, vocab;
    bool json;
    uint32_t rows[MAX_POINTS], n_rows; /* the numbers of row_list that are at most max_rows */
} options;

typedef struct matrix {
    const char *name;
    rose_kernel_role kernel;
    rose_role role;       /* of a layer's matrix; ROSE_N_ROLES: the head */
    uint32_t n_out, n_in; /* in multiples of the width; --vocab gives n_out of the head */
} matrix;

static const matrix g_matrices[] = {
    {"qkv", ROSE_KERNEL_QKV, ROSE_QKV, 3, 1},       {"proj", ROSE_KERNEL_RESIDUAL, ROSE_OUT, 1, 1},
    {"fc1", ROSE_KERNEL_ACT, ROSE_UP, 4, 1},        {"fc2", ROSE_KERNEL_RESIDUAL, ROSE_DOWN, 1, 4},
    {"head", ROSE_KERNEL_HEAD, ROSE_N_ROLES, 0, 1},
};

enum { N_MATRICES = sizeof g_matrices / sizeof *g_matrices };

static rose_kernel_shape shape_of_model(const rose_arch *a, const matrix *m, uint32_t rows)
{
    rose_matrix_spec specs[ROSE_N_ROLES];
    const size_t n = rose_kind_matrices(a, rose_arch_any(a), specs);
    for (size_t i = 0; i < n; i++)
        if (specs[i].role == m->role)
            return (rose_kernel_shape){m->kernel, specs[i].n, specs[i].k, rows, specs[i].gated};
    /* The head's outputs are rounded up to whole tiles, as in memory. */
    return (rose_kernel_shape){m->kernel, (a->vocab_size + 63) / 64 * 64, a->d_model, rows, false};
}

static rose_kernel_shape shape_of(const options *o, const matrix *m, uint32_t rows)
{
    const uint32_t n_out = m->role == ROSE_N_ROLES ? o->vocab : m->n_out * o->width;
    if (o->model != NULL) return shape_of_model(&o->arch, m, rows);
    return (rose_kernel_shape){m->kernel, n_out, m->n_in * o->width, rows, false};
}

/* Reads the shape of --model. */
static rose_status read_arch(options *o, bool cuda, rose_err *err)
{
    rose_model *m;
    if (o->model == NULL) return ROSE_OK;
    rose_status st = rose_model_open_as(&m, o->model, o->load_format, err);
    if (st != ROSE_OK) return st;
    o->arch = m->arch;
    rose_model_close(m);
    rose_matrix_spec specs[ROSE_N_ROLES];
    const size_t n = rose_kind_matrices(&o->arch, rose_arch_any(&o->arch), specs);
    for (size_t i = 0; cuda && i < n; i++)
        if (specs[i].k % 64 != 0 || specs[i].n % 64 != 0)
            return rose_fail(err, ROSE_E_UNSUPPORTED,
                             "--model: on cuda all sizes must be multiples of 64; the matrix '%s' "
                             "of this model has %u inputs and %u outputs",
                             rose_role_name(specs[i].role), specs[i].k, specs[i].n);
    return ROSE_OK;
}

/* Returns -1 to go on, else the exit code. */
static int parse(int argc, char **argv, options *o)
{
    const rose_opt opts[] = {
        ROSE_ROW_CHOICE("device", &o->device, "cpu|cuda", "where the products run"),
        ROSE_ROW_CHOICE("dtype", &o->dtype, "auto|float16|bfloat16|float32",
                        "data type of weights and activations (auto: float16 on cuda, bfloat16 on "
                        "cpu); sums are fp32"),
        ROSE_ROW_CHOICE("isa", &o->kernel.isa, "auto|scalar|avx2|avx512|avx512-bf16|amx",
                        "cpu: instruction-set level of our kernels"),
        ROSE_ROW_U32("threads", &o->kernel.n_threads, "N", 0, ROSE_MAX_CPUS,
                     "cpu: threads of our kernels and of oneDNN", .unset = "one per CPU"),
        ROSE_ROW_STRING("library", &o->kernel.library, "PATH",
                        "path of libcublasLt.so or libdnnl.so.2"),
        ROSE_ROW_STRING("kernel", &o->kernel.kernel, "NAME",
                        "cuda: one of our kernels (tiles-64x64 and more: docs/BENCH.md)",
                        .unset = "the best for each shape"),
        ROSE_ROW_CHOICE("matrix", &o->matrix, "all|qkv|proj|fc1|fc2|head", "which of them"),
        ROSE_ROW_STRING("model", &o->model, "FOLDER",
                        "the products of this model, in place of --width and --vocab"),
        rose_engine_flags_row("load-format", ROSE_OPT_CHOICE, &o->load_format),
        ROSE_ROW_U32("width", &o->width, "N", 64, 8192,
                     "values of a row, a multiple of 64 (GPT-2's models: 768, 1024, 1280, 1600)"),
        ROSE_ROW_U32("vocab", &o->vocab, "N", 64, 1 << 18, "outputs of the head, a multiple of 64"),
        ROSE_ROW_STRING("rows", &o->row_list, "LIST", "numbers of rows, from 1 to 32768",
                        .unset = "1,2,4 to 512, cuda: 640,768,1024,1280,1536,2048,3072,4096,8192,"
                                 "32768; cpu: 2048"),
        ROSE_ROW_U32("max-rows", &o->max_rows, "N", 1, MAX_ROWS,
                     "leave out products with more rows (the head takes 10 GB at 32768 rows; cpu: "
                     "at most 2048)"),
        ROSE_ROW_U32("repeats", &o->repeats, "N", 1, MAX_REPEATS,
                     "runs of each side, in turn; the medians are reported"),
        ROSE_ROW_U32("rest-ms", &o->kernel.rest_ms, "N", 0, 10000,
                     "idle time before each run, since a GPU at its power limit slows down (cpu: "
                     "at least 2)"),
        ROSE_ROW_FLAG("json", &o->json, "one JSON object on standard output"),
    };
    const rose_command cmd = {
        .usage = "roseinfer bench kernels [options]",
        .about = "GEMMs of GPT-2 (by default 124M) with weights read from memory, ours and the "
                 "vendor's library in\nturn; microseconds a product. cuda: cuBLASLt, the best of 8 "
                 "algorithms, in CUDA graphs of 12\nproducts. cpu: oneDNN's matmul or inner "
                 "product, if oneDNN is installed.",
        .opts = opts,
        .n_opts = sizeof opts / sizeof *opts,
    };
    uint32_t n_args;
    return rose_opts_parse(&cmd, argc, argv, NULL, &n_args);
}

static bool chosen(const options *o, const matrix *m)
{
    return strcmp(o->matrix, "all") == 0 || strcmp(o->matrix, m->name) == 0;
}

/* Reads o->row_list into o->rows. */
static rose_status parse_rows(options *o, rose_err *err)
{
    const char *p = o->row_list;
    for (uint32_t n = 0;; p++) {
        char *end;
        const unsigned long v = *p >= '0' && *p <= '9' ? strtoul(p, &end, 10) : 0;
        if (v < 1 || v > MAX_ROWS || (*end != ',' && *end != '\0') || n++ == MAX_POINTS)
            return rose_fail(err, ROSE_E_INVAL,
                             "--rows '%s': expected up to %d numbers from 1 to %d, as 1,256",
                             o->row_list, MAX_POINTS, MAX_ROWS);
        for (uint32_t i = 0; i < o->n_rows; i++)
            if (o->rows[i] == v)
                return rose_fail(err, ROSE_E_INVAL, "--rows '%s': %lu twice", o->row_list, v);
        if (v <= o->max_rows) o->rows[o->n_rows++] = (uint32_t)v;
        if (*(p = end) == '\0') break;
    }
    return o->n_rows > 0 ? ROSE_OK
                         : rose_fail(err, ROSE_E_INVAL, "--rows '%s': all numbers are above %u",
                                     o->row_list, o->max_rows);
}

/* Medians over the repeats, in microseconds for one product; 0 for a side that does not exist. */
typedef struct times {
    double us[ROSE_KERNEL_SIDES];
    const char *same;
} times;

/* The sides take turns, so a drift of the machine's speed affects all of them. */
static rose_status measure(rose_kernel_bench *b, const rose_kernel_shape *s, uint32_t repeats,
                           times *out, rose_err *err)
{
    static double us[ROSE_KERNEL_SIDES][MAX_REPEATS];
    rose_kernel_sides sides;
    *out = (times){0};
    rose_status st = b->prepare(b, s, &sides, err);
    for (uint32_t r = 0; r < repeats && st == ROSE_OK; r++)
        for (int i = 0; i < ROSE_KERNEL_SIDES && st == ROSE_OK; i++)
            if (sides.has[i]) st = b->time(b, (rose_kernel_side)i, &us[i][r], err);
    for (int i = 0; i < ROSE_KERNEL_SIDES && st == ROSE_OK; i++) {
        if (!sides.has[i]) continue;
        rose_sort_f64(us[i], repeats);
        out->us[i] = us[i][repeats / 2];
    }
    out->same = sides.same;
    return st;
}

static void print_json(const char *name, const rose_kernel_shape *m, const times *t, double tflops,
                       bool first)
{
    const double own = t->us[ROSE_KERNEL_OWN], library = t->us[ROSE_KERNEL_LIBRARY],
                 same = t->us[ROSE_KERNEL_LIBRARY_SAME];
    printf("%s\n  {\"matrix\": \"%s\", \"n_out\": %u, \"n_in\": %u, \"rows\": %u, "
           "\"own_us\": %.3f, ",
           first ? "" : ",", name, m->n_out, m->n_in, m->rows, own);
    if (library > 0)
        printf("\"library_us\": %.3f, \"library_over_own\": %.3f, ", library, library / own);
    else
        fputs("\"library_us\": null, \"library_over_own\": null, ", stdout);
    printf("\"own_tflops\": %.3f", tflops);
    if (t->same != NULL)
        printf(", \"library_same\": \"%s\", \"library_same_us\": %.3f, "
               "\"library_same_over_own\": %.3f",
               t->same, same, same / own);
    fputs("}", stdout);
}

static void print_line(const char *name, const rose_kernel_shape *m, const times *t, double tflops)
{
    const double own = t->us[ROSE_KERNEL_OWN], library = t->us[ROSE_KERNEL_LIBRARY],
                 same = t->us[ROSE_KERNEL_LIBRARY_SAME];
    printf("%-5s %5u x %-4u %6u rows  %9.2f us", name, m->n_out, m->n_in, m->rows, own);
    if (library > 0)
        printf("  %9.2f us  %5.2f", library, library / own);
    else
        printf("  %12s  %5s", "-", "-");
    printf("  %7.1f", tflops);
    if (t->same != NULL) printf("  %9.2f us  %5.2f  %s", same, same / own, t->same);
    puts("");
}

static void print_one(const options *o, const char *name, const rose_kernel_shape *m,
                      const times *t, bool first)
{
    const double tflops = 2.0 * m->rows * m->n_out * m->n_in / t->us[ROSE_KERNEL_OWN] * 1e-6;
    if (o->json)
        print_json(name, m, t, tflops, first);
    else
        print_line(name, m, t, tflops);
    fflush(stdout);
}

/* Prints the time of one row through all layers and the head of GPT-2 124M, added up from the
 * measured GEMMs. Also prints the least time in which the weights could be read. */
static void print_floor(const options *o, const rose_machine *m, double own_us, uint64_t bytes)
{
    const double floor_us = rose_floor_ms(m, bytes) * 1e3;
    if (o->json)
        printf(",\n\"one_row\": {\"weight_bytes\": %" PRIu64 ", \"own_us\": %.1f, "
               "\"floor_us\": %.1f, \"own_over_floor\": %.3f}",
               bytes, own_us, floor_us, own_us / floor_us);
    else
        printf("one row, %d layers and head, %.1f MB: %.3f ms; at the speed of memory %.3f ms; "
               "ratio %.3f\n",
               N_LAYERS, (double)bytes * 1e-6, own_us * 1e-3, floor_us * 1e-3, own_us / floor_us);
}

static void print_head(const rose_kernel_bench *b, const options *o, const rose_machine *m)
{
    const char *dtype = rose_compute_name(o->kernel.dtype);
    if (o->json) {
        char *machine = NULL;
        rose_json *j = m->n_threads > 0 ? rose_machine_json(m) : NULL;
        if (j != NULL) machine = rose_json_dumps(j, ROSE_JSON_REAL_PRECISION(6));
        printf("{\"bench\": \"kernels\", \"about\": \"%s\", \"dtype\": \"%s\", "
               "\"repeats\": %u, \"rest_ms\": %u, \"machine\": %s,\n\"products\": [",
               b->about, dtype, o->repeats, o->kernel.rest_ms, machine != NULL ? machine : "null");
        free(machine);
        rose_json_decref(j);
        return;
    }
    printf("%s; roseinfer in %s", b->about, dtype);
    if (o->kernel.rest_ms > 0) printf("; %u ms of rest before each run", o->kernel.rest_ms);
    puts("");
    if (m->n_threads > 0) rose_machine_print(stdout, m);
    printf("%-32s %12s %13s  %5s  %s%s\n", "", "roseinfer", b->library, "ratio", "TFLOP/s",
           b->same ? "  same epilogue  ratio  epilogue" : "");
}

/* m describes the CPU; all zero for a GPU. */
static rose_status run(rose_kernel_bench *b, const options *o, const rose_machine *machine,
                       rose_err *err)
{
    rose_status st = ROSE_OK;
    double row_us = 0;
    uint64_t row_bytes = 0;
    uint32_t printed = 0;
    print_head(b, o, machine);
    for (int i = 0; i < N_MATRICES; i++)
        for (uint32_t j = 0; j < o->n_rows && chosen(o, &g_matrices[i]) && st == ROSE_OK; j++) {
            const matrix *m = &g_matrices[i];
            const rose_kernel_shape s = shape_of(o, m, o->rows[j]);
            const uint64_t n_times = m->role == ROSE_N_ROLES ? 1 : N_LAYERS;
            times t;
            st = measure(b, &s, o->repeats, &t, err);
            if (st != ROSE_OK) break;
            print_one(o, m->name, &s, &t, printed++ == 0);
            if (o->rows[j] != 1) continue;
            row_us += (double)n_times * t.us[ROSE_KERNEL_OWN];
            row_bytes += n_times * s.n_out * s.n_in * (o->kernel.dtype == ROSE_COMPUTE_F32 ? 4 : 2);
        }
    if (o->json) printf("\n]");
    if (st == ROSE_OK && machine->n_threads > 0 && row_bytes > 0 && o->width == WIDTH &&
        o->vocab == VOCAB && o->model == NULL && strcmp(o->matrix, "all") == 0)
        print_floor(o, machine, row_us, row_bytes);
    if (o->json) puts("}");
    return st;
}

static rose_compute compute_of(const char *dtype, bool cuda)
{
    if (strcmp(dtype, "float32") == 0) return ROSE_COMPUTE_F32;
    if (strcmp(dtype, "bfloat16") == 0) return ROSE_COMPUTE_BF16;
    if (strcmp(dtype, "float16") == 0) return ROSE_COMPUTE_F16;
    return cuda ? ROSE_COMPUTE_F16 : ROSE_COMPUTE_BF16;
}

int rose_bench_kernels(int argc, char **argv)
{
    options o = {.device = "cpu",
                 .dtype = "auto",
                 .kernel = {.isa = "auto"},
                 .matrix = "all",
                 .load_format = "auto",
                 .width = WIDTH,
                 .vocab = VOCAB,
                 .repeats = 21,
                 .max_rows = MAX_ROWS};
    rose_kernel_shape largest[N_MATRICES];
    uint32_t n_largest = 0, most = 0;
    rose_kernel_bench *b = NULL;
    rose_machine machine = {0};
    int cpus[ROSE_MAX_CPUS];
    rose_err err = {""};

    int rc = parse(argc, argv, &o);
    if (rc >= 0) return rc;
    const bool cuda = strcmp(o.device, "cuda") == 0;
    if (!cuda && o.max_rows > MAX_CPU_ROWS) o.max_rows = MAX_CPU_ROWS;
    if (!cuda && o.kernel.rest_ms < CPU_REST_MS) o.kernel.rest_ms = CPU_REST_MS;
    if (o.row_list == NULL)
        o.row_list = cuda ? "1,2,4,8,16,32,64,128,256,512,640,768,1024,1280,1536,2048,3072,4096,"
                            "8192,32768"
                          : "1,2,4,8,16,32,64,128,256,512,2048";
    if (o.width % 64 != 0 || o.vocab % 64 != 0) {
        const bool width = o.width % 64 != 0;
        rose_fail(&err, ROSE_E_INVAL, "--%s %u: expected a multiple of 64",
                  width ? "width" : "vocab", width ? o.width : o.vocab);
        return rose_die(&err);
    }
    if (parse_rows(&o, &err) != ROSE_OK || read_arch(&o, cuda, &err) != ROSE_OK)
        return rose_die(&err);
    for (uint32_t i = 0; i < o.n_rows; i++)
        if (o.rows[i] > most) most = o.rows[i];
    for (int i = 0; i < N_MATRICES; i++)
        if (chosen(&o, &g_matrices[i])) largest[n_largest++] = shape_of(&o, &g_matrices[i], most);
    o.kernel.largest = largest;
    o.kernel.n_largest = n_largest;
    o.kernel.dtype = compute_of(o.dtype, cuda);
    rose_status st = ROSE_OK;
    if (!cuda) { /* measured before open(), which may pin this thread */
        const uint32_t n_cpus = rose_cpus_allowed(cpus, ROSE_MAX_CPUS);
        const uint32_t n = o.kernel.n_threads > 0 ? o.kernel.n_threads : n_cpus > 0 ? n_cpus : 1;
        /* with threads pinned as the kernels pin them */
        st = rose_machine_measure(&machine, n, cpus, n_cpus, &err);
    }
    if (st == ROSE_OK)
        st = (cuda ? rose_kernel_bench_cuda : rose_kernel_bench_cpu)(&b, &o.kernel, &err);
    if (st == ROSE_OK && b->missing.msg[0] != '\0')
        fprintf(stderr, "roseinfer: the comparison with %s is missing: %s\n", b->library,
                b->missing.msg);
    if (st == ROSE_OK) st = run(b, &o, &machine, &err);
    if (b != NULL) b->close(b);
    return st == ROSE_OK ? 0 : rose_die(&err);
}
