/* tests/backend/test_cpu_backend.c - the CPU backend round its forward pass: the memory plan and
 * what it refuses, the default size of the page pool, packing from files of every dtype, page
 * copies, outputs that share rows or ask for nothing, batches that must be refused. */
#include "backend/cpu_fixture.h"

#include <sys/stat.h>
#include <unistd.h>

#include "backend/checks.h"
#include "backend/cpu/pack.h"
#include "model/random.h"

static const fx_shape g_shape = {.name = "small",
                                 .n_layers = 2,
                                 .d_model = 48,
                                 .n_heads = 3,
                                 .d_ff = 100,
                                 .vocab = 77,
                                 .max_positions = 100};

static rose_status plan(const rose_model *m, const rose_backend_opts *o, rose_memory_plan *p,
                        rose_err *err)
{
    memset(err, 0, sizeof *err);
    return rose_backend_cpu()->plan(m, o, p, err);
}

static rose_backend_opts default_opts(void)
{
    rose_backend_opts o;
    rose_backend_opts_default(&o);
    o.cpu.n_threads = 1;
    return o;
}

/* ---- plan ---- */

static void test_plan_resolves_options(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shape, 1);
    rose_backend_opts o;
    rose_memory_plan p;
    rose_err err;

    rose_backend_opts_default(&o);
    assert_int_equal(plan(m, &o, &p, &err), ROSE_OK);
    int cpus[1024];
    assert_int_equal(p.n_threads, rose_cpus_allowed(cpus, 1024));
    assert_int_equal(p.dtype, ROSE_COMPUTE_F32);
    assert_int_equal(p.max_seqs, 256);
    assert_int_equal(p.max_step_tokens, 2048);
    assert_int_equal(p.max_model_len, 100);
    assert_int_equal(p.total, p.weights + p.kv + p.scratch);
    assert_int_equal(p.kv, p.pools[0].block_bytes * p.pools[0].n_blocks);
    assert_int_equal(p.pools[0].n_blocks, 256 * 7); /* every sequence at its full length of 100 */

    const int three[] = {0, 1, 0};
    o.cpu.cpus = three;
    o.cpu.n_cpus = 3;
    o.max_model_len = 17;
    m->dtype = ROSE_BF16;
    assert_int_equal(plan(m, &o, &p, &err), ROSE_OK);
    assert_int_equal(p.n_threads, 3);
    assert_int_equal(p.dtype, ROSE_COMPUTE_BF16);
    assert_int_equal(p.max_model_len, 17);
    assert_int_equal(p.pools[0].n_blocks, 256 * 2);
    fx_model_free(m);
}

static void assert_steps(const rose_model *m, uint32_t max_seqs, uint32_t tokens, uint32_t most,
                         uint32_t busy, const char *text)
{
    rose_backend_opts o = default_opts();
    rose_memory_plan p;
    rose_err err;
    char got[ROSE_PLAN_STEPS_TEXT];
    o.max_seqs = max_seqs;
    o.max_step_tokens = tokens;
    o.kv_pages = 7;
    if (plan(m, &o, &p, &err) != ROSE_OK) fail_msg("%s", err.msg);
    assert_int_equal(p.max_step_tokens, most);
    assert_int_equal(p.busy_step_tokens, busy);
    rose_plan_steps_text(&p, got);
    assert_string_equal(got, text);
}

/* The tokens of a step: a number, the default, and auto, with fewer where memory is short. */
static void test_plan_steps(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shape, 1);
    assert_steps(m, 9, 0, 2048, 0, "steps of up to 9 sequences and 2048 tokens");
    assert_steps(m, 4096, 0, 4096, 0, "steps of up to 4096 sequences and 4096 tokens");
    assert_steps(m, 9, 10, 10, 0, "steps of up to 9 sequences and 10 tokens");
    assert_steps(m, 9, ROSE_STEP_AUTO, 8192, 2048,
                 "steps of up to 9 sequences and 8192 tokens, 2048 while sequences decode");
    assert_steps(m, 3000, ROSE_STEP_AUTO, 8192, 3000,
                 "steps of up to 3000 sequences and 8192 tokens, 3000 while sequences decode");
    fx_model_free(m);
}

/* A backend whose scratch memory takes 1 byte a token, and which has room for `fits` tokens. */
static struct {
    uint64_t available, fits;
    uint32_t n_calls;
} g_room;

static rose_status plan_room(const rose_model *m, const rose_backend_opts *o, rose_memory_plan *out,
                             rose_err *err)
{
    (void)m;
    g_room.n_calls++;
    *out = (rose_memory_plan){0};
    if (o->max_step_tokens > g_room.fits) return rose_fail(err, ROSE_E_NOMEM, "no room");
    *out = (rose_memory_plan){.max_step_tokens = o->max_step_tokens,
                              .weights = 1000,
                              .graphs = 24,
                              .scratch = o->max_step_tokens,
                              .available = g_room.available};
    return ROSE_OK;
}

