/* Grammars of Lark: what they allow, what is refused. The texts were checked with lark 1.3.1 (its
 * Earley parser with lexer="dynamic_complete"), those with {n,m}, %json and %llguidance by hand. */
#include "grammar_text.h"

static rose_vocab_trie *v;

static void grammars(void **state)
{
    static const text_case cases[] = {
        {"?start: sum\n"
         "?sum: product\n    | sum \"+\" product -> add\n    | sum \"-\" product -> sub\n"
         "?product: atom\n    | product \"*\" atom -> mul\n"
         "?atom: NUMBER -> number\n    | \"-\" atom -> neg\n    | \"(\" sum \")\"\n"
         "%import common.NUMBER\n%import common.WS_INLINE\n%ignore WS_INLINE\n",
         {"1", "1+2*3", " 1 + -(2.5e3 )\t", "--1-1"},
         {"", "1+", "1 2", "1\n", "(1", "1.2.3"}},
        {"start: \"yes\"i | \"No\" ~ 2 | LETTERS \"!\"~1..3 | \"x\"..\"z\" \"q\"~2..3\n"
         "LETTERS: /[ab]+/i",
         {"yes", "YES", "yEs", "NoNo", "aB!", "b!!!", "yqq", "xqqq"},
         {"No", "nono", "a", "a!!!!", "c!", "wqq", "xq"}},
        {"start: a b? c* d+\na: \"a\" |\nb: \"b\" [\"c\"]\nc: (\"c\" | \"cc\") \"-\"\n"
         "!d.2: \"d\" -> alias\n",
         {"d", "abcc-d", "abcd", "bc-dd", "acc-d"},
         {"", "abbd", "a", "ac-"}},
        {"start: N (S N)*   // comment\n# another\nS: \",\" | \";\"\n%import common.INT -> N\n",
         {"1", "12,3;4"},
         {"", ",1", "1,", "1 ,2"}},
        {"start: list\nlist: \"[\" (list (\",\" list)*)? \"]\"", {"[]", "[[],[[]]]"}, {"[", "[,]"}},
        {"start: line+\nline: KEY \"=\" VAL NEWLINE\nKEY: /[A-Z]/ | KEY2\nKEY2: \"K\"~2\n"
         "VAL: /./s | \"\\x41\\u00e9\"\n%import common.NEWLINE",
         {"A=b\n", "KK=\n\r\n", "A=\x41\xc3\xa9\nB=A\n\n"},
         {"KKK=a\n", "A=a", "a=a\n"}},
        {"%import common (ESCAPED_STRING, SIGNED_NUMBER, WS)\n%ignore WS\n%ignore /#[^\\n]*\\n/\n"
         "start: (ESCAPED_STRING | SIGNED_NUMBER)+\n",
         {"\"a\\\"b\" -1.5", " 1 # x\n+2", "1\n\n\t2\n", "\"\""},
         {"", " ", "\"a", "- 1", "1 #"}},
        {"start: WORD \".\" | \"0x\" HEXDIGIT+ | CNAME \"=\" | C_COMMENT\n"
         "%import common (WORD, HEXDIGIT, CNAME)\n%import common.C_COMMENT",
         {"aB.", "0xaF9", "_a1=", "/* x* */", "/**/"},
         {"a1.", "0x", "1a=", "/*/"}},
        {"start: \"a\"{2} \"b\"{1,} \"c\"{,2} \"d\"{1,2}",
         {"aabd", "aabbbccdd"},
         {"abd", "aad", "aabcccd", "aab"}},
        {"%llguidance {}\nstart: \"=\" %json {\"type\": \"object\", \"properties\": {\"}\": "
         "{\"type\": \"null\"}}, \"required\": [\"}\"], \"additionalProperties\": false} \";\"",
         {"={\"}\":null};", "={ \"}\" : null };"},
         {"={};", "={\"}\":null}", "={\"}\":1};"}},
        {"start: T\nT: U \"-\" U\nU: /[0-9]{2}/ | \"\\\"\\n\\\\\"\n%ignore \" \"",
         {"12-34", " 12-\"\n\\ "},
         {"12 -34", "1-2"}},
        {"start: /a\\/b/ | /[\\/]/ | /\xc3\x89/i",
         {"a/b", "/", "\xc3\xa9", "\xc3\x89"},
         {"ab", "e"}},
    };
    (void)state;
    check_cases(v, ROSE_GRAMMAR_EBNF, cases, sizeof cases / sizeof cases[0]);
}

