/* base/opts_yaml.c - reads the part of YAML that opts_file.h names, from libyaml's events. What
 * YAML has beyond it is an error: a wrong guess would start a server with other options than its
 * file says. */
#include <string.h>
#include <yaml.h>

#include "base/json.h"
#include "base/opts_file.h"
#include "base/utf8.h"

enum { MAX_DEPTH = 64 };

typedef struct yaml {
    yaml_parser_t parser;
    yaml_event_t e; /* the current event; owned */
    const char *path, *text, *end;
    const char *at; /* a place in the text, `index` characters after its beginning */
    size_t index;
    rose_opts_file *out;
    rose_err *err;
} yaml;

/* line: from 0, as libyaml counts. */
static rose_status fail(yaml *y, size_t line, const char *what)
{
    return rose_fail(y->err, ROSE_E_FORMAT, "%s:%zu: %s", y->path, line + 1, what);
}

static rose_status no_memory(yaml *y)
{
    return rose_fail(y->err, ROSE_E_NOMEM, "%s: out of memory", y->path);
}

/* What libyaml refused. The mark of its context is where the faulty text began. That line is the
 * better one to report, except for a block, which may begin far above. */
static rose_status refused(yaml *y)
{
    const yaml_parser_t *p = &y->parser;
    size_t line = p->problem_mark.line;
    if (p->error == YAML_MEMORY_ERROR) return no_memory(y);
    if (p->context != NULL && strstr(p->context, "block") == NULL) line = p->context_mark.line;
    if (p->error == YAML_READER_ERROR) {
        line = 0;
        for (size_t i = 0; i < p->problem_offset; i++)
            line += y->text[i] == '\n';
    }
    return rose_fail(y->err, ROSE_E_FORMAT,
                     "%s:%zu: %s%s%s; expected lines 'key: value', and quotes around text with "
                     "characters that YAML uses",
                     y->path, line + 1, p->context != NULL ? p->context : "",
                     p->context != NULL ? ": " : "", p->problem);
}

static rose_status next(yaml *y)
{
    yaml_event_t *e = &y->e;
    yaml_event_delete(e);
    if (!yaml_parser_parse(&y->parser, e)) return refused(y);
    const bool marked =
        e->type == YAML_ALIAS_EVENT ||
        (e->type == YAML_SCALAR_EVENT && (e->data.scalar.anchor || e->data.scalar.tag)) ||
        (e->type == YAML_SEQUENCE_START_EVENT &&
         (e->data.sequence_start.anchor || e->data.sequence_start.tag)) ||
        (e->type == YAML_MAPPING_START_EVENT &&
         (e->data.mapping_start.anchor || e->data.mapping_start.tag));
    if (!marked) return ROSE_OK;
    return fail(y, e->start_mark.line,
                "anchors, aliases and tags are not understood; text that begins with &, * or ! "
                "needs quotes");
}

static bool is_null(const yaml_event_t *e)
{
    static const char *const words[] = {"~", "null", "Null", "NULL"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(words[i], (const char *)e->data.scalar.value) == 0) return true;
    return false;
}

/* The current event is a text; what it lacks to be a key or a value, or NULL. */
static const char *text_fault(const yaml_event_t *e)
{
    const yaml_scalar_style_t style = e->data.scalar.style;
    if (style == YAML_LITERAL_SCALAR_STYLE || style == YAML_FOLDED_SCALAR_STYLE ||
        e->start_mark.line != e->end_mark.line)
        return "text over several lines is not understood; write it on one line, in double quotes "
               "with \\n";
    if (memchr(e->data.scalar.value, 0, e->data.scalar.length) != NULL)
        return "a string holds the byte 0";
    if (style != YAML_PLAIN_SCALAR_STYLE) return NULL;
    if (e->data.scalar.length == 0) return "a key or a list item has no value";
    return is_null(e) ? "null is no value of an option; leave the key out" : NULL;
}

/* The place in the text that is `index` characters after its beginning; not before the last one. */
static const char *place_of(yaml *y, size_t index)
{
    for (; y->index < index; y->index++)
        for (y->at++; y->at < y->end && rose_utf8_is_inner(*y->at);)
            y->at++;
    return y->at;
}

static rose_status add_value(yaml *y, const char *text, size_t n)
{
    return rose_opts_file_value(y->out, text, n) == ROSE_OK ? ROSE_OK : no_memory(y);
}

/* An object in braces. Its text, which must be JSON, is the value. libyaml's time grows with the
 * square of the depth, so that is bounded. */
