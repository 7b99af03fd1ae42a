/* model/random.c - writes a random model as a Hugging Face folder. Names and shapes come from the
 * family's tables, and the options pass through the family's own parser of config.json. So the
 * writer accepts exactly what rose_model_open accepts.
 *
 * A weight is a pure function of (seed, tensor, element). It does not change with the dtype
 * (before rounding), the prefix or the sharding. The sum of four uniform 16-bit numbers
 * approximates the normal distribution (Irwin-Hall; excess kurtosis -0.3, cut at 3.46 sigma). It
 * needs only integers and two exactly rounded fp32 operations, so every machine gives the same
 * bits. The log and cos of different libms would not. */
#include "model/random.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/philox.h"
#include "model/convert.h"
#include "model/family.h"
#include "model/random_internal.h"

/* Elements generated and written at a time; even, since one Philox block gives two. */
enum { BLOCK = 1 << 14 };

typedef struct plan {
    const rose_random_opts *o;
    const rose_family *family;
    rose_arch arch;
    rose_random_tensor *tensors; /* [n], owned */
    size_t n;
    uint32_t n_shards;
    uint64_t bytes; /* of all tensors */
} plan;

void rose_random_opts_default(rose_random_opts *o)
{
    *o = (rose_random_opts){.arch = "gpt2",
                            .init_std = 0.02f,
                            .n_layers = 12,
                            .d_model = 768,
                            .n_heads = 12,
                            .vocab_size = 50257,
                            .max_positions = 1024,
                            .dtype = ROSE_F32,
                            .tied_head = true,
                            .prefix = true};
}

/* ---- the folder ---- */

/* The path of a new file in the folder, recorded for removal; owned by the folder. NULL: out of
 * memory. */
static const char *add_file(rose_folder *f, const char *name)
{
    char **files = realloc(f->files, (f->n_files + 1) * sizeof *files);
    if (files == NULL) return NULL;
    f->files = files;
    if (asprintf(&files[f->n_files], "%s/%s", f->dir, name) < 0) return NULL;
    return files[f->n_files++];
}

rose_status rose_folder_write(rose_folder *f, const char *name, const void *bytes, size_t n,
                              rose_err *err)
{
    const char *path = add_file(f, name);
    if (path == NULL) return rose_fail(err, ROSE_E_NOMEM, "%s/%s: out of memory", f->dir, name);
    errno = 0;
    FILE *out = fopen(path, "wb");
    bool ok = out != NULL && fwrite(bytes, 1, n, out) == n;
    if (out != NULL && fclose(out) != 0) ok = false;
    return ok ? ROSE_OK : rose_fail(err, ROSE_E_IO, "write %s: %s", path, strerror(errno));
}

rose_status rose_folder_write_json(rose_folder *f, const char *name, rose_json *root,
                                   unsigned flags, rose_err *err)
{
    rose_buf text = {0};
    const bool made = root != NULL && rose_json_dump(&text, root, flags) == ROSE_OK &&
                      rose_buf_add(&text, "\n", 1) == ROSE_OK;
    rose_status st = made ? rose_folder_write(f, name, text.data, text.len, err)
                          : rose_fail(err, ROSE_E_NOMEM, "%s/%s: out of memory", f->dir, name);
    rose_buf_free(&text);
    rose_json_decref(root);
    return st;
}

static bool is_empty_folder(const char *dir)
{
    DIR *d = opendir(dir);
    if (d == NULL) return false;
    size_t n = 0;
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n == 0;
}

static rose_status folder_begin(rose_folder *f, const char *dir, rose_err *err)
{
    *f = (rose_folder){.dir = dir};
    if (mkdir(dir, 0777) == 0) {
        f->made = true;
        return ROSE_OK;
    }
    if (errno != EEXIST)
        return rose_fail(err, ROSE_E_IO, "create folder %s: %s", dir, strerror(errno));
    if (!is_empty_folder(dir))
        return rose_fail(err, ROSE_E_INVAL,
                         "%s exists and is not an empty folder: name a new one, or remove it", dir);
    return ROSE_OK;
}

