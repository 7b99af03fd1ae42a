/* config.json of each family, in the spelling of transformers 4 and 5: what the fields come to, the
 * tensors that a model must then hold, and what is refused, by name. */
#include "fixture.h"

#include "base/json.h"

#include "arch_view.h"
#include "golden.h"
#include "log_capture.h"
#include "model/family.h"
#include "model/rope.h"

#define SIZES                                                                                      \
    "\"hidden_size\": 24, \"num_hidden_layers\": 6, \"num_attention_heads\": 4, "                  \
    "\"num_key_value_heads\": 2, \"intermediate_size\": 40, \"vocab_size\": 300, "                 \
    "\"max_position_embeddings\": 256, \"bos_token_id\": 1, \"eos_token_id\": [2, 3]"

/* The caller closes the brace. */
#define YARN                                                                                       \
    "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, "                                     \
    "\"original_max_position_embeddings\": 64"

/* The architecture of SIZES with the fields of `more`, which win; the caller frees it. */
static rose_status parse(const char *type, const char *more, rose_arch *a, rose_err *err)
{
    rose_config c = {.label = "config.json"};
    const rose_family *family = NULL;
    rose_buf b = {0};
    *a = (rose_arch){0};
    rose_buf_addf(&b, "{%s}", more);
    rose_json *fields = rose_json_loads(rose_buf_str(&b), 0, NULL);
    c.root = rose_json_loads("{" SIZES "}", 0, NULL);
    assert_true(fields != NULL && c.root != NULL);
    assert_int_equal(rose_json_update(c.root, fields), 0);
    assert_int_equal(rose_json_set_new(c.root, "model_type", rose_json_string(type)), 0);
    rose_status st = rose_family_find(&family, &c, err);
    if (st == ROSE_OK) st = rose_family_parse(family, &c, a, err);
    rose_config_close(&c);
    rose_json_decref(fields);
    rose_buf_free(&b);
    return st;
}

static rose_arch arch_of(const char *type, const char *more)
{
    rose_arch a;
    rose_err err = {{0}};
    if (parse(type, more, &a, &err) != ROSE_OK) fail_msg("%s: %s: %s", type, more, err.msg);
    return a;
}

static void refused(const char *type, const char *more, rose_status want, const char *word)
{
    rose_arch a;
    rose_err err = {{0}};
    rose_status st = parse(type, more, &a, &err);
    if (st != want || strstr(err.msg, word) == NULL || strstr(err.msg, "config.json") == NULL)
        fail_msg("%s: %s: %s: '%s', expected '%s'", type, more, rose_status_name(st), err.msg,
                 word);
    assert_null(a.rope_factors);
}

/* One letter a layer: f full, s sliding, F and S without rotation. */
static void check_layers(const rose_arch *a, const char *want)
{
    assert_int_equal(a->n_layers, strlen(want));
    for (uint32_t i = 0; i < a->n_layers; i++) {
        const rose_mixer *m = &rose_arch_kind(a, i)->mixer;
        const bool sliding = want[i] == 's' || want[i] == 'S';
        const bool rotates = want[i] == 's' || want[i] == 'f';
        const rose_rope *rope = sliding ? view_sliding(a) : view_full(a);
        const int table = rose_rope_of_kind(a, a->kind_of[i]);
        assert_int_equal(m->window, sliding ? view_window(a) : 0);
        assert_int_equal(m->rope.dim, rotates ? rope->dim : 0);
        assert_int_equal(table >= 0, rotates);
        if (rotates) assert_true(a->kinds[table].mixer.rope.theta == rope->theta);
        assert_true(rose_arch_scale(a, i) == a->kinds[0].mixer.scale);
    }
}

