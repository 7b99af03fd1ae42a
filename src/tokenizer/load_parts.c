/* tokenizer/load_parts.c - the parts of tokenizer.json around the model: normalizer, pre_tokenizer,
 * decoder, post_processor. Everything that would change an id or the decoded text is either
 * implemented or refused by name. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

rose_status rose_json_bad(rose_err *err, const char *path, const char *what)
{
    return rose_fail(err, ROSE_E_FORMAT, "%s: %s", path, what);
}

rose_status rose_json_unsupported(rose_err *err, const char *path, const char *what,
                                  const char *name)
{
    return rose_fail(err, ROSE_E_UNSUPPORTED, "%s: %s \"%.60s\" is not supported", path, what,
                     name);
}

const char *rose_json_type(const rose_json *o)
{
    const char *s = rose_json_text(rose_json_get(o, "type"));
    return s != NULL ? s : "";
}

bool rose_json_bool(const rose_json *o, const char *name, bool dflt, bool *ok)
{
    const rose_json *v = rose_json_get(o, name);
    if (v == NULL) return dflt;
    if (!rose_json_is_boolean(v)) *ok = false;
    return rose_json_is_true(v);
}

/* The parts of one file. */
typedef struct parts {
    rose_tokenizer *t; /* borrowed, as all here */
    const char *path;
    bool fused; /* a decoder has joined the tokens to one text */
    rose_err *err;
} parts;

static rose_status bad(const parts *p, const char *what)
{
    return rose_json_bad(p->err, p->path, what);
}

static rose_status unsupported(const parts *p, const char *what, const char *name)
{
    return rose_json_unsupported(p->err, p->path, what, name);
}

enum { MAX_DEPTH = 4 };

/* Loads a component, or, of a Sequence, each component in its list. no_list: what is wrong with a
 * Sequence that has none, or that is nested too deep. */
static rose_status load_each(parts *p, const rose_json *o, const char *list_name,
                             const char *no_list, int depth,
                             rose_status (*load)(parts *p, const rose_json *o))
{
    if (strcmp(rose_json_type(o), "Sequence") != 0) return load(p, o);
    const rose_json *list = rose_json_get(o, list_name);
    rose_status st = ROSE_OK;
    if (!rose_json_is_array(list) || depth > MAX_DEPTH) return bad(p, no_list);
    for (size_t i = 0; i < rose_json_count(list) && st == ROSE_OK; i++)
        st = load_each(p, rose_json_at(list, i), list_name, no_list, depth + 1, load);
    return st;
}

/* ---- normalizer ---- */

/* A short text of a normalizer. */
static rose_status norm_text(parts *p, char to[ROSE_NORM_TEXT], uint8_t *n, const rose_json *v)
{
    if (!rose_json_is_string(v)) return bad(p, "normalizer Prepend or Replace: a text is missing");
    if (rose_json_text_len(v) > ROSE_NORM_TEXT)
        return unsupported(p, "normalizer text over 16 bytes", rose_json_text(v));
    *n = (uint8_t)rose_json_text_len(v);
    memcpy(to, rose_json_text(v), *n);
    return ROSE_OK;
}

static rose_status load_normalizer(parts *p, const rose_json *o)
{
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD"};
    rose_tokenizer *t = p->t;
    const char *type = rose_json_type(o);
    if (o == NULL || rose_json_is_null(o)) return ROSE_OK;
    if (t->n_norms == ROSE_MAX_NORMS) return bad(p, "more than 4 normalizers in sequence");
    rose_norm *norm = &t->norms[t->n_norms++];
    for (int i = 0; i < 4; i++) {
        if (strcmp(type, names[i]) != 0) continue;
        norm->kind = (rose_norm_kind)(ROSE_NORM_NFC + i);
        return ROSE_OK;
    }
    if (strcmp(type, "Prepend") == 0) {
        norm->kind = ROSE_NORM_PREPEND;
        return norm_text(p, norm->to, &norm->n_to, rose_json_get(o, "prepend"));
    }
    if (strcmp(type, "Replace") != 0) return unsupported(p, "normalizer", type);
    const rose_json *pattern = rose_json_get(o, "pattern");
    if (rose_json_get(pattern, "Regex") != NULL)
        return unsupported(p, "normalizer Replace with", "Regex");
    norm->kind = ROSE_NORM_REPLACE;
    rose_status st = norm_text(p, norm->from, &norm->n_from, rose_json_get(pattern, "String"));
    if (st == ROSE_OK && norm->n_from == 0) return bad(p, "normalizer Replace: an empty pattern");
    if (st != ROSE_OK) return st;
    return norm_text(p, norm->to, &norm->n_to, rose_json_get(o, "content"));
}