/* Ends the work on a folder. keep: leave the files; otherwise remove everything that we made. */
static void folder_end(rose_folder *f, bool keep)
{
    for (size_t i = 0; i < f->n_files; i++) {
        if (!keep) unlink(f->files[i]);
        free(f->files[i]);
    }
    free(f->files);
    if (!keep && f->made) rmdir(f->dir);
}

/* ---- the plan ---- */

static rose_json *make_gpt2_config(const rose_random_opts *o)
{
    int64_t eos = (int64_t)o->vocab_size - 1;
    rose_json *inner = o->d_ff == 0 ? rose_json_null() : rose_json_integer(o->d_ff);
    return rose_json_pack(
        "{s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:s,s:f,s:f,s:f,s:f,s:f,s:b,s:b,s:b,s:b,s:b,s:I,s:I,"
        "s:s}",
        "model_type", o->arch, "n_layer", (int64_t)o->n_layers, "n_embd", (int64_t)o->d_model,
        "n_head", (int64_t)o->n_heads, "n_positions", (int64_t)o->max_positions, "n_ctx",
        (int64_t)o->max_positions, "vocab_size", (int64_t)o->vocab_size, "n_inner", inner,
        "activation_function", "gelu_new", "layer_norm_epsilon", 1e-5, "initializer_range", 0.02,
        "attn_pdrop", 0.0, "embd_pdrop", 0.0, "resid_pdrop", 0.0, "scale_attn_weights", 1,
        "scale_attn_by_inverse_layer_idx", 0, "reorder_and_upcast_attn", 0, "tie_word_embeddings",
        o->tied_head ? 1 : 0, "use_cache", 1, "bos_token_id", (int64_t)eos, "eos_token_id",
        (int64_t)eos, "torch_dtype", rose_formats[o->dtype].torch);
}

/* The field names that all families but gpt2 share; what is left out has the family's default. */
static rose_json *make_decoder_config(const rose_random_opts *o)
{
    const int64_t eos = (int64_t)o->vocab_size - 1;
    const uint32_t kv = o->n_kv_heads == 0 ? o->n_heads : o->n_kv_heads;
    const uint32_t head_dim = o->head_dim == 0 ? o->d_model / o->n_heads : o->head_dim;
    return rose_json_pack(
        "{s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:b,s:I,s:I,s:I,s:s}", "model_type", o->arch,
        "hidden_size", (int64_t)o->d_model, "num_hidden_layers", (int64_t)o->n_layers,
        "num_attention_heads", (int64_t)o->n_heads, "num_key_value_heads", (int64_t)kv, "head_dim",
        (int64_t)head_dim, "intermediate_size",
        (int64_t)(o->d_ff == 0 ? (uint64_t)4 * o->d_model : o->d_ff), "vocab_size",
        (int64_t)o->vocab_size, "max_position_embeddings", (int64_t)o->max_positions,
        "tie_word_embeddings", o->tied_head ? 1 : 0, "bos_token_id", eos, "eos_token_id", eos,
        "pad_token_id", eos, "torch_dtype", rose_formats[o->dtype].torch);
}

/* *out: config.json as it will be written; owned by the caller. */
static rose_status make_config(const rose_random_opts *o, rose_json **out, rose_err *err)
{
    rose_config c = {0};
    *out = NULL;
    if (o->preset != NULL || o->config != NULL) {
        const rose_status st = o->preset != NULL ? rose_random_preset(&c.root, o->preset, err)
                                                 : rose_config_open(&c, o->config, err);
        if (st != ROSE_OK) return st;
        *out = c.root;
        const bool cut = o->preset != NULL && o->preset_layers != 0;
        if (cut && rose_json_set_new(c.root, "num_hidden_layers",
                                     rose_json_integer(o->preset_layers)) != 0)
            return rose_fail(err, ROSE_E_NOMEM, "random model: out of memory");
        if (rose_json_set_new(c.root, "torch_dtype",
                              rose_json_string(rose_formats[o->dtype].torch)) == 0)
            return ROSE_OK;
    } else {
        const bool gpt2 = strcmp(o->arch, "gpt2") == 0;
        *out = gpt2 ? make_gpt2_config(o) : make_decoder_config(o);
        if (*out != NULL) return ROSE_OK;
    }
    return rose_fail(err, ROSE_E_NOMEM, "random model: out of memory");
}

