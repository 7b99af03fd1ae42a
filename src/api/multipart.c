/* api/multipart.c - the parts of an upload, as a browser or curl -F sends it. */
#include <string.h>
#include <strings.h>

#include "api/api_internal.h"

static bool is_space(char c)
{
    return c == ' ' || c == '\t';
}

/* A character that a boundary may have (RFC 2046). */
static bool may_bound(char c)
{
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return true;
    return c != '\0' && strchr("'()+_,-./:=? ", c) != NULL;
}

/* Finds "; NAME=VALUE" or ; NAME="VALUE" in [p, end). False: it is not there. The value is not
 * unescaped: a quote within it is %22 in what browsers send, and \" in what others do. */
static bool parameter(const char *p, const char *end, const char *name, const char **value,
                      size_t *len)
{
    const size_t n = strlen(name);
    while (p < end) {
        const char *semicolon = memchr(p, ';', (size_t)(end - p));
        if (semicolon == NULL) return false;
        for (p = semicolon + 1; p < end && is_space(*p); p++) {
        }
        const bool is = (size_t)(end - p) > n && strncasecmp(p, name, n) == 0 && p[n] == '=';
        while (p < end && *p != '=' && *p != ';')
            p++;
        if (p == end || *p == ';') continue;
        p++;
        const bool quoted = p < end && *p == '"';
        const char *begin = p += quoted;
        while (p < end && (quoted ? *p != '"' : *p != ';'))
            p += quoted && *p == '\\' && end - p > 1 ? 2 : 1;
        if (quoted && p >= end) return false;
        *value = begin;
        *len = (size_t)(p - begin);
        while (!quoted && *len > 0 && is_space(begin[*len - 1]))
            --*len;
        if (is) return true;
        p += quoted;
    }
    return false;
}

rose_status rose_multipart_begin(rose_multipart *m, const char *type, const char *body, size_t len,
                                 rose_err *err)
{
    static const char form[] = "multipart/form-data";
    const char *value;
    size_t n;
    if (type == NULL || strncasecmp(type, form, sizeof form - 1) != 0 ||
        !parameter(type, type + strlen(type), "boundary", &value, &n))
        return rose_fail(err, ROSE_E_FORMAT,
                         "the upload needs the header 'Content-Type: multipart/form-data; "
                         "boundary=...'");
    bool sound = n > 0 && n <= ROSE_MULTIPART_BOUNDARY && value[n - 1] != ' ';
    for (size_t i = 0; sound && i < n; i++)
        sound = may_bound(value[i]);
    if (!sound)
        return rose_fail(err, ROSE_E_FORMAT, "the boundary in Content-Type has 1 to %d characters",
                         ROSE_MULTIPART_BOUNDARY);
    *m = (rose_multipart){.p = body, .end = body + len};
    memcpy(m->mark, "\r\n--", 4);
    memcpy(m->mark + 4, value, n);
    m->mark_len = n + 4;
    return ROSE_OK;
}

/* Goes to the next boundary; *len: the bytes before it. NULL: there is none. */
static const char *to_mark(rose_multipart *m, size_t *len)
{
    const char *begin = m->p;
    const char *mark = memmem(begin, (size_t)(m->end - begin), m->mark, m->mark_len);
    if (mark == NULL) return NULL;
    *len = (size_t)(mark - begin);
    m->p = mark + m->mark_len;
    return begin;
}

/* Reads name and filename from the lines of a part's head. */
static bool read_head(rose_multipart_part *part, const char *p, const char *end)
{
    static const char header[] = "Content-Disposition:";
    while (p < end) {
        const char *stop = memmem(p, (size_t)(end - p), "\r\n", 2);
        if (stop == NULL) stop = end;
        if ((size_t)(stop - p) >= sizeof header - 1 &&
            strncasecmp(p, header, sizeof header - 1) == 0) {
            const char *value = p + sizeof header - 1;
            if (!parameter(value, stop, "filename", &part->filename, &part->filename_len))
                part->filename = NULL;
            return parameter(value, stop, "name", &part->name, &part->name_len);
        }
        p = stop == end ? end : stop + 2;
    }
    return false;
}

rose_status rose_multipart_next(rose_multipart *m, rose_multipart_part *part, rose_err *err)
{
    size_t n;
    *part = (rose_multipart_part){0};
    if (m->n == 0) { /* the first boundary may begin the body, without a line end before it */
        const size_t first = m->mark_len - 2;
        if ((size_t)(m->end - m->p) >= first && memcmp(m->p, m->mark + 2, first) == 0)
            m->p += first;
        else if (to_mark(m, &n) == NULL)
            return rose_fail(err, ROSE_E_FORMAT,
                             "the body has no part: its boundary is not that "
                             "of the header Content-Type");
    }
    while (m->p < m->end && is_space(*m->p))
        m->p++;
    if (m->end - m->p >= 2 && memcmp(m->p, "--", 2) == 0) return ROSE_E_EMPTY;
    if (m->end - m->p < 2 || memcmp(m->p, "\r\n", 2) != 0)
        return rose_fail(err, ROSE_E_FORMAT, "the multipart body is cut off or malformed");
    if (++m->n > ROSE_MULTIPART_MAX_PARTS)
        return rose_fail(err, ROSE_E_FORMAT, "the multipart body has more than %d parts",
                         ROSE_MULTIPART_MAX_PARTS);
    const char *head =
        m->p; /* a head without lines has one line end, which also ends the empty line */
    const char *blank = memmem(head, (size_t)(m->end - head), "\r\n\r\n", 4);
    if (blank == NULL || !read_head(part, head + 2, blank))
        return rose_fail(err, ROSE_E_FORMAT,
                         "part %u of the multipart body has no header Content-Disposition with a "
                         "name",
                         m->n);
    m->p = blank + 4;
    /* Without content the boundary's line end is that of the empty line. */
    const size_t rest = m->mark_len - 2;
    if ((size_t)(m->end - m->p) >= rest && memcmp(m->p, m->mark + 2, rest) == 0) {
        part->data = m->p;
        m->p += rest;
        return ROSE_OK;
    }
    part->data = to_mark(m, &part->len);
    return part->data != NULL
               ? ROSE_OK
               : rose_fail(err, ROSE_E_FORMAT, "part %u of the multipart body has no end", m->n);
}
