/* tests/backend/test_kernels.c - every kernel at every level of this CPU against its scalar
 * definition, bit for bit, and the definitions against double precision.
 *
 * Options: --isa NAME (that level alone; exit 77 if the CPU lacks it), --filter TEXT (tests whose
 * name contains it), --seed N (also ROSE_TEST_SEED), --bench (timings instead of tests). A program
 * of its own without cmocka, so that it links statically and can be carried to a machine with other
 * instructions: cc -std=c11 -D_GNU_SOURCE -O2 -Isrc -Itests -static -pthread -o test_kernels
 * tests/backend/test_kernels.c build/librose_all.a -lm */
#include "kernels_bench.h"
#include "kernels_data.h"

/* The slow builds are about memory and assertions: they run every fourth of the many cases. */
#ifdef ROSE_DEBUG
enum { EVERY = 4 };
#else
enum { EVERY = 1 };
#endif

static int g_checks, g_failures;
static char g_what[256]; /* the case at hand, for messages */

static void check(bool ok, const char *text)
{
    g_checks++;
    if (ok) return;
    if (++g_failures <= 40) fprintf(stderr, "FAIL %s: %s\n", g_what, text);
}

static void check_same(const float *want, const float *got, size_t n, const char *text)
{
    size_t i = first_difference(want, got, n);
    g_checks++;
    if (i == n) return;
    if (++g_failures <= 40)
        fprintf(stderr, "FAIL %s: %s: [%zu] want %.9g (%08x) got %.9g (%08x)\n", g_what, text, i,
                (double)want[i], rose_f32_bits(want[i]), (double)got[i], rose_f32_bits(got[i]));
}

/* ---- matrix product ---- */

enum { N_EPILOGUES = ROSE_EPI_SOFTCAP + 1 };

static const rose_format g_formats[] = {ROSE_F32, ROSE_BF16, ROSE_I8};

typedef struct matmul_case {
    rose_matmul a; /* w, x, bias, scratch are shared by all runs; y is set by each */
    rose_format type;
    guarded w, x, bias, scale, scratch;
    float *y0; /* initial y: what RESIDUAL reads and nothing else may change */
    size_t y_floats;
} matmul_case;

static void case_init(matmul_case *c, rose_format type, uint32_t k, uint32_t n, uint32_t m,
                      data_kind kind, bool gated)
{
    const bool bf16 = type != ROSE_F32;
    uint32_t k_pad = rose_round_up(k, ROSE_K_GROUP);
    *c = (matmul_case){.type = type};
    c->a = (rose_matmul){.k_pad = k_pad, .n = n, .m_rows = m, .gated = gated, .cap = 3.0f};
    const uint32_t columns = gated ? rose_matmul_panels(&c->a) * ROSE_PANEL : n;
    c->a.ldx = k_pad + 16 * rng_below(2);
    c->a.ldy = rose_round_up(n, 16) + 16 * rng_below(2);

    float *w = malloc((size_t)k * columns * sizeof *w);
    if (w == NULL) exit(1);
    fill(w, (size_t)k * columns, kind, bf16);
    for (size_t i = 0; type == ROSE_I8 && i < (size_t)k * columns; i++)
        w[i] = (float)rng_below(255) - 127.0f;
    void *panels = guarded_alloc(&c->w, rose_panels_bytes(type, k, columns));
    pack_panels(panels, type, w, k, columns);
    c->a.w = panels;
    free(w);

    float *x = guarded_alloc(&c->x, m * c->a.ldx * sizeof(float)); /* past k_pad: poison */
    for (uint32_t r = 0; r < m; r++) {
        fill(x + r * c->a.ldx, k, kind, bf16);
        memset(x + r * c->a.ldx + k, 0, (k_pad - k) * sizeof(float));
    }
    c->a.x = x;
    float *bias = guarded_alloc(&c->bias, columns * sizeof(float));
    fill(bias, columns, kind, false);
    c->a.bias = rng_below(4) == 0 ? NULL : bias;
    float *scale = guarded_alloc(&c->scale, columns * sizeof(float));
    fill(scale, columns, kind, false);
    c->a.scale = type == ROSE_I8 ? scale : NULL;
    c->a.scratch = guarded_alloc(&c->scratch, rose_matmul_scratch(k_pad));

    c->y_floats = m * c->a.ldy;
    c->y0 = malloc(c->y_floats * sizeof *c->y0);
    if (c->y0 == NULL) exit(1);
    memset(c->y0, POISON, c->y_floats * sizeof *c->y0);
    for (uint32_t r = 0; r < m; r++)
        fill(c->y0 + r * c->a.ldy, n, kind, false);
}

/* Any epilogue; a gated product has an activation. */
static void case_epilogue(matmul_case *c, uint32_t which)
{
    c->a.epilogue = (rose_epilogue)(which % (c->a.gated ? ROSE_EPI_RESIDUAL : N_EPILOGUES));
}

static void case_free(matmul_case *c)
{
    check(guarded_ok(&c->scratch), "scratch overrun");
    guarded_free(&c->w);
    guarded_free(&c->x);
    guarded_free(&c->bias);
    guarded_free(&c->scale);
    guarded_free(&c->scratch);
    free(c->y0);
}

static rose_matmul_fn *kernel_of(const rose_cpu_kernels *t, rose_format type)
{
    return t->matmul[type];
}

