/* base/gguf.c - see gguf.h: the checks. The file is hostile input: no number in it is used before
 * it was compared with the bytes that the file has, and no size is multiplied unchecked. */
#include "base/gguf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/gguf_internal.h"

#define DEFAULT_ALIGNMENT 32u
#define MAX_ALIGNMENT     (1u << 20)
#define MAX_KEY_BYTES     65535u

/* The fewest bytes of a pair (key of one byte, value of one byte) and of a tensor's entry. */
enum { MIN_PAIR_BYTES = 8 + 1 + 4 + 1, MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8 };

/* The bytes that were not read yet, and what messages need. */
typedef struct reader {
    const uint8_t *at, *end;
    const uint8_t *file;
    const char *label;
    rose_err *err;
} reader;

static size_t bytes_left(const reader *r)
{
    return (size_t)(r->end - r->at);
}

/* what: the thing whose bytes are missing, as the message names it. */
static rose_status truncated(const reader *r, const char *what, uint64_t need)
{
    return rose_fail(r->err, ROSE_E_FORMAT,
                     "%s: %s at byte %zu needs %" PRIu64
                     " bytes, but only %zu are there: the file is truncated or damaged",
                     r->label, what, (size_t)(r->at - r->file), need, bytes_left(r));
}

/* A count of things that the rest of the file cannot hold. */
static rose_status too_many(const reader *r, const char *things, uint64_t n)
{
    return rose_fail(r->err, ROSE_E_FORMAT,
                     "%s: the file claims %" PRIu64 " %s at byte %zu, but only %zu bytes are left: "
                     "the file is truncated or damaged",
                     r->label, n, things, (size_t)(r->at - r->file), bytes_left(r));
}

static rose_status read_u32(reader *r, const char *what, uint32_t *out)
{
    if (bytes_left(r) < sizeof *out) return truncated(r, what, sizeof *out);
    memcpy(out, r->at, sizeof *out);
    r->at += sizeof *out;
    return ROSE_OK;
}

static rose_status read_u64(reader *r, const char *what, uint64_t *out)
{
    if (bytes_left(r) < sizeof *out) return truncated(r, what, sizeof *out);
    memcpy(out, r->at, sizeof *out);
    r->at += sizeof *out;
    return ROSE_OK;
}

static rose_status read_string(reader *r, const char *what, rose_gguf_str *out)
{
    uint64_t n = 0;
    const rose_status st = read_u64(r, what, &n);
    if (st != ROSE_OK) return st;
    if (n > bytes_left(r)) return truncated(r, what, n);
    *out = (rose_gguf_str){(const char *)r->at, (size_t)n};
    r->at += n;
    return ROSE_OK;
}

static bool is_printable(rose_gguf_str s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.s[i] < 0x20 || s.s[i] > 0x7E) return false;
    return true;
}

/* A key or a tensor's name: printable ASCII of 1 .. max bytes. */
static rose_status read_name(reader *r, const char *what, size_t max, rose_gguf_str *out)
{
    const size_t at = (size_t)(r->at - r->file);
    const rose_status st = read_string(r, what, out);
    if (st != ROSE_OK) return st;
    if (out->n < 1 || out->n > max || !is_printable(*out))
        return rose_fail(r->err, ROSE_E_FORMAT,
                         "%s: %s at byte %zu (%zu bytes) is not printable ASCII of 1 to %zu bytes",
                         r->label, what, at, out->n, max);
    return ROSE_OK;
}

/* "GGUF" and the version. */
static rose_status read_version(rose_gguf *g, reader *r)
{
    if (bytes_left(r) < 4 || memcmp(r->at, "GGUF", 4) != 0)
        return rose_fail(r->err, ROSE_E_FORMAT, "%s: does not begin with 'GGUF': not a GGUF file",
                         r->label);
    r->at += 4;
    const rose_status st = read_u32(r, "the version", &g->version);
    if (st != ROSE_OK) return st;
    if (g->version != 0 && (g->version & 0xFFFFu) == 0)
        return rose_fail(r->err, ROSE_E_UNSUPPORTED,
                         "%s: the file is big-endian; convert it to little-endian first (for "
                         "example with gguf-convert-endian)",
                         r->label);
    if (g->version < 2 || g->version > 3)
        return rose_fail(r->err, ROSE_E_UNSUPPORTED,
                         "%s: GGUF version %u is not supported (supported: 2 and 3)%s", r->label,
                         g->version, g->version == 1 ? "; convert the model again" : "");
    return ROSE_OK;
}

