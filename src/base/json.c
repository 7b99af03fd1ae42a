/* base/json.c - JSON values; see json.h. A value is one block of memory, but for the tables of
 * arrays and objects. The members of an object are a table in order. From LINEAR members on,
 * an index of open addressing finds them; its hash has a random key, so that nobody can send an
 * object whose keys all meet in one place. */
#include "base/json_internal.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/siphash.h"
#include "base/utf8.h"

enum { LINEAR = 16, HAS_TEXT = 1, IS_BIG = 2 };

static const uint32_t FOREVER = UINT32_MAX; /* refs of the three constants */

typedef struct string {
    rose_json head;
    size_t len;
    char text[]; /* with a NUL after it */
} string;

typedef struct number {
    rose_json head;
    union {
        int64_t i;
        double d;
    } u;
    char text[]; /* if HAS_TEXT */
} number;

typedef struct array {
    rose_json head;
    size_t n, cap;
    rose_json **v;
} array;

typedef struct member {
    string *key;
    rose_json *value;
} member;

typedef struct object {
    rose_json head;
    uint32_t n, cap;
    member *v;
    uint32_t *index; /* 2 * cap places, of a member's number + 1, or 0; NULL up to LINEAR */
} object;

static const string *as_string(const rose_json *v)
{
    return rose_json_is_string(v) ? (const string *)v : NULL;
}

static array *as_array(const rose_json *v)
{
    return rose_json_is_array(v) ? (array *)(uintptr_t)v : NULL;
}

static object *as_object(const rose_json *v)
{
    return rose_json_is_object(v) ? (object *)(uintptr_t)v : NULL;
}

static void *new_value(size_t size, rose_json_kind kind)
{
    rose_json *v = malloc(size);
    if (v != NULL) *v = (rose_json){.refs = 1, .kind = (uint8_t)kind};
    return v;
}

/* ---- references ---- */

rose_json *rose_json_incref(const rose_json *v)
{
    rose_json *w = (rose_json *)(uintptr_t)v;
    if (w != NULL && w->refs != FOREVER) __atomic_fetch_add(&w->refs, 1, __ATOMIC_RELAXED);
    return w;
}

static void free_value(rose_json *v)
{
    array *a = as_array(v);
    object *o = as_object(v);
    for (size_t i = 0; a != NULL && i < a->n; i++)
        rose_json_decref(a->v[i]);
    for (size_t i = 0; o != NULL && i < o->n; i++) {
        rose_json_decref(&o->v[i].key->head);
        rose_json_decref(o->v[i].value);
    }
    if (a != NULL) free(a->v);
    if (o != NULL) {
        free(o->v);
        free(o->index);
    }
    free(v);
}

void rose_json_decref(rose_json *v)
{
    if (v == NULL || v->refs == FOREVER) return;
    /* A sole owner needs no locked instruction. */
    if (__atomic_load_n(&v->refs, __ATOMIC_ACQUIRE) == 1 ||
        __atomic_sub_fetch(&v->refs, 1, __ATOMIC_ACQ_REL) == 0)
        free_value(v);
}

/* ---- constants, strings and numbers ---- */

rose_json *rose_json_null(void)
{
    static rose_json v = {.refs = FOREVER, .kind = ROSE_JSON_NULL};
    return &v;
}

rose_json *rose_json_true(void)
{
    static rose_json v = {.refs = FOREVER, .kind = ROSE_JSON_TRUE};
    return &v;
}

rose_json *rose_json_false(void)
{
    static rose_json v = {.refs = FOREVER, .kind = ROSE_JSON_FALSE};
    return &v;
}

rose_json *rose_json_boolean(bool b)
{
    return b ? rose_json_true() : rose_json_false();
}

rose_json *rose_json_checked_string(const char *s, size_t len)
{
    string *v = len < SIZE_MAX / 2 ? new_value(sizeof *v + len + 1, ROSE_JSON_STRING) : NULL;
    if (v == NULL) return NULL;
    v->len = len;
    if (len > 0) memcpy(v->text, s, len);
    v->text[len] = '\0';
    return &v->head;
}

rose_json *rose_json_stringn(const char *s, size_t len)
{
    if (s == NULL || !rose_utf8_is_valid(s, len)) return NULL;
    return rose_json_checked_string(s, len);
}

rose_json *rose_json_string(const char *s)
{
    return s != NULL ? rose_json_stringn(s, strlen(s)) : NULL;
}

const char *rose_json_text(const rose_json *v)
{
    const string *s = as_string(v);
    return s != NULL ? s->text : NULL;
}

