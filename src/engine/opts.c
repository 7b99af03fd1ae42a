/* engine/opts.c - defaults of the engine's options; the backend's own come from the backend. */
#include <string.h>

#include "engine/engine.h"

void rose_engine_opts_default(rose_engine_opts *o)
{
    memset(o, 0, sizeof *o);
    rose_backend_opts_default(&o->backend);
    o->max_queued = 1024;
    o->chunked_prefill = true;
    o->prefill_chunk_size = 0;
    o->engine_cpu = -1;
    o->decode_first = true;
    o->admission = ROSE_ENGINE_FIFO;
    o->lookahead = 64;
    o->force_fifo_every = 8;
    o->priority_age_ms = 1000;
    o->prefix_cache = true;
    o->overlap = true;
}
