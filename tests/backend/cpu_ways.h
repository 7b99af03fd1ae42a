/* tests/backend/cpu_ways.h - the ways in which the CPU backend can run a sequence: in chunks, on
 * several threads, at every level, among others, over dirty pages. All of them must give the bits
 * of the plainest one. Header-only: each test is one program. */
#ifndef TESTS_BACKEND_CPU_WAYS_H
#define TESTS_BACKEND_CPU_WAYS_H

#include "backend/cpu_fixture.h"

#include "backend/cpu/kernels_internal.h"

/* The slow builds show that no way touches wrong memory or breaks an assertion: few models, types
 * and sizes do. The release build compares the bits of all of them. */
#ifdef ROSE_DEBUG
enum { FEW = 1 };
#else
enum { FEW = 0 };
#endif

enum { N_PROMPT = 37, N_TOKENS = 53 };

/* The sequences of check_among. A test of many models needs fewer: what a long batch adds is up to
 * the kernels, which are the same for all. */
#ifndef N_OTHERS
#define N_OTHERS (FEW ? 15 : 63)
#endif

static const char *const g_isas[] = {"scalar", "avx2", "avx512", "amx"};
static const char *g_level = "auto"; /* what the checks run */
static bool g_pairs;                 /* and its definition: rule 11 */

static inline fx_seq baseline(const rose_model *m, rose_compute dtype)
{
    fx_seq s = fx_seq_make(m, fx_seed() + 99, N_TOKENS);
    fx_backend f = fx_open(m, dtype, "scalar", 1, 0);
    if (g_pairs) {
        f.cpu->kernels.matmul[ROSE_I8] = rose_matmul_i8_pairs_ref;
        f.cpu->kernels.matmul[ROSE_BF16] = rose_matmul_bf16_pairs_ref;
        f.cpu->kernels.attention = rose_attention_pairs_ref;
    }
    fx_run(&f, &s, N_PROMPT, N_PROMPT);
    fx_run(&f, &s, N_TOKENS, 1);
    fx_close(&f);
    return s;
}

/* Chunks of a prompt whose logits nobody asks for leave out a part of the last layer. */
static inline void check_quiet(const rose_model *m, rose_compute dtype, const fx_seq *want,
                               const char *name)
{
    fx_seq s = fx_seq_make(m, fx_seed() + 99, N_TOKENS);
    fx_backend f = fx_open(m, dtype, g_level, 2, 5);
    const size_t vocab = m->arch.vocab_size;
    fx_step(&f, &(fx_part){&s, 13, false}, 1);
    fx_step(&f, &(fx_part){&s, N_PROMPT - 13, false}, 1);
    memcpy(s.logits, want->logits, N_PROMPT * vocab * sizeof *s.logits);
    memcpy(s.next_ids, want->next_ids, N_PROMPT * sizeof *s.next_ids);
    fx_run(&f, &s, N_TOKENS, 5);
    fx_same(m, want, &s, name);
    fx_seq_free(&s);
    fx_close(&f);
}

static inline void check_alone(const rose_model *m, rose_compute dtype, const char *isa,
                               uint32_t threads, uint32_t chunk, const fx_seq *want,
                               const char *name)
{
    char what[160];
    fx_seq s = fx_seq_make(m, fx_seed() + 99, N_TOKENS);
    fx_backend f = fx_open(m, dtype, isa, threads, 1 + chunk);
    snprintf(what, sizeof what, "%s, %s%s, %s, %u threads, chunks of %u", name,
             dtype == ROSE_COMPUTE_BF16 ? "bf16" : "fp32",
             fx_quantization == ROSE_QUANT_INT8 ? " and int8" : "", isa, threads, chunk);
    fx_run(&f, &s, N_PROMPT, chunk);
    fx_run(&f, &s, N_TOKENS, 1);
    fx_same(m, want, &s, what);
    fx_seq_drop(&f, &s); /* once more over its own dirty pages */
    memset(s.logits, 0, (size_t)N_TOKENS * m->arch.vocab_size * sizeof *s.logits);
    fx_run(&f, &s, N_TOKENS, chunk);
    fx_same(m, want, &s, what);
    fx_seq_free(&s);
    fx_close(&f);
}

static inline void check_chunks(const rose_model *m, rose_compute dtype, const fx_seq *want,
                                const char *name)
{
    static const uint32_t chunks[] = {3, 17, 1, 16, N_PROMPT};
    for (int i = 0; i < (FEW ? 2 : 5); i++)
        check_alone(m, dtype, g_level, 1, chunks[i], want, name);
}

static inline void check_threads(const rose_model *m, rose_compute dtype, const fx_seq *want,
                                 const char *name)
{
    check_alone(m, dtype, g_level, 2, 17, want, name);
    if (!FEW) check_alone(m, dtype, g_level, 3, 19, want, name);
}

static inline void check_isas(const rose_model *m, rose_compute dtype, const fx_seq *want,
                              const char *name)
{
    for (int i = 0; i <= (int)rose_isa_probe(); i++)
        check_alone(m, dtype, g_isas[i], 2, 20, want, name);
}

/* N_OTHERS others of 1 .. 60 tokens start at random steps with random chunks, finish and give their
 * pages back while the sequence under test is prefilled in chunks and then decoded. */
static inline void check_among(const rose_model *m, rose_compute dtype, const fx_seq *want,
                               const char *name)
{
    fx_random r = {.seed = fx_seed() + 5};
    fx_backend f = fx_open(m, dtype, g_level, 2, 3);
    fx_seq s = fx_seq_make(m, fx_seed() + 99, N_TOKENS), others[N_OTHERS];
    for (uint32_t i = 0; i < N_OTHERS; i++)
        others[i] = fx_seq_make(m, fx_seed() + 1000 + i, 1 + fx_below(&r, 60));
    while (s.done < N_TOKENS) {
        fx_part parts[N_OTHERS + 1];
        uint32_t n = 0, place = fx_below(&r, 30), room = 300;
        for (uint32_t i = 0; i < N_OTHERS; i++) {
            fx_seq *o = &others[i];
            if (i == place || (i == N_OTHERS - 1 && place >= N_OTHERS)) {
                uint32_t rows = s.done < N_PROMPT ? 1 + fx_below(&r, N_PROMPT - s.done) : 1;
                parts[n++] = (fx_part){&s, rows, true};
            }
            if (o->done == o->n_tokens) fx_seq_drop(&f, o);
            uint32_t rows = fx_below(&r, 4) == 0 ? 1 + fx_below(&r, o->n_tokens - o->done) : 1;
            if (rows > room) continue;
            room -= rows;
            parts[n++] = (fx_part){o, rows, false};
        }
        fx_step(&f, parts, n);
    }
    fx_same(m, want, &s, name);
    for (uint32_t i = 0; i < N_OTHERS; i++)
        fx_seq_free(&others[i]);
    fx_seq_free(&s);
    fx_close(&f);
}

#endif
