/* base/json_write.c - JSON text of a value, and values from a format; see json.h. */
#include <locale.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_internal.h"

/* ---- strings and numbers ---- */

/* The character after the backslash; 'u' = \u00XX; 0 = the byte stands for itself. */
static const char escape_of[256] = {
    ['\b'] = 'b',  ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't', ['"'] = '"',
    ['\\'] = '\\', [0x00] = 'u', [0x01] = 'u', [0x02] = 'u', [0x03] = 'u', [0x04] = 'u',
    [0x05] = 'u',  [0x06] = 'u', [0x07] = 'u', [0x0B] = 'u', [0x0E] = 'u', [0x0F] = 'u',
    [0x10] = 'u',  [0x11] = 'u', [0x12] = 'u', [0x13] = 'u', [0x14] = 'u', [0x15] = 'u',
    [0x16] = 'u',  [0x17] = 'u', [0x18] = 'u', [0x19] = 'u', [0x1A] = 'u', [0x1B] = 'u',
    [0x1C] = 'u',  [0x1D] = 'u', [0x1E] = 'u', [0x1F] = 'u'};

static const char upper[] = "0123456789ABCDEF", lower[] = "0123456789abcdef";

/* \uXXXX */
static unsigned put_unit(char *out, uint32_t unit, const char *hex)
{
    out[0] = '\\';
    out[1] = 'u';
    for (unsigned i = 0; i < 4; i++)
        out[2 + i] = hex[unit >> (12 - 4 * i) & 15];
    return 6;
}

static unsigned put_byte(char *out, unsigned char byte, const char *hex)
{
    const char letter = escape_of[byte];
    if (letter == 'u') return put_unit(out, byte, hex);
    out[0] = letter == 0 ? (char)byte : '\\';
    if (letter != 0) out[1] = letter;
    return letter == 0 ? 1 : 2;
}

unsigned rose_json_escape_byte(char out[ROSE_JSON_BYTE_CAP], char byte)
{
    return put_byte(out, (unsigned char)byte, lower);
}

unsigned rose_json_escape_code(char out[ROSE_JSON_CODE_CAP], uint32_t cp)
{
    if (cp < 0x10000) return put_unit(out, cp, lower);
    put_unit(out, 0xD800 + ((cp - 0x10000) >> 10), lower);
    return 6 + put_unit(out + 6, 0xDC00 + (cp & 0x3FF), lower);
}

static rose_status escape(rose_buf *out, const char *s, size_t len, const char *hex)
{
    char seq[ROSE_JSON_BYTE_CAP];
    size_t begin = 0;
    rose_status st = ROSE_OK;
    for (size_t i = 0; i < len && st == ROSE_OK; i++) {
        const unsigned char byte = (unsigned char)s[i];
        if (escape_of[byte] == 0) continue;
        st = rose_buf_add(out, s + begin, i - begin);
        if (st == ROSE_OK) st = rose_buf_add(out, seq, put_byte(seq, byte, hex));
        begin = i + 1;
    }
    return st == ROSE_OK && len > begin ? rose_buf_add(out, s + begin, len - begin) : st;
}

rose_status rose_json_escape(rose_buf *out, const char *s, size_t len)
{
    return escape(out, s, len, upper);
}

rose_status rose_json_escape_lower(rose_buf *out, const char *s, size_t len)
{
    return escape(out, s, len, lower);
}

void rose_json_format_real(char out[ROSE_JSON_NUMBER_CAP], double d, int precision)
{
    const locale_t before = uselocale(rose_json_c_locale());
    snprintf(out, ROSE_JSON_NUMBER_CAP, "%.*g", precision, d);
    uselocale(before);
    if (strpbrk(out, ".en") == NULL) strcat(out, ".0"); /* so that it stays a real */
    char *at = strchr(out, 'e');
    if (at == NULL) return;
    char *digits = at + 2 + strspn(at + 2, "0"); /* an exponent without '+' and leading zeros */
    at += at[1] == '-' ? 2 : 1;
    memmove(at, digits, strlen(digits) + 1);
}

const char *rose_json_number_text(const rose_json *v, char buf[ROSE_JSON_NUMBER_CAP])
{
    const char *own = rose_json_own_text(v);
    if (own != NULL) return own;
    if (rose_json_is_real(v))
        rose_json_format_real(buf, rose_json_real_value(v), 17);
    else
        snprintf(buf, ROSE_JSON_NUMBER_CAP, "%lld", (long long)rose_json_int(v));
    return buf;
}

/* ---- values ---- */

typedef struct writer {
    rose_buf *out;
    unsigned flags;
    unsigned depth;
    bool oom;
} writer;

static void put(writer *w, const char *bytes, size_t n)
{
    if (!w->oom && rose_buf_add(w->out, bytes, n) != ROSE_OK) w->oom = true;
}

static void put_string(writer *w, const char *s, size_t len)
{
    put(w, "\"", 1);
    if (!w->oom && rose_json_escape(w->out, s, len) != ROSE_OK) w->oom = true;
    put(w, "\"", 1);
}

/* What stands after a bracket or a comma, or before a closing bracket. */
static void put_space(writer *w, bool after_comma)
{
    const unsigned indent = w->flags & 31u;
    if (indent == 0 && after_comma && !(w->flags & ROSE_JSON_COMPACT)) put(w, " ", 1);
    if (indent == 0) return;
    put(w, "\n", 1);
    for (unsigned i = 0; i < indent * w->depth; i++)
        put(w, " ", 1);
}

