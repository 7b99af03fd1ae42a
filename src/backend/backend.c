/* backend/backend.c - what all backends share. */
#include "backend/backend.h"

void rose_backend_opts_default(rose_backend_opts *o)
{
    *o = (rose_backend_opts){
        .dtype = ROSE_COMPUTE_AUTO,
        .max_seqs = 256,
        .max_step_tokens = 2048,
    };
}
