/* Tool calls and reasoning in the text of models: texts of each format as models write them, well
 * formed and not, cut in two at every byte, into single bytes, and at random places. The templates
 * of published models, where they are at hand, give the expected formats. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "chat/calls.h"

/* ---- parts as one text: T{text} R{reasoning} C0{name} A0{arguments} ---- */

typedef struct log {
    rose_buf b;
    rose_part_kind kind;
    uint32_t call;
    bool any;
} log;

static void sink(void *arg, const rose_part *p)
{
    log *l = arg;
    const bool more =
        l->any && p->kind == l->kind && p->call == l->call && p->kind != ROSE_PART_CALL;
    assert_true(p->len > 0);
    if (l->any && !more) rose_buf_add(&l->b, "}", 1);
    if (!more && p->kind == ROSE_PART_TEXT) rose_buf_add(&l->b, "T{", 2);
    if (!more && p->kind == ROSE_PART_REASONING) rose_buf_add(&l->b, "R{", 2);
    if (p->kind == ROSE_PART_CALL) rose_buf_addf(&l->b, "C%u{", p->call);
    if (!more && p->kind == ROSE_PART_ARGS) rose_buf_addf(&l->b, "A%u{", p->call);
    assert_int_equal(rose_buf_add(&l->b, p->bytes, p->len), ROSE_OK);
    l->any = true;
    l->kind = p->kind;
    l->call = p->call;
}

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"parameters\": {"
    "\"type\": \"object\", \"properties\": {"
    "\"city\": {\"type\": \"string\"}, \"days\": {\"type\": \"integer\"},"
    "\"exact\": {\"type\": \"boolean\"}, \"at\": {\"anyOf\": [{\"type\": \"string\"},"
    "{\"type\": \"null\"}]}, \"where\": {\"$ref\": \"#/$defs/place\"}, \"tags\": {\"type\":"
    "[\"array\", \"null\"]}, \"unit\": {\"enum\": [\"C\", \"F\"]}, \"any\": {},"
    "\"mixed\": {\"enum\": [\"auto\", 1, \"2\", null]}, \"few\": {\"enum\": [1, 2]},"
    "\"loop\": {\"$ref\": \"#/properties/loop\"}},"
    "\"$defs\": {\"place\": {\"type\": \"object\"}}}}},"
    "{\"type\": \"function\", \"function\": {\"name\": \"now\"}},"
    "{\"type\": \"function\", \"function\": {\"name\": \"run.code\", \"parameters\": {"
    "\"properties\": {\"code\": {\"type\": \"string\"}}}}}]";

typedef struct sample {
    rose_calls_format format;
    rose_reasoning_format reasoning;
    bool in_reasoning;
    const char *text;
    const char *parts;
    bool one_call;
} sample;

#define NONE     ROSE_CALLS_NONE
#define HERMES   ROSE_CALLS_HERMES
#define LLAMA3   ROSE_CALLS_LLAMA3
#define XML      ROSE_CALLS_QWEN3_XML
#define PYTHONIC ROSE_CALLS_PYTHONIC
#define MISTRAL  ROSE_CALLS_MISTRAL
#define LIST     ROSE_CALLS_LIST
#define QWEN3    ROSE_REASONING_QWEN3
#define R1       ROSE_REASONING_DEEPSEEK
#define THINK    ROSE_REASONING_MISTRAL

#define PARIS "{\"city\": \"Paris\", \"days\": 3}"

