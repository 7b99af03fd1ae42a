/* tests/backend/kernels_accuracy.h - the scalar definitions against double precision. Bounds come
 * from the length of the longest chain of roundings, u = 2^-24 each. Part of test_kernels.c. */
#ifndef KERNELS_ACCURACY_H
#define KERNELS_ACCURACY_H

static const double g_u = 0x1p-24;

static void accuracy_exp(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    (void)ref, (void)t;
    double worst = 0;
    for (uint32_t bits = 0x00800000u; bits < rose_f32_bits(87.33f); bits += 1009) {
        for (int sign = 0; sign < 2; sign++) {
            float x = rose_f32_from_bits(bits | (uint32_t)sign << 31);
            double exact = exp((double)x);
            double ulp = ldexp(1.0, ilogb(exact) - 23);
            double off = fabs((double)rose_expf_ref(x) - exact) / ulp;
            if (off > worst) worst = off;
        }
    }
    snprintf(g_what, sizeof g_what, "exp: worst %.3f ulp", worst);
    check(worst < 2.0, "at most 2 ulp over the normal range");
    check(rose_f32_bits(rose_expf_ref(0.0f)) == 0x3f800000u, "exp(0) is 1");
    check(rose_f32_bits(rose_expf_ref(-0.0f)) == 0x3f800000u, "exp(-0) is 1");
    check(rose_f32_bits(rose_expf_ref(-INFINITY)) == 0, "exp(-inf) is +0");
    check(rose_f32_bits(rose_expf_ref(-87.4f)) == 0, "below the normal range it is +0");
    check(rose_expf_ref(INFINITY) == INFINITY, "exp(inf) is inf");
    check(rose_expf_ref(88.8f) == INFINITY && rose_expf_ref(1e30f) == INFINITY, "overflow is inf");
    check(isfinite(rose_expf_ref(88.7f)), "88.7 is still finite");
    check(isnan(rose_expf_ref(NAN)), "exp(NaN) is NaN");
}

static void accuracy_activation(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    (void)ref, (void)t;
    double worst_tanh = 0, worst_erf = 0, worst_silu = 0;
    for (int i = -2000000; i <= 2000000; i += 7) {
        float x = (float)i * 1e-5f;
        double d = (double)x, s = d > 1 ? d : d < -1 ? -d : 1; /* error relative to max(1, |x|) */
        double want =
            0.5 * d * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (d + 0.044715 * d * d * d)));
        worst_tanh = fmax(worst_tanh, fabs((double)rose_gelu_tanh_ref(x) - want) / s);
        want = 0.5 * d * erfc(-d / sqrt(2));
        worst_erf = fmax(worst_erf, fabs((double)rose_gelu_erf_ref(x) - want) / s);
        want = d / (1 + exp(-d));
        worst_silu = fmax(worst_silu, fabs((double)rose_silu_ref(x) - want) / s);
    }
    snprintf(g_what, sizeof g_what, "activations: worst gelu tanh %.2g, erf %.2g, silu %.2g",
             worst_tanh, worst_erf, worst_silu);
    check(worst_tanh < 5e-7, "gelu tanh");
    check(worst_erf < 5e-7, "gelu erf");
    check(worst_silu < 5e-7, "silu");
    check(rose_gelu_tanh_ref(1e30f) == 1e30f && rose_gelu_tanh_ref(-1e30f) == 0.0f, "gelu tails");
    check(rose_gelu_erf_ref(1e30f) == 1e30f && rose_gelu_erf_ref(-1e30f) == 0.0f, "gelu tails");
    check(isnan(rose_gelu_tanh_ref(NAN)) && isnan(rose_gelu_erf_ref(NAN)), "gelu(NaN)");
    check(isnan(rose_silu_ref(NAN)) && isnan(rose_relu_ref(NAN)), "silu(NaN), relu(NaN)");
    check(rose_relu_ref(-3.0f) == 0.0f && rose_relu_ref(3.0f) == 3.0f, "relu");
}

