/* backend/cuda/load.c - copies the weights from the mapped files to the device, where kernels
 * convert and pack them.
 *
 * A tensor passes in slices of whole rows. Several threads fill a pinned buffer from the file; they
 * widen block types of GGUF to fp32. The slice is then copied to the staging area, and a kernel
 * packs it. There are two pinned buffers, so the threads fill one while the GPU takes the other.
 * The staging area is the memory of the KV pages, which are not in use yet; load zeroes it at the
 * end. */
#include <pthread.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"
#include "backend/rotary.h"
#include "base/cpuinfo.h"
#include "base/progress.h"
#include "model/convert.h"
#include "model/random.h"
#include "model/rope.h"

enum {
    MAX_THREADS = 8,
    ALONE_BYTES = 256 << 10, /* a slice below this size is filled without other threads */
    PACK_ROWS = 8,           /* slices of a matrix that is stored [in][out] begin at multiples */
    FILL_UNIT = 1024         /* values: whole blocks of every type */
};
#define STAGING_BYTES (UINT64_C(16) << 20)

typedef struct loader {
    rose_cuda_rank *rank;
    const rose_model *m;
    rose_cuda_launch launch;
    uint8_t *pinned[ROSE_CUDA_SLOTS]; /* parts of one block of pinned memory, owned */
    uint64_t room;                    /* bytes of each, and of the staging area */
    uint32_t turn;                    /* the buffer that is filled next */
    uint32_t n_threads;
    rose_err *err;
    rose_status st; /* the first error; later work is skipped */
} loader;

static void check(loader *l, cudaError_t e)
{
    if (l->st == ROSE_OK) l->st = rose_cuda_status(l->err, e, "loading the weights");
}

/* ---- work that several threads share ---- */

typedef struct fill {
    /* Fill items first .. end - 1 of the slice. */
    void (*run)(const struct fill *f, uint64_t first, uint64_t end);
    void *out; /* pinned memory; of RoPE the cosines */
    float *sin;
    const rose_tensor *t;
    uint64_t from; /* first value of the slice */
    const float *inv_freq;
    float factor;
    uint32_t half, position; /* of RoPE */
} fill;

typedef struct share {
    const fill *f;
    uint64_t first, end;
} share;

static void *run_share(void *arg)
{
    const share *s = arg;
    s->f->run(s->f, s->first, s->end);
    return NULL;
}

/* Run f on items 0 .. n - 1. Shares of the threads begin at multiples of unit. The calling thread
 * does the share of a thread that cannot be created. */
static void fill_shared(const loader *l, const fill *f, uint64_t n, uint64_t unit, uint64_t bytes)
{
    pthread_t threads[MAX_THREADS];
    share shares[MAX_THREADS];
    bool created[MAX_THREADS] = {false};
    const uint32_t n_threads = bytes < ALONE_BYTES ? 1 : l->n_threads;
    const uint64_t each = (n / unit / n_threads + 1) * unit;

    for (uint32_t i = n_threads; i-- > 0;) {
        const uint64_t first = i * each < n ? i * each : n;
        shares[i] = (share){f, first, n - first < each ? n : first + each};
        if (i > 0) created[i] = pthread_create(&threads[i], NULL, run_share, &shares[i]) == 0;
        if (!created[i]) run_share(&shares[i]);
    }
    for (uint32_t i = 1; i < n_threads; i++)
        if (created[i]) pthread_join(threads[i], NULL);
}

/* ---- slices ---- */

/* Returns the next pinned buffer, once the GPU has taken what was in it. */
static void *next_buffer(loader *l)
{
    check(l, rose_cuda_wait(l->rank->c, l->rank->c->slots[l->turn].sent));
    return l->pinned[l->turn];
}

/* Copy the first `bytes` of the buffer at `from`, a part of the next pinned buffer. */
static void send(loader *l, void *to, const void *from, uint64_t bytes)
{
    if (l->st != ROSE_OK) return;
    check(l, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, l->rank->stream));
}