size_t rose_json_text_len(const rose_json *v)
{
    const string *s = as_string(v);
    return s != NULL ? s->len : 0;
}

rose_json *rose_json_integer(int64_t i)
{
    number *v = new_value(sizeof *v, ROSE_JSON_INTEGER);
    if (v == NULL) return NULL;
    v->u.i = i;
    return &v->head;
}

rose_json *rose_json_real(double d)
{
    number *v = isfinite(d) ? new_value(sizeof *v, ROSE_JSON_REAL) : NULL;
    if (v == NULL) return NULL;
    v->u.d = d;
    return &v->head;
}

/* Reads an integer; false if it does not fit. */
static bool fits(const char *text, size_t len, int64_t *out)
{
    const bool minus = text[0] == '-';
    int64_t v = 0;
    for (size_t i = minus; i < len; i++) {
        const int digit = minus ? '0' - text[i] : text[i] - '0';
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, digit, &v)) return false;
    }
    *out = v;
    return true;
}

rose_json *rose_json_checked_number(const char *text, size_t len, bool whole)
{
    int64_t i = 0;
    const bool integer = whole && fits(text, len, &i);
    if (integer && !(i == 0 && text[0] == '-')) return rose_json_integer(i);
    number *v = new_value(sizeof *v + len + 1, integer ? ROSE_JSON_INTEGER : ROSE_JSON_REAL);
    if (v == NULL) return NULL;
    memcpy(v->text, text, len);
    v->text[len] = '\0';
    v->head.flags = HAS_TEXT | (whole && !integer ? IS_BIG : 0);
    if (integer)
        v->u.i = i;
    else
        v->u.d = strtod_l(v->text, NULL, rose_json_c_locale());
    return &v->head;
}

bool rose_json_is_big(const rose_json *v)
{
    return rose_json_is_real(v) && (v->flags & IS_BIG) != 0;
}

int64_t rose_json_int(const rose_json *v)
{
    return rose_json_is_integer(v) ? ((const number *)v)->u.i : 0;
}

double rose_json_real_value(const rose_json *v)
{
    return rose_json_is_real(v) ? ((const number *)v)->u.d : 0;
}

double rose_json_number_value(const rose_json *v)
{
    return rose_json_is_integer(v) ? (double)rose_json_int(v) : rose_json_real_value(v);
}

const char *rose_json_own_text(const rose_json *v)
{
    return rose_json_is_number(v) && (v->flags & HAS_TEXT) ? ((const number *)v)->text : NULL;
}

/* ---- arrays ---- */

rose_json *rose_json_array(void)
{
    array *a = new_value(sizeof *a, ROSE_JSON_ARRAY);
    if (a == NULL) return NULL;
    a->n = a->cap = 0;
    a->v = NULL;
    return &a->head;
}

size_t rose_json_count(const rose_json *v)
{
    const array *a = as_array(v);
    return a != NULL ? a->n : 0;
}

rose_json *rose_json_at(const rose_json *v, size_t i)
{
    const array *a = as_array(v);
    return a != NULL && i < a->n ? a->v[i] : NULL;
}

static bool array_grow(array *a)
{
    const size_t cap = a->cap > 0 ? 2 * a->cap : 4;
    rose_json **v = realloc(a->v, cap * sizeof *v);
    if (v == NULL) return false;
    a->v = v;
    a->cap = cap;
    return true;
}

int rose_json_insert_new(rose_json *v, size_t at, rose_json *value)
{
    array *a = as_array(v);
    if (value == NULL || a == NULL || value == v || at > a->n ||
        (a->n == a->cap && !array_grow(a))) {
        rose_json_decref(value);
        return -1;
    }
    memmove(a->v + at + 1, a->v + at, (a->n - at) * sizeof *a->v);
    a->v[at] = value;
    a->n++;
    return 0;
}

int rose_json_append_new(rose_json *v, rose_json *value)
{
    return rose_json_insert_new(v, rose_json_count(v), value);
}

int rose_json_append(rose_json *v, rose_json *value)
{
    return rose_json_append_new(v, rose_json_incref(value));
}

int rose_json_replace_new(rose_json *v, size_t at, rose_json *value)
{
    array *a = as_array(v);
    const bool ok = value != NULL && a != NULL && value != v && at < a->n;
    rose_json *gone = ok ? a->v[at] : value;
    if (ok) a->v[at] = value;
    rose_json_decref(gone);
    return ok ? 0 : -1;
}

int rose_json_remove(rose_json *v, size_t at)
{
    array *a = as_array(v);
    if (a == NULL || at >= a->n) return -1;
    rose_json *gone = a->v[at];
    a->n--;
    memmove(a->v + at, a->v + at + 1, (a->n - at) * sizeof *a->v);
    rose_json_decref(gone);
    return 0;
}

