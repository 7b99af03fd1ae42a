/* tests/batch/test_batch.c - lines of requests and results, and the store with a clock of the
 * test's own. The command is tested by tests/cli/test_batch.py, the server by
 * tests/api/test_batches.py. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/json.h"
#include "batch/store.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test-batch-XXXXXX");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int remove_folder(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static int file_with(const void *text, size_t len)
{
    char path[128];
    snprintf(path, sizeof path, "%s/in", folder);
    const int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, len), (ssize_t)len);
    return fd;
}

/* ---- lines ---- */

static void test_reader(void **state)
{
    enum { LONG = 600000 };
    char *text = malloc(LONG + 16);
    const char *line;
    size_t len;
    bool whole;
    rose_err err = {{0}};
    (void)state;
    memcpy(text, "a\n\n", 3);
    memset(text + 3, 'x', LONG);
    memcpy(text + 3 + LONG, "\nend", 4);
    const int fd = file_with(text, LONG + 7);
    rose_batch_reader r = {.fd = fd, .name = "in", .max_bytes = LONG};
    assert_int_equal(rose_batch_reader_next(&r, &line, &len, &whole, &err), ROSE_OK);
    assert_true(len == 1 && line[0] == 'a' && whole && r.at == 0 && r.line == 1);
    assert_int_equal(rose_batch_reader_next(&r, &line, &len, &whole, &err), ROSE_OK);
    assert_true(len == 0 && whole && r.at == 2);
    assert_int_equal(rose_batch_reader_next(&r, &line, &len, &whole, &err), ROSE_OK);
    assert_true(len == LONG && whole && r.at == 3 && line[LONG - 1] == 'x');
    assert_int_equal(rose_batch_reader_next(&r, &line, &len, &whole, &err), ROSE_OK);
    assert_true(len == 3 && memcmp(line, "end", 3) == 0 && !whole && r.at == LONG + 4 &&
                r.line == 4);
    assert_int_equal(rose_batch_reader_next(&r, &line, &len, &whole, &err), ROSE_E_EMPTY);
    rose_batch_reader_free(&r);

    rose_batch_reader small = {.fd = fd, .name = "in", .max_bytes = LONG - 1};
    assert_int_equal(rose_batch_reader_next(&small, &line, &len, &whole, &err), ROSE_OK);
    assert_int_equal(rose_batch_reader_next(&small, &line, &len, &whole, &err), ROSE_OK);
    assert_int_equal(rose_batch_reader_next(&small, &line, &len, &whole, &err), ROSE_E_FORMAT);
    assert_non_null(strstr(err.msg, "line 3"));
    rose_batch_reader_free(&small);
    close(fd);
    free(text);
}

static void test_request(void **state)
{
#define AROUND(body)                                                                               \
    "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":" body "}"
    static const struct {
        const char *text, *code; /* code: NULL = sound */
    } cases[] = {
        {AROUND("{}"), NULL},
        {" \t" AROUND("{\"a\":[1,{\"stream\":true}]}") "  ", NULL},
        {AROUND("{\"stream\":false}"), NULL},
        {AROUND("{\"stream\":true}"), "stream_not_supported"},
        {AROUND("{\"a\":1,\"str\\u0065am\" : true}"), "stream_not_supported"},
        {AROUND("[]"), "invalid_body"},
        {AROUND("null"), "invalid_body"},
        {AROUND("{}") "x", "invalid_json_line"},
        {AROUND("{") "", "invalid_json_line"},
        {"", "invalid_json_line"},
        {"{}", "missing_required_parameter"},
        {"{\"custom_id\":null}", "missing_required_parameter"},
        {"{\"custom_id\":\"a\"}", "invalid_method"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completion\",\"body\":{}}",
         "invalid_url"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions/and/more/than/32/bytes"
         "\",\"body\":{}}",
         "invalid_url"},
        {"{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/responses\",\"body\":{}}",
         "mismatched_url"},
    };
    rose_batch_request q = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = cases[i].text;
        assert_int_equal(rose_batch_request_read(&q, text, strlen(text), "/v1/completions"),
                         ROSE_OK);
        if (cases[i].code == NULL) {
            assert_null(q.code);
            assert_true(q.named && q.body[0] == '{' && q.body[q.body_len - 1] == '}');
            assert_string_equal(q.path, "/v1/completions");
        } else {
            assert_non_null(q.code);
            assert_string_equal(q.code, cases[i].code);
            assert_true(q.why[0] != '\0');
        }
    }
    rose_batch_request_free(&q);
}