/* The GPU has been told to take the buffer; it may be filled again when this point is reached. */
static void end_buffer(loader *l)
{
    if (l->st != ROSE_OK) return;
    check(l, cudaEventRecord(l->rank->c->slots[l->turn].sent, l->rank->stream));
    l->turn = (l->turn + 1) % ROSE_CUDA_SLOTS;
}

static void fill_values(const fill *f, uint64_t first, uint64_t end)
{
    const size_t size = rose_format_size(f->t->dtype);
    if (size == 0)
        rose_tensor_read_f32(f->t, f->from + first, end - first, (float *)f->out + first);
    else
        memcpy((uint8_t *)f->out + first * size,
               (const uint8_t *)f->t->data + (f->from + first) * size, (end - first) * size);
}

/* Bring values from .. from + n - 1 of t to the staging area. */
static void stage_values(loader *l, const rose_tensor *t, uint64_t from, uint64_t n, uint64_t size)
{
    const fill f = {.run = fill_values, .t = t, .out = next_buffer(l), .from = from};
    if (l->st != ROSE_OK) return;
    fill_shared(l, &f, n, FILL_UNIT, n * size);
    send(l, l->rank->kv_base, f.out, n * size);
    end_buffer(l);
}

/* Load format "dummy": the GPU draws the values. */
static void draw_values(loader *l, const rose_tensor *t, uint64_t from, uint64_t n)
{
    const rose_random_values v = rose_dummy_values(l->m, t);
    const rose_cuda_draw draw = {.dst = l->rank->kv_base,
                                 .type = t->dtype,
                                 .n = n,
                                 .first = v.first + from,
                                 .seed = v.seed,
                                 .stream = v.stream,
                                 .mean = v.mean,
                                 .scale = v.scale};
    check(l, rose_cuda_draw_run(&l->launch, &draw));
}

/* Load `rows` rows of `width` values. pack says where they go; floats: as fp32, unpacked. */
static void load_rows(loader *l, const rose_tensor *t, uint64_t rows, uint64_t width,
                      rose_cuda_pack pack, bool floats)
{
    const bool blocks = rose_format_is_quant(t->dtype);
    const uint64_t size = blocks ? sizeof(float) : rose_format_size(t->dtype);
    uint64_t step = l->room / (width * size);

    if (step > PACK_ROWS) step -= step % PACK_ROWS;
    if (l->st == ROSE_OK && step < PACK_ROWS && step < rows)
        l->st =
            rose_fail(l->err, ROSE_E_NOMEM,
                      "%s: %d rows of %llu bytes exceed the KV pool, which is the staging area; "
                      "raise num-kv-pages or kv-cache-memory",
                      t->name, PACK_ROWS, (unsigned long long)(width * size));
    for (uint64_t at = 0; at < rows && l->st == ROSE_OK; at += step) {
        const uint64_t n = rows - at < step ? rows - at : step;
        if (l->m->dummy)
            draw_values(l, t, at * width, n * width);
        else
            stage_values(l, t, at * width, n * width, size);
        pack.src = l->rank->kv_base;
        pack.src_type = blocks ? ROSE_F32 : t->dtype;
        pack.first_row = (uint32_t)at;
        pack.n_rows = (uint32_t)n;
        pack.width = (uint32_t)width;
        if (l->st != ROSE_OK) return;
        check(l, floats ? rose_cuda_floats_run(&l->launch, &pack)
                        : rose_cuda_pack_run(&l->launch, &pack));
    }
}

/* ---- tensors ---- */

/* A tensor that the model does not have leaves the zeros. add: to every value. */
static void load_floats(loader *l, const rose_tensor *t, const float *to, uint64_t rows,
                        uint64_t width, float add)
{
    if (t->data == NULL || to == NULL) return;
    load_rows(l, t, rows, width, (rose_cuda_pack){.dst = (void *)(uintptr_t)to, .add = add}, true);
}

static void load_norm(loader *l, const rose_cuda_norm_by *to, const rose_tensor *w,
                      const rose_tensor *bias)
{
    const uint32_t d = l->rank->c->arch.d_model;
    load_floats(l, w, to->w, 1, d, l->rank->c->arch.norm_plus_one ? 1.0f : 0.0f);
    if (bias != NULL) load_floats(l, bias, to->b, 1, d, 0);
}

