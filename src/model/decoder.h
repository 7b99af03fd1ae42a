/* model/decoder.h - the parsing of config.json that the families with RMSNorm, RoPE and a gated MLP
 * share. A family of which rose_decoder_defaults says everything has rose_decoder_parse as its
 * parser; the others call the pieces. Internal to the room. */
#ifndef ROSE_MODEL_DECODER_H
#define ROSE_MODEL_DECODER_H

#include "model/family.h"

/* Sets *a from scratch: all that f->defaults describe. */
rose_status rose_decoder_parse(const rose_family *f, const rose_config *c, rose_arch *a,
                               rose_err *err);

/* The same without RoPE and windows: sizes, norm, activation, biases, head, ids. */
rose_status rose_decoder_parse_base(const rose_family *f, const rose_config *c, rose_arch *a,
                                    rose_err *err);

/* The rope of a->kinds[0] from rope_parameters or rope_scaling and rope_theta. */
rose_status rose_decoder_rope(const rose_config *c, const rose_decoder_defaults *d, rose_arch *a,
                              rose_err *err);

/* One table of frequencies from the fields of `fields` (root NULL: none), with `theta` where they
 * give none. May lengthen a->max_positions, as the scaling does. */
rose_status rose_decoder_rope_fields(const rose_config *c, const rose_config *fields,
                                     const rose_decoder_defaults *d, float theta, rose_rope *out,
                                     rose_arch *a, rose_err *err);

/* sliding_window: d->window if config.json does not have the field, 0 if it is null. */
rose_status rose_decoder_window(const rose_config *c, const rose_decoder_defaults *d,
                                uint32_t *window, rose_err *err);

/* layer_types, if the config has it, overrides the sliding bits of *f. A sliding layer without a
 * window is refused. */
rose_status rose_decoder_layer_types(const rose_config *c, const rose_arch *a, rose_layer_flags *f,
                                     rose_err *err);

#endif
