/* backend/cpu/layout.c - the layout of the backend's memory, and so how much memory a model takes.
 * The same functions run twice: for plan() without memory, to add up sizes, and for open() over the
 * mapped regions.
 *
 * Sizes cannot overflow 64 bits, because plan() limits every dimension first (cpu_backend.c,
 * check_arch). */
#include "backend/cpu/cpu_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "backend/cpu/quant.h"
#include "backend/cpu/sampler.h"
#include "model/rope.h"

static uint32_t *take_u32(rose_bump *b, size_t n)
{
    return rose_bump_take(b, n * sizeof(uint32_t));
}

/* Where no kernel reads the file's type. With int8 activations bf16 is exact enough: it rounds a
 * weight to 8 bits, as an activation is. */
static rose_format widest(const rose_memory_plan *p)
{
    return p->dtype == ROSE_COMPUTE_BF16 || p->int8_activations ? ROSE_BF16 : ROSE_F32;
}

void rose_cpu_part_types(rose_format types[ROSE_LINEAR_PARTS], const rose_linear *from, bool gated,
                         const rose_memory_plan *p)
{
    bool mixed = false;
    for (uint32_t i = 0; i < from->n_parts; i++) {
        types[i] = widest(p);
        if (p->quantization == ROSE_QUANT_INT8)
            types[i] = ROSE_I8;
        else if (p->dtype == ROSE_COMPUTE_F32 && from->transposed &&
                 rose_quant_has(from->w[i].dtype))
            types[i] = from->w[i].dtype;
        mixed |= types[i] != types[0];
    }
    for (uint32_t i = 0; gated && mixed && i < from->n_parts; i++)
        types[i] = widest(p);
}

rose_format rose_cpu_tok_dtype(const rose_model *m, const rose_memory_plan *p)
{
    const bool rounds = p->dtype == ROSE_COMPUTE_BF16 && !rose_format_is_quant(m->tok_embed.dtype);
    return rounds ? ROSE_BF16 : m->tok_embed.dtype;
}

rose_linear rose_cpu_head(const rose_model *m)
{
    return (rose_linear){.w = {m->head}, .n_parts = 1, .transposed = true};
}

/* The part of the matrix whose bytes begin at data, if it has one. */
static bool kept_part(rose_kept *out, const rose_linear *l, bool gated, const rose_memory_plan *p,
                      const void *data)
{
    rose_format types[ROSE_LINEAR_PARTS];
    for (uint32_t i = 0; i < l->n_parts; i++) {
        const rose_format_row *file = &rose_formats[l->w[i].dtype];
        if (l->w[i].data != data) continue;
        rose_cpu_part_types(types, l, gated, p);
        out->type = rose_formats[types[i]].name;
        out->widened = !rose_format_is_quant(types[i]) &&
                       rose_format_size(types[i]) * file->block > file->bytes;
        return true;
    }
    return false;
}

rose_kept rose_cpu_kept(const rose_model *m, const rose_memory_plan *p, const void *data)
{
    const rose_linear head = rose_cpu_head(m);
    rose_kept kept = {0};
    if (data == NULL || kept_part(&kept, &head, false, p, data)) return kept;
    if (data == m->tok_embed.data) kept.type = rose_formats[rose_cpu_tok_dtype(m, p)].name;
    if (data == m->pos_embed.data) kept = (rose_kept){"F32", m->pos_embed.dtype != ROSE_F32};
    for (uint32_t i = 0; i < m->arch.n_layers && kept.type == NULL; i++) {
        rose_matrix_spec specs[ROSE_N_ROLES];
        const size_t n = rose_kind_matrices(&m->arch, rose_arch_kind(&m->arch, i), specs);
        for (size_t k = 0; k < n; k++)
            if (kept_part(&kept, &m->layers[i].m[specs[k].role], specs[k].gated, p, data)) break;
    }
    return kept;
}

static void count_parts(uint32_t counts[ROSE_N_FORMATS], const rose_linear *l, bool gated,
                        const rose_memory_plan *p)
{
    rose_format types[ROSE_LINEAR_PARTS];
    rose_cpu_part_types(types, l, gated, p);
    for (uint32_t i = 0; i < l->n_parts; i++)
        counts[types[i]]++;
}

