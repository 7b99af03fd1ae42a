/* tokenizer/load_json.c - reads tokenizer.json. Everything that would change an id or the
 * decoded text is either implemented or refused by name. "truncation" and "padding" are ignored:
 * the caller handles them, as transformers sets them per call. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

static rose_status bad(rose_err *err, const char *path, const char *what)
{
    return rose_fail(err, ROSE_E_FORMAT, "%s: %s", path, what);
}

static rose_status unsupported(rose_err *err, const char *path, const char *what, const char *name)
{
    return rose_fail(err, ROSE_E_UNSUPPORTED, "%s: %s \"%.60s\" is not supported", path, what,
                     name);
}

/* Returns the "type" of a component; "" if it has none. */
static const char *type_of(const json_t *o)
{
    const char *s = json_string_value(json_object_get(o, "type"));
    return s != NULL ? s : "";
}

/* Reads a boolean field: its value, or dflt if absent. *ok = false if it is not a boolean. */
static bool get_bool(const json_t *o, const char *name, bool dflt, bool *ok)
{
    const json_t *v = json_object_get(o, name);
    if (v == NULL) return dflt;
    if (!json_is_boolean(v)) *ok = false;
    return json_is_true(v);
}

static bool null_or_empty(const json_t *v)
{
    return v == NULL || json_is_null(v) || (json_is_string(v) && json_string_length(v) == 0);
}

/* ---- normalizer ---- */

static rose_status load_normalizer(rose_tokenizer *t, const json_t *o, const char *path, int depth,
                                   rose_err *err)
{
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD"};
    if (o == NULL || json_is_null(o)) return ROSE_OK;
    const char *type = type_of(o);
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(o, "normalizers");
        if (!json_is_array(list) || depth > 4)
            return bad(err, path, "normalizer Sequence: no list of normalizers");
        rose_status st = ROSE_OK;
        for (size_t i = 0; i < json_array_size(list) && st == ROSE_OK; i++)
            st = load_normalizer(t, json_array_get(list, i), path, depth + 1, err);
        return st;
    }
    for (uint8_t i = 0; i < 4; i++) {
        if (strcmp(type, names[i]) != 0) continue;
        if (t->n_norms == sizeof t->norms)
            return bad(err, path, "more than 4 normalizers in sequence");
        t->norms[t->n_norms++] = i;
        return ROSE_OK;
    }
    return unsupported(err, path, "normalizer", type);
}

/* ---- pre-tokenizer ---- */