/* Many requests: the table grows, every custom_id is found, and none twice. */
static void test_many(void **state)
{
    enum { N = 20000 };
    rose_buf text = {0};
    rose_batch_input *in = NULL;
    rose_batch_problems *p = calloc(1, sizeof *p);
    const rose_batch_limits limits = {.max_lines = N, .max_line_bytes = 1000};
    rose_batch_request q = {0};
    rose_err err = {{0}};
    (void)state;
    for (int i = 0; i < N; i++)
        assert_int_equal(rose_buf_addf(&text, AROUND("{\"n\":%d}") "\n", i), ROSE_OK);
    for (size_t i = 0, n = 0; i < text.len; i++) { /* "a" becomes a number of its own */
        if (memcmp(text.data + i, "\"a\"", 3) != 0) continue;
        text.data[i + 1] = (char)('A' + n++ % 26);
    }
    int fd = file_with(text.data, text.len);
    assert_int_equal(rose_batch_input_open(&in, fd, "in", &limits, p, &err), ROSE_E_FORMAT);
    assert_int_equal(p->n, N - 26);
    assert_true(p->v[0].line == 27 && strstr(p->v[0].msg, "also that of line 1") != NULL);
    text.len = 0;
    for (int i = 0; i < N; i++)
        assert_int_equal(rose_buf_addf(&text,
                                       "{\"custom_id\":\"id%d\",\"method\":\"POST\",\"url\":"
                                       "\"/v1/completions\",\"body\":{\"n\":%d}}\n",
                                       i, i),
                         ROSE_OK);
    fd = file_with(text.data, text.len);
    assert_int_equal(rose_batch_input_open(&in, fd, "in", &limits, p, &err), ROSE_OK);
    assert_int_equal(in->n, N);
    for (uint32_t i = 0; i < N; i += 97) {
        uint32_t found;
        rose_buf id = {0};
        assert_int_equal(rose_buf_addf(&id, "id%u", i), ROSE_OK);
        assert_int_equal(rose_batch_input_find(in, &id, &found, &err), ROSE_OK);
        assert_int_equal(found, i);
        assert_int_equal(rose_batch_input_read(in, i, &q, &err), ROSE_OK);
        assert_true(q.body_len > 5 && (uint32_t)atoi(q.body + 5) == i);
        rose_buf_free(&id);
    }
    rose_batch_request_free(&q);
    rose_batch_input_close(in);
    rose_buf_free(&text);
    free(p);
}

/* ---- the store ---- */

static int64_t test_now(void *arg)
{
    return *(const int64_t *)arg;
}

static rose_batch_store *open_store(int64_t *now)
{
    static char dir[96];
    rose_batch_store_opts o;
    rose_batch_store *s = NULL;
    rose_err err = {{0}};
    rose_batch_store_opts_default(&o);
    snprintf(dir, sizeof dir, "%s/store", folder);
    o.dir = dir;
    o.now = test_now;
    o.now_arg = now;
    o.expire_hours = 10;
    assert_int_equal(rose_batch_store_open(&s, &o, &err), ROSE_OK);
    return s;
}

/* The id of a new file. */
static void upload(rose_batch_store *s, uint32_t expire_s, char id[64])
{
    rose_buf out = {0};
    assert_int_equal(rose_batch_file_create(s, "me", "in.jsonl", "{}\n", 3, expire_s, &out, NULL),
                     ROSE_OK);
    rose_json *v = rose_json_loadb(out.data, out.len, 0, NULL);
    snprintf(id, 64, "%s", rose_json_text(rose_json_get(v, "id")));
    rose_json_decref(v);
    rose_buf_free(&out);
}

static bool has_file(rose_batch_store *s, const char *id)
{
    rose_buf out = {0};
    const rose_status st = rose_batch_file_get(s, "me", id, &out, NULL);
    rose_buf_free(&out);
    return st == ROSE_OK;
}

