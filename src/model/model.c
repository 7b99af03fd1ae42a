/* model/model.c - opens a folder or a GGUF file: config, weight files, and the binding of tensors
 * to their roles, driven by the family's tables. Borrowed pointers only: the data stays in the
 * mappings. */
#include "model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/folder.h"
#include "base/log.h"
#include "model/convert.h"
#include "model/family.h"
#include "model/gguf_arch.h"
#include "model/random_internal.h"
#include "model/weights.h"

enum { NAME_CAP = 128 };

/* The state of binding: what to look up, where, and how many bytes of each dtype were found. */
typedef struct binder {
    rose_model *m;
    const rose_family *family;
    const rose_naming *naming;
    const char *prefix; /* "" or the naming's */
    bool in_head;       /* the token embedding is stored under the name of the head */
    uint64_t dtype_bytes[ROSE_N_FORMATS];
    rose_err *err;
} binder;

static void shape_text(const uint64_t *shape, uint32_t n, char out[128])
{
    size_t at = (size_t)snprintf(out, 128, "[");
    for (uint32_t i = 0; i < n && at < 128; i++)
        at += (size_t)snprintf(out + at, 128 - at, "%s%" PRIu64, i > 0 ? ", " : "", shape[i]);
    if (at < 128) snprintf(out + at, 128 - at, "]");
}

/* Finds one tensor and checks it against the shape that the architecture asks for. */
static rose_status bind_tensor(binder *b, const char *name, uint32_t n_dims, const uint64_t want[3],
                               rose_tensor *out)
{
    const rose_weights *w = b->m->weights;
    rose_st_tensor *t = rose_weights_find(w, name);
    if (t == NULL)
        return rose_fail(b->err, ROSE_E_FORMAT, "%s: tensor '%s' is missing", w->files[0].label,
                         name);
    if (!t->usable)
        return rose_fail(b->err, ROSE_E_UNSUPPORTED,
                         "%s: tensor '%s' has dtype %s; supported are F32, F16 and BF16%s",
                         rose_weights_label(w, t), name, t->dtype_name,
                         rose_weights_gguf(w) == NULL
                             ? ""
                             : ", Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K");
    if (t->n_dims != n_dims || memcmp(t->shape, want, n_dims * sizeof *want) != 0) {
        char found[128], expected[128];
        shape_text(t->shape, t->n_dims, found);
        shape_text(want, n_dims, expected);
        return rose_fail(b->err, ROSE_E_FORMAT, "%s: tensor '%s' has shape %s; %s for %s",
                         rose_weights_label(w, t), name, found,
                         rose_weights_gguf(w) == NULL ? "config.json asks" : "the metadata ask",
                         expected);
    }
    *out = (rose_tensor){t->name, t->data, t->dtype, n_dims, {want[0], want[1], want[2]}};
    t->used = true;
    b->m->n_params += want[0] * want[1] * want[2];
    b->m->has_blocks |= rose_format_is_quant(t->dtype);
    b->dtype_bytes[t->dtype] += t->end - t->begin;
    return ROSE_OK;
}

/* Binds n tensors to the struct at base. lead: "" or "h.3.". */
static rose_status bind_rows(binder *b, const rose_tensor_row *row, size_t n, const char *lead,
                             void *base)
{
    rose_status st = ROSE_OK;
    for (; st == ROSE_OK && n > 0; n--, row++) {
        char name[NAME_CAP];
        snprintf(name, sizeof name, "%s%s%s", b->prefix, lead, row->name);
        rose_tensor *t = (rose_tensor *)(void *)((char *)base + row->offset);
        st = bind_tensor(b, name, row->n_dims, row->shape, t);
    }
    return st;
}

/* Finds whether tensor names have the family's prefix; the token embedding decides for all. A tied
 * matrix is stored once, and a file may hold it under the name of the head alone, which has no
 * prefix; then the next tensor decides. */
static rose_status find_prefix(binder *b, const rose_tensor_row *rows)
{
    const rose_weights *w = b->m->weights;
    const char *const prefix = b->naming->prefix;
    const char *const embed = rows[0].name;
    for (int i = 0; i < 2; i++) {
        char name[NAME_CAP];
        snprintf(name, sizeof name, "%.63s%.63s", prefix, rows[i].name);
        const bool with = prefix[0] != '\0' && rose_weights_find(w, name) != NULL;
        const bool without = rose_weights_find(w, rows[i].name) != NULL;
        if (with && without)
            return rose_fail(b->err, ROSE_E_FORMAT,
                             "%s: holds both '%s' and '%s': which one is meant?", w->files[0].label,
                             name, rows[i].name);
        b->prefix = with ? prefix : "";
        if (with || without) return ROSE_OK;
        b->in_head = b->m->arch.tied_head && rose_weights_find(w, b->naming->head_name) != NULL;
        if (!b->in_head) break;
    }
    return rose_fail(b->err, ROSE_E_FORMAT, "%s: tensor '%s%s' (or '%s') is missing",
                     w->files[0].label, prefix, embed, embed);
}