/* auto where memory is short: scratch for a sixteenth of what the weights leave, at most. */
static void test_plan_steps_in(void **state)
{
    (void)state;
    static const struct {
        uint64_t left, fits; /* beside weights and graphs */
        uint32_t seqs, most, busy;
    } rows[] = {{UINT64_C(8192) * 16, 8192, 256, 8192, 2048}, /* just enough */
                {UINT64_C(8192) * 16 - 1, 8192, 256, 4096, 2048},
                {UINT64_C(4096) * 16, 8192, 256, 4096, 2048},
                {UINT64_C(4096) * 16 - 1, 8192, 256, 2048, 2048},
                {5000, 8192, 256, 2048, 2048}, /* never fewer, if they fit */
                {5000, 4096, 3000, 4096, 3000},
                {UINT64_C(1) << 40, 4095, 1, 2048, 2048},
                {UINT64_C(1) << 40, 2047, 1, 0, 0},
                {UINT64_C(1) << 40, 4095, 2049, 0, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rose_backend_opts o = default_opts();
        rose_memory_plan p;
        rose_err err = {{0}};
        o.max_seqs = rows[i].seqs;
        g_room.available = 1024 + rows[i].left;
        g_room.fits = rows[i].fits;
        for (int by_default = 0; by_default < 2; by_default++) {
            o.max_step_tokens = by_default ? 0 : ROSE_STEP_AUTO;
            const rose_status st =
                rose_backend_plan_steps(plan_room, by_default > 0, NULL, &o, &p, &err);
            assert_int_equal(st, rows[i].most > 0 ? ROSE_OK : ROSE_E_NOMEM);
            assert_int_equal(p.max_step_tokens, rows[i].most);
            assert_int_equal(p.busy_step_tokens, rows[i].busy);
        }
        o.max_step_tokens = (uint32_t)rows[i].fits; /* a number is taken as it is */
        g_room.n_calls = 0;
        assert_int_equal(rose_backend_plan_steps(plan_room, true, NULL, &o, &p, &err), ROSE_OK);
        assert_int_equal(p.max_step_tokens, rows[i].fits);
        assert_int_equal(g_room.n_calls + p.busy_step_tokens, 1);
    }
}

static void test_kv_default_rule(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shape, 1);
    rose_backend_opts o = default_opts();
    rose_memory_plan p;
    rose_err err;

    /* Only the arithmetic runs, so the model may claim any size. */
    m->arch.max_positions = 100000;
    o.max_seqs = 4096;
    o.max_step_tokens = 4096;
    assert_int_equal(plan(m, &o, &p, &err), ROSE_OK);
    uint64_t limit = UINT64_C(4) << 30, full = UINT64_C(6250) * 4096;
    if (p.available > 0 && (p.available - p.weights) / 2 < limit)
        limit = (p.available - p.weights) / 2;
    assert_true(p.kv <= limit && p.kv + p.pools[0].block_bytes > limit);
    assert_true(p.pools[0].n_blocks < full && p.pools[0].n_blocks >= 6250);

    /* One context is more than half of what is left: still one context, or too much for plan. */
    o.max_seqs = 1;
    m->arch.n_layers = 1;
    uint64_t page = rose_cpu_kv_page_bytes(&m->arch, m->arch.n_layers, false);
    uint64_t tokens = (UINT64_C(5) << 30) / page * 16;
    m->arch.max_positions = tokens < 16000000 ? (uint32_t)tokens : 16000000;
    rose_status st = plan(m, &o, &p, &err);
    if (st == ROSE_OK)
        assert_int_equal(p.pools[0].n_blocks, (m->arch.max_positions + 15) / 16);
    else
        assert_int_equal(st, ROSE_E_NOMEM);

    m->arch.max_positions = 100;
    o.kv_bytes = 20 * page + 1;
    assert_int_equal(plan(m, &o, &p, &err), ROSE_OK);
    assert_int_equal(p.pools[0].n_blocks, 20);
    o.kv_pages = 9; /* a count goes before a size */
    assert_int_equal(plan(m, &o, &p, &err), ROSE_OK);
    assert_int_equal(p.pools[0].n_blocks, 9);
    m->arch.n_layers = g_shape.n_layers;
    fx_model_free(m);
}

static uint32_t pages_of(uint32_t positions, uint32_t len)
{
    return ((positions < len ? positions : len) + 15) / 16;
}

/* Layers with a window beside full ones, or alone: a sequence of the longest context fits, both
 * pools fill together, and no page more fits into the bytes. */
static void check_windows(rose_model *m, fx_random *r, bool alone)
{
    rose_arch *a = &m->arch;
    rose_backend_opts o = default_opts();
    rose_memory_plan p, more;
    rose_err err;
    const uint32_t window = 1 + fx_below(r, 5000), len = 100 + fx_below(r, 30000);
    a->max_positions = len;
    a->n_kinds = 2;
    a->kinds[1] = a->kinds[0];
    a->kinds[1].mixer.window = window;
    for (uint32_t i = 0; i < a->n_layers; i++)
        a->kind_of[i] = alone || i % 2 != 0;
    if (alone) a->kinds[0].mixer.window = window;
    o.max_seqs = 1 + fx_below(r, 9);
    o.max_step_tokens = 16 + fx_below(r, 2000);
    const uint32_t own = pages_of(window + o.max_step_tokens + 64, len);
    const uint32_t least = alone ? own : pages_of(len, len);
    o.kv_pages = least - 1;
    assert_int_equal(plan(m, &o, &p, &err), least > 1 ? ROSE_E_INVAL : ROSE_OK);
    if (least > 1) assert_non_null(strstr(err.msg, "num-kv-pages"));
    o.kv_pages = least;
    assert_int_equal(plan(m, &o, &p, &err), ROSE_OK);
    assert_int_equal(p.n_pools, alone ? 1 : 2);
    assert_int_equal(p.pools[0].n_blocks, least);
    o.kv_pages = 0;
    o.kv_bytes = p.kv + fx_below(r, 64) * p.pools[0].block_bytes;
    assert_int_equal(plan(m, &o, &p, &err), ROSE_OK);
    o.kv_pages = p.pools[0].n_blocks + 1;
    assert_int_equal(plan(m, &o, &more, &err), ROSE_OK);
    assert_true(p.kv <= o.kv_bytes && more.kv > o.kv_bytes);
    uint64_t kv = 0;
    for (uint32_t k = 0; k < p.n_pools; k++)
        kv += p.pools[k].n_blocks * p.pools[k].block_bytes;
    assert_int_equal(p.kv, kv);
    if (!alone) {
        const uint32_t context = 4 * window < len ? 4 * window : len;
        const uint32_t n = p.pools[0].n_blocks / pages_of(context, len);
        assert_in_range(p.pools[1].n_blocks, own, p.pools[0].n_blocks);
        assert_true(p.pools[1].n_blocks >= n * pages_of(window + 64, context));
        if (p.pools[1].n_blocks > own)
            assert_true((uint64_t)(p.pools[1].n_blocks - 1) * pages_of(context, len) <
                        (uint64_t)p.pools[0].n_blocks * pages_of(window + 64, context));
    }
    a->kinds[0].mixer.window = 0;
}

