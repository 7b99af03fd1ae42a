/* tests/backend/test_cuda_attention_exact.c - every kernel of attention against sums in double
 * precision on the host, of the same 16-bit (or fp32) values: contexts round the borders of pages
 * and splits and long ones, heads of any width, rows alone and in tiles.
 *
 * u is half a unit in the last place of the type. What a kernel may do to an output is round each
 * probability (by u of itself; in fp16 at least 2^-25 of its split's largest, where it is a
 * denormal) and the result (by u), and compute in fp32. So the output o of probabilities w and
 * values v is at most `bound` away, the sum of all that; and, as roundings do not conspire, the
 * mean square over many outputs is that of independent errors of u^2 / 3 (0.54 of it is expected).
 * The second is the sharper one: it sees a single position of 1000 that is left out.
 * test_would_fail holds that against references which are a little wrong. */
#include <math.h>

#include "backend/cuda_fixture.h"
#include "backend/kv_places.h"
#include "model/convert.h"

enum { N_PAGES = 48, N_HEADS = 4, MAX_ITEMS = 128, MAX_CONTEXT = 1024, TABLE = MAX_CONTEXT / 16 };

typedef struct problem {
    rose_cuda_type type;
    uint32_t head_dim, hd_pad, d, n_items, n_rows;
    rose_cuda_item items[MAX_ITEMS];
    uint32_t tables[MAX_ITEMS * TABLE];
    float *q, *kv; /* what the device has, [n_rows][d] and [pages][heads][K, V][page]; owned */
    float scale;
} problem;

/* What is wrong with the reference: nothing, as a rule. */
typedef struct wrong {
    double scale; /* times the right one */
    int more;     /* positions seen beyond the row's own */
} wrong;

/* ---- types ---- */

static double unit_of(rose_cuda_type t)
{
    return t == ROSE_CUDA_F16 ? 0x1p-11 : t == ROSE_CUDA_BF16 ? 0x1p-8 : 0x1p-24;
}

/* n values as the type has them. */
static void *typed_on_device(rose_cuda_type t, const float *v, size_t n)
{
    if (t == ROSE_CUDA_F32) return fx_to_device(v, n * sizeof *v);
    uint16_t *h = malloc(n * sizeof *h);
    assert_non_null(h);
    for (size_t i = 0; i < n; i++)
        h[i] = fx_16(t, v[i]);
    void *p = fx_to_device(h, n * sizeof *h);
    free(h);
    return p;
}

/* ---- places (layout.cuh) ---- */

static size_t page_block(const problem *p, uint32_t page, uint32_t head)
{
    return ((size_t)page * N_HEADS + head) * 2 * 16 * p->hd_pad;
}

/* ---- problems ---- */

static float *random_values(fx_random *r, rose_cuda_type t, size_t n)
{
    float *v = malloc(n * sizeof *v);
    assert_non_null(v);
    for (size_t i = 0; i < n; i++)
        v[i] = fx_rounded(t, 2 * fx_uniform(r) - 1);
    return v;
}

/* Items whose last row has a context of contexts[i % n]; several rows an item in tiles. Every page
 * is in many tables. */
static problem *make(fx_random *r, rose_cuda_type t, uint32_t head_dim, const uint32_t *contexts,
                     uint32_t n, uint32_t n_items, bool tiles)
{
    problem *p = calloc(1, sizeof *p);
    assert_non_null(p);
    *p =
        (problem){.type = t,
                  .head_dim = head_dim,
                  .hd_pad = rose_cuda_hd_pad(head_dim),
                  .d = N_HEADS * head_dim,
                  .n_items = n_items,
                  .scale = 9 / sqrtf((float)head_dim)}; /* scores of 3, so some weights are large */
    for (uint32_t i = 0; i < n_items; i++) {
        const uint32_t context = contexts[i % n];
        uint32_t rows = tiles ? 1 + fx_below(r, ROSE_CUDA_TILE_ROWS) : 1;
        if (rows > context) rows = context;
        p->items[i] = (rose_cuda_item){p->n_rows, rows, context - rows, i * TABLE};
        p->n_rows += rows;
        for (uint32_t j = 0; j < TABLE; j++)
            p->tables[i * TABLE + j] = fx_below(r, N_PAGES);
    }
    p->q = random_values(r, t, (size_t)p->n_rows * p->d);
    p->kv = random_values(r, t, page_block(p, N_PAGES, 0));
    return p;
}

