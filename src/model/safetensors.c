/* model/safetensors.c - see safetensors.h. The header is hostile input: the type and range of
 * every number in it are checked before it is used, and no size is multiplied without a check. */
#include "model/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "model/config.h"

/* Every dtype that the format names, so that any file can be listed. Sizes are in bits, because
 * the small floats pack several elements into a byte. */
static const struct dtype_row {
    const char *name;
    uint32_t bits;
} dtypes[] = {
    {"F32", 32},        {"F16", 16},        {"BF16", 16},   {"BOOL", 8},    {"U8", 8},
    {"I8", 8},          {"I16", 16},        {"U16", 16},    {"I32", 32},    {"U32", 32},
    {"I64", 64},        {"U64", 64},        {"F64", 64},    {"C64", 64},    {"F8_E4M3", 8},
    {"F8_E5M2", 8},     {"F8_E8M0", 8},     {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
};

/* State of the checks of one tensor's entry in the header, with the names for messages. */
typedef struct reader {
    const char *label;
    uint64_t data_bytes; /* size of the data after the header */
    rose_err *err;
} reader;

static const struct dtype_row *find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i].name, name) == 0) return &dtypes[i];
    return NULL;
}

/* A JSON integer >= 0 -> *out. */
static bool get_u64(const rose_json *v, uint64_t *out)
{
    if (!rose_json_is_integer(v) || rose_json_int(v) < 0) return false;
    *out = (uint64_t)rose_json_int(v);
    return true;
}

static rose_status read_shape(reader *r, rose_st_tensor *t, const rose_json *shape)
{
    if (!rose_json_is_array(shape))
        return rose_fail(r->err, ROSE_E_FORMAT, "%s: tensor '%.100s': 'shape' is not a list",
                         r->label, t->name);
    if (rose_json_count(shape) > ROSE_ST_MAX_DIMS)
        return rose_fail(r->err, ROSE_E_UNSUPPORTED,
                         "%s: tensor '%.100s' has %zu dimensions; at most %d are supported",
                         r->label, t->name, rose_json_count(shape), ROSE_ST_MAX_DIMS);
    t->n_dims = (uint32_t)rose_json_count(shape);
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (!get_u64(rose_json_at(shape, i), &t->shape[i]))
            return rose_fail(r->err, ROSE_E_FORMAT,
                             "%s: tensor '%.100s': dimension %u of 'shape' is not an integer >= 0",
                             r->label, t->name, i);
    return ROSE_OK;
}

/* Computes the bytes that dtype and shape require. A zero dimension makes the tensor empty
 * whatever the others are. The others must still multiply within 64 bits, as in the reference
 * implementation. */
static rose_status needed_bytes(reader *r, const rose_st_tensor *t, uint32_t bits, uint64_t *out)
{
    uint64_t n = bits;
    bool overflow = false;
    for (uint32_t i = 0; i < t->n_dims; i++)
        overflow |= __builtin_mul_overflow(n, t->shape[i], &n);
    if (overflow)
        return rose_fail(r->err, ROSE_E_FORMAT,
                         "%s: tensor '%.100s': the product of 'shape' overflows 64 bits", r->label,
                         t->name);
    if (n % 8 != 0)
        return rose_fail(r->err, ROSE_E_FORMAT,
                         "%s: tensor '%.100s': dtype %s and shape end within a byte (%" PRIu64
                         " bits)",
                         r->label, t->name, t->dtype_name, n);
    *out = n / 8;
    return ROSE_OK;
}

static rose_status read_offsets(reader *r, rose_st_tensor *t, const rose_json *offsets)
{
    if (!rose_json_is_array(offsets) || rose_json_count(offsets) != 2 ||
        !get_u64(rose_json_at(offsets, 0), &t->begin) ||
        !get_u64(rose_json_at(offsets, 1), &t->end))
        return rose_fail(r->err, ROSE_E_FORMAT,
                         "%s: tensor '%.100s': 'data_offsets' is not a list of two integers >= 0",
                         r->label, t->name);
    if (t->begin > t->end)
        return rose_fail(r->err, ROSE_E_FORMAT,
                         "%s: tensor '%.100s': 'data_offsets' are reversed (%" PRIu64 " > %" PRIu64
                         ")",
                         r->label, t->name, t->begin, t->end);
    if (t->end > r->data_bytes)
        return rose_fail(r->err, ROSE_E_FORMAT,
                         "%s: tensor '%.100s' ends at byte %" PRIu64
                         " of the data, but the file holds only %" PRIu64
                         ": truncated, or a false header",
                         r->label, t->name, t->end, r->data_bytes);
    return ROSE_OK;
}