static rose_status load_split(rose_stage *s, const json_t *o, const char *path, rose_err *err)
{
    bool ok = true;
    const json_t *pattern = json_object_get(o, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *literal = json_object_get(pattern, "String");
    const json_t *text = regex != NULL ? regex : literal;
    const char *behavior = json_string_value(json_object_get(o, "behavior"));

    s->invert = get_bool(o, "invert", false, &ok);
    if (!ok || !json_is_string(text) || behavior == NULL)
        return bad(err, path, "pre_tokenizer Split: pattern, behavior or invert is malformed");
    if (strcmp(behavior, "Removed") == 0)
        s->removed = true;
    else if (strcmp(behavior, "Isolated") != 0)
        return unsupported(err, path, "pre_tokenizer Split with behavior", behavior);
    return rose_pattern_compile(&s->code, json_string_value(text), json_string_length(text),
                                regex == NULL, err);
}

static rose_status load_stage(rose_tokenizer *t, const json_t *o, const char *path, rose_err *err)
{
    const char *type = type_of(o);
    bool ok = true;
    if (t->n_stages == ROSE_MAX_STAGES)
        return bad(err, path, "too many pre-tokenizers in sequence");
    if (t->n_stages > 0 && t->stages[t->n_stages - 1].kind == ROSE_STAGE_BYTE_LEVEL)
        return unsupported(err, path, "pre_tokenizer after ByteLevel:", type);
    rose_stage *s = &t->stages[t->n_stages++];
    if (strcmp(type, "ByteLevel") == 0) {
        s->kind = ROSE_STAGE_BYTE_LEVEL;
        s->add_prefix_space = get_bool(o, "add_prefix_space", true, &ok);
        s->use_regex = get_bool(o, "use_regex", true, &ok);
        return ok ? ROSE_OK : bad(err, path, "pre_tokenizer ByteLevel: a field is not a boolean");
    }
    if (strcmp(type, "Digits") == 0) {
        s->kind = ROSE_STAGE_DIGITS;
        s->individual = get_bool(o, "individual_digits", false, &ok);
        return ok ? ROSE_OK : bad(err, path, "pre_tokenizer Digits: a field is not a boolean");
    }
    if (strcmp(type, "Split") == 0) {
        s->kind = ROSE_STAGE_SPLIT;
        return load_split(s, o, path, err);
    }
    return unsupported(err, path, "pre_tokenizer", type);
}

static rose_status load_pre_tokenizer(rose_tokenizer *t, const json_t *o, const char *path,
                                      int depth, rose_err *err)
{
    if (strcmp(type_of(o), "Sequence") != 0) return load_stage(t, o, path, err);
    const json_t *list = json_object_get(o, "pretokenizers");
    if (!json_is_array(list) || depth > 4)
        return bad(err, path, "pre_tokenizer Sequence: no list of pretokenizers");
    rose_status st = ROSE_OK;
    for (size_t i = 0; i < json_array_size(list) && st == ROSE_OK; i++)
        st = load_pre_tokenizer(t, json_array_get(list, i), path, depth + 1, err);
    return st;
}

/* ---- decoder, post-processor ---- */

static rose_status check_decoder(const json_t *o, const char *path, rose_err *err)
{
    const char *type = type_of(o);
    if (strcmp(type, "Sequence") == 0) {
        const json_t *list = json_object_get(o, "decoders");
        if (json_array_size(list) == 1) return check_decoder(json_array_get(list, 0), path, err);
    }
    if (strcmp(type, "ByteLevel") == 0) return ROSE_OK;
    return unsupported(err, path, "decoder", o == NULL || json_is_null(o) ? "null" : type);
}

/* Reads one {"SpecialToken": {"id": text}} of a template: its ids, from the table of special
 * tokens. */
static rose_status template_special(rose_tokenizer *t, const json_t *piece, const json_t *table,
                                    bool after, const char *path, rose_err *err)
{
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *ids = name != NULL ? json_object_get(json_object_get(table, name), "ids") : NULL;
    uint32_t *list = after ? t->suffix : t->prefix;
    uint32_t *n = after ? &t->n_suffix : &t->n_prefix;
    if (!json_is_array(ids))
        return bad(err, path, "post_processor TemplateProcessing: a special token without ids");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *v = json_array_get(ids, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= (json_int_t)ROSE_MAX_ID || *n == ROSE_MAX_TEMPLATE)
            return bad(err, path, "post_processor TemplateProcessing: ids malformed or too many");
        list[(*n)++] = (uint32_t)id;
    }
    return ROSE_OK;
}

static rose_status load_template(rose_tokenizer *t, const json_t *o, const char *path,
                                 rose_err *err)
{
    const json_t *single = json_object_get(o, "single");
    const json_t *table = json_object_get(o, "special_tokens");
    bool after = false;
    if (!json_is_array(single))
        return bad(err, path, "post_processor TemplateProcessing: no list \"single\"");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const json_t *special = json_object_get(piece, "SpecialToken");
        if (special != NULL) {
            rose_status st = template_special(t, special, table, after, path, err);
            if (st != ROSE_OK) return st;
        } else if (json_object_get(piece, "Sequence") != NULL && !after) {
            after = true;
        } else {
            return bad(err, path, "post_processor TemplateProcessing: not one Sequence");
        }
    }
    return after ? ROSE_OK : bad(err, path, "post_processor TemplateProcessing: no Sequence");
}

