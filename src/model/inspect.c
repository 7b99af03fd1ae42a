/* model/inspect.c - see inspect.h. */
#include "model/inspect.h"

#include <inttypes.h>
#include <string.h>

#include "model/rope.h"
#include "model/weights.h"

enum { NAME_WIDTH_MAX = 60 };

const char *rose_format_count(uint64_t n, char out[32])
{
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%" PRIu64, n), at = 0;
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0) out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
    return out;
}

const char *rose_format_bytes(uint64_t n, char out[32])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    int unit = 0;
    double v = (double)n;
    for (; v >= 1023.95 && unit < 6; unit++)
        v /= 1024.0;
    if (unit == 0)
        snprintf(out, 32, "%" PRIu64 " B", n);
    else
        snprintf(out, 32, "%.1f %s", v, units[unit]);
    return out;
}

static const char *act_name(rose_act a)
{
    switch (a) {
    case ROSE_ACT_GELU_TANH:
        return "GELU (tanh)";
    case ROSE_ACT_GELU_ERF:
        return "GELU (erf)";
    case ROSE_ACT_RELU:
        return "ReLU";
    case ROSE_ACT_SILU:
        return "SiLU";
    }
    return "unknown";
}

static const char *norm_name(rose_norm n)
{
    return n == ROSE_NORM_LAYER ? "LayerNorm" : "RMSNorm";
}

static const char *norms_text(rose_norms n)
{
    static const char *const texts[3][3] = {
        {"", ", after the MLP", ", before and after the MLP"},
        {", after attention", ", after attention and MLP",
         ", after attention, before and after the MLP"},
        {", before and after attention", ", before and after attention, after the MLP",
         ", before and after attention and MLP"},
    };
    return texts[n.mixer][n.mlp];
}

static const char *pos_name(rose_pos p)
{
    return p == ROSE_POS_LEARNED ? "learned" : "rotary";
}

/* Makes a name from a file safe for a terminal: C0 and C1 control characters become '?'. JSON
 * names are valid UTF-8, in which C1 is C2 80 .. C2 9F. */
static const char *safe(const char *s, char *out, size_t cap)
{
    size_t n = 0;
    for (; *s != '\0' && n + 1 < cap; s++) {
        unsigned char c = (unsigned char)*s, next = (unsigned char)s[1];
        bool c1 = c == 0xC2 && next >= 0x80 && next <= 0x9F;
        out[n++] = c < 0x20 || c == 0x7F || c1 ? '?' : *s;
        if (c1) s++;
    }
    out[n] = '\0';
    return out;
}

/* The layers as a reader counts them. */
typedef struct layer_counts {
    uint32_t sliding, still; /* layers with a window; layers that do not rotate */
    uint32_t window;
    const rose_rope *full, *slides; /* of such layers that rotate; NULL without */
} layer_counts;

static layer_counts count_layers(const rose_arch *a)
{
    layer_counts n = {0};
    for (uint32_t i = 0; i < a->n_layers; i++) {
        const rose_mixer *m = &rose_arch_kind(a, i)->mixer;
        const rose_rope **rope = m->window > 0 ? &n.slides : &n.full;
        n.sliding += m->window > 0;
        if (m->window > 0) n.window = m->window;
        n.still += a->pos == ROSE_POS_ROPE && m->rope.dim == 0;
        if (*rope == NULL && m->rope.dim > 0) *rope = &m->rope;
    }
    return n;
}

static rose_status out_status(FILE *out)
{
    return ferror(out) ? ROSE_E_IO : ROSE_OK;
}

static void row_count(FILE *out, const char *label, uint64_t n)
{
    char text[32];
    fprintf(out, "  %-24s%s\n", label, rose_format_count(n, text));
}