static void test_kv_windows(void **state)
{
    fx_random r = {.seed = fx_seed()};
    (void)state;
    rose_model *m = fx_model(&g_shape, 1);
    for (int i = 0; i < 200; i++)
        check_windows(m, &r, i % 2 != 0);
    for (uint32_t i = 0; i < m->arch.n_layers; i++)
        m->arch.kind_of[i] = 0;
    m->arch.n_kinds = 1;
    fx_model_free(m);
}

static void refused(const rose_model *m, const rose_backend_opts *o, rose_status want,
                    const char *word)
{
    rose_memory_plan p;
    rose_err err;
    rose_status st = plan(m, o, &p, &err);
    if (st != want || strstr(err.msg, word) == NULL)
        fail_msg("expected %s with \"%s\", got %s: %s", rose_status_name(want), word,
                 rose_status_name(st), err.msg);
    assert_int_equal(p.total, 0);
}

static void test_plan_refuses_options(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shape, 1);
    rose_backend_opts o = default_opts();
#define REFUSED(field, value, status, word)                                                        \
    do {                                                                                           \
        o = default_opts();                                                                        \
        o.field = value;                                                                           \
        refused(m, &o, status, word);                                                              \
    } while (0)
    REFUSED(max_seqs, 0, ROSE_E_INVAL, "max-num-seqs");
    REFUSED(max_seqs, 4097, ROSE_E_INVAL, "max-num-seqs");
    REFUSED(max_step_tokens, 255, ROSE_E_INVAL, "max-num-batched-tokens");
    REFUSED(max_step_tokens, UINT32_MAX - 1, ROSE_E_INVAL, "max-num-batched-tokens");
    REFUSED(max_model_len, 1, ROSE_E_INVAL, "max-model-len");
    REFUSED(max_model_len, 101, ROSE_E_INVAL, "max-model-len");
    REFUSED(cpu.n_threads, 5000, ROSE_E_INVAL, "threads");
    REFUSED(cpu.n_cpus, 2, ROSE_E_INVAL, "cpus");
    REFUSED(kv_pages, 6, ROSE_E_INVAL, "num-kv-pages");
    REFUSED(kv_bytes, 1, ROSE_E_INVAL, "kv-cache-memory");
    REFUSED(cpu.isa, "sse9", ROSE_E_INVAL, "sse9");
    REFUSED(cuda.prefill, ROSE_PREFILL_FLASH, ROSE_E_UNSUPPORTED, "prefill backend flash");
    REFUSED(cuda.prefill, ROSE_PREFILL_NAIVE, ROSE_E_UNSUPPORTED, "prefill backend naive");
    o = default_opts();
    o.cuda.prefill = ROSE_PREFILL_AUTO2; /* equals auto */
    rose_memory_plan p;
    rose_err err;
    assert_int_equal(plan(m, &o, &p, &err), ROSE_OK);
    o = default_opts(); /* where the CPU has it, it has no fp32; else the CPU lacks it */
    o.cpu.isa = "avx512-bf16";
    o.dtype = ROSE_COMPUTE_F32;
    refused(m, &o, ROSE_E_UNSUPPORTED, "avx512-bf16");
    rose_isa pairs;
    if (rose_isa_parse(o.cpu.isa, &pairs, NULL) == ROSE_OK)
        refused(m, &o, ROSE_E_UNSUPPORTED, "dtype float32");
    else
        print_message("NOT RUN: avx512-bf16 with float32: the CPU lacks it\n");
    if (rose_memory_available() > 0) {
        REFUSED(kv_bytes, UINT64_MAX, ROSE_E_NOMEM, "kv-cache-memory");
        REFUSED(kv_pages, UINT32_MAX, ROSE_E_NOMEM, "num-kv-pages");
        m->arch.n_layers = 1;
        const uint64_t row = 4096 * sizeof(float), free_bytes = rose_memory_available();
        m->arch.kinds[0].mlp.d_ff =
            (uint32_t)(free_bytes / 2048) & ~63u; /* weights take a quarter of the memory */
        REFUSED(max_step_tokens, 1 << 20, ROSE_E_NOMEM, "max-num-batched-tokens");
        m->arch.kinds[0].mlp.d_ff = g_shape.d_ff;
        /* Embeddings that are also the head, in shares of the memory that is there. */
        m->arch.tied_head = true;
        m->arch.d_model = 4096;
        m->arch.kinds[0].mixer.n_heads = m->arch.kinds[0].mixer.n_kv_heads = 32;
        m->arch.kinds[0].mixer.head_dim = 128;
        m->arch.vocab_size = (uint32_t)(free_bytes / row * 3 / 2); /* fp32: 1.5 of it, bf16: 0.75 */
        REFUSED(dtype, ROSE_COMPUTE_F32, ROSE_E_NOMEM, "choose dtype bfloat16");
        m->arch.vocab_size = (uint32_t)(free_bytes / row * 5 / 2); /* bf16: 1.25 */
        REFUSED(dtype, ROSE_COMPUTE_F32, ROSE_E_NOMEM, "choose quantization int8");
        REFUSED(dtype, ROSE_COMPUTE_BF16, ROSE_E_NOMEM, "choose quantization int8");
        m->arch.vocab_size = 1u << 24; /* the largest; 256 GiB */
        if (free_bytes / row * 6 < m->arch.vocab_size) {
            REFUSED(dtype, ROSE_COMPUTE_F32, ROSE_E_NOMEM, "take a smaller one");
            REFUSED(quantization, ROSE_QUANT_INT8, ROSE_E_NOMEM, "take a smaller one");
        } else {
            print_message("NOT RUN: a model that is far too large: there is memory for it\n");
        }
    }
    m->arch.n_layers = g_shape.n_layers;
    fx_model_free(m);
}