static void load_packed(loader *l, const rose_tensor *t, bool transposed, rose_cuda_pack pack)
{
    pack.transposed = transposed;
    load_rows(l, t, t->shape[0], t->shape[1], pack, false);
}

/* Part i of n of the rows of t. */
static rose_tensor rows_of(const rose_tensor *t, uint32_t i, uint32_t n)
{
    rose_tensor part = *t;
    part.shape[0] /= n;
    const uint64_t values = part.shape[0] * (t->n_dims == 2 ? t->shape[1] : 1);
    if (t->data != NULL)
        part.data = (const uint8_t *)t->data + i * rose_values_bytes(t->dtype, values);
    return part;
}

/* The parts of the file stand one after the other in the packed matrix; gate and up interleave. A
 * file that holds gate and up in one tensor has gate first. */
static void load_linear(loader *l, const rose_linear *from, const rose_cuda_matrix *to)
{
    const uint32_t halves = to->gated && from->n_parts == 1 ? 2 : 1;
    uint32_t first = 0;
    if (l->st == ROSE_OK && !from->transposed && (from->n_parts > 1 || to->gated))
        l->st = rose_fail(l->err, ROSE_E_UNSUPPORTED,
                          "tensor %s: the CUDA backend stacks matrices stored by output",
                          from->w[0].name);
    for (uint32_t i = 0; i < from->n_parts * halves && l->st == ROSE_OK; i++) {
        const rose_tensor w = rows_of(&from->w[i / halves], i % halves, halves);
        const rose_tensor bias = rows_of(&from->b[i / halves], i % halves, halves);
        const uint32_t n_out = (uint32_t)w.shape[from->transposed ? 0 : 1];
        const uint32_t heads = from->permuted_heads[i / halves];
        rose_cuda_pack pack = {.dst = to->w,
                               .format = to->format,
                               .k_pad = to->k_pad,
                               .first_out = to->gated ? i : first,
                               .gated = to->gated,
                               .permuted_dim = heads > 0 ? n_out / heads : 0};
        load_packed(l, &w, from->transposed, pack);
        pack.dst = to->bias;
        if (bias.data != NULL && to->bias != NULL) load_rows(l, &bias, 1, n_out, pack, true);
        first += n_out;
    }
}

/* ---- sines and cosines ---- */

static void fill_rope(const fill *f, uint64_t first, uint64_t end)
{
    float *cos = f->out, *sin = f->sin;
    rose_rotary_rows(cos + first * f->half, sin + first * f->half, f->inv_freq, f->half, f->factor,
                     f->position + (uint32_t)first, f->position + (uint32_t)end);
}

/* The same numbers as on the CPU: sines, cosines and frequencies come from the same functions. */
static void load_rope(loader *l, uint32_t i)
{
    const rose_cuda_weights *w = &l->rank->weights;
    const uint32_t half = w->rot_dim[i] / 2, positions = l->rank->c->plan.max_model_len;
    float inv_freq[ROSE_ATTEND_MAX_HEAD_DIM / 2];
    fill f = {.run = fill_rope, .inv_freq = inv_freq, .half = half};
    if (half == 0 || l->st != ROSE_OK) return;
    const uint64_t row_bytes = half * sizeof(float), step = l->room / (2 * row_bytes);
    rose_rope_table(&l->rank->c->arch.kinds[i].mixer.rope, positions, inv_freq, &f.factor);
    for (uint64_t at = 0; at < positions && l->st == ROSE_OK; at += step) {
        const uint64_t n = positions - at < step ? positions - at : step;
        f.out = next_buffer(l);
        f.sin = (float *)f.out + step * half;
        f.position = (uint32_t)at;
        if (l->st != ROSE_OK) return;
        fill_shared(l, &f, n, 1, 2 * n * row_bytes);
        send(l, w->cos[i] + at * half, f.out, n * row_bytes);
        send(l, w->sin[i] + at * half, f.sin, n * row_bytes);
        end_buffer(l);
    }
}

