/* libFuzzer target: config.json as arbitrary bytes, through the families' parsers. */
#include <math.h>
#include <stdlib.h>

#include "base/log.h"
#include "model/family.h"
#include "model/rope.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What backends rely on without a check of their own. */
static void check_rope(const rose_arch *a, const rose_mixer *m)
{
    const rose_rope *r = &m->rope;
    enum { SMALL = 512 };
    float table[SMALL / 2], factor;
    if (r->dim % 2 != 0 || r->dim > m->head_dim) abort();
    if (r->kind == ROSE_ROPE_LONGROPE && (r->short_factor == NULL || r->long_factor == NULL))
        abort();
    if (r->dim > SMALL) return;
    for (int longest = 0; longest < 2; longest++) {
        rose_rope_table(r, longest ? a->max_positions : 1, table, &factor);
        if (!isfinite(factor)) abort();
        for (uint32_t i = 0; i < r->dim / 2; i++)
            if (!isfinite(table[i])) abort();
    }
}

static void check_kind(const rose_arch *a, const rose_kind *k)
{
    const rose_mixer *m = &k->mixer;
    if (m->n_heads == 0 || m->head_dim == 0 || k->mlp.d_ff == 0) abort();
    if (m->n_kv_heads == 0 || m->n_heads % m->n_kv_heads != 0) abort();
    if (a->pos == ROSE_POS_ROPE && m->rope.dim != 0) check_rope(a, m);
}

static void check_arch(const rose_arch *a)
{
    if (a->max_positions == 0 || a->n_kinds == 0 || a->n_kinds > ROSE_MAX_KINDS) abort();
    if (a->n_layers == 0 || a->n_layers > ROSE_MAX_LAYERS) abort();
    if (a->n_eos > ROSE_MAX_EOS || a->bos_id >= (int64_t)a->vocab_size) abort();
    for (uint32_t i = 0; i < a->n_kinds; i++)
        check_kind(a, &a->kinds[i]);
    for (uint32_t i = 0; i < a->n_layers; i++)
        if (a->kind_of[i] >= a->n_kinds) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rose_config c;
    rose_err err;
    rose_arch a;
    const rose_family *family;
    rose_log_set_level(ROSE_LOG_OFF); /* it warns of ids */
    if (rose_config_parse(&c, (const char *)data, size, "fuzz", &err) != ROSE_OK) return 0;
    if (rose_family_find(&family, &c, &err) == ROSE_OK &&
        rose_family_parse(family, &c, &a, &err) == ROSE_OK) {
        check_arch(&a);
        rose_arch_free(&a);
    }
    rose_config_close(&c);
    return 0;
}
