/* model/decoder.h - what the families with RMSNorm, RoPE and a gated MLP have in common: the tables
 * of tensors that Llama began with, and the parsing of the fields that all of them spell alike. A
 * family's parser calls these pieces in turn. Internal to the room. */
#ifndef ROSE_MODEL_DECODER_H
#define ROSE_MODEL_DECODER_H

#include "model/family.h"

/* Upper bounds far beyond any model, so that no product of two sizes and a dtype overflows. */
#define ROSE_MAX_WIDTH (1u << 20)
#define ROSE_MAX_VOCAB (1u << 24)

/* Llama's names. Biases and norms of q and k by the architecture. */
extern const rose_tensor_spec rose_decoder_model_tensors[];
extern const rose_tensor_spec rose_decoder_layer_tensors[];
extern const char *const rose_decoder_ignored[];

/* What transformers assumes where config.json is silent. */
typedef struct rose_decoder_defaults {
    const char *model_type;
    float norm_eps;
    float theta;
    uint32_t head_dim; /* 0 = hidden_size / num_attention_heads */
    bool tied_head;
    int64_t bos_id, eos_id;     /* -1 = none */
    const char *act_field;      /* "hidden_act" */
    bool partial_rotary;        /* knows partial_rotary_factor */
    bool su_is_longrope;        /* rope types "su" and "yarn" mean longrope (Phi-3) */
    uint32_t original_context;  /* original_max_position_embeddings; 0 = max_position_embeddings */
    bool context_holds_scaling; /* max_position_embeddings is the length after the scaling */
} rose_decoder_defaults;

/* Everything but windows, RoPE and biases: sizes, norm, activation, head, ids. Sets *a from
 * scratch.
 */
rose_status rose_decoder_parse(const rose_config *c, const rose_decoder_defaults *d, rose_arch *a,
                               rose_err *err);

/* rope[0] from rope_parameters or rope_scaling and rope_theta; rope[1] becomes the same. */
rose_status rose_decoder_rope(const rose_config *c, const rose_decoder_defaults *d, rose_arch *a,
                              rose_err *err);

/* One table of frequencies into a->rope[index] from the fields of `fields` (root NULL: none), with
 * `theta` where they give none. May lengthen a->max_positions, as the scaling does. */
rose_status rose_decoder_rope_fields(const rose_config *c, const rose_config *fields,
                                     const rose_decoder_defaults *d, float theta, int index,
                                     rose_arch *a, rose_err *err);

/* sliding_window into a->window; absent or null leaves it. */
rose_status rose_decoder_window(const rose_config *c, rose_arch *a, rose_err *err);

/* layer_types, if the config has it, overrides the sliding bits of a->layer_flags. At the end a
 * window that no layer uses is 0; a sliding layer without a window is refused. */
rose_status rose_decoder_layer_types(const rose_config *c, rose_arch *a, rose_err *err);

/* sliding bits as use_sliding_window, sliding_window, max_window_layers and layer_types say (Qwen).
 */
rose_status rose_decoder_late_windows(const rose_config *c, rose_arch *a, rose_err *err);

#endif
