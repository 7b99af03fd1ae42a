/* tokenizer tests - temporary model folders, the checked-in tokenizers, seeded random numbers. */
#ifndef ROSE_TESTS_TOK_FIXTURE_H
#define ROSE_TESTS_TOK_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tokenizer/tokenizer.h"

static inline const char *repo_root(void)
{
    const char *root = getenv("ROSE_ROOT");
    return root != NULL ? root : ".";
}

/* "<root>/tests/tokenizer/data/<name>" */
static inline void data_path(char out[512], const char *name)
{
    snprintf(out, 512, "%s/tests/tokenizer/data/%s", repo_root(), name);
}

static inline rose_tokenizer *open_data(const char *name)
{
    char path[512];
    rose_tokenizer *t = NULL;
    rose_err err = {""};
    data_path(path, name);
    if (rose_tokenizer_open(&t, path, &err) != ROSE_OK) fail_msg("%s", err.msg);
    return t;
}

typedef struct temp_dir {
    char path[64];
    char files[8][128];
    int n_files;
} temp_dir;

static inline void temp_make(temp_dir *d)
{
    d->n_files = 0;
    strcpy(d->path, "/tmp/rose-tok-XXXXXX");
    assert_non_null(mkdtemp(d->path));
}

/* Write (or replace) a file of the folder. */
static inline void temp_write(temp_dir *d, const char *name, const char *bytes, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", d->path, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    for (int i = 0; i < d->n_files; i++)
        if (strcmp(d->files[i], path) == 0) return;
    assert_true(d->n_files < 8);
    strcpy(d->files[d->n_files++], path);
}

static inline void temp_remove(temp_dir *d)
{
    for (int i = 0; i < d->n_files; i++)
        unlink(d->files[i]);
    rmdir(d->path);
}

static inline uint64_t test_seed(void)
{
    const char *s = getenv("ROSE_TEST_SEED");
    uint64_t seed = s != NULL ? strtoull(s, NULL, 10) : 1;
    print_message("seed %llu\n", (unsigned long long)seed);
    return seed;
}

/* splitmix64 */
static inline uint64_t rnd(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

#endif