/* Runs rows [m0, m0 + m) and panels [p0, p1) from y0 into a fresh guarded y. */
static float *case_run(const matmul_case *c, const rose_cpu_kernels *t, guarded *y, uint32_t m0,
                       uint32_t m, uint32_t p0, uint32_t p1)
{
    rose_matmul a = c->a;
    a.m_rows = m;
    a.x += m0 * a.ldx;
    a.y = guarded_alloc(y, m * a.ldy * sizeof(float));
    memcpy(a.y, c->y0 + m0 * a.ldy, m * a.ldy * sizeof(float));
    memset(a.scratch, 0xff, c->scratch.bytes); /* NaN left by whoever used it before */
    kernel_of(t, c->type)(&a, p0, p1);
    return a.y;
}

static void matmul_against_ref(const matmul_case *c, const rose_cpu_kernels *ref,
                               const rose_cpu_kernels *t)
{
    uint32_t m = c->a.m_rows, n_panels = rose_matmul_panels(&c->a);
    guarded want_mem, got_mem;
    float *want = case_run(c, ref, &want_mem, 0, m, 0, n_panels);
    float *got = case_run(c, t, &got_mem, 0, m, 0, n_panels);
    check_same(want, got, c->y_floats, "all rows and panels");
    check(guarded_free(&got_mem), "wrote outside of y");

    uint32_t row = rng_below(m); /* a row alone is the row in the batch */
    got = case_run(c, t, &got_mem, row, 1, 0, n_panels);
    check_same(want + row * c->a.ldy, got, c->a.ldy, "one row alone");
    check(guarded_free(&got_mem), "wrote outside of y (one row)");
    check(guarded_free(&want_mem), "reference wrote outside of y");

    uint32_t p0 = rng_below(n_panels + 1), p1 = p0 + rng_below(n_panels - p0 + 1);
    if (c->a.gated) p0 &= ~1u, p1 &= ~1u;
    want = case_run(c, ref, &want_mem, 0, m, p0, p1);
    got = case_run(c, t, &got_mem, 0, m, p0, p1);
    check_same(want, got, c->y_floats, "a range of panels");
    check(guarded_free(&got_mem), "wrote outside of y (range)");
    guarded_free(&want_mem);
}

/* Whether a lower level that has run has the same kernel. */
static bool tried(rose_matmul_fn *kernel)
{
    static rose_matmul_fn *kernels[3 * (ROSE_ISA_AVX512_BF16 + 1)];
    static int n;
    for (int i = 0; i < n; i++)
        if (kernels[i] == kernel) return true;
    kernels[n++] = kernel;
    return false;
}

/* A deep product takes the same ways through rows and columns as a shallow one: few of both do. */
static bool in_the_grid(uint32_t k, uint32_t n, uint32_t m)
{
    if (k > 288 && m > 17 && (m != 133 || n % 16 != 1)) return false;
    if (k > 768 && n > 48) return false;
    return n <= 100 || m % 16 != 0;
}

static void test_matmul(const rose_cpu_kernels *ref, const rose_cpu_kernels *t, rose_format type)
{
    static const char *const names[] = {[ROSE_F32] = "f32", [ROSE_BF16] = "bf16", [ROSE_I8] = "i8"};
    const bool bf16 = type != ROSE_F32;
    static const uint32_t ks[] = {1, 15, 31, 32, 33, 64, 96, 288, 768, 3072};
    static const uint32_t ns[] = {1, 15, 16, 17, 48, 100, 272};
    static const uint32_t ms[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  15,
                                  16, 17, 31, 33, 64, 65, 66, 67, 133};
    uint32_t count = rng_below(1000);

    if (tried(kernel_of(t, type))) return;
    for (size_t ik = 0; ik < sizeof ks / sizeof *ks; ik++) {
        for (size_t in = 0; in < sizeof ns / sizeof *ns; in++) {
            for (size_t im = 0; im < sizeof ms / sizeof *ms; im++, count++) {
                if (!in_the_grid(ks[ik], ns[in], ms[im]) || count % EVERY != 0) continue;
                data_kind kind = (data_kind)(count % N_DATA_KINDS);
                matmul_case c;
                case_init(&c, type, ks[ik], ns[in], ms[im], kind, rng_below(4) == 0);
                case_epilogue(&c, count / N_DATA_KINDS);
                c.a.round_bf16 = bf16 && c.a.epilogue != ROSE_EPI_RESIDUAL && rng_below(2) == 0;
                snprintf(g_what, sizeof g_what, "%s matmul %s k %u n %u m %u %s epilogue %d%s",
                         rose_isa_name(t->isa), names[type], ks[ik], ns[in], ms[im],
                         g_kind_names[kind], (int)c.a.epilogue, c.a.gated ? " gated" : "");
                matmul_against_ref(&c, ref, t);
                case_free(&c);
            }
        }
    }
}

/* Few rows go several panels at a time: every number of them, from every first, and depths at which
 * the prefetch turns to the next ones at once, late or never. */
static void test_few_rows(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    static const uint32_t ks[] = {20, 32, 64, 96, 288}, ms[] = {1, 2, 8, 16};
    enum { MOST = 27 };
    for (uint32_t n_panels = 1; n_panels <= MOST; n_panels++) {
        for (uint32_t i = 0; i < 12; i++) {
            const uint32_t k = ks[rng_below(5)], m = ms[i % 4];
            const rose_format type = g_formats[i % 3];
            const uint32_t n = n_panels * ROSE_PANEL - rng_below(3) * 5;
            matmul_case c;
            case_init(&c, type, k, n, m, (data_kind)(i % N_DATA_KINDS), rng_below(3) == 0);
            case_epilogue(&c, rng_below(N_EPILOGUES));
            snprintf(g_what, sizeof g_what, "%s few rows type %d k %u n %u m %u",
                     rose_isa_name(t->isa), (int)type, k, n, m);
            matmul_against_ref(&c, ref, t);
            case_free(&c);
        }
    }
}

