/* model/gguf_rope.c - rotary positions in GGUF files: keys under "<architecture>.rope", and tensors
 * that hold one divisor for each frequency. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "model/convert.h"
#include "model/gguf_arch.h"
#include "model/rope.h"

#define PI 3.14159265358979323846

#define FREQS "rope_freqs.weight"
#define SHORT "rope_factors_short.weight"
#define LONG  "rope_factors_long.weight"

#define MAX_FACTOR 1e9f

#define MAX_CONTEXT (1u << 24)

static rose_status read_kind(const rose_gguf_reader *r, rose_rope *rope)
{
    static const struct {
        const char *name;
        rose_rope_kind kind;
    } kinds[] = {
        {"none", ROSE_ROPE_DEFAULT},
        {"linear", ROSE_ROPE_LINEAR},
        {"yarn", ROSE_ROPE_YARN},
        {"longrope", ROSE_ROPE_LONGROPE},
    };
    char key[128];
    rose_gguf_str name = {NULL, 0};
    snprintf(key, sizeof key, "%s.rope.scaling.type", r->architecture);
    const rose_status st = rose_gguf_get_string(r->g, key, &name, r->err);
    if (st != ROSE_OK || name.s == NULL) return st;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (rose_gguf_str_is(name, kinds[i].name)) {
            rope->kind = kinds[i].kind;
            return ROSE_OK;
        }
    return rose_fail(r->err, ROSE_E_UNSUPPORTED,
                     "%s: '%s' is '%.*s', which is not supported (supported: none, linear, yarn, "
                     "longrope)",
                     r->g->label, key, (int)(name.n < 60 ? name.n : 60), name.s);
}

static rose_status check_unknown(const rose_gguf_reader *r)
{
    static const char *const refused[] = {"rope.scaling.yarn_log_multiplier",
                                          "rope.dimension_sections", "rope.scaling.alpha"};
    static const char attention[] = "rope.scaling.yarn_attn_factor";
    float ext = 1.0f;
    const rose_status st = rose_gguf_read_f32(r, "rope.scaling.yarn_ext_factor", 1e6f, &ext);
    if (st != ROSE_OK) return st;
    if (ext != 1.0f)
        return rose_fail(r->err, ROSE_E_UNSUPPORTED,
                         "%s: '%s.rope.scaling.yarn_ext_factor' is %g: only 1 is supported",
                         r->g->label, r->architecture, (double)ext);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (rose_gguf_has(r, refused[i]))
            return rose_fail(r->err, ROSE_E_UNSUPPORTED, "%s: '%s.%s' is not supported",
                             r->g->label, r->architecture, refused[i]);
    if (rose_gguf_has(r, attention)) /* llama.cpp computes this factor from that of the lengths */
        rose_log(ROSE_LOG_WARN, "model", "%s: '%s.%s' is ignored, as in llama.cpp", r->g->label,
                 r->architecture, attention);
    return ROSE_OK;
}

static rose_status read_keys(const rose_gguf_reader *r, const rose_arch *a, rose_rope *rope)
{
    const struct {
        const char *name;
        float max;
        float *out;
    } numbers[] = {
        {"rope.freq_base", (float)ROSE_MAX_THETA, &rope->theta},
        {"rope.scaling.factor", MAX_FACTOR, &rope->factor},
        {"rope.scaling.attn_factor", MAX_FACTOR, &rope->attention_factor},
        {"rope.scaling.yarn_beta_fast", 1e6f, &rope->beta_fast},
        {"rope.scaling.yarn_beta_slow", 1e6f, &rope->beta_slow},
    };
    rose_status st = read_kind(r, rope);
    if (st == ROSE_OK) st = check_unknown(r);
    for (size_t i = 0; st == ROSE_OK && i < sizeof numbers / sizeof numbers[0]; i++)
        st = rose_gguf_read_f32(r, numbers[i].name, numbers[i].max, numbers[i].out);
    /* An old key that linear scaling had. */
    if (st == ROSE_OK && rose_gguf_has(r, "rope.scale_linear")) {
        st = rose_gguf_read_f32(r, "rope.scale_linear", MAX_FACTOR, &rope->factor);
        if (rope->factor != 1.0f) rope->kind = ROSE_ROPE_LINEAR;
    }
    /* llama.cpp scales linearly where a file has a factor and no type. */
    if (st == ROSE_OK && rope->factor > 1.0f && !rose_gguf_has(r, "rope.scaling.type"))
        rope->kind = ROSE_ROPE_LINEAR;
    if (st == ROSE_OK)
        st = rose_gguf_read_u32(r, "rope.scaling.original_context_length", 1, UINT32_MAX,
                                &rope->original_max_positions);
    if (st == ROSE_OK)
        st = rose_gguf_read_u32(r, "rope.dimension_count", 2, a->kinds[0].mixer.head_dim,
                                &rope->dim);
    if (st == ROSE_OK && rope->dim % 2 != 0)
        st = rose_fail(r->err, ROSE_E_UNSUPPORTED, "%s: '%s.rope.dimension_count' %u is odd",
                       r->g->label, r->architecture, rope->dim);
    return st;
}

