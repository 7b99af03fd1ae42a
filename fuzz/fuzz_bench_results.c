/* libFuzzer target: arbitrary JSON as a results file of another version or another program, into
 * the report's tables and the plots' script. Checked: no text of it can leave its place: the page
 * has no element, and the script no line, that we did not write. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "bench/plot_internal.h"
#include "bench/report_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_page(const rose_html *h)
{
    static const char *const known[] = {
        "p",    "/p",      "div",    "/div",     "table",   "/table",  "thead", "tr",
        "/tr",  "tbody",   "/tbody", "th",       "/th",     "td",      "pre",   "/td",
        "/pre", "details", "/thead", "/details", "summary", "/summary"};
    const char *p = h->out.data, *end = p + h->out.len;
    while (p < end && (p = memchr(p, '<', (size_t)(end - p))) != NULL) {
        const char *name = ++p;
        bool ok = false;
        while (p < end && *p != '>' && *p != ' ')
            p++;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            ok |= strlen(known[i]) == (size_t)(p - name) &&
                  memcmp(known[i], name, (size_t)(p - name)) == 0;
        if (!ok) abort();
    }
}

static void check_script(const char *text, size_t n)
{
    const char *p = text, *end = text + n;
    if (n == 0) return;
    if (memchr(p, '`', n) != NULL) abort(); /* gnuplot would run it */
    while (p < end) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        if (nl == NULL) abort();
        if (nl - p >= 6 && (memcmp(p, "system", 6) == 0 || p[0] == '!')) abort();
        p = nl + 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rose_json *root;
    rose_json_error e;
    rose_html h = {0};
    char *script = NULL;
    size_t n = 0;
    if (size > 65536 || rose_json_parse(&root, (const char *)data, size, 0, &e) != ROSE_OK)
        return 0;
    rose_report_environment(&h, root);
    rose_report_online(&h, root);
    rose_report_offline(&h, root);
    rose_report_ablate(&h, root);
    rose_report_any(&h, root);
    if (h.st != ROSE_OK) abort();
    check_page(&h);
    FILE *gp = open_memstream(&script, &n);
    if (gp == NULL) abort();
    rose_plot_online(gp, root);
    rose_plot_offline(gp, root);
    fclose(gp);
    check_script(script, n);
    free(script);
    rose_buf_free(&h.out);
    rose_json_decref(root);
    return 0;
}