static const sample samples[] = {
    /* no format */
    {NONE, 0, 0, "<tool_call>{}</tool_call> [f()] <think>",
     "T{<tool_call>{}</tool_call> [f()] <think>}", 0},
    {NONE, 0, 0, " \n", "T{ \n}", 0},
    {NONE, 0, 0, "", "", 0},

    /* hermes */
    {HERMES, 0, 0,
     "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " PARIS "}\n</tool_call>",
     "C0{get_weather}A0{" PARIS "}", 0},
    {HERMES, 0, 0,
     "I look it up.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": " PARIS
     "}\n</tool_call>\n"
     "<tool_call>\n{\"arguments\": {\"a\": {\"b\": [1, {\"c\": \"}]\\\"{\"}]}}, \"name\": "
     "\"now\"}\n</tool_call>\n",
     "T{I look it up.\n}C0{get_weather}A0{" PARIS
     "}C1{now}A1{{\"a\": {\"b\": [1, {\"c\": \"}]\\\"{\"}]}}}",
     0},
    {HERMES, 0, 0, "<tool_call>{\"name\":\"now\"}</tool_call> Done.", "C0{now}A0{{}}T{ Done.}", 0},
    {HERMES, 0, 0, "<tool_call>{\"name\":\"now\",\"arguments\":null}</tool_call>", "C0{now}A0{{}}",
     0},
    {HERMES, 0, 0, "<tool_call>{\"arguments\":null,\"name\":\"now\"}</tool_call>", "C0{now}A0{{}}",
     0},
    {HERMES, 0, 0,
     "<tool_call>{\"name\":\"now\",\"arguments\":\"{\\\"a\\\": \\\"\\u00e9\\\"}\"}</tool_call>",
     "C0{now}A0{{\"a\": \"\xc3\xa9\"}}", 0},
    /* a Python dict in place of the object */
    {HERMES, 0, 0,
     "<tool_call>\n{'name': 'now', 'arguments': {'a': True, 'b': \"it's {\", 'c': (0x10, None)}}\n"
     "</tool_call>\n<tool_call>{ 'arguments': None, 'name': 'now'}</tool_call> Done.",
     "C0{now}A0{{\"a\": true, \"b\": \"it's {\", \"c\": [16, null]}}C1{now}A1{{}}T{ Done.}", 0},
    {HERMES, 0, 0,
     "<tool_call>[{'name': 'now'}, {'name': '''a\\'b''', 'arguments': {}}]</tool_call>",
     "C0{now}A0{{}}C1{a'b}A1{{}}", 0},
    {HERMES, 0, 0, "<tool_call>{'nome': 'now'}</tool_call>",
     "T{<tool_call>{'nome': 'now'}</tool_call>}", 0},
    {HERMES, 0, 0, "<tool_call>{'name': now}</tool_call>",
     "T{<tool_call>{'name': now}</tool_call>}", 0},
    {HERMES, 0, 0, "<tool_call>{'name': 'now', 'argu", "T{<tool_call>{'name': 'now', 'argu}", 0},
    {HERMES, 0, 0, "<tool_call>{\"arguments\":\"{}\",\"name\":\"now\"}</tool_call>",
     "C0{now}A0{{}}", 0},
    {HERMES, 0, 0, "<tool_call>{\"arguments\":\"\\ud800\",\"name\":\"now\"}</tool_call>",
     "C0{now}A0{\"\\ud800\"}", 0},
    {HERMES, 0, 0,
     "<tool_call>{\"id\": 7, \"x\": [\"]\", {}], \"na\\u006de\": 1, \"name\": \"un\\u006bnown\", "
     "\"arguments\": {\"text\": \"\xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x98\x80\\n\\\\\"}, \"z\": "
     "true}</tool_call>",
     "C0{unknown}A0{{\"text\": \"\xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x98\x80\\n\\\\\"}}", 0},
    /* several calls in one tag, lists, and OpenAI's own form */
    {HERMES, 0, 0,
     "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n{\"name\": \"get_weather\", "
     "\"arguments\": " PARIS "}\n</tool_call>.",
     "C0{now}A0{{}}C1{get_weather}A1{" PARIS "}T{.}", 0},
    {HERMES, 0, 0,
     "<tool_call>\n[{\"name\": \"now\", \"arguments\": {}}, {\"arguments\": " PARIS
     ", \"name\": \"get_weather\"}]\n</tool_call>\n<tool_call>[{\"name\": \"now\"}]",
     "C0{now}A0{{}}C1{get_weather}A1{" PARIS "}C2{now}A2{{}}", 0},
    {HERMES, 0, 0,
     "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"now\", \"arguments\": "
     "{\"a\": {}}}, \"id\": \"x\"}</tool_call><tool_call>[{\"id\": 1, \"function\": "
     "{\"arguments\": "
     "\"{}\", \"name\": \"f\"}, \"type\": \"function\"}]</tool_call>",
     "C0{now}A0{{\"a\": {}}}C1{f}A1{{}}", 0},
    {HERMES, 0, 0, "<tool_call>{\"name\": \"now\"} {\"a\": 1} x", "C0{now}A0{{}}T{ {\"a\": 1} x}",
     0},
    {HERMES, 0, 0, "<tool_call>[[{\"name\": \"now\"}]]</tool_call>",
     "T{<tool_call>[[{\"name\": \"now\"}]]</tool_call>}", 0},
    {HERMES, 0, 0, "<tool_call>{\"function\": {\"name\": \"now\", \"arguments\": {\"a\": 1",
     "C0{now}A0{{\"a\": 1}", 0},
    {HERMES, 0, 0, "<tool_call>{\"name\": \"now\", \"arguments\": {}}\n{\"name\": \"no",
     "C0{now}A0{{}}T{\n{\"name\": \"no}", 0},
    /* without the end, cut in the middle, in two */
    {HERMES, 0, 0,
     "<tool_call>{\"name\":\"now\",\"arguments\":{}}<tool_call>{\"name\":\"now\",\"arguments\":{}}",
     "C0{now}A0{{}}C1{now}A1{{}}", 0},
    {HERMES, 0, 0, "<tool_call>{\"name\":\"now\",\"arguments\":{\"a\": [1, \"x",
     "C0{now}A0{{\"a\": [1, \"x}", 0},
    {HERMES, 0, 0, "<tool_call>{\"name\":\"now\",\"arguments\":{}}\n</tool_", "C0{now}A0{{}}", 0},
    {HERMES, 0, 0, "<tool_call>{\"name\":\"now\",\"arguments\":{}", "C0{now}A0{{}}", 0},
    {HERMES, 0, 0, "<tool_call>{\"name\":\"no", "T{<tool_call>{\"name\":\"no}", 0},
    {HERMES, 0, 0, "x <tool_c", "T{x <tool_c}", 0},
    /* malformed */
    {HERMES, 0, 0, "<tool_call>get_weather(Paris)</tool_call>",
     "T{<tool_call>get_weather(Paris)</tool_call>}", 0},
    {HERMES, 0, 0, "<tool_call>{\"name\": 7}</tool_call>",
     "T{<tool_call>{\"name\": 7}</tool_call>}", 0},
    {HERMES, 0, 0, "<tool_call>{\"name\": \"\"}</tool_call>",
     "T{<tool_call>{\"name\": \"\"}</tool_call>}", 0},
    {HERMES, 0, 0, "<tool_call>{\"name\": \"\\x\"}</tool_call>",
     "T{<tool_call>{\"name\": \"\\x\"}</tool_call>}", 0},
    {HERMES, 0, 0, "<tool_call>{}</tool_call>", "T{<tool_call>{}</tool_call>}", 0},
    {HERMES, 0, 0, "<tool_call>{\"name\" \"f\"}", "T{<tool_call>{\"name\" \"f\"}}", 0},
    {HERMES, 0, 0, "<tool_call>{\"name\": \"f\", \"arguments\": [1]}",
     "T{<tool_call>{\"name\": \"f\", \"arguments\": [1]}}", 0},
    {HERMES, 0, 0, "<tool_call><tool_call>{\"name\":\"now\"}</tool_call>",
     "T{<tool_call>}C0{now}A0{{}}", 0},
    {HERMES, 0, 0, "<<tool_<tool_call>{\"name\":\"now\"}</tool_call>", "T{<<tool_}C0{now}A0{{}}",
     0},
    {HERMES, 0, 0, "<tool_call>{\"name\": \"now\", \"arguments\": {\"a\": 1}, oops} more",
     "C0{now}A0{{\"a\": 1}}T{, oops} more}", 0},
    {HERMES, 0, 0, "a <b> c\n\n", "T{a <b> c\n\n}", 0},
    {HERMES, 0, 0,
     "<tool_call>{\"name\":\"a\",\"arguments\":{}}</"
     "tool_call><tool_call>{\"name\":\"b\",\"arguments\":{\"x\":1}}"
     "</tool_call>end",
     "C0{a}A0{{}}T{end}", true},

    /* llama3_json */
    {LLAMA3, 0, 0, "{\"name\": \"get_weather\", \"parameters\": " PARIS "}",
     "C0{get_weather}A0{" PARIS "}", 0},
    {LLAMA3, 0, 0, "<|python_tag|>{\"type\": \"function\", \"name\": \"now\", \"parameters\": {}}",
     "C0{now}A0{{}}", 0},
    {LLAMA3, 0, 0,
     "\n{\"name\": \"now\", \"parameters\": {}}; {\"parameters\": {\"city\": \"\\\"\"}, \"name\": "
     "\"get_weather\"}",
     "C0{now}A0{{}}C1{get_weather}A1{{\"city\": \"\\\"\"}}", 0},
    {LLAMA3, 0, 0, "Sure: {\"name\": \"now\", \"arguments\": {}} ok;",
     "T{Sure: }C0{now}A0{{}}T{ ok;}", 0},
    {LLAMA3, 0, 0, "{\"name\": \"now\", \"parameters\": {}};", "C0{now}A0{{}}", 0},
    {LLAMA3, 0, 0, "{\"name\": \"other\", \"parameters\": {}}",
     "T{{\"name\": \"other\", \"parameters\": {}}}", 0},
    {LLAMA3, 0, 0, "{\"name\": \"now\"}", "T{{\"name\": \"now\"}}", 0},
    {LLAMA3, 0, 0, "{\"age\": 3, \"name\": \"now\", \"parameters\": {}}",
     "T{{\"age\": 3, \"name\": \"now\", \"parameters\": {}}}", 0},
    {LLAMA3, 0, 0, "int f() { return {}; }", "T{int f() { return {}; }}", 0},
    {LLAMA3, 0, 0, "<|python_tag|>brave_search.call(query=\"x\")",
     "T{<|python_tag|>brave_search.call(query=\"x\")}", 0},
    {LLAMA3, 0, 0, "{{\"name\": \"now\", \"parameters\": {}}}", "T{{}C0{now}A0{{}}T{}}", 0},
    {LLAMA3, 0, 0,
     "[{\"name\": \"now\", \"parameters\": {}}, {\"name\": \"get_weather\", \"parameters\": " PARIS
     "}]; {\"type\": \"function\", \"function\": {\"name\": \"now\", \"parameters\": {}}}",
     "C0{now}A0{{}}C1{get_weather}A1{" PARIS "}C2{now}A2{{}}", 0},
    {LLAMA3, 0, 0, "<|python_tag|>[{\"name\": \"now\", \"parameters\": {}}]", "C0{now}A0{{}}", 0},
    {LLAMA3, 0, 0, "See [1], [{\"name\": \"other\"}] and [{\"a\": 1}]",
     "T{See [1], [{\"name\": \"other\"}] and [{\"a\": 1}]}", 0},

    /* qwen3_xml */
    {XML, 0, 0,
     "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</"
     "parameter>\n<parameter=days>\n3\n</parameter>\n"
     "</function>\n</tool_call>",
     "C0{get_weather}A0{" PARIS "}", 0},
    {XML, 0, 0,
     "Let me "
     "see.\n\n<tool_call>\n<function=now>\n</function>\n</"
     "tool_call>\n<tool_call>\n<function=run.code>\n"
     "<parameter=code>\nif a < b && c > \"d\":\n\tprint('\\n</p>')\n\n# "
     "\xc3\xa9\x01\n</parameter>\n</function>\n</tool_call>",
     "T{Let me see.\n\n}C0{now}A0{{}}C1{run.code}"
     "A1{{\"code\": \"if a < b && c > \\\"d\\\":\\n\\tprint('\\\\n</p>')\\n\\n# "
     "\xc3\xa9\\u0001\"}}",
     0},
    {XML, 0, 0,
     "<function=get_weather><parameter=city>7</parameter><parameter=exact>True</"
     "parameter><parameter=at>null</parameter>"
     "<parameter=where>{\"a\": [1]}</parameter><parameter=tags>\n[\"x\",\n "
     "\"y\"]\n</parameter></function>",
     "C0{get_weather}A0{{\"city\": \"7\", \"exact\": true, \"at\": null, \"where\": {\"a\": [1]}, "
     "\"tags\": [\"x\",\n \"y\"]}}",
     0},
    {XML, 0, 0,
     "<function=get_weather><parameter=at>3 "
     "pm</parameter><parameter=days>many</parameter><parameter=exact>1</parameter>"
     "<parameter=unit>\tC </parameter><parameter=new>5</parameter><parameter=any>5</"
     "parameter><parameter=loop>[</parameter>"
     "<parameter=tags></parameter><parameter=city>\n\n</parameter></function> Bye",
     "C0{get_weather}A0{{\"at\": \"3 pm\", \"days\": \"many\", \"exact\": \"1\", \"unit\": \"C\", "
     "\"new\": \"5\", \"any\": 5, "
     "\"loop\": \"[\", \"tags\": \"\", \"city\": \"\"}}T{ Bye}",
     0},
    {XML, 0, 0, "<tool_call><function=nobody><parameter=n>1</parameter></function></tool_call>",
     "C0{nobody}A0{{\"n\": \"1\"}}", 0},
    {XML, 0, 0,
     "<tool_call><function=now></function><tool_call><function=now></function></tool_call>",
     "C0{now}A0{{}}C1{now}A1{{}}", 0},
    /* values that are Python's, and long numbers */
    {XML, 0, 0,
     "<function=get_weather><parameter=tags>\n['a', \"b\", 'it\\'s']\n</parameter>"
     "<parameter=where>{'x': True, 'y': (1, None)}</parameter>"
     "<parameter=days>\n12345678901234567890123\n</parameter><parameter=exact>True</parameter>"
     "<parameter=at>None</parameter><parameter=any>['x', 1_0]</parameter></function>",
     "C0{get_weather}A0{{\"tags\": [\"a\", \"b\", \"it's\"], \"where\": {\"x\": true, \"y\": [1, "
     "null]}, \"days\": 12345678901234567890123, \"exact\": true, \"at\": null, \"any\": [\"x\", "
     "10]}}",
     0},
    {XML, 0, 0,
     "<function=get_weather><parameter=at>0x10</parameter><parameter=any>'a'</parameter>"
     "<parameter=days>0x10</parameter><parameter=tags>['a'</parameter></function>",
     "C0{get_weather}A0{{\"at\": \"0x10\", \"any\": \"'a'\", \"days\": 16, \"tags\": \"['a'\"}}",
     0},
    /* an enum of several types */
    {XML, 0, 0,
     "<function=get_weather><parameter=mixed>1</parameter></function>"
     "<function=get_weather><parameter=mixed>\n2\n</parameter></function>"
     "<function=get_weather><parameter=mixed>None</parameter></function>"
     "<function=get_weather><parameter=mixed>auto</parameter></function>"
     "<function=get_weather><parameter=mixed>3</parameter></function>"
     "<function=get_weather><parameter=mixed>1.0</parameter></function>"
     "<function=get_weather><parameter=few>2.0</parameter></function>"
     "<function=get_weather><parameter=few>7</parameter></function>",
     "C0{get_weather}A0{{\"mixed\": 1}}C1{get_weather}A1{{\"mixed\": \"2\"}}C2{get_weather}A2{{"
     "\"mixed\": null}}C3{get_weather}A3{{\"mixed\": \"auto\"}}C4{get_weather}A4{{\"mixed\": "
     "3}}C5{get_weather}A5{{\"mixed\": 1.0}}C6{get_weather}A6{{\"few\": 2.0}}C7{get_weather}A7{{"
     "\"few\": 7}}",
     0},
    /* closing tags that the model forgot */
    {XML, 0, 0,
     "<tool_call>\n<function=get_weather>\n<parameter=city>\nDallas\n<parameter=days>\n7\n</"
     "parameter>\n</function>\n</tool_call>",
     "C0{get_weather}A0{{\"city\": \"Dallas\", \"days\": 7}}", 0},
    {XML, 0, 0,
     "<tool_call><function=get_weather><parameter=days>7<parameter=city>Dal\nlas</function>"
     "</tool_call> Bye",
     "C0{get_weather}A0{{\"days\": 7, \"city\": \"Dal\\nlas\"}}T{ Bye}", 0},
    {XML, 0, 0,
     "<function=get_weather>\n<parameter=city>\nDallas\n</function>\n<function=now></function>",
     "C0{get_weather}A0{{\"city\": \"Dallas\"}}C1{now}A1{{}}", 0},
    {XML, 0, 0, "<function=get_weather>\n<parameter=days>\n7\n</function>\n",
     "C0{get_weather}A0{{\"days\": 7}}", 0},
    {XML, 0, 0,
     "<tool_call><function=get_weather><parameter=city>a</function></tool_call><tool_call>"
     "<function=now></function></tool_call>",
     "C0{get_weather}A0{{\"city\": \"a\"}}C1{now}A1{{}}", 0},
    {XML, 0, 0,
     "<tool_call><function=run.code><parameter=code>\n<parameter=x>\n<parameter=code>\n</function> "
     "</functio\n <parameter=\n</parameter></function></tool_call>",
     "C0{run.code}A0{{\"code\": \"<parameter=x>\\n<parameter=code>\\n</function> "
     "</functio\\n <parameter=\"}}",
     0},
    /* two calls in one tag */
    {XML, 0, 0,
     "<tool_call>\n<function=now>\n</function>\n<function=run.code>\n<parameter=code>\nx\n</"
     "parameter>\n</function>\n</tool_call>!",
     "C0{now}A0{{}}C1{run.code}A1{{\"code\": \"x\"}}T{!}", 0},
    /* cut */
    {XML, 0, 0, "<tool_call><function=get_weather><parameter=city>Par",
     "C0{get_weather}A0{{\"city\": \"Par}", 0},
    {XML, 0, 0, "<tool_call><function=get_weather><parameter=days>1",
     "C0{get_weather}A0{{\"days\": 1}", 0},
    {XML, 0, 0, "<tool_call><function=get_weather><parameter=days>1</parameter>\n",
     "C0{get_weather}A0{{\"days\": 1}}", 0},
    {XML, 0, 0, "<tool_call><function=get_weather><parameter=days>1</parameter>\n<param",
     "C0{get_weather}A0{{\"days\": 1}", 0},
    {XML, 0, 0, "<tool_call><function=get_weather>", "T{<tool_call><function=get_weather>}", 0},
    /* malformed */
    {XML, 0, 0, "<tool_call>{\"name\": \"now\"}</tool_call>",
     "T{<tool_call>{\"name\": \"now\"}</tool_call>}", 0},
    {XML, 0, 0, "<function=a b\nc>", "T{<function=a b\nc>}", 0},
    {XML, 0, 0, "<function=>", "T{<function=>}", 0},
    {XML, 0, 0, "<function=now>x</function>", "T{<function=now>x</function>}", 0},
    {XML, 0, 0, "<function=now><parameter=></function>", "T{<function=now><parameter=></function>}",
     0},
    {XML, 0, 0, "<function=now><parameter=a>1</parameter> but <parameter=></function>",
     "C0{now}A0{{\"a\": \"1\"}}", 0},
    {XML, 0, 0,
     "<function=now><parameter=a>1</parameter> and <parameter=b>2</parameter></function>.",
     "C0{now}A0{{\"a\": \"1\", \"b\": \"2\"}}T{.}", 0},
    {XML, 0, 0, "<tool_call>  <functio", "T{<tool_call>  <functio}", 0},

    /* pythonic */
    {PYTHONIC, 0, 0, "[get_weather(city='Paris', days=3)]", "C0{get_weather}A0{" PARIS "}", 0},
    {PYTHONIC, 0, 0, "[now(), get_weather(city=\"it's \\\"P\\\"\", days=-1_000), now( )]",
     "C0{now}A0{{}}C1{get_weather}A1{{\"city\": \"it's \\\"P\\\"\", \"days\": -1000}}C2{now}A2{{}}",
     0},
    {PYTHONIC, 0, 0,
     "[get_weather(where={'a': [1, 2.5, (True, None), [],], 'b': {},}, tags = [ 'x' , \"y\" ], "
     "any={1: 'one', None: 0})]",
     "C0{get_weather}A0{{\"where\": {\"a\": [1, 2.5, [true, null], []], \"b\": {}}, \"tags\": "
     "[\"x\", \"y\"], "
     "\"any\": {\"1\": \"one\", \"null\": 0}}}",
     0},
    {PYTHONIC, 0, 0, "[run.code(code='a\\n\\t\\x41\\u00e9\\U0001F600\\q\\\nb\xc3\xa9\n')]",
     "C0{run.code}A0{{\"code\": \"a\\n\\t\\u0041\\u00e9\\ud83d\\ude00\\\\qb\xc3\xa9\\n\"}}", 0},
    {PYTHONIC, 0, 0, "[get_weather(any=[.5, 5., +1, 1e5, 1E-5, -0.5], city=5, exact=false)]",
     "C0{get_weather}A0{{\"any\": [0.5, 5.0, 1, 1e5, 1E-5, -0.5], \"city\": \"5\", \"exact\": "
     "false}}",
     0},
    {PYTHONIC, 0, 0, "See [1] and [now] and [now()] there",
     "T{See [1] and [now] and }C0{now}A0{{}}T{ there}", 0},
    {PYTHONIC, 0, 0, "[other(a=1)]", "T{[other(a=1)]}", 0},
    {PYTHONIC, 0, 0, "[get_weather('Paris')]", "T{[get_weather('Paris')]}", 0},
    {PYTHONIC, 0, 0, "[get_weather(city, days=3)]", "T{[get_weather(city, days=3)]}", 0},
    {PYTHONIC, 0, 0, "[get_weather(city=Paris)] x", "C0{get_weather}A0{{\"city\": \"Paris\"}}T{ x}",
     0},
    {PYTHONIC, 0, 0, "[get_weather(any={'a', 'b'})]",
     "C0{get_weather}A0{{\"any\": [\"a\", \"b\"]}}", 0},
    {PYTHONIC, 0, 0, "[now(), stop]", "C0{now}A0{{}}T{, stop]}", 0},
    {PYTHONIC, 0, 0, "[now() now()]", "C0{now}A0{{}}T{ now()]}", 0},
    {PYTHONIC, 0, 0,
     "[get_weather(any=[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
     "C0{get_weather}A0{{\"any\": "
     "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[}",
     0},
    {PYTHONIC, 0, 0, "[get_weather(days=12", "C0{get_weather}A0{{\"days\": 12}", 0},
    {PYTHONIC, 0, 0, "[get_weather(da", "T{[get_weather(da}", 0},
    {PYTHONIC, 0, 0, "[run.code(code='\\ud800\\x4')]",
     "C0{run.code}A0{{\"code\": \"\\ufffd\\u0004\"}}", 0},

    /* every literal of Python; what is none becomes a string of its text */
    {PYTHONIC, 0, 0,
     "[get_weather(days=12345678901234567890123, any=[0x1F, 0XFFFFFFFFFFFFFFFFFFFF, 0o17, 0b1_01, "
     "-0x_10, - 3, 000, 007.5, 1_000.5e-1_0])]",
     "C0{get_weather}A0{{\"days\": 12345678901234567890123, \"any\": [31, "
     "1208925819614629174706175, 15, 5, -16, -3, 0, 7.5, 1000.5e-10]}}",
     0},
    {PYTHONIC, 0, 0,
     "[get_weather(days=0x1F), get_weather(days=007), get_weather(days=1__0), "
     "get_weather(days=3j), get_weather(any=0x), get_weather(any=1 + 2, city=1)]",
     "C0{get_weather}A0{{\"days\": 31}}C1{get_weather}A1{{\"days\": \"007\"}}"
     "C2{get_weather}A2{{\"days\": \"1__0\"}}C3{get_weather}A3{{\"days\": \"3j\"}}"
     "C4{get_weather}A4{{\"any\": \"0x\"}}C5{get_weather}A5{{\"any\": \"1 + 2\", \"city\": "
     "\"1\"}}",
     0},
    {PYTHONIC, 0, 0,
     "[run.code(code=\"\"\"a \"b\" ''\nc\\\"\"\"\"), run.code(code=''), run.code(code='''''')]",
     "C0{run.code}A0{{\"code\": \"a \\\"b\\\" ''\\nc\\\"\"}}C1{run.code}A1{{\"code\": \"\"}}"
     "C2{run.code}A2{{\"code\": \"\"}}",
     0},
    {PYTHONIC, 0, 0, "[run.code(code='aa' \"bb\"\n  u'''cc''' R'\\d\\'' '' b'\\x41' ), now()]",
     "C0{run.code}A0{{\"code\": \"aabbcc\\\\d\\\\'\\u0041\"}}C1{now}A1{{}}", 0},
    {PYTHONIC, 0, 0,
     "[get_weather(any=['a' 'b', r'\\\\', rb\"\\n\", '\\101\\0', '''it's''', \"]\", 'x)'])]",
     "C0{get_weather}A0{{\"any\": [\"ab\", \"\\\\\\\\\", \"\\\\n\", \"\\u0041\\u0000\", "
     "\"it's\", \"]\", \"x)\"]}}",
     0},
    {PYTHONIC, 0, 0,
     "[run.code(code='\\ud83d\\ude00 \\ud83dx \\ude00 \\ud83d'), "
     "get_weather(any={'\\ud83d\\ude00'})]",
     "C0{run.code}A0{{\"code\": \"\\ud83d\\ude00 \\ufffdx \\ufffd \\ufffd\"}}"
     "C1{get_weather}A1{{\"any\": [\"\\ud83d\\ude00\"]}}",
     0},
    {PYTHONIC, 0, 0,
     "[get_weather(any=({1, 2}, (3,), (4), (), set(), {}, {1.5: None, True: {2: (5)}})), now()]",
     "C0{get_weather}A0{{\"any\": [[1, 2], [3], 4, [], [], {}, {\"1.5\": null, \"true\": "
     "{\"2\": 5}}]}}C1{now}A1{{}}",
     0},
    {PYTHONIC, 0, 0,
     "[get_weather(any={[1]: 2}, city='a' + f'b', tags=[x for x in 'a,b'], where=dict(a=1), "
     "days=)]",
     "C0{get_weather}A0{{\"any\": \"{[1]: 2}\", \"city\": \"a' + f'b'\", \"tags\": \"[x for x in "
     "'a,b']\", \"where\": \"dict(a=1)\", \"days\": \"\"}}",
     0},
    {PYTHONIC, 0, 0, "[get_weather(city='a', any=[1, 2)] x",
     "C0{get_weather}A0{{\"city\": \"a\", \"any\": \"[1, 2)\"}}T{ x}", 0},
    {PYTHONIC, 0, 0, "[get_weather(days=3]", "C0{get_weather}A0{{\"days\": 3}}", 0},
    {PYTHONIC, 0, 0, "[run.code(code='ab'", "C0{run.code}A0{{\"code\": \"ab\"}", 0},
    {PYTHONIC, 0, 0, "[get_weather(any=[1, 'a", "C0{get_weather}A0{{\"any\": [1, 'a}", 0},

    /* mistral */
    {MISTRAL, 0, 0,
     "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": " PARIS ", \"id\": \"abcdefghi\"}]",
     "C0{get_weather}A0{" PARIS "}", 0},
    {MISTRAL, 0, 0,
     "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}}, {\"arguments\": {\"a\": \"]\"}, "
     "\"name\": \"b\"}]\n",
     "C0{now}A0{{}}C1{b}A1{{\"a\": \"]\"}}", 0},
    {MISTRAL, 0, 0,
     "Yes.[TOOL_CALLS]get_weather[ARGS]" PARIS "[TOOL_CALLS]now[CALL_ID]abc123DEF[ARGS]{}",
     "T{Yes.}C0{get_weather}A0{" PARIS "}C1{now}A1{{}}", 0},
    {MISTRAL, 0, 0, "[TOOL_CALLS]now{\"a\": {}} ok", "C0{now}A0{{\"a\": {}}}T{ ok}", 0},
    {MISTRAL, 0, 0, "[TOOL_CALLS]{\"name\": \"now\"}", "C0{now}A0{{}}", 0},
    {MISTRAL, 0, 0, "[TOOL_CALLS][]", "T{[TOOL_CALLS][]}", 0},
    {MISTRAL, 0, 0, "[TOOL_CALLS]now[ARG]{}", "T{[TOOL_CALLS]now[ARG]{}}", 0},
    {MISTRAL, 0, 0, "[TOOL_CALLS]now[ARGS]x", "T{[TOOL_CALLS]now[ARGS]x}", 0},
    {MISTRAL, 0, 0, "[TOOL_CALLS]now, and", "T{[TOOL_CALLS]now, and}", 0},
    {MISTRAL, 0, 0, "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}, then",
     "C0{now}A0{{}}T{, then}", 0},
    {MISTRAL, 0, 0, "[TOOL_[TOOL_CALLS]now[ARGS]{\"a\":", "T{[TOOL_}C0{now}A0{{\"a\":}", 0},

    /* replies that a grammar makes */
    {LIST, 0, 0,
     "[{\"name\": \"get_weather\", \"parameters\": " PARIS
     "}, {\"name\": \"now\", \"parameters\": {}}]",
     "C0{get_weather}A0{" PARIS "}C1{now}A1{{}}", 0},

    {LIST, 0, 0, "[{\"name\": \"other\", \"parameters\": {}}]",
     "T{[{\"name\": \"other\", \"parameters\": {}}]}", 0},
    {LIST, 0, 0, "[{\"name\": \"now\"}, 1]", "T{[{\"name\": \"now\"}, 1]}", 0},

    /* reasoning */
    {NONE, QWEN3, 0, "<think>\nFirst <b> this.\n\nThen < that.\n</think>\n\nThe answer.\n",
     "R{First <b> this.\n\nThen < that.}T{The answer.\n}", 0},
    {NONE, QWEN3, 0, "\n <think></think>x", "T{x}", 0},
    {NONE, QWEN3, 0, "<think>\n\n</think>\n\nHi", "T{Hi}", 0},
    {NONE, QWEN3, 0, "No <think>a</think>", "T{No <think>a</think>}", 0},
    {NONE, QWEN3, 0, " <thin", "T{ <thin}", 0},
    {NONE, QWEN3, 0, " <thing", "T{ <thing}", 0},
    {NONE, QWEN3, 0, "<think> still </thinking", "R{still </thinking}", 0},
    {NONE, QWEN3, 0, "<think> still </th", "R{still </th}", 0},
    {NONE, QWEN3, 0, "<think> still \n", "R{still}", 0},
    {NONE, QWEN3, 0, "<think>\n<thi", "R{<thi}", 0},
    {NONE, QWEN3, true, "Okay,\n</</think>\nSo", "R{Okay,\n</}T{So}", 0},
    {NONE, QWEN3, true, "\n<think>\nOkay</think>", "R{Okay}", 0},
    {NONE, QWEN3, true, "<b>Okay", "R{<b>Okay}", 0},
    {NONE, R1, true, "Okay </think> <think>", "R{Okay}T{<think>}", 0},
    {NONE, THINK, 0, "[THINK]Caf\xc3\xa9[/THINK]Oui", "R{Caf\xc3\xa9}T{Oui}", 0},
    {HERMES, QWEN3, 0,
     "<think>\nI call <tool_call>?\n</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": "
     "{}}\n</tool_call>",
     "R{I call <tool_call>?}C0{now}A0{{}}", 0},
    /* a call in reasoning that the model does not end */
    {HERMES, QWEN3, 0,
     "<think>\nhmm <tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 66}}\n</tool_call>",
     "R{hmm}C0{now}A0{{\"a\": 66}}", 0},
    {HERMES, QWEN3, true,
     "A <tool_call>{\"name\": \"now\"}</tool_call>, no: <tool_call>{\"name\": "
     "\"now\"}</tool_call>\n"
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}",
     "R{A <tool_call>{\"name\": \"now\"}</tool_call>, no:}C0{now}A0{{}}C1{f}A1{{}}", 0},
    {HERMES, QWEN3, true, "A <tool_call>{\"name\": \"now\", \"arguments\": {\"a\": \"b",
     "R{A}C0{now}A0{{\"a\": \"b}", 0},
    {HERMES, QWEN3, true, "<tool_call>{\"name\": \"now\"}</tool_call>", "C0{now}A0{{}}", 0},
    {HERMES, QWEN3, true, "A <tool_call>{\"name\": \"now\"}</tool_call> or not",
     "R{A <tool_call>{\"name\": \"now\"}</tool_call> or not}", 0},
    {HERMES, QWEN3, true, "A <tool_call>{\"name\": \"now\"}</tool_call>\n</think>\n\nB",
     "R{A <tool_call>{\"name\": \"now\"}</tool_call>}T{B}", 0},
    {HERMES, QWEN3, true, "A <tool_call> B <tool_call>{\"nam",
     "R{A <tool_call> B <tool_call>{\"nam}", 0},
    {HERMES, QWEN3, true, "A <tool_call></think>B", "R{A <tool_call>}T{B}", 0},
    {HERMES, QWEN3, true, "A <tool_<tool_call>  ", "R{A <tool_<tool_call>}", 0},
    {XML, QWEN3, true,
     "A\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</"
     "function>\n"
     "</tool_call>",
     "R{A}C0{get_weather}A0{{\"city\": \"Paris\"}}", 0},
    {XML, QWEN3, true, "A <tool_call> b <function=now></function>",
     "R{A <tool_call> b}C0{now}A0{{}}", 0},
    {MISTRAL, THINK, true, "A [TOOL_CALLS]now[ARGS]{}", "R{A}C0{now}A0{{}}", 0},
    {LLAMA3, QWEN3, true, "A {\"name\": \"now\", \"parameters\": {}}",
     "R{A {\"name\": \"now\", \"parameters\": {}}}", 0},
    {LIST, QWEN3, true, "Hm.\n</think>\n\n[{\"name\": \"now\", \"parameters\": {}}]",
     "R{Hm.}C0{now}A0{{}}", 0},
};
enum { N_SAMPLES = sizeof samples / sizeof *samples };

