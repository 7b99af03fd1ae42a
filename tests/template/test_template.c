/* Chat templates: marks through every filter and method, control tokens in messages, errors that
 * name the line, and limits. tests/template/parity.py compares the texts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "template/template.h"

static rose_json *parse(const char *text)
{
    rose_json_error e;
    rose_json *v = NULL;
    assert_int_equal(rose_json_parse(&v, text, strlen(text), ROSE_JSON_NUL, &e), ROSE_OK);
    return v;
}

typedef struct result {
    rose_status st;
    rose_err err;
    char *marks; /* the text with each message byte as '.', owned */
    rose_template_text text;
} result;

static char *marked(const rose_template_text *x)
{
    char *s = strdup(x->bytes);
    size_t at = 0;
    for (size_t i = 0; i < x->n_runs; i++) {
        assert_true(x->runs[i].end > at && x->runs[i].end <= x->len);
        if (x->runs[i].message) memset(s + at, '.', x->runs[i].end - at);
        at = x->runs[i].end;
    }
    assert_int_equal(at, x->len);
    return s;
}

static result render_in(const char *template, rose_template_input *in)
{
    result r = {.st = ROSE_OK};
    rose_template *t = NULL;
    in->now_s = 1790000000;
    in->utc = true;
    r.st = rose_template_compile(&t, template, strlen(template), &r.err);
    if (r.st == ROSE_OK) r.st = rose_template_render(&r.text, t, in, &r.err);
    rose_template_free(t);
    if (r.st == ROSE_OK) r.marks = marked(&r.text);
    return r;
}

static const char chat[] =
    "[{\"role\": \"user\", \"content\": \"Ab c\", \"name\": \"n\", \"i\": 12, \"f\": 1.5, \"t\": "
    "true,"
    "\"l\": [\"x\", {\"k\": \"v\"}], \"d\": {\"a\": \"b\"}, \"s\": \"\\u00df<\\n\","
    "\"b\": 12345678901234567890, \"n\": -98765432109876543210}]";

static result render(const char *template)
{
    rose_json *messages = parse(chat), *kwargs = parse("{\"kw\": \"K\"}"),
              *tokens = parse("{\"bos_token\": \"<s>\"}");
    rose_template_input in = {.messages = messages, .kwargs = kwargs, .tokens = tokens};
    result r = render_in(template, &in);
    rose_json_decref(messages);
    rose_json_decref(kwargs);
    rose_json_decref(tokens);
    return r;
}

static void release(result *r)
{
    rose_template_text_free(&r->text);
    free(r->marks);
}

