/* bench/switches.h - the switches that `bench ablate` knows: how each is turned on and off, and the
 * workload on which it should make a difference. A new switch is a new row in switches.c. Constant
 * data; any thread. */
#ifndef ROSE_BENCH_SWITCHES_H
#define ROSE_BENCH_SWITCHES_H

#include "bench/load_trace.h"
#include "bench/prompts.h"

typedef enum rose_switch_load {
    ROSE_LOAD_PLAIN,  /* the plain load: Poisson arrivals and prompts of one length */
    ROSE_LOAD_COLD,   /* the load PLAIN, on a server that has seen no request before */
    ROSE_LOAD_SHARED, /* prompts with a common beginning, as long as half of the context allows */
    ROSE_LOAD_LONG, /* every eighth prompt is as long as the context allows, the others are short */
    ROSE_LOAD_FULL, /* every prompt is as long as the context allows */
    ROSE_LOAD_BURST, /* all requests at once, with log-normal lengths */
    ROSE_LOAD_TEXT,  /* the load PLAIN with prompts of ROSE_PROMPT_TEXT */
    ROSE_N_LOADS
} rose_switch_load;

typedef struct rose_switch {
    const char *name;     /* the switch's name in --switches and in the results */
    const char *on, *off; /* arguments of the server that turn the switch on and off */
    const char *both;     /* arguments of both sides that make the switch act; "" = none */
    bool engine;          /* `bench offline` also has this switch */
    rose_switch_load load;
} rose_switch;

const rose_switch *rose_switch_at(uint32_t i); /* all switches; NULL after the last */
/* NULL = there is no such switch */
const rose_switch *rose_switch_find(const char *name, size_t len);
const char *rose_switch_load_name(rose_switch_load load);

/* Makes the requests of a load. base gives arrivals and lengths of the plain load. context is the
 * model's, 0 = unknown. *mode says how prompts are made. *at_once: send all requests at the start.
 * Errors: as rose_load_trace_generate. */
rose_status rose_switch_trace(rose_switch_load load, const rose_load_trace_gen *base,
                              uint32_t context, rose_load_trace *out, rose_prompt_mode *mode,
                              bool *at_once, rose_err *err);

#endif
