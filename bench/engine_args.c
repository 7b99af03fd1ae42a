/* bench/engine_args.c - see engine_args.h. */
#include "bench/engine_args.h"

#include <inttypes.h>
#include <string.h>

/* Appends the option as text if its value is not the default. */
static rose_status add_changed(rose_buf *b, const rose_opt *o, const rose_opt *def)
{
    switch (o->kind) {
    case ROSE_OPT_BOOL:
        if (*(const bool *)o->dest == *(const bool *)def->dest) return ROSE_OK;
        return rose_buf_addf(b, " --%s%s", *(const bool *)o->dest ? "" : "no-", o->name);
    case ROSE_OPT_FLAG:
        if (*(const bool *)o->dest == *(const bool *)def->dest) return ROSE_OK;
        return rose_buf_addf(b, " --%s", o->name);
    case ROSE_OPT_U32:
        if (*(const uint32_t *)o->dest == *(const uint32_t *)def->dest) return ROSE_OK;
        return rose_buf_addf(b, " --%s %" PRIu32, o->name, *(const uint32_t *)o->dest);
    case ROSE_OPT_U64:
    case ROSE_OPT_BYTES:
        if (*(const uint64_t *)o->dest == *(const uint64_t *)def->dest) return ROSE_OK;
        return rose_buf_addf(b, " --%s %" PRIu64, o->name, *(const uint64_t *)o->dest);
    case ROSE_OPT_FLOAT:
        if (memcmp(o->dest, def->dest, sizeof(float)) == 0) return ROSE_OK;
        return rose_buf_addf(b, " --%s %.9g", o->name, (double)*(const float *)o->dest);
    case ROSE_OPT_STRING:
    case ROSE_OPT_CHOICE: {
        const char *v = *(const char *const *)o->dest, *d = *(const char *const *)def->dest;
        if (v == NULL || (d != NULL && strcmp(v, d) == 0)) return ROSE_OK;
        return rose_buf_addf(b, " --%s '%s'", o->name, v);
    }
    case ROSE_OPT_HEADING:
    default:
        return ROSE_OK;
    }
}

rose_status rose_engine_args(const rose_engine_flags *f, rose_buf *out, rose_err *err)
{
    static rose_engine_flags copy, def;
    rose_opt rows[ROSE_ENGINE_FLAG_ROWS], def_rows[ROSE_ENGINE_FLAG_ROWS];
    rose_status st = ROSE_OK;
    copy = *f;
    rose_engine_flags_init(&def);
    const size_t n = rose_engine_flags_rows(&copy, rows);
    rose_engine_flags_rows(&def, def_rows);
    for (size_t i = 0; i < n && st == ROSE_OK; i++)
        st = add_changed(out, &rows[i], &def_rows[i]);
    if (st != ROSE_OK || rose_buf_str(out) == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    return ROSE_OK;
}