static rose_status load_post_processor(rose_tokenizer *t, const json_t *o, const char *path,
                                       int depth, rose_err *err)
{
    const char *type = type_of(o);
    if (o == NULL || json_is_null(o) || strcmp(type, "ByteLevel") == 0) return ROSE_OK;
    if (strcmp(type, "TemplateProcessing") == 0) {
        if (t->n_prefix + t->n_suffix > 0)
            return bad(err, path, "post_processor: more than one template");
        return load_template(t, o, path, err);
    }
    if (strcmp(type, "Sequence") == 0 && depth < 4) {
        const json_t *list = json_object_get(o, "processors");
        if (!json_is_array(list))
            return bad(err, path, "post_processor Sequence: no list of processors");
        rose_status st = ROSE_OK;
        for (size_t i = 0; i < json_array_size(list) && st == ROSE_OK; i++)
            st = load_post_processor(t, json_array_get(list, i), path, depth + 1, err);
        return st;
    }
    return unsupported(err, path, "post_processor", type);
}

/* ---- model ---- */

typedef struct json_merges {
    rose_merge_source base; /* first: next() gets a pointer to it */
    const json_t *list;     /* borrowed */
    size_t i;
    const char *path;
} json_merges;

static bool next_json_merge(rose_merge_source *s, const char **a, size_t *na, const char **b,
                            size_t *nb, rose_status *st, rose_err *err)
{
    json_merges *m = (json_merges *)(void *)s;
    if (m->i == json_array_size(m->list)) return false;
    const json_t *v = json_array_get(m->list, m->i++);
    if (json_is_string(v)) {
        const char *text = json_string_value(v);
        size_t len = json_string_length(v);
        const char *gap = memchr(text, ' ', len);
        if (gap != NULL && memchr(gap + 1, ' ', len - (size_t)(gap + 1 - text)) == NULL) {
            *a = text;
            *na = (size_t)(gap - text);
            *b = gap + 1;
            *nb = len - *na - 1;
            return true;
        }
    } else if (json_array_size(v) == 2) {
        const json_t *x = json_array_get(v, 0), *y = json_array_get(v, 1);
        if (json_is_string(x) && json_is_string(y)) {
            *a = json_string_value(x);
            *na = json_string_length(x);
            *b = json_string_value(y);
            *nb = json_string_length(y);
            return true;
        }
    }
    *st = rose_fail(err, ROSE_E_FORMAT, "%s: merge %zu is not a pair of tokens", m->path, m->i - 1);
    return false;
}

/* Reads the options of the BPE model that change ids. */
static rose_status load_model_options(rose_tokenizer *t, const json_t *o, const char *path,
                                      rose_err *err)
{
    bool ok = true;
    const json_t *dropout = json_object_get(o, "dropout");
    if (dropout != NULL && !json_is_null(dropout) &&
        !(json_is_number(dropout) && json_number_value(dropout) <= 0))
        return unsupported(err, path, "model option", "dropout");
    if (!null_or_empty(json_object_get(o, "continuing_subword_prefix")))
        return unsupported(err, path, "model option", "continuing_subword_prefix");
    if (!null_or_empty(json_object_get(o, "end_of_word_suffix")))
        return unsupported(err, path, "model option", "end_of_word_suffix");
    if (get_bool(o, "byte_fallback", false, &ok))
        return unsupported(err, path, "model option", "byte_fallback");
    t->fuse_unk = get_bool(o, "fuse_unk", false, &ok);
    t->ignore_merges = get_bool(o, "ignore_merges", false, &ok);
    return ok ? ROSE_OK : bad(err, path, "model: an option is not a boolean");
}