/* What fits beside the other parts of a plan is named, in pages or as a context. */
static void test_kv_advice(void **state)
{
    (void)state;
    char text[ROSE_KV_ADVICE];
    rose_memory_plan p = {.max_model_len = 131072,
                          .n_pools = 1,
                          .pools = {{.block_bytes = 1 << 20}},
                          .available = 10ull << 30};
    p.weights = 4ull << 30; /* 6 GiB are left: 6144 pages, 98304 tokens */
    assert_true(rose_backend_kv_advice(&p, text));
    assert_string_equal(text, "lower max-model-len: 98304 tokens fit");
    p.scratch = 1 << 20;
    assert_true(rose_backend_kv_advice(&p, text));
    assert_string_equal(text, "lower max-model-len: 97280 tokens fit");
    p.max_model_len = 4096; /* 256 pages: more were asked for than fit */
    assert_true(rose_backend_kv_advice(&p, text));
    assert_non_null(strstr(text, "kv-cache-memory"));
    assert_non_null(strstr(text, ": 6143 pages (6143 MiB) fit"));
    p.weights = 11ull << 30;
    assert_false(rose_backend_kv_advice(&p, text));
}

static void test_plan_refuses_architectures(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shape, 1);
    const rose_arch good = m->arch;
    rose_backend_opts o = default_opts();
    m->arch.kinds[0].mixer.n_kv_heads = m->arch.kinds[0].mixer.n_heads - 1;
    refused(m, &o, ROSE_E_UNSUPPORTED, "KV heads");
    m->arch = good;
    m->arch.pos = ROSE_POS_ROPE;
    m->arch.kinds[0].mixer.rope.dim = m->arch.kinds[0].mixer.head_dim + 2;
    refused(m, &o, ROSE_E_UNSUPPORTED, "RoPE");
    m->arch.kinds[0].mixer.rope.dim = 3;
    refused(m, &o, ROSE_E_UNSUPPORTED, "RoPE");
    m->arch = good;
    m->arch.kinds[0].mixer.n_heads = m->arch.kinds[0].mixer.n_kv_heads = 1;
    m->arch.kinds[0].mixer.head_dim = m->arch.d_model = 257;
    refused(m, &o, ROSE_E_UNSUPPORTED, "head size 257");
    m->arch = good;
    m->arch.kinds[0].mlp.d_ff = 0;
    refused(m, &o, ROSE_E_UNSUPPORTED, "size");
    m->arch = good;
    fx_model_free(m);
}

static uint64_t virtual_bytes(void)
{
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%llu", &pages), 1);
    fclose(f);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* One thread, so that no stack is mapped: the process grows by the plan and next to nothing. */
static void test_plan_is_what_open_takes(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        fx_shape s = g_shape;
        s.d_model = 192;
        s.untied = i % 2 == 1;
        rose_model *m = fx_model(&s, 1);
        rose_backend_opts o = default_opts();
        rose_memory_plan p;
        rose_err err;
        void *ctx;
        o.dtype = i / 2 == 1 ? ROSE_COMPUTE_BF16 : ROSE_COMPUTE_F32;
        assert_int_equal(plan(m, &o, &p, &err), ROSE_OK);
        uint64_t before = virtual_bytes();
        assert_int_equal(rose_backend_cpu()->open(&ctx, m, &o, &p, &err), ROSE_OK);
        uint64_t grown = virtual_bytes() - before;
        const rose_cpu *c = ctx;
        assert_int_equal(c->weights_region.size, (p.weights + 4095) / 4096 * 4096);
        assert_int_equal(c->kv_region.size, (p.kv + 4095) / 4096 * 4096);
        assert_int_equal(c->scratch_region.size, (p.scratch + 4095) / 4096 * 4096);
        rose_backend_cpu()->close(ctx);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        assert_true(grown >= p.total && grown < p.total + 1024 * 1024);
        assert_true(virtual_bytes() < before + 1024 * 1024);
#else
        (void)grown;
#endif
        fx_model_free(m);
    }
    rose_backend_cpu()->close(NULL);
}

