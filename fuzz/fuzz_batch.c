/* libFuzzer target: what clients upload. The first byte chooses: a multipart body, or the lines of
 * a batch. */
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"
#include "batch/batch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_upload(const char *body, size_t len)
{
    static const char *const types[] = {"multipart/form-data; boundary=B",
                                        "multipart/form-data; a=\"b;\\\"\"; Boundary=\"B B\""};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        rose_multipart m;
        rose_multipart_part part;
        rose_err err = {{0}};
        if (rose_multipart_begin(&m, types[i], body, len, &err) != ROSE_OK) abort();
        const char *at = body;
        rose_status st;
        while ((st = rose_multipart_next(&m, &part, &err)) == ROSE_OK) {
            if (part.data < at || part.data + part.len > body + len) abort();
            if (part.name < at || part.name + part.name_len > part.data) abort();
            if (part.filename != NULL && part.filename + part.filename_len > part.data) abort();
            at = part.data + part.len;
        }
        if (st != ROSE_E_EMPTY && (st != ROSE_E_FORMAT || err.msg[0] == '\0')) abort();
    }
    /* the client also writes the header */
    char *type = malloc(len + 1);
    rose_multipart m;
    if (type == NULL) return;
    memcpy(type, body, len);
    type[len] = '\0';
    if (rose_multipart_begin(&m, type, body, len, NULL) == ROSE_OK &&
        (m.mark_len < 5 || m.mark_len >= sizeof m.mark))
        abort();
    free(type);
}

static void read_lines(const char *text, size_t len)
{
    rose_batch_request q = {0};
    while (len > 0) {
        const char *nl = memchr(text, '\n', len);
        const size_t n = nl == NULL ? len : (size_t)(nl - text);
        if (rose_batch_request_read(&q, text, n, NULL) != ROSE_OK) abort();
        if (q.named && q.id.len == 0) abort();
        if (q.code == NULL && (!q.named || q.path == NULL || q.body[0] != '{')) abort();
        if (q.code == NULL && (q.body < text || q.body + q.body_len > text + n)) abort();
        text += nl == NULL ? n : n + 1;
        len -= nl == NULL ? n : n + 1;
    }
    rose_batch_request_free(&q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    /* a copy of its own size, so that reading past the end is seen */
    char *text = malloc(size);
    if (text == NULL) return 0;
    memcpy(text, data, size);
    if (data[0] == 'm')
        read_upload(text + 1, size - 1);
    else
        read_lines(text + 1, size - 1);
    free(text);
    return 0;
}