/* ---- pre-tokenizer ---- */

static rose_status load_split(parts *p, rose_stage *s, const rose_json *o)
{
    bool ok = true;
    const rose_json *pattern = rose_json_get(o, "pattern");
    const rose_json *regex = rose_json_get(pattern, "Regex");
    const rose_json *literal = rose_json_get(pattern, "String");
    const rose_json *text = regex != NULL ? regex : literal;
    const char *behavior = rose_json_text(rose_json_get(o, "behavior"));

    s->invert = rose_json_bool(o, "invert", false, &ok);
    if (!ok || !rose_json_is_string(text) || behavior == NULL)
        return bad(p, "pre_tokenizer Split: pattern, behavior or invert is malformed");
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext"};
    size_t i = 0;
    while (i < 4 && strcmp(behavior, names[i]) != 0)
        i++;
    if (i == 4) return unsupported(p, "pre_tokenizer Split with behavior", behavior);
    s->split = (rose_split)(ROSE_SPLIT_ISOLATED + (int)i);
    if (regex != NULL && s->split == ROSE_SPLIT_ISOLATED)
        s->scan = rose_scan_of_pattern(rose_json_text(text), rose_json_text_len(text));
    return rose_pattern_compile(&s->code, rose_json_text(text), rose_json_text_len(text),
                                regex == NULL, p->err);
}

/* Metaspace, of which older files say add_prefix_space and not prepend_scheme. */
static rose_status load_metaspace(parts *p, rose_stage *s, const rose_json *o)
{
    bool ok = true;
    const char *mark = rose_json_text(rose_json_get(o, "replacement"));
    const char *scheme = rose_json_text(rose_json_get(o, "prepend_scheme"));
    const bool prefix = rose_json_bool(o, "add_prefix_space", true, &ok);
    if (mark == NULL || strcmp(mark, ROSE_SPACE_MARK) != 0)
        return unsupported(p, "pre_tokenizer Metaspace with replacement", mark != NULL ? mark : "");
    if (scheme == NULL) scheme = prefix ? "always" : "never";
    s->kind = ROSE_STAGE_METASPACE;
    s->scan = rose_json_bool(o, "split", true, &ok) ? rose_scan_mark : NULL;
    if (strcmp(scheme, "first") == 0)
        s->prepend = ROSE_PREPEND_FIRST;
    else if (strcmp(scheme, "always") == 0)
        s->prepend = ROSE_PREPEND_ALWAYS;
    else if (strcmp(scheme, "never") != 0)
        return unsupported(p, "Metaspace with prepend_scheme", scheme);
    return ok ? ROSE_OK : bad(p, "Metaspace: a field is not a boolean");
}

/* ByteLevel after a Split or Digits that is one of ours: one stage scans both. */
static void join_stages(rose_tokenizer *t, bool use_regex)
{
    rose_stage *last = &t->stages[t->n_stages - 1];
    rose_stage *before = t->n_stages > 1 ? last - 1 : NULL;
    last->scan = use_regex ? rose_scan_gpt2 : NULL;
    if (before == NULL || last->add_prefix_space) return;
    rose_scan joined = NULL;
    if (before->kind == ROSE_STAGE_SPLIT && !use_regex) joined = before->scan;
    if (before->kind == ROSE_STAGE_DIGITS && before->individual && use_regex)
        joined = rose_scan_smollm;
    if (joined == NULL) return;
    pcre2_code_free(before->code);
    *before = *last;
    before->scan = joined;
    *last = (rose_stage){0};
    t->n_stages--;
}