int rose_json_extend(rose_json *v, const rose_json *more)
{
    const size_t n = rose_json_count(more); /* before: it may be the same array */
    if (!rose_json_is_array(v) || !rose_json_is_array(more)) return -1;
    for (size_t i = 0; i < n; i++)
        if (rose_json_append(v, rose_json_at(more, i)) != 0) return -1;
    return 0;
}

/* ---- objects ---- */

static uint64_t g_key[2];

static void draw_key(void)
{
    if (getrandom(g_key, sizeof g_key, GRND_NONBLOCK) != (ssize_t)sizeof g_key)
        g_key[0] = rose_now_ns(); /* early in a system's start there is nothing better */
}

static uint64_t hash(const char *key, size_t len)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, draw_key);
    return rose_siphash_bytes(g_key, key, len);
}

rose_json *rose_json_object(void)
{
    object *o = new_value(sizeof *o, ROSE_JSON_OBJECT);
    if (o == NULL) return NULL;
    o->n = o->cap = 0;
    o->v = NULL;
    o->index = NULL;
    return &o->head;
}

size_t rose_json_size(const rose_json *v)
{
    const object *o = as_object(v);
    return o != NULL ? o->n : 0;
}

static bool has_key(const member *m, const char *key, size_t len)
{
    return m->key->len == len && memcmp(m->key->text, key, len) == 0;
}

static member *find(const object *o, const char *key, size_t len)
{
    if (o->index == NULL) {
        for (uint32_t i = 0; i < o->n; i++)
            if (has_key(&o->v[i], key, len)) return &o->v[i];
        return NULL;
    }
    const uint32_t mask = 2 * o->cap - 1;
    for (uint32_t at = (uint32_t)hash(key, len) & mask; o->index[at] != 0; at = (at + 1) & mask) {
        member *m = &o->v[o->index[at] - 1];
        if (has_key(m, key, len)) return m;
    }
    return NULL;
}

static void enter(object *o, uint32_t i)
{
    const uint32_t mask = 2 * o->cap - 1;
    const string *key = o->v[i].key;
    uint32_t at = (uint32_t)hash(key->text, key->len) & mask;
    while (o->index[at] != 0)
        at = (at + 1) & mask;
    o->index[at] = i + 1;
}

static void enter_all(object *o)
{
    memset(o->index, 0, 2 * (size_t)o->cap * sizeof *o->index);
    for (uint32_t i = 0; i < o->n; i++)
        enter(o, i);
}

/* Doubles the table and, if it is large, its index. */
static bool object_grow(object *o)
{
    if (o->cap > UINT32_MAX / 4) return false;
    const uint32_t cap = o->cap > 0 ? 2 * o->cap : 4;
    member *v = realloc(o->v, cap * sizeof *v);
    if (v == NULL) return false;
    o->v = v;
    if (cap > LINEAR) {
        uint32_t *index = malloc(2 * (size_t)cap * sizeof *index);
        if (index == NULL) return false;
        free(o->index);
        o->index = index;
    }
    o->cap = cap;
    if (o->index != NULL) enter_all(o);
    return true;
}

rose_json *rose_json_getn(const rose_json *v, const char *key, size_t len)
{
    const object *o = as_object(v);
    const member *m = o != NULL && key != NULL ? find(o, key, len) : NULL;
    return m != NULL ? m->value : NULL;
}

rose_json *rose_json_get(const rose_json *v, const char *key)
{
    return key != NULL ? rose_json_getn(v, key, strlen(key)) : NULL;
}

const char *rose_json_key_at(const rose_json *v, size_t i, size_t *len)
{
    const object *o = as_object(v);
    if (o == NULL || i >= o->n) return NULL;
    if (len != NULL) *len = o->v[i].key->len;
    return o->v[i].key->text;
}

rose_json *rose_json_member_at(const rose_json *v, size_t i)
{
    const object *o = as_object(v);
    return o != NULL && i < o->n ? o->v[i].value : NULL;
}

int rose_json_put(rose_json *v, rose_json *key, rose_json *value)
{
    object *o = as_object(v);
    string *k = (string *)(uintptr_t)as_string(key);
    if (o == NULL || k == NULL || value == NULL || value == v) goto fail;
    member *m = find(o, k->text, k->len);
    if (m != NULL) {
        rose_json *old = m->value;
        m->value = value;
        rose_json_decref(key);
        rose_json_decref(old);
        return 0;
    }
    if (o->n == o->cap && !object_grow(o)) goto fail;
    o->v[o->n++] = (member){k, value};
    if (o->index != NULL) enter(o, o->n - 1);
    return 0;
fail:
    rose_json_decref(key);
    rose_json_decref(value);
    return -1;
}

