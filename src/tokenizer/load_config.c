/* tokenizer/load_config.c - tokens that the small files beside a tokenizer name, in the order in
 * which transformers adds them:
 * 1. tokenizer_config.json "added_tokens_decoder" (id -> token with flags), by id; or, if that
 *    is missing, added_tokens.json (text -> id), by id;
 * 2. the named special tokens: bos, eos, unk, ..., then other members that end in _token;
 * 3. the list of further special tokens.
 * Without an added_tokens_decoder, special_tokens_map.json takes precedence for 2, and has the list
 * where tokenizer_config.json has none. A token
 * that is known already keeps its id; flags of an added_tokens_decoder replace its own. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tokenizer/tokenizer_internal.h"

static rose_status read_small(rose_json **out, const rose_token_files *f, bool lenient,
                              const char *name)
{
    rose_err why = {{0}};
    const rose_status st = rose_load_optional_json(out, f->dir, name, &why);
    if (st == ROSE_OK) return st;
    if (st != ROSE_E_FORMAT || !lenient) return rose_fail(f->err, st, "%s", why.msg);
    rose_log(ROSE_LOG_WARN, "tokenizer", "%s: the file is ignored", why.msg);
    return ROSE_OK;
}

rose_status rose_token_files_open(rose_token_files *f, const char *dir, bool lenient, rose_err *err)
{
    *f = (rose_token_files){.dir = dir, .err = err};
    rose_status st = read_small(&f->config, f, lenient, "tokenizer_config.json");
    if (st == ROSE_OK) st = read_small(&f->special_map, f, lenient, "special_tokens_map.json");
    if (st == ROSE_OK) st = read_small(&f->added, f, lenient, "added_tokens.json");
    f->decoder = rose_json_get(f->config, "added_tokens_decoder");
    if (rose_json_size(f->decoder) == 0) f->decoder = NULL;
    return st;
}

void rose_token_files_close(rose_token_files *f)
{
    rose_json_decref(f->config);
    rose_json_decref(f->special_map);
    rose_json_decref(f->added);
    free(f->specs);
    free(f->sorted);
}

/* ---- the list ---- */

static int by_text(const void *x, const void *y)
{
    const rose_added_spec *a = *(rose_added_spec *const *)x, *b = *(rose_added_spec *const *)y;
    const int c = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);
    if (c != 0) return c;
    return a->len < b->len ? -1 : a->len > b->len;
}

rose_status rose_token_files_begin(rose_token_files *f, size_t n)
{
    f->n_known = f->n_specs = f->cap_specs = n;
    f->specs = calloc(n + 1, sizeof *f->specs);
    f->sorted = calloc(n + 1, sizeof *f->sorted);
    if (f->specs != NULL && f->sorted != NULL) return ROSE_OK;
    return rose_fail(f->err, ROSE_E_NOMEM, "%s: out of memory", f->dir);
}

/* Fills `sorted`, after which `specs` must not move. */
static rose_status sort_known(rose_token_files *f)
{
    const size_t room = f->n_known + ROSE_MAX_ADDED;
    rose_added_spec *p = realloc(f->specs, room * sizeof *p);
    if (p == NULL) return rose_fail(f->err, ROSE_E_NOMEM, "%s: out of memory", f->dir);
    f->specs = p;
    f->cap_specs = room;
    for (size_t i = 0; i < f->n_known; i++)
        f->sorted[i] = &f->specs[i];
    if (f->n_known > 1) qsort(f->sorted, f->n_known, sizeof *f->sorted, by_text);
    return ROSE_OK;
}

static rose_added_spec *find(rose_token_files *f, const rose_added_spec *s)
{
    rose_added_spec **known = NULL;
    if (f->n_known > 0) known = bsearch(&s, f->sorted, f->n_known, sizeof *f->sorted, by_text);
    if (known != NULL) return *known;
    for (size_t i = f->n_known; i < f->n_specs; i++)
        if (f->specs[i].len == s->len && memcmp(f->specs[i].text, s->text, s->len) == 0)
            return &f->specs[i];
    return NULL;
}