/* Cut among threads, as the engine does it, rows and panels of every thread add up to the whole. */
static void test_share(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    static const uint32_t threads[] = {1, 2, 3, 4, 6, 7, 16, 33};
    /* deep ones: several passes of rows over tiles of a bounded size, and the least such size */
    static const uint32_t deep[][2] = {
        {3072, 129}, {3072, 161}, {2900, 300}, {6432, 65}, {6432, 97}};
    enum { N_DEEP = 15 };
    for (uint32_t i = 0; i < 72 + N_DEEP; i++) {
        const bool is_deep = i < N_DEEP;
        if (i / 3 % EVERY != 0) continue;
        const rose_format type = g_formats[i % 3];
        const uint32_t n_threads = threads[rng_below(is_deep ? 3 : 8)];
        const uint32_t k = is_deep ? deep[i / 3][0] : 1 + rng_below(i % 11 == 7 ? 3000 : 70);
        const uint32_t m = is_deep      ? deep[i / 3][1]
                           : k > 70     ? 1 + rng_below(150)
                           : i % 4 == 0 ? 1 + rng_below(1100)
                                        : 1 + rng_below(130);
        const uint32_t n = is_deep ? 41 + rng_below(8) : 1 + rng_below(m > 130 ? 100 : 300);
        matmul_case c;
        guarded want_mem, got_mem;
        case_init(&c, type, k, n, m, DATA_NORMAL, rng_below(3) == 0);
        case_epilogue(&c, rng_below(N_EPILOGUES));
        snprintf(g_what, sizeof g_what, "%s share of %u, type %d k %u n %u m %u",
                 rose_isa_name(t->isa), n_threads, (int)type, k, n, m);
        float *want = case_run(&c, ref, &want_mem, 0, m, 0, rose_matmul_panels(&c.a));
        rose_matmul a = c.a;
        a.y = guarded_alloc(&got_mem, m * a.ldy * sizeof(float));
        memcpy(a.y, c.y0, m * a.ldy * sizeof(float));
        for (uint32_t tid = 0; tid < n_threads; tid++) {
            memset(a.scratch, 0xff, c.scratch.bytes); /* each has its own */
            rose_cpu_matmul_share(kernel_of(t, type), &a, tid, n_threads);
        }
        check_same(want, a.y, c.y_floats, "all threads");
        check(guarded_free(&got_mem), "wrote outside of y");
        guarded_free(&want_mem);
        case_free(&c);
    }
}

static void test_matmul_f32(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    test_matmul(ref, t, ROSE_F32);
}

static void test_matmul_bf16(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    test_matmul(ref, t, ROSE_BF16);
}

static void test_matmul_i8(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    test_matmul(ref, t, ROSE_I8);
}

/* Weight 1 makes the product the identity: each activation over the whole range of floats. */
static void test_activation(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    for (int epi = ROSE_EPI_NONE; epi < N_EPILOGUES; epi++) {
        for (uint64_t start = 0; start <= UINT32_MAX; start += (uint64_t)EVERY << 27) {
            matmul_case c;
            case_init(&c, ROSE_F32, 1, 100, 40, DATA_NORMAL, false);
            c.a.bias = NULL;
            c.a.epilogue = (rose_epilogue)epi;
            c.a.round_bf16 = epi != ROSE_EPI_RESIDUAL && start % 2 == 0;
            float *w = (float *)(uintptr_t)c.a.w, *x = (float *)(uintptr_t)c.a.x;
            for (uint32_t p = 0; p < 7; p++) {
                for (uint32_t l = 0; l < 16; l++)
                    w[p * 512 + l] = rose_f32_from_bits(0x3f800000u + rng_below(1u << 23));
            }
            for (uint32_t r = 0; r < 40; r++)
                x[r * c.a.ldx] = rose_f32_from_bits((uint32_t)start + rng_below(1u << 27));
            snprintf(g_what, sizeof g_what, "%s activation %d bits from %08x",
                     rose_isa_name(t->isa), epi, (uint32_t)start);
            matmul_against_ref(&c, ref, t);
            case_free(&c);
        }
    }
}

/* ---- attention ---- */

enum { ATT_HEADS = 2, ATT_PAGES = 40 };

typedef struct attention_case {
    rose_attention a;
    uint32_t n_max; /* keys of the last row */
    float *k, *v;   /* [n_max][head_dim] */
    float *q;
    uint8_t *pool; /* [ATT_PAGES][ATT_HEADS] head blocks */
    uint32_t pages[ATT_PAGES];
    guarded pool_mem, scratch;
} attention_case;

static uint8_t *slot_block(const attention_case *c, uint32_t pos)
{
    return (uint8_t *)(uintptr_t)c->a.kv + (size_t)c->pages[pos / 16] * c->a.page_stride;
}

/* Every page full of NaN, whatever the dtype. */
static void pool_reset(attention_case *c)
{
    memset(c->pool, 0xff, c->pool_mem.bytes);
}