/* ---- one text, cut at cuts[0..n_cuts) ---- */

static void check(const sample *s, rose_json *tools, const size_t *cuts, size_t n_cuts)
{
    const size_t len = strlen(s->text);
    size_t at = 0;
    log l = {0};
    rose_calls *p;
    const rose_calls_opts o = {.format = s->format,
                               .reasoning = s->reasoning,
                               .in_reasoning = s->in_reasoning,
                               .one_call = s->one_call,
                               .tools = tools,
                               .sink = sink,
                               .arg = &l};
    assert_int_equal(rose_calls_create(&p, &o, NULL), ROSE_OK);
    for (size_t i = 0; i <= n_cuts; i++) {
        const size_t end = i < n_cuts ? cuts[i] : len;
        assert_int_equal(rose_calls_push(p, s->text + at, end - at), ROSE_OK);
        at = end;
    }
    assert_int_equal(rose_calls_finish(p, false), ROSE_OK);
    if (l.any) rose_buf_add(&l.b, "}", 1);
    const char *got = l.any ? rose_buf_str(&l.b) : "";
    if (strcmp(got, s->parts) != 0) {
        print_error("text %s\nhas the parts %s\nnot %s\n%zu cuts:", s->text, got, s->parts, n_cuts);
        for (size_t i = 0; i < n_cuts; i++)
            print_error(" %zu", cuts[i]);
        fail_msg("wrong parts");
    }
    uint32_t n = 0;
    for (const char *c = got; (c = strstr(c, "}C")) != NULL; c++)
        n++;
    assert_int_equal(rose_calls_count(p), n + (got[0] == 'C'));
    rose_buf_free(&l.b);
    rose_calls_destroy(p);
}

