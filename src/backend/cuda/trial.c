/* backend/cuda/trial.c - the names of what is on trial and of what can be left out (rose_cuda_trial
 * and rose_cuda_without in kernels.h). Any thread. */
#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"

typedef struct choice {
    const char *name;
    uint32_t bit;
} choice;

static const choice g_trial[] = {{"fused", ROSE_CUDA_TRY_FUSED}, {NULL, 0}};
static const choice g_without[] = {{"wide", ROSE_CUDA_WITHOUT_WIDE},
                                   {"team", ROSE_CUDA_WITHOUT_TEAM},
                                   {"ahead", ROSE_CUDA_WITHOUT_AHEAD},
                                   {"halves", ROSE_CUDA_WITHOUT_HALVES},
                                   {NULL, 0}};

static uint32_t bit_of(const choice *all, const char *name, size_t length)
{
    for (; all->name != NULL; all++)
        if (strlen(all->name) == length && memcmp(all->name, name, length) == 0) return all->bit;
    return 0;
}

static rose_status refuse(const char *flag, const choice *all, const char *name, size_t length,
                          rose_err *err)
{
    char names[100] = "";
    size_t used = 0;
    for (; all->name != NULL && used < sizeof names; all++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? ", " : "",
                                 all->name);
    return rose_fail(err, ROSE_E_UNSUPPORTED, "%s: no %.*s; there are %s", flag,
                     length < 40 ? (int)length : 40, name, names);
}

static rose_status read_names(const char *flag, const choice *all, const char *names,
                              uint32_t *bits, rose_err *err)
{
    *bits = 0;
    if (names == NULL || *names == '\0') return ROSE_OK;
    for (;;) {
        const size_t length = strcspn(names, ",");
        const uint32_t bit = bit_of(all, names, length);
        if (bit == 0) {
            *bits = 0;
            return refuse(flag, all, names, length, err);
        }
        *bits |= bit;
        if (names[length] == '\0') return ROSE_OK;
        names += length + 1;
    }
}

rose_status rose_cuda_trial_read(const char *names, uint32_t *trial, rose_err *err)
{
    return read_names("cuda-trial", g_trial, names, trial, err);
}

rose_status rose_cuda_without_read(const char *names, uint32_t *without, rose_err *err)
{
    return read_names("cuda-without", g_without, names, without, err);
}
