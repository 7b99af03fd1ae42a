/* model/family.h - what a model family is: a row of the table in family.c with its names and what
 * it computes. config.json, GGUF metadata and the random-model writer are read by the same row. All
 * families share one table of tensors (tensors.c), from which opening and the random-model writer
 * both work. Internal to the room. */
#ifndef ROSE_MODEL_FAMILY_H
#define ROSE_MODEL_FAMILY_H

#include <stddef.h>

#include "model/config.h"

/* Upper bounds far beyond any model, so that no product of two sizes and a dtype overflows. */
#define ROSE_MAX_WIDTH (1u << 20)
#define ROSE_MAX_VOCAB (1u << 24)

/* ---- tensors ---- */

/* How files spell the names of tensors, and how they store matrices. */
typedef struct rose_naming {
    uint32_t column;          /* of the table in tensors.c */
    const char *prefix;       /* that names may carry: "transformer." */
    const char *layer_prefix; /* "h.": then the layer, a dot, the tensor */
    const char *head_name;    /* of the output matrix, never with the prefix */
    bool transposed;          /* matrices are stored [out][in] */
    /* Tensors and buffers that such files carry and that inference does not need: a NULL-ended list
     * of endings of names. */
    const char *const *ignored;
} rose_naming;

extern const rose_naming rose_naming_gpt2, rose_naming_llama, rose_naming_gguf;

/* The kind of a tensor; random weights depend on it. */
typedef enum rose_tensor_kind {
    ROSE_KIND_MATRIX,
    ROSE_KIND_RESIDUAL, /* a matrix whose output is added to the residual stream */
    ROSE_KIND_BIAS,
    ROSE_KIND_NORM
} rose_tensor_kind;

/* A tensor that the files of a model must hold. */
typedef struct rose_tensor_row {
    char name[64];     /* without the prefix; a layer's without the layer ("h.3.") */
    size_t offset;     /* of the rose_tensor within rose_layer or rose_model */
    uint32_t n_dims;   /* 1 to 3 */
    uint64_t shape[3]; /* dimensions that it does not have are 1 */
    rose_tensor_kind kind;
} rose_tensor_row;

enum { ROSE_MAX_ROWS = 32 };

typedef struct rose_family rose_family;

/* The tensors outside the layers, the token embedding first, without the head; and those of a
 * layer. n: f->naming or rose_naming_gguf. Both return how many rows they wrote. The order never
 * changes, because random weights depend on it. */
size_t rose_family_model_rows(const rose_family *f, const rose_naming *n, const rose_arch *a,
                              rose_tensor_row out[ROSE_MAX_ROWS]);
size_t rose_family_layer_rows(const rose_family *f, const rose_naming *n, const rose_arch *a,
                              uint32_t layer, rose_tensor_row out[ROSE_MAX_ROWS]);

/* ---- families ---- */

/* The layers for which sliding_window holds, unless layer_types says so. */
typedef enum rose_windows {
    ROSE_WINDOWS_NONE,
    ROSE_WINDOWS_ALL,
    ROSE_WINDOWS_LATE,   /* with use_sliding_window: those from max_window_layers on (Qwen) */
    ROSE_WINDOWS_STILL,  /* with use_sliding_window: those that do not rotate (SmolLM3) */
    ROSE_WINDOWS_PATTERN /* all but each sixth, or as sliding_window_pattern says (Gemma) */
} rose_windows;

/* What a family with RMSNorm, RoPE and a gated MLP has, and what transformers assumes where
 * config.json is silent. */
typedef struct rose_decoder_defaults {
    float norm_eps;
    float theta;
    uint32_t context;  /* max_position_embeddings */
    uint32_t head_dim; /* 0 = hidden_size / num_attention_heads */
    bool tied_head;
    int64_t bos_id, eos_id; /* -1 = none */
    const char *act_field;  /* NULL = "hidden_act" */
    bool qkv_bias;          /* q, k and v always have biases */
    bool reads_attn_bias;   /* attention_bias: of q, k, v and the output */
    bool reads_mlp_bias;    /* mlp_bias */
    bool qk_norm;
    rose_norms norms;   /* model.h: before, after or around mixer and MLP; 0: before both */
    bool norm_plus_one; /* norms multiply by 1 + w; the converter to GGUF adds the 1 */
    bool gelu;          /* gates are ROSE_ACT_GELU_TANH where config.json is silent; else SiLU */
    bool scaled_embed;  /* the embedding is multiplied by sqrt(hidden_size) */
    bool reads_scale;   /* query_pre_attn_scalar (256), soft caps of scores and logits */
    uint32_t no_rope_every; /* each such layer does not rotate; no_rope_layers and
                             * no_rope_layer_interval say otherwise. 0 = all rotate */
    float local_theta; /* of sliding layers, which have a rope of their own; 0 = they have not */
    rose_windows windows;
    uint32_t window;            /* sliding_window, if config.json does not have the field */
    bool partial_rotary;        /* knows partial_rotary_factor */
    bool only_longrope;         /* no other scaling; "su" and "yarn" mean longrope (Phi-3) */
    uint32_t original_context;  /* original_max_position_embeddings; 0 = max_position_embeddings */
    bool context_holds_scaling; /* max_position_embeddings is the length after the scaling */
} rose_decoder_defaults;

