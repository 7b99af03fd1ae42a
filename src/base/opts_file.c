/* base/opts_file.c - see opts_file.h: the list of items, and the reader of JSON. */
#include "base/opts_file.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"

enum { MAX_FILE = 1 << 20 };

/* With a NUL after it. */
static rose_status add_text(rose_opts_file *c, const char *text, size_t n)
{
    const rose_status st = rose_buf_add(&c->text, text, n);
    return st == ROSE_OK ? rose_buf_add(&c->text, "", 1) : st;
}

rose_status rose_opts_file_key(rose_opts_file *c, const char *key, size_t n, uint32_t line)
{
    if (c->n == c->cap) {
        const size_t cap = c->cap > 0 ? 2 * c->cap : 32;
        rose_opts_file_item *items = realloc(c->items, cap * sizeof *items);
        if (items == NULL) return ROSE_E_NOMEM;
        c->items = items;
        c->cap = cap;
    }
    c->items[c->n++] = (rose_opts_file_item){.line = line, .key = c->text.len};
    const rose_status st = add_text(c, key, n);
    c->items[c->n - 1].value = c->text.len;
    return st;
}

rose_status rose_opts_file_value(rose_opts_file *c, const char *text, size_t n)
{
    c->items[c->n - 1].n++;
    return add_text(c, text, n);
}

/* ---- JSON ---- */

/* A walk over the keys of an object, in valid JSON text. */
typedef struct key_lines {
    rose_json_scan s; /* before a key */
    const char *counted;
    uint32_t line; /* of `counted` */
} key_lines;

/* Moves past the next key and its value, and returns the line of that key. */
static uint32_t next_key_line(key_lines *k)
{
    for (rose_json_scan_peek(&k->s); k->counted < k->s.p; k->counted++)
        k->line += *k->counted == '\n';
    rose_json_scan_skip(&k->s);
    rose_json_scan_take(&k->s, ':');
    rose_json_scan_skip(&k->s);
    rose_json_scan_take(&k->s, ',');
    return k->line;
}

static rose_status add_json_value(rose_opts_file *c, const char *path, const rose_json *v,
                                  rose_err *err)
{
    const char *key = rose_opts_file_text(c, c->items[c->n - 1].key);
    const uint32_t line = c->items[c->n - 1].line;
    if (rose_json_is_null(v))
        return rose_fail(err, ROSE_E_FORMAT, "%s:%u: '%.64s' is null; leave the key out", path,
                         line, key);
    rose_status st;
    if (rose_json_is_string(v)) {
        st = rose_opts_file_value(c, rose_json_text(v), rose_json_text_len(v));
    } else {
        char *text = rose_json_dumps(v, ROSE_JSON_COMPACT);
        st = text != NULL ? rose_opts_file_value(c, text, strlen(text)) : ROSE_E_NOMEM;
        free(text);
    }
    return st == ROSE_OK ? st : rose_fail(err, st, "%s: out of memory", path);
}

static rose_status add_json_list(rose_opts_file *c, const char *path, const rose_json *list,
                                 rose_err *err)
{
    c->items[c->n - 1].list = true;
    for (size_t i = 0; i < rose_json_count(list); i++) {
        const rose_json *v = rose_json_at(list, i);
        if (rose_json_is_array(v) || rose_json_is_object(v))
            return rose_fail(err, ROSE_E_FORMAT,
                             "%s:%u: the list '%.64s' holds a list or an object; its values must "
                             "be strings, numbers or booleans",
                             path, c->items[c->n - 1].line,
                             rose_opts_file_text(c, c->items[c->n - 1].key));
        const rose_status st = add_json_value(c, path, v, err);
        if (st != ROSE_OK) return st;
    }
    return ROSE_OK;
}

static rose_status read_json(rose_opts_file *c, const char *path, const char *text, size_t n,
                             rose_err *err)
{
    rose_json *root = NULL, *v;
    rose_json_error e = {0};
    const char *key;
    key_lines lines = {.s = {.p = text, .end = text + n}, .counted = text, .line = 1};
    rose_status st = rose_json_parse(&root, text, n, 0, &e);
    if (st == ROSE_E_NOMEM) return rose_fail(err, st, "%s: out of memory", path);
    if (st != ROSE_OK) return rose_fail(err, st, "%s:%d: %s", path, e.line, e.text);
    if (!rose_json_is_object(root))
        st = rose_fail(err, ROSE_E_FORMAT, "%s:1: expected an object of options", path);
    rose_json_scan_take(&lines.s, '{');
    rose_json_each (root, key, v) {
        if (st == ROSE_OK &&
            rose_opts_file_key(c, key, strlen(key), next_key_line(&lines)) != ROSE_OK)
            st = rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", path);
        if (st == ROSE_OK)
            st = rose_json_is_array(v) ? add_json_list(c, path, v, err)
                                       : add_json_value(c, path, v, err);
        if (st != ROSE_OK) break;
    }
    rose_json_decref(root);
    return st;
}

rose_status rose_opts_file_parse(rose_opts_file *out, const char *path, const char *text, size_t n,
                                 rose_err *err)
{
    const size_t len = strlen(path);
    size_t i = 0;
    while (i < n && (text[i] == ' ' || text[i] == '\t' || text[i] == '\r' || text[i] == '\n'))
        i++;
    const bool json =
        (i < n && text[i] == '{') || (len > 5 && strcmp(path + len - 5, ".json") == 0);
    const rose_status st =
        json ? read_json(out, path, text, n, err) : rose_opts_file_yaml(out, path, text, n, err);
    if (st != ROSE_OK) rose_opts_file_free(out);
    return st;
}

rose_status rose_opts_file_read(rose_opts_file *out, const char *path, rose_err *err)
{
    rose_buf text = {0};
    rose_status st = rose_file_read(&text, path, MAX_FILE, err);
    if (st == ROSE_OK)
        st = rose_opts_file_parse(out, path, text.len > 0 ? text.data : "", text.len, err);
    rose_buf_free(&text);
    return st;
}

void rose_opts_file_free(rose_opts_file *c)
{
    rose_buf_free(&c->text);
    free(c->items);
    *c = (rose_opts_file){0};
}