static void test_expiry(void **state)
{
    int64_t now = 1000000;
    char a[64], b[64], c[64];
    rose_buf out = {0};
    (void)state;
    rose_batch_store *s = open_store(&now);
    upload(s, 3600, a);
    upload(s, 0, b); /* ten hours */
    upload(s, 3600, c);
    const rose_batch_order_form form = {.input_file_id = c,
                                        .endpoint = rose_batch_endpoints[0],
                                        .window_text = "24h",
                                        .window_s = 86400};
    assert_int_equal(rose_batch_submit(s, "me", &form, &out, NULL), ROSE_OK);
    rose_batch_store_sweep(s);
    assert_true(has_file(s, a) && has_file(s, b) && has_file(s, c));
    now += 3600;
    rose_batch_store_sweep(s);
    assert_true(!has_file(s, a) && has_file(s, b));
    assert_true(has_file(s, c)); /* a batch that has not ended needs it */
    rose_batch_store_close(s);

    now += 9 * 3600; /* the rest of the ten hours passes while no server runs */
    s = open_store(&now);
    assert_true(!has_file(s, b) && has_file(s, c));
    rose_batch_store_close(s);
    rose_buf_free(&out);
}

static void write_in_files(const char *name)
{
    char path[160];
    snprintf(path, sizeof path, "%s/store/files/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs("{}", f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static bool is_in_files(const char *name)
{
    char path[160];
    snprintf(path, sizeof path, "%s/store/files/%s", folder, name);
    return access(path, F_OK) == 0;
}

/* What a kill has left goes; files of other people stay, and content whose record is damaged. */
static void test_orphans(void **state)
{
#define X32 "0123456789abcdef0123456789abcdef"
    static const char *const stay[] = {"notes.txt", "data.json",     ".tmp-notes",
                                       "file-1",    "file-" X32 "0", "file-" X32 ".txt"};
    static const char *const go[] = {"file-" X32, "file-fedcba98765432100123456789abcdef.json",
                                     ".tmp-file-" X32, ".tmp-file-" X32 ".json"};
    enum { STAY = sizeof stay / sizeof *stay, GO = sizeof go / sizeof *go };
    int64_t now = 1000;
    char id[64], record[80];
    (void)state;
    rose_batch_store *s = open_store(&now);
    upload(s, 0, id);
    rose_batch_store_close(s);
    for (size_t i = 0; i < STAY; i++)
        write_in_files(stay[i]);
    for (size_t i = 0; i < GO; i++)
        write_in_files(go[i]);
    snprintf(record, sizeof record, "%s.json", id);
    write_in_files(record);
    s = open_store(&now);
    for (size_t i = 0; i < STAY; i++)
        assert_true(is_in_files(stay[i]));
    for (size_t i = 0; i < GO; i++)
        assert_false(is_in_files(go[i]));
    assert_true(!has_file(s, id) && is_in_files(id) && is_in_files(record));
    rose_batch_store_close(s);
#undef X32
}

/* Owners, and ids that are none. */
static void test_owners(void **state)
{
    int64_t now = 1000;
    char id[64], one[ROSE_BATCH_OWNER], two[ROSE_BATCH_OWNER], none[ROSE_BATCH_OWNER];
    rose_buf out = {0};
    rose_err err = {{0}};
    (void)state;
    rose_batch_store *s = open_store(&now);
    rose_batch_store_owner(s, "key-1", one);
    rose_batch_store_owner(s, "key-2", two);
    rose_batch_store_owner(s, NULL, none);
    assert_true(strlen(one) == ROSE_BATCH_OWNER - 1 && strcmp(one, two) != 0 && none[0] == '\0');
    upload(s, 0, id);
    assert_int_equal(rose_batch_file_get(s, "you", id, &out, &err), ROSE_E_NOTFOUND);
    assert_int_equal(rose_batch_file_delete(s, "you", id, &out, &err), ROSE_E_NOTFOUND);
    assert_int_equal(rose_batch_file_content(s, "me", "../secret", &out, &err), ROSE_E_NOTFOUND);
    assert_int_equal(rose_batch_file_content(s, "me", id, &out, &err), ROSE_OK);
    assert_true(out.len == 3 && memcmp(out.data, "{}\n", 3) == 0);
    rose_batch_store_close(s);

    s = open_store(&now); /* the same secret */
    char again[ROSE_BATCH_OWNER];
    rose_batch_store_owner(s, "key-1", again);
    assert_string_equal(again, one);
    rose_batch_store_close(s);
    rose_buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reader), cmocka_unit_test(test_request),
        cmocka_unit_test(test_many),   cmocka_unit_test(test_expiry),
        cmocka_unit_test(test_owners), cmocka_unit_test(test_orphans),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
