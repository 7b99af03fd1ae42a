/* Work pays: each operator, lookup, method, filter, test and statement of a chat template, in a
 * loop over long values, ends by the limit of steps. The limit leaves each round 60 steps of its
 * own. A round reads, writes or visits at least 8 KiB or 1,000 items, which are 125 steps or more,
 * so a round that does not pay for them reaches the end of the loop. No clock is read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "template/template.h"

enum { BYTES = 1 << 15, MEMBERS = 2000, ROUNDS = 500, STEPS = 60 * ROUNDS };

/* s: letters from a message. o: its equal elsewhere. e: differs in the last letter. p: text of both
 * origins. b: blanks. w: no ASCII. l, m: equal lists; t: a tuple; d, f: equal dictionaries. */
static const char setup[] =
    "{% set o = s ~ '' %}{% set e = s[:-1] ~ 'b' %}{% set p = (s[:9] ~ '1') * 3000 %}"
    "{% set b = ' ' * 30000 %}{% set w = '\xc3\xa9' * 15000 %}{% set q = {o: 1} %}"
    "{% set l = range(3000)|list %}{% set m = range(3000)|list %}{% set t = (1,) * 3000 %}"
    "{% set r = range(3000) %}{% set ns = namespace(x='') %}{% set g = '%' * 30000 %}"
    "{% macro k(a) %}{{ caller(a) }}{% endmacro %}";

static const char *const expressions[] = {
    /* comparisons */
    "s == o", "s != o", "s < o", "s <= o", "s > o", "s >= o", "e in s", "e not in s", "s in [o]",
    "[s] == [o]", "{'k': s} == {'k': o}", "(s, 1) < (o, 2)", "l == m", "l < m", "d == f",
    "1.5 in l", "9 not in t", "t == t", "r == r", "s is eq o", "s is equalto o", "s is ne o",
    "s is lt o", "s is le o", "s is gt o", "s is ge o", "s is in [o]", "s is sameas o", "2 is in t",
    "loop.changed(s)", "loop.changed(l)",
    /* lookups */
    "{s: 1}[o]", "q[s]", "q.get(s)", "s in q", "d['z']", "d.z", "d.get('z')", "ns|attr('y' ~ s)",
    "{t: 1}", "t in {1: 1}", "{1: 1}[t]", "q.get(t)", "s[20000]", "s[-1]", "w[9]", "l.count(9)",
    "t.count(9)", "l.index(2999)", "t.index(1) if 2 in t", "dict(d)", "namespace(d)",
    /* parts */
    "s[20000:]", "s[:20000]", "w[:-1]", "s[::2]", "s[::-1]", "s[5:20000:3]", "l[1:]", "l[::-1]",
    "t[::2]", "r[1:]",
    /* methods of strings */
    "s.startswith(o)", "s.endswith(o)", "s.startswith((e, o))", "s.endswith((e, o))",
    "s.startswith(('b',) * 3000)", "s.find(e)", "s.find('b')", "s.rfind('b')", "s.rfind(e)",
    "s.index(o)", "s.count('b')", "s.count('a')", "s.count('')", "s.count(e)", "s.replace('b', '')",
    "s.replace('a', 'b')", "s.replace('', 'b')", "s.split('b')", "s.split('a')", "s.split(e)",
    "s.split()", "b.split()", "s.rsplit('b')", "s.rsplit('a')", "s.rsplit(e)", "s.rsplit()",
    "b.rsplit()", "s.splitlines()", "s.partition('b')", "s.rpartition('b')", "s.rpartition(e)",
    "s.strip('a')", "s.lstrip('ba')", "s.rstrip('ba')", "'x'.strip(s)", "b.strip()", "b.lstrip()",
    "b.rstrip()", "s.upper()", "s.lower()", "s.title()", "s.capitalize()", "s.removeprefix(o)",
    "s.removesuffix(o)", "s.join(['', '', ''])", "''.join(l|map('string'))", "s.zfill(9)",
    "s.ljust(9)", "s.rjust(9)", "'x'.zfill(20000)", "'x'.ljust(20000)", "'x'.rjust(20000)",
    "s.isdigit()", "s.isalpha()", "s.isalnum()", "s.isupper()", "s.islower()", "b.isspace()",
    "'{}'.format(s)", "s.format()", "'{a}'.format(a=p)",
    /* filters */
    "s|upper", "s|lower", "s|title", "s|capitalize", "b|trim", "s|trim('a')", "'x'|trim(s)",
    "s|replace('b', '')", "s|indent", "s|indent(9, true, true)", "'x'|indent(s, true)",
    "s|center(9)", "'x'|center(20000)", "s|wordcount", "s|escape", "p|e", "s|length", "s|count",
    "s|list", "s|first", "s|last", "s|reverse", "s|join", "s|tojson", "p|tojson", "[s]|tojson",
    "{s: 1}|tojson", "w|tojson(ensure_ascii=true)", "[[1]]|tojson(indent=s)",
    "[1, 2]|tojson(separators=(s, o))", "d|tojson(sort_keys=true)", "'%s'|format(s)", "s|format",
    "'%(a)s'|format(a=s)", "[s]|string", "{s: s}|string", "p|safe|int", "b|float", "b|int(0, 16)",
    "[s, o]|sort", "[s, o]|sort(case_sensitive=true)", "[s, o]|unique|list",
    "[s, o]|unique(case_sensitive=true)|list", "[s, o]|min", "[s, o]|max(case_sensitive=true)",
    "{s: 1, e: 2}|dictsort", "{1: s, 2: e}|dictsort(by='value')", "[s, o]|map('upper')|list",
    "[{'k': s}]|map(attribute='k')|join", "[{}]|map(attribute=s)|list", "[{}]|sort(attribute=s)",
    "[{}.x]|map('default', s)|join", "[s, o]|select('eq', e)|list", "[s, o]|reject('in', [e])|list",
    "[{'k': s}]|selectattr('k', 'eq', o)|list", "[{'k': s}]|rejectattr('k', 'in', e)|list",
    "[{}]|selectattr(s)|list", "[{}]|rejectattr(s)|list", "l|batch(3)|list",
    "[1]|batch(3000, 0)|list", "l|sum", "l|sort", "l|sort(reverse=true)", "d|unique|list", "l|list",
    "l|reverse|list", "l|join", "l|map('string')|list", "l|select|list", "l|reject|list", "l|min",
    "l|max", "d|dictsort", "d|items|list", "d|tojson", "d|string", "l|tojson", "l|string",
    "t|string", "l|first", "l|last", "[[1], [2]]|sum(start=l)", "s is upper", "s is lower",
    /* operators */
    "s + o", "s ~ o", "s * 2", "2 * s", "l + m", "t + t", "l * 2", "2 * t", "'%s' % s", "s % ()",
    "'%9000s' % s", "'%r' % s", "g % ()", "p ~ ''", "p + p", "p * 2", "range(3000)",
    "d.items()|list", "d.keys()|list", "d.values()|list", "(s, o)|string",
    "(1 / 3)|string ~ 0.1 ~ 1e300", "[0.1, 1e-320]|tojson", "'%.20f' % 0.5 ~ '1.5'|float",
    "1.25|round(1) ~ 7.5|round(200)", "strftime_now('%c')"};