static rose_json *load_tools(void)
{
    rose_json_error e;
    rose_json *tools = NULL;
    assert_int_equal(rose_json_parse(&tools, tools_text, sizeof tools_text - 1, 0, &e), ROSE_OK);
    return tools;
}

static void test_whole(void **state)
{
    (void)state;
    rose_json *tools = load_tools();
    for (size_t i = 0; i < N_SAMPLES; i++)
        check(&samples[i], tools, NULL, 0);
    rose_json_decref(tools);
}

static void test_two_pieces(void **state)
{
    (void)state;
    rose_json *tools = load_tools();
    for (size_t i = 0; i < N_SAMPLES; i++)
        for (size_t cut = 0; cut <= strlen(samples[i].text); cut++)
            check(&samples[i], tools, &cut, 1);
    rose_json_decref(tools);
}

static void test_bytes_and_random_pieces(void **state)
{
    (void)state;
    const char *given = getenv("ROSE_SEED");
    unsigned seed = given != NULL ? (unsigned)strtoul(given, NULL, 0) : 34;
    rose_json *tools = load_tools();
    print_message("seed %u (ROSE_SEED)\n", seed);
    for (size_t i = 0; i < N_SAMPLES; i++) {
        const size_t len = strlen(samples[i].text);
        size_t *cuts = calloc(len + 1, sizeof *cuts);
        assert_non_null(cuts);
        for (size_t k = 0; k < len; k++)
            cuts[k] = k;
        check(&samples[i], tools, cuts, len);
        for (int round = 0; round < 20; round++) {
            size_t n = 0;
            for (size_t k = 0; k < len; k++)
                if (rand_r(&seed) % 5 == 0) cuts[n++] = k;
            check(&samples[i], tools, cuts, n);
        }
        free(cuts);
    }
    rose_json_decref(tools);
}