static void drop(problem *p)
{
    free(p->q);
    free(p->kv);
    free(p);
}

typedef struct way {
    const char *name;
    uint32_t without;
    bool together, beside, plain;
} way;

/* fp32 [n_rows][d]; the caller frees. */
static float *run(const problem *p, const way *w)
{
    const rose_cuda_launch at = {
        .device = fx_gpu(), .type = p->type, .without = w->without, .beside = w->beside};
    const uint32_t k_pad = (p->d + 31) / 32 * 32;
    const size_t n = (size_t)(p->n_rows + 7) / 8 * 8 * k_pad, size = rose_cuda_type_size(p->type);
    void *memory[] = {typed_on_device(p->type, p->q, (size_t)p->n_rows * p->d),
                      typed_on_device(p->type, p->kv, page_block(p, N_PAGES, 0)),
                      fx_to_device(p->items, p->n_items * sizeof *p->items),
                      fx_to_device(p->tables, (size_t)p->n_items * TABLE * sizeof *p->tables),
                      NULL};
    uint8_t *raw = malloc(n * size);
    float *out = calloc((size_t)p->n_rows * p->d, sizeof *out);
    assert_true(raw != NULL && out != NULL);
    memset(raw, 0xff, n * size); /* NaN */
    memory[4] = fx_to_device(raw, n * size);
    const rose_cuda_attention a = {.q = memory[0],
                                   .kv = {.base = memory[1],
                                          .page_elems = page_block(p, 1, 0),
                                          .head_dim = p->head_dim,
                                          .hd_pad = p->hd_pad,
                                          .n_heads = N_HEADS},
                                   .tables = memory[3],
                                   .items = memory[2],
                                   .n_items = p->n_items,
                                   .scale = p->scale,
                                   .out = memory[4],
                                   .out_k_pad = k_pad,
                                   .d = p->d};
    assert_int_equal(w->plain ? rose_cuda_attention_plain(&at, &a)
                              : rose_cuda_attention_run(&at, &a, w->together),
                     cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemcpy(raw, a.out, n * size, cudaMemcpyDeviceToHost), cudaSuccess);
    for (uint32_t row = 0; row < p->n_rows; row++)
        for (uint32_t k = 0; k < p->d; k++) {
            const size_t from = fx_h_at(row, k, k_pad), to = (size_t)row * p->d + k;
            uint16_t h;
            memcpy(&h, raw + from * 2, sizeof h);
            if (p->type == ROSE_CUDA_F32)
                memcpy(&out[to], raw + from * 4, sizeof *out);
            else
                out[to] = p->type == ROSE_CUDA_F16 ? rose_f16_to_f32(h) : rose_bf16_to_f32(h);
        }
    for (int i = 0; i < 5; i++)
        cudaFree(memory[i]);
    free(raw);
    return out;
}

/* ---- the reference ---- */

typedef struct distance {
    double worst;       /* the largest |error| over its bound; NaN counts as infinite */
    double sum, expect; /* of squares: of the errors, and what independent roundings come to */
} distance;

typedef struct row {
    uint32_t n;                                /* positions */
    double w[MAX_CONTEXT], e[MAX_CONTEXT];     /* weights, and the error of each by rounding */
    double f[MAX_CONTEXT], value[MAX_CONTEXT]; /* the error by fp32; V of one dim */
} row;