static bool same_values(const rose_st_tensor *a, const rose_tensor *b)
{
    const uint64_t n = a->end - a->begin;
    return a->usable && a->dtype == b->dtype && a->n_dims == b->n_dims &&
           a->shape[0] == b->shape[0] && a->shape[1] == b->shape[1] &&
           memcmp(a->data, b->data, n) == 0;
}

/* Says why the model writes no text, if it is one of those that end in another head. */
static void note_other_head(rose_model *m, const char *head_name, bool headless)
{
    const char *const c = m->class_name;
    const bool scores = strstr(c, "ForSequenceClassification") != NULL ||
                        strstr(c, "ForTokenClassification") != NULL || strstr(c, "Reward") != NULL;
    const bool writes = strstr(c, "ForCausalLM") != NULL || strstr(c, "LMHead") != NULL;
    if (!headless && !scores) return;
    m->arch.headless = headless;
    snprintf(m->arch.no_text, sizeof m->arch.no_text, "%s%s%s%s",
             scores   ? "a reward model or classifier"
             : writes ? "a model without its head"
                      : "an embedding model",
             c[0] != '\0' ? " (" : "", c, c[0] != '\0' ? ")" : "");
    rose_log(ROSE_LOG_WARN, "model",
             "%s: this is %s: it writes no text, because %s%s; /v1/embeddings serves its states",
             m->weights->files[0].label, m->arch.no_text, headless ? head_name : "its head gives ",
             headless ? " is missing and config.json does not tie it to the embedding" : "scores");
}

/* Binds the output matrix. As in transformers, a head in the file that differs from the embedding
 * is the head, whatever config.json says. A GGUF file without a head has the embedding as its head.
 * A folder without a head that does not say so is no model of texts: the embedding stands in so
 * that backends have a matrix, and the engine refuses to generate. */
static rose_status bind_head(binder *b)
{
    rose_model *m = b->m;
    const char *name = b->naming->head_name;
    const rose_st_tensor *t = b->in_head ? NULL : rose_weights_find(m->weights, name);
    if (t != NULL && m->arch.tied_head && !same_values(t, &m->tok_embed)) {
        m->arch.tied_head = false;
        rose_log(ROSE_LOG_WARN, "model",
                 "%s: '%s' differs from the embedding, so it is the head although config.json says "
                 "tie_word_embeddings true",
                 rose_weights_label(m->weights, t), name);
    }
    if (t == NULL || m->arch.tied_head) {
        if (rose_weights_gguf(m->weights) == NULL) note_other_head(m, name, !m->arch.tied_head);
        m->arch.tied_head = true;
        m->head = m->tok_embed;
        return ROSE_OK;
    }
    const uint64_t shape[3] = {m->arch.vocab_size, m->arch.d_model, 1};
    return bind_tensor(b, name, 2, shape, &m->head);
}

static bool is_ignored(const rose_naming *naming, const char *name)
{
    size_t n = strlen(name);
    for (const char *const *end = naming->ignored; *end != NULL; end++) {
        size_t k = strlen(*end);
        if (n >= k && strcmp(name + n - k, *end) == 0) return true;
    }
    return false;
}

/* Warns of tensors that no role uses, because config and weights may not belong together. */
static void warn_unused(const binder *b)
{
    const rose_weights *w = b->m->weights;
    const rose_st_tensor *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < w->n_tensors; i++) {
        const rose_st_tensor *t = w->by_name[i];
        if (t->used || is_ignored(b->naming, t->name)) continue;
        if (strcmp(t->name, b->naming->head_name) == 0) continue; /* a tied head's copy */
        if (first == NULL) first = t;
        n++;
    }
    if (n > 0)
        rose_log(ROSE_LOG_WARN, "model", "%s: %zu tensors are not used, such as '%.100s'",
                 rose_weights_label(w, first), n, first->name);
}