int rose_json_setn_new(rose_json *v, const char *key, size_t len, rose_json *value)
{
    return rose_json_put(v, rose_json_stringn(key, len), value);
}

int rose_json_set_new(rose_json *v, const char *key, rose_json *value)
{
    return rose_json_put(v, rose_json_string(key), value);
}

int rose_json_set(rose_json *v, const char *key, rose_json *value)
{
    return rose_json_set_new(v, key, rose_json_incref(value));
}

int rose_json_del(rose_json *v, const char *key)
{
    object *o = as_object(v);
    member *m = o != NULL && key != NULL ? find(o, key, strlen(key)) : NULL;
    if (m == NULL) return -1;
    const member gone = *m;
    o->n--;
    memmove(m, m + 1, (size_t)(o->v + o->n - m) * sizeof *m);
    if (o->index != NULL) enter_all(o);
    rose_json_decref(&gone.key->head);
    rose_json_decref(gone.value);
    return 0;
}

static int update(rose_json *to, const rose_json *from, bool replace)
{
    const object *o = as_object(from);
    if (o == NULL || !rose_json_is_object(to)) return -1;
    for (uint32_t i = 0; i < o->n; i++) {
        string *key = o->v[i].key;
        if (!replace && rose_json_getn(to, key->text, key->len) != NULL) continue;
        if (rose_json_put(to, rose_json_incref(&key->head), rose_json_incref(o->v[i].value)) != 0)
            return -1;
    }
    return 0;
}

int rose_json_update(rose_json *to, const rose_json *from)
{
    return update(to, from, true);
}

int rose_json_update_missing(rose_json *to, const rose_json *from)
{
    return update(to, from, false);
}

/* ---- whole values ---- */

rose_json *rose_json_copy(const rose_json *v)
{
    const array *a = as_array(v);
    const object *o = as_object(v);
    if (a == NULL && o == NULL) return rose_json_incref(v); /* nothing changes these */
    rose_json *out = a != NULL ? rose_json_array() : rose_json_object();
    const size_t n = a != NULL ? a->n : o->n;
    int bad = out == NULL;
    for (size_t i = 0; i < n && !bad; i++) {
        rose_json *one = rose_json_incref(a != NULL ? a->v[i] : o->v[i].value);
        bad = a != NULL ? rose_json_append_new(out, one)
                        : rose_json_put(out, rose_json_incref(&o->v[i].key->head), one);
    }
    if (!bad) return out;
    rose_json_decref(out);
    return NULL;
}

static bool equal_arrays(const array *a, const array *b)
{
    bool same = a->n == b->n;
    for (size_t i = 0; i < a->n && same; i++)
        same = rose_json_equal(a->v[i], b->v[i]);
    return same;
}

static bool equal_objects(const object *a, const object *b)
{
    bool same = a->n == b->n;
    for (size_t i = 0; i < a->n && same; i++) {
        const member *m = find(b, a->v[i].key->text, a->v[i].key->len);
        same = m != NULL && rose_json_equal(a->v[i].value, m->value);
    }
    return same;
}

static bool equal_reals(const rose_json *a, const rose_json *b)
{
    if (!rose_json_is_big(a) && !rose_json_is_big(b))
        return rose_json_real_value(a) == rose_json_real_value(b);
    return rose_json_is_big(a) && rose_json_is_big(b) &&
           strcmp(rose_json_own_text(a), rose_json_own_text(b)) == 0;
}

bool rose_json_equal(const rose_json *a, const rose_json *b)
{
    if (a == NULL || b == NULL || a->kind != b->kind) return false;
    if (a == b) return true;
    switch (rose_json_kind_of(a)) {
    case ROSE_JSON_OBJECT:
        return equal_objects(as_object(a), as_object(b));
    case ROSE_JSON_ARRAY:
        return equal_arrays(as_array(a), as_array(b));
    case ROSE_JSON_STRING:
        return rose_json_text_len(a) == rose_json_text_len(b) &&
               memcmp(rose_json_text(a), rose_json_text(b), rose_json_text_len(a)) == 0;
    case ROSE_JSON_INTEGER:
        return rose_json_int(a) == rose_json_int(b);
    case ROSE_JSON_REAL:
        return equal_reals(a, b);
    case ROSE_JSON_TRUE:
    case ROSE_JSON_FALSE:
    case ROSE_JSON_NULL:
    default:
        return true;
    }
}
