/* bench/load_trace.c - reads traces, generates the built-in workload, and cuts lengths to a
 * context. The files come from strangers, so any bytes must be survived. A line is either accepted
 * whole, or left out and reported with its number and the reason. */
#include "bench/load_trace.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "bench/stats.h"

enum {
    MAX_REPORTED = 20,
    MAX_AHEAD = 20,
    MAX_TOKENS = 1 << 24,
    MAX_COLUMNS = 16,
    MAX_LINE = 1 << 24,
    MAX_LENGTH = 1 << 20 /* of a generated prompt or output */
};

typedef struct reader {
    rose_load_trace *t;
    size_t cap_rows, cap_hashes;
    const char *name;
    FILE *report;
    uint32_t line;
    const char *rest, *end; /* the lines that are not read yet */
    /* CSV: the column numbers of time, prompt tokens and output tokens */
    int col_time, col_in, col_out;
    double unit;   /* seconds in one unit of the time column */
    char why[128]; /* why the last line was refused */
} reader;

void rose_load_trace_free(rose_load_trace *t)
{
    free(t->rows);
    free(t->hashes);
    *t = (rose_load_trace){0};
}

static rose_status add_row(reader *r, const rose_load_trace_row *row)
{
    rose_load_trace *t = r->t;
    if (t->n == r->cap_rows) {
        size_t cap = r->cap_rows == 0 ? 1024 : r->cap_rows * 2;
        rose_load_trace_row *p = realloc(t->rows, cap * sizeof *p);
        if (p == NULL) return ROSE_E_NOMEM;
        t->rows = p;
        r->cap_rows = cap;
    }
    t->rows[t->n++] = *row;
    return ROSE_OK;
}

static rose_status add_hash(reader *r, uint64_t h)
{
    rose_load_trace *t = r->t;
    if (t->n_hashes == UINT32_MAX) return ROSE_E_NOMEM;
    if (t->n_hashes == r->cap_hashes) {
        size_t cap = r->cap_hashes == 0 ? 4096 : r->cap_hashes * 2;
        uint64_t *p = realloc(t->hashes, cap * sizeof *p);
        if (p == NULL) return ROSE_E_NOMEM;
        t->hashes = p;
        r->cap_hashes = cap;
    }
    t->hashes[t->n_hashes++] = h;
    return ROSE_OK;
}

/* Converts "2023-11-16 18:15:46.6805900" to seconds. A T in place of the space and a time zone at
 * the end are also accepted. */
static bool parse_date(const char *s, double *out)
{
    static const char shape[] = "dddd-dd-dd dd:dd:dd"; /* d: a digit */
    struct tm t = {0};
    int second = 0;
    for (size_t i = 0; shape[i] != '\0'; i++) {
        if (shape[i] == 'd' ? !isdigit((unsigned char)s[i])
                            : s[i] != shape[i] && (i != 10 || s[i] != 'T'))
            return false;
    }
    sscanf(s, "%4d-%2d-%2d%*c%2d:%2d:%2d", &t.tm_year, &t.tm_mon, &t.tm_mday, &t.tm_hour, &t.tm_min,
           &second);
    if (second > 60) return false;
    t.tm_year -= 1900;
    t.tm_mon--;
    const struct tm given = t;
    const double minute = (double)timegm(&t);
    /* timegm changes a date that does not exist, such as February 30 */
    if (t.tm_mon != given.tm_mon || t.tm_mday != given.tm_mday || t.tm_hour != given.tm_hour ||
        t.tm_min != given.tm_min)
        return false;
    double fraction = 0, place = 0.1;
    const char *p = s + sizeof shape - 1;
    if (*p == '.') {
        for (p++; isdigit((unsigned char)*p); p++, place /= 10)
            fraction += place * (*p - '0');
    }
    if (*p != '\0' && *p != '+' && *p != 'Z') return false;
    *out = minute + second + fraction;
    return true;
}