static rose_status load_model(rose_tokenizer *t, const json_t *o, const char *path, rose_err *err)
{
    const json_t *vocab = json_object_get(o, "vocab"), *merges = json_object_get(o, "merges");
    const json_t *type = json_object_get(o, "type"), *unk = json_object_get(o, "unk_token");

    if (!json_is_object(o)) return bad(err, path, "no object \"model\"");
    if (type != NULL && strcmp(type_of(o), "BPE") != 0)
        return unsupported(err, path, "model type", type_of(o));
    if (!json_is_object(vocab) || !json_is_array(merges))
        return bad(err, path, "model: vocab or merges is missing or of the wrong type");
    rose_status st = load_model_options(t, o, path, err);
    if (st != ROSE_OK) return st;
    if ((st = rose_load_vocab(t, vocab, err)) != ROSE_OK) return st;
    if (unk != NULL && !json_is_null(unk)) {
        const json_t *id =
            json_is_string(unk) ? json_object_get(vocab, json_string_value(unk)) : NULL;
        if (id == NULL) return bad(err, path, "model: unk_token is not in the vocabulary");
        t->unk_id = (uint32_t)json_integer_value(id);
    }
    json_merges src = {{next_json_merge, json_array_size(merges)}, merges, 0, path};
    return rose_load_merges(t, vocab, &src.base, err);
}

/* ---- added tokens ---- */

static rose_status read_added(rose_added_spec *s, const json_t *o, const char *path, rose_err *err)
{
    const json_t *text = json_object_get(o, "content"), *id = json_object_get(o, "id");
    bool ok = json_is_string(text) && json_is_integer(id) && json_integer_value(id) >= 0 &&
              json_integer_value(id) < (json_int_t)ROSE_MAX_ID;
    if (!ok) return bad(err, path, "added_tokens: an entry without a content and an id in range");
    *s = (rose_added_spec){.text = json_string_value(text),
                           .len = json_string_length(text),
                           .special = get_bool(o, "special", false, &ok),
                           .lstrip = get_bool(o, "lstrip", false, &ok),
                           .rstrip = get_bool(o, "rstrip", false, &ok),
                           .single_word = get_bool(o, "single_word", false, &ok),
                           .normalized = get_bool(o, "normalized", true, &ok),
                           .has_id = true,
                           .id = (uint32_t)json_integer_value(id)};
    return ok ? ROSE_OK : bad(err, path, "added_tokens: a flag is not a boolean");
}

static rose_status load_added_list(rose_tokenizer *t, const json_t *list, const json_t *vocab,
                                   const char *path, rose_err *err)
{
    size_t n = json_array_size(list);
    rose_added_spec *specs = NULL;
    rose_status st = ROSE_OK;

    if (list != NULL && !json_is_array(list)) return bad(err, path, "added_tokens is not a list");
    if (n > 0 && (specs = calloc(n, sizeof *specs)) == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", path);
    for (size_t i = 0; i < n && st == ROSE_OK; i++)
        st = read_added(&specs[i], json_array_get(list, i), path, err);
    if (st == ROSE_OK) st = rose_load_added(t, vocab, specs, n, err);
    free(specs);
    return st;
}

rose_status rose_load_tokenizer_json(rose_tokenizer *t, const char *path, rose_err *err)
{
    json_t *root = NULL;
    rose_status st = rose_load_json(&root, path, err);
    if (st != ROSE_OK) return st;
    const json_t *model = json_object_get(root, "model");

    st = load_model(t, model, path, err);
    if (st != ROSE_OK) goto done;
    st = load_normalizer(t, json_object_get(root, "normalizer"), path, 0, err);
    if (st != ROSE_OK) goto done;
    st = load_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"), path, 0, err);
    if (st != ROSE_OK) goto done;
    if (t->n_stages == 0 || t->stages[t->n_stages - 1].kind != ROSE_STAGE_BYTE_LEVEL) {
        st = rose_fail(err, ROSE_E_UNSUPPORTED,
                       "%s: a pre_tokenizer that does not end with ByteLevel is not supported",
                       path);
        goto done;
    }
    if ((st = check_decoder(json_object_get(root, "decoder"), path, err)) != ROSE_OK) goto done;
    st = load_post_processor(t, json_object_get(root, "post_processor"), path, 0, err);
    if (st != ROSE_OK) goto done;
    st = load_added_list(t, json_object_get(root, "added_tokens"), json_object_get(model, "vocab"),
                         path, err);
done:
    json_decref(root);
    return st;
}