/* Chain of rule 1: 16 fma, one add, one add for each group, one for the bias. */
static void accuracy_matmul(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    (void)t;
    static const uint32_t ks[] = {1, 33, 96, 768, 3072};
    for (uint32_t i = 0; i < 20; i++) {
        bool bf16 = i % 2 == 0;
        uint32_t k = ks[i / 4], n = 17, m = 3;
        matmul_case c;
        case_init(&c, bf16 ? ROSE_BF16 : ROSE_F32, k, n, m,
                  i / 2 % 2 == 0 ? DATA_NORMAL : DATA_POSITIVE, false);
        guarded mem;
        float *y = case_run(&c, ref, &mem, 0, m, 0, 2);
        double bound = (16 + 2 + k / 32 + 2) * g_u, worst = 0;
        for (uint32_t r = 0; r < m * n; r++) {
            uint32_t row = r / n, col = r % n;
            double sum = c.a.bias != NULL ? (double)c.a.bias[col] : 0, size = fabs(sum);
            for (uint32_t j = 0; j < k; j++) {
                size_t panel = (size_t)(col / 16) * c.a.k_pad * 16;
                double w =
                    bf16
                        ? (double)rose_f32_from_bf16((
                              (const uint16_t *)c.a.w)[panel + (j / 2 * 16 + col % 16) * 2 + j % 2])
                        : (double)((const float *)c.a.w)[panel + j * 16 + col % 16];
                double x = (double)c.a.x[row * c.a.ldx + j];
                sum += x * w;
                size += fabs(x * w);
            }
            worst = fmax(worst, fabs((double)y[row * c.a.ldy + col] - sum) / (size + 1e-30));
        }
        snprintf(g_what, sizeof g_what, "matmul %s k %u: error %.2g of sum |x w|, bound %.2g",
                 bf16 ? "bf16" : "f32", k, worst, bound);
        check(worst <= bound, "within the bound of its chain");
        guarded_free(&mem);
        case_free(&c);
    }
}

/* Mean: d/16 + 5 roundings of size mean |x|, which cancellation passes on relative to the spread;
 * the sum of squares likewise; then six operations. */
static void accuracy_layernorm(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    (void)t;
    for (uint32_t d = 2; d <= 1600; d = d * 3 / 2 + 1) {
        float x[1600], w[1600], b[1600], y[1600];
        fill(x, d, DATA_NORMAL, false);
        fill(w, d, DATA_NORMAL, false);
        fill(b, d, DATA_NORMAL, false);
        ref->layernorm(x, w, b, 1e-5f, d, false, y);
        double mean = 0, var = 0, size = 0, worst = 0;
        for (uint32_t i = 0; i < d; i++)
            mean += (double)x[i];
        mean /= d;
        for (uint32_t i = 0; i < d; i++) {
            var += ((double)x[i] - mean) * ((double)x[i] - mean);
            size = fmax(size, fabs((double)x[i]));
        }
        double inv = 1 / sqrt(var / d + (double)1e-5f);
        for (uint32_t i = 0; i < d; i++) {
            double want = ((double)x[i] - mean) * inv * (double)w[i] + (double)b[i];
            double scale = size * inv * (fabs((double)w[i]) + 1) + fabs((double)b[i]);
            worst = fmax(worst, fabs((double)y[i] - want) / scale);
        }
        double bound = (2.0 * d / 16 + 20) * g_u;
        snprintf(g_what, sizeof g_what, "layernorm d %u: error %.2g, bound %.2g", d, worst, bound);
        check(worst <= bound, "within the bound of its chain");
    }
}

/* A score is off by e = (18 + d/32) u sum|q k| scale at most, so p by that factor and 2 ulp (bf16:
 * 2^-8 more for the two roundings of p against its sum); the sums of p and of p v add their chains;
 * the result is a mean of v. */