static bool parse_time(const reader *r, const char *s, double *out)
{
    char *end;
    if (strlen(s) > 10 && s[4] == '-') return parse_date(s, out);
    if (!isdigit((unsigned char)s[0])) return false;
    double v = strtod(s, &end);
    if (*end != '\0' || !isfinite(v) || v > 1e15) return false;
    *out = v * r->unit;
    return true;
}

/* Reads a quoted field that begins at p. Its text is moved in place to p, commas included, and each
 * "" becomes one quote. Returns the byte after the closing quote, or NULL if there is none. */
static char *unquote(char *p)
{
    char *to = p;
    for (p++; *p != '\0' && (*p != '"' || p[1] == '"'); p++) {
        p += *p == '"';
        *to++ = *p;
    }
    if (*p == '\0') return NULL;
    *to = '\0';
    return p + 1;
}

/* Splits a line in place at the commas outside quotes and returns the number of fields. It ignores
 * fields after MAX_COLUMNS, and all fields from one whose quote is never closed. */
static int split_csv(char *line, char *field[MAX_COLUMNS])
{
    int n = 0;
    for (char *p = line; p != NULL && n < MAX_COLUMNS;) {
        while (isspace((unsigned char)*p))
            p++;
        const bool quoted = *p == '"';
        char *rest = quoted ? unquote(p) : p;
        if (rest == NULL) break;
        char *next = strchr(rest, ',');
        if (next != NULL) *next++ = '\0';
        field[n++] = p;
        size_t len = strlen(p);
        while (!quoted && len > 0 && isspace((unsigned char)p[len - 1]))
            p[--len] = '\0';
        p = next;
    }
    return n;
}

static int find_column(char *const *field, int n, const char *name)
{
    for (int i = 0; i < n; i++) {
        if (strcasecmp(field[i], name) == 0) return i;
    }
    return -1;
}

/* Finds the format by the header line. */
static bool read_header(reader *r, char *line)
{
    char *field[MAX_COLUMNS];
    int n = split_csv(line, field);
    r->unit = 1;
    r->col_time = find_column(field, n, "timestamp");
    r->col_in = find_column(field, n, "ContextTokens");
    r->col_out = find_column(field, n, "GeneratedTokens");
    r->t->format = "azure";
    if (r->col_in < 0) {
        r->col_in = find_column(field, n, "Request tokens");
        r->col_out = find_column(field, n, "Response tokens");
        r->t->format = "burstgpt";
    }
    return r->col_time >= 0 && r->col_in >= 0 && r->col_out >= 0;
}

static rose_status refuse(reader *r, const char *what)
{
    snprintf(r->why, sizeof r->why, "%.100s", what);
    return ROSE_E_FORMAT;
}

/* Reads a count of tokens, 1 .. MAX_TOKENS. v is NaN if the field held no number. */
static rose_status take_tokens(reader *r, const char *what, double v, uint32_t *out)
{
    const bool too_large = v > MAX_TOKENS;
    if (!too_large && v >= 1 && v == floor(v)) {
        *out = (uint32_t)v;
        return ROSE_OK;
    }
    if (too_large)
        snprintf(r->why, sizeof r->why, "%s is over %d tokens", what, MAX_TOKENS);
    else
        snprintf(r->why, sizeof r->why, "no %s of 1 or more", what);
    return ROSE_E_FORMAT;
}

/* "12.0" is accepted, because spreadsheets write counts like that */
static rose_status parse_tokens(reader *r, const char *what, const char *s, uint32_t *out)
{
    char *end = NULL;
    double v = isdigit((unsigned char)s[0]) ? strtod(s, &end) : (double)NAN;
    return take_tokens(r, what, end != NULL && *end == '\0' ? v : (double)NAN, out);
}

