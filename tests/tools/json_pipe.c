/* The JSON reader for tests/base/test_json.py. A case on stdin is two integers of 32 bits, the
 * options of the parse and the length of the text, and the text. The answer on stdout is a length
 * of 32 bits and that many bytes: V and the value as JSON text, or E and what is wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

int main(void)
{
    uint32_t head[2];
    while (fread(head, sizeof head, 1, stdin) == 1) {
        rose_buf text = {0}, out = {0};
        rose_json_error e;
        if (rose_buf_reserve(&text, head[1] + 1) != ROSE_OK ||
            fread(text.data, 1, head[1], stdin) != head[1])
            return 1;
        rose_json *v = rose_json_loadb(text.data, head[1], head[0], &e);
        rose_status st = rose_buf_add(&out, v != NULL ? "V" : "E", 1);
        if (st == ROSE_OK)
            st = v != NULL ? rose_json_dump(&out, v, ROSE_JSON_COMPACT)
                           : rose_buf_add(&out, e.text, strlen(e.text));
        if (st != ROSE_OK) return 1;
        const uint32_t n = (uint32_t)out.len;
        fwrite(&n, sizeof n, 1, stdout);
        fwrite(out.data, 1, n, stdout);
        fflush(stdout);
        rose_json_decref(v);
        rose_buf_free(&text);
        rose_buf_free(&out);
    }
    return 0;
}