static void test_open_checks_the_plan(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shape, 1);
    rose_backend_opts o = default_opts();
    rose_memory_plan p;
    rose_err err;
    void *ctx = m;
    assert_int_equal(plan(m, &o, &p, &err), ROSE_OK);
    p.weights -= 64;
    assert_int_equal(rose_backend_cpu()->open(&ctx, m, &o, &p, &err), ROSE_E_INVAL);
    assert_null(ctx);
    fx_model_free(m);
}

/* ---- packing ---- */

static void test_packing(void **state)
{
    (void)state;
    static const rose_format dtypes[] = {ROSE_F32, ROSE_F16, ROSE_BF16};
    static const uint32_t sizes[][2] = {{1, 1}, {31, 17}, {32, 16}, {33, 15}, {100, 77}};
    fx_random r = {.seed = fx_seed()};
    for (int i = 0; i < 5 * 3 * 4; i++) {
        const uint32_t k = sizes[i % 5][0], n = sizes[i % 5][1];
        const bool bf16 = i / 15 % 2 == 1, transposed = i / 30 == 1;
        rose_tensor t =
            fx_tensor(&r, dtypes[i / 5 % 3], transposed ? n : k, transposed ? k : n, 0, 2);
        const uint32_t n_panels = (n + 15) / 16;
        const rose_format type = bf16 ? ROSE_BF16 : ROSE_F32;
        size_t bytes = rose_panels_bytes(type, k, n);
        uint8_t *panels = calloc(1, bytes), *parts = calloc(1, bytes);
        float *row = calloc(k, sizeof *row);
        assert_true(panels != NULL && parts != NULL && row != NULL);
        assert_true(rose_pack_panels(panels, NULL, type, &t, k, n, transposed, 0, n_panels));
        for (uint32_t p = 0; p < n_panels; p++)
            assert_true(rose_pack_panels(parts, NULL, type, &t, k, n, transposed, p, p + 1));
        assert_memory_equal(panels, parts, bytes);
        for (uint32_t j = 0; j < n; j++) {
            rose_panel_row(row, panels, NULL, type, k, j);
            for (uint32_t l = 0; l < k; l++) {
                float want;
                rose_tensor_read_f32(&t, transposed ? (uint64_t)j * k + l : (uint64_t)l * n + j, 1,
                                     &want);
                if (bf16) want = rose_bf16_to_f32(rose_f32_to_bf16(want));
                assert_memory_equal(&row[l], &want, sizeof want);
            }
        }
        /* All other bytes are padding: the sum of magnitudes is that of the matrix. */
        uint64_t n_set = 0, n_want = 0;
        for (size_t b = 0; b < bytes; b += bf16 ? 2 : 4)
            for (size_t c = 0; c < (bf16 ? 2u : 4u); c++)
                if (panels[b + c] != 0) {
                    n_set++;
                    break;
                }
        for (uint32_t j = 0; j < n; j++) {
            rose_panel_row(row, panels, NULL, type, k, j);
            for (uint32_t l = 0; l < k; l++) {
                uint32_t bits;
                memcpy(&bits, &row[l], sizeof bits);
                n_want += bits != 0;
            }
        }
        assert_int_equal(n_set, n_want);
        free(panels);
        free(parts);
        free(row);
        free((void *)(uintptr_t)t.data);
    }
}

/* Every bf16 value there is, from an odd address: whole blocks are moved and not converted. */
static void test_packing_moves_bf16(void **state)
{
    (void)state;
    enum { SIDE = 256 };
    uint8_t *bytes = malloc(SIDE * SIDE * 2 + 1);
    uint16_t *panels = calloc(SIDE * SIDE, sizeof *panels);
    float row[SIDE], want;
    assert_true(bytes != NULL && panels != NULL);
    for (uint32_t i = 0; i < SIDE * SIDE; i++) {
        const uint16_t h = (uint16_t)(i * 40503u); /* odd: every value once */
        memcpy(bytes + 1 + i * 2, &h, sizeof h);
    }
    const rose_tensor t = {
        .name = "t", .data = bytes + 1, .dtype = ROSE_BF16, .n_dims = 2, .shape = {SIDE, SIDE}};
    for (int transposed = 0; transposed < 2; transposed++) {
        memset(panels, 0xEE, SIDE * SIDE * sizeof *panels);
        assert_true(rose_pack_panels(panels, NULL, ROSE_BF16, &t, SIDE, SIDE, transposed == 1, 0,
                                     SIDE / ROSE_PANEL));
        for (uint32_t j = 0; j < SIDE; j++) {
            rose_panel_row(row, panels, NULL, ROSE_BF16, SIDE, j);
            for (uint32_t l = 0; l < SIDE; l++) {
                rose_tensor_read_f32(&t, transposed == 1 ? j * SIDE + l : l * SIDE + j, 1, &want);
                want = rose_bf16_to_f32(rose_f32_to_bf16(want));
                assert_memory_equal(&row[l], &want, sizeof want);
            }
        }
    }
    free(bytes);
    free(panels);
}

/* Each value and scale as docs/NUMERICS.md says, and any range of panels the same; a value that is
 * not finite is refused. */
