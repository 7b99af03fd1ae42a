/* tests/load_json.h - a JSON file as a value. */
#ifndef ROSE_TESTS_LOAD_JSON_H
#define ROSE_TESTS_LOAD_JSON_H

#include "base/file.h"
#include "base/json.h"

/* A new reference. Without a file that holds JSON the test fails. */
static inline rose_json *test_load_json(const char *path)
{
    rose_buf text = {0};
    rose_json_error e;
    rose_err err;
    rose_json *v = NULL;
    if (rose_file_read(&text, path, (size_t)1 << 30, &err) != ROSE_OK) fail_msg("%s", err.msg);
    if (rose_json_parse(&v, text.data, text.len, 0, &e) != ROSE_OK)
        fail_msg("%s: line %d: %s", path, e.line, e.text);
    rose_buf_free(&text);
    return v;
}

#endif
