/* golden_read.h - the reading half of golden.h, which includes it: JSON and raw floats into the
 * structs. Any surprise in a file fails the test. */
#ifndef ROSE_TESTS_GOLDEN_READ_H
#define ROSE_TESTS_GOLDEN_READ_H

static inline void golden_path(char *out, size_t cap, const char *name)
{
    const char *root = getenv("ROSE_ROOT");
    int n = snprintf(out, cap, "%s/%s", root != NULL ? root : ".", name);
    assert_true(n > 0 && (size_t)n < cap);
}

static inline const golden_list *golden_families(void)
{
    static golden_list list;
    if (list.n > 0) return &list;
    char path[1024];
    glob_t found;
    golden_path(path, sizeof path, "tests/golden/families/*.config.json");
    if (glob(path, 0, NULL, &found) != 0) fail_msg("no file is like %s", path);
    assert_true(found.gl_pathc <= GOLDEN_FAMILIES);
    for (; list.n < found.gl_pathc; list.n++) {
        const char *const file = strrchr(found.gl_pathv[list.n], '/') + 1;
        const size_t length = strlen(file) - strlen(".config.json");
        assert_true(length < sizeof *list.name - strlen("families/"));
        snprintf(list.name[list.n], sizeof *list.name, "families/%.*s", (int)length, file);
    }
    globfree(&found);
    return &list;
}

static inline rose_json *golden_get(rose_json *object, const char *key)
{
    rose_json *value = rose_json_get(object, key);
    if (value == NULL) fail_msg("golden: no field %s", key);
    return value;
}

static inline uint64_t golden_u64(rose_json *object, const char *key)
{
    rose_json *value = golden_get(object, key);
    assert_true(rose_json_is_integer(value) && rose_json_int(value) >= 0);
    return (uint64_t)rose_json_int(value);
}

static inline uint32_t golden_u32(rose_json *object, const char *key)
{
    uint64_t value = golden_u64(object, key);
    assert_true(value <= UINT32_MAX);
    return (uint32_t)value;
}

static inline double golden_real(rose_json *object, const char *key)
{
    rose_json *value = golden_get(object, key);
    assert_true(rose_json_is_number(value));
    return rose_json_number_value(value);
}

/* Zeroed memory for n elements, never NULL. */
static inline void *golden_alloc(size_t n, size_t size)
{
    void *p = calloc(n > 0 ? n : 1, size);
    assert_non_null(p);
    return p;
}

static inline uint32_t *golden_ids(rose_json *object, const char *key, uint32_t *n)
{
    rose_json *array = golden_get(object, key);
    assert_true(rose_json_is_array(array));
    *n = (uint32_t)rose_json_count(array);
    uint32_t *ids = golden_alloc(*n, sizeof *ids);
    for (uint32_t i = 0; i < *n; i++)
        ids[i] = (uint32_t)rose_json_int(rose_json_at(array, i));
    return ids;
}

static inline void golden_read_values(golden *g, const char *name, uint64_t n)
{
    char path[1024], relative[256];
    assert_true(snprintf(relative, sizeof relative, "tests/golden/%s", name) > 0);
    golden_path(path, sizeof path, relative);
    FILE *f = fopen(path, "rb");
    if (f == NULL) fail_msg("golden: cannot open %s", path);
    g->values = golden_alloc((size_t)n, sizeof *g->values); /* float32, little-endian as we are */
    size_t got = fread(g->values, sizeof *g->values, (size_t)n, f);
    bool at_end = fgetc(f) == EOF;
    fclose(f);
    assert_true(got == n && at_end);
}

static inline void golden_read_prompt(const golden *g, golden_prompt *p, rose_json *json,
                                      uint64_t n)
{
    uint32_t n_margin = 0;
    p->name = rose_json_text(golden_get(json, "name"));
    p->text = rose_json_text(rose_json_get(json, "text"));
    p->ids = golden_ids(json, "ids", &p->n_ids);
    p->greedy = golden_ids(json, "greedy", &p->n_greedy);
    rose_json *margin = golden_get(json, "margin"), *logits = golden_get(json, "logits");
    n_margin = (uint32_t)rose_json_count(margin);
    assert_true(p->name != NULL && p->n_ids > 0 && n_margin == p->n_greedy);
    p->margin = golden_alloc(n_margin, sizeof *p->margin);
    for (uint32_t i = 0; i < n_margin; i++)
        p->margin[i] = (float)rose_json_number_value(rose_json_at(margin, i));
    p->n_logits = (uint32_t)rose_json_count(logits);
    p->logits = golden_alloc(p->n_logits, sizeof *p->logits);
    for (uint32_t i = 0; i < p->n_logits; i++) {
        rose_json *entry = rose_json_at(logits, i);
        golden_logits *l = &p->logits[i];
        l->position = golden_u32(entry, "position");
        l->stride = golden_u32(entry, "stride");
        l->n = golden_u32(entry, "n");
        l->max_abs = (float)golden_real(entry, "max_abs");
        uint64_t offset = golden_u64(entry, "offset");
        assert_true(l->stride > 0 && l->n > 0 && offset <= n && l->n <= n - offset);
        assert_true(l->position < p->n_ids + p->n_greedy);
        l->values = g->values + offset;
    }
}