void rose_cpu_types_text(char *out, size_t cap, const rose_model *m, const rose_memory_plan *p)
{
    uint32_t counts[ROSE_N_FORMATS] = {0};
    const rose_linear head = rose_cpu_head(m);
    size_t at = 0;
    count_parts(counts, &head, false, p);
    for (uint32_t i = 0; i < m->arch.n_layers; i++) {
        rose_matrix_spec specs[ROSE_N_ROLES];
        const size_t n = rose_kind_matrices(&m->arch, rose_arch_kind(&m->arch, i), specs);
        for (size_t k = 0; k < n; k++)
            count_parts(counts, &m->layers[i].m[specs[k].role], specs[k].gated, p);
    }
    for (int t = 0; t < ROSE_N_FORMATS && at < cap; t++)
        if (counts[t] > 0)
            at += (size_t)snprintf(out + at, cap - at, "%s%u %s", at > 0 ? ", " : "", counts[t],
                                   rose_formats[t].name);
}

static void take_run(rose_cpu_run *r, rose_bump *b, uint32_t k, uint32_t n, bool gated)
{
    const uint32_t sums = gated ? 2 * (uint32_t)rose_align_up(n, ROSE_PANEL) : n;
    r->n = n;
    r->w = rose_bump_take(b, rose_panels_bytes(r->type, k, sums));
    r->scale = r->type == ROSE_I8 ? rose_bump_floats(b, sums) : NULL;
}

static void take_linear(rose_cpu_linear *l, rose_bump *b, const rose_linear *from,
                        const rose_matrix_spec *spec, const rose_memory_plan *p)
{
    const bool gated = spec->gated;
    const uint32_t k = spec->k, n = gated ? spec->n / 2 : spec->n;
    rose_format types[ROSE_LINEAR_PARTS];
    uint32_t at = 0, end = 0;
    *l = (rose_cpu_linear){.gated = gated, .n = n};
    l->k_pad = (uint32_t)rose_align_up(k, ROSE_K_GROUP);
    rose_cpu_part_types(types, from, gated, p);
    for (uint32_t i = 0; i < from->n_parts; i++) {
        rose_cpu_run *r = &l->runs[l->n_runs];
        const bool last = i + 1 == from->n_parts;
        end = last ? n : end + (uint32_t)from->w[i].shape[0];
        if (!last && (gated || types[i + 1] == types[i])) continue;
        *r = (rose_cpu_run){.type = types[i], .first = at};
        take_run(r, b, k, end - at, gated);
        l->rounds_x |= r->type == ROSE_BF16 || r->type == ROSE_I8;
        l->n_runs++;
        at = end;
    }
    if (from->b[0].data != NULL)
        l->bias = rose_bump_floats(b, gated ? 2 * rose_align_up(n, ROSE_PANEL) : n);
}

static float *take_norm(rose_bump *b, const rose_tensor *t, size_t n)
{
    return t->data != NULL ? rose_bump_floats(b, n) : NULL;
}

static void take_layer(rose_cpu_layer *l, rose_bump *b, const rose_model *m, uint32_t layer,
                       const rose_memory_plan *p)
{
    const rose_arch *a = &m->arch;
    const rose_kind *k = rose_arch_kind(a, layer);
    const rose_layer *from = &m->layers[layer];
    const uint32_t d = a->d_model, head_dim = k->mixer.head_dim;
    const bool layer_norm = a->norm == ROSE_NORM_LAYER;
    rose_matrix_spec specs[ROSE_N_ROLES];
    const size_t n = rose_kind_matrices(a, k, specs);
    for (size_t i = 0; i < n; i++)
        take_linear(&l->m[specs[i].role], b, &from->m[specs[i].role], &specs[i], p);
    l->ln1_w = take_norm(b, &from->ln1_w, d);
    l->ln1_b = layer_norm ? rose_bump_floats(b, d) : NULL;
    l->ln2_w = take_norm(b, &from->ln2_w, d);
    l->ln2_b = layer_norm ? rose_bump_floats(b, d) : NULL;
    l->post1 = take_norm(b, &from->post1, d);
    l->post2 = take_norm(b, &from->post2, d);
    l->q_norm = take_norm(b, &from->q_norm, head_dim);
    l->k_norm = take_norm(b, &from->k_norm, head_dim);
    l->scale = rose_arch_scale(a, layer);
    l->rope = rose_rope_of_kind(a, a->kind_of[layer]);
}