static void pool_append(const attention_case *c, const rose_cpu_kernels *t, uint32_t from,
                        uint32_t to)
{
    for (uint32_t pos = from; pos < to; pos++) {
        t->kv_append(slot_block(c, pos), pos % 16, c->k + (size_t)pos * c->a.head_dim,
                     c->v + (size_t)pos * c->a.head_dim, c->a.head_dim, c->a.bf16);
    }
}

/* rows: tokens times n_heads. */
static void attention_init(attention_case *c, bool bf16, uint32_t n_ctx, uint32_t n_heads,
                           uint32_t rows, uint32_t head_dim, data_kind kind)
{
    const uint32_t tokens = rows / n_heads;
    *c = (attention_case){.n_max = n_ctx + tokens - 1};
    size_t block = rose_kv_head_bytes(bf16, head_dim);
    c->a = (rose_attention){.n_rows = rows, .n_ctx = n_ctx, .head_dim = head_dim, .bf16 = bf16};
    c->a.n_heads = n_heads;
    c->a.scale = 1.0f / sqrtf((float)head_dim);
    c->a.ldq = n_heads * head_dim + rng_below(40);
    c->a.ldo = n_heads * head_dim + rng_below(40);
    c->a.page_stride = block * ATT_HEADS;
    c->pool = guarded_alloc(&c->pool_mem, c->a.page_stride * ATT_PAGES);
    c->a.kv = c->pool + block * rng_below(ATT_HEADS);
    for (uint32_t i = 0; i < ATT_PAGES; i++)
        c->pages[i] = i;
    for (uint32_t i = ATT_PAGES - 1; i > 0; i--) {
        uint32_t j = rng_below(i + 1), swap = c->pages[i];
        c->pages[i] = c->pages[j];
        c->pages[j] = swap;
    }
    for (uint32_t i = (c->n_max + 15) / 16; i < ATT_PAGES; i++)
        c->pages[i] = UINT32_MAX;
    c->a.pages = c->pages;

    size_t kv = (size_t)c->n_max * head_dim;
    c->k = malloc(kv * sizeof(float));
    c->v = malloc(kv * sizeof(float));
    c->q = malloc(tokens * c->a.ldq * sizeof(float));
    if (c->k == NULL || c->v == NULL || c->q == NULL) exit(1);
    fill(c->k, kv, kind, false);
    fill(c->v, kv, kind, false);
    fill(c->q, tokens * c->a.ldq, kind, bf16);
    c->a.q = c->q;
    c->a.scratch = guarded_alloc(&c->scratch, rose_attention_scratch(c->n_max, head_dim));
    pool_reset(c);
}

static void attention_free(attention_case *c)
{
    check(guarded_free(&c->scratch), "scratch overrun");
    check(guarded_free(&c->pool_mem), "pool overrun");
    free(c->k);
    free(c->v);
    free(c->q);
}

/* All rows, into a fresh guarded out of their layout; or row `one` alone, as the only head. */
static float *attention_run(attention_case *c, const rose_cpu_kernels *t, guarded *mem, int one)
{
    rose_attention a = c->a;
    if (one >= 0) {
        a.q = rose_row_q(&c->a, (uint32_t)one);
        a.n_ctx = rose_row_end(&c->a, (uint32_t)one);
        a.n_rows = a.n_heads = 1;
    }
    const size_t out = one >= 0 ? a.head_dim : a.n_rows / a.n_heads * a.ldo;
    a.out = guarded_alloc(mem, out * sizeof(float));
    if (rng_below(2) == 0) { /* a hint: it changes nothing */
        a.next_kv = c->pool;
        a.next_pages = c->pages;
        a.next_n_pages = 1 + rng_below((c->n_max + 15) / 16);
    }
    memset(a.scratch, 0xff, c->scratch.bytes); /* NaN left by whoever used it before */
    t->attention(&a);
    return a.out;
}

/* The same page bytes from both appends; the same output; and each row alone, with nothing written
 * outside of its own positions, equal to the row in the batch. */
static void attention_against_ref(attention_case *c, const rose_cpu_kernels *ref,
                                  const rose_cpu_kernels *t)
{
    guarded want_mem, got_mem;
    uint8_t *want_pool = malloc(c->pool_mem.bytes);
    if (want_pool == NULL) exit(1);
    pool_append(c, ref, 0, c->n_max);
    memcpy(want_pool, c->pool, c->pool_mem.bytes);
    pool_reset(c);
    pool_append(c, t, 0, c->n_max);
    check(memcmp(want_pool, c->pool, c->pool_mem.bytes) == 0, "kv_append bytes");
    memcpy(c->pool, want_pool, c->pool_mem.bytes);
    free(want_pool);

    float *want = attention_run(c, ref, &want_mem, -1), *got = attention_run(c, t, &got_mem, -1);
    check_same(want, got, c->a.n_rows / c->a.n_heads * c->a.ldo, "rows together");
    check(guarded_free(&got_mem), "wrote outside of out");

    for (uint32_t r = 0; r < c->a.n_rows; r++) {
        rose_attention place = c->a;
        place.out = want;
        pool_reset(c);
        pool_append(c, t, rose_row_first(&c->a, r), rose_row_end(&c->a, r));
        got = attention_run(c, t, &got_mem, (int)r);
        check_same(rose_row_out(&place, r), got, c->a.head_dim, "a row alone");
        check(guarded_free(&got_mem), "wrote outside of out (one row)");
    }
    check(guarded_free(&want_mem), "reference wrote outside of out");
}