static void prepare_layer(rose_layer *l, const binder *b, uint32_t layer)
{
    const rose_family *const f = b->family;
    const rose_arch *const a = &b->m->arch;
    rose_matrix_spec specs[ROSE_N_ROLES];
    const rose_kind *k = rose_arch_kind(a, layer);
    const size_t n = rose_kind_matrices(a, k, specs);
    for (size_t i = 0; i < n; i++) {
        rose_linear *m = &l->m[specs[i].role];
        m->transposed = b->naming->transposed;
        m->n_parts = f->fused ? 1 : specs[i].role == ROSE_QKV ? 3 : specs[i].gated ? 2 : 1;
    }
    if (b->naming != &rose_naming_gguf || !f->gguf.permuted) return;
    l->m[ROSE_QKV].permuted_heads[0] = k->mixer.n_heads;
    l->m[ROSE_QKV].permuted_heads[1] = k->mixer.n_kv_heads;
}

/* transformers casts the scale to the type of the embedding, and the models were trained so:
 * sqrt(1152) is 34 beside bf16 weights. */
static void round_embed_scale(rose_model *m)
{
    float *scale = &m->arch.embed_scale;
    if (m->tok_embed.dtype == ROSE_BF16) *scale = rose_bf16_to_f32(rose_f32_to_bf16(*scale));
    if (m->tok_embed.dtype == ROSE_F16) *scale = rose_f16_to_f32(rose_f32_to_f16(*scale));
}

static rose_status bind_all(rose_model *m, const rose_family *family, rose_err *err)
{
    const bool gguf = rose_weights_gguf(m->weights) != NULL;
    const rose_naming *const names = gguf ? &rose_naming_gguf : family->naming;
    binder b = {.m = m, .family = family, .naming = names, .err = err};
    rose_tensor_row rows[ROSE_MAX_ROWS];
    size_t n = rose_family_model_rows(family, names, &m->arch, rows);
    rose_status st = find_prefix(&b, rows);
    if (st == ROSE_OK && b.in_head)
        st = bind_tensor(&b, names->head_name, 2, rows[0].shape, &m->tok_embed);
    if (st == ROSE_OK) st = bind_rows(&b, rows + b.in_head, n - b.in_head, "", m);
    if (st == ROSE_OK && (m->layers = calloc(m->arch.n_layers, sizeof *m->layers)) == NULL)
        st = rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", m->path);
    for (uint32_t i = 0; st == ROSE_OK && i < m->arch.n_layers; i++) {
        char lead[32];
        rose_layer *l = &m->layers[i];
        prepare_layer(l, &b, i);
        n = rose_family_layer_rows(family, names, &m->arch, i, rows);
        snprintf(lead, sizeof lead, "%s%u.", names->layer_prefix, i);
        st = bind_rows(&b, rows, n, lead, l);
    }
    if (st == ROSE_OK) st = bind_head(&b);
    if (st != ROSE_OK) return st;
    round_embed_scale(m);
    for (int t = 0; t < ROSE_N_FORMATS; t++)
        if (b.dtype_bytes[t] > b.dtype_bytes[m->dtype]) m->dtype = (rose_format)t;
    warn_unused(&b);
    return ROSE_OK;
}

/* Reads generation_config.json for the end-of-text ids. As in transformers the file is optional,
 * and one that is no JSON object is ignored. */
static rose_status read_generation_config(rose_model *m, rose_err *err)
{
    rose_config c;
    rose_err why = {{0}};
    rose_status st = rose_config_open_in(&c, m->path, "generation_config.json", false, &why);
    if (st == ROSE_OK) rose_config_add_eos(&c, &m->arch);
    if (st == ROSE_E_FORMAT) rose_log(ROSE_LOG_WARN, "model", "%s: it is ignored", why.msg);
    rose_config_close(&c);
    if (st == ROSE_OK || st == ROSE_E_FORMAT || st == ROSE_E_NOTFOUND) return ROSE_OK;
    return rose_fail(err, st, "%s", why.msg);
}

/* The type that config.json says the weights have; F32 where it does not, as in transformers. */
static rose_status read_dtype(const rose_config *c, rose_format *out, rose_err *err)
{
    const rose_json *v = rose_config_get(c, "torch_dtype", "dtype");
    const char *name = v == NULL ? "float32" : rose_json_text(v);
    for (*out = ROSE_F32; name != NULL && *out <= ROSE_BF16; ++*out)
        if (strcmp(name, rose_formats[*out].torch) == 0) return ROSE_OK;
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "%s: torch_dtype: expected float32, float16 or bfloat16", c->label);
}

/* A class has a name of Python: anything else stays out of messages. */
static void set_class_name(rose_model *m, const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    if (name == NULL || strlen(name) >= sizeof m->class_name) return;
    if (strspn(name, allowed) == strlen(name)) strcpy(m->class_name, name);
}