static void take_ropes(rose_cpu_weights *w, rose_bump *b, const rose_arch *a, uint32_t positions)
{
    for (uint32_t i = 0; i < a->n_kinds; i++) {
        rose_cpu_rope *r = &w->rope[i];
        if (rose_rope_of_kind(a, i) != (int)i) continue;
        r->half = a->kinds[i].mixer.rope.dim / 2;
        r->cos = rose_bump_floats(b, (size_t)positions * r->half);
        r->sin = rose_bump_floats(b, (size_t)positions * r->half);
    }
}

void rose_cpu_layout_weights(rose_cpu_weights *w, rose_bump *b, const rose_model *m,
                             const rose_memory_plan *p)
{
    const rose_arch *a = &m->arch;
    const uint32_t d = a->d_model;
    const rose_linear head = rose_cpu_head(m);
    const rose_matrix_spec head_spec = {.k = d, .n = a->vocab_size};

    memset(w, 0, sizeof *w);
    w->layers = rose_bump_take(b, (uint64_t)a->n_layers * sizeof *w->layers);
    for (uint32_t i = 0; i < a->n_layers; i++) {
        rose_cpu_layer nowhere;
        take_layer(w->layers == NULL ? &nowhere : &w->layers[i], b, m, i, p);
    }
    if (a->pos == ROSE_POS_ROPE)
        take_ropes(w, b, a, p->max_model_len);
    else
        w->pos = rose_bump_floats(b, (size_t)p->max_model_len * d);
    w->lnf_w = rose_bump_floats(b, d);
    if (a->norm == ROSE_NORM_LAYER) w->lnf_b = rose_bump_floats(b, d);
    take_linear(&w->head, b, &head, &head_spec, p);
    if (a->tied_head) return;
    w->tok = m->tok_embed;
    w->tok.dtype = rose_cpu_tok_dtype(m, p);
    w->tok.data = rose_bump_take(b, rose_values_bytes(w->tok.dtype, (uint64_t)a->vocab_size * d));
}

static size_t thread_bytes(const rose_arch *a, const rose_memory_plan *p)
{
    const rose_kind *k = rose_arch_any(a);
    const uint32_t o = k->mixer.n_heads * k->mixer.head_dim;
    const uint32_t wide = k->mlp.d_ff > a->d_model ? k->mlp.d_ff : a->d_model;
    const uint32_t deepest = o > wide ? o : wide;
    size_t most = rose_matmul_scratch((uint32_t)rose_align_up(deepest, ROSE_K_GROUP));
    size_t attention = rose_attention_scratch(p->max_model_len, k->mixer.head_dim);
    size_t sampler = rose_sampler_scratch(a->vocab_size);
    if (attention > most) most = attention;
    if (sampler > most) most = sampler;
    return rose_align_up(most, 64) + 128; /* 128 bytes between the data of two threads, because
                                           * prefetchers fetch pairs of cache lines */
}