static void attention_case_run(const rose_cpu_kernels *ref, const rose_cpu_kernels *t, bool bf16,
                               uint32_t n_ctx, uint32_t rows, uint32_t head_dim, data_kind kind)
{
    attention_case c;
    attention_init(&c, bf16, n_ctx, 1, rows, head_dim, kind);
    snprintf(g_what, sizeof g_what, "%s attention %s n_ctx %u rows %u head_dim %u %s",
             rose_isa_name(t->isa), bf16 ? "bf16" : "f32", n_ctx, rows, head_dim,
             g_kind_names[kind]);
    attention_against_ref(&c, ref, t);
    attention_free(&c);
}

static void test_attention(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    static const uint32_t dims[] = {1, 8, 16, 20, 64, 80, 128, 256};
    uint32_t count = rng_below(1000);
    for (uint32_t n_ctx = 1; n_ctx <= 70; n_ctx++) {
        for (size_t i = 0; i < sizeof dims / sizeof *dims; i++, count++) {
            if ((n_ctx + i) % EVERY != 0) continue;
            uint32_t rows = i == n_ctx % 8 ? 1 + n_ctx % 16 : 1 + count % 5;
            attention_case_run(ref, t, count % 2 == 0, n_ctx, rows, dims[i],
                               (data_kind)(count / 2 % N_DATA_KINDS));
        }
    }
    for (uint32_t rows = 1; rows <= 16; rows++, count++) {
        attention_case_run(ref, t, true, 500, rows, 64, DATA_NORMAL);
        attention_case_run(ref, t, false, 17 + rows, rows, 64, DATA_NORMAL);
        attention_case_run(ref, t, rows % 2 == 0, 500, rows, dims[rows % 8],
                           (data_kind)(count % N_DATA_KINDS));
    }
}

/* Heads that share keys, windows and soft caps, in all combinations. */
static void test_attention_shared(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    static const uint32_t dims[] = {16, 48, 64, 80, 96, 128, 256};
    static const uint32_t heads[] = {1, 2, 3, 4, 6, 7, 8, 16};
    static const uint32_t windows[] = {0, 1, 2, 15, 16, 17, 31, 32, 33, 50, 64, 100};
    for (uint32_t i = 0; i < 1200 / EVERY; i++) {
        const uint32_t n_heads = heads[rng_below(8)], n_ctx = 1 + rng_below(i % 9 == 0 ? 500 : 120);
        const uint32_t rows = n_heads * (1 + rng_below(ROSE_ROW_TILE / n_heads));
        const data_kind kind = i % 2 == 0 ? DATA_NORMAL : (data_kind)rng_below(N_DATA_KINDS);
        attention_case c;
        attention_init(&c, i % 3 != 0, n_ctx, n_heads, rows, dims[rng_below(7)], kind);
        c.a.window = windows[rng_below(12)];
        c.a.cap = rng_below(3) == 0 ? 1.0f + 50.0f * rng_uniform() : 0.0f;
        snprintf(g_what, sizeof g_what,
                 "%s attention %s n_ctx %u heads %u rows %u head_dim %u window %u cap %g %s",
                 rose_isa_name(t->isa), c.a.bf16 ? "bf16" : "f32", n_ctx, n_heads, rows,
                 c.a.head_dim, c.a.window, (double)c.a.cap, g_kind_names[kind]);
        attention_against_ref(&c, ref, t);
        attention_free(&c);
    }
}

/* A chain that FTZ has driven to -0 meets padding: only there does the +0 that padding adds show.
 * p is 1 at positions 0 .. 63 and e^-7 at 64 and 65. Sums: 1.5 m, then -0.25 m = -0 (m the smallest
 * normal), then a group of two chains that underflow to -0, padded to +0. */
static void test_signed_zero(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    for (uint32_t n_ctx = 65; n_ctx <= 96; n_ctx++) {
        attention_case c;
        attention_init(&c, n_ctx % 2 == 0, n_ctx, 1, 1, 1, DATA_NORMAL);
        for (uint32_t j = 0; j < n_ctx; j++) {
            c.k[j] = j < 64 ? 0.0f : -7.0f;
            c.v[j] = j < 64 ? 0.0f : -0x1p-126f;
        }
        c.q[0] = 1.0f;
        c.v[0] = 0x1.8p-126f;
        c.v[32] = -0x1.cp-126f;
        pool_append(&c, ref, 0, n_ctx);
        guarded want_mem, got_mem;
        float *want = attention_run(&c, ref, &want_mem, -1);
        float *got = attention_run(&c, t, &got_mem, -1);
        snprintf(g_what, sizeof g_what, "%s signed zero n_ctx %u", rose_isa_name(t->isa), n_ctx);
        bool pairs = t->isa == ROSE_ISA_AVX512_BF16 && c.a.bf16; /* another order: below */
        check(pairs || (want[0] == 0.0f && (signbit(want[0]) != 0) == (n_ctx == 96)),
              "only padding clears the sign");
        check_same(want, got, 1, "attention");
        guarded_free(&want_mem);
        guarded_free(&got_mem);
        attention_free(&c);
    }

    float x[33] = {0}, w[33], b[33], want[33], got[33]; /* every lane's sum is -0, so is the mean */
    for (int i = 0; i < 33; i++) {
        x[i] = i < 16 ? 0x1.8p-126f : i < 32 ? -0x1.cp-126f : -0.0f;
        w[i] = 1.0f;
        b[i] = -0.0f;
    }
    ref->layernorm(x, w, b, 1e-5f, 33, false, want);
    t->layernorm(x, w, b, 1e-5f, 33, false, got);
    snprintf(g_what, sizeof g_what, "%s signed zero", rose_isa_name(t->isa));
    check(want[32] == 0.0f && !signbit(want[32]), "-0 minus a mean of -0");
    check_same(want, got, 33, "layernorm");
}