/* template, text, the text with message bytes as '.'. "m" is the message. */
static const char *const mark_cases[][3] = {
    {"{{ bos_token }}{{ m.content }}|", "<s>Ab c|", "<s>....|"},
    {"{{ kw }}{{ m.role }}:", "Kuser:", ".user:"},
    {"{{ '<|' ~ m.role ~ '|>' }}", "<|user|>", "<|user|>"},
    {"{{ '<' + m.content + '>' }}", "<Ab c>", "<....>"},
    {"{{ '<' ~ m.i ~ '>' ~ m.f ~ m.t }}", "<12>1.5True", "<..>......."},
    {"{{ m.i + 1 }} {{ -m.i }} {{ m.content|length }}", "13 -12 4", ".. ... 4"},
    {"{{ m.content|upper }}{{ m.s|upper }}x", "AB CSS<\nx", "........x"},
    {"{{ ('a' + m.content + 'b')|title }}", "Aab Cb", "A....b"},
    {"{{ ('<a>' + m.content)[2:5] }}", ">Ab", ">.."},
    {"{{ ('<a>' + m.content)[::-1] }}", "c bA>a<", "....>a<"},
    {"{{ m.content|replace('b', '<|e|>') }}", "A<|e|> c", ".<|e|>.."},
    {"{{ 'x y'|replace(' ', m.content) }}", "xAb cy", "x....y"},
    {"{{ m.content|trim }}{{ ' q '|trim }}", "Ab cq", "....q"},
    {"{{ m.content.split(' ')|join('<|e|>') }}", "Ab<|e|>c", "..<|e|>."},
    {"{{ m.content.split(' ')[1] }}|", "c|", ".|"},
    {"{{ m.l|join(',') }}", "x,{'k': 'v'}", ".,.........."},
    {"{{ m.d|tojson }}|{{ {'a': m.name}|tojson }}", "{\"a\": \"b\"}|{\"a\": \"n\"}",
     "..........|{\"a\": ...}"},
    {"{{ [m.i, 1]|tojson }}", "[12, 1]", "[.., 1]"},
    {"{{ m.d|tojson(indent=1) }}", "{\n \"a\": \"b\"\n}", "............."},
    {"{{ m.s|tojson }}", "\"\xc3\x9f<\\n\"", "......."},
    {"{{ m.s|tojson(ensure_ascii=true) }}", "\"\\u00df<\\n\"", "..........."},
    {"{{ m.d|string }}{{ m.d }}", "{'a': 'b'}{'a': 'b'}", "...................."},
    {"{{ m.content|indent(2, true) }}", "  Ab c", "  ...."},
    {"{{ m.content|center(6) }}", " Ab c ", " .... "},
    {"{{ m.content|escape }}{{ m.s|e }}", "Ab c\xc3\x9f&lt;\n", "..........."},
    {"{{ '%s<%s>'|format(m.name, 'x') }}", "n<x>", ".<x>"},
    {"{{ '{}<{}>'.format(m.name, 'x') }}", "n<x>", ".<x>"},
    {"{{ m.content * 2 }}{{ 'x' * m.i }}", "Ab cAb cxxxxxxxxxxxx", "........xxxxxxxxxxxx"},
    {"{% for c in m.content %}{{ c }},{% endfor %}", "A,b, ,c,", ".,.,.,.,"},
    {"{% set x %}<{{ m.name }}>{% endset %}{{ x|upper }}", "<N>", "<.>"},
    {"{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(m.name)|lower }}", "<n>", "<.>"},
    {"{% filter upper %}a{{ m.name }}{% endfilter %}", "AN", "A."},
    {"{% set ns = namespace(s='<') %}{% for c in m.content %}{% set ns.s = ns.s ~ c %}"
     "{% endfor %}{{ ns.s }}>",
     "<Ab c>", "<....>"},
    {"{% for k, v in m.d.items() %}{{ k }}={{ v }}{% endfor %}", "a=b", ".=."},
    {"{{ m.d|dictsort }}{{ m.d|items|list }}", "[('a', 'b')][('a', 'b')]",
     "........................"},
    {"{{ m.content|list|reverse|join }}", "c bA", "...."},
    {"{{ m.get('name') }}{{ m.get('zz', 'std') }}", "nstd", ".std"},
    {"{{ m.name|default('std') }}{{ m.zz|default('std') }}", "nstd", ".std"},
    {"{{ m.content.partition(' ')[1] }}{{ m.content.rsplit(none, 1)[0] }}|", " Ab|", "...|"},
    {"{{ strftime_now('%Y') }}{{ m.content|first }}", "2026A", "2026."},
    {"{{ m.content|map('upper')|join('-') }}", "A-B- -C", ".-.-.-."},
    {"{{ m.content|int(7) }}{{ '12'|int }}{{ (m.name ~ '')|length }}", "7121", "7121"},
    {"{{ m.content if m.t else 'x' }}{{ m.zz or 'x' }}", "Ab cx", "....x"},
    {"{{ '<|im_' ~ m.name ~ '|>' }}", "<|im_n|>", "<|im_.|>"},
    /* integers beyond 64 bits keep their digits */
    {"{{ m.b }} {{ [m.b]|tojson }} {{ m.b|int }}",
     "12345678901234567890 [12345678901234567890] 12345678901234567890",
     ".................... [....................] ...................."},
    {"{{ m.b is integer }}{{ m.b is number }}{{ m.b is float }}", "TrueTrueFalse", "TrueTrueFalse"},
    {"{{ m.b == m.b }}{{ m.b > 1 }}{{ m.n < m.b }}{{ m.n < 0 }}{{ m.b == m.n }}",
     "TrueTrueTrueTrueFalse", "TrueTrueTrueTrueFalse"},
    {"{{ [m.b, m.n]|min }}{{ m.b|abs }}", "-9876543210987654321012345678901234567890",
     "........................................."},
    {"{{ '%d'|format(m.b) }}{{ m.b|float }}", "123456789012345678901.2345678901234567e+19",
     ".........................................."},
};