static void test_packing_int8(void **state)
{
    (void)state;
    static const rose_format dtypes[] = {ROSE_F32, ROSE_F16, ROSE_BF16};
    static const uint32_t sizes[][2] = {{1, 1}, {31, 17}, {32, 16}, {33, 15}, {100, 77}, {96, 48}};
    fx_random r = {.seed = fx_seed() + 8};
    for (int i = 0; i < 6 * 3 * 2; i++) {
        const uint32_t k = sizes[i % 6][0], n = sizes[i % 6][1], n_panels = (n + 15) / 16;
        const bool transposed = i / 18 == 1;
        rose_tensor t =
            fx_tensor(&r, dtypes[i / 6 % 3], transposed ? n : k, transposed ? k : n, 0, 2);
        size_t bytes = rose_panels_bytes(ROSE_I8, k, n);
        int8_t *panels = calloc(1, bytes), *parts = calloc(1, bytes);
        float *scale = calloc(n, sizeof *scale), *part_scale = calloc(n, sizeof *scale);
        assert_true(panels != NULL && parts != NULL && scale != NULL && part_scale != NULL);
        for (uint32_t j = 0; j < n; j++)
            scale[j] = 77.0f; /* whatever was there */
        assert_true(rose_pack_panels(panels, scale, ROSE_I8, &t, k, n, transposed, 0, n_panels));
        for (uint32_t p = 0; p < n_panels; p++)
            assert_true(
                rose_pack_panels(parts, part_scale, ROSE_I8, &t, k, n, transposed, p, p + 1));
        assert_memory_equal(panels, parts, bytes);
        assert_memory_equal(scale, part_scale, n * sizeof *scale);
        for (uint32_t j = 0; j < n; j++) {
            float largest = 0, w;
            for (uint32_t l = 0; l < k; l++) {
                rose_tensor_read_f32(&t, transposed ? (uint64_t)j * k + l : (uint64_t)l * n + j, 1,
                                     &w);
                if (fabsf(w) > largest) largest = fabsf(w);
            }
            assert_true(scale[j] == (largest >= 1e-30f ? largest / 127.0f : 0.0f));
            const float inverse = largest >= 1e-30f ? 127.0f / largest : 0.0f;
            for (uint32_t l = 0; l < k; l++) {
                rose_tensor_read_f32(&t, transposed ? (uint64_t)j * k + l : (uint64_t)l * n + j, 1,
                                     &w);
                int q = panels[((size_t)(j / 16) * ((k + 31) / 32 * 32) + l) * 16 + j % 16];
                assert_int_equal(q, (int)rintf(w * inverse));
            }
        }
        uint16_t half = 0x7F80; /* infinity as bf16; a NaN as f16 */
        uint32_t whole = 0x7FC00000;
        memcpy((uint8_t *)(uintptr_t)t.data + ((size_t)k * n - 1) * rose_format_size(t.dtype),
               t.dtype == ROSE_F32 ? (void *)&whole : (void *)&half, rose_format_size(t.dtype));
        assert_false(rose_pack_panels(panels, scale, ROSE_I8, &t, k, n, transposed, 0, n_panels));
        free(panels);
        free(parts);
        free(scale);
        free(part_scale);
        free((void *)(uintptr_t)t.data);
    }
}

/* int8 computes in bf16 alone, and a model that cannot be quantized is refused by its tensor. */
static void test_int8_refusals(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shape, 1);
    rose_backend_opts o = default_opts();
    rose_memory_plan p;
    rose_err err;
    void *ctx = m;
    o.quantization = ROSE_QUANT_INT8;
    o.dtype = ROSE_COMPUTE_F32;
    assert_int_equal(plan(m, &o, &p, &err), ROSE_E_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "int8"));
    o.dtype = ROSE_COMPUTE_AUTO;
    assert_int_equal(plan(m, &o, &p, &err), ROSE_OK);
    assert_int_equal(p.dtype, ROSE_COMPUTE_BF16);
    rose_tensor *t = &m->layers[0].m[ROSE_UP].w[0];
    memset((void *)(uintptr_t)t->data, 0xFF, rose_format_size(t->dtype));
    assert_int_equal(rose_backend_cpu()->open(&ctx, m, &o, &p, &err), ROSE_E_UNSUPPORTED);
    assert_null(ctx);
    assert_non_null(strstr(err.msg, t->name));
    fx_model_free(m);
}

/* Rounding in the packer against the definition, over all exponents, ties and NaN. */
static void test_rounding(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    float *x = calloc(N, sizeof *x);
    uint16_t *got = calloc(N, sizeof *got);
    assert_true(x != NULL && got != NULL);
    static const uint32_t tails[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};
    for (int t = 0; t < 6; t++) {
        for (uint32_t i = 0; i < N; i++) {
            uint32_t bits = i << 16 | tails[t];
            memcpy(&x[i], &bits, sizeof bits);
        }
        rose_tensor tensor = {.data = x, .dtype = ROSE_F32, .n_dims = 1, .shape = {N, 1}};
        rose_pack_bf16(got, &tensor, 0, N);
        for (uint32_t i = 0; i < N; i++)
            assert_int_equal(got[i], rose_f32_to_bf16(x[i]));
    }
    free(x);
    free(got);
}

