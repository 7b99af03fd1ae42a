/* JSON schemas: what each keyword allows, what is refused by name, and random schemas with random
 * values against a validator of its own. */
#include "grammar_text.h"

#include "base/json.h"

static rose_vocab_trie *v;

static void strings(void **state)
{
    static const text_case cases[] = {
        {"{\"type\": \"string\"}",
         {"\"\"", "\"a b\"", "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\u00e9\\uD83D\\ude00\"",
          "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""},
         {"a", "\"", "\"\n\"", "\"\\x\"", "\"\\ud800\"", "\"\xed\xa0\x80\"", "\"\xc3\"", "1"}},
        {"{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}",
         {"\"ab\"", "\"\xc3\xa9\xc3\xa9\xc3\xa9\"", "\"\\u00e9\\n\"", "\"\\uD83D\\ude00a\""},
         {"\"a\"", "\"abcd\"", "\"\\uD83D\\ude00\""}},
        {"{\"type\": \"string\", \"minLength\": 60}",
         {"\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""},
         {"\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""}},
        {"{\"type\": \"string\", \"maxLength\": 300}", {"\"\"", "\"aaaaaaaaaaaaaa\""}, {"\""}},
        {"{\"type\": \"string\", \"pattern\": \"^a+$\"}", {"\"a\"", "\"aaa\""}, {"\"\"", "\"ab\""}},
        {"{\"type\": \"string\", \"pattern\": \"b\"}", {"\"abc\"", "\"b\""}, {"\"\"", "\"ac\""}},
        {"{\"type\": \"string\", \"pattern\": \"^(a|b$)|c\"}",
         {"\"ax\"", "\"b\"", "\"xcx\""},
         {"\"bx\"", "\"xa\""}},
        {"{\"type\": \"string\", \"pattern\": \"^[\\\"\\n]+$\"}", {"\"\\\"\\n\""}, {"\"n\""}},
        {"{\"type\": \"string\", \"pattern\": \"^[a-z]*$\", \"minLength\": 2, \"maxLength\": 4}",
         {"\"ab\"", "\"abcd\""},
         {"\"a\"", "\"abcde\"", "\"A1\""}},
        {"{\"type\": \"string\", \"pattern\": \"^.*$\", \"maxLength\": 2}",
         {"\"\xe2\x82\xac\\\"\"", "\"\\u0001a\""},
         {"\"abc\"", "\"\\\"\\\"\\\"\""}},
        {"{\"type\": \"string\", \"pattern\": \"^(ab)+$\", \"minLength\": 3, \"maxLength\": 5}",
         {"\"abab\""},
         {"\"ab\"", "\"ababab\"", "\"aba\""}},
        {"{\"type\": \"string\", \"pattern\": \"x$\", \"minLength\": 2, \"maxLength\": 45}",
         {"\"ax\"", "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaax\"", "\"x\xc3\xa9x\""},
         {"\"x\"", "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""}},
        {"{\"type\": \"string\", \"pattern\": \"^a?https?:.+$\", \"maxLength\": 90}",
         {"\"http:x\"",
          "\"https:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""},
         {"\"http:\""}},
        {"{\"type\": \"string\", \"pattern\": \"a.*b\", \"minLength\": 50}",
         {"\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab\""},
         {"\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab\"", "\"ab\""}},
        {"{\"allOf\": [{\"pattern\": \"^a\"}, {\"pattern\": \"z$\"}], \"type\": \"string\"}",
         {"\"az\"", "\"abz\""},
         {"\"a\"", "\"z\""}},
        {"{\"type\": \"string\", \"format\": \"date\"}",
         {"\"2024-02-29\"", "\"2023-12-31\""},
         {"\"2023-02-29\"", "\"2023-13-01\"", "\"2023-04-31\"", "\"1900-02-29\""}},
        {"{\"type\": \"string\", \"format\": \"date-time\"}",
         {"\"2024-02-29T23:59:60Z\"", "\"2024-01-01t00:00:00.5+01:30\""},
         {"\"2024-01-01T24:00:00Z\"", "\"2024-01-01 00:00:00Z\"", "\"2024-01-01T00:00:00\""}},
        {"{\"type\": \"string\", \"format\": \"ipv4\"}", {"\"1.2.3.255\""}, {"\"1.2.3.256\""}},
        {"{\"type\": \"string\", \"format\": \"ipv6\"}",
         {"\"::\"", "\"::1\"", "\"1:2:3:4:5:6:7:8\"", "\"1::8\"", "\"::ffff:1.2.3.4\"",
          "\"1:2:3:4:5:6:7::\""},
         {"\":\"", "\"1:2:3:4:5:6:7:8:9\"", "\"1::2::3\"", "\"12345::\""}},
        {"{\"type\": \"string\", \"format\": \"email\"}",
         {"\"a.b@c.de\""},
         {"\"a@\"", "\"a b@c\""}},
        {"{\"type\": \"string\", \"format\": \"email\", \"minLength\": 5}",
         {"\"a.b@c.d.e.co.uk\"", "\"averylongname.of+somebody@x.io\""},
         {"\"a@b\"", "\"a..b@cde\"", "\"abcd@-e\""}},
        {"{\"type\": \"string\", \"format\": \"uuid\"}",
         {"\"01234567-89ab-CDEF-0123-456789abcdef\""},
         {"\"01234567-89ab-CDEF-0123-456789abcde\""}},
        {"{\"type\": \"string\", \"format\": \"uri\"}",
         {"\"http://a.b/c?d=e#f\"", "\"urn:x:y\"", "\"http://[::1]:80/\""},
         {"\"a/b\"", "\"http://a b\""}},
        {"{\"type\": \"string\", \"format\": \"hostname\"}",
         {"\"a-b.c\""},
         {"\"-a\"", "\"a..b\"", "\"xn--X\""}},
        {"{\"$schema\": \"http://json-schema.org/draft-07/schema#\", \"type\": \"string\", "
         "\"format\": "
         "\"uuid\"}",
         {"\"x\""},
         {"1"}},
        {"{\"type\": \"string\", \"format\": \"no-such-format\"}", {"\"x\""}, {"1"}},
    };
    (void)state;
    check_cases(v, ROSE_GRAMMAR_JSON_SCHEMA, cases, sizeof cases / sizeof cases[0]);
}

static void numbers(void **state)
{
    static const text_case cases[] = {
        {"{\"type\": \"integer\"}", {"0", "-1", "120"}, {"1.5", "01", "-", "1e3", "+1"}},
        {"{\"type\": \"number\"}", {"0", "-1.5", "1e3", "2.5E-7"}, {"1.", ".5", "1e", "--1"}},
        {"{\"type\": \"integer\", \"minimum\": 0}", {"0", "12"}, {"-1", "1e3", "1.5"}},
        {"{\"type\": \"integer\", \"minimum\": 7, \"maximum\": 123}",
         {"7", "9", "10", "99", "100", "123"},
         {"6", "0", "-7", "124", "200", "1000"}},
        {"{\"type\": \"integer\", \"minimum\": -12, \"maximum\": 5}",
         {"-12", "-1", "0", "5"},
         {"-13", "-20", "6", "10"}},
        {"{\"type\": \"integer\", \"exclusiveMinimum\": 0, \"exclusiveMaximum\": 3}",
         {"1", "2"},
         {"0", "3", "-1"}},
        {"{\"$schema\": \"http://json-schema.org/draft-04/schema#\", \"type\": \"integer\", "
         "\"minimum\": 0, \"exclusiveMinimum\": true}",
         {"1", "10"},
         {"0", "-1"}},
        {"{\"type\": \"number\", \"minimum\": 0.15, \"maximum\": 1.5}",
         {"0.15", "0.2", "1", "1.5", "1.50", "0.1500001"},
         {"0.1", "0.14999", "1.51", "2", "0", "15"}},
        {"{\"type\": \"number\", \"exclusiveMinimum\": 0, \"exclusiveMaximum\": 1}",
         {"0.1", "0.001", "0.999"},
         {"0", "0.0", "1", "1.0", "-0.5"}},
        {"{\"type\": \"number\", \"minimum\": 0}",
         {"1e-06", "0", "-0.0", "2.5E+3"},
         {"-1e3", "-1"}},
        {"{\"type\": \"number\", \"minimum\": 1}", {"1", "1.5"}, {"5e-9", "1e3", "0"}},
        {"{\"type\": \"integer\", \"minimum\": 10, \"maximum\": 1180591620717411303424}",
         {"10", "1180591620717411300000"},
         {"9", "1180591620717411300001"}},
        {"{\"type\": \"number\", \"maximum\": -2.5}", {"-2.5", "-3", "-10"}, {"-2.4", "0", "2.5"}},
        {"{\"type\": \"integer\", \"multipleOf\": 7}",
         {"0", "7", "-14", "700"},
         {"1", "8", "70.5"}},
        {"{\"type\": \"number\", \"multipleOf\": 0.25}",
         {"0.25", "1.5", "3", "-0.750"},
         {"0.3", "0.2", "1.26"}},
        {"{\"type\": \"integer\", \"minimum\": 10, \"multipleOf\": 5, \"maximum\": 20}",
         {"10", "15", "20"},
         {"5", "12", "25"}},
        {"{\"minimum\": 5}", {"5", "\"a\"", "null", "[]"}, {"4"}},
    };
    (void)state;
    check_cases(v, ROSE_GRAMMAR_JSON_SCHEMA, cases, sizeof cases / sizeof cases[0]);
}

static void objects(void **state)
{
    static const text_case cases[] = {
        {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": "
         "{\"type\": \"null\"}}, \"required\": [\"a\"], \"additionalProperties\": false}",
         {"{\"a\":1}", "{\"a\": 1, \"b\": null}", "{\"b\":null,\"a\":2}", "{ \"a\" : 1 }"},
         {"{}", "{\"b\":null}", "{\"a\":1,}", "{\"a\":1,\"a\":1}", "{\"a\":1,\"c\":1}",
          "{\"a\":\"x\"}", "{\"a\":  1}"}},
        {"{\"properties\": {\"ab\": {\"type\": \"null\"}}}",
         {"{}", "{\"ab\":null}", "{\"a\":1}", "{\"abc\":1,\"b\":{}}", "[1]", "{\"\":0}"},
         {"{\"ab\":1}", "{\"a\":1,\"ab\":1}"}},
        {"{\"type\": \"object\", \"required\": [\"z\"], \"additionalProperties\": {\"type\": "
         "\"boolean\"}}",
         {"{\"z\":true}", "{\"a\":false,\"z\":true}"},
         {"{}", "{\"a\":true}", "{\"z\":1}"}},
        {"{\"type\": \"object\", \"patternProperties\": {\"^n\": {\"type\": \"null\"}, \"b$\": "
         "{\"enum\": [null, 1]}}, \"additionalProperties\": {\"enum\": [2]}}",
         {"{\"n\":null,\"xb\":1,\"nb\":null,\"x\":2}"},
         {"{\"n\":1}", "{\"nb\":1}", "{\"x\":null}", "{\"xb\":2}"}},
        {"{\"type\": \"object\", \"properties\": {\"n1\": {\"enum\": [1, null]}}, "
         "\"patternProperties\": {\"^n\": {\"type\": \"null\"}}, \"additionalProperties\": false}",
         {"{\"n1\":null}", "{\"n2\":null}"},
         {"{\"n1\":1}", "{\"m\":null}"}},
        {"{\"type\": \"object\", \"minProperties\": 1, \"maxProperties\": 2, \"properties\": "
         "{\"a\": {\"enum\": [1]}}, \"additionalProperties\": {\"enum\": [2]}}",
         {"{\"a\":1}", "{\"b\":2}", "{\"a\":1,\"b\":2}"},
         {"{}", "{\"a\":1,\"b\":2,\"c\":2}"}},
        {"{\"type\": \"object\", \"maxProperties\": 2, \"required\": [\"a\", \"b\"]}",
         {"{\"a\":1,\"b\":2}"},
         {"{\"c\":1,\"a\":1,\"b\":1}", "{\"a\":1}"}},
        {"{\"type\": \"object\", \"propertyNames\": {\"pattern\": \"^[ab]+$\"}, \"properties\": "
         "{\"c\": {}}, \"maxProperties\": 3}",
         {"{\"a\":1,\"ba\":2}", "{}"},
         {"{\"c\":1}"}},
        {"{\"type\": \"object\", \"properties\": {\"a\": {\"enum\": [1]}, \"b\": {\"enum\": [1]}}, "
         "\"additionalProperties\": false, \"dependencies\": {\"a\": [\"b\"]}}",
         {"{}", "{\"b\":1}", "{\"a\":1,\"b\":1}", "{\"b\":1,\"a\":1}"},
         {"{\"a\":1}"}},
        {"{\"type\": \"object\", \"properties\": {\"q\\\"\\u00e9\": {\"enum\": [1]}}, "
         "\"additionalProperties\": false}",
         {"{\"q\\\"\xc3\xa9\":1}"},
         {"{\"q\":1}"}},
        {"{\"type\": \"object\", \"additionalProperties\": false}", {"{}", "{ }"}, {"{\"a\":1}"}},
        {"{\"type\": \"object\", \"properties\": {\"a\": false}}", {"{\"b\":1}"}, {"{\"a\":1}"}},
    };
    (void)state;
    check_cases(v, ROSE_GRAMMAR_JSON_SCHEMA, cases, sizeof cases / sizeof cases[0]);
}

static void others(void **state)
{
    static const text_case cases[] = {
        {"{}", {"1", "[1,{\"a\":[]}]", "true", "\"x\"", "null"}, {"", "tru", "[1,]", "{\"a\"}"}},
        {"true", {"1"}, {"x"}},
        {"{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 1, \"maxItems\": "
         "3}",
         {"[1]", "[1, 2,3]"},
         {"[]", "[1,2,3,4]", "[null]"}},
        {"{\"type\": \"array\", \"prefixItems\": [{\"enum\": [1]}, {\"enum\": [2]}], \"items\": "
         "false}",
         {"[]", "[1]", "[1,2]"},
         {"[2]", "[1,2,3]"}},
        {"{\"type\": \"array\", \"prefixItems\": [{\"enum\": [1]}], \"items\": {\"enum\": [3]}, "
         "\"minItems\": 2}",
         {"[1,3]", "[1,3,3]"},
         {"[1]", "[3,1]"}},
        {"{\"$schema\": \"http://json-schema.org/draft-07/schema#\", \"items\": [{\"enum\": [1]}], "
         "\"additionalItems\": {\"enum\": [2]}, \"type\": \"array\"}",
         {"[]", "[1]", "[1,2,2]"},
         {"[2]", "[1,1]"}},
        {"{\"enum\": [1, \"a\", null, [1, {\"k\": true}], 2.50, -0.5]}",
         {"1", "1.0", "\"a\"", "null", "[1, {\"k\":true}]", "2.5", "-0.5"},
         {"2", "\"b\"", "[1]"}},
        {"{\"enum\": [\"abc\", \"abd\", \"x\"], \"pattern\": \"^a\", \"type\": \"string\"}",
         {"\"abc\"", "\"abd\""},
         {"\"x\"", "\"ab\""}},
        {"{\"const\": {\"a\": [1]}}", {"{\"a\":[1]}", "{ \"a\" : [ 1 ] }"}, {"{\"a\":[2]}"}},
        {"{\"const\": {\"a\": 1, \"b\": {}}}",
         {"{\"a\":1,\"b\":{}}", "{\"b\":{},\"a\":1.0}"},
         {"{\"a\":1}"}},
        {"{\"type\": [\"string\", \"null\"], \"maxLength\": 1}",
         {"null", "\"a\""},
         {"\"ab\"", "1"}},
        {"{\"type\": \"string\", \"nullable\": true}", {"null", "\"a\""}, {"1"}},
        {"{\"anyOf\": [{\"type\": \"integer\"}, {\"enum\": [\"x\"]}], \"not\": {\"enum\": [7]}}",
         {"1", "\"x\"", "77"},
         {"7", "\"y\""}},
        {"{\"oneOf\": [{\"type\": \"integer\", \"minimum\": 3}, {\"type\": \"integer\", "
         "\"maximum\": 5}]}",
         {"2", "6"},
         {"3", "4", "5"}},
        {"{\"type\": \"object\", \"properties\": {\"a\": {\"enum\": [1]}, \"b\": {\"enum\": [1]}}, "
         "\"additionalProperties\": false, \"oneOf\": [{\"required\": [\"a\"]}, {\"required\": "
         "[\"b\"]}]}",
         {"{\"a\":1}", "{\"b\":1}"},
         {"{}", "{\"a\":1,\"b\":1}"}},
        {"{\"not\": {\"items\": {\"type\": \"null\"}}}",
         {"[1]", "[null,1,null]", "[[]]"},
         {"[]", "[null]", "[null,null]", "1"}},
        {"{\"oneOf\": [{\"type\": \"array\", \"items\": {\"type\": \"string\"}}, {\"type\": "
         "\"array\", "
         "\"items\": {\"type\": \"integer\"}}]}",
         {"[1]", "[\"a\",\"b\"]"},
         {"[]", "[1,\"a\"]"}},
        {"{\"not\": {\"type\": [\"object\", \"array\", \"string\"]}}",
         {"1", "1.5", "null", "false"},
         {"{}", "[]", "\"\""}},
        {"{\"type\": \"number\", \"not\": {\"type\": \"integer\"}}", {"1.5", "0.1"}, {"1", "2.0"}},
        {"{\"type\": \"string\", \"not\": {\"pattern\": \"a\"}}", {"\"b\"", "\"\""}, {"\"bab\""}},
        {"{\"type\": \"object\", \"properties\": {\"k\": {\"enum\": [1, 2]}, \"x\": {\"type\": "
         "\"integer\"}}, \"required\": [\"k\"], \"additionalProperties\": false, \"if\": "
         "{\"properties\": {\"k\": {\"const\": 1}}}, \"then\": {\"required\": [\"x\"]}}",
         {"{\"k\":2}", "{\"k\":1,\"x\":5}", "{\"x\":5,\"k\":1}"},
         {"{\"k\":1}", "{\"x\":1}"}},
        {"{\"$defs\": {\"n\": {\"type\": \"object\", \"properties\": {\"v\": {\"type\": "
         "\"integer\"}, \"next\": {\"$ref\": \"#/$defs/n\"}}, \"required\": [\"v\"], "
         "\"additionalProperties\": false}}, \"$ref\": \"#/$defs/n\"}",
         {"{\"v\":1}", "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3}}}"},
         {"{\"v\":1,\"next\":{}}"}},
        {"{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}}", {"[]", "[[],[[]]]"}, {"[1]"}},
        {"{\"definitions\": {\"a/b\": {\"$id\": \"#x\", \"enum\": [1]}}, \"anyOf\": [{\"$ref\": "
         "\"#/definitions/a~1b\"}, {\"$ref\": \"#x\"}, {\"$ref\": \"#/definitions/a%2Fb\"}]}",
         {"1"},
         {"2"}},
        {"{\"allOf\": [{\"properties\": {\"a\": {\"minimum\": 3}}}, {\"properties\": {\"a\": "
         "{\"maximum\": 5, \"type\": \"integer\"}}, \"required\": [\"a\"]}], \"type\": \"object\", "
         "\"maxProperties\": 1}",
         {"{\"a\":3}", "{\"a\":5}"},
         {"{\"a\":2}", "{\"a\":6}", "{}"}},
    };
    (void)state;
    check_cases(v, ROSE_GRAMMAR_JSON_SCHEMA, cases, sizeof cases / sizeof cases[0]);
}

static void refusals(void **state)
{
    static const struct {
        const char *text;
        rose_status st;
        const char *part;
    } cases[] = {
        {"{", ROSE_E_INVAL, "not JSON"},
        {"7", ROSE_E_INVAL, "must be an object or boolean"},
        {"false", ROSE_E_INVAL, "allows no text"},
        {"{\"type\": \"strng\"}", ROSE_E_INVAL, "#/type: no known type"},
        {"{\"properties\": {\"a\": {\"type\": \"array\", \"uniqueItems\": true}}}",
         ROSE_E_UNSUPPORTED, "#/properties/a/uniqueItems"},
        {"{\"type\": \"array\", \"contains\": {}}", ROSE_E_UNSUPPORTED, "#/contains"},
        {"{\"unevaluatedProperties\": false}", ROSE_E_UNSUPPORTED, "#/unevaluatedProperties"},
        {"{\"$ref\": \"http://x.y/z\"}", ROSE_E_UNSUPPORTED, "#/$ref: leads to another document"},
        {"{\"$ref\": \"#/a\"}", ROSE_E_INVAL, "#/$ref: leads to no schema"},
        {"{\"$ref\": \"#\"}", ROSE_E_INVAL, "leads back to itself"},
        {"{\"type\": \"string\", \"format\": \"iri\"}", ROSE_E_UNSUPPORTED, "#/format"},
        {"{\"type\": \"string\", \"pattern\": \"(\"}", ROSE_E_INVAL, "')' is missing"},
        {"{\"type\": \"string\", \"minLength\": -1}", ROSE_E_INVAL, "#/minLength"},
        {"{\"type\": \"string\", \"minLength\": 3, \"maxLength\": 2}", ROSE_E_INVAL, "no text"},
        {"{\"type\": \"string\", \"pattern\": \"^(aaa)+$\", \"minLength\": 4, \"maxLength\": 5}",
         ROSE_E_INVAL, "no text"},
        {"{\"anyOf\": []}", ROSE_E_INVAL, "#/anyOf"},
        {"{\"not\": {\"propertyNames\": {\"maxLength\": 1}}}", ROSE_E_UNSUPPORTED,
         "#/not/propertyNames"},
        {"{\"properties\": {\"a\": 1}}", ROSE_E_INVAL, "#/properties/a"},
        {"{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#\"}}, \"required\": "
         "[\"a\"]}",
         ROSE_E_INVAL, "no text"},
        {"{\"multipleOf\": 0}", ROSE_E_INVAL, "#/multipleOf"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_refused(v, ROSE_GRAMMAR_JSON_SCHEMA, cases[i].text, cases[i].st, cases[i].part);
}

static void order(void **state)
{
    static const char text[] = "{\"properties\": {\"a\": {\"enum\": [1]}, \"b\": {\"enum\": [1]}, "
                               "\"c\": {\"enum\": [1]}}, \"required\": [\"b\"], \"type\": "
                               "\"object\", \"maxProperties\": 3}";
    rose_grammar_opts opts = {.schema_order = true, .max_space = UINT32_MAX};
    rose_grammar *g;
    (void)state;
    assert_int_equal(
        rose_grammar_compile(&g, ROSE_GRAMMAR_JSON_SCHEMA, text, strlen(text), v, &opts, NULL),
        ROSE_OK);
    assert_true(allows_bytes(g, "{\"a\":1,\"b\":1,\"c\":1}", 19, true));
    assert_true(allows(g, "{\"b\":1}"));
    assert_true(allows(g, "{\"b\":1,\"c\":1,\"x\":[]}"));
    assert_false(allows(g, "{\"b\":1,\"a\":1}"));
    assert_false(allows(g, "{\"a\":1,\"c\":1}"));
    assert_false(allows(g, "{\"a\":1,\"b\":1,\"c\":1,\"x\":1}"));
    assert_false(allows(g, "{\"b\": 1}"));
    rose_grammar_unref(g);
}

/* Objects without further properties, in any order, in the order of the schema and in parts. */
static void closed(void **state)
{
    static const char *const open[] = {
        "{\"type\": \"object\"}",
        "{\"type\": \"object\", \"properties\": {}, \"required\": [\"x\"]}",
        "{\"type\": \"object\", \"properties\": {\"a\": {}}, \"additionalProperties\": {}}",
        "{\"type\": \"object\", \"properties\": {\"a\": {}}, \"patternProperties\": {\"x\": {}}}"};
    static const char *const shut[] = {
        "{\"type\": \"object\", \"properties\": {\"a\": {\"enum\": [1]}, \"b\": {\"enum\": [1]}}}",
        "{\"type\": \"object\", \"allOf\": [{\"properties\": {\"a\": {\"enum\": [1]}}}, "
        "{\"properties\": {\"b\": {\"enum\": [1]}}}]}"};
    (void)state;
    for (int order = 0; order < 2; order++) {
        const rose_grammar_opts opts = {.schema_order = order != 0, .closed = true};
        rose_grammar *g;
        for (size_t i = 0; i < sizeof open / sizeof open[0]; i++) {
            assert_int_equal(rose_grammar_compile(&g, ROSE_GRAMMAR_JSON_SCHEMA, open[i],
                                                  strlen(open[i]), v, &opts, NULL),
                             ROSE_OK);
            assert_true(allows(g, "{\"x\":1}"));
            rose_grammar_unref(g);
        }
        for (size_t i = 0; i < sizeof shut / sizeof shut[0]; i++) {
            assert_int_equal(rose_grammar_compile(&g, ROSE_GRAMMAR_JSON_SCHEMA, shut[i],
                                                  strlen(shut[i]), v, &opts, NULL),
                             ROSE_OK);
            assert_true(allows(g, "{}"));
            assert_true(allows(g, "{\"a\":1,\"b\":1}"));
            assert_int_equal(allows(g, "{\"b\":1,\"a\":1}"), order == 0);
            assert_false(allows(g, "{\"a\":1,\"x\":1}"));
            assert_false(allows(g, "{\"x\":1}"));
            rose_grammar_unref(g);
        }
    }
}

/* ---- random schemas ---- */

typedef struct gen {
    uint64_t seed;
} gen;

static unsigned rnd(gen *g, unsigned n)
{
    g->seed = g->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(g->seed >> 33) % n;
}

static rose_json *random_value(gen *g, int depth)
{
    static const char *const names[] = {"a", "b", "ab"};
    unsigned kind = rnd(g, depth > 0 ? 7 : 5), n = rnd(g, 4);
    rose_json *x;
    switch (kind) {
    case 0:
        return rose_json_null();
    case 1:
        return rose_json_boolean(rnd(g, 2));
    case 2:
        return rose_json_integer((int64_t)rnd(g, 12) - 4);
    case 3:
        return rose_json_real((double)rnd(g, 40) / 8 - 2 + 0.0625);
    case 4:
        return rose_json_string(names[rnd(g, 3)]);
    case 5:
        x = rose_json_array();
        for (unsigned i = 0; i < n; i++)
            rose_json_append_new(x, random_value(g, depth - 1));
        return x;
    default:
        x = rose_json_object();
        for (unsigned i = 0; i < n; i++)
            rose_json_set_new(x, names[rnd(g, 3)], random_value(g, depth - 1));
        return x;
    }
}

static void set_number(gen *g, rose_json *s, const char *name, int least, unsigned n)
{
    if (rnd(g, 3) == 0) rose_json_set_new(s, name, rose_json_integer((int64_t)rnd(g, n) + least));
}

static rose_json *random_schema(gen *g, int depth)
{
    static const char *const types[] = {"null",   "boolean", "integer", "number",
                                        "string", "array",   "object"};
    static const char *const names[] = {"a", "b", "ab"}, *const patterns[] = {"^a", "b$", "^.$"};
    unsigned type = rnd(g, 8);
    rose_json *s = rose_json_object(), *x;
    if (type < 7) rose_json_set_new(s, "type", rose_json_string(types[type]));
    set_number(g, s, "minimum", -3, 6);
    set_number(g, s, "exclusiveMaximum", 0, 6);
    set_number(g, s, "minLength", 0, 3);
    set_number(g, s, "maxLength", 1, 2);
    set_number(g, s, "maxItems", 1, 3);
    set_number(g, s, "minProperties", 0, 2);
    set_number(g, s, "maxProperties", 1, 3);
    if (rnd(g, 4) == 0) rose_json_set_new(s, "pattern", rose_json_string(patterns[rnd(g, 3)]));
    if (rnd(g, 6) == 0) rose_json_set_new(s, "multipleOf", rose_json_real(rnd(g, 2) ? 0.5 : 3));
    if (rnd(g, 9) == 0)
        rose_json_set_new(s, "enum",
                          rose_json_pack("[o, o, o]", random_value(g, 0), random_value(g, 0),
                                         random_value(g, 0)));
    if (depth == 0) return s;
    if (rnd(g, 2) == 0) {
        rose_json_set_new(s, "properties", x = rose_json_object());
        for (unsigned i = rnd(g, 3) + 1; i > 0; i--)
            rose_json_set_new(x, names[rnd(g, 3)], random_schema(g, depth - 1));
    }
    if (rnd(g, 4) == 0) rose_json_set_new(s, "required", rose_json_pack("[s]", names[rnd(g, 3)]));
    if (rnd(g, 4) == 0)
        rose_json_set_new(s, "additionalProperties",
                          rnd(g, 2) ? rose_json_false() : random_schema(g, depth - 1));
    if (rnd(g, 4) == 0)
        rose_json_set_new(
            s, "patternProperties",
            rose_json_pack("{s:o}", patterns[rnd(g, 2)], random_schema(g, depth - 1)));
    if (rnd(g, 3) == 0) rose_json_set_new(s, "items", random_schema(g, depth - 1));
    static const char *const choices[] = {"anyOf", "oneOf", "allOf"};
    if (rnd(g, 3) == 0)
        rose_json_set_new(
            s, choices[rnd(g, 3)],
            rose_json_pack("[o, o]", random_schema(g, depth - 1), random_schema(g, depth - 1)));
    if (rnd(g, 8) == 0) rose_json_set_new(s, "not", random_schema(g, (int)rnd(g, 2)));
    return s;
}

static bool valid(const rose_json *s, const rose_json *x);

static bool same(const rose_json *x, const rose_json *y)
{
    if (rose_json_is_number(x) && rose_json_is_number(y))
        return !(rose_json_number_value(x) < rose_json_number_value(y)) &&
               !(rose_json_number_value(x) > rose_json_number_value(y));
    return rose_json_equal(x, y) != 0;
}

static bool is_type(const char *t, const rose_json *x)
{
    if (strcmp(t, "null") == 0) return rose_json_is_null(x);
    if (strcmp(t, "boolean") == 0) return rose_json_is_boolean(x);
    if (strcmp(t, "integer") == 0) return rose_json_is_integer(x);
    if (strcmp(t, "number") == 0) return rose_json_is_number(x);
    if (strcmp(t, "string") == 0) return rose_json_is_string(x);
    return strcmp(t, "array") == 0 ? rose_json_is_array(x) : rose_json_is_object(x);
}

/* The patterns of random_schema. */
static bool has_pattern(const char *p, const char *s)
{
    size_t n = strlen(s);
    if (strcmp(p, "^a") == 0) return s[0] == 'a';
    if (strcmp(p, "b$") == 0) return n > 0 && s[n - 1] == 'b';
    return n == 1;
}

static bool above(const rose_json *s, const char *name, double x, double other)
{
    const rose_json *m = rose_json_get(s, name);
    return x >= (m != NULL ? rose_json_number_value(m) : other);
}

static bool valid_number(const rose_json *s, double x)
{
    const rose_json *less = rose_json_get(s, "exclusiveMaximum");
    const rose_json *of = rose_json_get(s, "multipleOf");
    double q = of != NULL ? x / rose_json_number_value(of) : 0;
    double whole = (double)(long long)q - q;
    return above(s, "minimum", x, -1e300) && (less == NULL || x < rose_json_number_value(less)) &&
           !(whole < 0) && !(whole > 0);
}

static bool between(const rose_json *s, const char *min, const char *max, size_t n)
{
    const rose_json *m = rose_json_get(s, max);
    return above(s, min, (double)n, 0) && (m == NULL || (double)n <= rose_json_number_value(m));
}

static bool valid_object(const rose_json *s, const rose_json *x)
{
    const char *key, *pattern;
    rose_json *value, *p;
    size_t i;
    rose_json_each_item (rose_json_get(s, "required"), i, p) {
        if (rose_json_get(x, rose_json_text(p)) == NULL) return false;
    }
    rose_json_each (x, key, value) {
        const rose_json *own = rose_json_get(rose_json_get(s, "properties"), key);
        bool found = own != NULL;
        if (own != NULL && !valid(own, value)) return false;
        rose_json_each (rose_json_get(s, "patternProperties"), pattern, p) {
            if (!has_pattern(pattern, key)) continue;
            found = true;
            if (!valid(p, value)) return false;
        }
        p = rose_json_get(s, "additionalProperties");
        if (!found && p != NULL && !valid(p, value)) return false;
    }
    return between(s, "minProperties", "maxProperties", rose_json_size(x));
}

static unsigned count_valid(const rose_json *list, const rose_json *x)
{
    unsigned n = 0;
    size_t i;
    rose_json *s;
    rose_json_each_item (list, i, s)
        n += valid(s, x);
    return n;
}

static bool valid(const rose_json *s, const rose_json *x)
{
    const rose_json *list;
    size_t i;
    rose_json *y;
    if (rose_json_is_boolean(s)) return rose_json_is_true(s);
    const char *type = rose_json_text(rose_json_get(s, "type"));
    if (type != NULL && !is_type(type, x)) return false;
    if ((list = rose_json_get(s, "enum")) != NULL) {
        bool found = false;
        rose_json_each_item (list, i, y)
            found = found || same(x, y);
        if (!found) return false;
    }
    if (rose_json_is_number(x) && !valid_number(s, rose_json_number_value(x))) return false;
    if (rose_json_is_string(x)) {
        const char *p = rose_json_text(rose_json_get(s, "pattern"));
        if (!between(s, "minLength", "maxLength", rose_json_text_len(x))) return false;
        if (p != NULL && !has_pattern(p, rose_json_text(x))) return false;
    }
    if (rose_json_is_array(x)) {
        const rose_json *items = rose_json_get(s, "items");
        if (!between(s, "minItems", "maxItems", rose_json_count(x))) return false;
        rose_json_each_item (x, i, y) {
            if (items != NULL && !valid(items, y)) return false;
        }
    }
    if (rose_json_is_object(x) && !valid_object(s, x)) return false;
    list = rose_json_get(s, "anyOf");
    if (list != NULL && count_valid(list, x) == 0) return false;
    list = rose_json_get(s, "oneOf");
    if (list != NULL && count_valid(list, x) != 1) return false;
    list = rose_json_get(s, "allOf");
    if (list != NULL && count_valid(list, x) != rose_json_count(list)) return false;
    const rose_json *not_this = rose_json_get(s, "not");
    return not_this == NULL || !valid(not_this, x);
}

static void random_schemas(void **state)
{
    const char *given = getenv("ROSE_TEST_SEED");
    gen g = {given != NULL ? strtoull(given, NULL, 0) : 20261126};
    unsigned accepted = 0, allowed = 0;
    (void)state;
    printf("seed %llu\n", (unsigned long long)g.seed);
    for (int round = 0; round < 600; round++) {
        rose_json *s = random_schema(&g, 2);
        char *text = rose_json_dumps(s, ROSE_JSON_COMPACT);
        rose_grammar *x;
        rose_err err = {""};
        rose_status st =
            rose_grammar_compile(&x, ROSE_GRAMMAR_JSON_SCHEMA, text, strlen(text), v, NULL, &err);
        if (st != ROSE_OK && strstr(err.msg, "not supported") == NULL &&
            strstr(err.msg, "allows no text") == NULL)
            fail_msg("%s: %s", text, err.msg);
        for (int i = 0; i < 40; i++) {
            rose_json *value = random_value(&g, 2);
            char *out = rose_json_dumps(value, ROSE_JSON_COMPACT | ROSE_JSON_REAL_PRECISION(6));
            bool want = valid(s, value);
            if (st == ROSE_OK && allows_bytes(x, out, strlen(out), i == 0) != want)
                fail_msg("schema %s, value %s: should be %d", text, out, want);
            if (st == ROSE_E_INVAL && want) fail_msg("%s allows %s", text, out);
            allowed += st == ROSE_OK && want;
            free(out);
            rose_json_decref(value);
        }
        accepted += st == ROSE_OK;
        rose_grammar_unref(x);
        free(text);
        rose_json_decref(s);
    }
    printf("%u schemas accepted, %u values allowed\n", accepted, allowed);
    assert_true(accepted > 300 && allowed > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strings), cmocka_unit_test(numbers),        cmocka_unit_test(objects),
        cmocka_unit_test(others),  cmocka_unit_test(refusals),       cmocka_unit_test(order),
        cmocka_unit_test(closed),  cmocka_unit_test(random_schemas),
    };
    v = small_vocab();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rose_vocab_trie_unref(v);
    return failed != 0;
}