/* The packed elements of a value, v->n of them. Strings are walked, because each has a length. */
static rose_status read_elements(reader *r, rose_gguf_value *v)
{
    const size_t size = rose_gguf_type_bytes(v->type);
    v->data = r->at;
    if (v->type != ROSE_GGUF_STRING) {
        if (!v->is_array && size > bytes_left(r)) return truncated(r, "a value", size);
        if (v->n > bytes_left(r) / size) return too_many(r, "elements of an array", v->n);
        r->at += v->n * size;
    } else {
        if (v->is_array && v->n > bytes_left(r) / sizeof(uint64_t))
            return too_many(r, "strings of an array", v->n);
        for (uint64_t i = 0; i < v->n; i++) {
            rose_gguf_str s;
            const rose_status st = read_string(r, "a string", &s);
            if (st != ROSE_OK) return st;
        }
    }
    v->n_bytes = (size_t)(r->at - v->data);
    return ROSE_OK;
}

static rose_status check_bools(const reader *r, const rose_gguf_value *v)
{
    for (uint64_t i = 0; v->type == ROSE_GGUF_BOOL && i < v->n; i++)
        if (v->data[i] > 1)
            return rose_fail(r->err, ROSE_E_FORMAT,
                             "%s: the byte %u at byte %zu should be a boolean, 0 or 1", r->label,
                             v->data[i], (size_t)(v->data + i - r->file));
    return ROSE_OK;
}

static rose_status read_type(reader *r, rose_gguf_str key, rose_gguf_type *out)
{
    uint32_t type = 0;
    const rose_status st = read_u32(r, "the type of a value", &type);
    if (st == ROSE_OK && type > ROSE_GGUF_F64)
        return rose_fail(r->err, ROSE_E_FORMAT, "%s: key '%.*s' has the unknown type %u", r->label,
                         (int)(key.n < 100 ? key.n : 100), key.s, type);
    *out = (rose_gguf_type)type;
    return st;
}

static rose_status read_pair(reader *r, rose_gguf_pair *p)
{
    rose_gguf_value *v = &p->value;
    rose_status st = read_name(r, "a key", MAX_KEY_BYTES, &p->key);
    if (st == ROSE_OK) st = read_type(r, p->key, &v->type);
    v->n = 1;
    if (st == ROSE_OK && v->type == ROSE_GGUF_ARRAY) {
        v->is_array = true;
        st = read_type(r, p->key, &v->type);
        if (st == ROSE_OK && v->type == ROSE_GGUF_ARRAY)
            return rose_fail(r->err, ROSE_E_UNSUPPORTED,
                             "%s: key '%.*s' is an array of arrays, which is not supported",
                             r->label, (int)(p->key.n < 100 ? p->key.n : 100), p->key.s);
        if (st == ROSE_OK) st = read_u64(r, "the length of an array", &v->n);
    }
    if (st == ROSE_OK) st = read_elements(r, v);
    return st == ROSE_OK ? check_bools(r, v) : st;
}

static int by_key(const void *a, const void *b)
{
    return rose_gguf_compare(((const rose_gguf_pair *)a)->key, ((const rose_gguf_pair *)b)->key);
}

static rose_status read_pairs(rose_gguf *g, reader *r, uint64_t n)
{
    if (n > bytes_left(r) / MIN_PAIR_BYTES) return too_many(r, "key-value pairs", n);
    if ((g->pairs = calloc((size_t)n + 1, sizeof *g->pairs)) == NULL)
        return rose_fail(r->err, ROSE_E_NOMEM, "%s: out of memory", r->label);
    for (; g->n_pairs < n; g->n_pairs++) {
        const rose_status st = read_pair(r, &g->pairs[g->n_pairs]);
        if (st != ROSE_OK) return st;
    }
    qsort(g->pairs, g->n_pairs, sizeof *g->pairs, by_key);
    for (size_t i = 1; i < g->n_pairs; i++)
        if (by_key(&g->pairs[i - 1], &g->pairs[i]) == 0) {
            const rose_gguf_str key = g->pairs[i].key;
            return rose_fail(r->err, ROSE_E_FORMAT, "%s: the key '%.*s' is there twice", r->label,
                             (int)(key.n < 100 ? key.n : 100), key.s);
        }
    return ROSE_OK;
}

