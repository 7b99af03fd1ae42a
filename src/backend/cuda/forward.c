/* backend/cuda/forward.c - launches the kernels of one step in order, and captures such steps into
 * graphs.
 *
 * All tables of a step are in the header on the device. Their offsets depend only on the shape of
 * the step. One captured graph therefore serves many steps: a graph of n sequences serves every
 * decode step of up to n sequences. A graph of n prompt rows serves every step of one prompt with
 * up to n rows and one output. The tables mark the unused rows, items and outputs as padding.
 *
 * A pass is the launches for all rows of a step, or for one half of them. */
#include "backend/cuda/cuda_internal.h"

/* In steps of up to this many rows all of the L1 is shared memory, so that the next kernel can
 * already be on the SM. Kernels are so short there that this saves 2 to 3 % (2 to 16 rows). From 32
 * rows on it costs 1 to 2 % (H100). */
enum { SHARED_ROWS = 16 };

typedef struct pass {
    rose_cuda *c;
    const rose_cuda_shape *s;
    rose_cuda_header at;
    rose_cuda_launch launch;
    uint32_t first, n_rows; /* rows of the step that this pass computes: all, or one half */
    cudaError_t e;          /* the first error */
} pass;

static pass begin(rose_cuda *c, const rose_cuda_shape *s)
{
    pass p = {.c = c,
              .s = s,
              .n_rows = s->n_rows,
              .launch = {.device = &c->device,
                         .stream = c->stream,
                         .type = c->type,
                         .shared = s->n_rows <= SHARED_ROWS &&
                                   (c->without & ROSE_CUDA_WITHOUT_CARVEOUT) == 0,
                         .without = c->without,
                         .forced = c->forced}};
    rose_cuda_layout_header(&p.at, s);
    return p;
}

static void note(pass *p, cudaError_t e)
{
    if (p->e == cudaSuccess) p->e = e;
    p->launch.dependent = p->c->pdl;
}

static void *table(const pass *p, uint64_t at)
{
    return p->c->header + at;
}

/* The first entry for this pass in a table with one entry for each row. */
static uint32_t *row_table(const pass *p, uint64_t at)
{
    return (uint32_t *)table(p, at) + p->first;
}

static float *x_of(const pass *p)
{
    return p->c->scratch.x + (size_t)p->first * p->c->arch.d_model;
}

/* Address of the pass's first row in a buffer whose rows have that many values of type T. Blocked
 * buffers work too, because `first` is a multiple of 8. */
static void *rows_of(const pass *p, void *base, uint32_t values)
{
    return (uint8_t *)base + (size_t)p->first * values * rose_cuda_type_size(p->c->type);
}

static void embed(pass *p)
{
    rose_cuda *c = p->c;
    const rose_cuda_embed a = {.tok = c->weights.tok,
                               .pos = c->weights.pos,
                               .ids = row_table(p, p->at.tokens),
                               .sampled = c->scratch.sampled,
                               .where = row_table(p, p->at.where),
                               .x = x_of(p),
                               .d = c->arch.d_model,
                               .k_pad = c->weights.head.k_pad,
                               .rows = p->n_rows,
                               .vocab = c->arch.vocab_size};
    note(p, rose_cuda_embed_run(&p->launch, &a));
}

static void norm(pass *p, const float *w, const float *b)
{
    rose_cuda *c = p->c;
    const uint32_t k_pad = c->weights.head.k_pad;
    const rose_cuda_norm a = {.x = x_of(p),
                              .w = w,
                              .b = b,
                              .eps = c->arch.norm_eps,
                              .out = rows_of(p, c->scratch.h, k_pad),
                              .out_k_pad = k_pad,
                              .d = c->arch.d_model,
                              .rows = p->n_rows};
    note(p, rose_cuda_norm_run(&p->launch, &a));
}