/* The same for rule 11: a first pair leaves -0 (its odd member 1.5 m, then -1.75 m), -0 follows it,
 * and only the zeros that fill a half pair clear the sign. */
static void test_signed_zero_pairs(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    if (t->isa != ROSE_ISA_AVX512_BF16) return;
    for (uint32_t n_ctx = 2; n_ctx <= 96; n_ctx++) {
        attention_case c;
        attention_init(&c, true, n_ctx, 1, 1, 1, DATA_NORMAL);
        for (uint32_t j = 0; j < n_ctx; j++) {
            c.k[j] = 0.0f;
            c.v[j] = -0.0f;
        }
        c.v[0] = -0x1.cp-126f;
        c.v[1] = 0x1.8p-126f;
        pool_append(&c, ref, 0, n_ctx);
        guarded want_mem, got_mem;
        float *want = attention_run(&c, ref, &want_mem, -1);
        float *got = attention_run(&c, t, &got_mem, -1);
        snprintf(g_what, sizeof g_what, "%s signed zero n_ctx %u", rose_isa_name(t->isa), n_ctx);
        check(want[0] == 0.0f && (signbit(want[0]) != 0) == (n_ctx % 2 == 0),
              "a half pair clears the sign");
        check_same(want, got, 1, "attention");
        guarded_free(&want_mem);
        guarded_free(&got_mem);
        attention_free(&c);
    }
}

/* ---- norm, argmax, exp ---- */

static void test_layernorm(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    static const uint32_t ds[] = {1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 100, 768, 769, 1600};
    for (size_t i = 0; i < sizeof ds / sizeof *ds * N_DATA_KINDS * 2; i++) {
        uint32_t d = ds[i / (N_DATA_KINDS * 2)];
        data_kind kind = (data_kind)(i / 2 % N_DATA_KINDS);
        guarded mem[5];
        float *p[5]; /* x, w, b, want, got */
        for (int j = 0; j < 5; j++)
            p[j] = guarded_alloc(&mem[j], d * sizeof(float));
        for (int j = 0; j < 3; j++)
            fill(p[j], d, kind, false);
        if (rng_below(4) == 0) {
            for (uint32_t j = 0; j < d; j++)
                p[0][j] = -0.0f; /* a sum of -0 is +0 */
            memset(p[2], 0, d * sizeof(float));
        }
        ref->layernorm(p[0], p[1], p[2], 1e-5f, d, i % 2 == 0, p[3]);
        t->layernorm(p[0], p[1], p[2], 1e-5f, d, i % 2 == 0, p[4]);
        snprintf(g_what, sizeof g_what, "%s layernorm d %u %s", rose_isa_name(t->isa), d,
                 g_kind_names[kind]);
        check_same(p[3], p[4], d, "y");
        t->layernorm(p[0], p[1], p[2], 1e-5f, d, i % 2 == 0, p[0]);
        check_same(p[3], p[0], d, "in place");
        for (int j = 0; j < 5; j++)
            check(guarded_free(&mem[j]), "wrote outside of y");
    }
}

static void test_rmsnorm(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    static const uint32_t ds[] = {1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 80, 128, 576, 769, 1600};
    for (size_t i = 0; i < sizeof ds / sizeof *ds * N_DATA_KINDS * 2; i++) {
        uint32_t d = ds[i / (N_DATA_KINDS * 2)];
        data_kind kind = (data_kind)(i / 2 % N_DATA_KINDS);
        guarded mem[4];
        float *p[4]; /* x, w, want, got */
        for (int j = 0; j < 4; j++)
            p[j] = guarded_alloc(&mem[j], d * sizeof(float));
        fill(p[0], d, kind, false);
        fill(p[1], d, kind, false);
        ref->rmsnorm(p[0], p[1], 1e-6f, d, i % 2 == 0, p[2]);
        t->rmsnorm(p[0], p[1], 1e-6f, d, i % 2 == 0, p[3]);
        snprintf(g_what, sizeof g_what, "%s rmsnorm d %u %s", rose_isa_name(t->isa), d,
                 g_kind_names[kind]);
        check_same(p[2], p[3], d, "y");
        t->rmsnorm(p[0], p[1], 1e-6f, d, i % 2 == 0, p[0]);
        check_same(p[2], p[0], d, "in place");
        for (int j = 0; j < 4; j++)
            check(guarded_free(&mem[j]), "wrote outside of y");
    }
}

