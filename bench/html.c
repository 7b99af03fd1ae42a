/* bench/html.c - see report_internal.h. */
#include "bench/report_internal.h"

#include <string.h>

#include "base/utf8.h"

static const char *entity(char c)
{
    static const char *const known[128] = {
        ['&'] = "&amp;",  ['<'] = "&lt;",   ['>'] = "&gt;",
        ['"'] = "&quot;", ['\''] = "&#39;", [0x7f] = "\xef\xbf\xbd"};
    const unsigned char u = (unsigned char)c;
    if (u < 0x20) return c == '\n' || c == '\t' ? NULL : "\xef\xbf\xbd";
    return u < 128 ? known[u] : NULL;
}

void rose_html_text(rose_html *h, const char *text)
{
    if (text == NULL) return;
    const char *run = text;
    const uint8_t *end = (const uint8_t *)text + strlen(text) + 1;
    for (const char *p = text; h->st == ROSE_OK; p++) {
        uint32_t cp;
        const char *e = *p != '\0' ? entity(*p) : NULL;
        const unsigned k = rose_utf8_decode((const uint8_t *)p, end, &cp);
        if (k == 0) e = "\xef\xbf\xbd";
        if (*p != '\0' && e == NULL) {
            p += k - 1;
            continue;
        }
        h->st = rose_buf_add(&h->out, run, (size_t)(p - run));
        if (*p == '\0') return;
        if (h->st == ROSE_OK) h->st = rose_buf_add(&h->out, e, strlen(e));
        run = p + 1;
    }
}

void rose_html_data_uri(rose_html *h, const char *type, const char *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    rose_html_raw(h, "data:%s;base64,", type);
    if (h->st == ROSE_OK) h->st = rose_buf_reserve(&h->out, n / 3 * 4 + 4);
    if (h->st != ROSE_OK) return;
    char *out = h->out.data + h->out.len;
    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i;
        const uint32_t a = (unsigned char)bytes[i], b = left > 1 ? (unsigned char)bytes[i + 1] : 0,
                       c = left > 2 ? (unsigned char)bytes[i + 2] : 0, v = a << 16 | b << 8 | c;
        *out++ = digits[v >> 18];
        *out++ = digits[v >> 12 & 63];
        *out++ = left > 1 ? digits[v >> 6 & 63] : '=';
        *out++ = left > 2 ? digits[v & 63] : '=';
    }
    h->out.len = (size_t)(out - h->out.data);
}