static void llama(void **state)
{
    (void)state;
    rose_arch a = arch_of("llama", "");
    assert_string_equal(a.model_type, "llama");
    assert_int_equal(a.d_model, 24);
    assert_int_equal(a.kinds[0].mixer.n_heads, 4);
    assert_int_equal(a.kinds[0].mixer.n_kv_heads, 2);
    assert_int_equal(a.kinds[0].mixer.head_dim, 6);
    assert_int_equal(a.kinds[0].mlp.d_ff, 40);
    assert_int_equal(a.max_positions, 256);
    assert_int_equal(a.n_eos, 2);
    assert_int_equal(a.bos_id, 1);
    assert_true(a.norm == ROSE_NORM_RMS && a.norm_eps == 1e-6f &&
                a.kinds[0].mlp.act == ROSE_ACT_SILU);
    assert_true(a.pos == ROSE_POS_ROPE && a.kinds[0].mlp.gated && a.embed_scale == 1.0f &&
                !a.tied_head);
    assert_false(a.kinds[0].mixer.qkv_bias || a.kinds[0].mixer.o_bias || a.kinds[0].mlp.bias ||
                 a.kinds[0].mixer.qk_norm || a.norm_plus_one);
    assert_true(view_full(&a)->kind == ROSE_ROPE_DEFAULT && view_full(&a)->theta == 10000.0f);
    assert_int_equal(view_full(&a)->dim, 6);
    assert_true(a.kinds[0].mixer.scale == (float)(1 / sqrt(6.0)));
    check_layers(&a, "ffffff");
    a = arch_of("llama", "\"head_dim\": 10, \"attention_bias\": true, \"mlp_bias\": true, "
                         "\"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": true");
    assert_true(a.kinds[0].mixer.head_dim == 10 && a.kinds[0].mixer.qkv_bias &&
                a.kinds[0].mixer.o_bias && a.kinds[0].mlp.bias && a.tied_head);
    assert_true(a.norm_eps == 1e-5f);
}

static void rope_spellings(void **state)
{
    (void)state;
    static const char *const same[] = {
        "\"rope_theta\": 500000, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, "
        "\"low_freq_factor\": 1, \"high_freq_factor\": 4, "
        "\"original_max_position_embeddings\": 64}",
        "\"rope_parameters\": {\"rope_theta\": 500000.0, \"rope_type\": \"llama3\", \"factor\": "
        "8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
        "\"original_max_position_embeddings\": 64}",
        "\"rope_theta\": 500000, \"original_max_position_embeddings\": 64, \"rope_scaling\": "
        "{\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 4, "
        "\"original_max_position_embeddings\": 7}",
    };
    for (size_t i = 0; i < 3; i++) {
        rose_arch a = arch_of("llama", same[i]);
        const rose_rope *r = view_full(&a);
        assert_true(r->kind == ROSE_ROPE_LLAMA3 && r->theta == 500000.0f && r->factor == 8.0f);
        assert_true(r->low_freq_factor == 1.0f && r->high_freq_factor == 4.0f);
        assert_int_equal(r->original_max_positions, 64);
        assert_int_equal(a.max_positions, 256);
    }
}

/* The longest context is what the scaling makes of max_position_embeddings. */
static void scaled_contexts(void **state)
{
    (void)state;
    rose_arch a = arch_of("llama", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}");
    assert_int_equal(a.max_positions, 1024);
    a = arch_of("llama", "\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.5}");
    assert_int_equal(a.max_positions, 640);
    assert_int_equal(view_full(&a)->original_max_positions, 256);
    a = arch_of("qwen2", "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, "
                         "\"original_max_position_embeddings\": 256}");
    assert_int_equal(a.max_positions, 1024);
    assert_true(view_full(&a)->beta_fast == 32.0f && view_full(&a)->beta_slow == 1.0f &&
                view_full(&a)->truncate);
    a = arch_of("gemma3_text", "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}");
    assert_int_equal(a.max_positions, 256);
}

static void windows(void **state)
{
    (void)state;
    rose_arch a = arch_of("mistral", "\"sliding_window\": 32");
    assert_int_equal(view_window(&a), 32);
    check_layers(&a, "ssssss");
    a = arch_of("mistral", "\"sliding_window\": null");
    check_layers(&a, "ffffff");
    a = arch_of("mistral", "");
    assert_int_equal(view_window(&a), 4096);
    a = arch_of("qwen2", "\"sliding_window\": 32, \"max_window_layers\": 2");
    assert_true(a.kinds[0].mixer.qkv_bias && !a.kinds[0].mixer.o_bias);
    check_layers(&a, "ffffff");
    assert_int_equal(view_window(&a), 0);
    a = arch_of("qwen2", "\"sliding_window\": 32, \"max_window_layers\": 2, "
                         "\"use_sliding_window\": true");
    check_layers(&a, "ffssss");
    a = arch_of("qwen3", "\"sliding_window\": 32, \"use_sliding_window\": true, \"layer_types\": "
                         "[\"full_attention\", \"sliding_attention\", \"full_attention\", "
                         "\"full_attention\", \"full_attention\", \"sliding_attention\"]");
    check_layers(&a, "fsfffs");
    assert_true(a.kinds[0].mixer.qk_norm && a.kinds[0].mixer.head_dim == 128 &&
                !a.kinds[0].mixer.qkv_bias);
}

static void smollm3(void **state)
{
    (void)state;
    rose_arch a = arch_of("smollm3", "");
    assert_true(a.tied_head && view_full(&a)->theta == 2000000.0f);
    check_layers(&a, "fffFff");
    a = arch_of("smollm3", "\"no_rope_layer_interval\": 2, \"use_sliding_window\": true, "
                           "\"sliding_window\": 16");
    check_layers(&a, "fSfSfS");
    a = arch_of("smollm3", "\"no_rope_layers\": [0, 1, 1, 0, 1, 1]");
    check_layers(&a, "FffFff");
}

static void gemma3(void **state)
{
    (void)state;
    rose_arch a =
        arch_of("gemma3_text", "\"sliding_window\": 16, \"query_pre_attn_scalar\": 64, "
                               "\"rope_theta\": 999999, \"rope_local_base_freq\": 20000, "
                               "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8.0}");
    assert_true(a.norm_plus_one && rose_norms_after(&a.kinds[0].norms) == 2 &&
                a.kinds[0].mixer.qk_norm && a.tied_head);
    assert_true(a.kinds[0].mlp.act == ROSE_ACT_GELU_TANH && a.kinds[0].mlp.gated &&
                a.kinds[0].mixer.head_dim == 256);
    assert_true(a.kinds[0].mixer.scale == 0.125f && a.embed_scale == (float)sqrt(24.0));
    assert_true(view_full(&a)->theta == 999999.0f && view_full(&a)->kind == ROSE_ROPE_LINEAR);
    assert_true(view_sliding(&a)->theta == 20000.0f && view_sliding(&a)->kind == ROSE_ROPE_DEFAULT);
    check_layers(&a, "sssssf");
    a = arch_of("gemma3_text",
                "\"sliding_window\": 16, \"sliding_window_pattern\": 2, "
                "\"attn_logit_softcapping\": 50.0, \"final_logit_softcapping\": 30.0, "
                "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"linear\", "
                "\"factor\": 2.0, \"rope_theta\": 77.0}, \"sliding_attention\": {\"rope_theta\": "
                "88.0, \"rope_type\": \"default\"}}");
    check_layers(&a, "sfsfsf");
    assert_true(a.kinds[0].mixer.softcap == 50.0f && a.logit_softcap == 30.0f);
    assert_true(view_full(&a)->theta == 77.0f && view_full(&a)->factor == 2.0f &&
                view_sliding(&a)->theta == 88.0f);
}

static void phi3(void **state)
{
    (void)state;
    rose_arch a = arch_of("phi3", "\"partial_rotary_factor\": 0.75, \"hidden_size\": 32, "
                                  "\"sliding_window\": 20, \"original_max_position_embeddings\": "
                                  "64, \"rope_scaling\": {\"type\": \"su\", \"short_factor\": [1, "
                                  "1.5, 2], \"long_factor\": [1, 4, 9]}");
    assert_int_equal(view_full(&a)->dim, 6);
    assert_true(view_full(&a)->kind == ROSE_ROPE_LONGROPE && view_full(&a)->factor == 4.0f);
    assert_true(view_sliding(&a)->short_factor[1] == 1.5f &&
                view_sliding(&a)->long_factor[2] == 9.0f);
    check_layers(&a, "ssssss");
    rose_arch_free(&a);
    a = arch_of("phi3", "");
    assert_true(view_full(&a)->kind == ROSE_ROPE_DEFAULT && view_window(&a) == 0);
}

/* Fields that transformers takes with a warning, and what is logged. */
static void rope_warnings(void **state)
{
    (void)state;
    static const struct {
        const char *type, *more, *warning;
    } cases[] = {
        {"llama", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"mrope_section\": [1]}",
         "rope_scaling: 'mrope_section' is ignored"},
        {"qwen3", YARN ", \"attn_factor\": 0.878}",
         "'attn_factor' is ignored, as in transformers ('att"},
        {"mistral", YARN ", \"finetuned\": true}", "'finetuned' is ignored"},
        {"llama", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0.5}", "'factor' is 0.5"},
        {"llama",
         "\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 2, \"low_freq_factor\": 4, "
         "\"high_freq_factor\": 4}",
         "high_freq_factor 4"},
        {"llama", "\"partial_rotary_factor\": 0.5", "'partial_rotary_factor' is ignored"},
        {"llama", "\"max_position_embeddings\": -1",
         "'max_position_embeddings' is -1: it is ignored"},
        {"llama", "\"rope_scaling\": []", ""},
        {"smollm3", "\"no_rope_layer_interval\": 0, \"no_rope_layers\": [1, 1, 1, 1, 1, 0]", ""},
        {"llama", "\"rope_scaling\": false, \"quantization\": \"none\"", ""},
        {"mistral", "\"sliding_window\": -1", "sliding_window is -1: the model has no window"},
        {"llama", YARN ", \"mscale\": 0, \"mscale_all_dim\": 0.0, \"beta_fast\": 0}", ""},
        {"llama", "\"rope_theta\": 1e11", ""},
        {"llama", "\"max_position_embeddings\": 1e15", ""},
        {"llama", "\"max_position_embeddings\": 1000000000000000019884624838656", ""},
        {"mistral", "\"sliding_window\": 1e18", ""},
        {"llama", "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e36}", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rose_log_set_level(ROSE_LOG_WARN);
        log_begin();
        rose_arch a = arch_of(cases[i].type, cases[i].more);
        char *log = log_end();
        rose_log_set_level(ROSE_LOG_OFF);
        const char *want = cases[i].warning;
        if (want[0] == '\0' ? log[0] != '\0'
                            : log_count(log, want) != 1 || log_count(log, "\n") != 1)
            fail_msg("%s: %s", cases[i].more, log);
        free(log);
        rose_arch_free(&a);
    }
    rose_arch a = arch_of("llama", "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": null, "
                                   "\"original_max_position_embeddings\": 16}");
    assert_true(view_full(&a)->factor == (float)a.max_positions / 16);
    a = arch_of("llama", YARN ", \"mscale\": 0, \"beta_fast\": 0}");
    assert_true(view_full(&a)->mscale == 0 && view_full(&a)->beta_fast == 32.0f);
    a = arch_of("llama", "\"max_position_embeddings\": 1e15");
    assert_int_equal(a.max_positions, 1 << 24);
    a = arch_of("llama", "\"max_position_embeddings\": null"); /* as in the first Llama's files */
    assert_int_equal(a.max_positions, 2048);
    a = arch_of("gemma3_text", "\"max_position_embeddings\": null");
    assert_int_equal(a.max_positions, 131072);
    a = arch_of("llama", "\"rope_theta\": 1e11");
    assert_true(view_full(&a)->theta == 1e11f);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *type, *more;
        rose_status status;
        const char *word;
    } cases[] = {
        {"qwen3_moe", "", ROSE_E_UNSUPPORTED, "llama, mistral, qwen2, qwen3, smollm3, gemma3_text"},
        {"qwen3", "\"num_experts\": 128", ROSE_E_UNSUPPORTED, "'num_experts' is 128"},
        {"llama", "\"quantization_config\": {\"quant_method\": \"gptq\"}", ROSE_E_UNSUPPORTED,
         "quantization_config: the weights are quantized by GPTQ (gptq), which"},
        {"llama", "\"quantization_config\": {\"quant_method\": \"gptq\"}, \"num_experts\": 8",
         ROSE_E_UNSUPPORTED, "'num_experts' is 8"}, /* and no advice to take a GGUF file */
        {"llama", "\"quantization_config\": {\"quant_method\": \"new\"}", ROSE_E_UNSUPPORTED,
         "quantized by another program (new), which"},
        {"llama", "\"quantization_config\": {\"bits\": 4}", ROSE_E_UNSUPPORTED,
         "by a method that it does not name"},
        {"llama",
         "\"quantization_config\": {\"quant_algo\": \"FP8\", \"producer\": {\"name\": "
         "\"modelopt\"}}",
         ROSE_E_UNSUPPORTED, "by NVIDIA ModelOpt (modelopt, FP8), which"},
        {"llama", "\"quantization_config\": {\"quant_method\": \"modelopt_fp4\"}",
         ROSE_E_UNSUPPORTED, "by NVIDIA ModelOpt"},
        {"llama", "\"quantization\": {\"group_size\": 64, \"bits\": 4}", ROSE_E_UNSUPPORTED,
         "quantization: the weights are quantized by MLX"},
        {"llama", "\"hidden_act\": \"mish\"", ROSE_E_UNSUPPORTED, "mish"},
        {"llama", "\"num_key_value_heads\": 3", ROSE_E_FORMAT, "num_key_value_heads 3"},
        {"llama", "\"num_attention_heads\": 5, \"num_key_value_heads\": 5", ROSE_E_FORMAT,
         "head_dim"},
        {"llama", "\"head_dim\": 7", ROSE_E_UNSUPPORTED, "head_dim 7"},
        {"llama", YARN ", \"partial_rotary_factor\": 0.5}", ROSE_E_UNSUPPORTED,
         "partial_rotary_factor"},
        {"llama", "\"rope_scaling\": 4", ROSE_E_FORMAT, "'rope_scaling'"},
        {"llama", "\"rope_scaling\": {\"type\": \"mrope\", \"factor\": 2}", ROSE_E_UNSUPPORTED,
         "rope_type 'mrope'"},
        {"llama", "\"rope_scaling\": {\"type\": \"linear\"}", ROSE_E_FORMAT, "'factor' is missing"},
        {"llama", "\"rope_scaling\": {\"type\": \"yarn\"}", ROSE_E_FORMAT, "'factor' is missing"},
        {"llama", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 1e-9}", ROSE_E_FORMAT,
         "'factor' is 1e-09"},
        {"llama", "\"rope_parameters\": {\"full_attention\": {}}", ROSE_E_UNSUPPORTED,
         "'full_attention'"},
        {"llama", "\"rope_theta\": -1", ROSE_E_FORMAT, "'rope_theta' is -1"},
        {"qwen2", "\"layer_types\": [\"full_attention\"]", ROSE_E_FORMAT, "'layer_types'"},
        {"qwen3",
         "\"layer_types\": [\"full_attention\", \"linear_attention\", \"full_attention\", "
         "\"full_attention\", \"full_attention\", \"full_attention\"]",
         ROSE_E_UNSUPPORTED, "layer_types[1] 'linear_attention'"},
        {"qwen3",
         "\"layer_types\": [\"sliding_attention\", \"full_attention\", \"full_attention\", "
         "\"full_attention\", \"full_attention\", \"full_attention\"]",
         ROSE_E_FORMAT, "sliding_window"},
        {"smollm3", "\"no_rope_layers\": [1]", ROSE_E_FORMAT, "'no_rope_layers'"},
        {"smollm3", "\"no_rope_layers\": [1, 1, 2, 0, 0, 0]", ROSE_E_FORMAT, "no_rope_layers[2]"},
        {"gemma3_text", "\"use_bidirectional_attention\": true", ROSE_E_UNSUPPORTED,
         "use_bidirectional_attention"},
        {"gemma3_text", "\"rope_parameters\": {\"rope_type\": \"default\"}", ROSE_E_UNSUPPORTED,
         "'full_attention'"},
        {"phi3", "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}", ROSE_E_UNSUPPORTED,
         "longrope"},
        {"phi3",
         "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1], \"long_factor\": [1]}",
         ROSE_E_FORMAT, "'short_factor' is not a list of 3 numbers"},
        {"phi3",
         "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1, 0], "
         "\"long_factor\": [1, 1, 1]}",
         ROSE_E_FORMAT, "short_factor[2]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(cases[i].type, cases[i].more, cases[i].status, cases[i].word);
}

/* ---- tensors ---- */

static rose_model *random_model(const char *arch, rose_format dtype, uint32_t heads)
{
    rose_random_opts o;
    rose_err err = {{0}};
    rose_random_opts_default(&o);
    o.arch = arch;
    o.n_layers = 2;
    o.d_model = 24;
    o.n_heads = heads;
    o.n_kv_heads = 2;
    o.head_dim = strcmp(arch, "phi3") == 0 ? 0 : 16; /* phi3 has no field for it */
    o.d_ff = 40;
    o.vocab_size = 300;
    o.max_positions = 64;
    o.tied_head = false;
    o.dtype = dtype;
    empty_folder(scratch);
    if (rose_random_model_write(&o, scratch, &err) != ROSE_OK) fail_msg("%s: %s", arch, err.msg);
    return expect_opens(scratch);
}

static void check_shape(const rose_tensor *t, uint64_t rows, uint64_t cols)
{
    assert_non_null(t->data);
    assert_int_equal(t->shape[0], rows);
    assert_int_equal(t->shape[1], cols);
}

static void check_fused(const rose_layer *l)
{
    assert_int_equal(l->m[ROSE_QKV].n_parts, 1);
    assert_int_equal(l->m[ROSE_UP].n_parts, 1);
    check_shape(&l->m[ROSE_QKV].w[0], (4 + 2 + 2) * 6, 24);
    check_shape(&l->m[ROSE_UP].w[0], 80, 24);
    check_shape(&l->m[ROSE_OUT].w[0], 24, 24);
}

static void check_parts(const rose_layer *l)
{
    assert_int_equal(l->m[ROSE_QKV].n_parts, 3);
    assert_int_equal(l->m[ROSE_UP].n_parts, 2);
    check_shape(&l->m[ROSE_QKV].w[0], 64, 24);
    check_shape(&l->m[ROSE_QKV].w[1], 32, 24);
    check_shape(&l->m[ROSE_QKV].w[2], 32, 24);
    check_shape(&l->m[ROSE_UP].w[0], 40, 24);
    check_shape(&l->m[ROSE_UP].w[1], 40, 24);
    check_shape(&l->m[ROSE_OUT].w[0], 24, 64);
}

static void tensors_of_each_family(void **state)
{
    (void)state;
    size_t n;
    const rose_family *all = rose_families(&n);
    for (const rose_family *f = all; f < all + n; f++) {
        if (strcmp(f->model_type, "gpt2") == 0) continue; /* test_model.c */
        rose_model *m = random_model(f->model_type, ROSE_F32, 4);
        const rose_layer *l = &m->layers[1];
        const rose_norms norms = m->arch.kinds[0].norms;
        const bool qk = m->arch.kinds[0].mixer.qk_norm;
        assert_string_equal(m->arch.model_type, f->model_type);
        if (strcmp(f->model_type, "phi3") == 0)
            check_fused(l);
        else
            check_parts(l);
        assert_true(l->m[ROSE_QKV].transposed && l->m[ROSE_OUT].transposed &&
                    l->m[ROSE_UP].transposed);
        check_shape(&l->m[ROSE_DOWN].w[0], 24, 40);
        check_shape(&m->head, 300, 24);
        assert_null(m->pos_embed.data);
        assert_null(m->lnf_b.data);
        assert_int_equal(l->post1.data != NULL, norms.mixer != ROSE_NORM_BEFORE);
        assert_int_equal(l->post2.data != NULL, norms.mlp != ROSE_NORM_BEFORE);
        assert_true((l->q_norm.data != NULL) == qk && (l->k_norm.data != NULL) == qk);
        assert_true((l->m[ROSE_QKV].b[2].data != NULL) == (strcmp(f->model_type, "qwen2") == 0));
        assert_null(l->m[ROSE_OUT].b[0].data);
        rose_model_close(m);
    }
}

/* Without one of its tensors no family opens: the message names it. */
static void a_missing_tensor_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *family, *tensor, *renamed;
    } cases[] = {
        {"llama", "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.xx_proj.weight"},
        {"qwen2", "model.layers.0.self_attn.v_proj.bias", "model.layers.0.self_attn.x_proj.bias"},
        {"qwen3", "model.layers.1.self_attn.k_norm.weight",
         "model.layers.1.self_attn.x_norm.weight"},
        {"gemma3_text", "model.layers.0.post_feedforward_layernorm.weight",
         "model.layers.0.xxxx_feedforward_layernorm.weight"},
        {"phi3", "model.layers.1.mlp.gate_up_proj.weight",
         "model.layers.1.mlp.gate_xx_proj.weight"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rose_buf b = {0};
        rose_model_close(random_model(cases[i].family, ROSE_F32, 4));
        get_file(&b, scratch, "model.safetensors");
        const size_t n = strlen(cases[i].tensor);
        assert_int_equal(n, strlen(cases[i].renamed));
        char *at = memmem(b.data, b.len, cases[i].tensor, n);
        assert_non_null(at);
        memcpy(at, cases[i].renamed, n);
        put_file(scratch, "model.safetensors", b.data, b.len);
        expect_refused(scratch, ROSE_E_FORMAT, cases[i].tensor, "missing");
        rose_buf_free(&b);
    }
}

static void a_wrong_shape_is_refused(void **state)
{
    (void)state;
    rose_model_close(random_model("qwen3", ROSE_F32, 4));
    rose_buf b = {0};
    get_file(&b, scratch, "config.json");
    char *at = strstr(rose_buf_str(&b), "\"num_key_value_heads\": 2");
    assert_non_null(at);
    at[strlen("\"num_key_value_heads\": ")] = '4';
    put_file(scratch, "config.json", b.data, b.len);
    expect_refused(scratch, ROSE_E_FORMAT, "model.layers.0.self_attn.k_proj.weight",
                   "[32, 24]; config.json asks for [64, 24]");
    rose_buf_free(&b);
}

/* sqrt(24) in the type of the embedding, as transformers multiplies by it. */
static void embedding_scale_has_the_type_of_the_weights(void **state)
{
    (void)state;
    static const float want[] = {4.89897966f, 4.8984375f, 4.90625f};
    for (int d = 0; d < 3; d++) {
        rose_model *m = random_model("gemma3_text", (rose_format)d, 4);
        assert_true(m->arch.embed_scale == want[d]);
        rose_model_close(m);
    }
}

/* Qwen3-Embedding stores the model without a head and without the prefix. */
static void names_without_the_prefix(void **state)
{
    (void)state;
    rose_random_opts o;
    rose_err err = {{0}};
    rose_random_opts_default(&o);
    o.arch = "qwen3";
    o.n_layers = 1;
    o.d_model = 16;
    o.n_heads = 2;
    o.vocab_size = 300;
    o.max_positions = 32;
    o.prefix = false;
    empty_folder(scratch);
    if (rose_random_model_write(&o, scratch, &err) != ROSE_OK) fail_msg("%s", err.msg);
    rose_model *m = expect_opens(scratch);
    assert_string_equal(m->tok_embed.name, "embed_tokens.weight");
    assert_true(m->arch.tied_head);
    rose_model_close(m);
}

/* A config given as a file decides the family and the shape. */
static void random_model_from_a_config(void **state)
{
    (void)state;
    char path[1024];
    rose_random_opts o;
    rose_err err = {{0}};
    rose_random_opts_default(&o);
    golden_path(path, sizeof path, "tests/golden/families/phi3.config.json");
    o.config = path;
    empty_folder(scratch);
    if (rose_random_model_write(&o, scratch, &err) != ROSE_OK) fail_msg("%s", err.msg);
    rose_model *m = expect_opens(scratch);
    assert_string_equal(m->arch.model_type, "phi3");
    assert_int_equal(view_full(&m->arch)->dim, 72);
    assert_true(view_sliding(&m->arch)->long_factor == m->arch.rope_factors + 36);
    rose_model_close(m);
    o.config = "/nowhere/config.json";
    empty_folder(scratch);
    assert_int_equal(rose_random_model_write(&o, scratch, &err), ROSE_E_NOTFOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama),
        cmocka_unit_test(rope_spellings),
        cmocka_unit_test(scaled_contexts),
        cmocka_unit_test(windows),
        cmocka_unit_test(smollm3),
        cmocka_unit_test(gemma3),
        cmocka_unit_test(phi3),
        cmocka_unit_test(rope_warnings),
        cmocka_unit_test(refusals),
        cmocka_unit_test(tensors_of_each_family),
        cmocka_unit_test(a_missing_tensor_is_named),
        cmocka_unit_test(a_wrong_shape_is_refused),
        cmocka_unit_test(embedding_scale_has_the_type_of_the_weights),
        cmocka_unit_test(names_without_the_prefix),
        cmocka_unit_test(random_model_from_a_config),
    };
    return cmocka_run_group_tests(tests, setup_scratch, teardown_scratch);
}