static rose_status read_tensor(reader *r, rose_st_tensor *t, const char *name, const rose_json *v)
{
    *t = (rose_st_tensor){.name = name};
    if (!rose_json_is_object(v))
        return rose_fail(r->err, ROSE_E_FORMAT, "%s: the entry of tensor '%.100s' is not an object",
                         r->label, name);
    const char *dtype = rose_json_text(rose_json_get(v, "dtype"));
    if (dtype == NULL)
        return rose_fail(r->err, ROSE_E_FORMAT, "%s: tensor '%.100s': 'dtype' is not a string",
                         r->label, name);
    const struct dtype_row *row = find_dtype(dtype);
    if (row == NULL)
        return rose_fail(r->err, ROSE_E_FORMAT, "%s: tensor '%.100s': unknown dtype '%.40s'",
                         r->label, name, dtype);
    t->dtype_name = row->name;
    t->usable = rose_format_named(row->name, &t->dtype);

    uint64_t bytes = 0;
    rose_status st = read_shape(r, t, rose_json_get(v, "shape"));
    if (st == ROSE_OK) st = needed_bytes(r, t, row->bits, &bytes);
    if (st == ROSE_OK) st = read_offsets(r, t, rose_json_get(v, "data_offsets"));
    if (st == ROSE_OK && bytes != t->end - t->begin)
        st = rose_fail(r->err, ROSE_E_FORMAT,
                       "%s: tensor '%.100s': 'data_offsets' span %" PRIu64
                       " bytes, but dtype %s and shape need %" PRIu64,
                       r->label, name, t->end - t->begin, t->dtype_name, bytes);
    return st;
}

static int by_offset(const void *pa, const void *pb)
{
    const rose_st_tensor *a = pa, *b = pb;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    if (a->end != b->end) return a->end < b->end ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Finds a tensor that overlaps the next ones. This runs before the check for gaps, because a
 * tensor moved over another one leaves a gap in its old place. */
static rose_status check_overlaps(reader *r, const rose_st_tensor *t, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (t[i].begin < t[i - 1].end)
            return rose_fail(r->err, ROSE_E_FORMAT,
                             "%s: tensors '%.100s' and '%.100s' overlap (the second begins at byte "
                             "%" PRIu64 ", the first ends at %" PRIu64 ")",
                             r->label, t[i - 1].name, t[i].name, t[i].begin, t[i - 1].end);
    return ROSE_OK;
}

/* Sorted by offset, each tensor must begin where the previous one ends, and the last must end
 * the file. */
static rose_status check_tiling(reader *r, const rose_st_tensor *t, size_t n)
{
    static const char cause[] = "is a tensor missing from the header, or was the file changed?";
    uint64_t at = 0;
    rose_status st = check_overlaps(r, t, n);
    if (st != ROSE_OK) return st;
    for (size_t i = 0; i < n; at = t[i].end, i++)
        if (t[i].begin != at)
            return rose_fail(r->err, ROSE_E_FORMAT,
                             "%s: a gap of %" PRIu64 " bytes before tensor '%.100s' belongs to no "
                             "tensor: %s",
                             r->label, t[i].begin - at, t[i].name, cause);
    if (at != r->data_bytes)
        return rose_fail(r->err, ROSE_E_FORMAT,
                         "%s: oversized: %" PRIu64
                         " bytes after the last tensor, '%.100s', belong to "
                         "no tensor: %s",
                         r->label, r->data_bytes - at, n > 0 ? t[n - 1].name : "", cause);
    return ROSE_OK;
}

/* The metadata has no meaning for us, but it must have the right form: strings by name. */
static rose_status check_metadata(reader *r, rose_json *meta)
{
    const char *key;
    rose_json *v;
    if (!rose_json_is_object(meta))
        return rose_fail(r->err, ROSE_E_FORMAT, "%s: '__metadata__' is not an object", r->label);
    rose_json_each (meta, key, v) {
        if (!rose_json_is_string(v))
            return rose_fail(r->err, ROSE_E_FORMAT, "%s: '__metadata__': '%.60s' is not a string",
                             r->label, key);
    }
    return ROSE_OK;
}

/* Finds the JSON: checks the length word and sets *json and *json_bytes. */
static rose_status find_header(const uint8_t *bytes, size_t n, const char *label, const char **json,
                               size_t *json_bytes, rose_err *err)
{
    if (n < 8)
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: %zu bytes: too short for the 8-byte header length: truncated, or not "
                         "a safetensors file",
                         label, n);
    uint64_t len = 0;
    for (int i = 7; i >= 0; i--)
        len = len << 8 | bytes[i];
    if (len > ROSE_ST_MAX_HEADER_BYTES)
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: header length %" PRIu64 " is over the format's limit of %u bytes: "
                         "not a safetensors file",
                         label, len, ROSE_ST_MAX_HEADER_BYTES);
    if (len > n - 8)
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: header length %" PRIu64 ", but only %zu bytes follow: truncated, or "
                         "a false length",
                         label, len, n - 8);
    if (len < 2 || bytes[8] != '{')
        return rose_fail(err, ROSE_E_FORMAT,
                         "%s: the header (%" PRIu64 " bytes) does not begin with '{': not a "
                         "safetensors file",
                         label, len);
    *json = (const char *)bytes + 8;
    *json_bytes = (size_t)len;
    return ROSE_OK;
}

