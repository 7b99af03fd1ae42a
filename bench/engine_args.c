/* bench/engine_args.c - see engine_args.h. */
#include "bench/engine_args.h"

rose_status rose_engine_args(const rose_engine_flags *f, rose_buf *out, rose_err *err)
{
    static rose_engine_flags copy;
    rose_opt rows[ROSE_ENGINE_FLAG_ROWS];
    copy = *f;
    if (rose_opts_changed(rows, rose_engine_flags_rows(&copy, rows), out) == ROSE_OK &&
        rose_buf_str(out) != NULL)
        return ROSE_OK;
    return rose_fail(err, ROSE_E_NOMEM, "out of memory");
}