/* The divisors in tensor t, as fp32 into out[0 .. n). */
static rose_status read_divisors(const rose_gguf_reader *r, rose_st_tensor *t, uint32_t n,
                                 float *out)
{
    if (!t->usable || rose_format_is_quant(t->dtype) || t->n_dims != 1 || t->shape[0] != n)
        return rose_fail(r->err, ROSE_E_FORMAT,
                         "%s: tensor '%s' is not a vector of %u floats, one for each frequency",
                         r->g->label, t->name, n);
    const rose_tensor view = {t->name, t->data, t->dtype, 1, {n, 1}};
    rose_tensor_read_f32(&view, 0, n, out);
    t->used = true;
    for (uint32_t i = 0; i < n; i++)
        if (!(out[i] >= 1e-6f && out[i] <= 1e6f))
            return rose_fail(r->err, ROSE_E_FORMAT,
                             "%s: tensor '%s': element %u is not a number from 1e-6 to 1e6",
                             r->g->label, t->name, i);
    return ROSE_OK;
}

/* The converter writes Llama 3's scaling as divisors and drops the numbers from which it computed
 * them. If the divisors are those of Llama 3's usual numbers, take the numbers: frequencies then
 * have the same bits as those from config.json. */
static void recognise_llama3(rose_rope *rope)
{
    const rose_rope guess = {.factor = rope->short_factor[rope->dim / 2 - 1],
                             .original_max_positions = 8192,
                             .low_freq_factor = 1.0f,
                             .high_freq_factor = 4.0f};
    for (uint32_t i = 0; i < rope->dim / 2; i++) {
        const double length = 2 * PI * pow((double)rope->theta, 2.0 * i / rope->dim);
        double smooth = (guess.original_max_positions / length - 1.0) / 3.0;
        smooth = smooth < 0 ? 0 : smooth > 1 ? 1 : smooth;
        const double expected = 1 / ((1 - smooth) / (double)guess.factor + smooth);
        if (fabs((double)rope->short_factor[i] - expected) > 1e-4 * expected) return;
    }
    if (guess.factor <= 1.0f) return;
    rope->kind = ROSE_ROPE_LLAMA3;
    rope->factor = guess.factor;
    rope->original_max_positions = guess.original_max_positions;
    rope->low_freq_factor = guess.low_freq_factor;
    rope->high_freq_factor = guess.high_freq_factor;
    rope->short_factor = NULL;
}

static rose_status read_tensors(const rose_gguf_reader *r, rose_weights *w, rose_arch *a,
                                rose_rope *rope)
{
    rose_st_tensor *const freqs = rose_weights_find(w, FREQS);
    rose_st_tensor *const shorter = rose_weights_find(w, SHORT);
    rose_st_tensor *const longer = rose_weights_find(w, LONG);
    const uint32_t n = rope->dim / 2;
    if ((shorter == NULL) != (longer == NULL))
        return rose_fail(r->err, ROSE_E_FORMAT, "%s: tensor '%s' is there without '%s'",
                         r->g->label, shorter != NULL ? SHORT : LONG,
                         shorter != NULL ? LONG : SHORT);
    if (rope->kind == ROSE_ROPE_LONGROPE && shorter == NULL)
        return rose_fail(r->err, ROSE_E_FORMAT, "%s: tensor '%s' is missing", r->g->label, SHORT);
    if (freqs == NULL && shorter == NULL) return ROSE_OK;
    if (freqs != NULL && shorter != NULL)
        return rose_fail(r->err, ROSE_E_UNSUPPORTED, "%s: holds both '%s' and '%s'", r->g->label,
                         FREQS, SHORT);
    float *const lists = malloc(2 * (size_t)n * sizeof *lists);
    if (lists == NULL) return rose_fail(r->err, ROSE_E_NOMEM, "%s: out of memory", r->g->label);
    a->rope_factors = lists;
    rope->short_factor = lists;
    rose_status st = read_divisors(r, freqs != NULL ? freqs : shorter, n, lists);
    if (freqs != NULL) {
        if (st == ROSE_OK && rope->kind == ROSE_ROPE_DEFAULT) recognise_llama3(rope);
        return st;
    }
    if (st == ROSE_OK) st = read_divisors(r, longer, n, lists + n);
    rope->kind = ROSE_ROPE_LONGROPE;
    rope->long_factor = lists + n;
    return st;
}

