/* base/opts_file, opts_yaml and opts_sources: what a file of options says, what of YAML is refused
 * and where, and which source of an option counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/opts.h"
#include "base/opts_file.h"

/* ---- files ---- */

/* Writes the items as "line key=value;value" with '[' before the values of a list. */
static void expect_items(const char *path, const char *text, const char *want)
{
    rose_opts_file f = {0};
    rose_err err = {{0}};
    char got[2048] = "";
    if (rose_opts_file_parse(&f, path, text, strlen(text), &err) != ROSE_OK)
        fail_msg("%s: %s", text, err.msg);
    for (size_t i = 0; i < f.n; i++) {
        const rose_opts_file_item *item = &f.items[i];
        const char *v = rose_opts_file_text(&f, item->value);
        size_t n = strlen(got);
        n += (size_t)snprintf(got + n, sizeof got - n, "%u %s=%s", item->line,
                              rose_opts_file_text(&f, item->key), item->list ? "[" : "");
        for (uint32_t k = 0; k < item->n; k++, v += strlen(v) + 1)
            n += (size_t)snprintf(got + n, sizeof got - n, "%s;", v);
        snprintf(got + n, sizeof got - n, "\n");
    }
    assert_string_equal(got, want);
    rose_opts_file_free(&f);
}

static void test_yaml(void **state)
{
    (void)state;
    expect_items("c.yaml", "", "");
    expect_items("c.yaml", "# only a comment\n\n   # and another\n", "");
    expect_items("c.yaml", "---\nport: 8000\r\nhost: '::'\n", "2 port=8000;\n3 host=::;\n");
    expect_items("c.yaml", "\xef\xbb\xbfport: 1", "1 port=1;\n");
    expect_items("c.yaml", "a: b#c # d\nb:   x y  \t# z\n", "1 a=b#c;\n2 b=x y;\n");
    expect_items("c.yaml", "a: http://h:1/x\nb: -5\nc: ?x\n",
                 "1 a=http://h:1/x;\n2 b=-5;\n3 c=?x;\n");
    expect_items("c.yaml", "a: 'it''s # no comment'   # comment\n", "1 a=it's # no comment;\n");
    expect_items("c.yaml", "'a': \"q\\\"\\\\ \\n\\t\\x41\\u00e9\\u20ac\\U0001f339\"\n",
                 "1 a=q\"\\ \n\tA\xc3\xa9\xe2\x82\xac\xf0\x9f\x8c\xb9;\n");
    expect_items("c.yaml", "a: [x, 'y, z', \"w\", -1]  # c\nb: []\nc: [x,]\n",
                 "1 a=[x;y, z;w;-1;\n2 b=[\n3 c=[x;\n");
    expect_items("c.yaml", "a:   # list\n  - x\n\n  # c\n  - 'y'\nb:\n- z\n",
                 "1 a=[x;y;\n6 b=[z;\n");
    expect_items("c.yaml", "a: 'x'#y\n", "1 a=x;\n"); /* as PyYAML reads it */
    expect_items("c.yaml",
                 "\xef\xbb\xbf# \xf0\x9f\x8c\xb9\r\na: {\"\xc3\xa9\": \"\xe2\x82\xac\"} # c\nb:\n- "
                 "{\"c\": 1}\n- d",
                 "2 a={\"\xc3\xa9\": \"\xe2\x82\xac\"};\n3 b=[{\"c\": 1};d;\n");
    expect_items("c.yaml", "a: {\"x\": {\"y\": \"}\\\"\"}} # c\n",
                 "1 a={\"x\": {\"y\": \"}\\\"\"}};\n");
}