static void print_ids(const rose_arch *a, FILE *out)
{
    fprintf(out, "  %-24s", "begin-of-text id");
    if (a->bos_id >= 0)
        fprintf(out, "%" PRId64 "\n", a->bos_id);
    else
        fprintf(out, "none\n");
    fprintf(out, "  %-24s", a->n_eos > 1 ? "end-of-text ids" : "end-of-text id");
    for (uint32_t i = 0; i < a->n_eos; i++)
        fprintf(out, "%s%u", i > 0 ? ", " : "", a->eos_ids[i]);
    fprintf(out, "%s\n", a->n_eos == 0 ? "none" : "");
}

enum { MAX_KEPT = 4 };

/* The tensors of one type that the model uses, and as what the matrices among them are kept. */
typedef struct type_count {
    uint64_t tensors, bytes;
    uint32_t n_kept;
    const char *kept[MAX_KEPT];
    uint64_t n[MAX_KEPT];
    bool widened;
} type_count;

static rose_kept kept_as(const rose_keeper *k, const rose_st_tensor *t)
{
    return k != NULL && t->used ? k->kept(k->ctx, t->data) : (rose_kept){0};
}

static void count_kept(type_count *c, rose_kept kept)
{
    uint32_t i = 0;
    if (kept.type == NULL) return;
    c->widened |= kept.widened;
    while (i < c->n_kept && strcmp(c->kept[i], kept.type) != 0)
        i++;
    if (i == MAX_KEPT) return; /* a backend keeps one type in two ways at most */
    if (i == c->n_kept) c->kept[c->n_kept++] = kept.type;
    c->n[i]++;
}

static void count_types(const rose_model *m, const rose_keeper *k, type_count out[ROSE_N_FORMATS])
{
    const rose_weights *w = m->weights;
    memset(out, 0, ROSE_N_FORMATS * sizeof *out);
    for (size_t i = 0; i < w->n_tensors; i++) {
        const rose_st_tensor *t = w->by_name[i];
        if (!t->used) continue;
        out[t->dtype].tensors++;
        out[t->dtype].bytes += t->end - t->begin;
        count_kept(&out[t->dtype], kept_as(k, t));
    }
}

static void print_types(const rose_model *m, const rose_keeper *k, FILE *out)
{
    type_count counts[ROSE_N_FORMATS];
    char text[32];
    count_types(m, k, counts);
    for (int t = 0; t < ROSE_N_FORMATS; t++) {
        const type_count *c = &counts[t];
        if (c->tensors == 0) continue;
        fprintf(out, "  %-24s%" PRIu64 " %s, %s", rose_formats[t].name, c->tensors,
                c->tensors == 1 ? "tensor" : "tensors", rose_format_bytes(c->bytes, text));
        for (uint32_t i = 0; i < c->n_kept; i++)
            fprintf(out, "%s%" PRIu64 " %s as %s", i == 0 ? "; in memory: " : ", ", c->n[i],
                    c->n[i] == 1 ? "matrix" : "matrices", c->kept[i]);
        fprintf(out, "%s\n", c->widened ? " (widened)" : "");
    }
}

static void print_rope(const rose_rope *r, const char *label, FILE *out)
{
    fprintf(out, "  %-24stheta %.9g over %u values, %s", label, (double)r->theta, r->dim,
            rose_rope_kind_name(r->kind));
    if (r->kind != ROSE_ROPE_DEFAULT) fprintf(out, ", factor %g", (double)r->factor);
    if (r->kind != ROSE_ROPE_DEFAULT && r->kind != ROSE_ROPE_LINEAR)
        fprintf(out, ", original context %u", r->original_max_positions);
    fprintf(out, "\n");
}

/* Rows of what GPT-2 does not have; none for GPT-2. */
static void print_decoder(const rose_arch *a, FILE *out)
{
    const layer_counts n = count_layers(a);
    const rose_mixer *m = &rose_arch_any(a)->mixer;
    if (n.full != NULL) print_rope(n.full, "rotary positions", out);
    if (n.slides != NULL) print_rope(n.slides, "rotary, sliding layers", out);
    if (n.still > 0)
        fprintf(out, "  %-24s%u of %u\n", "layers without rotation", n.still, a->n_layers);
    if (n.sliding > 0)
        fprintf(out, "  %-24s%u tokens in %u of %u layers\n", "sliding window", n.window, n.sliding,
                a->n_layers);
    if (m->qk_norm) fprintf(out, "  %-24syes\n", "norm of queries, keys");
    if (m->softcap > 0) fprintf(out, "  %-24s%g\n", "soft cap of scores", (double)m->softcap);
    if (a->logit_softcap > 0)
        fprintf(out, "  %-24s%g\n", "soft cap of logits", (double)a->logit_softcap);
    if (a->embed_scale != 1.0f)
        fprintf(out, "  %-24s%g\n", "embedding scale", (double)a->embed_scale);
}

