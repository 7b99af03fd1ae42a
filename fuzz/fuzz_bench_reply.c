/* libFuzzer target: arbitrary bytes as what a server answers to the load generator, in pieces whose
 * size the first byte gives. Checked: the reply says success or why not, its times are in order,
 * its texts are UTF-8, and the pieces make no difference to the outcome. */
#include <stdlib.h>
#include <string.h>

#include "bench/reply.h"
#include "tokenizer/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static rose_reply feed(const char *bytes, size_t n, size_t piece)
{
    rose_reader r;
    rose_reply reply = {0};
    rose_status st = ROSE_OK;
    uint64_t t = 1000;
    reply.start_ns = 1;
    rose_reader_init(&r);
    rose_reader_begin(&r, &reply);
    for (size_t at = 0; at < n && st == ROSE_OK && !r.complete; at += piece)
        st = rose_reader_feed(&r, bytes + at, n - at < piece ? n - at : piece, t++);
    if (st == ROSE_OK && !r.complete) st = rose_reader_eof(&r, t);
    if (st != ROSE_OK && reply.error[0] == '\0') abort();
    rose_reply_settle(&reply);
    rose_reader_free(&r);
    return reply;
}

static void check(const rose_reply *r)
{
    uint64_t before = 0;
    for (uint32_t i = 0; i < r->n_events; i++) {
        if (r->arrivals[i].t_ns < before) abort();
        before = r->arrivals[i].t_ns;
    }
    if (r->first_ns > r->last_ns) abort();
    if (r->error[0] == '\0' && (r->n_tokens == 0 || r->status != 200 || r->first_ns == 0)) abort();
    if (rose_utf8_valid_prefix(r->error, strlen(r->error)) != strlen(r->error) ||
        rose_utf8_valid_prefix(r->finish, strlen(r->finish)) != strlen(r->finish))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    const char *bytes = (const char *)data + 1;
    rose_reply whole = feed(bytes, size - 1, size), parts = feed(bytes, size - 1, data[0] % 64 + 1);
    check(&whole);
    check(&parts);
    if ((whole.error[0] == '\0') != (parts.error[0] == '\0') ||
        (whole.error[0] == '\0' &&
         (whole.n_events != parts.n_events || whole.n_tokens != parts.n_tokens)))
        abort();
    rose_reply_free(&whole);
    rose_reply_free(&parts);
    return 0;
}
