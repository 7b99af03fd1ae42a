/* base/gguf_get.c - see gguf.h: the formats of tensors, and the values of a file that was already
 * checked. Values have any alignment, so memcpy reads them. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/gguf_internal.h"

/* Every format that ggml names, so that any file can be listed. */
static const rose_gguf_format formats[] = {
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 40},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36},
};

static const struct type_row {
    const char *name;
    size_t bytes;
} types[] = {
    [ROSE_GGUF_U8] = {"u8", 1},         [ROSE_GGUF_I8] = {"i8", 1},
    [ROSE_GGUF_U16] = {"u16", 2},       [ROSE_GGUF_I16] = {"i16", 2},
    [ROSE_GGUF_U32] = {"u32", 4},       [ROSE_GGUF_I32] = {"i32", 4},
    [ROSE_GGUF_F32] = {"f32", 4},       [ROSE_GGUF_BOOL] = {"bool", 1},
    [ROSE_GGUF_STRING] = {"string", 0}, [ROSE_GGUF_ARRAY] = {"array", 0},
    [ROSE_GGUF_U64] = {"u64", 8},       [ROSE_GGUF_I64] = {"i64", 8},
    [ROSE_GGUF_F64] = {"f64", 8},
};

const rose_gguf_format *rose_gguf_format_find(uint32_t id)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (formats[i].id == id) return &formats[i];
    return NULL;
}

size_t rose_gguf_type_bytes(rose_gguf_type t)
{
    return types[t].bytes;
}

int rose_gguf_compare(rose_gguf_str a, rose_gguf_str b)
{
    const size_t n = a.n < b.n ? a.n : b.n;
    const int c = memcmp(a.s, b.s, n);
    return c != 0 ? c : (a.n > b.n) - (a.n < b.n);
}

