/* bench/trace.c - see trace.h. */
#include "bench/trace.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_TOKENS = 1 << 24, MAX_REQUESTS = 1 << 24 };

typedef struct reader {
    const char *path;
    uint32_t line;
    bool json, seconds; /* seconds: JSON lines whose times are not all whole numbers */
    int col_time, col_prompt, col_output;
    rose_trace *t;
    uint32_t cap;
} reader;

static rose_status fail_line(const reader *r, rose_err *err, const char *what)
{
    return rose_fail(err, ROSE_E_FORMAT, "trace %s, line %u: %s", r->path, r->line, what);
}

/* ---- CSV ---- */

/* The n-th field of a line, NUL-terminated in place of the comma; NULL = there is none. */
static char *field(char *line, int n)
{
    char *p = line;
    for (; n > 0; n--) {
        if ((p = strchr(p, ',')) == NULL) return NULL;
        p++;
    }
    return p;
}

static rose_status read_header(reader *r, char *line, rose_err *err)
{
    int n = 0;
    r->col_time = r->col_prompt = r->col_output = -1;
    for (char *save = NULL, *p = strtok_r(line, ",\r\n", &save); p != NULL;
         p = strtok_r(NULL, ",\r\n", &save), n++) {
        if (strcasecmp(p, "timestamp") == 0) r->col_time = n;
        if (strcmp(p, "ContextTokens") == 0 || strcmp(p, "Request tokens") == 0) r->col_prompt = n;
        if (strcmp(p, "GeneratedTokens") == 0 || strcmp(p, "Response tokens") == 0)
            r->col_output = n;
    }
    if (r->col_time < 0 || r->col_prompt < 0 || r->col_output < 0)
        return fail_line(r, err, "expected columns of time, prompt and output tokens");
    return ROSE_OK;
}

/* "2023-11-16 18:15:46.6805900" or a number of seconds */
static bool read_time(const char *p, double *out)
{
    struct tm tm;
    char *end;
    memset(&tm, 0, sizeof tm);
    const char *rest = strptime(p, "%Y-%m-%d %H:%M:%S", &tm);
    if (rest == NULL) {
        *out = strtod(p, &end);
        return end != p;
    }
    *out = (double)timegm(&tm) + (*rest == '.' ? strtod(rest, NULL) : 0);
    return true;
}

static bool read_count(const char *p, uint32_t *out)
{
    char *end;
    if (p == NULL || *p < '0' || *p > '9') return false;
    unsigned long v = strtoul(p, &end, 10);
    *out = (uint32_t)v;
    return v <= MAX_TOKENS;
}

static rose_status read_csv(reader *r, char *line, rose_trace_request *q, rose_err *err)
{
    const char *time = field(line, r->col_time);
    if (time == NULL || !read_time(time, &q->at_s) ||
        !read_count(field(line, r->col_prompt), &q->n_prompt) ||
        !read_count(field(line, r->col_output), &q->n_output))
        return fail_line(r, err, "expected a time and two counts of tokens");
    return ROSE_OK;
}

/* ---- JSON lines ---- */

static rose_status read_blocks(const reader *r, const json_t *list, rose_trace_request *q,
                               rose_err *err)
{
    size_t n = json_array_size(list);
    if (n == 0 || n > q->n_prompt) return ROSE_OK;
    if ((q->blocks = calloc(n, sizeof *q->blocks)) == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "trace %s: out of memory", r->path);
    for (size_t i = 0; i < n; i++)
        q->blocks[i] = (uint64_t)json_integer_value(json_array_get(list, i));
    q->n_blocks = (uint32_t)n;
    q->block_tokens = q->n_prompt <= n * 16 ? 16 : 512; /* Qwen-Bailian, Mooncake */
    return ROSE_OK;
}