static void refusals(void **state)
{
    static const struct {
        const char *text;
        rose_status st;
        const char *part;
    } cases[] = {
        {"begin: \"a\"", ROSE_E_INVAL, "the rule start is not defined"},
        {"start: a", ROSE_E_INVAL, "the rule a is used but not defined"},
        {"start: A", ROSE_E_INVAL, "the rule A is used but not defined"},
        {"start: \"a", ROSE_E_INVAL, "line 1, column 10: a '\"' is missing"},
        {"start: /a", ROSE_E_INVAL, "the '/' that ends"},
        {"start: (\"a\"", ROSE_E_INVAL, "a ')' is missing"},
        {"start: [\"a\"", ROSE_E_INVAL, "a ']' is missing"},
        {"start: \"a\")", ROSE_E_INVAL, "was not opened"},
        {"start: \"a\"\nstart: \"b\"", ROSE_E_INVAL,
         "line 2, column 1: this rule is defined twice"},
        {"start: A\nA: b\nb: \"x\"", ROSE_E_INVAL, "a terminal cannot contain a rule"},
        {"start: A\nA ::= \"a\"", ROSE_E_INVAL, "a string, /expression/"},
        {"start: \"a\"\nroot ::= \"b\"", ROSE_E_INVAL, "a string, /expression/"},
        {"start: \"a\"~3..1", ROSE_E_INVAL, "upside down"},
        {"start: \"z\"..\"a\"", ROSE_E_INVAL, "upside down"},
        {"start: \"ab\"..\"c\"", ROSE_E_INVAL, "strings of one character"},
        {"start: \"a\"~4294967296", ROSE_E_UNSUPPORTED, "a count beyond"},
        {"start: \"a\"{18446744073709551617}", ROSE_E_UNSUPPORTED, "a count beyond"},
        {"start: \"a\"~", ROSE_E_INVAL, "a number is missing"},
        {"start: \"a\"**", ROSE_E_INVAL, "an operator follows an operator"},
        {"start: *", ROSE_E_INVAL, "nothing to repeat"},
        {"start: 'a'", ROSE_E_INVAL, "double quotes"},
        {"start: /a/m", ROSE_E_UNSUPPORTED, "flags"},
        {"start: /a**/", ROSE_E_INVAL, "a quantifier follows a quantifier"},
        {"start: /(?<!a)b/", ROSE_E_UNSUPPORTED, "look-behind"},
        {"start: \"\\q\"", ROSE_E_INVAL, "escape is not known"},
        {"start: <think>", ROSE_E_UNSUPPORTED, "tokens in a grammar"},
        {"start: A\nA: /a/ & /b/", ROSE_E_UNSUPPORTED, "intersection"},
        {"start: %regex {\"a\": 1}", ROSE_E_UNSUPPORTED, "directives"},
        {"start: \"a\" %json 5", ROSE_E_INVAL, "%json needs a schema"},
        {"start: %json {\"type\": \"strng\"}", ROSE_E_INVAL, "#/type"},
        {"start: %json {\"a\"}", ROSE_E_INVAL, "not JSON"},
        {"start: %json {", ROSE_E_INVAL, "%json needs a schema"},
        {"_sep{x, y}: x (y x)*\nstart: _sep{\"a\", \",\"}", ROSE_E_UNSUPPORTED, "templates"},
        {"start: _sep{a, \",\"}", ROSE_E_UNSUPPORTED, "templates"},
        {"start[max_tokens=5]: \"a\"", ROSE_E_UNSUPPORTED, "attributes of rules"},
        {"%import python.NAME\nstart: NAME", ROSE_E_UNSUPPORTED, "terminals of `common`"},
        {"%import common.NAME\nstart: NAME", ROSE_E_UNSUPPORTED, "no terminal of common"},
        {"%import common.INT -> n\nstart: n", ROSE_E_INVAL, "upper case"},
        {"%declare X\nstart: X", ROSE_E_UNSUPPORTED, "directives"},
        {"%override X: \"a\"\nstart: X", ROSE_E_UNSUPPORTED, "directives"},
        {"%llguidance {\"no_forcing\": true}\nstart: \"a\"", ROSE_E_UNSUPPORTED, "%llguidance"},
        {"start: start2 \"a\"\nstart2: start \"b\"", ROSE_E_INVAL, "no text"},
        {"start: s | \"x\"\ns: start \"b\"", ROSE_E_UNSUPPORTED, "left recursion"},
        {"root = \"a\"", ROSE_E_INVAL, "or Lark with rules `name: ...`"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_refused(v, ROSE_GRAMMAR_EBNF, cases[i].text, cases[i].st, cases[i].part);
}

/* A structural tag may hold a grammar of either form. */
static void in_a_tag(void **state)
{
    static const text_case cases[] = {
        {"{\"format\": {\"type\": \"grammar\", \"grammar\": \"start: \\\"a\\\" | \\\"b\\\"\"}}",
         {"a", "b"},
         {"ab"}},
        {"{\"format\": {\"type\": \"grammar\", \"grammar\": \"root ::= \\\"a:\\\"\"}}",
         {"a:"},
         {"a"}},
    };
    (void)state;
    check_cases(v, ROSE_GRAMMAR_TAG, cases, sizeof cases / sizeof cases[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grammars),
        cmocka_unit_test(refusals),
        cmocka_unit_test(in_a_tag),
    };
    v = small_vocab();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rose_vocab_trie_unref(v);
    return failed != 0;
}