/* Weights and their errors. */
static void weigh(const problem *p, const rose_cuda_item *it, uint32_t j, uint32_t head,
                  const wrong *x, row *to)
{
    const float *q = p->q + (size_t)(it->row + j) * p->d + (size_t)head * p->head_dim;
    const double u = unit_of(p->type);
    double s[MAX_CONTEXT], most = -(double)INFINITY, split_most[TABLE / 2], sum = 0;
    to->n = (uint32_t)((int)(it->pos + j + 1) + x->more);
    for (uint32_t i = 0; i < to->n; i++) {
        const float *k = p->kv + page_block(p, p->tables[it->table + i / 16], head);
        double all = 0;
        s[i] = 0;
        for (uint32_t d = 0; d < p->head_dim; d++) {
            const double t = (double)q[d] * (double)k[kv_k_place(i % 16, d)];
            s[i] += t;
            all += fabs(t);
        }
        s[i] *= (double)p->scale * x->scale;
        /* of a sum in fp32, its scaling, and 2^x of it within 2 units */
        to->f[i] = 0x1p-24 * (2 * p->head_dim * all * (double)p->scale * 0.7 + 2 * fabs(s[i]) + 8);
        if (s[i] > most) most = s[i];
        if (i % ROSE_CUDA_SPLIT == 0 || s[i] > split_most[i / ROSE_CUDA_SPLIT])
            split_most[i / ROSE_CUDA_SPLIT] = s[i];
    }
    for (uint32_t i = 0; i < to->n; i++)
        sum += to->w[i] = exp2(s[i] - most);
    for (uint32_t i = 0; i < to->n; i++) {
        const double least = exp2(split_most[i / ROSE_CUDA_SPLIT] - most) / sum * 0x1p-25;
        to->w[i] /= sum;
        to->f[i] *= to->w[i];
        to->e[i] = u * to->w[i];
        if (p->type == ROSE_CUDA_F16 && to->e[i] < least) to->e[i] = least;
    }
}

/* One output: what it should be, and how far from that a kernel may be. */
typedef struct target {
    double o, bound, square;
} target;

static target aim(const problem *p, const row *r)
{
    const double u = unit_of(p->type), splits = r->n / ROSE_CUDA_SPLIT + 1;
    double size = 0;
    target t = {0};
    for (uint32_t i = 0; i < r->n; i++) {
        t.o += r->w[i] * r->value[i];
        size += r->w[i] * fabs(r->value[i]);
    }
    for (uint32_t i = 0; i < r->n; i++) { /* numerator and denominator have the same errors */
        const double off = fabs(r->value[i] - t.o);
        t.bound += (r->e[i] * 1.01 + r->f[i] * 2) * off;
        t.square += r->e[i] * off * (r->e[i] * off) / 3;
    }
    double last = u * fabs(t.o);
    if (p->type == ROSE_CUDA_F16 && last < 0x1p-25) last = 0x1p-25;
    t.bound += last * 1.01 + 0x1p-22 * (ROSE_CUDA_SPLIT + splits) * size;
    t.square += last * last / 3;
    return t;
}

static void hold(const target *t, double got, distance *to)
{
    const double error = isnan(got) ? (double)INFINITY : fabs(got - t->o);
    if (error > to->worst * t->bound) to->worst = error / t->bound;
    to->sum += error * error;
    to->expect += t->square;
}

/* V of one dim. */
static void read_values(const problem *p, const rose_cuda_item *it, uint32_t head, uint32_t d,
                        row *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const uint32_t page = p->tables[it->table + i / 16];
        r->value[i] =
            (double)
                p->kv[page_block(p, page, head) + (size_t)16 * p->hd_pad + kv_v_place(i % 16, d)];
    }
}

/* Adds to[i] of outs[i]. */
static void measure(const problem *p, float *const *outs, int n, const wrong *x, distance *to)
{
    row *r = malloc(sizeof *r);
    assert_non_null(r);
    for (uint32_t i = 0; i < p->n_items; i++)
        for (uint32_t at = 0; at < p->items[i].n_rows * N_HEADS; at++) {
            const uint32_t j = at / N_HEADS, head = at % N_HEADS;
            const rose_cuda_item *it = &p->items[i];
            weigh(p, it, j, head, x, r);
            for (uint32_t d = 0; d < p->head_dim; d++) {
                read_values(p, it, head, d, r);
                const target t = aim(p, r);
                for (int k = 0; k < n; k++)
                    hold(&t, (double)outs[k][(it->row + j) * p->d + head * p->head_dim + d],
                         &to[k]);
            }
        }
    free(r);
}

/* In fp32 the errors that count are those of sums, which are not independent. */
static bool agrees(const problem *p, const distance *x)
{
    return x->worst <= 1 && (p->type == ROSE_CUDA_F32 || x->sum <= x->expect);
}

static const wrong g_right = {1, 0};

/* ---- tests ---- */