static void list_add(rose_random_tensor *t, const char *lead, const rose_tensor_row *row)
{
    snprintf(t->name, sizeof t->name, "%s%.63s", lead, row->name);
    t->n_dims = row->n_dims;
    memcpy(t->shape, row->shape, sizeof t->shape);
    t->kind = row->kind;
    t->n = row->shape[0] * row->shape[1] * row->shape[2];
}

rose_status rose_random_list(rose_random_tensor **out, size_t *n, const rose_family *f,
                             const rose_arch *a, bool prefixed, rose_err *err)
{
    const rose_naming *names = f->naming;
    const char *prefix = prefixed ? names->prefix : "";
    rose_tensor_row outer[ROSE_MAX_ROWS], layer[ROSE_MAX_ROWS];
    rose_tensor_row head = {.n_dims = 2, .shape = {a->vocab_size, a->d_model, 1}};
    const size_t n_outer = rose_family_model_rows(f, names, a, outer);
    rose_random_tensor *list = calloc(n_outer + a->n_layers * ROSE_MAX_ROWS + 1, sizeof *list);
    *out = list;
    *n = 0;
    if (list == NULL) return rose_fail(err, ROSE_E_NOMEM, "random model: out of memory");
    for (size_t t = 0; t < n_outer; t++)
        list_add(&list[(*n)++], prefix, &outer[t]);
    for (uint32_t i = 0; i < a->n_layers; i++) {
        char lead[64];
        const size_t n_layer = rose_family_layer_rows(f, names, a, i, layer);
        snprintf(lead, sizeof lead, "%s%s%u.", prefix, names->layer_prefix, i);
        for (size_t t = 0; t < n_layer; t++)
            list_add(&list[(*n)++], lead, &layer[t]);
    }
    snprintf(head.name, sizeof head.name, "%s", names->head_name);
    if (!a->tied_head) list_add(&list[(*n)++], "", &head);
    return ROSE_OK;
}

/* Fills shards in order; a tensor larger than a shard gets its own. */
static void plan_shards(plan *p)
{
    uint64_t at = 0, max = p->o->max_shard_bytes;
    uint32_t shard = 0;
    for (size_t i = 0; i < p->n; i++) {
        rose_random_tensor *t = &p->tensors[i];
        uint64_t bytes = t->n * rose_format_size(p->o->dtype);
        if (max != 0 && at > 0 && (at >= max || bytes > max - at)) {
            shard++;
            at = 0;
        }
        t->shard = shard;
        t->begin = at;
        at += bytes;
        p->bytes += bytes;
    }
    p->n_shards = shard + 1;
}

/* config: owned by the caller; the options in the form of config.json. */
static rose_status plan_make(plan *p, const rose_random_opts *o, rose_json *config, rose_err *err)
{
    rose_config c = {.root = config};
    *p = (plan){.o = o};
    snprintf(c.label, sizeof c.label, "random model");
    rose_status st = rose_family_find(&p->family, &c, err);
    if (st == ROSE_OK) st = rose_family_parse(p->family, &c, &p->arch, err);
    if (st != ROSE_OK) return st == ROSE_E_FORMAT ? ROSE_E_INVAL : st;
    if (rose_json_set_new(config, "architectures",
                          rose_json_pack("[s]", p->family->architecture)) != 0)
        return rose_fail(err, ROSE_E_NOMEM, "random model: out of memory");
    if (p->arch.vocab_size < 257)
        return rose_fail(err, ROSE_E_INVAL,
                         "random model: vocab_size is %u; at least 257 (256 bytes and the end of "
                         "text)",
                         p->arch.vocab_size);
    st = rose_random_list(&p->tensors, &p->n, p->family, &p->arch, o->prefix, err);
    if (st == ROSE_OK) plan_shards(p);
    return st;
}

/* ---- the weights ---- */