static rose_status read_csv_row(reader *r, char *line)
{
    char *field[MAX_COLUMNS];
    rose_load_trace_row row = {0};
    int n = split_csv(line, field);
    if (n <= r->col_time || n <= r->col_in || n <= r->col_out) return refuse(r, "too few fields");
    if (!parse_time(r, field[r->col_time], &row.at_s)) return refuse(r, "no time stamp");
    rose_status st = parse_tokens(r, "input length", field[r->col_in], &row.n_in);
    if (st == ROSE_OK) st = parse_tokens(r, "output length", field[r->col_out], &row.n_out);
    return st == ROSE_OK ? add_row(r, &row) : st;
}

static rose_status json_tokens(reader *r, const rose_json *o, const char *key, uint32_t *out)
{
    const rose_json *v = rose_json_get(o, key);
    return take_tokens(r, key, rose_json_is_number(v) ? rose_json_number_value(v) : (double)NAN,
                       out);
}

static rose_status read_hashes(reader *r, const rose_json *list, rose_load_trace_row *row)
{
    size_t i;
    const rose_json *v;
    size_t start = r->t->n_hashes;
    row->hash0 = (uint32_t)start;
    rose_json_each_item (list, i, v) {
        if (!rose_json_is_integer(v)) {
            r->t->n_hashes = start;
            return refuse(r, "hash_ids holds a value that is not an integer");
        }
        if (add_hash(r, (uint64_t)rose_json_int(v)) != ROSE_OK) return ROSE_E_NOMEM;
    }
    row->n_hash = (uint32_t)(r->t->n_hashes - start);
    return ROSE_OK;
}

static rose_status read_json_object(reader *r, const rose_json *o)
{
    rose_load_trace_row row = {0};
    const rose_json *ts = rose_json_get(o, "timestamp"), *hashes = rose_json_get(o, "hash_ids");
    if (!rose_json_is_object(o)) return refuse(r, "not a JSON object");
    double at = rose_json_number_value(ts) * r->unit;
    if (!rose_json_is_number(ts) || !isfinite(at) || at < 0 || at > 1e15)
        return refuse(r, "no time stamp");
    row.at_s = at;
    rose_status st = json_tokens(r, o, "input_length", &row.n_in);
    if (st == ROSE_OK) st = json_tokens(r, o, "output_length", &row.n_out);
    if (st == ROSE_OK && rose_json_is_array(hashes)) st = read_hashes(r, hashes, &row);
    return st == ROSE_OK ? add_row(r, &row) : st;
}

/* Finds the format of JSON lines: Qwen-Bailian's have a chat_id and times in seconds, Mooncake's
 * have times in milliseconds. The first line that is a request decides. A broken line before it is
 * left out as any other broken line. */
static rose_status settle_json(reader *r, const rose_json *o)
{
    if (rose_json_get(o, "timestamp") == NULL || rose_json_get(o, "input_length") == NULL ||
        rose_json_get(o, "output_length") == NULL)
        return refuse(r, "no timestamp, input_length and output_length");
    const bool qwen = rose_json_get(o, "chat_id") != NULL || rose_json_get(o, "turn") != NULL;
    r->t->format = qwen ? "qwen" : "mooncake";
    r->unit = qwen ? 1 : 1e-3;
    r->t->block_tokens = qwen ? 16 : 512;
    return ROSE_OK;
}

static rose_status read_json_row(reader *r, const char *line, size_t len)
{
    rose_json_error e;
    rose_json *o;
    rose_status st = rose_json_parse(&o, line, len, 0, &e);
    if (st != ROSE_OK) return st == ROSE_E_NOMEM ? st : refuse(r, e.text);
    if (r->t->format == NULL) st = settle_json(r, o);
    if (st == ROSE_OK) st = read_json_object(r, o);
    rose_json_decref(o);
    return st;
}

static void report_bad(reader *r)
{
    rose_load_trace *t = r->t;
    if (t->n_bad++ == 0) t->first_bad = r->line;
    if (r->report == NULL || t->n_bad > MAX_REPORTED + 1) return;
    if (t->n_bad > MAX_REPORTED) {
        fprintf(r->report, "%s: more bad lines follow, which are counted and not shown\n", r->name);
        return;
    }
    rose_err clean;
    rose_fail(&clean, ROSE_E_FORMAT, "%s:%" PRIu32 ": line left out: %s", r->name, r->line, r->why);
    fprintf(r->report, "%s\n", clean.msg);
}