static void accuracy_attention(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    (void)t;
    for (uint32_t i = 0; i < 24; i++) {
        uint32_t n = 1 + rng_below(300), hd = 8 + rng_below(100);
        bool bf16 = i % 2 == 0;
        attention_case c;
        attention_init(&c, bf16, n, 1, 1, hd, DATA_NORMAL);
        for (size_t j = 0; j < (size_t)n * hd; j++) {
            c.k[j] = rose_round_if(bf16, c.k[j]);
            c.v[j] = rose_round_if(bf16, c.v[j]);
        }
        pool_append(&c, ref, 0, n);
        guarded mem;
        float *out = attention_run(&c, ref, &mem, -1);
        double p[300], max = -1e300, total = 0, score_size = 0, v_size = 0, worst = 0;
        for (uint32_t j = 0; j < n; j++) {
            double s = 0, size = 0;
            for (uint32_t d = 0; d < hd; d++) {
                s += (double)c.q[d] * (double)c.k[j * hd + d];
                size += fabs((double)c.q[d] * (double)c.k[j * hd + d]);
                v_size = fmax(v_size, fabs((double)c.v[j * hd + d]));
            }
            p[j] = s * (double)c.a.scale;
            max = fmax(max, p[j]);
            score_size = fmax(score_size, size * (double)c.a.scale);
        }
        for (uint32_t j = 0; j < n; j++)
            total += p[j] = exp(p[j] - max);
        for (uint32_t d = 0; d < hd; d++) {
            double want = 0;
            for (uint32_t j = 0; j < n; j++)
                want += p[j] / total * (double)c.v[j * hd + d];
            worst = fmax(worst, fabs((double)out[d] - want));
        }
        double e = (18 + hd / 32) * g_u * score_size + 6 * g_u;
        double bound =
            (2 * e + (18 + n / 32 + n / 16 + 6) * g_u + (bf16 ? 3 * 0x1p-8 : 0)) * v_size;
        snprintf(g_what, sizeof g_what, "attention %s n %u head_dim %u: error %.2g, bound %.2g",
                 bf16 ? "bf16" : "f32", n, hd, worst, bound);
        check(worst <= bound, "within the bound of its chain");
        guarded_free(&mem);
        attention_free(&c);
    }
}

/* One value of rule 5 with every position before the window computed as a masked one: a score of
 * -inf, a probability of zero, and a zero in the place of V. */
static float masked_value(const attention_case *c, const float *p, uint32_t first, uint32_t n,
                          uint32_t d)
{
    float acc = 0.0f;
    for (uint32_t g = 0; g < n; g += ROSE_K_GROUP) {
        float sum[2] = {0.0f, 0.0f};
        for (uint32_t j = g; j < g + ROSE_K_GROUP; j++) {
            const float v = j >= first && j < n ? c->v[(size_t)j * c->a.head_dim + d] : 0.0f;
            sum[j % 2] = fmaf(j < n ? p[j] : 0.0f, v, sum[j % 2]);
        }
        acc = acc + (sum[0] + sum[1]);
    }
    return acc;
}

/* Blocks before a window are skipped: not a bit differs from computing them masked. */
static void window_masked(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    (void)t;
    static float s[600], p[600];
    for (uint32_t i = 0; i < 300; i++) {
        const uint32_t n = 1 + rng_below(300), hd = 16 * (1 + rng_below(4));
        attention_case c;
        attention_init(&c, false, n, 1, 1, hd, i % 2 == 0 ? DATA_NORMAL : DATA_TINY);
        c.a.window = 1 + rng_below(100);
        const uint32_t first = rose_row_first(&c.a, 0);
        pool_append(&c, ref, 0, n);
        guarded mem;
        float *out = attention_run(&c, ref, &mem, -1), max = -INFINITY, lane[16] = {0};
        for (uint32_t j = 0; j < n; j++) {
            float acc = 0.0f;
            for (uint32_t g = 0; g < hd; g += ROSE_K_GROUP) {
                float sum[2] = {0.0f, 0.0f};
                for (uint32_t d = g; d < g + ROSE_K_GROUP && d < hd; d++)
                    sum[d % 2] = fmaf(c.q[d], c.k[(size_t)j * hd + d], sum[d % 2]);
                acc = acc + (sum[0] + sum[1]);
            }
            s[j] = j < first ? -INFINITY : acc * c.a.scale;
            if (s[j] > max) max = s[j];
        }
        for (uint32_t j = 0; j < n; j++) {
            p[j] = rose_expf_ref(s[j] - max);
            lane[j % 16] = lane[j % 16] + p[j];
        }
        const float inv = 1.0f / rose_tree16_ref(lane);
        snprintf(g_what, sizeof g_what, "window %u of %u, head_dim %u", c.a.window, n, hd);
        for (uint32_t d = 0; d < hd; d++)
            check(same_float(masked_value(&c, p, first, n, d) * inv, out[d]), "masked is skipped");
        guarded_free(&mem);
        attention_free(&c);
    }
}

