/* backend/cpu/load.c - from the model's mapping to packed weights: panels of every matrix, vectors
 * as fp32, the rows of a token embedding, tables of sines and cosines. All threads of the pool
 * share each tensor. The pages of the file leave our resident size as soon as their tensor is
 * packed. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cpu/cpu_internal.h"
#include "backend/cpu/pack.h"
#include "backend/rotary.h"
#include "base/progress.h"
#include "model/convert.h"
#include "model/random.h"
#include "model/rope.h"

typedef struct pack_job {
    const rose_tensor *t;    /* one tensor: the first count elements */
    const rose_linear *from; /* else a run of a matrix, to panels */
    const rose_cpu_linear *l;
    const rose_cpu_run *run;
    void *out;
    atomic_bool *not_finite;
    atomic_bool *no_memory;
    uint32_t k;
    uint64_t count;
} pack_job;

/* Returns the rows of the transposed matrix that panel p of this run contains. Parts other than
 * gate and up consist of whole panels (check_stacked in cpu_backend.c). `rows` is scratch memory
 * for one panel. It is used if the file has the rows in another order. */
static rose_tensor panel_rows(const pack_job *j, uint32_t p, void *rows)
{
    const rose_cpu_linear *l = j->l;
    uint64_t row = (uint64_t)(l->gated ? p / 2 : p) * ROSE_PANEL;
    const uint64_t n = j->run->n - row < ROSE_PANEL ? j->run->n - row : ROSE_PANEL;
    uint32_t part = 0;

    row += j->run->first;

    if (l->gated && p % 2 == 1) row += l->n; /* up */
    for (; part + 1 < j->from->n_parts && row >= j->from->w[part].shape[0]; part++)
        row -= j->from->w[part].shape[0];
    rose_tensor t = j->from->w[part];
    if (j->from->permuted_heads[part] != 0) {
        rose_linear_copy_rows(j->from, part, row, n, rows);
        t.data = rows;
    } else {
        t.data = (const uint8_t *)t.data + row * rose_values_bytes(t.dtype, j->k);
    }
    t.shape[0] = n;
    return t;
}

/* Bytes that panel_rows needs; 0 if all rows are in order. */
static size_t row_room(const pack_job *j)
{
    size_t most = 0;
    for (uint32_t i = 0; i < j->from->n_parts; i++) {
        const size_t bytes = (size_t)rose_values_bytes(j->from->w[i].dtype, j->k) * ROSE_PANEL;
        if (j->from->permuted_heads[i] != 0 && bytes > most) most = bytes;
    }
    return most;
}

static void pack_panels(const pack_job *j, uint32_t p0, uint32_t p1)
{
    const rose_cpu_run *r = j->run;
    const size_t panel_bytes = rose_panels_bytes(r->type, j->k, ROSE_PANEL);
    const size_t room = row_room(j);
    void *rows = room > 0 ? malloc(room) : NULL;
    bool finite = true;

    if (room > 0 && rows == NULL) {
        atomic_store_explicit(j->no_memory, true,
                              memory_order_relaxed); /* the end of the job publishes it */
        return;
    }
    if (!j->from->transposed)
        finite =
            rose_pack_panels(r->w, r->scale, r->type, &j->from->w[0], j->k, r->n, false, p0, p1);
    for (uint32_t p = p0; j->from->transposed && p < p1; p++) {
        const rose_tensor t = panel_rows(j, p, rows);
        float *scale = r->scale != NULL ? r->scale + (size_t)p * ROSE_PANEL : NULL;
        finite &= rose_pack_panels((uint8_t *)r->w + p * panel_bytes, scale, r->type, &t, j->k,
                                   (uint32_t)t.shape[0], true, 0, 1);
    }
    free(rows);
    if (!finite)
        atomic_store_explicit(j->not_finite, true,
                              memory_order_relaxed); /* the end of the job publishes it */
}

static void pack_thread(void *arg, uint32_t tid, uint32_t n)
{
    const pack_job *j = arg;
    if (j->from != NULL) {
        const rose_matmul shape = {.n = j->run->n, .gated = j->l->gated};
        const uint64_t n_panels = rose_matmul_panels(&shape);
        pack_panels(j, (uint32_t)rose_share(n_panels, tid, n),
                    (uint32_t)rose_share(n_panels, tid + 1, n));
        return;
    }
    uint64_t first = j->count * tid / n, end = j->count * (tid + 1) / n;
    rose_tensor_read_f32(j->t, first, end - first, (float *)j->out + first);
}

