/* backend/cuda/trial.c - the names of what is on trial (rose_cuda_trial in kernels.h). Any thread.
 */
#include <string.h>

#include "backend/cuda/cuda_internal.h"

static const struct {
    const char *name;
    uint32_t trial;
} g_names[] = {{"sampler", ROSE_CUDA_TRY_SAMPLER},
               {"prompts4", ROSE_CUDA_TRY_PROMPT},
               {"prompts8", ROSE_CUDA_TRY_PROMPT_8},
               {"norm", ROSE_CUDA_TRY_NORM},
               {"halves", ROSE_CUDA_TRY_HALVES},
               {"quarters", ROSE_CUDA_TRY_QUARTERS},
               {"rules", ROSE_CUDA_TRY_RULES},
               {"ordered", ROSE_CUDA_TRY_ORDERED},
               {"wide", ROSE_CUDA_TRY_WIDE},
               {"wide-192", ROSE_CUDA_TRY_WIDE_192},
               {"wide-pair", ROSE_CUDA_TRY_WIDE_PAIR},
               {"wide-add", ROSE_CUDA_TRY_WIDE_ADD},
               {"wide-96", ROSE_CUDA_TRY_WIDE_96},
               {"wide-64-96", ROSE_CUDA_TRY_WIDE_64_96},
               {"wide-64-48", ROSE_CUDA_TRY_WIDE_64_48},
               {"ahead", ROSE_CUDA_TRY_AHEAD},
               {"ahead-4", ROSE_CUDA_TRY_AHEAD_4},
               {"split-8", ROSE_CUDA_TRY_SPLIT_8},
               {"head-64", ROSE_CUDA_TRY_HEAD_64},
               {"team", ROSE_CUDA_TRY_TEAM},
               {"head", ROSE_CUDA_TRY_HEAD},
               {"fused", ROSE_CUDA_TRY_FUSED}};

static uint32_t trial_of(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof g_names / sizeof *g_names; i++)
        if (strlen(g_names[i].name) == length && memcmp(g_names[i].name, name, length) == 0)
            return g_names[i].trial;
    return 0;
}

rose_status rose_cuda_trial_read(const char *names, uint32_t *trial, rose_err *err)
{
    *trial = 0;
    if (names == NULL || *names == '\0') return ROSE_OK;
    for (;;) {
        const size_t length = strcspn(names, ",");
        const uint32_t bits = trial_of(names, length);
        if (bits == 0) {
            *trial = 0;
            return rose_fail(err, ROSE_E_UNSUPPORTED, "cuda-trial: no kernel %.*s on trial",
                             length < 40 ? (int)length : 40, names);
        }
        *trial |= bits;
        if (names[length] == '\0') return ROSE_OK;
        names += length + 1;
    }
}