static void test_marks(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mark_cases / sizeof *mark_cases; i++) {
        char template[512];
        snprintf(template, sizeof template, "{%% set m = messages[0] %%}%s", mark_cases[i][0]);
        result r = render(template);
        if (r.st != ROSE_OK) fail_msg("%s: %s", mark_cases[i][0], r.err.msg);
        assert_string_equal(r.text.bytes, mark_cases[i][1]);
        if (strcmp(r.marks, mark_cases[i][2]) != 0)
            fail_msg("%s: %s, not %s", mark_cases[i][0], r.marks, mark_cases[i][2]);
        release(&r);
    }
}

/* The condition of a loop is tested when the loop comes to the item, or when a member of `loop`
 * asks for later items. The texts are those of jinja2 3.1.6; each template begins with namespace
 * ns. */
static const char *const loop_cases[][2] = {
    {"{% for i in range(6) if ns.n < 2 %}{% set ns.n = ns.n + 1 %}{{ i }}{% endfor %}", "01"},
    {"{% for c in 'abcab' if c not in ns.r %}{% set ns.r = ns.r + [c] %}{{ c }}{% endfor %"
     "}",
     "abc"},
    {"{% for i in range(6) if ns.n < 2 %}{% set ns.n = ns.n + 1 %}{{ i }}{{ loop.last }} {"
     "% endfor %}",
     "0False 1True "},
    {"{% for i in range(6) if ns.n < 2 %}{{ loop.length }}{% set ns.n = ns.n + 1 %}{{ i }}"
     "{{ loop.last }} {% endfor %}",
     "60False 61False 62False 63False 64False 65True "},
    {"{% for i in range(6) if ns.n < 2 %}{% set ns.n = ns.n + 1 %}{{ i }}{{ loop.nextitem "
     "}}{{ loop.previtem }} {% endfor %}",
     "01 10 "},
    {"{% for i in range(6) if i is odd and ns.n < 4 %}{% set ns.n = ns.n + i %}{{ i }}{{ l"
     "oop.revindex }}{{ loop.revindex0 }} {% endfor %}",
     "132 321 510 "},
    {"{% for i in range(6) if ns.n < 3 %}{% set ns.n = ns.n + 1 %}{{ loop }}{{ loop|length"
     " }}{{ loop.first }} {% endfor %}",
     "<LoopContext 1/6>6True <LoopContext 2/6>6False <LoopContext 3/6>6False <LoopContext "
     "4/6>6False <LoopContext 5/6>6False <LoopContext 6/6>6False "},
    {"{% for i in range(4) if 6 // (3 - i) > 0 %}{{ i }}{% if i == 2 %}{% break %}{% endif"
     " %}{% endfor %}",
     "012"},
    {"{% for i in range(3) %}{{ i }}{% for k in [] %}{% else %}{% if i == 1 %}{% break %}{% endif "
     "%}e{% endfor %}."
     "{% endfor %}",
     "0e.1"},
    {"{% for i in range(3) %}{{ i }}{% filter upper %}a{% if i == 1 %}{% continue %}{% endif %}b{% "
     "endfilter %}."
     "{% endfor %}",
     "0AB.12AB."},
    {"{% set x = 'o' %}{% for i in range(3) %}{% set x %}a{% if i == 1 %}{% break %}{% endif %}b{% "
     "endset %}{{ x }}{{ i }}"
     "{% endfor %}{{ x }}",
     "ab0o"},
    {"{% for i in range(3) if ns.n > 0 %}{{ i }}{% else %}none{% endfor %}", "none"},
    {"{% set k = 1 %}{% for i in range(4) if i < k %}{% set k = 9 %}{{ i }}{{ k }}{% endfo"
     "r %}{{ k }}",
     "091"},
    {"{% for a in range(2) %}{% for b in range(4) if b > loop.index0 and ns.n < 5 %}{% set"
     " ns.n = ns.n + 1 %}{{ a }}{{ b }} {% endfor %}{% endfor %}",
     "01 02 03 12 13 "},
    {"{% for i in range(5) if i != 1 %}{{ loop.index }}{{ i }}{% if loop.last %}.{% endif "
     "%}{% continue %}{% endfor %}",
     "10223344."},
};