static inline void golden_read_random(golden_random *r, rose_json *json)
{
    r->config = rose_json_text(rose_json_get(json, "config"));
    r->dtype = rose_json_text(golden_get(json, "dtype"));
    r->seed = golden_u64(json, "seed");
    assert_non_null(r->dtype);
    if (r->config != NULL) {
        r->init_std = (float)golden_real(json, "init_std");
        return;
    }
    r->n_layers = golden_u32(json, "layers");
    r->d_model = golden_u32(json, "d_model");
    r->n_heads = golden_u32(json, "heads");
    r->d_ff = golden_u32(json, "d_ff");
    r->vocab_size = golden_u32(json, "vocab_size");
    r->max_positions = golden_u32(json, "max_positions");
    r->tied_head = rose_json_is_true(golden_get(json, "tied"));
    r->prefix = rose_json_is_true(golden_get(json, "prefix"));
    r->max_shard_bytes = golden_u64(json, "max_shard_bytes");
}

static inline void golden_read_held_out(golden *g, rose_json *json)
{
    rose_json *windows = golden_get(json, "windows");
    g->held_ids = golden_ids(json, "ids", &g->n_held_ids);
    g->nll_mean = golden_real(json, "nll_mean");
    g->n_windows = (uint32_t)rose_json_count(windows);
    g->windows = golden_alloc(g->n_windows, sizeof *g->windows);
    for (uint32_t i = 0; i < g->n_windows; i++) {
        golden_window *w = &g->windows[i];
        w->first = golden_u32(rose_json_at(windows, i), "first");
        w->n = golden_u32(rose_json_at(windows, i), "n");
        w->nll_sum = golden_real(rose_json_at(windows, i), "nll_sum");
        assert_true(w->first < g->n_held_ids && w->n < g->n_held_ids - w->first);
    }
}

static inline void golden_open(golden *g, const char *name)
{
    char path[1024], relative[256];
    memset(g, 0, sizeof *g);
    assert_true(snprintf(relative, sizeof relative, "tests/golden/%s.json", name) > 0);
    golden_path(path, sizeof path, relative);
    g->json = test_load_json(path);
    assert_int_equal(golden_u64(g->json, "format"), 1);
    g->tolerance = golden_real(g->json, "tolerance");
    g->logprobs = rose_json_get(g->json, "values") != NULL;
    if (rose_json_get(g->json, "served_context") != NULL)
        g->served_context = golden_u32(g->json, "served_context");

    rose_json *model = golden_get(g->json, "model");
    g->folder = rose_json_text(rose_json_get(model, "folder"));
    if (g->folder == NULL) golden_read_random(&g->random, golden_get(model, "random"));

    uint64_t n_values = golden_u64(g->json, "n_values");
    golden_read_values(g, rose_json_text(golden_get(g->json, "values_file")), n_values);
    rose_json *prompts = golden_get(g->json, "prompts");
    g->n_prompts = (uint32_t)rose_json_count(prompts);
    assert_true(g->n_prompts > 0);
    g->prompts = golden_alloc(g->n_prompts, sizeof *g->prompts);
    for (uint32_t i = 0; i < g->n_prompts; i++)
        golden_read_prompt(g, &g->prompts[i], rose_json_at(prompts, i), n_values);
    rose_json *held_out = rose_json_get(g->json, "held_out");
    if (held_out != NULL) golden_read_held_out(g, held_out);
}

static inline void golden_close(golden *g)
{
    for (uint32_t i = 0; i < g->n_prompts; i++) {
        free(g->prompts[i].ids);
        free(g->prompts[i].greedy);
        free(g->prompts[i].margin);
        free(g->prompts[i].logits);
    }
    free(g->prompts);
    free(g->held_ids);
    free(g->windows);
    free(g->values);
    rose_json_decref(g->json);
    memset(g, 0, sizeof *g);
}

/* FNV-1a over little-endian 64-bit words, the last padded with zeros; 0 if it cannot be read. */
static inline uint64_t golden_hash_file(const char *path)
{
    uint64_t h = 0xcbf29ce484222325u, word = 0;
    FILE *f = fopen(path, "rb");
    if (f == NULL) return 0;
    while (fread(&word, 1, sizeof word, f) > 0) {
        h = (h ^ word) * 0x100000001b3u;
        word = 0;
    }
    fclose(f);
    return h;
}

static inline void golden_check_model(const golden *g, const char *folder)
{
    rose_json *files = golden_get(golden_get(g->json, "model"), "files");
    assert_true(rose_json_count(files) >= 2);
    for (size_t i = 0; i < rose_json_count(files); i++) {
        rose_json *entry = rose_json_at(files, i);
        const char *name = rose_json_text(golden_get(entry, "name"));
        const char *expected = rose_json_text(golden_get(entry, "hash64"));
        char path[1024], found[17];
        assert_true((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path);
        snprintf(found, sizeof found, "%016llx", (unsigned long long)golden_hash_file(path));
        if (expected == NULL || strcmp(found, expected) != 0)
            fail_msg("%s: not the file that the golden vectors were made from", path);
    }
}

#endif