static rose_status object(yaml *y)
{
    const yaml_mark_t from = y->e.start_mark;
    rose_json *v = NULL;
    rose_json_error e;
    rose_status st = ROSE_OK;
    if (y->e.data.mapping_start.style != YAML_FLOW_MAPPING_STYLE)
        return fail(y, from.line,
                    "nested keys are not understood. Begin keys in the first column, put text with "
                    "': ' in quotes, and write an object as JSON on the line of its key");
    for (int depth = 1; depth > 0;) {
        if ((st = next(y)) != ROSE_OK) return st;
        depth += (y->e.type == YAML_MAPPING_START_EVENT) - (y->e.type == YAML_MAPPING_END_EVENT) +
                 (y->e.type == YAML_SEQUENCE_START_EVENT) - (y->e.type == YAML_SEQUENCE_END_EVENT);
        if (depth > MAX_DEPTH)
            return fail(y, from.line,
                        "an object is nested more than 64 levels deep; write a flatter one");
    }
    const char *text = place_of(y, from.index);
    const size_t n = (size_t)(place_of(y, y->e.end_mark.index) - text);
    st = y->e.end_mark.line == from.line ? rose_json_parse(&v, text, n, 0, &e) : ROSE_E_FORMAT;
    rose_json_decref(v);
    if (st == ROSE_E_NOMEM) return no_memory(y);
    if (st != ROSE_OK)
        return fail(y, from.line, "an object in braces must be JSON on one line, with quoted keys");
    return add_value(y, text, n);
}

/* A text or an object: what an option or an item of a list can have. */
static rose_status one_value(yaml *y)
{
    if (y->e.type == YAML_MAPPING_START_EVENT) return object(y);
    if (y->e.type != YAML_SCALAR_EVENT)
        return fail(y, y->e.start_mark.line,
                    "a list may hold only text and numbers; put text with brackets in quotes");
    const char *fault = text_fault(&y->e);
    if (fault != NULL) return fail(y, y->e.start_mark.line, fault);
    return add_value(y, (const char *)y->e.data.scalar.value, y->e.data.scalar.length);
}

static rose_status list(yaml *y)
{
    const size_t line = y->e.start_mark.line;
    const bool flow = y->e.data.sequence_start.style == YAML_FLOW_SEQUENCE_STYLE;
    rose_status st = next(y);
    y->out->items[y->out->n - 1].list = true;
    for (; st == ROSE_OK && y->e.type != YAML_SEQUENCE_END_EVENT;)
        if ((st = one_value(y)) == ROSE_OK) st = next(y);
    if (st == ROSE_OK && flow && y->e.end_mark.line != line)
        return fail(y, line, "a list in brackets must end on its line");
    return st;
}

/* The keys and values of the document. */
static rose_status keys(yaml *y)
{
    rose_status st;
    while ((st = next(y)) == ROSE_OK && y->e.type != YAML_MAPPING_END_EVENT) {
        const size_t line = y->e.start_mark.line;
        if (y->e.type != YAML_SCALAR_EVENT || y->e.data.scalar.length == 0 ||
            text_fault(&y->e) != NULL)
            return fail(y, line, "expected 'key: value'");
        if (rose_opts_file_key(y->out, (const char *)y->e.data.scalar.value,
                               y->e.data.scalar.length, (uint32_t)line + 1) != ROSE_OK)
            return no_memory(y);
        if ((st = next(y)) == ROSE_OK)
            st = y->e.type == YAML_SEQUENCE_START_EVENT ? list(y) : one_value(y);
        if (st != ROSE_OK) return st;
    }
    return st;
}

static rose_status document(yaml *y)
{
    if (y->e.data.document_start.version_directive != NULL ||
        y->e.data.document_start.tag_directives.start !=
            y->e.data.document_start.tag_directives.end)
        return fail(y, y->e.start_mark.line, "expected 'key: value', and no directive");
    rose_status st = next(y);
    const bool empty = y->e.type == YAML_SCALAR_EVENT && y->e.data.scalar.length == 0;
    if (st == ROSE_OK && y->e.type == YAML_MAPPING_START_EVENT &&
        y->e.data.mapping_start.style == YAML_BLOCK_MAPPING_STYLE)
        st = keys(y);
    else if (st == ROSE_OK && !empty)
        st = fail(y, y->e.start_mark.line, "expected 'key: value'");
    if (st == ROSE_OK) st = next(y); /* the end of the document */
    if (st == ROSE_OK && !y->e.data.document_end.implicit)
        return fail(y, y->e.start_mark.line, "expected 'key: value', and no end of a document");
    return st == ROSE_OK ? next(y) : st;
}

rose_status rose_opts_file_yaml(rose_opts_file *out, const char *path, const char *text, size_t n,
                                rose_err *err)
{
    const size_t bom = n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    yaml y = {.path = path, .text = text + bom, .end = text + n, .out = out, .err = err};
    y.at = y.text;
    if (!yaml_parser_initialize(&y.parser)) return no_memory(&y);
    yaml_parser_set_encoding(&y.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&y.parser, (const unsigned char *)y.text, n - bom);
    rose_status st = next(&y); /* the start of the stream */
    if (st == ROSE_OK) st = next(&y);
    if (st == ROSE_OK && y.e.type != YAML_STREAM_END_EVENT) st = document(&y);
    if (st == ROSE_OK && y.e.type != YAML_STREAM_END_EVENT)
        st = fail(&y, y.e.start_mark.line, "a file may hold only one document");
    yaml_event_delete(&y.e);
    yaml_parser_delete(&y.parser);
    return st;
}