static rose_status read_json(reader *r, const char *line, rose_trace_request *q, rose_err *err)
{
    json_t *root = json_loads(line, 0, NULL);
    const json_t *time = json_object_get(root, "timestamp");
    json_int_t n_prompt = json_integer_value(json_object_get(root, "input_length"));
    json_int_t n_output = json_integer_value(json_object_get(root, "output_length"));
    rose_status st = ROSE_OK;
    if (!json_is_number(time) || n_prompt < 0 || n_prompt > MAX_TOKENS || n_output < 0 ||
        n_output > MAX_TOKENS) {
        st = fail_line(r, err, "expected an object with timestamp, input_length, output_length");
    } else {
        q->at_s = json_number_value(time);
        q->n_prompt = (uint32_t)n_prompt;
        q->n_output = (uint32_t)n_output;
        r->seconds = r->seconds || json_is_real(time);
        st = read_blocks(r, json_object_get(root, "hash_ids"), q, err);
    }
    json_decref(root);
    return st;
}

/* ---- the file ---- */

static rose_status append(reader *r, rose_trace_request *q, rose_err *err)
{
    rose_trace *t = r->t;
    if (q->n_prompt == 0 || q->n_output == 0) {
        free(q->blocks);
        return ROSE_OK;
    }
    if (t->n == r->cap) {
        uint32_t cap = r->cap ? r->cap * 2 : 1024;
        rose_trace_request *more = realloc(t->requests, cap * sizeof *more);
        if (more == NULL) {
            free(q->blocks);
            return rose_fail(err, ROSE_E_NOMEM, "trace %s: out of memory", r->path);
        }
        t->requests = more;
        r->cap = cap;
    }
    t->requests[t->n++] = *q;
    return ROSE_OK;
}

static rose_status read_line(reader *r, char *line, rose_err *err)
{
    rose_trace_request q = {0};
    r->line++;
    if (r->line == 1) {
        r->json = line[0] == '{';
        if (!r->json) return read_header(r, line, err);
    }
    if (line[0] == '\n' || line[0] == '\0') return ROSE_OK;
    rose_status st = r->json ? read_json(r, line, &q, err) : read_csv(r, line, &q, err);
    return st == ROSE_OK ? append(r, &q, err) : st;
}

static int by_time(const void *a, const void *b)
{
    double x = ((const rose_trace_request *)a)->at_s, y = ((const rose_trace_request *)b)->at_s;
    return (x > y) - (x < y);
}

rose_status rose_trace_read(rose_trace *out, const char *path, uint32_t max_requests, rose_err *err)
{
    reader r = {.path = path, .t = out};
    rose_status st = ROSE_OK;
    char *line = NULL;
    size_t cap = 0;
    *out = (rose_trace){0};
    if (max_requests == 0 || max_requests > MAX_REQUESTS) max_requests = MAX_REQUESTS;
    FILE *f = fopen(path, "re");
    if (f == NULL) return rose_fail(err, ROSE_E_IO, "trace %s: %s", path, strerror(errno));
    while (st == ROSE_OK && out->n < max_requests && getline(&line, &cap, f) >= 0)
        st = read_line(&r, line, err);
    if (st == ROSE_OK && ferror(f)) st = rose_fail(err, ROSE_E_IO, "trace %s: cannot read", path);
    if (st == ROSE_OK && out->n == 0)
        st = rose_fail(err, ROSE_E_FORMAT, "trace %s has no requests", path);
    fclose(f);
    free(line);
    if (st != ROSE_OK) {
        rose_trace_free(out);
        return st;
    }
    qsort(out->requests, out->n, sizeof *out->requests, by_time);
    double first = out->requests[0].at_s, unit = r.json && !r.seconds ? 1e-3 : 1;
    for (uint32_t i = 0; i < out->n; i++)
        out->requests[i].at_s = (out->requests[i].at_s - first) * unit;
    return ROSE_OK;
}

void rose_trace_free(rose_trace *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        free(t->requests[i].blocks);
    free(t->requests);
    *t = (rose_trace){0};
}