static void test_json(void **state)
{
    (void)state;
    expect_items("c.json", "{}", "");
    expect_items("c",
                 "  {\"a\": 1,\n \"b\"\n: [true, \"x\", 0.5],\n\"c\": {\"d\": [1, {\"e\": null}]}}",
                 "1 a=1;\n2 b=[true;x;0.5;\n4 c={\"d\":[1,{\"e\":null}]};\n");
    expect_items("c.json", "{\"a\\\"\\n{\": \"\\\"\",\n\"b\": \"{,\"}", "1 a\"\n{=\";\n2 b={,;\n");
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *path, *text, *want;
    } cases[] = {
        {"c.yaml", "a: 1\nb",
         "c.yaml:2: while scanning a simple key: could not find expected ':'; expected lines"},
        {"c.yaml", "a:1\n", "c.yaml:1: expected 'key: value'"},
        {"c.yaml", "a: 1\n...\n", "c.yaml:2: expected"},
        {"c.yaml", "%YAML 1.1\n---\na: 1\n", "c.yaml:1: expected"},
        {"c.yaml", "%TAG ! tag:x,2000:\n---\na: 1\n", "c.yaml:1: expected"},
        {"c.yaml", "? a\n", "c.yaml:2: a key or"},
        {"c.yaml", "a: 1\n---\nb: 2\n", "c.yaml:2: a file may hold only one document"},
        {"c.yaml", "a:\n\nb: 1\n", "c.yaml:1: a key or a list item has no value"},
        {"c.yaml", "b: 1\na: # x\n", "c.yaml:2: a key or a list item has no value"},
        {"c.yaml", "a:\n  b: 1\n", "c.yaml:2: nested keys"},
        {"c.yaml", "a: x\n  y\n", "c.yaml:1: text over several lines"},
        {"c.yaml", "a: 'x\n  y'\n", "c.yaml:1: text over several lines"},
        {"c.yaml", "a: [x,\n  y]\n", "c.yaml:1: a list in brackets must end on its line"},
        {"c.yaml", "a: {\"b\":\n  1}\n", "c.yaml:1: an object in braces must be JSON on one line"},
        {"c.yaml", "a: \"\\0\"\n", "c.yaml:1: a string holds the byte 0"},
        {"c.yaml", "[a]: 1\n", "c.yaml:1: expected 'key: value'"},
        {"c.yaml", "--- {a: 1}\n", "c.yaml:1: expected 'key: value'"},
        {"c.yaml", "b: 1\n# \xe2\x82\xac\n\x02: 1\n", "c.yaml:3: control characters"},
        {"c.yaml", "a:\n\t- x\n", "c.yaml:2: while scanning for the next token: found character"},
        {"c.yaml", "a: &x 1\n", "c.yaml:1: anchors, aliases and tags"},
        {"c.yaml", "a: *x\n", "c.yaml:1: anchors, aliases and tags"},
        {"c.yaml", "a: !!str 1\n", "c.yaml:1: anchors, aliases and tags"},
        {"c.yaml", "a: |\n  x\n", "c.yaml:1: text over several lines"},
        {"c.yaml", "a: >-\n  x\n", "c.yaml:1: text over several lines"},
        {"c.yaml", "a: - x\n", "c.yaml:1: block sequence entries are not allowed"},
        {"c.yaml", "a: x: y\n", "c.yaml:1: mapping values are not allowed"},
        {"c.yaml", "a:\n- b: c\n", "c.yaml:2: nested keys"},
        {"c.yaml", "a:\n- [b]\n", "c.yaml:2: a list may hold only"},
        {"c.yaml", "a:\n- x\n - y\n", "c.yaml:2: text over several lines"},
        {"c.yaml", "a:\n-\n", "c.yaml:2: a key or a list item has no value"},
        {"c.yaml", "- x\n", "c.yaml:1: expected 'key: value'"},
        {"c.yaml", "a: x\n- y\n", "c.yaml:2: while parsing a block mapping"},
        {"c.yaml", "a: [x\n", "c.yaml:1: while parsing a flow sequence"},
        {"c.yaml", "a: [x, [y]]\n", "c.yaml:1: a list may hold only"},
        {"c.yaml", "a: [x] y\n", "c.yaml:1: while parsing a block mapping"},
        {"c.yaml", "a: 'x' y\n", "c.yaml:1: while parsing a block mapping"},
        {"c.yaml", "a: 'x\n", "c.yaml:1: while scanning a quoted scalar"},
        {"c.yaml", "a: \"\\q\"\n", "c.yaml:1: while parsing a quoted scalar: found unknown escape"},
        {"c.yaml", "a: \"\\u00\"\n", "c.yaml:1: while parsing a quoted scalar: did not find"},
        {"c.yaml", "a: \"\\ud800\"\n", "c.yaml:1: while parsing a quoted scalar: found invalid"},
        {"c.yaml", "a: {b: 1}\n", "c.yaml:1: an object in braces must be JSON"},
        {"c.yaml", "a: {\"b\": 1\n", "c.yaml:1: while parsing a flow mapping"},
        {"c.yaml", "a: ~\n", "c.yaml:1: null is no value"},
        {"c.yaml", "a: 1\nb: null # c\n", "c.yaml:2: null is no value"},
        {"c.yaml", "a: \x01\n", "c.yaml:1: control characters are not allowed"},
        {"c.json", "[1]", "c.json:1: expected an object"},
        {"c.json", "a: 1", "c.json:1: "},
        {"c.json", "{\"a\": 1,\n\"a\": 2}", "c.json:2: duplicate object key"},
        {"c.json", "{\n\"a\": null}", "c.json:2: 'a' is null; leave the key out"},
        {"c.json", "{\n\n\"a\": [[1]]}", "c.json:3: the list 'a' holds a list or an object"},
        {"c.json", "{\"a\": 1", "c.json:1: "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rose_opts_file f = {0};
        rose_err err = {{0}};
        assert_int_equal(
            rose_opts_file_parse(&f, cases[i].path, cases[i].text, strlen(cases[i].text), &err),
            ROSE_E_FORMAT);
        assert_null(f.items);
        if (strncmp(err.msg, cases[i].want, strlen(cases[i].want)) != 0)
            fail_msg("'%s' says '%s' and not '%s'", cases[i].text, err.msg, cases[i].want);
    }
}

