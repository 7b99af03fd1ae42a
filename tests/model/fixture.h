/* Files and folders for the tests of the model room: scratch folders, safetensors files built from
 * a list, one shape of GPT-2 small enough to write by the thousand. */
#ifndef ROSE_TESTS_MODEL_FIXTURE_H
#define ROSE_TESTS_MODEL_FIXTURE_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/philox.h"
#include "model/model.h"
#include "model/random.h"

typedef struct item {
    char name[160];
    const char *dtype; /* NULL = F32 */
    long long shape[3];
    int n_dims;
} item;

enum { TINY_LAYERS = 2, TINY_D = 4, TINY_HEADS = 2, TINY_VOCAB = 7, TINY_POS = 3, MAX_ITEMS = 64 };

static inline void join(char *out, size_t cap, const char *dir, const char *name)
{
    assert_true((size_t)snprintf(out, cap, "%s/%s", dir, name) < cap);
}

static inline char *make_scratch(void)
{
    const char *base = getenv("TMPDIR");
    char *dir = NULL;
    assert_true(asprintf(&dir, "%s/rose-model-XXXXXX", base != NULL ? base : "/tmp") > 0);
    assert_non_null(mkdtemp(dir));
    return dir;
}

/* Removes the folder and the files in it, one level of folders deep, and frees its name. */
static inline void empty_folder(const char *dir)
{
    DIR *d = opendir(dir);
    if (d == NULL) return;
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        char path[1024];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        join(path, sizeof path, dir, e->d_name);
        if (unlink(path) == 0) continue;
        empty_folder(path);
        rmdir(path);
    }
    closedir(d);
}

static inline void drop_scratch(char *dir)
{
    empty_folder(dir);
    rmdir(dir);
    free(dir);
}

/* One folder for all tests of a group: its setup and teardown. */
static char *scratch;

static inline int setup_scratch(void **state)
{
    (void)state;
    rose_log_set_level(ROSE_LOG_OFF);
    scratch = make_scratch();
    return 0;
}

static inline int teardown_scratch(void **state)
{
    (void)state;
    drop_scratch(scratch);
    return 0;
}

static inline void put_file(const char *dir, const char *name, const void *data, size_t n)
{
    char path[1024];
    join(path, sizeof path, dir, name);
    unlink(path); /* a fresh file: ext4 writes a truncated one out at once, which is slow */
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static inline void put_text(const char *dir, const char *name, const char *text)
{
    put_file(dir, name, text, strlen(text));
}

static inline void drop_file(const char *dir, const char *name)
{
    char path[1024];
    join(path, sizeof path, dir, name);
    assert_int_equal(unlink(path), 0);
}

static inline void get_file(rose_buf *out, const char *dir, const char *name)
{
    char path[1024];
    join(path, sizeof path, dir, name);
    out->len = 0;
    assert_int_equal(rose_file_read(out, path, 1u << 30, NULL), ROSE_OK);
}

/* A safetensors file around a header as given. */
static inline void st_raw(rose_buf *out, uint64_t header_len, const char *header, size_t data_bytes)
{
    out->len = 0;
    for (int i = 0; i < 8; i++) {
        uint8_t byte = (uint8_t)(header_len >> 8 * i);
        assert_int_equal(rose_buf_add(out, &byte, 1), ROSE_OK);
    }
    assert_int_equal(rose_buf_add(out, header, strlen(header)), ROSE_OK);
    for (size_t i = 0; i < data_bytes; i++) {
        uint8_t byte = (uint8_t)(i * 7);
        assert_int_equal(rose_buf_add(out, &byte, 1), ROSE_OK);
    }
}

static inline size_t item_bytes(const item *it)
{
    size_t n = it->dtype == NULL || strcmp(it->dtype, "F32") == 0 ? 4 : 2;
    for (int i = 0; i < it->n_dims; i++)
        n *= (size_t)it->shape[i];
    return n;
}

/* A well-formed file with these tensors, in order. */
static inline void st_build(rose_buf *out, const item *items, size_t n)
{
    rose_buf h = {0};
    size_t at = 0;
    assert_int_equal(rose_buf_addf(&h, "{"), ROSE_OK);
    for (size_t i = 0; i < n; i++) {
        rose_buf_addf(&h, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i > 0 ? "," : "", items[i].name,
                      items[i].dtype != NULL ? items[i].dtype : "F32");
        for (int d = 0; d < items[i].n_dims; d++)
            rose_buf_addf(&h, "%s%lld", d > 0 ? "," : "", items[i].shape[d]);
        rose_buf_addf(&h, "],\"data_offsets\":[%zu,%zu]}", at, at + item_bytes(&items[i]));
        at += item_bytes(&items[i]);
    }
    rose_buf_addf(&h, "}");
    while (h.len % 8 != 0)
        rose_buf_addf(&h, " ");
    st_raw(out, h.len, rose_buf_str(&h), at);
    rose_buf_free(&h);
}

static inline void add_item(item *items, size_t *n, const char *prefix, const char *name,
                            long long rows, long long cols)
{
    assert_true(*n < MAX_ITEMS);
    item *it = &items[(*n)++];
    *it = (item){.shape = {rows, cols}, .n_dims = cols > 0 ? 2 : 1};
    snprintf(it->name, sizeof it->name, "%s%s", prefix, name);
}

/* The tensors of the tiny GPT-2, as config_text describes it. */
static inline size_t tiny_items(item items[MAX_ITEMS], const char *prefix, bool head)
{
    size_t n = 0;
    add_item(items, &n, prefix, "wte.weight", TINY_VOCAB, TINY_D);
    add_item(items, &n, prefix, "wpe.weight", TINY_POS, TINY_D);
    for (int l = 0; l < TINY_LAYERS; l++) {
        char p[64];
        snprintf(p, sizeof p, "%sh.%d.", prefix, l);
        add_item(items, &n, p, "ln_1.weight", TINY_D, 0);
        add_item(items, &n, p, "ln_1.bias", TINY_D, 0);
        add_item(items, &n, p, "attn.c_attn.weight", TINY_D, 3 * TINY_D);
        add_item(items, &n, p, "attn.c_attn.bias", 3 * TINY_D, 0);
        add_item(items, &n, p, "attn.c_proj.weight", TINY_D, TINY_D);
        add_item(items, &n, p, "attn.c_proj.bias", TINY_D, 0);
        add_item(items, &n, p, "ln_2.weight", TINY_D, 0);
        add_item(items, &n, p, "ln_2.bias", TINY_D, 0);
        add_item(items, &n, p, "mlp.c_fc.weight", TINY_D, 4 * TINY_D);
        add_item(items, &n, p, "mlp.c_fc.bias", 4 * TINY_D, 0);
        add_item(items, &n, p, "mlp.c_proj.weight", 4 * TINY_D, TINY_D);
        add_item(items, &n, p, "mlp.c_proj.bias", TINY_D, 0);
    }
    add_item(items, &n, prefix, "ln_f.weight", TINY_D, 0);
    add_item(items, &n, prefix, "ln_f.bias", TINY_D, 0);
    if (head) add_item(items, &n, "", "lm_head.weight", TINY_VOCAB, TINY_D);
    return n;
}

#define TINY_CONFIG                                                                                \
    "{\"model_type\": \"gpt2\", \"n_embd\": 4, \"n_head\": 2, \"n_layer\": 2, "                    \
    "\"n_positions\": 3, \"vocab_size\": 7, \"eos_token_id\": 6}"

static inline item *find_item(item *items, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(items[i].name, name) == 0) return &items[i];
    fail_msg("no item %s", name);
    return NULL;
}