const rose_gguf_value *rose_gguf_get(const rose_gguf *g, const char *key)
{
    const rose_gguf_str want = {key, strlen(key)};
    size_t lo = 0, hi = g->n_pairs;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        const int c = rose_gguf_compare(g->pairs[mid].key, want);
        if (c == 0) return &g->pairs[mid].value;
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

static rose_status wrong_type(const rose_gguf *g, const char *key, const rose_gguf_value *v,
                              const char *expected, rose_err *err)
{
    return rose_fail(err, ROSE_E_FORMAT, "%s: '%s' has type %s%s; expected %s", g->label, key,
                     v->is_array ? "array of " : "", types[v->type].name, expected);
}

/* An integer value as 64 bits; false for other types. *negative: the value is below 0. */
static bool read_integer(const rose_gguf_value *v, uint64_t *out, bool *negative)
{
    const bool is_signed = v->type == ROSE_GGUF_I8 || v->type == ROSE_GGUF_I16 ||
                           v->type == ROSE_GGUF_I32 || v->type == ROSE_GGUF_I64;
    const bool is_unsigned = v->type == ROSE_GGUF_U8 || v->type == ROSE_GGUF_U16 ||
                             v->type == ROSE_GGUF_U32 || v->type == ROSE_GGUF_U64;
    if (v->is_array || (!is_signed && !is_unsigned)) return false;
    *out = 0;
    memcpy(out, v->data, types[v->type].bytes); /* little-endian, as the file is */
    *negative = is_signed && (v->data[types[v->type].bytes - 1] & 0x80u) != 0;
    return true;
}

rose_status rose_gguf_get_u32(const rose_gguf *g, const char *key, uint32_t *out, rose_err *err)
{
    const rose_gguf_value *v = rose_gguf_get(g, key);
    uint64_t n = 0;
    bool negative = false;
    if (v == NULL) return ROSE_OK;
    if (!read_integer(v, &n, &negative)) return wrong_type(g, key, v, "an integer", err);
    if (negative || n > UINT32_MAX)
        return rose_fail(err, ROSE_E_FORMAT, "%s: '%s' is not within 0 and 2^32 - 1", g->label,
                         key);
    *out = (uint32_t)n;
    return ROSE_OK;
}

rose_status rose_gguf_get_f32(const rose_gguf *g, const char *key, float *out, rose_err *err)
{
    const rose_gguf_value *v = rose_gguf_get(g, key);
    float f = 0;
    if (v == NULL) return ROSE_OK;
    if (v->is_array || (v->type != ROSE_GGUF_F32 && v->type != ROSE_GGUF_F64))
        return wrong_type(g, key, v, "a float", err);
    if (v->type == ROSE_GGUF_F64) {
        double d = 0;
        memcpy(&d, v->data, sizeof d);
        f = (float)d;
    } else {
        memcpy(&f, v->data, sizeof f);
    }
    if (!isfinite(f))
        return rose_fail(err, ROSE_E_FORMAT, "%s: '%s' is not a finite number", g->label, key);
    *out = f;
    return ROSE_OK;
}

rose_status rose_gguf_get_bool(const rose_gguf *g, const char *key, bool *out, rose_err *err)
{
    const rose_gguf_value *v = rose_gguf_get(g, key);
    if (v == NULL) return ROSE_OK;
    if (v->is_array || v->type != ROSE_GGUF_BOOL) return wrong_type(g, key, v, "a boolean", err);
    *out = v->data[0] != 0;
    return ROSE_OK;
}

/* The string whose length is at p. */
static rose_gguf_str string_at(const uint8_t *p)
{
    uint64_t n = 0;
    memcpy(&n, p, sizeof n);
    return (rose_gguf_str){(const char *)p + sizeof n, (size_t)n};
}

rose_status rose_gguf_get_string(const rose_gguf *g, const char *key, rose_gguf_str *out,
                                 rose_err *err)
{
    const rose_gguf_value *v = rose_gguf_get(g, key);
    if (v == NULL) return ROSE_OK;
    if (v->is_array || v->type != ROSE_GGUF_STRING) return wrong_type(g, key, v, "a string", err);
    *out = string_at(v->data);
    return ROSE_OK;
}

rose_status rose_gguf_get_array(const rose_gguf *g, const char *key, rose_gguf_type type,
                                const rose_gguf_value **out, rose_err *err)
{
    const rose_gguf_value *v = rose_gguf_get(g, key);
    char expected[32];
    *out = NULL;
    if (v == NULL) return ROSE_OK;
    const bool both_words = (type == ROSE_GGUF_U32 && v->type == ROSE_GGUF_I32) ||
                            (type == ROSE_GGUF_I32 && v->type == ROSE_GGUF_U32);
    if (!v->is_array || (v->type != type && !both_words)) {
        snprintf(expected, sizeof expected, "array of %s", types[type].name);
        return wrong_type(g, key, v, expected, err);
    }
    *out = v;
    return ROSE_OK;
}

uint32_t rose_gguf_u32_at(const rose_gguf_value *v, uint64_t i)
{
    uint32_t n = 0;
    assert((v->type == ROSE_GGUF_U32 || v->type == ROSE_GGUF_I32) && i < v->n);
    memcpy(&n, v->data + i * sizeof n, sizeof n);
    return n;
}

float rose_gguf_f32_at(const rose_gguf_value *v, uint64_t i)
{
    float f = 0;
    assert(v->type == ROSE_GGUF_F32 && i < v->n);
    memcpy(&f, v->data + i * sizeof f, sizeof f);
    return f;
}

bool rose_gguf_bool_at(const rose_gguf_value *v, uint64_t i)
{
    assert(v->type == ROSE_GGUF_BOOL && i < v->n);
    return v->data[i] != 0;
}

bool rose_gguf_next_string(const rose_gguf_value *v, size_t *at, rose_gguf_str *out)
{
    assert(v->type == ROSE_GGUF_STRING);
    if (*at >= v->n_bytes) return false;
    *out = string_at(v->data + *at);
    *at += sizeof(uint64_t) + out->n;
    return true;
}

static bool read_digits(const char *s, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < 5; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        *out = *out * 10 + (uint32_t)(s[i] - '0');
    }
    return true;
}

rose_gguf_split rose_gguf_read_split(const char *path)
{
    static const char tail[] = "-00001-of-00003.gguf";
    const size_t n = strlen(path), k = sizeof tail - 1;
    rose_gguf_split s = {0};
    if (n <= k) return s;
    const char *at = path + n - k;
    if (at[0] == '-' && read_digits(at + 1, &s.no) && memcmp(at + 6, "-of-", 4) == 0 &&
        read_digits(at + 10, &s.count) && strcmp(at + 15, ".gguf") == 0 && s.no >= 1 &&
        s.no <= s.count)
        s.prefix = n - k;
    else
        s.count = 0;
    return s;
}