/* Times that grew with the square of the size or the depth were minutes. */
static void test_large(void **state)
{
    (void)state;
    enum { N = 200000 };
    char *text = malloc(3 * N + 8);
    rose_opts_file f = {0};
    rose_err err = {{0}};
    memcpy(text, "a: [", 4);
    for (size_t i = 0; i < N; i++)
        memcpy(text + 4 + 3 * i, "{},", 3);
    memcpy(text + 4 + 3 * N, "]", 2);
    assert_int_equal(rose_opts_file_parse(&f, "c.yaml", text, strlen(text), &err), ROSE_OK);
    assert_int_equal(f.n, 1);
    assert_int_equal(f.items[0].n, N);
    rose_opts_file_free(&f);
    memset(text + 3, '{', N);
    assert_int_equal(rose_opts_file_parse(&f, "c.yaml", text, N, &err), ROSE_E_FORMAT);
    assert_string_equal(
        err.msg, "c.yaml:1: an object is nested more than 64 levels deep; write a flatter one");
    memset(text + 3, '[', N);
    text[3] = '{';
    memcpy(text + 4, "\"b\":", 4);
    assert_int_equal(rose_opts_file_parse(&f, "c.yaml", text, N, &err), ROSE_E_FORMAT);
    assert_string_equal(
        err.msg, "c.yaml:1: an object is nested more than 64 levels deep; write a flatter one");
    free(text);
}

/* ---- sources ---- */

static struct {
    const char *host, *config, *json;
    uint32_t port, seqs;
    rose_opt_list names, keys;
    bool web, strict;
    float share;
} g;