void rose_cpu_layout_scratch(rose_cpu_scratch *s, rose_bump *b, const rose_arch *a,
                             const rose_memory_plan *p)
{
    const size_t rows = p->max_step_tokens;
    const size_t at_once = rows < ROSE_CPU_BLOCK_ROWS ? rows : ROSE_CPU_BLOCK_ROWS;
    const size_t n_blocks = rows / (ROSE_CPU_BLOCK_ROWS - ROSE_ROW_TILE) + 1;
    const rose_kind *k = rose_arch_any(a);
    const size_t d = a->d_model, d_ff = k->mlp.d_ff;
    const size_t o = (size_t)k->mixer.n_heads * k->mixer.head_dim;
    const size_t qkv = o + 2 * (size_t)k->mixer.n_kv_heads * k->mixer.head_dim;

    memset(s, 0, sizeof *s);
    s->ld_d = rose_align_up(d, ROSE_K_GROUP);
    s->ld_o = rose_align_up(o, ROSE_K_GROUP);
    s->ld_qkv = rose_align_up(qkv, ROSE_PANEL);
    s->ld_ff = rose_align_up(d_ff, ROSE_K_GROUP);
    s->ld_vocab = rose_align_up(a->vocab_size, ROSE_PANEL);
    s->out_block = p->max_seqs < ROSE_CPU_OUT_BLOCK ? p->max_seqs : ROSE_CPU_OUT_BLOCK;
    s->x = rose_bump_floats(b, rows * s->ld_d);
    s->h = rose_bump_floats(b, rows * s->ld_d);
    s->o = o == d ? s->h : rose_bump_floats(b, rows * s->ld_o); /* else the zero padding differs */
    if (rose_norms_after(&k->norms) > 0) s->branch = rose_bump_floats(b, at_once * s->ld_d);
    if (s->ld_ff == d_ff) { /* no padding to keep zero: qkv is dead when ff is written */
        size_t wider = s->ld_ff > s->ld_qkv ? s->ld_ff : s->ld_qkv;
        s->qkv = rose_bump_floats(b, at_once * wider);
        s->ff = s->qkv;
    } else {
        s->qkv = rose_bump_floats(b, at_once * s->ld_qkv);
        s->ff = rose_bump_floats(b, at_once * s->ld_ff);
    }
    s->out_x = rose_bump_floats(b, s->out_block * s->ld_d);
    s->out_h = rose_bump_floats(b, s->out_block * s->ld_d);
    s->out_o = o == d ? s->out_h : rose_bump_floats(b, s->out_block * s->ld_o);
    s->logits = rose_bump_floats(b, s->out_block * s->ld_vocab);
    /* A sequence has at most one tile that starts within a page, and one for each page it
     * begins. */
    s->tiles =
        rose_bump_take(b, (2 * (size_t)p->max_seqs + rows / ROSE_ROW_TILE) * sizeof *s->tiles);
    s->pieces = rose_bump_take(b, (p->max_seqs + n_blocks) * sizeof *s->pieces);
    s->blocks = rose_bump_take(b, n_blocks * sizeof *s->blocks);
    s->slot_row = take_u32(b, rows);
    s->slot_first = take_u32(b, rows + 1);
    s->ids = take_u32(b, rows);
    s->thread_stride = thread_bytes(a, p);
    s->thread = rose_bump_take(b, p->n_threads * s->thread_stride);
    s->own_stride = ROSE_CPU_OWN_ROWS * s->ld_d + 32;
    s->own_h = rose_bump_floats(b, p->n_threads * s->own_stride);
}

/* The blocks of one head in successive pages are one page size apart. If
 * that is a multiple of a large power of two, they compete for few sets of the cache. An odd
 * number of 4 KiB spreads them. */
uint64_t rose_cpu_kv_page_bytes(const rose_arch *a, uint32_t n_layers, bool bf16)
{
    const rose_mixer *m = &rose_arch_any(a)->mixer;
    uint64_t bytes = (uint64_t)n_layers * m->n_kv_heads * rose_kv_head_bytes(bf16, m->head_dim);
    if (bytes >= 65536 && bytes % 8192 == 0) bytes += 4096;
    return bytes;
}

rose_status rose_region_map(rose_region *r, uint64_t bytes, const char *what, rose_err *err)
{
    r->size = rose_align_up(bytes, 4096);
    r->base = mmap(NULL, r->size, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (r->base == MAP_FAILED) {
        *r = (rose_region){0};
        return rose_fail(err, ROSE_E_NOMEM, "%s: %llu bytes: %s", what, (unsigned long long)bytes,
                         strerror(errno));
    }
    madvise(r->base, r->size, MADV_HUGEPAGE); /* a matter of speed only */
    return ROSE_OK;
}

void rose_region_unmap(rose_region *r)
{
    if (r->base != NULL) munmap(r->base, r->size);
    *r = (rose_region){0};
}