static void test_loop_conditions(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof loop_cases / sizeof *loop_cases; i++) {
        char template[512];
        snprintf(template, sizeof template, "{%% set ns = namespace(n=0, r=[]) %%}%s",
                 loop_cases[i][0]);
        result r = render(template);
        if (r.st != ROSE_OK) fail_msg("%s: %s", loop_cases[i][0], r.err.msg);
        if (strcmp(r.text.bytes, loop_cases[i][1]) != 0)
            fail_msg("%s: %s, not %s", loop_cases[i][0], r.text.bytes, loop_cases[i][1]);
        release(&r);
    }
}

/* A role that OpenAI's API knows is template text, any other role is message text. */
static void test_roles(void **state)
{
    rose_json *messages = parse("[{\"role\": \"system\"}, {\"role\": \"developer\"}, "
                                "{\"role\": \"assistant\"}, {\"role\": \"tool\"}, "
                                "{\"role\": \"function\"}, {\"role\": \"end\"}, "
                                "{\"role\": \"User\"}, {\"role\": \"user\", \"x\": \"user\"}]");
    rose_template_input in = {.messages = messages};
    (void)state;
    result r = render_in("{% for m in messages %}{{ m.role }}{{ m.x }},{% endfor %}", &in);
    assert_string_equal(r.marks, "system,developer,assistant,tool,function,...,....,user....,");
    release(&r);
    rose_json_decref(messages);
}

/* template, the status, a part of the message. */
static const struct {
    const char *template;
    rose_status st;
    const char *says;
} error_cases[] = {
    {"a\n{{ raise_exception('roles must alternate') }}", ROSE_E_INVAL,
     "line 2: roles must alternate"},
    {"{{ messages[0].b + 1 }}", ROSE_E_INVAL, "an integer does not fit 64 bits"},
    {"{{ -messages[0].b }}", ROSE_E_INVAL, "an integer does not fit 64 bits"},
    {"{{ 1 +\n\n none }}", ROSE_E_INVAL, "line 1: '+' is not supported between int and NoneType"},
    {"{{ zz.a }}", ROSE_E_INVAL, "'zz' is undefined"},
    {"\n\n{{ 'a'|nix }}", ROSE_E_FORMAT, "line 3: no filter named 'nix'"},
    {"{% if false %}{{ 'a'|nix }}{% endif %}{{ 1 is nix }}", ROSE_E_FORMAT, "no test named 'nix'"},
    {"{% if x %}", ROSE_E_FORMAT, "unexpected end of the template, expected elif"},
    {"{{ 'a }}", ROSE_E_FORMAT, "unexpected character"},
    {"{% include 'x' %}", ROSE_E_UNSUPPORTED, "the tag 'include' of Jinja"},
    {"{% nix %}", ROSE_E_FORMAT, "unknown tag 'nix'"},
    {"{# never closed", ROSE_E_FORMAT, "Missing end of comment tag"},
    {"\xff", ROSE_E_FORMAT, "is not UTF-8"},
    {"{{ messages.append(1) }}", ROSE_E_INVAL, "may not change a list"},
    {"{% set ns = namespace(_a=1) %}", ROSE_E_INVAL, "underscore"},
    {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", ROSE_E_INVAL, "is nested more than"},
    {"{% for i in range(99999) %}{% for k in range(99999) %}{% endfor %}{% endfor %}", ROSE_E_INVAL,
     "steps"},
    {"{{ 'x' * 99999999 }}", ROSE_E_INVAL, "writes a text of more than"},
    {"{{ [1] * 99999999 }}", ROSE_E_INVAL, "memory"},
    {"{{ 9223372036854775807 + 1 }}", ROSE_E_INVAL, "64 bits"},
    {"{% set ns = namespace() %}{% for i in 'ab' if not ns.l or ns.l.last %}{% set ns.l = loop %}"
     "{% endfor %}",
     ROSE_E_INVAL, "asks for the items of its loop"},
};

static void test_errors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof error_cases / sizeof *error_cases; i++) {
        result r = render(error_cases[i].template);
        if (r.st != error_cases[i].st || strstr(r.err.msg, error_cases[i].says) == NULL)
            fail_msg("%s: %s", error_cases[i].template, r.err.msg);
        assert_null(r.text.bytes);
        release(&r);
    }
}