static const rose_opt rows[] = {
    ROSE_ROW_HEADING("Group"),
    ROSE_ROW_STRING("config", &g.config, "FILE", "a file", .config = true),
    ROSE_ROW_STRING("host", &g.host, "HOST", "an address"),
    ROSE_ROW_STRING("kwargs", &g.json, "JSON", "an object"),
    ROSE_ROW_U32("port", &g.port, "N", 0, 65535, "a port", .letter = 'p'),
    ROSE_ROW_U32("max-num-seqs", &g.seqs, "N", 0, 0, "a number"),
    ROSE_ROW_LIST("name", &g.names, "NAME", "names"),
    ROSE_ROW_LIST("api-key", &g.keys, "KEY", "keys", .secret = true, .env_apart = true),
    ROSE_ROW_BOOL("web", &g.web, "a switch", .def = true),
    ROSE_ROW_FLAG("strict", &g.strict, "a flag"),
    ROSE_ROW_FLOAT("share", &g.share, "X", 0, 1, "a share"),
};
static const rose_command cmd = {
    "test MODEL [options]", "", rows, sizeof rows / sizeof *rows, 1, 1, NULL};

static char g_path[] = "/tmp/rose-opts-XXXXXX";
static char g_said[4096];

/* Parses the words of `line` with these variables, which spaces separate, and this content of the
 * file whose path stands for FILE. What is written to standard error goes to g_said. */
static int parse(rose_opts_sources *s, const char *line, const char *env, const char *content,
                 const char **model)
{
    static char words[512], variables[512], arg[128];
    char *argv[16] = {(char *)(uintptr_t) "test"}, *vars[16];
    int argc = 1, n_vars = 0, pipe_fds[2];
    uint32_t n_args;
    FILE *f = fopen(g_path, "w");
    assert_non_null(f);
    fputs(content, f);
    fclose(f);
    rose_opts_default(rows, sizeof rows / sizeof *rows);
    snprintf(words, sizeof words, "%s", line);
    for (char *p = strtok(words, " "); p != NULL; p = strtok(NULL, " ")) {
        snprintf(arg, sizeof arg, "--config=%s", g_path);
        argv[argc++] = strcmp(p, "--config=FILE") == 0 ? arg : p;
    }
    snprintf(variables, sizeof variables, "%s", env);
    for (char *p = strtok(variables, " "); p != NULL; p = strtok(NULL, " "))
        vars[n_vars++] = p;
    vars[n_vars] = NULL;
    *s = (rose_opts_sources){.env = vars};
    *model = NULL;
    assert_int_equal(pipe(pipe_fds), 0);
    const int saved = dup(STDERR_FILENO);
    dup2(pipe_fds[1], STDERR_FILENO);
    const int rc = rose_opts_parse_from(&cmd, s, argc, argv, model, &n_args);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(pipe_fds[1]);
    const ssize_t n = read(pipe_fds[0], g_said, sizeof g_said - 1);
    close(pipe_fds[0]);
    g_said[n > 0 ? n : 0] = '\0';
    return rc;
}