/* The rows of a token embedding, in the file's type or rounded to bf16. */
static void copy_rows_thread(void *arg, uint32_t tid, uint32_t n)
{
    const pack_job *j = arg;
    const rose_tensor *to = j->out;
    const uint64_t width = j->t->shape[1], first = rose_share(j->count, tid, n) * width;
    const uint64_t count = rose_share(j->count, tid + 1, n) * width - first;
    const uint64_t at = rose_values_bytes(to->dtype, first);
    uint8_t *out = (uint8_t *)(uintptr_t)to->data + at;
    if (to->dtype == j->t->dtype)
        memcpy(out, (const uint8_t *)j->t->data + at, rose_values_bytes(to->dtype, count));
    else
        rose_pack_bf16((uint16_t *)(void *)out, j->t, first, count);
}

/* Tells the system that the file pages of the packed tensor are no longer needed. They leave our
 * resident size at once and stay in the page cache. Only whole pages of a real mapping are
 * dropped. */
static void drop_pages(const rose_model *m, const rose_tensor *t, uint64_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t data = (uintptr_t)t->data;
    const uintptr_t first = (data + page - 1) / page * page;
    const uintptr_t end = (data + bytes) / page * page;
    if (m->weights == NULL || end <= first) return;
    madvise((void *)first, end - first, MADV_DONTNEED);
}

static rose_status pack_matrix(rose_cpu *c, const rose_model *m, const rose_linear *from,
                               uint32_t k, rose_cpu_linear *l, rose_err *err)
{
    atomic_bool not_finite = false, no_memory = false;
    pack_job j = {.from = from, .l = l, .not_finite = &not_finite, .no_memory = &no_memory, .k = k};
    for (j.run = l->runs; j.run < l->runs + l->n_runs; j.run++)
        rose_pool_run(c->pool, pack_thread, &j);
    for (uint32_t i = 0; i < from->n_parts; i++)
        drop_pages(m, &from->w[i], rose_values_bytes(from->w[i].dtype, rose_tensor_n(&from->w[i])));
    if (atomic_load_explicit(&no_memory, memory_order_relaxed))
        return rose_fail(err, ROSE_E_NOMEM, "tensor %s: out of memory", from->w[0].name);
    if (atomic_load_explicit(&not_finite, memory_order_relaxed))
        return rose_fail(
            err, ROSE_E_UNSUPPORTED,
            "quantization int8: tensor %s holds NaN or infinity; use quantization none",
            from->w[0].name);
    return ROSE_OK;
}

/* A missing tensor leaves the zeros. */
static void pack_vector(rose_cpu *c, const rose_model *m, const rose_tensor *t, float *out,
                        uint64_t count)
{
    pack_job j = {.t = t, .out = out, .count = count};
    if (t->data == NULL || out == NULL) return;
    rose_pool_run(c->pool, pack_thread, &j);
    drop_pages(m, t, rose_values_bytes(t->dtype, count));
}

/* 1 + w, where the architecture says so. */
static void pack_norm(rose_cpu *c, const rose_model *m, const rose_tensor *t, float *out,
                      uint32_t n)
{
    pack_vector(c, m, t, out, n);
    if (out == NULL || !c->arch.norm_plus_one) return;
    for (uint32_t i = 0; i < n; i++)
        out[i] = 1.0f + out[i];
}

/* The biases of the parts, stacked; gated: in the order of the panels. */
static void pack_bias(const rose_linear *from, rose_cpu_linear *l)
{
    uint64_t at = 0;
    for (uint32_t part = 0; l->bias != NULL && part < from->n_parts; part++) {
        const uint64_t n = rose_tensor_n(&from->b[part]);
        for (uint64_t i = 0; i < n; i++, at++) {
            const uint64_t y = at % l->n, up = at / l->n * ROSE_PANEL;
            const uint64_t to =
                l->gated ? y / ROSE_PANEL * 2 * ROSE_PANEL + up + y % ROSE_PANEL : at;
            rose_linear_copy_bias(from, part, i, 1, l->bias + to);
        }
    }
}

static rose_status pack_linear(rose_cpu *c, const rose_model *m, const rose_linear *from,
                               uint32_t k, rose_cpu_linear *l, rose_err *err)
{
    if (!from->transposed && (l->gated || from->n_parts > 1))
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "tensor %s: the CPU backend stacks matrices stored by output",
                         from->w[0].name);
    pack_bias(from, l);
    return pack_matrix(c, m, from, k, l, err);
}