/* flags: those of s replace the flags of a known token. */
static rose_status add_spec(rose_token_files *f, const rose_added_spec *s, bool flags)
{
    rose_added_spec *old = find(f, s);
    if (old != NULL) {
        const rose_added_spec before = *old;
        if (flags) *old = *s;
        old->id = before.id;
        old->has_id = before.has_id;
        old->by_place = before.by_place;
        if (old >= f->specs + f->n_known && !before.special && s->special && !flags) {
            old->special = true; /* added_tokens.json does not say so */
            old->normalized = s->normalized;
        }
        return ROSE_OK;
    }
    if (f->n_specs == f->cap_specs)
        return rose_fail(f->err, ROSE_E_UNSUPPORTED, "%s: over %u added tokens", f->dir,
                         ROSE_MAX_ADDED);
    f->specs[f->n_specs++] = *s;
    return ROSE_OK;
}

/* A malformed entry is only a warning: the vocabulary is in another file. */
static rose_status malformed(const rose_token_files *f, const char *what)
{
    rose_log(ROSE_LOG_WARN, "tokenizer", "%s: %s: ignored", f->dir, what);
    return ROSE_OK;
}

/* Adds a token, given as text or as an object with content and flags, as a special token. */
static rose_status add_special(rose_token_files *f, const rose_json *v)
{
    const rose_json *text = rose_json_is_object(v) ? rose_json_get(v, "content") : v;
    if (v == NULL || rose_json_is_null(v)) return ROSE_OK;
    if (!rose_json_is_string(text))
        return malformed(f, "a special token of tokenizer_config.json is not a string");
    rose_added_spec s = {.text = rose_json_text(text),
                         .len = rose_json_text_len(text),
                         .special = true,
                         .lstrip = rose_json_is_true(rose_json_get(v, "lstrip")),
                         .rstrip = rose_json_is_true(rose_json_get(v, "rstrip")),
                         .single_word = rose_json_is_true(rose_json_get(v, "single_word")),
                         .normalized = rose_json_is_true(rose_json_get(v, "normalized"))};
    return add_spec(f, &s, false);
}