rose_cuda_kv rose_cuda_layer_kv(const rose_cuda *c, uint32_t layer)
{
    const uint64_t size = rose_cuda_type_size(c->type);
    const uint64_t layer_bytes = c->plan.kv_page / c->arch.n_layers;
    return (rose_cuda_kv){.base = (uint8_t *)c->kv_base + layer * layer_bytes,
                          .page_elems = c->plan.kv_page / size,
                          .head_dim = c->arch.head_dim,
                          .hd_pad = c->hd_pad,
                          .n_heads = c->arch.n_heads};
}

/* Sets the input of a GEMM that computes the LayerNorm itself. */
static void take_normed(pass *p, rose_cuda_io *io, const float *norm_w, const float *norm_b)
{
    io->rows = p->n_rows;
    io->x = x_of(p);
    io->ld_x = p->c->arch.d_model;
    io->norm_w = norm_w;
    io->norm_b = norm_b;
    io->norm_eps = p->c->arch.norm_eps;
}

/* y = LayerNorm(x) w. One kernel if the GEMM can compute the LayerNorm itself, else two. */
static void norm_linear(pass *p, const rose_cuda_linear *w, const float *norm_w,
                        const float *norm_b, rose_cuda_io io)
{
    take_normed(p, &io, norm_w, norm_b);
    if (!rose_cuda_linear_norms(&p->launch, w, &io)) {
        io.norm_w = io.norm_b = NULL;
        norm(p, norm_w, norm_b);
        io.h = rows_of(p, p->c->scratch.h, p->c->weights.head.k_pad);
    }
    note(p, rose_cuda_linear_run(&p->launch, w, &io));
}

static void residual(pass *p, const rose_cuda_linear *w, const void *h)
{
    const rose_cuda_io io = {.h = h,
                             .x = x_of(p),
                             .ld_x = p->c->arch.d_model,
                             .rows = p->n_rows,
                             .epilogue = ROSE_CUDA_EPI_RESIDUAL};
    note(p, rose_cuda_linear_run(&p->launch, w, &io));
}

/* In decode steps attention writes K and V into their pages, if it can. Attention has whole rows of
 * K and V and writes them in few transactions. The GEMM would write two bytes at a time into many
 * sectors, above all for V. */
static void *kv_rows(const pass *p)
{
    const rose_cuda *c = p->c;
    const bool single = p->s->n_single == p->s->n_rows;
    return single && rose_cuda_attention_adds(&p->launch, p->n_rows * c->arch.n_heads)
               ? c->scratch.kv_rows
               : NULL;
}

static rose_cuda_attention attention_of(pass *p, uint32_t layer)
{
    const rose_cuda *c = p->c;
    return (rose_cuda_attention){.q = c->scratch.q,
                                 .kv = rose_cuda_layer_kv(c, layer),
                                 .tables = table(p, p->at.tables),
                                 .items = table(p, p->at.items),
                                 .kv_rows = kv_rows(p),
                                 .scale = c->weights.layers[layer].scale,
                                 .out = c->scratch.h,
                                 .out_k_pad = c->weights.head.k_pad,
                                 .d = c->arch.d_model};
}

static cudaError_t attend_prompts(const pass *p, const rose_cuda_attention *a)
{
    return p->c->naive ? rose_cuda_attention_plain(&p->launch, a)
                       : rose_cuda_attention_run(&p->launch, a, false);
}

static void attention(pass *p, uint32_t layer)
{
    rose_cuda_attention a = attention_of(p, layer);
    /* One half: every item has one row and names it by its number in the step. */
    if (p->n_rows < p->s->n_rows) {
        a.items += p->first;
        a.n_items = p->n_rows;
        note(p, rose_cuda_attention_run(&p->launch, &a, true));
        return;
    }
    if (p->s->n_single > 0) {
        a.n_items = p->s->n_single;
        note(p, rose_cuda_attention_run(&p->launch, &a, true));
    }
    if (p->s->n_tiles > 0) {
        a.items += p->s->n_single;
        a.n_items = p->s->n_tiles;
        if (p->e == cudaSuccess) note(p, attend_prompts(p, &a));
    }
}