/* ---- the model ---- */

static void load_layer(loader *l, const rose_layer *from, const rose_cuda_layer *to)
{
    const float add = l->rank->c->arch.norm_plus_one ? 1.0f : 0.0f;
    const uint32_t head_dim = rose_arch_any(&l->rank->c->arch)->mixer.head_dim;
    load_norm(l, &to->ln1, &from->ln1_w, &from->ln1_b);
    load_norm(l, &to->ln2, &from->ln2_w, &from->ln2_b);
    load_norm(l, &to->post1, &from->post1, NULL);
    load_norm(l, &to->post2, &from->post2, NULL);
    load_floats(l, &from->q_norm, to->q_norm, 1, head_dim, add);
    load_floats(l, &from->k_norm, to->k_norm, 1, head_dim, add);
    for (int i = 0; i < ROSE_N_ROLES; i++)
        if (to->m[i].n > 0) load_linear(l, &from->m[i], &to->m[i]);
}

static void load_all(loader *l)
{
    const rose_model *m = l->m;
    const rose_cuda_rank *rank = l->rank;
    const rose_cuda_weights *w = &rank->weights;
    const rose_cuda_pack head = {
        .dst = w->head.w, .format = w->head.format, .k_pad = w->head.k_pad};
    rose_cuda_pack tok = head;
    tok.dst = w->tok;

    rose_progress bar;
    rose_progress_wait(&bar, "cuda", "loading weights", rank->c->arch.n_layers);
    for (uint32_t i = 0; i < rank->c->arch.n_layers; i++) {
        load_layer(l, &m->layers[i], &w->layers[i]);
        rose_progress_update(&bar, i + 1, "layers");
    }
    rose_progress_end(&bar);
    load_floats(l, &m->pos_embed, w->pos, rank->c->plan.max_model_len, rank->c->arch.d_model, 0);
    for (uint32_t i = 0; i < rank->c->arch.n_kinds; i++)
        load_rope(l, i);
    load_norm(l, &w->lnf, &m->lnf_w, &m->lnf_b);
    load_packed(l, &m->head, true, head);
    if (w->tok != w->head.w) load_packed(l, &m->tok_embed, true, tok);
}

static uint32_t count_threads(void)
{
    int cpus[MAX_THREADS];
    const uint32_t allowed = rose_cpus_allowed(cpus, MAX_THREADS), quota = rose_cpus_quota();
    const uint32_t n = quota < allowed ? quota : allowed;
    return n > 0 ? n : 1;
}

rose_status rose_cuda_load(rose_cuda_rank *rank, const rose_model *m, rose_err *err)
{
    loader l = {
        .rank = rank,
        .m = m,
        .launch = {.device = &rank->device, .stream = rank->stream, .type = rank->c->type},
        .room = rank->c->plan.kv < STAGING_BYTES ? rank->c->plan.kv : STAGING_BYTES,
        .n_threads = count_threads(),
        .err = err,
    };
    void *pinned = NULL;

    check(&l, cudaHostAlloc(&pinned, ROSE_CUDA_SLOTS * l.room, cudaHostAllocDefault));
    for (uint32_t i = 0; i < ROSE_CUDA_SLOTS && pinned != NULL; i++)
        l.pinned[i] = (uint8_t *)pinned + i * l.room;
    check(&l, cudaMemsetAsync(rank->weights_base, 0, rank->c->plan.weights, rank->stream));
    check(&l, cudaMemsetAsync(rank->scratch_base, 0, rank->c->plan.scratch, rank->stream));
    if (l.st == ROSE_OK) load_all(&l);
    /* KV pages never hold an infinity or a NaN, so a masked position contributes exactly zero. */
    check(&l, cudaMemsetAsync(rank->kv_base, 0, rank->c->plan.kv, rank->stream));
    check(&l, rose_cuda_finish(rank));
    if (!rank->c->lost) cudaFreeHost(pinned); /* would wait for a lost device */
    return l.st;
}