static void test_precedence(void **state)
{
    (void)state;
    rose_opts_sources s;
    const char *model;
    static const char file[] = "port: 1\nmax_num_seqs: 1\nhost: file\nname: [f, g]\nmodel: m\n";
    assert_int_equal(parse(&s, "--config=FILE", "", file, &model), -1);
    assert_string_equal(model, "m");
    assert_int_equal(g.port, 1);
    assert_int_equal(g.seqs, 1);
    assert_string_equal(g.host, "file");
    assert_int_equal(g.names.n, 2);
    assert_true(g.web);
    assert_string_equal(g_said, "");
    rose_opts_sources_free(&s);

    assert_int_equal(parse(&s, "M --config=FILE --name a --port 3",
                           "ROSEINFER_PORT=2 ROSEINFER_MAX_NUM_SEQS=2 ROSEINFER_NAME=e "
                           "ROSEINFER_MODEL=e ROSEINFER_HOST= ROSEINFER_API_KEY=k PATH=x",
                           file, &model),
                     -1);
    assert_string_equal(model, "M");
    assert_int_equal(g.port, 3);
    assert_int_equal(g.seqs, 2);
    assert_string_equal(g.host, "file"); /* an empty variable is none */
    assert_int_equal(g.names.n, 1);
    assert_string_equal(rose_opt_list_get(&g.names, 0), "a");
    assert_int_equal(g.keys.n, 0);
    assert_string_equal(g_said, "");
    rose_opts_sources_free(&s);

    assert_int_equal(parse(&s, "", "ROSEINFER_NAME=e,f ROSEINFER_MODEL=e", file, &model), -1);
    assert_string_equal(model, "e");
    assert_int_equal(g.port, 0); /* no file */
    assert_int_equal(g.names.n, 2);
    assert_int_equal(parse(&s, "-p 5 m", "ROSEINFER_PORT=4", "", &model), -1);
    assert_int_equal(g.port, 5); /* a letter counts as the option */
}

static void test_file_by_variable(void **state)
{
    (void)state;
    rose_opts_sources s;
    const char *model;
    char env[64];
    snprintf(env, sizeof env, "ROSEINFER_CONFIG=%s", g_path);
    assert_int_equal(parse(&s, "m", env, "port: 7", &model), -1);
    assert_int_equal(g.port, 7);
    rose_opts_sources_free(&s);
    snprintf(env, sizeof env, "ROSEINFER_CONFIG=/nowhere");
    assert_int_equal(parse(&s, "m --config=FILE", env, "port: 8", &model), -1);
    assert_int_equal(g.port, 8);
    rose_opts_sources_free(&s);
    assert_int_equal(parse(&s, "m", env, "", &model), 1);
    assert_non_null(strstr(g_said, "/nowhere"));
}

static void test_kinds(void **state)
{
    (void)state;
    rose_opts_sources s;
    const char *model;
    assert_int_equal(
        parse(&s, "m --config=FILE", "",
              "{\"web\": false, \"strict\": true, \"share\": 0.9, \"MAX-NUM_SEQS\": 9, "
              "\"kwargs\": {\"a\": true}, \"api_key\": [\"x\", \"y\"]}",
              &model),
        -1);
    assert_false(g.web);
    assert_true(g.strict);
    assert_true(g.share > 0.89f && g.share < 0.91f);
    assert_int_equal(g.seqs, 9);
    assert_string_equal(g.json, "{\"a\":true}");
    assert_int_equal(g.keys.n, 2);
    rose_opts_sources_free(&s);
    assert_int_equal(parse(&s, "m --config=FILE", "ROSEINFER_STRICT=1", "no-web: on\n", &model),
                     -1);
    assert_false(g.web);
    assert_true(g.strict);
    rose_opts_sources_free(&s);
    assert_int_equal(parse(&s, "m", "ROSEINFER_WEB=Off", "", &model), -1);
    assert_false(g.web);
    assert_int_equal(parse(&s, "m --web", "ROSEINFER_WEB=0", "", &model), -1);
    assert_true(g.web);
}