static rose_cuda_io qkv_of(pass *p, uint32_t layer)
{
    rose_cuda *c = p->c;
    void *kv = kv_rows(p);
    return (rose_cuda_io){.epilogue = ROSE_CUDA_EPI_QKV,
                          .kv_rows = kv != NULL ? rows_of(p, kv, 2 * c->arch.d_model) : NULL,
                          /* Every SM also runs a block of the other half's attention. */
                          .late = p->launch.beside,
                          .q = rows_of(p, c->scratch.q, c->arch.d_model),
                          .kv = rose_cuda_layer_kv(c, layer),
                          .slot = row_table(p, p->at.slot)};
}

/* The part of a layer before its attention. */
static void before(pass *p, uint32_t i)
{
    const rose_cuda_layer *l = &p->c->weights.layers[i];
    norm_linear(p, &l->qkv, l->ln1_w, l->ln1_b, qkv_of(p, i));
}

/* Run the part before attention and attention in one kernel, if joined.cu supports the step: every
 * row is single, and item i is row i. */
static bool joined(pass *p, uint32_t i)
{
    rose_cuda *c = p->c;
    const rose_cuda_layer *l = &c->weights.layers[i];
    rose_cuda_attention a = attention_of(p, i);
    rose_cuda_io io = qkv_of(p, i);

    if (p->n_rows != p->s->n_single) return false;
    a.n_items = p->n_rows;
    take_normed(p, &io, l->ln1_w, l->ln1_b);
    if (!rose_cuda_joins(&p->launch, &l->qkv, &io, &a)) return false;
    note(p, rose_cuda_joined_run(&p->launch, &l->qkv, &io, &a));
    return true;
}

/* The part of a layer after its attention. */
static void behind(pass *p, uint32_t i)
{
    rose_cuda *c = p->c;
    const rose_cuda_scratch *s = &c->scratch;
    const rose_cuda_layer *l = &c->weights.layers[i];

    residual(p, &l->proj, rows_of(p, s->h, c->weights.head.k_pad));
    norm_linear(p, &l->fc1, l->ln2_w, l->ln2_b,
                (rose_cuda_io){.epilogue = ROSE_CUDA_EPI_ACT,
                               .out = rows_of(p, s->ff, l->fc2.k_pad),
                               .out_k_pad = l->fc2.k_pad,
                               .act = (uint32_t)c->arch.act});
    residual(p, &l->fc2, rows_of(p, s->ff, l->fc2.k_pad));
}

static void layer(pass *p, uint32_t i)
{
    if (!joined(p, i)) {
        before(p, i);
        attention(p, i);
    }
    behind(p, i);
}

static void sample(pass *p, uint32_t first, uint32_t n)
{
    rose_cuda *c = p->c;
    const rose_cuda_scratch *s = &c->scratch;
    const rose_cuda_sampler sampler = {.logits = s->logits,
                                       .key = s->key + first,
                                       .pick = (rose_cuda_pick *)table(p, p->at.picks) + first,
                                       .ids = table(p, p->at.ids),
                                       .first = first,
                                       .vocab = c->arch.vocab_size,
                                       .ld_logits = s->ld_logits,
                                       .rows = n,
                                       .sampled = s->sampled};
    note(p, rose_cuda_sampler_run(&p->launch, &sampler));
}

/* Compute outputs first .. first + n - 1, at most one block of logits. */
static void outputs(pass *p, uint32_t first, uint32_t n)
{
    rose_cuda *c = p->c;
    const rose_cuda_scratch *s = &c->scratch;
    const rose_cuda_weights *w = &c->weights;
    const rose_cuda_norm gathered = {.x = s->x,
                                     .w = w->lnf_w,
                                     .b = w->lnf_b,
                                     .gather = (uint32_t *)table(p, p->at.gather) + first,
                                     .key = s->key + first,
                                     .eps = c->arch.norm_eps,
                                     .out = s->out_h,
                                     .out_k_pad = w->head.k_pad,
                                     .d = c->arch.d_model,
                                     .rows = n};
    const rose_cuda_io io = {.h = s->out_h,
                             .rows = n,
                             .epilogue = ROSE_CUDA_EPI_LOGITS,
                             .logits = s->logits,
                             .ld_logits = s->ld_logits,
                             .key = s->key + first};
    note(p, rose_cuda_norm_run(&p->launch, &gathered));
    note(p, rose_cuda_linear_run(&p->launch, &w->head, &io));
    sample(p, first, n);
}

