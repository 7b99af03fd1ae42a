/* model/rope.c - see rope.h. PyTorch computes scalar / tensor as reciprocal(tensor) * scalar; where
 * a formula below looks odd, it repeats these two roundings. */
#include "model/rope.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/log.h"

#define PI 3.14159265358979323846

const char *rose_rope_kind_name(rose_rope_kind k)
{
    switch (k) {
    case ROSE_ROPE_DEFAULT:
        return "default";
    case ROSE_ROPE_LINEAR:
        return "linear";
    case ROSE_ROPE_DYNAMIC:
        return "dynamic";
    case ROSE_ROPE_LLAMA3:
        return "llama3";
    case ROSE_ROPE_YARN:
        return "yarn";
    case ROSE_ROPE_LONGROPE:
        return "longrope";
    }
    return "unknown";
}

/* ---- powers and logarithms ----
 *
 * Relative errors stay below 1e-14, far below half a unit of fp32: a rounded result differs from
 * the correctly rounded one about once in ten million. frexp, ldexp, floor and sqrt are exact or
 * correctly rounded in every libm; its log, exp and pow are not, so they are not used. */

/* ln 2 in two parts; the first has 21 trailing zero bits, so its product with an exponent is exact.
 */
#define LN2_HIGH 0x1.62e42fee00000p-1
#define LN2_LOW  0x1.a39ef35793c76p-33

/* x > 0, finite. With s = (m - 1) / (m + 1): ln m = 2 (s + s^3 / 3 + s^5 / 5 + ...). */
static double natural_log(double x)
{
    int e;
    double m = frexp(x, &e);
    if (m < 0.70710678118654752440) {
        m *= 2;
        e--;
    }
    const double s = (m - 1) / (m + 1), s2 = s * s;
    double sum = 0;
    for (int k = 25; k >= 3; k -= 2)
        sum = (sum + 1.0 / k) * s2;
    return e * LN2_HIGH + (2 * s + (2 * s * sum + e * LN2_LOW));
}

/* |y| < 700. */
static double exponential(double y)
{
    const double k = floor(y / (LN2_HIGH + LN2_LOW) + 0.5);
    const double r = (y - k * LN2_HIGH) - k * LN2_LOW;
    double sum = 1;
    for (int i = 16; i >= 1; i--)
        sum = 1 + sum * r / i;
    return ldexp(sum, (int)k);
}

static float power(float base, double exponent)
{
    return (float)exponential(exponent * natural_log((double)base));
}

/* ---- the kinds ---- */

/* base ^ (2 i / dim) */
static float base_power(const rose_rope *r, float base, uint32_t i)
{
    const float exponent = (float)(2 * i) / (float)r->dim;
    return power(base, (double)exponent);
}

static void plain_table(const rose_rope *r, float base, float *inv_freq)
{
    for (uint32_t i = 0; i < r->dim / 2; i++)
        inv_freq[i] = 1.0f / base_power(r, base, i);
}

/* The base grows with the context, once it is longer than the one that the model was trained on.
 * PyTorch takes the power of one number with an exponent in fp64. */
static float dynamic_base(const rose_rope *r, uint32_t context)
{
    if (context <= r->original_max_positions || r->dim <= 2) return r->theta;
    const float grown = r->factor * (float)context / (float)r->original_max_positions;
    const double exponent = (double)r->dim / (double)(r->dim - 2);
    const float base = r->theta * power(grown - (r->factor - 1.0f), exponent);
    return base < FLT_MAX ? base : FLT_MAX; /* no logarithm of infinity */
}

static void llama3_table(const rose_rope *r, float *inv_freq)
{
    const float old = (float)r->original_max_positions, low = r->low_freq_factor;
    const float low_length = (float)((double)old / (double)low);
    const float high_length = (float)((double)old / (double)r->high_freq_factor);
    const float range = (float)((double)r->high_freq_factor - (double)low);

    plain_table(r, r->theta, inv_freq);
    for (uint32_t i = 0; i < r->dim / 2; i++) {
        const float f = inv_freq[i], length = 1.0f / f * (float)(2 * PI);
        if (length > low_length) {
            inv_freq[i] = f / r->factor;
        } else if (!(length < high_length) && range > 0) {
            const float smooth = (1.0f / length * old - low) / range;
            inv_freq[i] = (1.0f - smooth) * f / r->factor + smooth * f;
        }
    }
}

/* The index at which a dimension turns `rotations` times within the original context. */
static double yarn_index(const rose_rope *r, float rotations)
{
    const double turns = (double)r->original_max_positions / ((double)rotations * 2 * PI);
    return r->dim * natural_log(turns) / (2 * natural_log((double)r->theta));
}