static const char *const statements[] = {"{{ s }}",
                                         "{{ p }}",
                                         "{{ l }}",
                                         "{% set z %}{{ s }}{% endset %}",
                                         "{% set z | upper %}{{ s }}{% endset %}",
                                         "{% filter upper %}{{ s }}{% endfilter %}",
                                         "{% set ns.x = ns.x ~ s %}",
                                         "{% for c in s %}{% endfor %}",
                                         "{% for c in l %}{% endfor %}",
                                         "{% for c in l if c == 9 %}{% endfor %}",
                                         "{% for c in d %}{% endfor %}",
                                         "{% for c, v in d.items() %}{% endfor %}",
                                         "{% if s == o %}{% endif %}",
                                         "{% macro h(a) %}{{ a }}{% endmacro %}{% set z = h(s) %}",
                                         "{% call(a) k(s) %}{{ a }}{% endcall %}",
                                         "{% generation %}{{ s }}{% endgeneration %}",
                                         "{% with z = s ~ s %}{% endwith %}",
                                         "{% if s != o %}{{ raise_exception(s) }}{% endif %}"};

static rose_json *variables(void)
{
    rose_json *kwargs = rose_json_object(), *d = rose_json_object(), *f = rose_json_object();
    char *s = malloc(BYTES);
    memset(s, 'a', BYTES);
    for (int i = 0; i < MEMBERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "k%d", i);
        rose_json_set_new(d, name, rose_json_integer(i));
        rose_json_set_new(f, name, rose_json_integer(i));
    }
    rose_json_set_new(kwargs, "s", rose_json_stringn(s, BYTES));
    rose_json_set_new(kwargs, "f", f);
    rose_json_set_new(kwargs, "d", d);
    free(s);
    return kwargs;
}

/* Renders `body` in a loop of n rounds; *used: the steps. */
static rose_status render(const char *body, int n, uint64_t steps, uint64_t *used, rose_err *err)
{
    char text[2048];
    rose_template *t = NULL;
    rose_template_text out = {0};
    rose_json *messages = rose_json_pack("[{s:s}]", "role", "user"), *kwargs = variables();
    const rose_template_input in = {
        .messages = messages,
        .kwargs = kwargs,
        .limits = {.steps = steps, .memory_bytes = (size_t)1 << 30, .used = used}};
    snprintf(text, sizeof text, "%s{%% for i in range(%d) %%}%s{%% endfor %%}", setup, n, body);
    rose_status st = rose_template_compile(&t, text, strlen(text), err);
    if (st == ROSE_OK) st = rose_template_render(&out, t, &in, err);
    rose_template_text_free(&out);
    rose_template_free(t);
    rose_json_decref(messages);
    rose_json_decref(kwargs);
    return st;
}