/* Text is given at once where it cannot begin a call, and arguments as they come. */
static void test_nothing_waits(void **state)
{
    (void)state;
    static const struct {
        int format;
        const char *text, *parts;
    } rows[] = {
        {HERMES, "Hello", "T{Hello"},
        {HERMES, "a <", "T{a "},
        {HERMES, "a <b", "T{a <b"},
        {HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1", "C0{f}A0{{\"a\": [1"},
        {LLAMA3, "{\"nom", "T{"},
        {XML, "<tool_call><function=run.code><parameter=code>\nx = 1\ny",
         "C0{run.code}A0{{\"code\": \"x = 1\\ny"},
        {PYTHONIC, "[run.code(code='x = ", "C0{run.code}A0{{\"code\": \"x = "},
        {PYTHONIC, "a [b]", "T{a [b]"},
        {MISTRAL, "[TOOL_CALLS]f[ARGS]{\"a\":", "C0{f}A0{{\"a\":"},
        {LIST, "[{\"name\": \"now\", \"parameters\": {\"a", "C0{now}A0{{\"a"}};
    rose_json *tools = load_tools();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        log l = {0};
        rose_calls *p;
        const rose_calls_opts o = {
            .format = (rose_calls_format)rows[i].format, .tools = tools, .sink = sink, .arg = &l};
        assert_int_equal(rose_calls_create(&p, &o, NULL), ROSE_OK);
        assert_int_equal(rose_calls_push(p, rows[i].text, strlen(rows[i].text)), ROSE_OK);
        if (strcmp(rows[i].parts, "T{") == 0)
            assert_false(l.any);
        else
            assert_string_equal(rose_buf_str(&l.b), rows[i].parts);
        rose_buf_free(&l.b);
        rose_calls_destroy(p);
    }
    rose_json_decref(tools);
}

/* References that multiply must not make a parameter's type an endless search. */
static void test_schema_without_end(void **state)
{
    (void)state;
    static const char text[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": "
        "{\"properties\": "
        "{\"a\": {\"anyOf\": [{\"$ref\": \"#/properties/a\"}, {\"$ref\": \"#/properties/a\"}, "
        "{\"$ref\": \"#/properties/a\"}, {\"$ref\": \"#/properties/a\"}]}}}}}]";
    const sample s = {
        XML, 0, 0, "<function=f><parameter=a>1</parameter></function>", "C0{f}A0{{\"a\": 1}}", 0};
    rose_json_error e;
    rose_json *tools = NULL;
    assert_int_equal(rose_json_parse(&tools, text, sizeof text - 1, 0, &e), ROSE_OK);
    check(&s, tools, NULL, 0);
    rose_json_decref(tools);
}

/* ---- names, templates, prompts ---- */

static void test_names(void **state)
{
    (void)state;
    rose_calls_format f;
    rose_reasoning_format r;
    assert_true(rose_calls_format_find("hermes", &f) && f == ROSE_CALLS_HERMES);
    assert_true(rose_calls_format_find("llama3_json", &f) && f == ROSE_CALLS_LLAMA3);
    assert_true(rose_calls_format_find("qwen3_xml", &f) && f == ROSE_CALLS_QWEN3_XML);
    assert_true(rose_calls_format_find("pythonic", &f) && f == ROSE_CALLS_PYTHONIC);
    assert_true(rose_calls_format_find("mistral", &f) && f == ROSE_CALLS_MISTRAL);
    assert_true(rose_calls_format_find("none", &f) && f == ROSE_CALLS_NONE);
    assert_false(rose_calls_format_find("", &f));
    assert_true(rose_reasoning_format_find("qwen3", &r) && r == ROSE_REASONING_QWEN3);
    assert_true(rose_reasoning_format_find("deepseek_r1", &r) && r == ROSE_REASONING_DEEPSEEK);
    assert_true(rose_reasoning_format_find("mistral", &r) && r == ROSE_REASONING_MISTRAL);
    assert_true(rose_reasoning_format_find("none", &r) && r == ROSE_REASONING_NONE);
    assert_false(rose_reasoning_format_find("hermes", &r));
}

static void test_prompts(void **state)
{
    (void)state;
    enum { BEFORE = ROSE_REASONING_BEFORE, IN = ROSE_REASONING_IN, AFTER = ROSE_REASONING_AFTER };
    static const struct {
        int format;
        const char *prompt;
        int place;
    } rows[] = {{QWEN3, "<|im_start|>assistant\n<think>\n", IN},
                {QWEN3, "<|im_start|>assistant\n<think>\n\n</think>\n\n", AFTER},
                {QWEN3, "<|im_start|>assistant\n", BEFORE},
                {QWEN3, "", BEFORE},
                {QWEN3, "think>", BEFORE},
                {R1, "<|Assistant|>", IN},
                {R1, "<|Assistant|></think>\n", AFTER},
                {THINK, "[/INST][THINK]", IN},
                {NONE, "<think>", AFTER}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(rose_reasoning_find((rose_reasoning_format)rows[i].format, rows[i].prompt,
                                             strlen(rows[i].prompt)),
                         rows[i].place);
}

static void test_marks(void **state)
{
    (void)state;
    const char *marks[ROSE_CALLS_MARKS];
    rose_calls_marks(ROSE_CALLS_MISTRAL, ROSE_REASONING_MISTRAL, marks);
    assert_string_equal(marks[0], "[TOOL_CALLS]");
    assert_string_equal(marks[4], "[/THINK]");
    assert_null(marks[5]);
    rose_calls_marks(ROSE_CALLS_NONE, ROSE_REASONING_NONE, marks);
    assert_null(marks[0]);
}

static void test_templates(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        rose_calls_format calls;
        rose_reasoning_format reasoning;
    } rows[] = {{"Mistral-Small-3.2-24B-Instruct-2506", MISTRAL, ROSE_REASONING_NONE},
                {"mistralai-Mistral-Nemo-Instruct-2407", MISTRAL, ROSE_REASONING_NONE},
                {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", HERMES, ROSE_REASONING_NONE},
                {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", HERMES, ROSE_REASONING_NONE},
                {"Qwen-Qwen2.5-7B-Instruct", HERMES, ROSE_REASONING_NONE},
                {"Qwen-Qwen3-0.6B", HERMES, QWEN3},
                {"smollm3", HERMES, QWEN3},
                {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", NONE, QWEN3},
                {"meta-llama-Llama-3.1-8B-Instruct", LLAMA3, ROSE_REASONING_NONE},
                {"meta-llama-Llama-3.2-3B-Instruct", LLAMA3, ROSE_REASONING_NONE},
                {"meta-llama-Llama-3.3-70B-Instruct", LLAMA3, ROSE_REASONING_NONE},
                {"google-gemma-2-2b-it", NONE, ROSE_REASONING_NONE}};
    const char *folder = getenv("ROSE_CHAT_TEMPLATES");
    char path[512];
    size_t n = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rose_buf text = {0};
        snprintf(path, sizeof path, "%s/%s.jinja",
                 folder != NULL ? folder : "../shared/data/chat-templates", rows[i].name);
        if (rose_file_read(&text, path, 1 << 20, NULL) != ROSE_OK) continue;
        n++;
        if (rose_calls_detect(text.data, text.len) != rows[i].calls ||
            rose_reasoning_detect(text.data, text.len) != rows[i].reasoning)
            fail_msg("%s: format %d, reasoning %d", path, rose_calls_detect(text.data, text.len),
                     rose_reasoning_detect(text.data, text.len));
        rose_buf_free(&text);
    }
    print_message("%zu published templates\n", n);
    static const char coder[] = "<tool_call>\n<function=example_function_name>\n<parameter=p>";
    static const char llama4[] = "[func_name1(params_name1=params_value1), func_name2(params)]";
    assert_int_equal(rose_calls_detect(coder, sizeof coder - 1), XML);
    assert_int_equal(rose_calls_detect(llama4, sizeof llama4 - 1), PYTHONIC);
    assert_int_equal(rose_calls_detect("[THINK]", 7), NONE);
    assert_int_equal(rose_reasoning_detect("[THINK]", 7), THINK);
    assert_int_equal(rose_calls_detect(NULL, 0), NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_whole),
                                       cmocka_unit_test(test_two_pieces),
                                       cmocka_unit_test(test_bytes_and_random_pieces),
                                       cmocka_unit_test(test_nothing_waits),
                                       cmocka_unit_test(test_schema_without_end),
                                       cmocka_unit_test(test_names),
                                       cmocka_unit_test(test_prompts),
                                       cmocka_unit_test(test_marks),
                                       cmocka_unit_test(test_templates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