rose_status rose_model_print_arch(const rose_model *m, const rose_keeper *keeper, FILE *out)
{
    const rose_arch *a = &m->arch;
    const rose_kind *k = rose_arch_any(a);
    const rose_mixer *mixer = &k->mixer;
    char name[256], text[32];
    fprintf(out, "%s\n", safe(m->name, name, sizeof name));
    fprintf(out, "  %-24s%s\n", "architecture", a->model_type);
    row_count(out, "parameters", m->n_params);
    fprintf(out, "  %-24s%s, ", "weights", rose_formats[m->dtype].name);
    fprintf(out, "%s in %zu %s\n", rose_format_bytes(m->file_bytes, text), m->weights->n_files,
            m->weights->n_files == 1 ? "file" : "files");
    if (rose_weights_gguf(m->weights) != NULL) print_types(m, keeper, out);
    row_count(out, "layers", a->n_layers);
    row_count(out, "width", a->d_model);
    if (mixer->n_kv_heads == mixer->n_heads)
        fprintf(out, "  %-24s%u of %u\n", "attention heads", mixer->n_heads, mixer->head_dim);
    else
        fprintf(out, "  %-24s%u of %u (%u for keys and values)\n", "attention heads",
                mixer->n_heads, mixer->head_dim, mixer->n_kv_heads);
    row_count(out, "MLP width", k->mlp.d_ff);
    row_count(out, "vocabulary", a->vocab_size);
    fprintf(out, "  %-24s%s (%s)\n", "longest context", rose_format_count(a->max_positions, text),
            pos_name(a->pos));
    fprintf(out, "  %-24s%s%s\n", "activation", act_name(k->mlp.act),
            k->mlp.gated ? ", gated" : "");
    fprintf(out, "  %-24s%s, epsilon %g%s%s\n", "normalisation", norm_name(a->norm),
            (double)a->norm_eps, norms_text(k->norms),
            a->norm_plus_one ? ", times 1 + weight" : "");
    fprintf(out, "  %-24s%g%s\n", "attention scale", (double)mixer->scale,
            mixer->scale_by_layer ? ", divided by (layer + 1)" : "");
    print_decoder(a, out);
    fprintf(out, "  %-24s%s\n", "output matrix",
            a->headless    ? "none"
            : a->tied_head ? "the token embedding"
                           : "its own");
    if (a->no_text[0] != '\0') fprintf(out, "  %-24sno: it is %s\n", "writes texts", a->no_text);
    print_ids(a, out);
    fprintf(out, "\n");
    return out_status(out);
}

static void print_tensor(const rose_st_tensor *t, const rose_keeper *k, int name_width, FILE *out)
{
    char name[NAME_WIDTH_MAX + 1], shape[192] = "", bytes[32];
    const char *kept = kept_as(k, t).type;
    int at = 0;
    for (uint32_t d = 0; d < t->n_dims; d++)
        at += snprintf(shape + at, sizeof shape - (size_t)at, "%s%" PRIu64, d > 0 ? " x " : "",
                       t->shape[d]);
    fprintf(out, "  %-*s  %-5s  %-14s  %15s%s%s\n", name_width, safe(t->name, name, sizeof name),
            t->dtype_name, t->n_dims == 0 ? "scalar" : shape,
            rose_format_count(t->end - t->begin, bytes), kept != NULL ? "  " : "",
            !t->used       ? "  not used"
            : kept != NULL ? kept
                           : "");
}

