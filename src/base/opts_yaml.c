/* base/opts_yaml.c - reads the part of YAML that opts_file.h names, a line at a time. Where YAML
 * has a meaning for a text that this reader does not know, the text is an error: a wrong guess
 * would start a server with other options than its file says. */
#include <string.h>

#include "base/json.h"
#include "base/opts_file.h"
#include "base/utf8.h"

/* The reader. at .. end is the rest of the current line, without its line end. */
typedef struct yaml {
    const char *path, *at, *end, *next, *file_end;
    uint32_t line;
    rose_opts_file *out;
    bool open;     /* the last key had no value on its line: list items may follow */
    long indent;   /* of its list items; -1 = there is none yet */
    bool begun;    /* a key or "---" was there */
    rose_buf text; /* the value that is being read */
    rose_err *err;
} yaml;

static rose_status fail(yaml *y, const char *what)
{
    return rose_fail(y->err, ROSE_E_FORMAT, "%s:%u: %s", y->path, y->line, what);
}

static rose_status no_memory(yaml *y)
{
    return rose_fail(y->err, ROSE_E_NOMEM, "%s: out of memory", y->path);
}

static bool next_line(yaml *y)
{
    if (y->next == y->file_end) return false;
    y->at = y->next;
    const char *nl = memchr(y->at, '\n', (size_t)(y->file_end - y->at));
    y->end = nl != NULL ? nl : y->file_end;
    y->next = nl != NULL ? nl + 1 : y->file_end;
    if (y->end > y->at && y->end[-1] == '\r') y->end--;
    y->line++;
    return true;
}

static void skip_blanks(yaml *y)
{
    while (y->at < y->end && (*y->at == ' ' || *y->at == '\t'))
        y->at++;
}

/* True if only blanks and a comment are left of the line. A comment within a line needs a blank
 * before it, which the caller's value ended at. */
static bool line_is_over(yaml *y)
{
    const char *from = y->at;
    skip_blanks(y);
    return y->at == y->end ||
           (*y->at == '#' && (y->at > from || y->at[-1] == ' ' || y->at[-1] == '\t'));
}

/* Appends the code point of the n hexadecimal digits that come next. */
static rose_status hex_escape(yaml *y, int n)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++) {
        const int d = y->at < y->end ? rose_hex_digit(*y->at) : -1;
        if (d < 0) return fail(y, "an escape in a string lacks hexadecimal digits");
        v = v * 16 + (uint32_t)d;
        y->at++;
    }
    if (v == 0 || !rose_utf8_is_char(v)) return fail(y, "an escape in a string is no character");
    char utf8[4];
    const unsigned len = rose_utf8_encode(v, utf8);
    return rose_buf_add(&y->text, utf8, len) == ROSE_OK ? ROSE_OK : no_memory(y);
}

static rose_status escape(yaml *y)
{
    static const char names[] = "nrt\"\\/ ", bytes[] = "\n\r\t\"\\/ ";
    if (y->at == y->end) return fail(y, "a string is not closed on its line");
    const char c = *y->at++;
    if (c == 'x') return hex_escape(y, 2);
    if (c == 'u') return hex_escape(y, 4);
    if (c == 'U') return hex_escape(y, 8);
    const char *p = c != '\0' ? strchr(names, c) : NULL;
    if (p == NULL)
        return fail(y,
                    "unknown escape in a string; known are \\n \\r \\t \\\" \\\\ \\/ \\x \\u \\U");
    return rose_buf_add(&y->text, &bytes[p - names], 1) == ROSE_OK ? ROSE_OK : no_memory(y);
}

/* A string in quotes. Within single quotes two of them are one; within double quotes a backslash
 * begins an escape. */
static rose_status quoted(yaml *y)
{
    const char quote = *y->at++;
    while (y->at < y->end) {
        const char c = *y->at++;
        rose_status st = ROSE_OK;
        if (c == quote) {
            if (quote != '\'' || y->at == y->end || *y->at != '\'') return ROSE_OK;
            y->at++;
        }
        if (c == '\\' && quote == '"')
            st = escape(y);
        else if (rose_buf_add(&y->text, &c, 1) != ROSE_OK)
            st = no_memory(y);
        if (st != ROSE_OK) return st;
    }
    return fail(y, "a string is not closed on its line");
}