static void test_messages(void **state)
{
    (void)state;
    static const struct {
        const char *line, *env, *file, *want; /* %s is the path of the file */
        int rc;
    } cases[] = {
        {"m --config=FILE", "", "port: 1\nmax-seqs: 2",
         ":2: unknown key 'max-seqs'; did you mean "
         "max-num-seqs? (--help-all",
         2},
        {"m --config=FILE", "", "no_wbe: 1", ":1: unknown key 'no_wbe'; did you mean no-web?", 2},
        {"m --config=FILE", "", "zzz: 1", ":1: unknown key 'zzz' (--help-all", 2},
        {"m --config=FILE", "", "no-port: 1", ":1: unknown key 'no-port'", 2},
        {"m --config=FILE", "", "\n\nport: x", ":3: --port x: expected a whole number from 0", 2},
        {"m --config=FILE", "", "port: [1, 2]", ":1: 'port' takes one value, not a list", 2},
        {"m --config=FILE", "", "web: maybe", ":1: --web maybe: expected true or false", 2},
        {"m --config=FILE", "", "name: ''", ":1: --name '': expected at most", 2},
        {"m --config=FILE", "", "api-key: 'secret,,'", ":1: --api-key '...': expected", 2},
        {"m --config=FILE", "", "max-num-seqs: 1\nmax_num_seqs: 2",
         ":2: 'max_num_seqs' is given a second time, after line 1", 2},
        {"m --config=FILE", "", "web: 1\nno-web: 1", ":2: 'no-web' is given a second time", 2},
        {"m --config=FILE", "", "config: x", ":1: 'config' cannot name another file", 2},
        {"m --config=FILE", "", "model: [a]", ":1: 'model' takes one value", 2},
        {"m --config=FILE", "ROSEINFER_PORT=1", "port: [1]", ":1: 'port' takes one value", 2},
        {"m", "ROSEINFER_PORT=x", "", "roseinfer: ROSEINFER_PORT: --port x: expected a whole", 2},
        {"m", "ROSEINFER_MAX_NUM_SEQS=-1", "", "ROSEINFER_MAX_NUM_SEQS: --max-num-seqs -1: ", 2},
        {"m", "ROSEINFER_WEB=2", "", "ROSEINFER_WEB: --web 2: expected true or false", 2},
        {"m", "ROSEINFER_MAX_NUM_SEQ=2", "",
         "warning: the environment variable ROSEINFER_MAX_NUM_SEQ names no option and has no "
         "effect; "
         "did you mean ROSEINFER_MAX_NUM_SEQS?\n",
         -1},
        {"m", "ROSEINFER_NO_WEB=1", "",
         "ROSEINFER_NO_WEB names no option and has no effect; did you "
         "mean ROSEINFER_WEB=false?",
         -1},
        {"m", "ROSEINFER_port=1", "",
         "ROSEINFER_port names no option and has no effect; did you mean "
         "ROSEINFER_PORT?",
         -1},
        {"m", "ROSEINFER_X=1", "", "ROSEINFER_X names no option and has no effect\n", -1},
        {"", "", "", "MODEL is missing", 2},
        {"m --prot 1 --config=FILE", "", "zzz: 1", "unknown option --prot", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rose_opts_sources s;
        const char *model;
        const int rc = parse(&s, cases[i].line, cases[i].env, cases[i].file, &model);
        rose_opts_sources_free(&s);
        if (rc != cases[i].rc || strstr(g_said, cases[i].want) == NULL)
            fail_msg("'%s' '%s' '%s' gives %d, '%s' and not '%s'", cases[i].line, cases[i].env,
                     cases[i].file, rc, g_said, cases[i].want);
        if (cases[i].want[0] == ':') assert_non_null(strstr(g_said, g_path));
    }
}

/* Kubernetes sets these where a service is named roseinfer. */
static void test_service_links(void **state)
{
    (void)state;
    rose_opts_sources s;
    const char *model;
    assert_int_equal(
        parse(&s, "m",
              "ROSEINFER_PORT=tcp://10.0.0.1:80 ROSEINFER_PORT_80_TCP=tcp://10.0.0.1:80 "
              "ROSEINFER_SERVICE_HOST=10.0.0.1 ROSEINFER_SERVICE_PORT_HTTP=80",
              "", &model),
        -1);
    assert_int_equal(g.port, 0);
    assert_string_equal(g_said, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_yaml),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_precedence),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_file_by_variable),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_service_links),
    };
    const int fd = mkstemp(g_path);
    if (fd < 0) return 1;
    close(fd);
    const int failed = cmocka_run_group_tests_name("sources of options", tests, NULL, NULL);
    unlink(g_path);
    return failed;
}