rose_status rose_model_print_tensors(const rose_model *m, const rose_keeper *k, FILE *out)
{
    const rose_weights *w = m->weights;
    int width = 4;
    for (size_t i = 0; i < w->n_tensors; i++) {
        int n = (int)strnlen(w->by_name[i]->name, NAME_WIDTH_MAX);
        if (n > width) width = n;
    }
    for (size_t f = 0; f < w->n_files; f++) {
        const rose_weight_file *file = &w->files[f];
        char label[256];
        fprintf(out, "%s\n", safe(file->label, label, sizeof label));
        fprintf(out, "  %-*s  %-5s  %-14s  %15s%s\n", width, "tensor", "dtype", "shape", "bytes",
                k != NULL ? "  in memory" : "");
        for (size_t i = 0; i < file->n_tensors; i++)
            print_tensor(&file->tensors[i], k, width, out);
        fprintf(out, "\n");
    }
    return out_status(out);
}

static rose_json *rope_json(const rose_rope *r)
{
    return rose_json_pack("{s:s,s:f,s:I,s:f,s:I}", "kind", rose_rope_kind_name(r->kind), "theta",
                          (double)r->theta, "dim", (int64_t)r->dim, "factor", (double)r->factor,
                          "original_max_positions", (int64_t)r->original_max_positions);
}

/* Adds what GPT-2 does not have; consumes root. */
static rose_json *add_decoder_json(rose_json *root, const rose_arch *a)
{
    const layer_counts n = count_layers(a);
    const rose_kind *k = rose_arch_any(a);
    const rose_rope *full = n.full != NULL ? n.full : n.slides;
    if (root == NULL || a->pos != ROSE_POS_ROPE) return root;
    if (full == NULL) full = &k->mixer.rope;
    rose_json *more = rose_json_pack(
        "{s:o,s:o,s:I,s:I,s:I,s:b,s:b,s:b,s:I,s:f,s:f,s:f}", "rope", rope_json(full),
        "rope_sliding", rope_json(n.slides != NULL ? n.slides : full), "window", (int64_t)n.window,
        "sliding_layers", (int64_t)n.sliding, "layers_without_rope", (int64_t)n.still, "qk_norm",
        k->mixer.qk_norm ? 1 : 0, "mlp_gated", k->mlp.gated ? 1 : 0, "norm_plus_one",
        a->norm_plus_one ? 1 : 0, "norms_after", (int64_t)rose_norms_after(&k->norms),
        "embed_scale", (double)a->embed_scale, "attn_softcap", (double)k->mixer.softcap,
        "logit_softcap", (double)a->logit_softcap);
    if (more == NULL || rose_json_update(root, more) != 0) {
        rose_json_decref(root);
        root = NULL;
    }
    rose_json_decref(more);
    return root;
}

static rose_json *arch_json(const rose_arch *a)
{
    const rose_kind *k = rose_arch_any(a);
    const rose_mixer *m = &k->mixer;
    rose_json *eos = rose_json_array();
    for (uint32_t i = 0; i < a->n_eos; i++)
        if (rose_json_append_new(eos, rose_json_integer(a->eos_ids[i])) != 0) {
            rose_json_decref(eos);
            return NULL;
        }
    rose_json *bos = a->bos_id >= 0 ? rose_json_integer(a->bos_id) : rose_json_null();
    rose_json *root = rose_json_pack(
        "{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:s,s:s,s:s,s:f,s:f,s:b,s:b,s:o,s:o}", "n_layers",
        (int64_t)a->n_layers, "d_model", (int64_t)a->d_model, "n_heads", (int64_t)m->n_heads,
        "n_kv_heads", (int64_t)m->n_kv_heads, "head_dim", (int64_t)m->head_dim, "d_ff",
        (int64_t)k->mlp.d_ff, "vocab_size", (int64_t)a->vocab_size, "max_positions",
        (int64_t)a->max_positions, "activation", act_name(k->mlp.act), "norm", norm_name(a->norm),
        "positions", pos_name(a->pos), "norm_eps", (double)a->norm_eps, "attn_scale",
        (double)m->scale, "attn_scale_by_layer", m->scale_by_layer ? 1 : 0, "tied_head",
        a->tied_head ? 1 : 0, "bos_id", bos, "eos_ids", eos);
    return add_decoder_json(root, a);
}

