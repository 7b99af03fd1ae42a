/* Grammars in GBNF and XGrammar's EBNF, choices, and structural tags: what they allow, what is
 * refused. Each text is followed with its masks. */
#include "grammar_text.h"

static rose_vocab_trie *v;

static void grammars(void **state)
{
    static const text_case cases[] = {
        {"root ::= \"yes\" | \"no\"", {"yes", "no"}, {"", "y", "yesno"}},
        {"root ::= expr (\"=\" expr)*\nexpr ::= term ([-+*/] term)*\n"
         "term ::= num | \"(\" expr \")\"\nnum  ::= [0-9]+ # digits\n",
         {"1+2", "(3*4)-5=7", "2=2=2", "((((1))))"},
         {"", "1+", "(1", "()"}},
        {"root ::= \"a\" |\n  \"b\" |\n  ( \"c\" \"d\" ){2}\n", {"a", "b", "cdcd"}, {"cd", "ab"}},
        {"root ::= root \"a\" | \"b\"", {"b", "ba", "baaa"}, {"a", "ab", ""}},
        {"root ::= [^]{2,3}", {"ab", "\xe2\x82\xac\n", "xyz"}, {"a", "abcd", "\xe2\x82"}},
        {"root ::= \"\\u00e9\\x41\\n\\\"\\\\\"",
         {"\xc3\xa9"
          "A\n\"\\"},
         {"\xc3\xa9"}},
        {"root ::= list\nlist ::= \"x\" list | \"\"", {"", "x", "xxxxxxxx"}, {"y"}},
        {"root ::= (ws \"a\")* ws\nws ::= [ ]*", {"", " a  a ", "aa"}, {"b"}},
        {"root ::= e1\ne1 ::= \"[\" (e1 (\",\" e1)*)? \"]\"", {"[]", "[[],[[]]]"}, {"[", "[,]"}},
        {"root-1.x ::= \"a\"? root ::= root-1.x{0,2} \"b\"", {"b", "aab"}, {"aaab"}},
        {"root ::= ( ) \"a\" \"\" . ", {"ab", "a\xc3\xa9"}, {"a"}},
    };
    (void)state;
    check_cases(v, ROSE_GRAMMAR_EBNF, cases, sizeof cases / sizeof cases[0]);
}

