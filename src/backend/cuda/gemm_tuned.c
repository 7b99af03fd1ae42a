/* backend/cuda/gemm_tuned.c - the sorted array of measured choices (gemm.h), and the file that
 * keeps it. A line of the file is "type n k parts end bucket kernel us guess_us"; the first line
 * names the GPU. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/gemm.h"
#include "base/file.h"
#include "base/log.h"

enum { MAX_FILE = 1 << 20, MAX_LINES = 8192, MAX_LINE = 160 };

/* tuned.txt ships with the program. */
__asm__(".pushsection .rodata\n"
        ".globl rose_gemm_shipped\n"
        ".hidden rose_gemm_shipped\n"
        "rose_gemm_shipped:\n"
        ".incbin \"src/backend/cuda/tuned.txt\"\n"
        ".byte 0\n"
        ".popsection\n");

static const char *const g_formats[] = {[ROSE_F16] = "f16", [ROSE_BF16] = "bf16"};

rose_status rose_gemm_tuned_set(rose_gemm_tuned *t, const rose_gemm_tuning *line)
{
    uint32_t at = 0;
    while (at < t->n_lines && rose_gemm_tuning_order(&t->lines[at], line) < 0)
        at++;
    if (at < t->n_lines && rose_gemm_tuning_order(&t->lines[at], line) == 0) {
        t->lines[at] = *line;
        return ROSE_OK;
    }
    if (t->n_lines >= MAX_LINES) return ROSE_E_FULL;
    rose_gemm_tuning *lines = realloc(t->lines, (t->n_lines + 1) * sizeof *lines);
    if (lines == NULL) return ROSE_E_NOMEM;
    memmove(lines + at + 1, lines + at, (t->n_lines - at) * sizeof *lines);
    lines[at] = *line;
    t->lines = lines;
    t->n_lines++;
    return ROSE_OK;
}

void rose_gemm_tuned_free(rose_gemm_tuned *t)
{
    free(t->lines);
    *t = (rose_gemm_tuned){0};
}

/* ---- which choices help ---- */

/* With the choices that stay, a step takes at most this share of its time without any. */
#define HELPS 0.99
/* A choice goes if the step without it takes at most this share of the time with it. */
#define FEWER 0.995

rose_status rose_gemm_keep(uint32_t n, rose_gemm_time *time, void *by, uint32_t *keep,
                           rose_err *err)
{
    double none = 0, best = 0;
    uint32_t kept = n < 32 ? (1u << n) - 1 : UINT32_MAX;
    *keep = 0;
    if (n == 0) return ROSE_OK;
    rose_status st = time(by, 0, &none, err);
    if (st == ROSE_OK) st = time(by, kept, &best, err);
    if (st != ROSE_OK || isinf(best)) return st;
    for (uint32_t i = 0; i < n && n > 1 && st == ROSE_OK; i++) {
        const uint32_t fewer = kept & ~(1u << i);
        double us = none;
        if (fewer != 0) st = time(by, fewer, &us, err);
        if (st != ROSE_OK || us > FEWER * best) continue;
        kept = fewer;
        best = us;
    }
    if (st == ROSE_OK && best <= HELPS * none) *keep = kept;
    return st;
}

/* ---- the file ---- */

/* False if the text is no line of this version: another form, or a kernel that is gone. */
static bool read_line(const char *text, rose_gemm_tuning *out)
{
    char format[8], kernel[48];
    unsigned end;
    int used = 0;
    *out = (rose_gemm_tuning){0};
    if (sscanf(text, "%7s %u %u %u %u %u %47s %f %f %n", format, &out->n, &out->k, &out->n_parts,
               &end, &out->bucket, kernel, &out->us, &out->guess_us, &used) != 9)
        return false;
    if (text[used] != '\0' || end >= ROSE_N_ENDS || out->n == 0 || out->k == 0) return false;
    if (out->bucket == 0 || rose_gemm_bucket(out->bucket) != out->bucket) return false;
    out->end = (rose_gemm_end)end;
    out->format = strcmp(format, g_formats[ROSE_BF16]) == 0 ? ROSE_BF16 : ROSE_F16;
    out->kernel = rose_gemm_named(kernel);
    return out->kernel != NULL && strcmp(format, g_formats[out->format]) == 0;
}

static void first_line(char *out, size_t cap, const char *gpu)
{
    snprintf(out, cap, "roseinfer tune 3: %s", gpu);
}

