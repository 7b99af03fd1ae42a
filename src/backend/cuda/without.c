/* backend/cuda/without.c - the names of the optimisations that can be left out (rose_cuda_without
 * in kernels.h). Threads: any. */
#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"

static const struct {
    const char *name;
    uint32_t bit;
} g_names[] = {{"wide", ROSE_CUDA_WITHOUT_WIDE},        {"team", ROSE_CUDA_WITHOUT_TEAM},
               {"ahead", ROSE_CUDA_WITHOUT_AHEAD},      {"halves", ROSE_CUDA_WITHOUT_HALVES},
               {"normed", ROSE_CUDA_WITHOUT_NORMED},    {"carveout", ROSE_CUDA_WITHOUT_CARVEOUT},
               {"prompts", ROSE_CUDA_WITHOUT_PROMPTS},  {"spread", ROSE_CUDA_WITHOUT_SPREAD},
               {"joined", ROSE_CUDA_WITHOUT_JOINED},    {"head", ROSE_CUDA_WITHOUT_HEAD},
               {"once", ROSE_CUDA_WITHOUT_ONCE},        {"chain", ROSE_CUDA_WITHOUT_CHAIN},
               {"append", ROSE_CUDA_WITHOUT_APPEND},    {"fetch", ROSE_CUDA_WITHOUT_FETCH},
               {"pingpong", ROSE_CUDA_WITHOUT_PINGPONG}};
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
