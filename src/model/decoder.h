/* model/decoder.h - the parsing of rotary positions in config.json, for decoder.c. Internal to the
 * room. */
#ifndef ROSE_MODEL_DECODER_H
#define ROSE_MODEL_DECODER_H

#include "model/family.h"

/* The rope of a->kinds[0] from rope_parameters or rope_scaling and rope_theta. */
rose_status rose_decoder_rope(const rose_config *c, const rose_decoder_defaults *d, rose_arch *a,
                              rose_err *err);

/* One table of frequencies from the fields of `fields` (root NULL: none), with `theta` where they
 * give none. May lengthen a->max_positions, as the scaling does. */
rose_status rose_decoder_rope_fields(const rose_config *c, const rose_config *fields,
                                     const rose_decoder_defaults *d, float theta, rose_rope *out,
                                     rose_arch *a, rose_err *err);

#endif