/* What GGUF files of the family have. */
typedef struct rose_gguf_traits {
    const char *architecture; /* general.architecture; NULL: that of another family, or none */
    bool permuted;    /* the converter interleaves the rows of q and k within each head, as for all
                       * families that it derives from its LlamaModel */
    bool all_sliding; /* attention.sliding_window holds for all layers */
} rose_gguf_traits;

/* A tensor that the family calls otherwise than its naming does: "self_attn.q_proj", without
 * ".weight". */
typedef struct rose_renamed {
    const char *from, *to;
} rose_renamed;

struct rose_family {
    const char *model_type;   /* in config.json */
    const char *architecture; /* transformers' class with a head */
    const char *wrapper;      /* model_type of the multimodal models of which a GGUF file holds the
                               * text part as this family; NULL = none */
    const rose_naming *naming;
    const rose_renamed *renamed; /* ends with {NULL, NULL}; NULL = none. Not in GGUF files */
    bool fused;                  /* q, k and v are one matrix, and so are gate and up */
    rose_gguf_traits gguf;
    rose_decoder_defaults defaults;
    rose_status (*parse)(const rose_family *f, const rose_config *c, rose_arch *a, rose_err *err);
};

/* What layers of one model differ in, as parsers find it. */
typedef struct rose_layer_flags {
    uint8_t of[ROSE_MAX_LAYERS]; /* bits of the next enum */
    uint32_t window;             /* of sliding layers; 0 = none */
    rose_rope rope;              /* of sliding layers */
} rose_layer_flags;
enum {
    ROSE_LAYER_SLIDING = 1, /* attention within the window */
    ROSE_LAYER_NO_ROPE = 2
};

/* Sets kinds and kind_of; a->kinds[0] describes a full layer that rotates. Without a window no
 * layer is sliding. */
void rose_arch_set_kinds(rose_arch *a, const rose_layer_flags *f);

/* All families. */
const rose_family *rose_families(size_t *n);

/* Sets *a from scratch: what the row says, before a file says more. */
void rose_family_describe(const rose_family *f, rose_arch *a);

/* gpt2.c, decoder.c: the parsers. *a is as rose_family_describe leaves it. */
rose_status rose_gpt2_parse(const rose_family *f, const rose_config *c, rose_arch *a,
                            rose_err *err);
rose_status rose_decoder_parse(const rose_family *f, const rose_config *c, rose_arch *a,
                               rose_err *err);

/* rope_config.c: the rope of a->kinds[0] from rope_parameters or rope_scaling and rope_theta. */
rose_status rose_decoder_rope(const rose_config *c, const rose_decoder_defaults *d, rose_arch *a,
                              rose_err *err);

/* One table of frequencies from the fields of `fields` (root NULL: none), with `theta` where they
 * give none. May lengthen a->max_positions, as the scaling does. */
rose_status rose_decoder_rope_fields(const rose_config *c, const rose_config *fields,
                                     const rose_decoder_defaults *d, float theta, rose_rope *out,
                                     rose_arch *a, rose_err *err);

/* Finds the row for the config's model_type. UNSUPPORTED names an unknown type; FORMAT: there is
 * no type. */
rose_status rose_family_find(const rose_family **out, const rose_config *c, rose_err *err);

/* Refuses weights that another program quantized, by the name of its method: v is the object at
 * `field` of c (quantized.c). */
rose_status rose_quantized_refuse(const rose_config *c, const char *field, const rose_json *v,
                                  rose_err *err);

/* The same for a folder with hf_quant_config.json. ROSE_OK if there is no such file, or if it says
 * that the weights are as they were. */
rose_status rose_quantized_check_folder(const char *folder, rose_err *err);

/* Refuses the fields that no family knows, then calls f->parse. On failure *a owns nothing. May put
 * defaults of the family into c->root. */
rose_status rose_family_parse(const rose_family *f, const rose_config *c, rose_arch *a,
                              rose_err *err);

#endif