static cudaError_t copy_logits(rose_cuda *c, const rose_batch *b, uint32_t first, uint32_t n)
{
    const size_t row = c->arch.vocab_size * sizeof(float);
    return cudaMemcpy2DAsync(b->logits + (size_t)first * c->arch.vocab_size, row, c->scratch.logits,
                             c->scratch.ld_logits * sizeof(float), row, n, cudaMemcpyDeviceToHost,
                             c->stream);
}

cudaError_t rose_cuda_after(rose_cuda *c, const rose_cuda_step *step, uint32_t first, uint32_t n)
{
    const rose_batch *b = step->batch;
    cudaError_t e = b->out_rules != NULL ? rose_cuda_rules_run(c, step, first, n) : cudaSuccess;
    if (e == cudaSuccess && b->logits != NULL) e = copy_logits(c, b, first, n);
    return e;
}

cudaError_t rose_cuda_forward(rose_cuda *c, const rose_cuda_shape *s, const rose_cuda_step *step)
{
    pass p = begin(c, s);
    embed(&p);
    for (uint32_t i = 0; i < c->arch.n_layers; i++)
        layer(&p, i);
    for (uint32_t first = 0; first < s->n_outputs; first += c->scratch.out_block) {
        uint32_t left = s->n_outputs - first;
        uint32_t n = left < c->scratch.out_block ? left : c->scratch.out_block;
        outputs(&p, first, n);
        if (step != NULL && p.e == cudaSuccess) p.e = rose_cuda_after(c, step, first, n);
    }
    return p.e;
}

/* A decode step of one sequence: the megakernel, then the sampler. */
static cudaError_t forward_one(rose_cuda *c, const rose_cuda_shape *s)
{
    pass p = begin(c, s);
    note(&p, rose_cuda_mega_run(&p.launch, &c->mega));
    sample(&p, 0, 1);
    return p.e;
}

/* ---- steps in two halves ---- */

/* Attention of one half of a step is bound by memory. Meanwhile the GEMMs of the other half use the
 * tensor cores. The limits below were measured with GPT-2 124M on an H100. */
enum {
    HALVES_FROM = 25,
    HALVES_TO = 32, /* steps of HALVES_FROM to HALVES_TO rows run in two halves: there attention
                     * has many blocks, and kernels are short */
    /* From here on attention uses few blocks, which still saturate the memory bandwidth, so that
     * GEMM blocks find room on the same SMs. In between, the extra kernels cost more than the
     * overlap saves. */
    BESIDE_FROM = 81,
    /* Most bytes of a layer's weights: both halves read them, and the second half should find them
     * in the L2. */
    BESIDE_WEIGHTS_BYTES = 32 << 20
};

/* How a captured decode step runs: as a whole, as two halves, or as two halves whose attention
 * leaves room for the GEMMs of the other half. */
typedef enum halving { WHOLE, HALVES, HALVES_BESIDE } halving;

static uint64_t layer_bytes(const rose_cuda *c)
{
    const rose_cuda_layer *l = &c->weights.layers[0];
    const rose_cuda_linear *all[] = {&l->qkv, &l->proj, &l->fc1, &l->fc2};
    uint64_t n = 0;
    for (int i = 0; i < 4; i++)
        n += (uint64_t)all[i]->k_pad * all[i]->n_pad;
    return n * rose_cuda_type_size(c->type);
}