/* Fills f->tensors from f->header. */
static rose_status read_tensors(rose_st_file *f, const uint8_t *data, reader *r)
{
    const char *name;
    rose_json *v;
    f->tensors = calloc(rose_json_size(f->header) + 1, sizeof *f->tensors);
    if (f->tensors == NULL) return rose_fail(r->err, ROSE_E_NOMEM, "%s: out of memory", r->label);
    rose_json_each (f->header, name, v) {
        bool meta = strcmp(name, "__metadata__") == 0;
        rose_status st =
            meta ? check_metadata(r, v) : read_tensor(r, &f->tensors[f->n_tensors], name, v);
        if (st != ROSE_OK) return st;
        if (!meta) f->n_tensors++;
    }
    for (size_t i = 0; i < f->n_tensors; i++)
        f->tensors[i].data = data + f->tensors[i].begin;
    qsort(f->tensors, f->n_tensors, sizeof *f->tensors, by_offset);
    return check_tiling(r, f->tensors, f->n_tensors);
}

rose_status rose_st_parse(rose_st_file *out, const uint8_t *bytes, size_t n, const char *label,
                          rose_err *err)
{
    const char *json = NULL;
    size_t json_bytes = 0;
    rose_json_error je;
    *out = (rose_st_file){.size = n};
    rose_path_label(out->label, label);

    rose_status st = find_header(bytes, n, out->label, &json, &json_bytes, err);
    if (st != ROSE_OK) goto done;
    st = rose_json_parse(&out->header, json, json_bytes, 0, &je);
    if (st == ROSE_E_NOMEM) st = rose_fail(err, st, "%s: out of memory", out->label);
    if (st == ROSE_E_FORMAT)
        st = rose_fail(err, st, "%s: header is not valid JSON: %.120s (byte %d)", out->label,
                       je.text, je.position);
    if (st != ROSE_OK) goto done;
    reader r = {out->label, n - 8 - json_bytes, err};
    st = read_tensors(out, bytes + 8 + json_bytes, &r);
done:
    if (st != ROSE_OK) rose_st_close(out);
    return st;
}

rose_status rose_st_open(rose_st_file *out, const char *path, rose_err *err)
{
    rose_map map;
    *out = (rose_st_file){0};
    rose_status st = rose_file_map(&map, path, err);
    if (st != ROSE_OK) return st;
    st = rose_st_parse(out, map.data, map.size, path, err);
    if (st != ROSE_OK)
        rose_file_unmap(&map);
    else
        out->map = map;
    return st;
}

void rose_st_close(rose_st_file *f)
{
    free(f->tensors);
    rose_json_decref(f->header);
    rose_file_unmap(&f->map);
    *f = (rose_st_file){0};
}