static rose_status read_alignment(rose_gguf *g, rose_err *err)
{
    uint32_t a = DEFAULT_ALIGNMENT;
    const rose_status st = rose_gguf_get_u32(g, "general.alignment", &a, err);
    if (st != ROSE_OK) return st;
    if (a < 8 || a > MAX_ALIGNMENT || (a & (a - 1)) != 0)
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: 'general.alignment' is %u; expected a power of two from 8 to %u",
                         g->label, a, MAX_ALIGNMENT);
    g->alignment = a;
    return ROSE_OK;
}

/* The dimensions, reversed, and the bytes that they ask for in this format. */
static rose_status read_shape(reader *r, rose_gguf_tensor *t)
{
    rose_status st = read_u32(r, "the number of dimensions of a tensor", &t->n_dims);
    if (st != ROSE_OK) return st;
    if (t->n_dims < 1 || t->n_dims > ROSE_GGUF_MAX_DIMS)
        return rose_fail(r->err, ROSE_E_FORMAT,
                         "%s: tensor '%s' has %u dimensions; expected 1 to %d", r->label, t->name,
                         t->n_dims, ROSE_GGUF_MAX_DIMS);
    for (uint32_t i = t->n_dims; i-- > 0;) {
        if ((st = read_u64(r, "a dimension of a tensor", &t->shape[i])) != ROSE_OK) return st;
        if (t->shape[i] == 0)
            return rose_fail(r->err, ROSE_E_FORMAT, "%s: dimension %u of tensor '%s' is 0",
                             r->label, i, t->name);
    }
    return ROSE_OK;
}

static rose_status read_format(reader *r, rose_gguf_tensor *t)
{
    uint32_t id = 0;
    const rose_status st = read_u32(r, "the type of a tensor", &id);
    if (st != ROSE_OK) return st;
    t->format = rose_gguf_format_find(id);
    if (t->format == NULL)
        return rose_fail(r->err, ROSE_E_UNSUPPORTED, "%s: tensor '%s' has the unknown type %u",
                         r->label, t->name, id);
    const uint64_t row = t->shape[t->n_dims - 1];
    if (row % t->format->block != 0)
        return rose_fail(r->err, ROSE_E_FORMAT,
                         "%s: tensor '%s': rows of %" PRIu64
                         " elements are not a whole number of blocks of %u, as %s has",
                         r->label, t->name, row, t->format->block, t->format->name);
    return ROSE_OK;
}

/* Sets begin and end from the offset in the file. */
static rose_status read_place(reader *r, rose_gguf_tensor *t, uint32_t alignment)
{
    const rose_status st = read_u64(r, "the offset of a tensor", &t->begin);
    if (st != ROSE_OK) return st;
    if (t->begin % alignment != 0)
        return rose_fail(r->err, ROSE_E_FORMAT,
                         "%s: tensor '%s' begins at byte %" PRIu64
                         " of the data, which is not a multiple of the alignment %u",
                         r->label, t->name, t->begin, alignment);
    uint64_t n = t->shape[t->n_dims - 1] / t->format->block;
    bool overflow = __builtin_mul_overflow(n, t->format->block_bytes, &n);
    for (uint32_t i = 0; i + 1 < t->n_dims; i++)
        overflow |= __builtin_mul_overflow(n, t->shape[i], &n);
    if (overflow || __builtin_add_overflow(t->begin, n, &t->end))
        return rose_fail(r->err, ROSE_E_FORMAT,
                         "%s: tensor '%s': its shape and offset overflow 64 bits", r->label,
                         t->name);
    return ROSE_OK;
}

static rose_status read_tensor(rose_gguf *g, reader *r, rose_gguf_tensor *t)
{
    rose_gguf_str name;
    rose_status st = read_name(r, "the name of a tensor", ROSE_GGUF_MAX_NAME, &name);
    if (st != ROSE_OK) return st;
    memcpy(t->name, name.s, name.n);
    st = read_shape(r, t);
    if (st == ROSE_OK) st = read_format(r, t);
    return st == ROSE_OK ? read_place(r, t, g->alignment) : st;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const rose_gguf_tensor *)a)->name, ((const rose_gguf_tensor *)b)->name);
}

static int by_begin(const void *pa, const void *pb)
{
    const rose_gguf_tensor *a = pa, *b = pb;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return strcmp(a->name, b->name);
}

static uint64_t round_up(uint64_t n, uint32_t alignment)
{
    return (n + alignment - 1) & ~(uint64_t)(alignment - 1);
}