static void refused_grammars(void **state)
{
    static const struct {
        const char *text;
        rose_status st;
        const char *part;
    } cases[] = {
        {"", ROSE_E_INVAL, "root is not defined"},
        {"start ::= \"a\"", ROSE_E_INVAL, "root is not defined"},
        {"root ::= a", ROSE_E_INVAL, "the rule a is used but not defined"},
        {"root ::= \"a", ROSE_E_INVAL, "line 1, column 12: a '\"' is missing"},
        {"root ::= [a", ROSE_E_INVAL, "']' is missing"},
        {"root ::= (\"a\"", ROSE_E_INVAL, "')' is missing"},
        {"root ::= \"a\")", ROSE_E_INVAL, "no '('"},
        {"root = \"a\"", ROSE_E_INVAL, "'::=' was expected"},
        {"root ::= \"a\"\nroot ::= \"b\"", ROSE_E_INVAL, "line 2, column 9: this rule is defined"},
        {"root ::= \"a\"{3,1}", ROSE_E_INVAL, "upside down"},
        {"root ::= \"a\"{,1}", ROSE_E_INVAL, "a number is missing"},
        {"root ::= \"\\q\"", ROSE_E_INVAL, "escape is not known"},
        {"root ::= \"a\" root", ROSE_E_INVAL, "allows no text"},
        {"root ::= a\na ::= b \"x\" | \"y\"\nb ::= a \"z\" | \"w\"", ROSE_E_UNSUPPORTED,
         "left recursion"},
        {"root ::= ws root \"x\" | \"y\"\nws ::= [ ]*", ROSE_E_UNSUPPORTED, "left recursion"},
        {"root[max_tokens=3] ::= \"a\"", ROSE_E_UNSUPPORTED, "options of rules"},
        {"root ::= TagDispatch((\"a\", b))", ROSE_E_UNSUPPORTED, "macros"},
        {"root ::= \"a\" (= \"b\")", ROSE_E_UNSUPPORTED, "look-ahead"},
        {"root ::= <[7]>", ROSE_E_UNSUPPORTED, "tokens"},
        {"root ::= \"a\"{4294967296}", ROSE_E_UNSUPPORTED, "a count beyond"},
        {"root ::= \"a\"{4294967295}", ROSE_E_UNSUPPORTED, "a count beyond"},
        {"root ::= \"a\"{0,18446744073709551617}", ROSE_E_UNSUPPORTED, "a count beyond"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_refused(v, ROSE_GRAMMAR_EBNF, cases[i].text, cases[i].st, cases[i].part);
}

static void choices(void **state)
{
    static const text_case cases[] = {
        {"[\"yes\", \"no\", \"yes, but\", \"yes\"]", {"yes", "no", "yes, but"}, {"ye", "", "yes,"}},
        {"[\"\xc3\xa9\", \"a\\\"b\\n\"]", {"\xc3\xa9", "a\"b\n"}, {"\xc3", "a\\\"b"}},
    };
    (void)state;
    check_cases(v, ROSE_GRAMMAR_CHOICE, cases, sizeof cases / sizeof cases[0]);
    check_refused(v, ROSE_GRAMMAR_CHOICE, "[]", ROSE_E_INVAL, "at least one string");
    check_refused(v, ROSE_GRAMMAR_CHOICE, "{\"a\": 1}", ROSE_E_INVAL, "at least one string");
    check_refused(v, ROSE_GRAMMAR_CHOICE, "[\"a\", 1]", ROSE_E_INVAL, "item 1");
    check_refused(v, ROSE_GRAMMAR_CHOICE, "[\"a\"", ROSE_E_INVAL, "not JSON");
}

#define CITY                                                                                       \
    "{\"type\": \"json_schema\", \"json_schema\": {\"type\": \"object\", \"properties\": "         \
    "{\"c\": {\"enum\": [1, 2]}}, \"required\": [\"c\"], \"additionalProperties\": false}}"
#define CALL(NAME)                                                                                 \
    "{\"type\": \"tag\", \"begin\": \"<f=" NAME ">\", \"content\": " CITY ", \"end\": \"</f>\"}"
#define TOOLS                                                                                      \
    "\"type\": \"triggered_tags\", \"triggers\": [\"<f=\"], \"tags\": [" CALL("a") ", " CALL(      \
        "b") "]"

/* A tool with a string, an optional number and what PROPERTIES has. */
#define XML(STYLE, PROPERTIES)                                                                     \
    "{\"type\": \"json_schema\", \"style\": \"" STYLE                                              \
    "\", \"json_schema\": {\"type\": \"object\", "                                                 \
    "\"properties\": {" PROPERTIES "}, \"required\": [\"a\"]}}"

static void xml_styles(void **state)
{
    static const text_case cases[] = {
        {XML("qwen_xml", "\"a\": {\"type\": \"string\"}, \"n\": {\"type\": \"integer\"}"),
         {"<parameter=a>x < \"y\"</parameter>",
          "\n<parameter=a>\nx\n</parameter>\n<parameter=n>\n12\n"
          "</parameter>\n",
          "<parameter=n>1</parameter><parameter=a></parameter>"},
         {"", "<parameter=n>1</parameter>", "<parameter=a>x</parameter><parameter=b>1</parameter>",
          "<parameter=a>x</parameter><parameter=n>x</parameter>",
          "<parameter=a>x</parameter><parameter=a>x</parameter>"}},
        {XML("qwen_xml", "\"a\": {\"enum\": [\"p q\", 7]}"),
         {"<parameter=a>p q</parameter>", "<parameter=a>7</parameter>"},
         {"<parameter=a>\"p q\"</parameter>", "<parameter=a>p</parameter>"}},
        {XML("qwen_xml",
             "\"a\": {\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"array\", \"items\": "
             "{\"enum\": [\"z\"]}}]}"),
         {"<parameter=a>\nt</parameter>", "<parameter=a>[\"z\"]</parameter>"},
         {"<parameter=b>t</parameter>", "<parameter=a></parameter>t"}},
        {XML("qwen_xml",
             "\"a\": {\"$ref\": \"#/$defs/x\"}}, \"additionalProperties\": {\"type\": "
             "\"null\"}, \"$defs\": {\"x\": {\"type\": \"object\", \"properties\": {\"k\": "
             "{\"$ref\": \"#/$defs/x\"}}, \"additionalProperties\": false}"),
         {"<parameter=a>{\"k\":{}}</parameter><parameter=b_1>null</parameter>"},
         {"<parameter=a>x</parameter>",
          "<parameter=a>{}</parameter><parameter=1b>null</parameter>"}},
    };
    (void)state;
    check_cases(v, ROSE_GRAMMAR_TAG, cases, sizeof cases / sizeof cases[0]);
}

static void tags(void **state)
{
    static const text_case cases[] = {
        {"{\"type\": \"structural_tag\", \"format\": {\"type\": \"tag\", \"begin\": \"<t>\", "
         "\"content\": {\"type\": \"any_text\"}, \"end\": \"</t>\"}}",
         {"<t></t>", "<t>a < b </ t</t>", "<t>\xe2\x82\xac</t>", "<t><</t>"},
         {"<t>", "<t></t>x", "<t>\xff</t>", "a</t>"}},
        {"{\"format\": {" TOOLS "}}",
         {"", "hello", "x <f=a>{\"c\":1}</f> y <f=b>{\"c\": 2}</f>", "<f",
          "a<f <f=a>{\"c\":1}</f>"},
         {"<f=", "<f=c>", "<f=a>{\"c\":3}</f>", "<f=a>{\"c\":1}", "x <f=a>no</f>"}},
        {"{\"format\": {" TOOLS ", \"at_least_one\": true}}",
         {"<f=a>{\"c\":1}</f>", "<f=a>{\"c\":1}</f> and <f=b>{\"c\":1}</f>."},
         {"", "x<f=a>{\"c\":1}</f>"}},
        {"{\"format\": {" TOOLS ", \"stop_after_first\": true}}",
         {"x", "x<f=a>{\"c\":1}</f>"},
         {"x<f=a>{\"c\":1}</f>y"}},
        {"{\"format\": {" TOOLS ", \"stop_after_first\": true, \"at_least_one\": true}}",
         {"<f=a>{\"c\":1}</f>"},
         {"", "<f=a>{\"c\":1}</f>y"}},
        {"{\"structures\": [{\"begin\": \"<f=a>\", \"schema\": {\"type\": \"null\"}, \"end\": "
         "\"</f>\"}], \"triggers\": [\"<f\"]}",
         {"hi", "hi <f=a>null</f> ho"},
         {"<f=b", "<f=a>1</f>"}},
        {"{\"format\": {\"type\": \"sequence\", \"elements\": [{\"type\": \"const_string\", "
         "\"value\": \"A: \"}, {\"type\": \"or\", \"elements\": [{\"type\": \"regex\", "
         "\"pattern\": \"[0-9]+\"}, {\"type\": \"grammar\", \"grammar\": \"root ::= \\\"x\\\"+\"}]}"
         "]}}",
         {"A: 12", "A: xx"},
         {"A: ", "A: 1x", "12"}},
        {"{\"format\": {\"type\": \"tags_with_separator\", \"separator\": \",\", \"tags\": [" CALL(
             "a") "]}}",
         {"", "<f=a>{\"c\":1}</f>", "<f=a>{\"c\":1}</f>,<f=a>{\"c\":2}</f>"},
         {",", "<f=a>{\"c\":1}</f>,"}},
        {"{\"type\": \"repeat\", \"min\": 1, \"max\": 2, \"content\": {\"type\": \"star\", "
         "\"content\": {\"type\": \"const_string\", \"value\": \"ab\"}}}",
         {"", "ab", "ababab"},
         {"a"}},
        {"{\"type\": \"dispatch\", \"rules\": [[\"<n>\", {\"type\": \"regex\", \"pattern\": "
         "\"[0-9]\"}]], \"excludes\": [\"!\"]}",
         {"a<n>1b<n>2", "a"},
         {"a<n>b", "a!", "<n>"}},
        {"{\"type\": \"sequence\", \"elements\": [{\"type\": \"tag\", \"begin\": \"<think>\", "
         "\"content\": {\"type\": \"any_text\"}, \"end\": [\"</think>\", \"</t>\"]}, " CITY "]}",
         {"<think>\nhm</think>{\"c\":1}", "<think></t>{\"c\":1}"},
         {"{\"c\":1}", "<think></t>", "<think></t></think>{\"c\":1}"}},
    };
    (void)state;
    check_cases(v, ROSE_GRAMMAR_TAG, cases, sizeof cases / sizeof cases[0]);
}

static void refused_tags(void **state)
{
    static const struct {
        const char *text;
        rose_status st;
        const char *part;
    } cases[] = {
        {"{\"format\": {\"type\": \"token\", \"token\": 7}}", ROSE_E_UNSUPPORTED, "\"token\""},
        {"{\"format\": {\"type\": \"tag\", \"begin\": \"a\", \"end\": \"b\"}}", ROSE_E_INVAL,
         "lacks \"content\""},
        {"{\"format\": {\"type\": \"any_text\", \"max_tokens\": 7}}", ROSE_E_UNSUPPORTED,
         "max_tokens"},
        {"{\"format\": 7}", ROSE_E_INVAL, "\"type\""},
#define REPEAT(min, max)                                                                           \
    "{\"format\": {\"type\": \"repeat\", \"min\": " min ", \"max\": " max                          \
    ", \"content\": {\"type\": \"const_string\", \"value\": \"a\"}}}"
        {REPEAT("\"1\"", "2"), ROSE_E_INVAL, "counts"},
        {REPEAT("1.5", "2"), ROSE_E_INVAL, "counts"},
        {REPEAT("1", "18446744073709551617"), ROSE_E_INVAL, "counts"},
        {REPEAT("1", "4294967296"), ROSE_E_UNSUPPORTED, "a count beyond"},
        {REPEAT("4294967295", "-1"), ROSE_E_UNSUPPORTED, "a count beyond"},
        {REPEAT("3", "2"), ROSE_E_INVAL, "min is above max"},
        {"{\"format\": {\"type\": \"any_text\", \"excludes\": \"a\"}}", ROSE_E_INVAL,
         "lists of strings"},
        {"{\"format\": {\"type\": \"any_text\", \"excludes\": [5]}}", ROSE_E_INVAL,
         "lists of strings"},
        {"{\"format\": {\"type\": \"triggered_tags\", \"triggers\": \"a\", \"tags\": []}}",
         ROSE_E_INVAL, "lists of strings"},
        {"{\"format\": {\"type\": \"triggered_tags\", \"triggers\": [\"<f\"], \"at_least_one\": 1, "
         "\"tags\": [" CALL("a") "]}}",
         ROSE_E_INVAL, "true or false"},
        {"{\"format\": {\"type\": \"json_schema\", \"json_schema\": {}, \"style\": 5}}",
         ROSE_E_INVAL, "style must be a string"},
        {"{\"format\": {\"type\": \"json_schema\", \"json_schema\": {\"required\": \"a\"}}}",
         ROSE_E_INVAL, "#/required: must be a list"},
        {"{\"format\": {\"type\": \"triggered_tags\", \"triggers\": [\"<g\"], \"tags\": [" CALL(
             "a") "]}}",
         ROSE_E_INVAL, "begin with one of the triggers"},
        {"{\"format\": {\"type\": \"json_schema\", \"json_schema\": {}, \"style\": \"kimi_xml\"}}",
         ROSE_E_UNSUPPORTED, "style"},
        {XML("qwen_xml", "\"a\": {\"type\": \"string\", \"pattern\": \"x\"}"), ROSE_E_UNSUPPORTED,
         "#/properties/a/pattern"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_refused(v, ROSE_GRAMMAR_TAG, cases[i].text, cases[i].st, cases[i].part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grammars),     cmocka_unit_test(refused_grammars),
        cmocka_unit_test(choices),      cmocka_unit_test(tags),
        cmocka_unit_test(refused_tags), cmocka_unit_test(xml_styles),
    };
    v = small_vocab();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rose_vocab_trie_unref(v);
    return failed != 0;
}