static rose_json *tensor_json(const rose_st_tensor *t, const rose_keeper *k)
{
    rose_json *shape = rose_json_array();
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (rose_json_append_new(shape, rose_json_integer((int64_t)t->shape[i])) != 0) {
            rose_json_decref(shape);
            return NULL;
        }
    return rose_json_pack(k == NULL ? "{s:s,s:s,s:o,s:I,s:b}" : "{s:s,s:s,s:o,s:I,s:b,s:s?}",
                          "name", t->name, "dtype", t->dtype_name, "shape", shape, "bytes",
                          (int64_t)(t->end - t->begin), "used", t->used ? 1 : 0, "in_memory",
                          kept_as(k, t).type);
}

/* A path need not be UTF-8 but JSON must be, so invalid bytes become '?'. */
static rose_json *string_json(const char *s)
{
    rose_json *j = rose_json_string(s);
    if (j != NULL) return j;
    char ascii[256];
    size_t n = 0;
    for (; s[n] != '\0' && n + 1 < sizeof ascii; n++)
        ascii[n] = (unsigned char)s[n] < 0x80 ? s[n] : '?';
    ascii[n] = '\0';
    return rose_json_string(ascii);
}

static rose_json *kept_json(const type_count *c)
{
    rose_json *kept = rose_json_object();
    for (uint32_t i = 0; i < c->n_kept; i++)
        if (rose_json_set_new(kept, c->kept[i], rose_json_integer((int64_t)c->n[i])) != 0) {
            rose_json_decref(kept);
            return NULL;
        }
    return kept;
}

/* {"Q4_1": {"tensors": n, "bytes": n, "in_memory": {"Q4_1": n}, "widened": false}, ...} */
static rose_json *types_json(const rose_model *m, const rose_keeper *k)
{
    type_count counts[ROSE_N_FORMATS];
    rose_json *types = rose_json_object();
    count_types(m, k, counts);
    for (int t = 0; t < ROSE_N_FORMATS; t++) {
        const type_count *c = &counts[t];
        if (c->tensors == 0) continue;
        rose_json *row = k == NULL
                             ? rose_json_pack("{s:I,s:I}", "tensors", (int64_t)c->tensors, "bytes",
                                              (int64_t)c->bytes)
                             : rose_json_pack("{s:I,s:I,s:o,s:b}", "tensors", (int64_t)c->tensors,
                                              "bytes", (int64_t)c->bytes, "in_memory", kept_json(c),
                                              "widened", c->widened ? 1 : 0);
        if (rose_json_set_new(types, rose_formats[t].name, row) != 0) {
            rose_json_decref(types);
            return NULL;
        }
    }
    return types;
}

rose_json *rose_model_json(const rose_model *m, const rose_keeper *k)
{
    const rose_weights *w = m->weights;
    rose_json *tensors = rose_json_array();
    for (size_t f = 0; f < w->n_files; f++)
        for (size_t i = 0; i < w->files[f].n_tensors; i++)
            if (rose_json_append_new(tensors, tensor_json(&w->files[f].tensors[i], k)) != 0) {
                rose_json_decref(tensors);
                return NULL;
            }
    return rose_json_pack("{s:o,s:o,s:s,s:o,s:{s:s,s:I,s:I,s:I,s:o},s:o}", "name",
                          string_json(m->name), "path", string_json(m->path), "model_type",
                          m->arch.model_type, "architecture", arch_json(&m->arch), "weights",
                          "dtype", rose_formats[m->dtype].name, "parameters", (int64_t)m->n_params,
                          "files", (int64_t)w->n_files, "bytes", (int64_t)m->file_bytes, "types",
                          types_json(m, k), "tensors", tensors);
}