static void test_rope(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    static const uint32_t dims[][2] = {{2, 2},     {16, 16},   {16, 4},   {48, 48}, {64, 64},
                                       {64, 16},   {80, 80},   {80, 20},  {96, 72}, {128, 30},
                                       {128, 128}, {256, 256}, {256, 64}, {32, 0}};
    for (uint32_t i = 0; i < sizeof dims / sizeof *dims * N_DATA_KINDS * 2; i++) {
        const uint32_t n = dims[i / (N_DATA_KINDS * 2)][0],
                       half = dims[i / (N_DATA_KINDS * 2)][1] / 2;
        const data_kind kind = (data_kind)(i / 2 % N_DATA_KINDS);
        guarded mem[4];
        float *p[4]; /* want, got, cos, sin */
        for (int j = 0; j < 4; j++) {
            const uint32_t size = j < 2 ? n : half;
            p[j] = guarded_alloc(&mem[j], size * sizeof(float));
            fill(p[j], size, kind, false);
        }
        memcpy(p[1], p[0], n * sizeof(float));
        ref->rope(p[0], p[2], p[3], half, n, i % 2 == 0);
        t->rope(p[1], p[2], p[3], half, n, i % 2 == 0);
        snprintf(g_what, sizeof g_what, "%s rope %u of %u %s", rose_isa_name(t->isa), 2 * half, n,
                 g_kind_names[kind]);
        check_same(p[0], p[1], n, "x");
        for (int j = 0; j < 4; j++)
            check(guarded_free(&mem[j]), "wrote outside of x");
    }
}

static void max_index_case(const rose_cpu_kernels *ref, const rose_cpu_kernels *t, const float *x,
                           uint32_t n)
{
    uint32_t want_at = 77, got_at = 78;
    float want = ref->max_index(x, n, &want_at), got = t->max_index(x, n, &got_at);
    check(same_float(want, got) && want_at == got_at, "value and index");
    check(want_at < n && (same_float(x[want_at], want) || want == -INFINITY), "value is there");
}

static void test_max_index(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    static float x[50257];
    for (uint32_t i = 0; i < 600; i++) {
        uint32_t n = i < 590 ? 1 + i % 60 : 50257 - i % 3;
        snprintf(g_what, sizeof g_what, "%s max_index n %u case %u", rose_isa_name(t->isa), n, i);
        fill(x, n, (data_kind)(i % N_DATA_KINDS), i % 4 == 1);
        if (i % 5 == 0) {
            for (uint32_t j = 0; j < n; j++)
                x[j] = (float)rng_below(3) - 1.0f; /* ties */
        } else if (i % 7 == 0) {
            for (uint32_t j = 0; j < n; j++)
                x[j] = rng_below(2) == 0 ? NAN : -INFINITY;
        } else if (i % 11 == 0) {
            for (uint32_t j = 0; j < n; j++)
                x[j] = rng_below(9) == 0 ? -1.0f : rng_special();
        }
        max_index_case(ref, t, x, n);
    }
}

static void test_exp_weights(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    enum { N = 1 << 20 };
    float *x = malloc(3 * N * sizeof *x), *want = x + N, *got = x + 2 * N;
    if (x == NULL) exit(1);
    for (uint32_t i = 0; i < N; i++)
        x[i] = rose_f32_from_bits(i * 4096 + rng_below(4096));
    snprintf(g_what, sizeof g_what, "%s exp_weights, all exponents", rose_isa_name(t->isa));
    ref->exp_weights(x, N, 0.0f, 1.0f, want);
    t->exp_weights(x, N, 0.0f, 1.0f, got);
    check_same(want, got, N, "exp");
    for (uint32_t n = 1; n < 70; n++) {
        float max = rng_normal(), inv_temp = rng_uniform() * 4.0f;
        guarded mem;
        float *w = guarded_alloc(&mem, n * sizeof(float));
        snprintf(g_what, sizeof g_what, "%s exp_weights n %u", rose_isa_name(t->isa), n);
        fill(x, n, (data_kind)(n % N_DATA_KINDS), false);
        ref->exp_weights(x, n, max, inv_temp, want);
        t->exp_weights(x, n, max, inv_temp, w);
        check_same(want, w, n, "weights");
        check(guarded_free(&mem), "wrote outside of w");
    }
    free(x);
}

/* Blocks and their rests; w kept and not. */
static void test_exp_sums(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    enum { MOST = 3 * ROSE_SUM_BLOCK + 40, MOST_SUMS = MOST / ROSE_SUM_BLOCK + 1 };
    float x[MOST], want[MOST];
    double sums[MOST_SUMS], kept[MOST_SUMS];
    for (uint32_t i = 0; i < 200; i++) {
        const uint32_t n = i < 70 ? 1 + i : 1 + rng_below(MOST),
                       n_sums = (n - 1) / ROSE_SUM_BLOCK + 1;
        const float max = rng_normal(), inv_temp = rng_uniform() * 4.0f;
        const float min_p = i % 3 == 0 ? rng_uniform() : 0.0f;
        guarded of_w, of_sums;
        float *w = guarded_alloc(&of_w, n * sizeof(float));
        double *got = guarded_alloc(&of_sums, n_sums * sizeof(double));
        snprintf(g_what, sizeof g_what, "%s exp_sums n %u", rose_isa_name(t->isa), n);
        fill(x, n, (data_kind)(i % N_DATA_KINDS), false);
        ref->exp_sums(x, n, max, inv_temp, min_p, want, sums);
        t->exp_sums(x, n, max, inv_temp, min_p, w, kept);
        t->exp_sums(x, n, max, inv_temp, min_p, NULL, got);
        check_same(want, w, n, "weights");
        check(memcmp(sums, got, n_sums * sizeof *sums) == 0, "sums");
        check(memcmp(sums, kept, n_sums * sizeof *sums) == 0, "sums beside weights");
        check(guarded_free(&of_w), "wrote outside of w");
        check(guarded_free(&of_sums), "wrote outside of sums");
    }
}

#include "kernels_accuracy.h"