static void put_value(writer *w, const rose_json *v);

static void put_members(writer *w, const rose_json *v)
{
    const bool object = rose_json_is_object(v);
    const size_t n = object ? rose_json_size(v) : rose_json_count(v);
    w->depth++;
    for (size_t i = 0; i < n; i++) {
        size_t len = 0;
        const char *key = rose_json_key_at(v, i, &len);
        if (i > 0) put(w, ",", 1);
        put_space(w, i > 0);
        if (object) {
            put_string(w, key, len);
            put(w, ": ", w->flags & ROSE_JSON_COMPACT ? 1 : 2);
        }
        put_value(w, object ? rose_json_member_at(v, i) : rose_json_at(v, i));
    }
    w->depth--;
    if (n > 0) put_space(w, false);
}

static void put_number(writer *w, const rose_json *v)
{
    char buf[ROSE_JSON_NUMBER_CAP];
    const int precision = (int)(w->flags >> 8u & 31u);
    const char *text = buf;
    if (precision > 0 && rose_json_is_real(v) && !rose_json_is_big(v))
        rose_json_format_real(buf, rose_json_real_value(v), precision);
    else
        text = rose_json_number_text(v, buf);
    put(w, text, strlen(text));
}

static void put_value(writer *w, const rose_json *v)
{
    switch (rose_json_kind_of(v)) {
    case ROSE_JSON_OBJECT:
        put(w, "{", 1);
        put_members(w, v);
        put(w, "}", 1);
        break;
    case ROSE_JSON_ARRAY:
        put(w, "[", 1);
        put_members(w, v);
        put(w, "]", 1);
        break;
    case ROSE_JSON_STRING:
        put_string(w, rose_json_text(v), rose_json_text_len(v));
        break;
    case ROSE_JSON_INTEGER:
    case ROSE_JSON_REAL:
        put_number(w, v);
        break;
    case ROSE_JSON_TRUE:
        put(w, "true", 4);
        break;
    case ROSE_JSON_FALSE:
        put(w, "false", 5);
        break;
    case ROSE_JSON_NULL:
    default:
        put(w, "null", 4);
    }
}

rose_status rose_json_dump(rose_buf *out, const rose_json *v, unsigned flags)
{
    writer w = {.out = out, .flags = flags};
    if (v == NULL) return ROSE_E_INVAL;
    put_value(&w, v);
    return w.oom ? ROSE_E_NOMEM : ROSE_OK;
}

char *rose_json_dumps(const rose_json *v, unsigned flags)
{
    rose_buf b = {0};
    if (rose_json_dump(&b, v, flags) == ROSE_OK && rose_buf_str(&b) != NULL) return b.data;
    rose_buf_free(&b);
    return NULL;
}

int rose_json_dumpf(const rose_json *v, FILE *file, unsigned flags)
{
    rose_buf b = {0};
    const bool ok =
        rose_json_dump(&b, v, flags) == ROSE_OK && fwrite(b.data, 1, b.len, file) == b.len;
    rose_buf_free(&b);
    return ok ? 0 : -1;
}

/* ---- values from a format ---- */

typedef struct packer {
    const char *at;
    va_list args;
    bool bad; /* the arguments that follow are read and released only */
} packer;

static char next(packer *p)
{
    p->at += strspn(p->at, " \n\t:,");
    return *p->at != '\0' ? *p->at++ : '\0';
}

static bool take(packer *p, char c)
{
    if (*p->at != c) return false;
    p->at++;
    return true;
}

static rose_json *pack_value(packer *p, char c);

static rose_json *pack_container(packer *p, bool object)
{
    rose_json *out = object ? rose_json_object() : rose_json_array();
    p->bad |= out == NULL;
    for (char c = next(p); c != (object ? '}' : ']') && c != '\0'; c = next(p)) {
        const char *key = object ? va_arg(p->args, const char *) : NULL;
        rose_json *v = pack_value(p, object ? next(p) : c);
        if (p->bad)
            rose_json_decref(v);
        else if (object ? rose_json_set_new(out, key, v) : rose_json_append_new(out, v))
            p->bad = true;
    }
    return out;
}

static rose_json *pack_string(packer *p)
{
    const char *s = va_arg(p->args, const char *);
    const int len = take(p, '#') ? va_arg(p->args, int) : -1;
    if (take(p, '?') && s == NULL) return rose_json_null();
    return s != NULL && len >= 0 ? rose_json_stringn(s, (size_t)len) : rose_json_string(s);
}

static rose_json *pack_value(packer *p, char c)
{
    switch (c) {
    case '{':
    case '[':
        return pack_container(p, c == '{');
    case 's':
        return pack_string(p);
    case 'n':
        return rose_json_null();
    case 'b':
        return rose_json_boolean(va_arg(p->args, int) != 0);
    case 'i':
        return rose_json_integer(va_arg(p->args, int));
    case 'I':
        return rose_json_integer(va_arg(p->args, int64_t));
    case 'f':
        return rose_json_real(va_arg(p->args, double));
    case 'o':
        return va_arg(p->args, rose_json *);
    case 'O':
        return rose_json_incref(va_arg(p->args, const rose_json *));
    default:
        return NULL;
    }
}

rose_json *rose_json_pack(const char *format, ...)
{
    packer p = {.at = format};
    va_start(p.args, format);
    rose_json *v = pack_value(&p, next(&p));
    va_end(p.args);
    if (v != NULL && !p.bad) return v;
    rose_json_decref(v);
    return NULL;
}
