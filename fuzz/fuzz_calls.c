/* libFuzzer target: what a model writes. The first byte chooses the format and the options, the
 * second where the text is cut, and the rest is the text. The parts do not depend on the cuts,
 * calls are numbered in order, arguments follow their call, parts of valid UTF-8 are valid UTF-8,
 * and a reply without calls and reasoning is its text, byte by byte. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "chat/calls.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {"
    "\"s\": {\"type\": \"string\"}, \"i\": {\"type\": \"integer\"}, \"b\": {\"type\": "
    "\"boolean\"}, \"u\": {\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}, "
    "\"o\": {\"$ref\": \"#/$defs/o\"}, \"x\": {}}, \"$defs\": {\"o\": {\"type\": \"object\"}}}}}, "
    "{\"type\": \"function\", \"function\": {\"name\": \"g\"}}]";

typedef struct log {
    rose_buf all;  /* the parts, those of one kind joined */
    rose_buf text; /* of all text parts */
    rose_part_kind kind;
    uint32_t call, n_calls;
    bool any, reasoning, utf8;
} log;

static void add(rose_buf *b, const char *bytes, size_t n)
{
    if (rose_buf_add(b, bytes, n) != ROSE_OK) abort();
}

static void sink(void *arg, const rose_part *p)
{
    log *l = arg;
    char head[2] = {(char)('a' + (int)p->kind), (char)p->call};
    rose_json *s = l->utf8 ? rose_json_stringn(p->bytes, p->len) : rose_json_null();
    if (p->len == 0 || s == NULL) abort();
    rose_json_decref(s);
    if (p->kind == ROSE_PART_CALL && p->call != l->n_calls++) abort();
    if (p->kind == ROSE_PART_ARGS && p->call + 1 != l->n_calls) abort();
    if (p->kind == ROSE_PART_REASONING) l->reasoning = true;
    if (p->kind == ROSE_PART_TEXT) add(&l->text, p->bytes, p->len);
    if (!l->any || p->kind == ROSE_PART_CALL || p->kind != l->kind || p->call != l->call)
        add(&l->all, head, 2);
    add(&l->all, p->bytes, p->len);
    l->any = true;
    l->kind = p->kind;
    l->call = p->call;
}

static void parse(log *l, rose_calls_opts o, const char *text, size_t n, unsigned cuts)
{
    rose_calls *p;
    size_t at = 0;
    o.sink = sink;
    o.arg = l;
    if (rose_calls_create(&p, &o, NULL) != ROSE_OK) abort();
    while (at < n) {
        size_t piece = n - at;
        if (cuts != 0) {
            cuts = cuts * 1103515245u + 12345u;
            piece = 1 + (cuts >> 16) % 16;
            if (piece > n - at) piece = n - at;
        }
        if (rose_calls_push(p, text + at, piece) != ROSE_OK) abort();
        at += piece;
    }
    if (rose_calls_finish(p) != ROSE_OK || rose_calls_count(p) != l->n_calls) abort();
    rose_calls_destroy(p);
}

static bool is_utf8(const char *text, size_t n)
{
    rose_json *s = rose_json_stringn(text, n);
    rose_json_decref(s);
    return s != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static rose_json *tools;
    rose_json_error e;
    if (tools == NULL &&
        rose_json_parse(&tools, tools_text, sizeof tools_text - 1, 0, &e) != ROSE_OK)
        abort();
    if (size < 2) return 0;
    const char *text = (const char *)data + 2;
    const size_t n = size - 2;
    const rose_calls_opts o = {.format = data[0] % 7,
                               .reasoning = data[0] / 8 % 4,
                               .in_reasoning = (data[0] & 32) != 0,
                               .one_call = (data[0] & 64) != 0,
                               .tools = tools};
    log whole = {.utf8 = is_utf8(text, n)}, cut = {0};
    parse(&whole, o, text, n, 0);
    parse(&cut, o, text, n, 1u + data[1]);
    if (whole.all.len != cut.all.len ||
        (whole.all.len > 0 && memcmp(whole.all.data, cut.all.data, cut.all.len) != 0))
        abort();
    if (whole.n_calls == 0 && o.reasoning == ROSE_REASONING_NONE &&
        (whole.text.len != n || (n > 0 && memcmp(whole.text.data, text, n) != 0)))
        abort();
    rose_buf_free(&whole.all);
    rose_buf_free(&whole.text);
    rose_buf_free(&cut.all);
    rose_buf_free(&cut.text);
    return 0;
}