static void accuracy_tanh(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    (void)ref, (void)t;
    double worst = 0;
    for (uint32_t bits = 0x00800000u; bits < rose_f32_bits(30.0f); bits += 1009) {
        const float x = rose_f32_from_bits(bits);
        const double exact = tanh((double)x);
        const double ulp = ldexp(1.0, ilogb(exact) - 23);
        worst = fmax(worst, fabs((double)rose_tanh_ref(x) - exact) / ulp);
        if (rose_tanh_ref(-x) != -rose_tanh_ref(x)) worst = 1e9;
    }
    snprintf(g_what, sizeof g_what, "tanh: worst %.3f ulp", worst);
    check(worst < 3.0, "at most 3 ulp, and odd");
    check(rose_tanh_ref(INFINITY) == 1.0f && rose_tanh_ref(-INFINITY) == -1.0f, "tanh(inf) is 1");
    check(isnan(rose_tanh_ref(NAN)), "tanh(NaN) is NaN");
    check(rose_softcap_ref(1e30f, 50.0f) == 50.0f, "the cap is not passed");
}

static void accuracy_rmsnorm(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    (void)t;
    for (uint32_t d = 1; d <= 1600; d = d * 3 / 2 + 1) {
        float x[1600], w[1600], y[1600];
        fill(x, d, DATA_NORMAL, false);
        fill(w, d, DATA_NORMAL, false);
        ref->rmsnorm(x, w, 1e-6f, d, false, y);
        double sum = 0, worst = 0;
        for (uint32_t i = 0; i < d; i++)
            sum += (double)x[i] * (double)x[i];
        const double inv = 1 / sqrt(sum / d + (double)1e-6f);
        for (uint32_t i = 0; i < d; i++) {
            const double want = (double)x[i] * inv * (double)w[i];
            worst = fmax(worst, fabs((double)y[i] - want) / (fabs(want) + 1e-30));
        }
        const double bound = (d / 32.0 + 5) * g_u + 5 * g_u;
        snprintf(g_what, sizeof g_what, "rmsnorm d %u: error %.2g, bound %.2g", d, worst, bound);
        check(worst <= bound, "within the bound of its chain");
    }
}

/* Sine and cosine are the fp32 numbers nearest to the true values: long double tells. */
static void accuracy_rope(const rose_cpu_kernels *ref, const rose_cpu_kernels *t)
{
    (void)ref, (void)t;
    uint32_t wrong = 0, n = 0;
    for (uint32_t i = 0; i < 2000000; i++, n++) {
        float angle = i % 3 == 0   ? (float)rng_below(1u << 20)
                      : i % 3 == 1 ? rng_uniform() * (float)(1u << rng_below(24))
                                   : ldexpf(rng_uniform(), -(int)rng_below(60));
        float sine, cosine;
        rose_sincos(angle, &sine, &cosine);
        if (sine != (float)sinl((long double)angle)) wrong++;
        if (cosine != (float)cosl((long double)angle)) wrong++;
    }
    snprintf(g_what, sizeof g_what, "sine and cosine: %u of %u not correctly rounded", wrong,
             2 * n);
    check(wrong == 0, "correctly rounded");
}

#endif