static int by_time(const void *a, const void *b)
{
    const rose_load_trace_row *x = a, *y = b;
    return (x->at_s > y->at_s) - (x->at_s < y->at_s);
}

static void sort_and_rebase(rose_load_trace *t)
{
    if (t->n == 0) return;
    for (uint32_t i = 1; i < t->n; i++) {
        if (t->rows[i].at_s < t->rows[i - 1].at_s) {
            qsort(t->rows, t->n, sizeof *t->rows, by_time);
            break;
        }
    }
    double t0 = t->rows[0].at_s;
    for (uint32_t i = 0; i < t->n; i++)
        t->rows[i].at_s -= t0;
}

/* Returns whether one of the next lines begins like a JSON object. */
static bool json_follows(const reader *r)
{
    const char *p = r->rest;
    for (int i = 0; i < MAX_AHEAD && p < r->end; i++) {
        while (p < r->end && *p != '\n' && isspace((unsigned char)*p))
            p++;
        if (p < r->end && *p == '{') return true;
        p = p < r->end ? memchr(p, '\n', (size_t)(r->end - p)) : NULL;
        if (p == NULL) return false;
        p++;
    }
    return false;
}

/* Reads one line, without blanks at its ends. The first header or request decides the format. A
 * line before that which does not begin like JSON is left out if JSON follows soon; otherwise the
 * file is no trace that we know. */
static rose_status take_line(reader *r, const char *line, size_t len, rose_buf *copy)
{
    if (r->t->format == NULL ? line[0] == '{' : r->t->block_tokens != 0)
        return read_json_row(r, line, len);
    copy->len = 0;
    if (rose_buf_add(copy, line, len) != ROSE_OK || rose_buf_str(copy) == NULL) return ROSE_E_NOMEM;
    if (r->t->format == NULL) {
        if (read_header(r, copy->data)) return ROSE_OK;
        r->t->format = NULL;
        return json_follows(r) ? refuse(r, "not a JSON object") : ROSE_E_UNSUPPORTED;
    }
    if (memchr(line, '\0', len) != NULL) return refuse(r, "a NUL byte");
    return read_csv_row(r, copy->data);
}

rose_status rose_load_trace_parse(rose_load_trace *out, const char *name, const char *text,
                                  size_t len, uint32_t limit, FILE *report, rose_err *err)
{
    rose_status st = ROSE_OK;
    rose_buf copy = {0};
    reader r = {.t = out, .name = name, .report = report, .end = text + len};
    const char *p = text, *end = text + len;

    *out = (rose_load_trace){0};
    if (len >= 3 && memcmp(p, "\xef\xbb\xbf", 3) == 0) p += 3;
    while (p < end && out->n < limit) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((nl != NULL ? nl : end) - p);
        const char *line = p;
        r.rest = p += n + (nl != NULL);
        r.line++;
        while (n > 0 && isspace((unsigned char)line[n - 1]))
            n--;
        for (; n > 0 && isspace((unsigned char)*line); line++)
            n--;
        if (n == 0) continue;
        st = n > MAX_LINE ? refuse(&r, "longer than 16 MiB") : take_line(&r, line, n, &copy);
        if (st == ROSE_E_FORMAT) {
            report_bad(&r);
            st = ROSE_OK;
        }
        if (st != ROSE_OK) break;
    }
    if (st == ROSE_E_UNSUPPORTED || (st == ROSE_OK && out->format == NULL && out->n_bad > 0))
        rose_fail(err, st = ROSE_E_FORMAT,
                  "%s:%" PRIu32 ": not a trace we know (Azure or BurstGPT CSV with its header, "
                  "Mooncake or Qwen-Bailian JSONL)",
                  name, out->n_bad > 0 ? out->first_bad : r.line);
    else if (st != ROSE_OK)
        rose_fail(err, st, "%s: out of memory", name);
    else if (out->n == 0)
        st =
            rose_fail(err, ROSE_E_FORMAT, "%s: no usable line (%" PRIu32 " bad)", name, out->n_bad);
    if (out->n_hashes == 0) out->block_tokens = 0;
    sort_and_rebase(out);
    rose_buf_free(&copy);
    if (st != ROSE_OK) rose_load_trace_free(out);
    return st;
}