/* A folder written and mapped, then its model closed: the backend must not need it any more. */
static void test_from_a_folder(void **state)
{
    (void)state;
    static const rose_format dtypes[] = {ROSE_F32, ROSE_BF16};
    for (int i = 0; i < 2; i++) {
        char dir[] = "/tmp/rose-test-XXXXXX", command[80];
        rose_random_opts ro;
        rose_err err = {""};
        rose_model *m = NULL;
        assert_non_null(mkdtemp(dir));
        rose_random_opts_default(&ro);
        ro.n_layers = 2;
        ro.d_model = 64;
        ro.n_heads = 4;
        ro.vocab_size = 300;
        ro.max_positions = 64;
        ro.dtype = dtypes[i];
        ro.tied_head = i == 0;
        if (rose_random_model_write(&ro, dir, &err) != ROSE_OK) fail_msg("%s", err.msg);
        if (rose_model_open(&m, dir, &err) != ROSE_OK) fail_msg("%s", err.msg);
        fx_seq a = fx_seq_make(m, 3, 40), b = fx_seq_make(m, 3, 40);
        fx_backend f = fx_open(m, ROSE_COMPUTE_AUTO, "scalar", 1, 0);
        assert_int_equal(f.plan.dtype, i == 0 ? ROSE_COMPUTE_F32 : ROSE_COMPUTE_BF16);
        fx_run(&f, &a, 40, 40);
        fx_close(&f);
        f = fx_open(m, ROSE_COMPUTE_AUTO, "auto", 2, 0);
        rose_model copy = *m; /* what the fixture still looks at: the sizes */
        copy.layers = NULL;
        rose_model_close(m);
        f.model = &copy;
        fx_run(&f, &b, 40, 7);
        fx_same(&copy, &a, &b, "from a folder");
        fx_close(&f);
        fx_seq_free(&a);
        fx_seq_free(&b);
        snprintf(command, sizeof command, "rm -rf %s", dir);
        assert_int_equal(system(command), 0);
    }
}

/* ---- steps ---- */

/* A batch of one sequence of 20 rows for the tests below. */
typedef struct one {
    uint32_t tokens[20], pages[2];
    rose_batch_seq seq;
    rose_batch_out outs[FX_MAX_SEQS];
    rose_batch b;
} one;

static void one_init(one *o)
{
    memset(o, 0, sizeof *o);
    o->seq = (rose_batch_seq){.n = 20, .table = {o->pages}};
    o->pages[0] = 3;
    o->pages[1] = 1;
    o->b = (rose_batch){
        .n_seqs = 1, .n_tokens = 20, .tokens = o->tokens, .seqs = &o->seq, .outs = o->outs};
    for (uint32_t i = 0; i < 20; i++)
        o->tokens[i] = i * 3;
}

/* More outputs than fit one block of logits, in groups of one row; and no output at all. */
static void test_outputs(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shape, 1);
    const uint32_t vocab = m->arch.vocab_size;
    fx_backend f = fx_open(m, ROSE_COMPUTE_F32, "auto", 2, 0);
    static one o;
    static rose_batch_out given[FX_MAX_SEQS];
    rose_step_result result;
    rose_err err;
    uint64_t ticket;
    float *all = calloc((size_t)FX_MAX_SEQS * vocab, sizeof *all);
    assert_non_null(all);

    one_init(&o);
    assert_int_equal(f.ops->step(f.cpu, &o.b, &ticket, &err), ROSE_OK);
    assert_int_equal(f.ops->collect(f.cpu, ticket, &result, &err), ROSE_OK);
    assert_int_equal(result.n_outputs, 0);

    for (uint32_t i = 0; i < FX_MAX_SEQS; i++) {
        o.outs[i] = (rose_batch_out){
            .row = 19 - i / 3 % 20,
            .pos = i,
            .params = {.temperature = i % 4 == 0 ? 0 : 1.5f, .top_p = 1, .seed = 7}};
        given[i] = o.outs[i];
    }
    o.b.n_outputs = FX_MAX_SEQS;
    o.b.logits = all;
    assert_int_equal(f.ops->step(f.cpu, &o.b, &ticket, &err), ROSE_OK);
    assert_int_equal(f.ops->collect(f.cpu, ticket, &result, &err), ROSE_OK);
    uint32_t *ids = calloc(FX_MAX_SEQS, sizeof *ids), n_equal = 0;
    assert_non_null(ids);
    memcpy(ids, result.ids, FX_MAX_SEQS * sizeof *ids);
    /* Each output alone gives the same logits and the same id. */
    float *row = calloc(vocab, sizeof *row);
    assert_non_null(row);
    for (uint32_t i = 0; i < FX_MAX_SEQS; i++) {
        one_init(&o);
        o.b.n_outputs = 1;
        o.b.logits = row;
        o.outs[0] = given[i];
        assert_int_equal(f.ops->step(f.cpu, &o.b, &ticket, &err), ROSE_OK);
        assert_int_equal(f.ops->collect(f.cpu, ticket, &result, &err), ROSE_OK);
        assert_memory_equal(row, all + (size_t)i * vocab, vocab * sizeof *row);
        assert_int_equal(result.ids[0], ids[i]);
        if (i > 0) n_equal += ids[i] == ids[i - 1];
    }
    assert_true(n_equal < FX_MAX_SEQS / 2);
    assert_int_equal(f.ops->collect(f.cpu, ticket - 1, &result, &err), ROSE_E_INVAL);
    assert_int_equal(f.ops->collect(f.cpu, 0, &result, &err), ROSE_E_INVAL);
    free(row);
    free(ids);
    free(all);
    fx_close(&f);
    fx_model_free(m);
}

/* A sequence in several entries of a step has the bits of one that runs alone. */
static void test_split_sequences(void **state)
{
    (void)state;
    static const rose_compute types[] = {ROSE_COMPUTE_F32, ROSE_COMPUTE_BF16};
    rose_model *m = fx_model(&g_shape, 3);
    for (uint32_t i = 0; i < 6; i++) {
        fx_seq want = fx_seq_make(m, fx_seed() + i, m->arch.max_positions);
        fx_backend f = fx_open(m, types[i % 2], "auto", 1 + i / 2, 1 + i);
        fx_run(&f, &want, want.n_tokens, 1);
        fx_seq_drop(&f, &want);
        fx_seq got = fx_seq_make(m, fx_seed() + i, want.n_tokens);
        fx_run_split(m, &f, &got, i * 5, 20, fx_seed() + i);
        fx_same(m, &want, &got, "in parts");
        fx_seq_free(&want);
        fx_seq_free(&got);
        fx_close(&f);
    }
    fx_model_free(m);
}