/* The last is the one that has fp32. */
static const way g_single[] = {
    {"together", ROSE_CUDA_WITHOUT_AHEAD, true, false, false},
    {"ahead, of many rows", 0, true, false, false},
    {"list", 0, true, true, false},
    {"tiles of one row", ROSE_CUDA_WITHOUT_SPREAD, false, false, false},
    {"plain", 0, true, false, true},
};
static const way g_tiles[] = {
    {"apart", ROSE_CUDA_WITHOUT_SPREAD, false, false, false},
    {"spread", 0, false, false, false},
    {"plain", 0, false, false, true},
};
static const uint32_t g_contexts[] = {1, 15, 16, 17, 31, 32, 33, 2, 288, 64, 1000, 65};
static const uint32_t g_dims[] = {16, 32, 64, 80, 128, 24};

enum {
    N_SINGLE = sizeof g_single / sizeof *g_single,
    N_TILES = sizeof g_tiles / sizeof *g_tiles,
    N_CONTEXTS = sizeof g_contexts / sizeof *g_contexts,
    N_DIMS = sizeof g_dims / sizeof *g_dims
};

static void each_way(const problem *p, bool tiles, distance *most)
{
    const way *ways = tiles ? g_tiles : g_single;
    const int last = (tiles ? N_TILES : N_SINGLE) - 1, first = p->type == ROSE_CUDA_F32 ? last : 0;
    float *outs[N_SINGLE];
    distance x[N_SINGLE] = {0};
    for (int i = first; i <= last; i++)
        outs[i] = run(p, &ways[i]);
    measure(p, outs + first, last + 1 - first, &g_right, x + first);
    for (int i = first; i <= last; i++) {
        if (!agrees(p, &x[i]))
            fail_msg("%s, type %d, %u items, %u rows, heads of %u: at most %.3f of the bound, mean "
                     "square %.3f of what roundings come to",
                     ways[i].name, (int)p->type, p->n_items, p->n_rows, p->head_dim, x[i].worst,
                     x[i].sum / x[i].expect);
        if (x[i].worst > most->worst) most->worst = x[i].worst;
        most->sum += x[i].sum;
        most->expect += x[i].expect;
        free(outs[i]);
    }
}

static void all_shapes(rose_cuda_type t)
{
    /* as many as the kernels for a few, for more and for many rows begin with, at 4 heads */
    static const uint32_t n_single[] = {12, 60, 120};
    fx_random r = {.seed = fx_seed() + 11};
    for (int i = 0; i < N_DIMS; i++) {
        distance most = {0};
        for (int j = 0; j < 3; j++) {
            problem *p = make(&r, t, g_dims[i], g_contexts, N_CONTEXTS, n_single[j], false);
            each_way(p, false, &most);
            drop(p);
        }
        for (int j = 0; j < N_CONTEXTS; j++) {
            problem *p = make(&r, t, g_dims[i], &g_contexts[j], 1, 3, true);
            each_way(p, true, &most);
            drop(p);
        }
        print_message("type %d, heads of %u: at most %.3f of the bound, mean square %.3f of what "
                      "roundings come to\n",
                      (int)t, g_dims[i], most.worst, most.sum / most.expect);
    }
}

static void test_f16(void **state)
{
    (void)state;
    all_shapes(ROSE_CUDA_F16);
}

static void test_bf16(void **state)
{
    (void)state;
    all_shapes(ROSE_CUDA_BF16);
}

static void test_f32(void **state)
{
    (void)state;
    all_shapes(ROSE_CUDA_F32);
}

/* The check sees a scale that is 2 % off, a position too many and one too few. */
static void test_would_fail(void **state)
{
    static const wrong wrongs[] = {{1.02, 0}, {1, 1}, {1, -1}};
    static const uint32_t contexts[] = {17, 32, 288, 1000};
    (void)state;
    fx_random r = {.seed = fx_seed() + 13};
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < 4; i++) {
            problem *p =
                make(&r, t == 0 ? ROSE_CUDA_F16 : ROSE_CUDA_BF16, 64, &contexts[i], 1, 12, false);
            float *out = run(p, &g_single[0]);
            for (int k = 0; k < 3; k++) {
                distance x = {0};
                measure(p, &out, 1, &wrongs[k], &x);
                if (agrees(p, &x))
                    fail_msg("context %u: reference %d is wrong, and it agrees: %.3f", contexts[i],
                             k, x.sum / x.expect);
            }
            free(out);
            drop(p);
        }
}

/* An argument runs the tests whose names match it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_would_fail),
    };
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    if (!fx_use_gpu()) return 77;
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