static rose_status pack_layer(rose_cpu *c, const rose_model *m, uint32_t layer, rose_err *err)
{
    const rose_layer *from = &m->layers[layer];
    rose_cpu_layer *l = &c->weights.layers[layer];
    const rose_kind *k = rose_arch_kind(&c->arch, layer);
    const uint32_t d = c->arch.d_model, head_dim = k->mixer.head_dim;
    rose_matrix_spec specs[ROSE_N_ROLES];
    const size_t n = rose_kind_matrices(&c->arch, k, specs);
    rose_status st = ROSE_OK;
    pack_norm(c, m, &from->ln1_w, l->ln1_w, d);
    pack_vector(c, m, &from->ln1_b, l->ln1_b, d);
    pack_norm(c, m, &from->ln2_w, l->ln2_w, d);
    pack_vector(c, m, &from->ln2_b, l->ln2_b, d);
    pack_norm(c, m, &from->post1, l->post1, d);
    pack_norm(c, m, &from->post2, l->post2, d);
    pack_norm(c, m, &from->q_norm, l->q_norm, head_dim);
    pack_norm(c, m, &from->k_norm, l->k_norm, head_dim);
    for (size_t i = 0; st == ROSE_OK && i < n; i++) {
        const rose_role r = specs[i].role;
        st = pack_linear(c, m, &from->m[r], specs[i].k, &l->m[r], err);
    }
    return st;
}

/* ---- sines and cosines ---- */

typedef struct rope_job {
    const rose_cpu_rope *r;
    const float *inv_freq;
    float factor;
    uint32_t positions;
} rope_job;

static void rope_thread(void *arg, uint32_t tid, uint32_t n)
{
    const rope_job *j = arg;
    const uint32_t p0 = (uint32_t)rose_share(j->positions, tid, n);
    const uint32_t p1 = (uint32_t)rose_share(j->positions, tid + 1, n);
    const size_t at = (size_t)p0 * j->r->half;
    rose_rotary_rows(j->r->cos + at, j->r->sin + at, j->inv_freq, j->r->half, j->factor, p0, p1);
}

static void make_ropes(rose_cpu *c)
{
    for (uint32_t i = 0; i < c->arch.n_kinds; i++) {
        float inv_freq[ROSE_CPU_MAX_HEAD_DIM / 2];
        rope_job j = {.r = &c->weights.rope[i], .inv_freq = inv_freq};
        if (j.r->half == 0) continue;
        j.positions = c->plan.max_model_len;
        rose_rope_table(&c->arch.kinds[i].mixer.rope, j.positions, inv_freq, &j.factor);
        rose_pool_run(c->pool, rope_thread, &j);
    }
}

static void dummy_thread(void *arg, uint32_t tid, uint32_t n)
{
    rose_dummy_fill(arg, tid, n);
}

rose_status rose_cpu_load(rose_cpu *c, const rose_model *m, rose_err *err)
{
    const rose_arch *a = &c->arch;
    rose_cpu_weights *w = &c->weights;
    rose_status st = ROSE_OK;
    rose_progress bar;

    if (m->dummy) rose_pool_run(c->pool, dummy_thread, (void *)(uintptr_t)m);
    rose_progress_wait(&bar, "cpu", "loading weights", a->n_layers);
    for (uint32_t i = 0; i < a->n_layers && st == ROSE_OK; i++) {
        st = pack_layer(c, m, i, err);
        rose_progress_update(&bar, i + 1, "layers");
    }
    rose_progress_end(&bar);
    if (st != ROSE_OK) return st;
    pack_vector(c, m, &m->pos_embed, w->pos, (uint64_t)c->plan.max_model_len * a->d_model);
    make_ropes(c);
    pack_norm(c, m, &m->lnf_w, w->lnf_w, a->d_model);
    pack_vector(c, m, &m->lnf_b, w->lnf_b, a->d_model);
    if (w->tok.data != NULL) {
        pack_job j = {.t = &m->tok_embed, .out = &w->tok, .count = a->vocab_size};
        rose_pool_run(c->pool, copy_rows_thread, &j);
        drop_pages(m, &m->tok_embed,
                   rose_values_bytes(m->tok_embed.dtype, rose_tensor_n(&m->tok_embed)));
    }
    const rose_linear head = rose_cpu_head(m);
    return pack_matrix(c, m, &head, a->d_model, &w->head, err);
}
