/* backend/cuda/switches.c - which optimisations to leave out (rose_cuda_without in kernels.h):
 * names of --cuda-without, and options such as --fused-ops. Threads: any. */
#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"

static const struct {
    const char *name;
    uint32_t bit;
} g_names[] = {{"wide", ROSE_CUDA_WITHOUT_WIDE},
               {"carveout", ROSE_CUDA_WITHOUT_CARVEOUT},
               {"prompts", ROSE_CUDA_WITHOUT_PROMPTS},
               {"fetch", ROSE_CUDA_WITHOUT_FETCH},
               {"guesses", ROSE_CUDA_WITHOUT_GUESSES}};
enum { N_NAMES = sizeof g_names / sizeof *g_names };

static uint32_t bit_of(const char *name, size_t length)
{
    for (size_t i = 0; i < N_NAMES; i++)
        if (strlen(g_names[i].name) == length && memcmp(g_names[i].name, name, length) == 0)
            return g_names[i].bit;
    return 0;
}

static rose_status refuse(const char *name, size_t length, rose_err *err)
{
    char names[160] = "";
    size_t used = 0;
    for (size_t i = 0; i < N_NAMES && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "",
                                 g_names[i].name);
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "cuda-without '%.*s': expected none, all, or some of %s",
                     length < 40 ? (int)length : 40, name, names);
}

rose_status rose_cuda_without_read(const char *names, uint32_t *without, rose_err *err)
{
    *without = 0;
    if (names == NULL || *names == '\0' || strcmp(names, "none") == 0) return ROSE_OK;
    if (strcmp(names, "all") == 0) {
        for (size_t i = 0; i < N_NAMES; i++)
            *without |= g_names[i].bit;
        return ROSE_OK;
    }
    for (;;) {
        const size_t length = strcspn(names, ",");
        const uint32_t bit = bit_of(names, length);
        if (bit == 0) {
            *without = 0;
            return refuse(names, length, err);
        }
        *without |= bit;
        if (names[length] == '\0') return ROSE_OK;
        names += length + 1;
    }
}

rose_status rose_cuda_switches_read(const rose_cuda_opts *o, uint32_t *without, rose_err *err)
{
    const struct {
        bool on;
        uint32_t bit;
    } all[] = {{o->fused_ops, ROSE_CUDA_WITHOUT_OPS},
               {o->fused_mlp, ROSE_CUDA_WITHOUT_MLP},
               {o->fused_sampler, ROSE_CUDA_WITHOUT_SAMPLER},
               {o->fused_kv_append, ROSE_CUDA_WITHOUT_KV_APPEND},
               {o->paged_attn, ROSE_CUDA_WITHOUT_PAGED}};
    const rose_status st = rose_cuda_without_read(o->without, without, err);
    if (st != ROSE_OK) return st;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!all[i].on) *without |= all[i].bit;
    return ROSE_OK;
}