static rose_status load_stage(parts *p, const rose_json *o)
{
    rose_tokenizer *t = p->t;
    const char *type = rose_json_type(o);
    bool ok = true;
    if (t->n_stages == ROSE_MAX_STAGES) return bad(p, "too many pre-tokenizers in sequence");
    if (t->n_stages > 0 && t->stages[t->n_stages - 1].kind >= ROSE_STAGE_BYTE_LEVEL)
        return unsupported(p, "pre_tokenizer after ByteLevel or Metaspace:", type);
    rose_stage *s = &t->stages[t->n_stages++];
    if (strcmp(type, "ByteLevel") == 0) {
        s->kind = ROSE_STAGE_BYTE_LEVEL;
        s->add_prefix_space = rose_json_bool(o, "add_prefix_space", true, &ok);
        join_stages(t, rose_json_bool(o, "use_regex", true, &ok));
        return ok ? ROSE_OK : bad(p, "pre_tokenizer ByteLevel: a field is not a boolean");
    }
    if (strcmp(type, "Digits") == 0) {
        s->kind = ROSE_STAGE_DIGITS;
        s->individual = rose_json_bool(o, "individual_digits", false, &ok);
        return ok ? ROSE_OK : bad(p, "pre_tokenizer Digits: a field is not a boolean");
    }
    if (strcmp(type, "Split") == 0) {
        s->kind = ROSE_STAGE_SPLIT;
        return load_split(p, s, o);
    }
    if (strcmp(type, "Metaspace") == 0) return load_metaspace(p, s, o);
    return unsupported(p, "pre_tokenizer", type);
}

/* ---- decoder, post-processor ---- */

/* The decoder of byte-level tokens. */
static rose_status check_byte_level(parts *p, const rose_json *o)
{
    const char *type = rose_json_type(o);
    if (strcmp(type, "Sequence") == 0) {
        const rose_json *list = rose_json_get(o, "decoders");
        if (rose_json_count(list) == 1) return check_byte_level(p, rose_json_at(list, 0));
    }
    if (strcmp(type, "ByteLevel") == 0) return ROSE_OK;
    return unsupported(p, "decoder", o == NULL || rose_json_is_null(o) ? "null" : type);
}

static bool is_text(const rose_json *v, const char *text)
{
    return rose_json_is_string(v) && strcmp(rose_json_text(v), text) == 0;
}

/* One decoder of a vocabulary of characters. */
static rose_status load_decoder(parts *p, const rose_json *o)
{
    rose_tokenizer *t = p->t;
    const char *type = rose_json_type(o);
    if (strcmp(type, "Replace") == 0) {
        if (!is_text(rose_json_get(rose_json_get(o, "pattern"), "String"), ROSE_SPACE_MARK) ||
            !is_text(rose_json_get(o, "content"), " ") || p->fused)
            return unsupported(p, "decoder", "Replace other than U+2581 by space");
        t->space_mark = true;
    } else if (strcmp(type, "Metaspace") == 0) {
        rose_stage rule = {.kind = ROSE_STAGE_METASPACE};
        rose_status st = load_metaspace(p, &rule, o);
        t->space_mark = true;
        if (rule.prepend != ROSE_PREPEND_NEVER) t->strip = ROSE_STRIP_FIRST_TOKEN;
        return st;
    } else if (strcmp(type, "ByteFallback") == 0 && !p->fused) {
        t->byte_tokens = true;
    } else if (strcmp(type, "Fuse") == 0) {
        p->fused = true;
    } else if (strcmp(type, "Strip") == 0 && p->fused &&
               is_text(rose_json_get(o, "content"), " ") &&
               rose_json_int(rose_json_get(o, "start")) == 1 &&
               rose_json_int(rose_json_get(o, "stop")) == 0) {
        t->strip = ROSE_STRIP_ONE;
    } else {
        return unsupported(p, "decoder", o == NULL || rose_json_is_null(o) ? "null" : type);
    }
    return ROSE_OK;
}

static rose_status load_decoders(parts *p, const rose_json *o)
{
    rose_status st = ROSE_OK;
    if (!p->t->is_chars) return check_byte_level(p, o);
    if (strcmp(rose_json_type(o), "Sequence") != 0) return load_decoder(p, o);
    const rose_json *list = rose_json_get(o, "decoders");
    for (size_t i = 0; i < rose_json_count(list) && st == ROSE_OK; i++)
        st = load_decoder(p, rose_json_at(list, i));
    return st;
}