/* The sum of four uniform integers in [0, 2^16) has variance 4 (2^32 - 1) / 12. */
void rose_random_scale(rose_random_values *v, rose_tensor_kind kind, const rose_arch *a,
                       float init_std)
{
    /* The default's double is 0.02 itself: its bits are those of the models of before. */
    double std = init_std == 0.02f ? 0.02 : (double)init_std;
    if (kind == ROSE_KIND_RESIDUAL) std /= sqrt(2.0 * a->n_layers);
    v->scale = (float)(std / sqrt(4294967295.0 / 3.0));
    v->mean = kind == ROSE_KIND_NORM && !a->norm_plus_one ? 1.0f : 0.0f;
}

void rose_random_draw(float *out, const rose_random_values *v, size_t n)
{
    const uint32_t key[2] = {(uint32_t)v->seed, (uint32_t)(v->seed >> 32)};
    for (size_t i = 0; i < n;) {
        const uint64_t k = (v->first + i) / 2;
        const uint32_t ctr[4] = {(uint32_t)k, (uint32_t)(k >> 32), v->stream, ROSE_RANDOM_TAG};
        uint32_t r[4];
        rose_philox4x32(ctr, key, r);
        if ((v->first + i) % 2 == 0) out[i++] = v->mean + (float)ROSE_RANDOM_Z(r, 0) * v->scale;
        if (i < n && (v->first + i) / 2 == k)
            out[i++] = v->mean + (float)ROSE_RANDOM_Z(r, 1) * v->scale;
    }
}

void rose_random_store(uint8_t *to, rose_format dtype, const float *values, size_t n)
{
    if (dtype == ROSE_F32) {
        memcpy(to, values, n * sizeof *values);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const uint16_t h =
            dtype == ROSE_F16 ? rose_f32_to_f16(values[i]) : rose_f32_to_bf16(values[i]);
        memcpy(to + i * sizeof h, &h, sizeof h);
    }
}

static bool write_tensor(FILE *f, const plan *p, size_t index)
{
    float block[BLOCK];
    uint8_t bytes[BLOCK * sizeof(float)];
    const size_t size = rose_format_size(p->o->dtype);
    const rose_random_tensor *t = &p->tensors[index];
    rose_random_values v = {.seed = p->o->seed, .stream = (uint32_t)index};
    rose_random_scale(&v, t->kind, &p->arch, p->o->init_std);
    for (uint64_t at = 0; at < t->n; at += BLOCK) {
        size_t n = t->n - at < BLOCK ? (size_t)(t->n - at) : BLOCK;
        v.first = at;
        rose_random_draw(block, &v, n);
        rose_random_store(bytes, p->o->dtype, block, n);
        if (fwrite(bytes, size, n, f) != n) return false;
    }
    return true;
}

