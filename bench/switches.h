/* bench/switches.h - the switches that `bench ablate` knows: how each is turned on and off, and the
 * workload on which it can show what it is worth. A new switch is a row in switches.c. Pure data;
 * any thread. */
#ifndef ROSE_BENCH_SWITCHES_H
#define ROSE_BENCH_SWITCHES_H

#include "bench/load_trace.h"
#include "bench/prompts.h"

typedef enum rose_switch_load {
    ROSE_LOAD_PLAIN,  /* Poisson arrivals, prompts of one length */
    ROSE_LOAD_COLD,   /* the same on a server that has seen no request */
    ROSE_LOAD_SHARED, /* prompts that begin the same, of the length that half a context leaves */
    ROSE_LOAD_LONG,   /* each eighth prompt as long as the context allows, amid short ones */
    ROSE_LOAD_FULL,   /* every prompt so long */
    ROSE_LOAD_BURST,  /* all requests at once, lengths log-normal */
    ROSE_N_LOADS
} rose_switch_load;

typedef struct rose_switch {
    const char *name;     /* in --switches and in the results */
    const char *on, *off; /* arguments of the server */
    const char *both; /* further arguments of either side, so that there is an effect; "" = none */
    bool engine;      /* `bench offline` has it too */
    rose_switch_load load;
} rose_switch;

const rose_switch *rose_switch_at(uint32_t i);                     /* NULL behind the last */
const rose_switch *rose_switch_find(const char *name, size_t len); /* NULL = unknown */
const char *rose_switch_load_name(rose_switch_load load);

/* The requests of a load. base: arrivals and lengths of the plain one; context: of the model, 0 =
 * unknown. *mode: how the prompts are made; *at_once: arrival times do not count. Errors: as
 * rose_load_trace_generate. */
rose_status rose_switch_trace(rose_switch_load load, const rose_load_trace_gen *base,
                              uint32_t context, rose_load_trace *out, rose_prompt_mode *mode,
                              bool *at_once, rose_err *err);

#endif