static int check(const char *body)
{
    rose_err err = {{0}};
    uint64_t before = 0, used = 0;
    rose_status st = render(body, 1, 1000000, &before, &err);
    if (st != ROSE_OK) {
        print_error("%s: one round fails: %s\n", body, err.msg);
        return 1;
    }
    st = render(body, ROUNDS, before + STEPS, &used, &err);
    if (st == ROSE_E_INVAL && strstr(err.msg, " steps") != NULL && used >= before + STEPS) return 0;
    print_error("%s: %llu rounds take %llu steps: %s\n", body, (unsigned long long)ROUNDS,
                (unsigned long long)(used - before), st == ROSE_OK ? "no limit" : err.msg);
    return 1;
}

static void test_expressions(void **state)
{
    int bad = 0;
    (void)state;
    for (size_t i = 0; i < sizeof expressions / sizeof *expressions; i++) {
        char body[256];
        snprintf(body, sizeof body, "{%% set z = %s %%}", expressions[i]);
        bad += check(body);
    }
    assert_int_equal(bad, 0);
}

static void test_statements(void **state)
{
    int bad = 0;
    (void)state;
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        bad += check(statements[i]);
    assert_int_equal(bad, 0);
}

/* A tuple of itself twice, forty times over: whoever walks through it must pay on the way. */
static void test_nested(void **state)
{
    static const char *const walks[] = {
        "{1: 1}[t]", "{t: 1}",   "q.get(t)",           "t == x",      "t < x",  "t|string",
        "t|tojson",  "t in [x]", "[t, x]|unique|list", "[t, x]|sort", "t in q", "dict([(t, 1)])"};
    (void)state;
    for (size_t i = 0; i < sizeof walks / sizeof *walks; i++) {
        char body[512];
        rose_err err = {{0}};
        uint64_t used;
        snprintf(body, sizeof body,
                 "{%% set ns.t = (0,) %%}{%% set ns.x = (0,) %%}{%% for i in range(40) %%}"
                 "{%% set ns.t = (ns.t, ns.t) %%}{%% set ns.x = (ns.x, ns.x) %%}{%% endfor %%}"
                 "{%% set t = ns.t %%}{%% set x = ns.x %%}{%% set z = %s %%}",
                 walks[i]);
        if (render(body, 1, 200000, &used, &err) != ROSE_E_INVAL) fail_msg("%s", walks[i]);
        assert_non_null(strstr(err.msg, " steps"));
    }
}

/* Another thread ends a render whose steps would last for hours; it uses no more than CPU time. */
static void test_ends(void **state)
{
    static const char body[] = "{% for i in range(90000) %}{% for k in range(90000) %}"
                               "{% endfor %}{% endfor %}";
    rose_json *messages = rose_json_pack("[{s:s}]", "role", "user");
    const atomic_bool stop = true;
    rose_template *t = NULL;
    rose_template_text out;
    rose_err err = {{0}};
    (void)state;
    rose_template_input in = {.messages = messages,
                              .limits = {.steps = UINT64_MAX >> 8, .stop = &stop}};
    assert_int_equal(rose_template_compile(&t, body, strlen(body), &err), ROSE_OK);
    assert_int_equal(rose_template_render(&out, t, &in, &err), ROSE_E_CLOSED);
    assert_null(out.bytes);
    in.limits.stop = NULL;
    in.limits.cpu_ms = 1;
    assert_int_equal(rose_template_render(&out, t, &in, &err), ROSE_E_INVAL);
    assert_non_null(strstr(err.msg, "takes more than 1 ms of CPU time"));
    /* Renders that share their time: this one begins when it is over, and ends at the first check.
     */
    uint64_t spent_ns = UINT64_C(3600000000000), used = 0;
    in.limits.cpu_ms = 3600000;
    in.limits.spent_ns = &spent_ns;
    in.limits.used = &used;
    assert_int_equal(rose_template_render(&out, t, &in, &err), ROSE_E_INVAL);
    assert_non_null(strstr(err.msg, "takes more than 3600000 ms of CPU time"));
    assert_true(used < 1000000); /* of 2^56 */
    assert_true(spent_ns >= UINT64_C(3600000000000));
    rose_template_free(t);
    rose_json_decref(messages);
}

/* The compiler also looks through the names of a template. */
static void test_many_names(void **state)
{
    enum { NAMES = 60000 };
    char *text = malloc(NAMES * 16), *at = text;
    rose_template *t;
    rose_err err = {{0}};
    (void)state;
    for (int i = 0; i < NAMES; i++)
        at += sprintf(at, "{{ n%d }}", i);
    assert_int_equal(rose_template_compile(&t, text, (size_t)(at - text), &err), ROSE_E_INVAL);
    assert_non_null(strstr(err.msg, " steps"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_expressions),
                                       cmocka_unit_test(test_statements),
                                       cmocka_unit_test(test_nested), cmocka_unit_test(test_ends),
                                       cmocka_unit_test(test_many_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