/* Only longrope multiplies by a factor from the file. A factor of 1 changes nothing; with yarn it
 * comes on top of the factor that the lengths give. */
static rose_status check_attention_factor(const rose_gguf_reader *r, rose_rope *rope)
{
    const float factor = rope->attention_factor;
    if (rope->kind == ROSE_ROPE_LONGROPE || factor == 0.0f) return ROSE_OK;
    if (factor == 1.0f) {
        rope->attention_factor = 0.0f;
        return ROSE_OK;
    }
    return rose_fail(r->err, ROSE_E_UNSUPPORTED,
                     "%s: '%s.rope.scaling.attn_factor' is %g: not supported with RoPE of kind %s",
                     r->g->label, r->architecture, (double)factor, rose_rope_kind_name(rope->kind));
}

/* What the kind needs, and the longest context that it gives: the converter writes the context
 * before a scaling by linear or yarn. Gemma and Phi give the context after it. */
static rose_status finish(const rose_gguf_reader *r, const rose_family *f, rose_arch *a,
                          rose_rope *rope)
{
    double longest = a->max_positions;
    const rose_status st = check_attention_factor(r, rope);
    if (st != ROSE_OK) return st;
    if (rope->kind == ROSE_ROPE_DEFAULT || rope->kind == ROSE_ROPE_LLAMA3) return ROSE_OK;
    if (rope->kind == ROSE_ROPE_LONGROPE) {
        if (rope->factor <= 0)
            rope->factor = (float)a->max_positions / (float)rope->original_max_positions;
        return ROSE_OK;
    }
    if (rope->factor < 1.0f)
        return rose_fail(r->err, ROSE_E_FORMAT,
                         "%s: '%s.rope.scaling.factor' is missing or below 1", r->g->label,
                         r->architecture);
    if (rope->kind == ROSE_ROPE_YARN && rope->theta <= 1.0f)
        return rose_fail(r->err, ROSE_E_FORMAT, "%s: '%s.rope.freq_base' %g is not above 1",
                         r->g->label, r->architecture, (double)rope->theta);
    if (f->defaults.context_holds_scaling) return ROSE_OK;
    longest *= (double)rope->factor;
    if (rope->kind == ROSE_ROPE_YARN)
        longest = fmax(a->max_positions, (double)rope->factor * rope->original_max_positions);
    a->max_positions = longest < MAX_CONTEXT ? (uint32_t)longest : MAX_CONTEXT;
    return ROSE_OK;
}

rose_status rose_gguf_read_rope(const rose_family *f, rose_weights *w, rose_arch *a,
                                rose_rope *sliding, rose_err *err)
{
    const uint32_t head_dim = a->kinds[0].mixer.head_dim;
    const rose_gguf_reader r = {rose_weights_gguf(w), f->gguf.architecture, err};
    rose_rope *const rope = &a->kinds[0].mixer.rope;
    const float local = f->defaults.local_theta;
    *rope = (rose_rope){.theta = local > 0 ? f->defaults.theta : 10000.0f,
                        .dim = head_dim,
                        .original_max_positions = a->max_positions,
                        .beta_fast = 32.0f,
                        .beta_slow = 1.0f,
                        .truncate = true};
    rose_status st = read_keys(&r, a, rope);
    if (st == ROSE_OK && rope->dim % 2 != 0)
        st = rose_fail(err, ROSE_E_UNSUPPORTED, "%s: heads of %u values cannot be rotated",
                       r.g->label, rope->dim);
    if (st == ROSE_OK && f->gguf.permuted && rope->dim != head_dim)
        st = rose_fail(err, ROSE_E_UNSUPPORTED,
                       "%s: '%s.rope.dimension_count' %u is not the head's %u: not supported for "
                       "this architecture",
                       r.g->label, f->gguf.architecture, rope->dim, head_dim);
    if (st == ROSE_OK) st = read_tensors(&r, w, a, rope);
    if (st == ROSE_OK) st = finish(&r, f, a, rope);
    *sliding = *rope;
    if (st != ROSE_OK || local == 0) return st;
    *sliding = (rose_rope){.theta = local,
                           .dim = head_dim,
                           .beta_fast = 32.0f,
                           .beta_slow = 1.0f,
                           .truncate = true,
                           .original_max_positions = a->max_positions};
    return rose_gguf_read_f32(&r, "rope.freq_base_swa", (float)ROSE_MAX_THETA, &sliding->theta);
}