static void yarn_table(const rose_rope *r, float *inv_freq)
{
    double first = yarn_index(r, r->beta_fast), last = yarn_index(r, r->beta_slow);
    if (r->truncate) {
        first = floor(first);
        last = ceil(last);
    }
    if (first < 0) first = 0;
    if (last > (double)(r->dim - 1)) last = (double)(r->dim - 1);
    if (first == last) last += 0.001;
    const float from = (float)first, length = (float)(last - first);

    for (uint32_t i = 0; i < r->dim / 2; i++) {
        const float power_i = base_power(r, r->theta, i);
        const float unscaled = 1.0f / power_i, scaled = 1.0f / (r->factor * power_i);
        float ramp = ((float)i - from) / length;
        ramp = ramp < 0.0f ? 0.0f : ramp > 1.0f ? 1.0f : ramp;
        const float kept = 1.0f - ramp;
        inv_freq[i] = scaled * (1.0f - kept) + unscaled * kept;
    }
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1.0 : 0.1 * mscale * natural_log(factor) + 1.0;
}

static float yarn_attention(const rose_rope *r)
{
    const double factor = (double)r->factor;
    if (r->attention_factor > 0) return r->attention_factor;
    if (r->mscale > 0 && r->mscale_all_dim > 0)
        return (float)(yarn_mscale(factor, (double)r->mscale) /
                       yarn_mscale(factor, (double)r->mscale_all_dim));
    return (float)yarn_mscale(factor, 1.0);
}

static void longrope_table(const rose_rope *r, uint32_t context, float *inv_freq)
{
    const float *divisors = context > r->original_max_positions ? r->long_factor : r->short_factor;
    for (uint32_t i = 0; i < r->dim / 2; i++)
        inv_freq[i] = 1.0f / (divisors[i] * base_power(r, r->theta, i));
}

static float longrope_attention(const rose_rope *r)
{
    const double factor = (double)r->factor;
    if (r->attention_factor > 0) return r->attention_factor;
    if (factor <= 1 || r->original_max_positions < 2) return 1.0f;
    return (float)sqrt(1 + natural_log(factor) / natural_log((double)r->original_max_positions));
}

void rose_rope_table(const rose_rope *r, uint32_t served_context, float *inv_freq,
                     float *attention_factor)
{
    *attention_factor = 1.0f;
    switch (r->kind) {
    case ROSE_ROPE_DEFAULT:
        plain_table(r, r->theta, inv_freq);
        break;
    case ROSE_ROPE_LINEAR:
        plain_table(r, r->theta, inv_freq);
        for (uint32_t i = 0; i < r->dim / 2; i++)
            inv_freq[i] /= r->factor;
        break;
    case ROSE_ROPE_DYNAMIC:
        plain_table(r, dynamic_base(r, served_context), inv_freq);
        break;
    case ROSE_ROPE_LLAMA3:
        llama3_table(r, inv_freq);
        break;
    case ROSE_ROPE_YARN:
        yarn_table(r, inv_freq);
        *attention_factor = yarn_attention(r);
        break;
    case ROSE_ROPE_LONGROPE:
        longrope_table(r, served_context, inv_freq);
        *attention_factor = longrope_attention(r);
        return;
    }
    if (r->short_factor == NULL) return;
    for (uint32_t i = 0; i < r->dim / 2; i++) /* a file's own divisors (GGUF) */
        inv_freq[i] /= r->short_factor[i];
}

static bool same_rope(const rose_rope *a, const rose_rope *b)
{
    const float x[] = {a->theta,           a->factor,    a->low_freq_factor, a->high_freq_factor,
                       a->beta_fast,       a->beta_slow, a->mscale,          a->mscale_all_dim,
                       a->attention_factor};
    const float y[] = {b->theta,           b->factor,    b->low_freq_factor, b->high_freq_factor,
                       b->beta_fast,       b->beta_slow, b->mscale,          b->mscale_all_dim,
                       b->attention_factor};
    return a->dim == b->dim && a->kind == b->kind && a->truncate == b->truncate &&
           a->original_max_positions == b->original_max_positions &&
           a->short_factor == b->short_factor && a->long_factor == b->long_factor &&
           memcmp(x, y, sizeof x) == 0;
}

int rose_rope_of_kind(const rose_arch *a, uint32_t kind)
{
    const rose_rope *r = &a->kinds[kind].mixer.rope;
    uint32_t i = 0;
    if (a->pos != ROSE_POS_ROPE || r->dim == 0) return -1;
    while (!same_rope(&a->kinds[i].mixer.rope, r))
        i++;
    return (int)i;
}

void rose_rope_log_context(const rose_arch *a, uint32_t served_context)
{
    const rose_rope *r = &rose_arch_any(a)->mixer.rope;
    const uint32_t original = r->original_max_positions;
    const bool longer = r->kind == ROSE_ROPE_LONGROPE || r->kind == ROSE_ROPE_DYNAMIC;
    if (a->pos != ROSE_POS_ROPE || !longer || served_context <= original) return;
    rose_log(ROSE_LOG_INFO, "model",
             "RoPE of type %s: the context of %u tokens is longer than the original %u, so all "
             "texts, also short ones, get the %s; --max-model-len %u gives those of short texts",
             rose_rope_kind_name(r->kind), served_context, original,
             r->kind == ROSE_ROPE_LONGROPE ? "long factors" : "frequencies of a grown base",
             original);
}
