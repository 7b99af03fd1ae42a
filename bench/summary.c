/* bench/summary.c - see summary.h. */
#include "bench/summary.h"

#include <errno.h>
#include <string.h>

#include "bench/stats.h"

static void print_columns(FILE *f, const char *columns)
{
    fprintf(f, "| %s |\n|", columns);
    for (const char *p = columns; p != NULL; p = strchr(p + 1, '|'))
        fputs("---|", f);
    fputc('\n', f);
}

rose_status rose_summary_open(rose_summary_file *s, const rose_json *root, const char *dir,
                              const char *name, const char *title, const char *about,
                              const char *columns, rose_err *err)
{
    const rose_json *meta = rose_json_get(root, "meta");
    const char *device = rose_json_text(rose_json_get(meta, "device"));
    const char *command = rose_json_text(rose_json_get(meta, "command"));
    s->f = NULL;
    if (snprintf(s->path, sizeof s->path, "%s/%s", dir, name) >= (int)sizeof s->path)
        return rose_fail(err, ROSE_E_INVAL, "the path of the summary is too long");
    s->f = fopen(s->path, "w");
    if (s->f == NULL)
        return rose_fail(err, ROSE_E_IO, "cannot write %s: %s", s->path, strerror(errno));
    fprintf(s->f, "# %s\n\nDevice: %s. %s\n\n", title, device != NULL ? device : "?", about);
    if (command != NULL) fprintf(s->f, "```\n%s\n```\n\n", command);
    print_columns(s->f, columns);
    return ROSE_OK;
}

void rose_summary_cell(FILE *f, const rose_json *v, double factor, int digits)
{
    const double x = rose_json_number_value(v) * factor;
    if (rose_json_is_number(v))
        fprintf(f, " %.*f |", digits < 0 ? rose_summary_digits(x) : digits, x);
    else
        fputs(" - |", f);
}

rose_status rose_summary_close(rose_summary_file *s, rose_err *err)
{
    return fclose(s->f) == 0 ? ROSE_OK : rose_fail(err, ROSE_E_IO, "cannot write %s", s->path);
}