/* How a captured decode step of n rows should run, if the model and the GPU allow that. */
static halving halving_by_rows(uint32_t n)
{
    if (n >= HALVES_FROM && n <= HALVES_TO) return HALVES;
    return n >= BESIDE_FROM ? HALVES_BESIDE : WHOLE;
}

static halving halving_of(const rose_cuda *c, const rose_cuda_shape *s)
{
    const halving h = halving_by_rows(s->n_rows);
    if ((c->without & ROSE_CUDA_WITHOUT_HALVES) != 0 || s->n_tiles > 0) return WHOLE;
    const bool few = (c->without & ROSE_CUDA_WITHOUT_AHEAD) == 0 && c->type != ROSE_CUDA_F32 &&
                     c->device.code >= 90 && layer_bytes(c) <= BESIDE_WEIGHTS_BYTES;
    return h == HALVES_BESIDE && !few ? WHOLE : h;
}

/* Let the attention of the second half wait for the attention of the first half. From then on one
 * half runs GEMMs while the other attends. This only affects speed, as the halves share no row. */
static cudaError_t wait_for(rose_cuda *c, pass *first, pass *second)
{
    cudaError_t e = cudaEventRecord(c->fork, first->launch.stream);
    if (e == cudaSuccess) e = cudaStreamWaitEvent(second->launch.stream, c->fork, 0);
    /* The next kernel now follows two kernels, which programmatic dependent launch does not
     * support. */
    second->launch.dependent = false;
    return e;
}

/* A decode step whose layers run as two halves of the rows, each half on its own stream. No bit
 * changes, because rows do not depend on each other. The outputs of all rows are computed together
 * at the end. Used only in a capture, in which the second stream forks from the first one and joins
 * it again. */
static cudaError_t forward_halves(rose_cuda *c, const rose_cuda_shape *s, bool beside)
{
    pass half[2] = {begin(c, s), begin(c, s)}, all = begin(c, s);

    /* for all rows at once: a graph with a single first kernel starts sooner (10 us less with 128
     * sequences, H100) */
    embed(&all);
    cudaError_t e = cudaEventRecord(c->fork, c->stream);
    if (e == cudaSuccess) e = cudaStreamWaitEvent(c->side, c->fork, 0);
    half[0].n_rows = (s->n_rows + 15) / 16 * 8; /* whole blocks of 8 rows */
    half[1].first = half[0].n_rows;
    half[1].n_rows = s->n_rows - half[0].n_rows;
    half[1].launch.stream = c->side;
    for (int i = 0; i < 2; i++) {
        half[i].launch.beside = beside;
        /* Kernels of both halves must have the same split of L1 and shared memory to share an
         * SM. */
        half[i].launch.shared = beside;
    }
    /* The first half's first kernel follows the embedding on the same stream. The last norm follows
     * two kernels, so it is not a dependent launch. */
    half[0].launch.dependent = c->pdl;
    all.launch.dependent = false;
    for (uint32_t j = 0; j < c->arch.n_layers; j++) {
        for (int i = 0; i < 2; i++) {
            before(&half[i], j);
            if (i == 1 && j == 0 && beside && e == cudaSuccess) e = wait_for(c, &half[0], &half[1]);
            attention(&half[i], j);
        }
        for (int i = 0; i < 2; i++)
            behind(&half[i], j);
    }
    for (int i = 0; i < 2; i++)
        if (e == cudaSuccess) e = half[i].e;
    if (e == cudaSuccess) e = cudaEventRecord(c->join, c->side);
    if (e == cudaSuccess) e = cudaStreamWaitEvent(c->stream, c->join, 0);
    if (e == cudaSuccess) outputs(&all, 0, s->n_outputs);
    return e != cudaSuccess ? e : all.e;
}

