/* api/errors.c - errors in OpenAI's form: {"error":{"message","type","param","code"}}. The type
 * follows from the status, so that a client's exception classes work. */
#include <stdio.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/utf8.h"

void rose_api_utf8_clean(char *s)
{
    char *const end = s + strlen(s);
    while ((s += rose_utf8_valid_prefix(s, (size_t)(end - s))) < end)
        *s++ = '?';
}

bool rose_api_fail(rose_api_error *e, int status, const char *code, const char *param,
                   const char *fmt, ...)
{
    va_list ap;
    e->status = status;
    e->retry_s = 0;
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param == NULL ? "" : param);
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    rose_api_utf8_clean(e->param);
    rose_api_utf8_clean(e->msg);
    return false;
}

bool rose_api_fail_nomem(rose_api_error *e)
{
    return rose_api_fail(e, 503, "out_of_memory", NULL, "the server is out of memory");
}

bool rose_api_fail_wrong(rose_api_error *e, const char *name, const char *wanted)
{
    return rose_api_fail(e, 400, NULL, name, "field '%.80s' must be %s", name, wanted);
}

bool rose_api_fail_type(rose_api_error *e, const char *param, const char *name,
                        const rose_json *type)
{
    return rose_api_fail(e, 400, "unsupported_field", param,
                         "%s: the type '%.40s' is not supported by this server", name,
                         rose_json_is_string(type) ? rose_json_text(type) : "null");
}

bool rose_api_fail_unsupported(rose_api_error *e, const char *name, const char *why)
{
    return rose_api_fail(e, 400, "unsupported_field", name,
                         "field '%.80s' is not supported by this server%s%s", name,
                         why != NULL ? ": " : "", why != NULL ? why : "");
}

void rose_api_fail_status(rose_api_error *e, rose_status st, const rose_err *err,
                          const rose_engine *engine)
{
    bool busy = st == ROSE_E_FULL || st == ROSE_E_LATE;
    uint32_t retry_s = busy && engine != NULL ? rose_engine_retry_after_s(engine) : 0;
    if (st == ROSE_E_LATE) {
        rose_api_fail(e, 429, ROSE_API_CODE_LATE, NULL,
                      "the first token could not come within the server's --ttft-slo-ms; retry "
                      "after the time in Retry-After");
    } else if (st == ROSE_E_FULL) {
        rose_api_fail(e, 429, "rate_limit_exceeded", NULL,
                      "the server's queue is full; retry after the time in Retry-After");
    } else if (st == ROSE_E_CLOSED) {
        rose_api_fail(e, 503, "service_unavailable", NULL, "the server is shutting down");
    } else if (st == ROSE_E_NOMEM) {
        rose_api_fail_nomem(e);
    } else if (st == ROSE_E_INVAL || st == ROSE_E_UNSUPPORTED) {
        rose_api_fail(e, 400, NULL, NULL, "%s", err->msg);
    } else {
        rose_api_fail(e, 500, "engine_error", NULL, "the engine failed: %s",
                      err->msg[0] != '\0' ? err->msg : rose_status_name(st));
    }
    e->retry_s = retry_s;
}

static const char *error_type(int status)
{
    if (status == 401) return "authentication_error";
    if (status == 429) return "rate_limit_error";
    return status >= 500 ? "server_error" : "invalid_request_error";
}

static void put_or_null(rose_api_out *o, const char *text)
{
    if (text != NULL)
        rose_api_json(o, "%-s", text);
    else
        rose_api_puts(o, "null");
}

void rose_api_error_json(rose_api_out *o, const rose_api_error *e)
{
    rose_api_json(o, "{'error':{'message':%-s,'type':'%s','param':", e->msg, error_type(e->status));
    put_or_null(o, e->param[0] != '\0' ? e->param : NULL);
    rose_api_json(o, ",'code':");
    put_or_null(o, e->code);
    rose_api_puts(o, "}}");
}

/* Counts the answer and returns its headers, with the client's label among them. */
static const char *prepare(rose_api_io *io, rose_http_req *r, int status, const char *headers,
                           char *lines, size_t cap)
{
    const char *label = rose_http_req_header(r, "X-Request-Id");
    rose_api_count_http(io, r, status);
    rose_api_count_http_time(io, r);
    if (label == NULL || !rose_api_label_is_sound(label)) return headers;
    snprintf(lines, cap, "%sX-Request-Id: %s\r\n", headers != NULL ? headers : "", label);
    return lines;
}

/* X-Ignored-Fields has 1,120 bytes at most, our other headers 500, the label 128. */
enum { LINES = 2048 };

void rose_api_reply(rose_api_io *io, rose_http_req *r, int status, const char *type,
                    const char *headers, const void *body, size_t len)
{
    char lines[LINES];
    headers = prepare(io, r, status, headers, lines, sizeof lines);
    rose_http_reply(r, status, type, headers, body, len);
}

void rose_api_reply_take(rose_api_io *io, rose_http_req *r, const char *type, const char *headers,
                         rose_buf *body)
{
    char lines[LINES];
    headers = prepare(io, r, 200, headers, lines, sizeof lines);
    rose_http_reply_take(r, 200, type != NULL ? type : "application/json", headers, body);
}

bool rose_api_label_is_sound(const char *s)
{
    const size_t n = strspn(s, ROSE_ALNUM "._:/+=@-");
    return s[n] == '\0' && n > 0 && n <= ROSE_API_MAX_LABEL;
}

void rose_api_put_label(rose_api_out *o, const rose_http_req *r)
{
    const char *label = rose_http_req_header(r, "X-Request-Id");
    if (label != NULL) rose_api_json(o, "X-Request-Id: %s\r\n", label);
}

void rose_api_reply_error(rose_api_io *io, rose_http_req *r, const rose_api_error *e)
{
    static const char last_resort[] = "{\"error\":{\"message\":\"out of memory\",\"type\":"
                                      "\"server_error\",\"param\":null,\"code\":null}}";
    bool retry = e->status == 429 || e->status == 503;
    char after[40];
    rose_api_out o = {0};
    snprintf(after, sizeof after, "Retry-After: %u\r\n", e->retry_s > 0 ? e->retry_s : 1);
    rose_api_count_refusal(io, e);
    rose_api_route_dialect(rose_http_req_info(r)->path)->error(&o, e);
    if (o.oom)
        rose_api_reply(io, r, e->status, "application/json", NULL, last_resort,
                       sizeof last_resort - 1);
    else
        rose_api_reply(io, r, e->status, "application/json", retry ? after : NULL, o.b.data,
                       o.b.len);
    rose_api_out_free(&o);
}