rose_status rose_load_trace_read(rose_load_trace *out, const char *path, uint32_t limit,
                                 FILE *report, rose_err *err)
{
    rose_map m;
    *out = (rose_load_trace){0};
    rose_status st = rose_file_map(&m, path, err);
    if (st != ROSE_OK) return st;
    st = rose_load_trace_parse(out, path, (const char *)m.data, m.size, limit, report, err);
    rose_file_unmap(&m);
    return st;
}

/* ---- generated traces ---- */

static uint32_t length(rose_random *r, double median, double sigma)
{
    double v = median * exp(sigma * rose_random_normal(r));
    if (!(v >= 1)) return 1;
    return v > MAX_LENGTH ? MAX_LENGTH : (uint32_t)(v + 0.5);
}

/* Requests per second just before request i + 1 of n, ramped as vllm bench serve does it. */
static double rate_at(const rose_load_trace_gen *g, uint32_t i, uint32_t n)
{
    if (!(g->end_rate > 0)) return g->rate;
    const double progress = n > 1 ? (double)i / (n - 1) : 0;
    return g->exponential ? g->rate * pow(g->end_rate / g->rate, progress)
                          : g->rate + (g->end_rate - g->rate) * progress;
}

void rose_load_trace_retime(rose_load_trace *t, const rose_load_trace_gen *g)
{
    rose_random arrivals = {g->seed, 1, 0};
    double at = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        t->rows[i].at_s = at;
        double gap = g->burstiness == 1.0
                         ? rose_random_exp(&arrivals)
                         : rose_random_gamma(&arrivals, g->burstiness) / g->burstiness;
        at += gap / rate_at(g, i, t->n);
    }
}

rose_status rose_load_trace_generate(rose_load_trace *out, const rose_load_trace_gen *g,
                                     rose_err *err)
{
    rose_random in = {g->seed, 2, 0}, n_out = {g->seed, 3, 0};

    *out = (rose_load_trace){.format = "generated"};
    if (g->n == 0 || !(g->rate > 0) || !(g->burstiness > 0))
        return rose_fail(err, ROSE_E_INVAL, "a generated trace needs requests, a rate and a shape");
    out->rows = calloc(g->n, sizeof *out->rows);
    if (out->rows == NULL) return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    out->n = g->n;
    for (uint32_t i = 0; i < g->n; i++) {
        out->rows[i].n_in = length(&in, g->in_median, g->in_sigma);
        out->rows[i].n_out = length(&n_out, g->out_median, g->out_sigma);
    }
    rose_load_trace_retime(out, g);
    return ROSE_OK;
}

uint32_t rose_load_trace_clamp(rose_load_trace *t, uint32_t context, uint32_t max_in,
                               uint32_t max_out)
{
    uint32_t changed = 0, room = context - 1;
    for (uint32_t i = 0; i < t->n; i++) {
        rose_load_trace_row *r = &t->rows[i];
        const uint32_t in = r->n_in, out = r->n_out;
        if (max_out != 0 && r->n_out > max_out) r->n_out = max_out;
        if (r->n_out > room - 1) r->n_out = room - 1;
        if (max_in != 0 && r->n_in > max_in) r->n_in = max_in;
        if (r->n_in > room - r->n_out) r->n_in = room - r->n_out;
        changed += r->n_in != in || r->n_out != out;
    }
    return changed;
}
