/* backend/cuda/graphs.c - captured steps.
 *
 * One captured graph serves many steps, because the places of the tables in the step's header
 * (cuda_internal.h) depend only on the shape of the step: a graph of n sequences serves every
 * decode step of up to n sequences, with contexts of any length. A graph of n prompt rows serves
 * every step of one prompt with up to n rows and one output. A graph of n rows with guesses serves
 * every decode step with up to n rows, each an output. The tables mark the unused rows, items,
 * units and outputs as padding. A step that gives states has no graph, because it may leave out the
 * head. */
#include "backend/cuda/cuda_internal.h"

/* Sizes of the captured decode steps. Up to 8 sequences they are close together, because there the
 * kernels differ most. */
static const uint32_t g_sizes[] = {1,  2,  4,  8,  12,  16,  24,  32,  40,  48,
                                   56, 64, 80, 96, 112, 128, 160, 192, 224, 256};
enum { N_SIZES = sizeof g_sizes / sizeof *g_sizes };
_Static_assert((int)N_SIZES <= (int)ROSE_CUDA_MAX_GRAPHS, "graphs[]: too few");

/* Rows of a captured step of one prompt; beyond 512, launching is a small part of the step. GEMM
 * tiles have 64 rows, so more sizes would save nothing. */
static const uint32_t g_prompts[] = {16, 32, 64, 128, 192, 256, 320, 384, 448, 512};
enum { N_PROMPTS = sizeof g_prompts / sizeof *g_prompts };
_Static_assert((int)N_PROMPTS <= (int)ROSE_CUDA_MAX_PROMPTS, "prompts[]: too few");

/* Rows of a captured step of sequences with guesses. */
static const uint32_t g_guesses[] = {2, 4, 6, 8, 12, 16, 24, 32, 40, 48, 64, 80};
enum { N_GUESSES = sizeof g_guesses / sizeof *g_guesses };
_Static_assert((int)N_GUESSES <= (int)ROSE_CUDA_MAX_GUESSES, "guesses[]: too few");

/* ---- capture ---- */

/* A decode step of one sequence: one kernel, then the sampler. */
static cudaError_t forward_fast(rose_cuda_rank *rank, const rose_cuda_shape *s)
{
    rose_cuda_pass p = rose_cuda_pass_begin(rank, s);
    cudaError_t e = rank->fast(rank, &p.launch);
    p.launch.dependent = rank->c->pdl;
    if (e == cudaSuccess) rose_cuda_pass_sample(&p, 0, 1);
    return e != cudaSuccess ? e : p.e;
}

static cudaError_t forward(rose_cuda_rank *rank, const rose_cuda_shape *s)
{
    if (s->n_single == 1 && s->n_rows == 1 && rank->fast != NULL) return forward_fast(rank, s);
    return rose_cuda_forward(rank, s, NULL);
}

static cudaError_t capture_for(rose_cuda_rank *rank, rose_cuda_graph *g, uint32_t slot)
{
    cudaGraphExec_t *exec = &g->exec[slot];
    cudaGraph_t graph = NULL;
    rank->header = rank->scratch.header[slot];
    cudaError_t e = cudaStreamBeginCapture(rank->stream, cudaStreamCaptureModeThreadLocal);
    if (e != cudaSuccess) return e;
    e = forward(rank, &g->shape);
    /* Also after an error, to end the capture. */
    cudaError_t ended = cudaStreamEndCapture(rank->stream, &graph);
    if (e == cudaSuccess) e = ended;
    if (e == cudaSuccess) e = cudaGraphInstantiate(exec, graph, 0);
    if (e == cudaSuccess) e = cudaGraphUpload(*exec, rank->stream);
    if (graph != NULL) cudaGraphDestroy(graph);
    return e;
}

static cudaError_t capture_one(rose_cuda_rank *rank, rose_cuda_graph *g)
{
    cudaError_t e = cudaSuccess;
    rose_cuda_shape_cuts(&g->shape, &rank->c->arch, &rank->c->plan, rank->device.sms);
    for (uint32_t slot = 0; slot < ROSE_CUDA_SLOTS && e == cudaSuccess; slot++)
        e = capture_for(rank, g, slot);
    return e;
}

static rose_status capture_prompts(rose_cuda_rank *rank, rose_err *err)
{
    const uint32_t item_rows = rose_cuda_item_rows(&rank->c->arch);
    for (size_t i = 0; i < N_PROMPTS; i++) {
        rose_cuda_graph *g = &rank->prompts[rank->n_prompts];
        if (g_prompts[i] > rank->c->plan.max_step_tokens) break;
        g->n = g_prompts[i];
        g->shape = (rose_cuda_shape){
            .n_rows = g->n, .n_outputs = 1, .n_tiles = (g->n + item_rows - 1) / item_rows};
        cudaError_t e = capture_one(rank, g);
        if (e != cudaSuccess) return rose_cuda_status(err, e, "capturing the step of a prompt");
        rank->n_prompts++;
    }
    return ROSE_OK;
}

/* Each row is an item of its own. A row sees the rows before it, so a kernel before attention
 * appends K and V. Scratch memory has room for max_seqs items. */
static rose_status capture_guesses(rose_cuda_rank *rank, rose_err *err)
{
    const rose_memory_plan *p = &rank->c->plan;
    for (size_t i = 0; i < N_GUESSES; i++) {
        rose_cuda_graph *g = &rank->guesses[rank->n_guesses];
        const uint32_t n = g_guesses[i];
        if (n > p->max_seqs || n > p->max_step_tokens || n > rank->scratch.out_block) break;
        g->n = n;
        g->shape = (rose_cuda_shape){.n_rows = n, .n_outputs = n, .n_single = n, .shared = true};
        cudaError_t e = capture_one(rank, g);
        if (e != cudaSuccess) return rose_cuda_status(err, e, "capturing a step with guesses");
        rank->n_guesses++;
    }
    return ROSE_OK;
}