static cudaError_t capture_for(rose_cuda *c, rose_cuda_graph *g, uint32_t slot)
{
    cudaGraphExec_t *exec = &g->exec[slot];
    const halving h = halving_of(c, &g->shape);
    cudaGraph_t graph = NULL;
    c->header = c->scratch.header[slot];
    rose_cuda_mega_place(c);
    cudaError_t e = cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal);
    if (e != cudaSuccess) return e;
    if (h != WHOLE)
        e = forward_halves(c, &g->shape, h == HALVES_BESIDE);
    else
        e = g->n == 1 && c->has_mega ? forward_one(c, &g->shape)
                                     : rose_cuda_forward(c, &g->shape, NULL);
    /* Also after an error, to end the capture. */
    cudaError_t ended = cudaStreamEndCapture(c->stream, &graph);
    if (e == cudaSuccess) e = ended;
    if (e == cudaSuccess) e = cudaGraphInstantiate(exec, graph, 0);
    if (e == cudaSuccess) e = cudaGraphUpload(*exec, c->stream);
    if (graph != NULL) cudaGraphDestroy(graph);
    return e;
}

static cudaError_t capture_one(rose_cuda *c, rose_cuda_graph *g)
{
    cudaError_t e = cudaSuccess;
    for (uint32_t slot = 0; slot < ROSE_CUDA_SLOTS && e == cudaSuccess; slot++)
        e = capture_for(c, g, slot);
    return e;
}

/* Capture steps of one prompt, up to 512 rows; beyond that, launching is a small part of the step.
 * GEMM tiles have 64 rows, so more sizes would save nothing. */
static rose_status capture_prompts(rose_cuda *c, rose_err *err)
{
    static const uint32_t sizes[] = {16, 32, 64, 128, 192, 256, 320, 384, 448, 512};
    _Static_assert(sizeof sizes / sizeof *sizes <= ROSE_CUDA_MAX_PROMPTS, "prompts[]: too few");

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        rose_cuda_graph *g = &c->prompts[c->n_prompts];
        if (sizes[i] > c->plan.max_step_tokens) break;
        g->n = sizes[i];
        g->shape = (rose_cuda_shape){
            .n_rows = g->n, .n_outputs = 1, .n_tiles = g->n / ROSE_CUDA_TILE_ROWS};
        cudaError_t e = capture_one(c, g);
        if (e != cudaSuccess) return rose_cuda_fail(err, e, "capturing the step of a prompt");
        c->n_prompts++;
    }
    return ROSE_OK;
}

/* Sizes of the captured decode steps. Up to 8 sequences they are close together, because there the
 * kernels differ most. */
static const uint32_t g_sizes[] = {1,  2,  4,  8,  12,  16,  24,  32,  40,  48,
                                   56, 64, 80, 96, 112, 128, 160, 192, 224, 256};
enum { N_SIZES = sizeof g_sizes / sizeof *g_sizes };
_Static_assert((int)N_SIZES <= (int)ROSE_CUDA_MAX_GRAPHS, "graphs[]: too few");

/* Counts the listed sizes only. The last captured size may be smaller than listed, but it is halved
 * only if the listed size is. */
uint32_t rose_cuda_halved(void)
{
    uint32_t n = 0;
    for (size_t i = 0; i < N_SIZES; i++)
        n += halving_by_rows(g_sizes[i]) != WHOLE;
    return n;
}

rose_status rose_cuda_capture(rose_cuda *c, rose_err *err)
{
    uint32_t most = c->scratch.out_block;

    for (size_t i = 0; i < N_SIZES; i++) {
        bool last = g_sizes[i] >= most;
        rose_cuda_graph *g = &c->graphs[c->n_graphs];
        g->n = last ? most : g_sizes[i];
        g->shape = (rose_cuda_shape){.n_rows = g->n, .n_outputs = g->n, .n_single = g->n};
        cudaError_t e = capture_one(c, g);
        if (e != cudaSuccess) return rose_cuda_fail(err, e, "capturing the decode step");
        c->n_graphs++;
        if (last) break;
    }
    c->use_graphs = true;
    const bool prompts = (c->without & ROSE_CUDA_WITHOUT_PROMPTS) == 0;
    return prompts ? capture_prompts(c, err) : ROSE_OK;
}