/* NaN in the weights: no id is invented, and nothing else suffers. */
static void test_not_a_number(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shape, 1);
    float nan = NAN;
    /* the embedding of token 5 */
    memcpy((uint8_t *)(uintptr_t)m->tok_embed.data + (size_t)5 * 48 * 4, &nan, 4);
    for (int dtype = 0; dtype < 2; dtype++) {
        fx_backend f = fx_open(m, dtype == 0 ? ROSE_COMPUTE_F32 : ROSE_COMPUTE_BF16, "auto", 2, 0);
        fx_seq bad = fx_seq_make(m, 1, 2), good = fx_seq_make(m, 2, 2);
        bad.tokens[0] = 5;
        good.tokens[0] = 6;
        good.tokens[1] = 7;
        fx_step(&f, (fx_part[]){{&bad, 2, true}, {&good, 2, true}}, 2);
        assert_int_equal(bad.next_ids[0], ROSE_TOKEN_NONE);
        assert_int_equal(bad.next_ids[1], ROSE_TOKEN_NONE); /* it attends to position 0 */
        assert_true(good.next_ids[0] < 77 && good.next_ids[0] != 5);
        assert_true(good.next_ids[1] < 77 && good.next_ids[1] != 5);
        fx_seq_free(&bad);
        fx_seq_free(&good);
        fx_close(&f);
    }
    fx_model_free(m);
}

static void test_bad_batches(void **state)
{
    (void)state;
    rose_model *m = fx_model(&g_shape, 1);
    fx_backend f = fx_open(m, ROSE_COMPUTE_F32, "auto", 1, 0);
    static one o;
    rose_err err;
    uint64_t ticket;
#define BAD(change)                                                                                \
    do {                                                                                           \
        one_init(&o);                                                                              \
        change;                                                                                    \
        memset(&err, 0, sizeof err);                                                               \
        assert_int_equal(f.ops->step(f.cpu, &o.b, &ticket, &err), ROSE_E_INVAL);                   \
        assert_int_equal(ticket, 0);                                                               \
        assert_true(err.msg[0] != '\0');                                                           \
    } while (0)
    BAD(o.tokens[19] = 77);
    BAD(o.tokens[0] = UINT32_MAX);
    BAD(o.b.n_seqs = 0);
    BAD(o.b.n_seqs = FX_MAX_SEQS + 1);
    BAD(o.b.n_tokens = 0);
    BAD(o.b.n_tokens = FX_MAX_ROWS + 1);
    BAD(o.b.n_outputs = FX_MAX_ROWS + 1);
    BAD(o.seq.pos = 81);
    BAD(o.seq.pos = UINT32_MAX);
    BAD(o.seq.first = 1);
    BAD(o.seq.n = 0);
    BAD(o.seq.n = 19);
    BAD(o.seq.n = 21);
    BAD(o.seq.adapter = 1);
    BAD((o.b.n_outputs = 1, o.outs[0].row = 20));
    BAD(o.pages[1] = f.plan.pools[0].n_blocks);
    BAD(o.tokens[0] = ROSE_TOKEN_OUTPUT); /* one step at a time: no step before to name */
    const rose_batch_seq apart[] = {{.n = 10, .table = {o.pages}},
                                    {.first = 10, .n = 10, .pos = 9, .table = {o.pages}}};
    BAD((o.b.n_seqs = 2, o.b.seqs = apart)); /* the same sequence, but not its next position */
    one_init(&o); /* the shared check: a token may name an output that the step before has */
    o.tokens[0] = ROSE_TOKEN_OUTPUT | 1;
    assert_int_equal(rose_backend_check_batch(&o.b, &f.plan, 77, 2, &err), ROSE_OK);
    assert_int_equal(rose_backend_check_batch(&o.b, &f.plan, 77, 1, &err), ROSE_E_INVAL);
    one_init(&o); /* the context still works */
    assert_int_equal(f.ops->step(f.cpu, &o.b, &ticket, &err), ROSE_OK);
    fx_close(&f);
    fx_model_free(m);
}

int main(void)
{
    print_message("seed %llu\n", (unsigned long long)fx_seed());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_resolves_options),
        cmocka_unit_test(test_plan_steps),
        cmocka_unit_test(test_plan_steps_in),
        cmocka_unit_test(test_kv_default_rule),
        cmocka_unit_test(test_kv_windows),
        cmocka_unit_test(test_plan_refuses_options),
        cmocka_unit_test(test_kv_advice),
        cmocka_unit_test(test_plan_refuses_architectures),
        cmocka_unit_test(test_plan_is_what_open_takes),
        cmocka_unit_test(test_open_checks_the_plan),
        cmocka_unit_test(test_packing),
        cmocka_unit_test(test_packing_moves_bf16),
        cmocka_unit_test(test_packing_int8),
        cmocka_unit_test(test_int8_refusals),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_from_a_folder),

        cmocka_unit_test(test_outputs),
        cmocka_unit_test(test_split_sequences),
        cmocka_unit_test(test_not_a_number),
        cmocka_unit_test(test_bad_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
