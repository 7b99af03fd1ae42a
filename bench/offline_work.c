/* bench/offline_work.c - makes the prompts and lengths of an offline benchmark. */
#include <stdlib.h>

#include "bench/offline_internal.h"
#include "bench/prompts.h"

enum { MT_N = 624, MT_M = 397, NANO_SEQS = 256, NANO_MIN = 100, NANO_MAX = 1024, NANO_IDS = 10001 };

/* The random module of Python: a Mersenne Twister seeded by init_by_array([seed]). */
typedef struct python_random {
    uint32_t mt[MT_N];
    int at;
} python_random;

static void python_seed(python_random *r, uint32_t seed)
{
    uint32_t *mt = r->mt;
    mt[0] = 19650218;
    for (uint32_t i = 1; i < MT_N; i++)
        mt[i] = 1812433253u * (mt[i - 1] ^ mt[i - 1] >> 30) + i;
    uint32_t i = 1;
    for (int k = 0; k < MT_N; k++) {
        mt[i] = (mt[i] ^ (mt[i - 1] ^ mt[i - 1] >> 30) * 1664525u) + seed;
        if (++i == MT_N) {
            mt[0] = mt[MT_N - 1];
            i = 1;
        }
    }
    for (int k = 0; k < MT_N - 1; k++) {
        mt[i] = (mt[i] ^ (mt[i - 1] ^ mt[i - 1] >> 30) * 1566083941u) - i;
        if (++i == MT_N) {
            mt[0] = mt[MT_N - 1];
            i = 1;
        }
    }
    mt[0] = 0x80000000u;
    r->at = MT_N;
}

static uint32_t python_u32(python_random *r)
{
    uint32_t *mt = r->mt;
    if (r->at == MT_N) {
        for (int k = 0; k < MT_N; k++) {
            const uint32_t y = (mt[k] & 0x80000000u) | (mt[(k + 1) % MT_N] & 0x7fffffffu);
            mt[k] = mt[(k + MT_M) % MT_N] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
        }
        r->at = 0;
    }
    uint32_t y = mt[r->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

/* As random.randint(0, n - 1): draws as many bits as n has, and repeats until the number is below
 * n. */
static uint32_t python_below(python_random *r, uint32_t n)
{
    const int bits = 32 - __builtin_clz(n);
    for (;;) {
        const uint32_t v = python_u32(r) >> (32 - bits);
        if (v < n) return v;
    }
}

rose_status rose_offline_nano_vllm(rose_load_trace *out, rose_err *err)
{
    python_random r;
    *out = (rose_load_trace){.format = "nano-vllm"};
    out->rows = calloc(NANO_SEQS, sizeof *out->rows);
    if (out->rows == NULL) return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    out->n = NANO_SEQS;
    python_seed(&r, 0);
    for (uint32_t i = 0; i < NANO_SEQS; i++) {
        out->rows[i].n_in = NANO_MIN + python_below(&r, NANO_MAX - NANO_MIN + 1);
        for (uint32_t k = 0; k < out->rows[i].n_in; k++)
            python_below(&r, NANO_IDS); /* draws and drops the ids of the prompt, because Python
                                         * draws them at this point */
    }
    for (uint32_t i = 0; i < NANO_SEQS; i++)
        out->rows[i].n_out = NANO_MIN + python_below(&r, NANO_MAX - NANO_MIN + 1);
    return ROSE_OK;
}

uint32_t rose_offline_longest(const rose_offline_work *w)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < w->n; i++)
        most = w->rows[i].n_in > most ? w->rows[i].n_in : most;
    return most;
}

void rose_offline_prompt(const rose_offline_work *w, uint64_t seed, uint32_t i, uint32_t *ids)
{
    for (uint32_t j = 0; j < w->rows[i].n_in; j++)
        ids[j] = rose_prompt_random_id(seed, i, j, w->vocab);
}

uint64_t rose_offline_seed(const rose_offline_work *w, bool warm_up, uint32_t run)
{
    return warm_up ? w->seed + 1000003u * (run + 1) : w->seed + 7919u * run;
}

void rose_offline_result_free(rose_offline_result *r)
{
    free(r->runs);
    rose_json_decref(r->extra);
    *r = (rose_offline_result){0};
}