/* dtype: NULL, or gets the type that config.json names. */
static rose_status read_config(rose_model *m, const rose_family **family, rose_format *dtype,
                               rose_err *err)
{
    rose_config c;
    rose_status st = rose_config_open_in(&c, m->path, "config.json", false, err);
    if (st == ROSE_E_NOTFOUND) st = rose_folder_no_config(m->path, err);
    if (st != ROSE_OK) return st;
    const rose_json *class = rose_json_at(rose_config_get(&c, "architectures", NULL), 0);
    set_class_name(m, rose_json_text(class));
    st = rose_family_find(family, &c, err);
    if (st == ROSE_OK) st = rose_family_parse(*family, &c, &m->arch, err);
    if (st == ROSE_OK) st = rose_quantized_check_folder(m->path, err);
    if (st == ROSE_OK && dtype != NULL) st = read_dtype(&c, dtype, err);
    rose_config_close(&c);
    return st == ROSE_OK ? read_generation_config(m, err) : st;
}

/* The length of a name without ".gguf" and the number of a split model's part. */
static size_t stem_length(const char *name)
{
    const size_t n = strlen(name);
    const rose_gguf_split s = rose_gguf_read_split(name);
    if (s.count > 0) return s.prefix;
    return n > 5 && strcmp(name + n - 5, ".gguf") == 0 ? n - 5 : n;
}

/* The folder without trailing slashes, or the file, and its last component as the model's name. */
static rose_status set_path(rose_model *m, const char *dir, rose_err *err)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    m->path = strndup(dir, n);
    if (m->path == NULL) return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", dir);
    char *real = realpath(m->path, NULL); /* so that "." has a name too */
    const char *last = strrchr(m->path, '/');
    last = last != NULL ? last + 1 : m->path;
    if (real != NULL && (last[0] == '.' || last[0] == '\0')) last = strrchr(real, '/') + 1;
    m->name = last[0] != '\0' ? strndup(last, stem_length(last)) : strdup("model");
    free(real);
    return m->name != NULL ? ROSE_OK : rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", dir);
}

static rose_status open_folder(rose_model *m, const rose_family **family, rose_err *err)
{
    rose_status st = rose_folder_check(m->path, err);
    if (st == ROSE_OK) st = read_config(m, family, NULL, err);
    return st == ROSE_OK ? rose_weights_open(&m->weights, m->path, err) : st;
}

static rose_status open_dummy(rose_model *m, const rose_family **family, rose_err *err)
{
    rose_format dtype = ROSE_F32;
    rose_status st = rose_folder_check(m->path, err);
    if (st == ROSE_OK) st = read_config(m, family, &dtype, err);
    if (st != ROSE_OK) return st;
    return rose_weights_open_dummy(&m->weights, m->path, *family, &m->arch, dtype, err);
}

static rose_status open_gguf(rose_model *m, const char *file, const rose_family **family,
                             rose_err *err)
{
    const rose_status st = rose_weights_open_gguf(&m->weights, file, err);
    return st == ROSE_OK ? rose_gguf_read_arch(family, m->weights, &m->arch, err) : st;
}

static rose_status open_files(rose_model *m, const rose_family **family, rose_err *err)
{
    char *file = NULL;
    rose_status st = rose_folder_find_gguf(&file, m->path, err);
    if (st == ROSE_OK)
        st = file != NULL ? open_gguf(m, file, family, err) : open_folder(m, family, err);
    free(file);
    return st;
}

static rose_status open_model(rose_model **out, const char *path, bool dummy, rose_err *err)
{
    const rose_family *family = NULL;
    rose_status st = ROSE_OK;
    rose_model *m = calloc(1, sizeof *m);

    *out = NULL;
    if (m == NULL) {
        st = rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", path);
        goto done;
    }
    if ((st = set_path(m, path, err)) != ROSE_OK) goto done;
    m->dummy = dummy;
    st = dummy ? open_dummy(m, &family, err) : open_files(m, &family, err);
    if (st != ROSE_OK) goto done;
    m->file_bytes = m->weights->file_bytes;
    if ((st = bind_all(m, family, err)) != ROSE_OK) goto done;
    *out = m;
    m = NULL;
done:
    rose_model_close(m);
    return st;
}

rose_status rose_model_open(rose_model **out, const char *path, rose_err *err)
{
    return open_model(out, path, false, err);
}

rose_status rose_model_open_dummy(rose_model **out, const char *dir, rose_err *err)
{
    return open_model(out, dir, true, err);
}

void rose_arch_free(rose_arch *a)
{
    free(a->rope_factors);
    a->rope_factors = NULL;
}

void rose_model_close(rose_model *m)
{
    if (m == NULL) return;
    rose_weights_close(m->weights);
    rose_arch_free(&m->arch);
    free(m->layers);
    free(m->path);
    free(m->name);
    free(m);
}