static inline void put_items(const char *dir, const char *file, const item *items, size_t n)
{
    rose_buf b = {0};
    st_build(&b, items, n);
    put_file(dir, file, b.data, b.len);
    rose_buf_free(&b);
}

/* A folder with the tiny model, valid. */
static inline void put_tiny(const char *dir)
{
    item items[MAX_ITEMS];
    size_t n = tiny_items(items, "", false);
    empty_folder(dir);
    put_text(dir, "config.json", TINY_CONFIG);
    put_items(dir, "model.safetensors", items, n);
}

/* Opening fails with this status and a message that contains every one of the words. */
static inline void expect_refused(const char *dir, rose_status want, const char *word1,
                                  const char *word2)
{
    rose_err err = {{0}};
    rose_model *m = (rose_model *)(uintptr_t)1;
    rose_status st = rose_model_open(&m, dir, &err);
    if (st != want || strstr(err.msg, word1) == NULL || strstr(err.msg, word2) == NULL)
        fail_msg("status %s, message: %s\n  expected %s, with '%s' and '%s'", rose_status_name(st),
                 err.msg, rose_status_name(want), word1, word2);
    assert_null(m);
    rose_status again = rose_model_open(&m, dir, NULL); /* a message is optional */
    assert_int_equal(again, want);
}

static inline rose_model *expect_opens(const char *dir)
{
    rose_err err = {{0}};
    rose_model *m = NULL;
    rose_status st = rose_model_open(&m, dir, &err);
    if (st != ROSE_OK) fail_msg("%s: %s", rose_status_name(st), err.msg);
    assert_string_equal(err.msg, "");
    return m;
}

static inline uint64_t test_seed(void)
{
    const char *s = getenv("ROSE_TEST_SEED");
    uint64_t seed = s != NULL ? strtoull(s, NULL, 0) : 20261121;
    print_message("ROSE_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

/* Uniform in 0 .. n-1 from the seed and a counter that it moves on. */
static inline uint32_t draw(uint64_t seed, uint32_t *counter, uint32_t n)
{
    return (uint32_t)(rose_philox_uniform(seed, (*counter)++, 1) * (float)n) % n;
}

#endif