/* The line at *text, without its end; *text is then the next one. False at the end of the text. */
static bool next_line(const char **text, char line[MAX_LINE])
{
    const size_t length = strcspn(*text, "\n");
    if (**text == '\0') return false;
    snprintf(line, MAX_LINE, "%.*s", length < MAX_LINE ? (int)length : 0, *text);
    *text += length + ((*text)[length] == '\n');
    return true;
}

uint32_t rose_gemm_tuned_add(rose_gemm_tuned *t, const char *text, const char *gpu)
{
    char want[MAX_LINE], line[MAX_LINE];
    uint32_t n_bad = 0;
    bool here = false;
    first_line(want, sizeof want, gpu);
    while (next_line(&text, line)) {
        rose_gemm_tuning l;
        if (strncmp(line, "roseinfer tune ", 15) == 0)
            here = strcmp(line, want) == 0;
        else if (here && !read_line(line, &l))
            n_bad++;
        else if (here && rose_gemm_tuned_find(t, &l) == NULL)
            n_bad += rose_gemm_tuned_set(t, &l) != ROSE_OK;
    }
    return n_bad;
}

static bool is_for(const char *text, const char *gpu)
{
    char want[MAX_LINE], line[MAX_LINE];
    first_line(want, sizeof want, gpu);
    return next_line(&text, line) && strcmp(line, want) == 0;
}

void rose_gemm_tuned_read(rose_gemm_tuned *t, const char *path, const char *gpu)
{
    rose_buf buf = {0};
    rose_err err = {""};
    const rose_status st = rose_file_read(&buf, path, MAX_FILE, &err);
    const char *text = NULL;

    if (st == ROSE_OK && buf.len > 0) {
        rose_buf_str(&buf);
        text = buf.data;
    }
    if (st != ROSE_OK && st != ROSE_E_NOTFOUND)
        rose_log(ROSE_LOG_WARN, "cuda", "tuned GEMM kernels: %s; none are used", err.msg);
    const uint32_t n_bad = text == NULL        ? 0
                           : is_for(text, gpu) ? rose_gemm_tuned_add(t, text, gpu)
                                               : 1;
    if (n_bad > 0)
        rose_log(ROSE_LOG_WARN, "cuda",
                 "tuned GEMM kernels: %s: ignored %u lines that are not of this version or GPU; "
                 "tune again to replace them",
                 path, n_bad);
    rose_buf_free(&buf);
}

static rose_status write_text(const rose_gemm_tuned *t, rose_buf *out, const char *gpu)
{
    char first[160];
    first_line(first, sizeof first, gpu);
    rose_status st = rose_buf_addf(out, "%s\n", first);
    for (uint32_t i = 0; i < t->n_lines && st == ROSE_OK; i++) {
        const rose_gemm_tuning *l = &t->lines[i];
        st = rose_buf_addf(out, "%s %u %u %u %u %u %s %.2f %.2f\n", g_formats[l->format], l->n,
                           l->k, l->n_parts, (unsigned)l->end, l->bucket, l->kernel->name,
                           (double)l->us, (double)l->guess_us);
    }
    return st;
}

/* Write to a file beside it, then rename: a reader sees the old file or the new one. */
rose_status rose_gemm_tuned_write(const rose_gemm_tuned *t, const char *path, const char *gpu,
                                  rose_err *err)
{
    rose_buf text = {0};
    char part[4096];
    const int n = snprintf(part, sizeof part, "%s.part", path);
    if (n < 0 || (size_t)n >= sizeof part)
        return rose_fail(err, ROSE_E_INVAL, "tuned GEMM kernels: the path %.60s... is too long",
                         path);
    if (write_text(t, &text, gpu) != ROSE_OK) {
        rose_buf_free(&text);
        return rose_fail(err, ROSE_E_NOMEM, "tuned GEMM kernels: out of memory");
    }
    FILE *f = fopen(part, "w");
    bool good = f != NULL && fwrite(text.data, 1, text.len, f) == text.len;
    if (f != NULL && fclose(f) != 0) good = false;
    rose_buf_free(&text);
    if (good && rename(part, path) == 0) return ROSE_OK;
    const int e = errno;
    if (f != NULL) remove(part);
    return rose_fail(err, ROSE_E_IO, "writing the tuned GEMM kernels to %s: %s", path, strerror(e));
}