static bool is_null(const char *s, size_t n)
{
    static const char *const words[] = {"~", "null", "Null", "NULL"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strlen(words[i]) == n && memcmp(words[i], s, n) == 0) return true;
    }
    return false;
}

/* Text without quotes, up to a comment or the end of the line; in a list on one line (flow) also
 * up to ',' or ']'. */
static rose_status plain(yaml *y, bool flow)
{
    const char *from = y->at, *to = from;
    const char c = *from, after = from + 1 < y->end ? from[1] : ' ';
    if (strchr("&*!|>%@`[]{},#", c) != NULL || (strchr("-?:", c) != NULL && after == ' '))
        return fail(y, "a value begins with a form of YAML that is not understood here; text that "
                       "begins with this character needs quotes");
    for (; y->at < y->end; y->at++) {
        const char d = *y->at;
        const bool last = y->at + 1 == y->end;
        if (d == '#' && (y->at[-1] == ' ' || y->at[-1] == '\t')) break;
        if (flow && (d == ',' || d == ']')) break;
        if (flow && strchr("[{}", d) != NULL)
            return fail(y, "a list on one line may hold only text and numbers; put text with "
                           "brackets in quotes");
        if (d == ':' && (last || y->at[1] == ' ' || y->at[1] == '\t' || (flow && y->at[1] == ',')))
            return fail(y, "a value holds a key of its own; put text with ': ' in quotes");
        if (d != ' ' && d != '\t') to = y->at + 1;
    }
    if (is_null(from, (size_t)(to - from)))
        return fail(y, "null is no value of an option; leave the key out");
    return rose_buf_add(&y->text, from, (size_t)(to - from)) == ROSE_OK ? ROSE_OK : no_memory(y);
}

/* An object in braces, which must be JSON. Its text is the value. */
static rose_status object(yaml *y)
{
    const char *from = y->at;
    int depth = 0;
    bool string = false;
    rose_json *v = NULL;
    rose_json_error e;
    for (; y->at < y->end; y->at++) {
        const char c = *y->at;
        if (string && c == '\\') {
            y->at += y->at + 1 < y->end;
        } else if (c == '"') {
            string = !string;
        } else if (!string && (c == '{' || c == '}')) {
            depth += c == '{' ? 1 : -1;
            if (depth == 0) break;
        }
    }
    if (y->at == y->end) return fail(y, "an object in braces is not closed on its line");
    const size_t n = (size_t)(++y->at - from);
    const rose_status st = rose_json_parse(&v, from, n, 0, &e);
    rose_json_decref(v);
    if (st == ROSE_E_NOMEM) return no_memory(y);
    if (st != ROSE_OK) return fail(y, "an object in braces must be JSON, with quoted keys");
    return rose_buf_add(&y->text, from, n) == ROSE_OK ? ROSE_OK : no_memory(y);
}

static rose_status add_value(yaml *y)
{
    const rose_status st = rose_opts_file_value(y->out, y->text.data, y->text.len);
    y->text.len = 0;
    return st == ROSE_OK ? ROSE_OK : no_memory(y);
}

/* One value that is no list; y->at is its first byte. */
static rose_status scalar(yaml *y, bool flow)
{
    rose_status st;
    if (rose_buf_reserve(&y->text, 1) != ROSE_OK)
        return no_memory(y); /* so that data is not NULL */
    if (*y->at == '"' || *y->at == '\'')
        st = quoted(y);
    else if (*y->at == '{' && !flow)
        st = object(y);
    else
        st = plain(y, flow);
    return st == ROSE_OK ? add_value(y) : st;
}

/* [a, b]; y->at is the bracket. */
static rose_status flow_list(yaml *y)
{
    y->out->items[y->out->n - 1].list = true;
    y->at++;
    for (;;) {
        skip_blanks(y);
        if (y->at < y->end && *y->at == ']') {
            y->at++;
            return ROSE_OK;
        }
        const rose_status st = y->at < y->end ? scalar(y, true) : ROSE_OK;
        if (st != ROSE_OK) return st;
        skip_blanks(y);
        if (y->at == y->end) return fail(y, "a list is not closed on its line");
        if (*y->at == ',')
            y->at++;
        else if (*y->at != ']')
            return fail(y, "expected ',' or ']' in a list");
    }
}