/* The sorted tensors tile the data, and the file ends with the last one or its padding. */
static rose_status check_tiling(const rose_gguf *g, uint64_t data_bytes, rose_err *err)
{
    uint64_t at = 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        const rose_gguf_tensor *t = &g->tensors[i];
        if (t->end > data_bytes)
            return rose_fail(err, ROSE_E_FORMAT,
                             "%s: tensor '%s' ends at byte %" PRIu64
                             " of the data, but the file holds only %" PRIu64
                             ": the file is truncated or damaged",
                             g->label, t->name, t->end, data_bytes);
        if (t->begin < at && t->begin < g->tensors[i - 1].end)
            return rose_fail(err, ROSE_E_FORMAT, "%s: tensors '%s' and '%s' overlap", g->label,
                             g->tensors[i - 1].name, t->name);
        if (t->begin != at)
            return rose_fail(err, ROSE_E_FORMAT,
                             "%s: tensor '%s' begins at byte %" PRIu64
                             " of the data; expected %" PRIu64 ", after the tensor before it",
                             g->label, t->name, t->begin, at);
        at = round_up(t->end, g->alignment);
    }
    if (data_bytes > at)
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: %" PRIu64 " bytes after the last tensor belong to no tensor",
                         g->label, data_bytes - at);
    return ROSE_OK;
}

static rose_status check_tensors(rose_gguf *g, const reader *r)
{
    qsort(g->tensors, g->n_tensors, sizeof *g->tensors, by_name);
    for (size_t i = 1; i < g->n_tensors; i++)
        if (by_name(&g->tensors[i - 1], &g->tensors[i]) == 0)
            return rose_fail(r->err, ROSE_E_FORMAT, "%s: the tensor '%s' is there twice", r->label,
                             g->tensors[i].name);
    if (g->n_tensors == 0) return ROSE_OK; /* a vocabulary alone: nothing to tile */
    const uint64_t head = round_up((uint64_t)(r->at - r->file), g->alignment);
    const uint64_t data_bytes = head < g->size ? g->size - head : 0;
    qsort(g->tensors, g->n_tensors, sizeof *g->tensors, by_begin);
    const rose_status st = check_tiling(g, data_bytes, r->err);
    for (size_t i = 0; st == ROSE_OK && i < g->n_tensors; i++)
        g->tensors[i].data = r->file + head + g->tensors[i].begin;
    return st;
}

static rose_status read_tensors(rose_gguf *g, reader *r, uint64_t n)
{
    if (n > bytes_left(r) / MIN_TENSOR_BYTES) return too_many(r, "tensors", n);
    if ((g->tensors = calloc((size_t)n + 1, sizeof *g->tensors)) == NULL)
        return rose_fail(r->err, ROSE_E_NOMEM, "%s: out of memory", r->label);
    for (; g->n_tensors < n; g->n_tensors++) {
        const rose_status st = read_tensor(g, r, &g->tensors[g->n_tensors]);
        if (st != ROSE_OK) return st;
    }
    return check_tensors(g, r);
}

rose_status rose_gguf_parse(rose_gguf *out, const uint8_t *bytes, size_t n, const char *label,
                            rose_err *err)
{
    uint64_t n_tensors = 0, n_pairs = 0;
    *out = (rose_gguf){.size = n};
    rose_path_label(out->label, label);
    reader r = {bytes, bytes + n, bytes, out->label, err};
    rose_status st = read_version(out, &r);
    if (st == ROSE_OK) st = read_u64(&r, "the number of tensors", &n_tensors);
    if (st == ROSE_OK) st = read_u64(&r, "the number of key-value pairs", &n_pairs);
    if (st == ROSE_OK) st = read_pairs(out, &r, n_pairs);
    if (st == ROSE_OK) st = read_alignment(out, err);
    if (st == ROSE_OK) st = read_tensors(out, &r, n_tensors);
    if (st != ROSE_OK) rose_gguf_close(out);
    return st;
}

rose_status rose_gguf_open(rose_gguf *out, const char *path, rose_err *err)
{
    rose_map map;
    *out = (rose_gguf){0};
    rose_status st = rose_file_map(&map, path, err);
    if (st != ROSE_OK) return st;
    st = rose_gguf_parse(out, map.data, map.size, path, err);
    if (st != ROSE_OK)
        rose_file_unmap(&map);
    else
        out->map = map;
    return st;
}

void rose_gguf_close(rose_gguf *g)
{
    free(g->pairs);
    free(g->tensors);
    rose_file_unmap(&g->map);
    *g = (rose_gguf){0};
}