rose_status rose_cuda_capture_decode(rose_cuda_rank *rank, uint32_t n, rose_err *err)
{
    rose_cuda_graph *g = &rank->graphs[rank->n_graphs];
    g->n = n;
    g->shape = (rose_cuda_shape){.n_rows = n, .n_outputs = n, .n_single = n};
    const cudaError_t e = capture_one(rank, g);
    if (e != cudaSuccess) return rose_cuda_status(err, e, "capturing the decode step");
    rank->n_graphs++;
    rank->c->use_graphs = true;
    return ROSE_OK;
}

rose_status rose_cuda_capture(rose_cuda_rank *rank, rose_err *err)
{
    const uint32_t listed = g_sizes[N_SIZES - 1];
    const uint32_t most = rank->c->plan.max_seqs < listed ? rank->c->plan.max_seqs : listed;

    for (size_t i = 0; i < N_SIZES; i++) {
        const bool last = g_sizes[i] >= most;
        const rose_status st = rose_cuda_capture_decode(rank, last ? most : g_sizes[i], err);
        if (st != ROSE_OK) return st;
        if (last) break;
    }
    const uint32_t without = rank->c->without;
    rose_status st = ROSE_OK;
    if ((without & ROSE_CUDA_WITHOUT_PROMPTS) == 0) st = capture_prompts(rank, err);
    if (st == ROSE_OK && (without & ROSE_CUDA_WITHOUT_GUESSES) == 0)
        st = capture_guesses(rank, err);
    return st;
}

static void drop(rose_cuda_graph *g)
{
    for (uint32_t i = 0; i < ROSE_CUDA_SLOTS; i++)
        if (g->exec[i] != NULL) cudaGraphExecDestroy(g->exec[i]);
    *g = (rose_cuda_graph){0};
}

void rose_cuda_drop_graphs(rose_cuda_rank *rank)
{
    for (uint32_t i = 0; i < ROSE_CUDA_MAX_GRAPHS; i++)
        drop(&rank->graphs[i]);
    for (uint32_t i = 0; i < ROSE_CUDA_MAX_PROMPTS; i++)
        drop(&rank->prompts[i]);
    for (uint32_t i = 0; i < ROSE_CUDA_MAX_GUESSES; i++)
        drop(&rank->guesses[i]);
    rank->n_graphs = rank->n_prompts = rank->n_guesses = 0;
    rank->c->use_graphs = false;
}

/* ---- choice ---- */

static const rose_cuda_graph *smallest(const rose_cuda_graph *graphs, uint32_t n_graphs, uint32_t n)
{
    for (uint32_t i = 0; i < n_graphs; i++)
        if (graphs[i].n >= n) return &graphs[i];
    return NULL;
}

/* There are graphs for decode steps (one row and one output for each sequence), for decode steps
 * with guesses (several rows, each an output) and for steps of one prompt (several rows, one
 * output). */
const rose_cuda_graph *rose_cuda_graph_for(const rose_cuda_rank *rank, const rose_batch *b)
{
    bool shared = false;
    if (!rank->c->use_graphs || rose_batch_has_sums(b)) return NULL;
    if (b->n_seqs == 1 && b->n_tokens > 1 && b->n_outputs == 1)
        return rank->c->naive ? NULL : smallest(rank->prompts, rank->n_prompts, b->n_tokens);
    if (b->n_outputs != b->n_tokens) return NULL;
    for (uint32_t i = 0; i < b->n_outputs; i++)
        if (b->outs[i].row != i) return NULL;
    for (uint32_t i = 0; i < b->n_seqs;) /* only graphs[] append K and V in the decode kernel */
        shared |= rose_batch_next(b, &i).n > 1;
    if (shared) return smallest(rank->guesses, rank->n_guesses, b->n_tokens);
    const rose_cuda_graph *g = smallest(rank->graphs, rank->n_graphs, b->n_seqs);
    /* A graph of several blocks of logits leaves only the last block. */
    if (g == NULL || g->n <= rank->scratch.out_block) return g;
    return b->logits != NULL || rose_batch_has_rules(b) ? NULL : g;
}

/* ---- size ---- */

uint64_t rose_cuda_graph_nodes(const rose_arch *a, uint32_t without)
{
    const uint32_t after = rose_norms_after(&rose_arch_any(a)->norms);
    const bool act = (without & ROSE_CUDA_WITHOUT_MLP) != 0;
    /* Two norms, four GEMMs, RoPE and attention, which may fold its results in a second kernel. */
    const uint64_t layer = 9 + after + (act ? 1u : 0u);
    /* The embedding, and for a block of logits a norm, the head, the largest logit and the
     * sampler. More than one block is rare, and its kernels are few. */
    const uint64_t step = layer * a->n_layers + 1 + 4;
    uint64_t n = ROSE_CUDA_MAX_GRAPHS;
    if ((without & ROSE_CUDA_WITHOUT_PROMPTS) == 0) n += ROSE_CUDA_MAX_PROMPTS;
    if ((without & ROSE_CUDA_WITHOUT_GUESSES) == 0) n += ROSE_CUDA_MAX_GUESSES;
    return n * ROSE_CUDA_SLOTS * step;
}