/* The value of a key or of a list item, and nothing but a comment after it. */
static rose_status value(yaml *y, bool item)
{
    const rose_status st = *y->at == '[' && !item ? flow_list(y) : scalar(y, false);
    if (st != ROSE_OK || line_is_over(y)) return st;
    return fail(y, "text follows a value on its line");
}

static rose_status list_item(yaml *y, long indent)
{
    if (!y->open) return fail(y, "a list item ('- ') belongs to no key");
    if (y->indent >= 0 && y->indent != indent)
        return fail(y, "a list item is not indented as the one before it");
    y->indent = indent;
    y->out->items[y->out->n - 1].list = true;
    y->at++;
    if (line_is_over(y)) return fail(y, "a list item has no value");
    return value(y, true);
}

static bool key_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
}

static rose_status key_line(yaml *y)
{
    const char *key = y->at;
    rose_status st = ROSE_OK;
    y->text.len = 0;
    if (*key == '"' || *key == '\'') {
        st = quoted(y);
    } else {
        while (y->at < y->end && key_byte(*y->at))
            y->at++;
        if (rose_buf_add(&y->text, key, (size_t)(y->at - key)) != ROSE_OK) st = no_memory(y);
    }
    if (st != ROSE_OK) return st;
    skip_blanks(y);
    if (y->text.len == 0 || y->at == y->end || *y->at != ':' ||
        (y->at + 1 < y->end && y->at[1] != ' ' && y->at[1] != '\t'))
        return fail(y, "expected 'key: value'");
    y->at++;
    if (rose_opts_file_key(y->out, y->text.data, y->text.len, y->line) != ROSE_OK)
        return no_memory(y);
    y->text.len = 0;
    y->open = line_is_over(y);
    y->indent = -1;
    return y->open ? ROSE_OK : value(y, false);
}

/* The last key must have got a value. */
static rose_status end_key(yaml *y)
{
    const rose_opts_file *c = y->out;
    if (!y->open || c->items[c->n - 1].list) return ROSE_OK;
    y->line = c->items[c->n - 1].line;
    return fail(y, "a key has no value");
}

static rose_status check_bytes(yaml *y)
{
    for (const char *p = y->at; p < y->end; p++) {
        if (((unsigned char)*p < ' ' && *p != '\t') || *p == 0x7f)
            return fail(y, "a control character");
    }
    return ROSE_OK;
}

static rose_status one_line(yaml *y)
{
    const char *from = y->at;
    rose_status st = check_bytes(y);
    if (st != ROSE_OK) return st;
    while (y->at < y->end && *y->at == ' ')
        y->at++;
    const long indent = (long)(y->at - from);
    const bool tab = y->at < y->end && *y->at == '\t';
    if ((y->at < y->end && *y->at == '#') || line_is_over(y)) return ROSE_OK;
    if (tab) return fail(y, "a tab in the indentation; YAML allows only spaces there");
    if (indent == 0 && y->end - y->at >= 3 && memcmp(y->at, "---", 3) == 0) {
        y->at += 3;
        if (y->begun || !line_is_over(y)) return fail(y, "a file may hold only one document");
        y->begun = true;
        return ROSE_OK;
    }
    y->begun = true;
    if (*y->at == '-' && (y->at + 1 == y->end || y->at[1] == ' ' || y->at[1] == '\t'))
        return list_item(y, indent);
    if (indent > 0)
        return fail(y, "an indented line: nested keys and text over several lines are not "
                       "understood. Begin keys in the first column, and write an object as JSON on "
                       "the line of its key");
    st = end_key(y);
    return st == ROSE_OK ? key_line(y) : st;
}

rose_status rose_opts_file_yaml(rose_opts_file *out, const char *path, const char *text, size_t n,
                                rose_err *err)
{
    yaml y = {.path = path, .next = text, .file_end = text + n, .out = out, .err = err};
    rose_status st = ROSE_OK;
    if (n >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) y.next += 3;
    while (st == ROSE_OK && next_line(&y))
        st = one_line(&y);
    if (st == ROSE_OK) st = end_key(&y);
    rose_buf_free(&y.text);
    return st;
}