/* One {"SpecialToken": {"id": text}} of a template: its ids, from the table of special tokens. */
static rose_status template_special(parts *p, const rose_json *piece, const rose_json *table,
                                    bool after)
{
    const char *name = rose_json_text(rose_json_get(piece, "id"));
    const rose_json *ids = name != NULL ? rose_json_get(rose_json_get(table, name), "ids") : NULL;
    uint32_t *list = after ? p->t->suffix : p->t->prefix;
    uint32_t *n = after ? &p->t->n_suffix : &p->t->n_prefix;
    if (!rose_json_is_array(ids))
        return bad(p, "post_processor TemplateProcessing: a special token without ids");
    for (size_t i = 0; i < rose_json_count(ids); i++) {
        const rose_json *v = rose_json_at(ids, i);
        int64_t id = rose_json_is_integer(v) ? rose_json_int(v) : -1;
        if (id < 0 || id >= (int64_t)ROSE_MAX_ID || *n == ROSE_MAX_TEMPLATE)
            return bad(p, "post_processor TemplateProcessing: ids malformed or too many");
        list[(*n)++] = (uint32_t)id;
    }
    return ROSE_OK;
}

static rose_status load_template(parts *p, const rose_json *o)
{
    const rose_json *single = rose_json_get(o, "single");
    const rose_json *table = rose_json_get(o, "special_tokens");
    bool after = false;
    if (!rose_json_is_array(single))
        return bad(p, "post_processor TemplateProcessing: no list \"single\"");
    for (size_t i = 0; i < rose_json_count(single); i++) {
        const rose_json *piece = rose_json_at(single, i);
        const rose_json *special = rose_json_get(piece, "SpecialToken");
        if (special != NULL) {
            rose_status st = template_special(p, special, table, after);
            if (st != ROSE_OK) return st;
        } else if (rose_json_get(piece, "Sequence") != NULL && !after) {
            after = true;
        } else {
            return bad(p, "post_processor TemplateProcessing: not one Sequence");
        }
    }
    return after ? ROSE_OK : bad(p, "post_processor TemplateProcessing: no Sequence");
}

static rose_status load_post_processor(parts *p, const rose_json *o)
{
    const char *type = rose_json_type(o);
    if (o == NULL || rose_json_is_null(o) || strcmp(type, "ByteLevel") == 0) return ROSE_OK;
    if (strcmp(type, "TemplateProcessing") != 0) return unsupported(p, "post_processor", type);
    if (p->t->n_prefix + p->t->n_suffix > 0)
        return bad(p, "post_processor: more than one template");
    return load_template(p, o);
}

rose_status rose_load_parts(rose_tokenizer *t, const rose_json *root, const char *path,
                            rose_err *err)
{
    parts file = {.t = t, .path = path, .err = err}, *const p = &file;
    const rose_json *pre = rose_json_get(root, "pre_tokenizer");
    rose_status st = load_each(p, rose_json_get(root, "normalizer"), "normalizers",
                               "normalizer Sequence: no list of normalizers", 0, load_normalizer);
    if (st == ROSE_OK && pre != NULL && !rose_json_is_null(pre))
        st = load_each(p, pre, "pretokenizers", "pre_tokenizer Sequence: no list of pretokenizers",
                       0, load_stage);
    if (st != ROSE_OK) return st;
    const rose_stage *last = t->n_stages > 0 ? &t->stages[t->n_stages - 1] : NULL;
    t->is_chars = last == NULL || last->kind != ROSE_STAGE_BYTE_LEVEL;
    if (last == NULL || last->kind < ROSE_STAGE_BYTE_LEVEL) {
        if (t->n_stages == ROSE_MAX_STAGES) return bad(p, "too many pre-tokenizers in sequence");
        t->stages[t->n_stages++] = (rose_stage){.kind = ROSE_STAGE_CHARS};
    }
    st = load_decoders(p, rose_json_get(root, "decoder"));
    if (st != ROSE_OK) return st;
    return load_each(p, rose_json_get(root, "post_processor"), "processors",
                     "post_processor Sequence: no list of processors", 0, load_post_processor);
}