static int by_id(const void *x, const void *y)
{
    const rose_added_spec *a = x, *b = y;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Parses a decimal id; false if it is not a number or out of range. */
static bool parse_id(const char *text, uint32_t *id)
{
    uint32_t v = 0;
    if (*text == '\0') return false;
    for (; *text != '\0'; text++) {
        if (*text < '0' || *text > '9' || v >= ROSE_MAX_ID) return false;
        v = v * 10 + (uint32_t)(*text - '0');
    }
    *id = v;
    return v < ROSE_MAX_ID;
}

static rose_status add_decoder_entries(rose_token_files *f, const rose_json *table)
{
    const char *key;
    rose_json *v;
    rose_status st = ROSE_OK;
    rose_json_each (table, key, v) {
        const rose_json *text = rose_json_get(v, "content");
        const rose_json *norm = rose_json_get(v, "normalized");
        rose_added_spec s = {.text = rose_json_text(text),
                             .len = rose_json_text_len(text),
                             .special = rose_json_is_true(rose_json_get(v, "special")),
                             .lstrip = rose_json_is_true(rose_json_get(v, "lstrip")),
                             .rstrip = rose_json_is_true(rose_json_get(v, "rstrip")),
                             .single_word = rose_json_is_true(rose_json_get(v, "single_word")),
                             .has_id = true,
                             .by_place = true};
        s.normalized = norm != NULL ? rose_json_is_true(norm) : !s.special;
        const bool sound = s.text != NULL && parse_id(key, &s.id);
        st = sound ? add_spec(f, &s, true)
                   : malformed(f, "tokenizer_config.json: added_tokens_decoder is malformed");
        if (st != ROSE_OK) return st;
    }
    return st;
}

static rose_status add_added_json(rose_token_files *f)
{
    const char *key;
    rose_json *v;
    rose_status st = ROSE_OK;
    rose_json_each (f->added, key, v) {
        const int64_t id = rose_json_is_integer(v) ? rose_json_int(v) : -1;
        const bool sound = id >= 0 && id < (int64_t)ROSE_MAX_ID;
        rose_added_spec s = {.text = key,
                             .len = strlen(key),
                             .normalized = true,
                             .has_id = true,
                             .by_place = true,
                             .id = sound ? (uint32_t)id : 0};
        st = sound ? add_spec(f, &s, false)
                   : malformed(f, "added_tokens.json: an id is out of range");
        if (st != ROSE_OK) return st;
    }
    return st;
}

/* The value of a named special token; NULL: none of the files has it. */
static const rose_json *named(const rose_token_files *f, const char *name)
{
    const rose_json *v = f->decoder == NULL ? rose_json_get(f->special_map, name) : NULL;
    return v != NULL ? v : rose_json_get(f->config, name);
}

static const char *const standard[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};
enum { N_STANDARD = sizeof standard / sizeof standard[0] };

static bool is_standard(const char *name)
{
    for (size_t i = 0; i < N_STANDARD; i++)
        if (strcmp(name, standard[i]) == 0) return true;
    return false;
}

/* Members such as image_token, which only some models have. */
static rose_status add_model_tokens(rose_token_files *f)
{
    static const char suffix[] = "_token";
    const char *key;
    rose_json *v;
    rose_status st = ROSE_OK;
    rose_json_each (f->config, key, v) {
        const size_t n = strlen(key), m = sizeof suffix - 1;
        if (n < m || strcmp(key + n - m, suffix) != 0 || is_standard(key)) continue;
        if (!rose_json_is_string(v) && !rose_json_is_object(v)) continue;
        if ((st = add_special(f, v)) != ROSE_OK) return st;
    }
    return st;
}

/* extra_special_tokens is a list, or an object of named tokens; older files call the list
 * additional_special_tokens. *found: this file names some. */
static rose_status add_further(rose_token_files *f, const rose_json *file, bool *found)
{
    const rose_json *list = rose_json_get(file, "extra_special_tokens");
    const char *key;
    rose_json *v;
    rose_status st = ROSE_OK;
    if (rose_json_count(list) + rose_json_size(list) == 0)
        list = rose_json_get(file, "additional_special_tokens");
    *found = rose_json_count(list) + rose_json_size(list) > 0;
    rose_json_each (list, key, v) {
        if ((st = add_special(f, v)) != ROSE_OK) return st;
    }
    for (size_t i = 0; i < rose_json_count(list) && st == ROSE_OK; i++)
        st = add_special(f, rose_json_at(list, i));
    return st;
}

rose_status rose_token_files_read(rose_token_files *f, const rose_json *fallback)
{
    rose_status st = sort_known(f);
    if (st == ROSE_OK)
        st = f->decoder != NULL ? add_decoder_entries(f, f->decoder) : add_added_json(f);
    const size_t n = f->n_specs - f->n_known;
    if (st == ROSE_OK && n > 1) qsort(f->specs + f->n_known, n, sizeof *f->specs, by_id);
    for (size_t i = 0; i < N_STANDARD && st == ROSE_OK; i++) {
        const rose_json *v = named(f, standard[i]);
        if (v == NULL && i < 3) v = fallback;
        st = add_special(f, v);
    }
    if (st == ROSE_OK) st = add_model_tokens(f);
    bool found = false;
    if (st == ROSE_OK) st = add_further(f, f->config, &found);
    if (st == ROSE_OK && !found && f->decoder == NULL) st = add_further(f, f->special_map, &found);
    return st;
}

void rose_token_files_log(const rose_token_files *f, const rose_tokenizer *t, const char *file)
{
    char names[160] = "";
    size_t at = 0, n = 0;
    for (size_t i = f->n_known; i < f->n_specs; i++) {
        const rose_added_spec *s = &f->specs[i];
        uint32_t id;
        if (s->len == 0 || !rose_tokenizer_find(t, s->text, s->len, &id)) continue;
        const int k = snprintf(names + at, sizeof names - at, "%s%.*s (%u)", n > 0 ? ", " : "",
                               (int)(s->len < 40 ? s->len : 40), s->text, id);
        n++;
        if (k > 0 && at + (size_t)k < sizeof names)
            at += (size_t)k;
        else
            names[at] = '\0';
    }
    if (n > 0)
        rose_log(ROSE_LOG_INFO, "tokenizer",
                 "%s: %zu special token%s that only the files beside %s name%s: %s", f->dir, n,
                 n == 1 ? "" : "s", file, n == 1 ? "s" : "", names);
}