/* Makes the JSON header of tensors [begin, end), padded with spaces to a multiple of 8 bytes. */
static rose_status make_header(rose_buf *b, const plan *p, size_t begin, size_t end)
{
    size_t size = rose_format_size(p->o->dtype);
    rose_status st = rose_buf_addf(b, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (size_t i = begin; st == ROSE_OK && i < end; i++) {
        const rose_random_tensor *t = &p->tensors[i];
        st = rose_buf_addf(b, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRIu64, t->name,
                           rose_formats[p->o->dtype].name, t->shape[0]);
        for (uint32_t k = 1; st == ROSE_OK && k < t->n_dims; k++)
            st = rose_buf_addf(b, ",%" PRIu64, t->shape[k]);
        if (st == ROSE_OK)
            st = rose_buf_addf(b, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->begin,
                               t->begin + t->n * size);
    }
    if (st == ROSE_OK) st = rose_buf_add(b, "}", 1);
    while (st == ROSE_OK && b->len % 8 != 0)
        st = rose_buf_add(b, " ", 1);
    return st;
}

static void shard_name(char out[64], uint32_t shard, uint32_t n_shards)
{
    if (n_shards == 1)
        snprintf(out, 64, "model.safetensors");
    else
        snprintf(out, 64, "model-%05u-of-%05u.safetensors", shard + 1, n_shards);
}

/* Writes tensors [begin, end) as one file. */
static rose_status write_shard(rose_folder *folder, const plan *p, size_t begin, size_t end,
                               rose_err *err)
{
    char name[64];
    rose_buf header = {0};
    FILE *f = NULL;
    bool ok = false;
    shard_name(name, p->tensors[begin].shard, p->n_shards);
    const char *path = add_file(folder, name);
    rose_status st = make_header(&header, p, begin, end);
    if (path == NULL || st != ROSE_OK) {
        st = rose_fail(err, ROSE_E_NOMEM, "%s/%s: out of memory", folder->dir, name);
        goto done;
    }
    uint8_t len[8];
    for (int i = 0; i < 8; i++)
        len[i] = (uint8_t)((uint64_t)header.len >> 8 * i);
    errno = 0;
    f = fopen(path, "wb");
    ok = f != NULL && fwrite(len, 1, 8, f) == 8 &&
         fwrite(header.data, 1, header.len, f) == header.len;
    for (size_t i = begin; ok && i < end; i++)
        ok = write_tensor(f, p, i);
    if (f != NULL && fclose(f) != 0) ok = false;
    if (!ok) st = rose_fail(err, ROSE_E_IO, "write %s: %s", path, strerror(errno));
done:
    rose_buf_free(&header);
    return st;
}

static rose_status write_index(rose_folder *folder, const plan *p, rose_err *err)
{
    rose_json *map = rose_json_object();
    int bad = map == NULL ? -1 : 0;
    for (size_t i = 0; bad == 0 && i < p->n; i++) {
        char name[64];
        shard_name(name, p->tensors[i].shard, p->n_shards);
        bad = rose_json_set_new(map, p->tensors[i].name, rose_json_string(name));
    }
    rose_json *root = NULL;
    if (bad == 0)
        root = rose_json_pack("{s:{s:I},s:O}", "metadata", "total_size", (int64_t)p->bytes,
                              "weight_map", map);
    rose_json_decref(map);
    return rose_folder_write_json(folder, "model.safetensors.index.json", root, ROSE_JSON_INDENT(2),
                                  err);
}

static rose_status write_weights(rose_folder *folder, const plan *p, rose_err *err)
{
    rose_status st = ROSE_OK;
    for (size_t begin = 0, end = 0; st == ROSE_OK && begin < p->n; begin = end) {
        while (end < p->n && p->tensors[end].shard == p->tensors[begin].shard)
            end++;
        st = write_shard(folder, p, begin, end, err);
    }
    if (st == ROSE_OK && p->n_shards > 1) st = write_index(folder, p, err);
    return st;
}

rose_status rose_random_model_write(const rose_random_opts *o, const char *dir, rose_err *err)
{
    plan p;
    rose_folder folder = {.dir = dir};
    rose_json *config = NULL;
    p = (plan){.o = o};
    rose_status st = make_config(o, &config, err);
    if (st == ROSE_OK) st = plan_make(&p, o, config, err);
    if (st != ROSE_OK) goto done;
    if ((st = folder_begin(&folder, dir, err)) != ROSE_OK) goto done;
    st = rose_folder_write_json(&folder, "config.json", rose_json_incref(config),
                                ROSE_JSON_INDENT(2) | ROSE_JSON_REAL_PRECISION(10), err);
    if (st == ROSE_OK)
        st = rose_folder_write_json(&folder, "generation_config.json",
                                    rose_json_pack("{s:I,s:I}", "bos_token_id",
                                                   (int64_t)p.arch.vocab_size - 1, "eos_token_id",
                                                   (int64_t)p.arch.vocab_size - 1),
                                    ROSE_JSON_INDENT(2), err);
    if (st == ROSE_OK)
        st = o->tokenizer != NULL ? rose_random_tokenizer_copy(&folder, o->tokenizer, err)
                                  : rose_random_tokenizer_write(&folder, &p.arch, err);
    if (st == ROSE_OK && !o->no_weights) st = write_weights(&folder, &p, err);
done:
    folder_end(&folder, st == ROSE_OK);
    free(p.tensors);
    rose_arch_free(&p.arch);
    rose_json_decref(config);
    return st;
}