/* ---- main ---- */

typedef struct test {
    const char *name;
    void (*run)(const rose_cpu_kernels *ref, const rose_cpu_kernels *t);
    bool ref_only; /* about the definition itself: once, with the scalar table */
} test;

static const test g_tests[] = {
    {"accuracy_exp", accuracy_exp, true},
    {"accuracy_activation", accuracy_activation, true},
    {"accuracy_matmul", accuracy_matmul, true},
    {"accuracy_layernorm", accuracy_layernorm, true},
    {"accuracy_attention", accuracy_attention, true},
    {"window_masked", window_masked, true},
    {"accuracy_tanh", accuracy_tanh, true},
    {"accuracy_rmsnorm", accuracy_rmsnorm, true},
    {"accuracy_rope", accuracy_rope, true},
    {"matmul_f32", test_matmul_f32, false},
    {"matmul_bf16", test_matmul_bf16, false},
    {"matmul_i8", test_matmul_i8, false},
    {"few_rows", test_few_rows, false},
    {"share", test_share, false},
    {"activation", test_activation, false},
    {"attention", test_attention, false},
    {"attention_shared", test_attention_shared, false},
    {"signed_zero", test_signed_zero, false},
    {"signed_zero_pairs", test_signed_zero_pairs, false},
    {"layernorm", test_layernorm, false},
    {"rmsnorm", test_rmsnorm, false},
    {"rope", test_rope, false},
    {"max_index", test_max_index, false},
    {"exp_weights", test_exp_weights, false},
    {"exp_sums", test_exp_sums, false},
};

/* The definitions of a level's rules. Rule 11 is of bf16: fp32 keeps rule 1. */
static void attention_pairs_ref(const rose_attention *a)
{
    (a->bf16 ? rose_attention_pairs_ref : rose_attention_ref)(a);
}

static rose_cpu_kernels definitions(rose_isa isa)
{
    rose_cpu_kernels ref;
    rose_cpu_kernels_init(&ref, ROSE_ISA_SCALAR);
    if (isa == ROSE_ISA_AVX512_BF16) {
        ref.matmul[ROSE_BF16] = rose_matmul_bf16_pairs_ref;
        ref.matmul[ROSE_I8] = rose_matmul_i8_pairs_ref;
        ref.attention = attention_pairs_ref;
    }
    return ref;
}

static void run_level(rose_isa isa, const char *filter, uint64_t seed)
{
    rose_cpu_kernels ref = definitions(isa), t;
    rose_cpu_kernels_init(&t, isa);
    snprintf(g_what, sizeof g_what, "%s table", rose_isa_name(isa));
    check(t.isa == isa, "level of the table");
    for (size_t i = 0; i < sizeof g_tests / sizeof *g_tests; i++) {
        const test *it = &g_tests[i];
        if (it->ref_only != (isa == ROSE_ISA_SCALAR)) continue;
        if (filter != NULL && strstr(it->name, filter) == NULL) continue;
        int checks = g_checks, failures = g_failures;
        const clock_t start = clock();
        g_rng = seed + i;
        it->run(&ref, &t);
        printf("%-6s %-20s %6d checks, %d failed, CPU %.1f s\n", rose_isa_name(isa), it->name,
               g_checks - checks, g_failures - failures,
               (double)(clock() - start) / CLOCKS_PER_SEC);
    }
}

int main(int argc, char **argv)
{
    const char *isa_name = NULL, *filter = NULL, *seed_text = getenv("ROSE_TEST_SEED");
    bool bench = false;
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--bench") == 0) {
            bench = true;
        } else if (more && strcmp(argv[i], "--isa") == 0) {
            isa_name = argv[++i];
        } else if (more && strcmp(argv[i], "--filter") == 0) {
            filter = argv[++i];
        } else if (more && strcmp(argv[i], "--seed") == 0) {
            seed_text = argv[++i];
        } else {
            fprintf(stderr, "usage: %s [--isa NAME] [--filter TEXT] [--seed N] [--bench]\n",
                    argv[0]);
            return 1;
        }
    }

    uint64_t seed = seed_text != NULL ? strtoull(seed_text, NULL, 0) : 20261121;
    rose_isa top = rose_isa_probe(), named;
    rose_err err = {""};
#ifdef ROSE_AMX_EMULATED
    top = ROSE_ISA_AMX;
    printf("AMX tiles are emulated: see amx_emulation.h\n");
#else
    if (isa_name != NULL && rose_isa_parse(isa_name, &named, &err) != ROSE_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 77;
    }
#endif
    rose_thread_ftz();
    printf("seed %llu, highest level %s\n", (unsigned long long)seed, rose_isa_name(top));
    for (int isa = ROSE_ISA_SCALAR; isa <= ROSE_ISA_AVX512_BF16; isa++) {
        const char *name = rose_isa_name((rose_isa)isa);
        if (isa_name != NULL && strcmp(isa_name, "auto") != 0 && strcmp(isa_name, name) != 0)
            continue;
        if (rose_isa_parse(name, &named, &err) != ROSE_OK && isa != (int)top) {
            printf("%-6s NOT RUN: %s\n", name, err.msg);
        } else if (bench) {
            bench_level((rose_isa)isa, filter);
        } else {
            run_level((rose_isa)isa, filter, seed);
        }
    }
    if (bench) return 0;
    printf("%d checks, %d failed\n", g_checks, g_failures);
    return g_failures > 0 || g_checks == 0;
}