/* Each variable is compared with those before it, and so these count as steps. */
static void test_many_variables(void **state)
{
    rose_template *t;
    rose_template_text text;
    rose_err err = {{0}};
    rose_json *messages = rose_json_pack("[{s:s}]", "role", "user"), *kwargs = rose_json_object();
    (void)state;
    assert_int_equal(rose_template_compile(&t, "{{ k7 }}", 8, &err), ROSE_OK);
    const rose_template_input in = {.messages = messages, .kwargs = kwargs};
    for (int i = 0; i < 30000; i++) {
        char name[16];
        snprintf(name, sizeof name, "k%d", i);
        assert_int_equal(rose_json_set_new(kwargs, name, rose_json_integer(i)), 0);
        if (i != 999) continue;
        assert_int_equal(rose_template_render(&text, t, &in, &err), ROSE_OK);
        assert_string_equal(text.bytes, "7");
        rose_template_text_free(&text);
    }
    assert_int_equal(rose_template_render(&text, t, &in, &err), ROSE_E_INVAL);
    assert_non_null(strstr(err.msg, "steps"));
    rose_template_free(t);
    rose_json_decref(messages);
    rose_json_decref(kwargs);
}

/* Nested brackets and blocks cannot exhaust the stack. */
static void test_nesting(void **state)
{
    static const char *const parts[] = {"(", "[", "not ", "- ", "{% if 1 %}", "x[", "1 if "};
    (void)state;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t n = strlen(parts[i]);
        char *s = calloc(1, 100000 * n + 3);
        memcpy(s, "{{", 2);
        for (size_t k = 0; k < 100000; k++)
            memcpy(s + (i == 4 ? 0 : 2) + k * n, parts[i], n);
        result r = render(s);
        assert_true(r.st != ROSE_OK);
        release(&r);
        free(s);
    }
}

static result continued(const char *template, const char *messages)
{
    rose_json *m = parse(messages);
    rose_template_input in = {.messages = m, .continue_final_message = true};
    result r = render_in(template, &in);
    rose_json_decref(m);
    return r;
}

static void test_continue(void **state)
{
    static const char template[] =
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}";
    (void)state;
    result r = continued(template, "[{\"role\": \"a\", \"content\": \"b c \"}]");
    assert_string_equal(r.text.bytes, "<a>b c ");
    assert_string_equal(r.marks, "<.>....");
    release(&r);
    r = continued("{{ messages[0].content|trim }}!", "[{\"content\": \"b c \"}]");
    assert_string_equal(r.text.bytes, "b c");
    release(&r);
    r = continued("{{ messages[0].role }} content", "[{\"role\": \"a\", \"content\": \"b\"}]");
    assert_int_equal(r.st, ROSE_E_INVAL);
    release(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_marks),          cmocka_unit_test(test_roles),
        cmocka_unit_test(test_errors),         cmocka_unit_test(test_many_variables),
        cmocka_unit_test(test_nesting),        cmocka_unit_test(test_continue),
        cmocka_unit_test(test_loop_conditions)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
