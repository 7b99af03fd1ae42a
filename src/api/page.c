/* api/page.c - the page at /: one HTML file inside the program. tools/page joins it from page.html,
 * page.css and the scripts page*.js. Its Content-Security-Policy allows only the script and the
 * style of this file. The Makefile includes what tools/page writes: PAGE_FILE, PAGE_SHA256,
 * PAGE_SCRIPT_SHA256, PAGE_STYLE_SHA256.
 * I/O threads only. */
#include <string.h>

#include "api/api_internal.h"

/* The bytes of the joined page. */
__asm__(".pushsection .rodata\n"
        ".globl rose_api_page, rose_api_page_end\n"
        ".hidden rose_api_page, rose_api_page_end\n"
        "rose_api_page:\n"
        ".incbin \"" PAGE_FILE "\"\n"
        "rose_api_page_end:\n"
        ".byte 0\n"
        ".popsection\n");

extern const char rose_api_page[], rose_api_page_end[];

#define ETAG "\"" PAGE_SHA256 "\""

/* A model writes what it likes, so the browser must take none of it for HTML or code: no other
 * script runs, no text becomes HTML (trusted types), and only this server is asked for data. With
 * no-cache a browser asks each time, so that a new program shows its own page. */
static const char g_headers[] =
    "Content-Security-Policy: default-src 'none'; script-src 'sha256-" PAGE_SCRIPT_SHA256 "'; "
    "style-src 'sha256-" PAGE_STYLE_SHA256 "'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'\r\n"
    "X-Content-Type-Options: nosniff\r\n"
    "Referrer-Policy: no-referrer\r\n"
    "Cache-Control: no-cache\r\n"
    "ETag: " ETAG "\r\n";

void rose_api_get_page(rose_api_io *io, rose_http_req *r)
{
    const char *known = rose_http_req_header(r, "If-None-Match"); /* may be a list, or weak tags */
    if (known != NULL && (strcmp(known, "*") == 0 || strstr(known, ETAG) != NULL))
        rose_api_reply(io, r, 304, NULL, g_headers, NULL, 0);
    else
        rose_api_reply(io, r, 200, "text/html; charset=utf-8", g_headers, rose_api_page,
                       (size_t)(rose_api_page_end - rose_api_page));
}
