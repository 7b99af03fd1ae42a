/* grammar/lark.c - grammars of Lark, as vLLM and llguidance take them: rules in lower case,
 * terminals in upper case, `start` is the start. The text matches if it can be split into terminals
 * in some way, as with Lark's Earley parser and its dynamic lexer: there is no lexer that prefers
 * the longest terminal. What %ignore names may stand before the first terminal and after each one,
 * but not within one. A rule ends where the next definition or directive begins, so line ends mean
 * nothing.
 *
 * Taken: strings and their ranges, /expressions/ with the flags i, s and u, groups, [optional],
 * the operators ? * + ~n ~n..m {n,m}, aliases, priorities and the marks ? and ! (without effect on
 * the text), %ignore, %import of common's terminals, %json. Refused by name: everything else. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "grammar/grammar_internal.h"

#define refuse rose_gr_source_refuse

/* ---- names ---- */

/* Names of terminals are in upper case. */
static bool is_terminal(const char *name, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (name[i] != '_') return name[i] >= 'A' && name[i] <= 'Z';
    return false;
}

/* A directive is a % and a name; %json is no directive. */
static bool at_directive(const gr_source *e)
{
    return gr_at_char(e, '%') && !gr_looking_at(e, "%json");
}

/* Does `name:` stand here, perhaps with a mark before and a priority after the name? */
static bool at_definition(const gr_source *e)
{
    gr_source at = *e;
    if (gr_at_char(&at, '?') || gr_at_char(&at, '!')) at.at++;
    const size_t n = rose_gr_source_name(&at);
    if (n == 0) return false;
    at.at += n;
    if (gr_at_char(&at, '[') || gr_at_char(&at, '{')) { /* refused later */
        const char close = at.s[at.at] == '[' ? ']' : '}';
        while (at.at < at.n && at.s[at.at] != close && at.s[at.at] != '\n')
            at.at++;
        at.at += at.at < at.n;
    }
    if (gr_at_char(&at, '.')) at.at++;
    while (at.at < at.n && ((at.s[at.at] >= '0' && at.s[at.at] <= '9') || gr_at_char(&at, '-')))
        at.at++;
    rose_gr_source_skip_blanks(&at);
    return gr_at_char(&at, ':');
}

/* ---- strings and expressions ---- */

static gr_node one_char(gr_source *e, uint32_t lo, uint32_t hi, bool fold)
{
    gr_chars c = {0};
    rose_gr_chars_add(e->b, &c, lo, hi);
    if (fold) rose_gr_chars_fold(e->b, &c);
    return rose_gr_chars_node(e->b, &c);
}

/* The characters of a string, after its first quote. */
static size_t read_chars(gr_source *e, uint32_t **out)
{
    size_t n = 0, cap = 0;
    *out = rose_gr_grown(e->b, NULL, 0, &cap, sizeof **out);
    while (!gr_at_char(e, '"')) {
        *out = rose_gr_grown(e->b, *out, n, &cap, sizeof **out);
        (*out)[n++] = rose_gr_source_char(e, '"');
    }
    e->at++;
    return n;
}

static gr_node read_range(gr_source *e, const uint32_t *first, size_t n)
{
    uint32_t *last;
    rose_gr_source_skip_blanks(e);
    if (!gr_take(e, "\"")) refuse(e, ROSE_E_INVAL, "a string was expected after '..'");
    if (n != 1 || read_chars(e, &last) != 1)
        refuse(e, ROSE_E_INVAL, "a range needs strings of one character, as in \"a\"..\"z\"");
    if (last[0] < first[0]) refuse(e, ROSE_E_INVAL, "a range of characters is upside down");
    return one_char(e, first[0], last[0], false);
}

static gr_node read_string(gr_source *e)
{
    uint32_t *chars;
    gr_list l = {0};
    const size_t n = read_chars(e, &chars);
    if (gr_take(e, "..")) return read_range(e, chars, n);
    const bool fold = gr_at_char(e, 'i');
    e->at += fold;
    for (size_t i = 0; i < n; i++)
        rose_gr_push(e->b, &l, one_char(e, chars[i], chars[i], fold));
    return rose_gr_seq(e->b, l.v, l.n);
}

/* An expression, after its first slash. */
static gr_node read_regex(gr_source *e)
{
    const size_t from = e->at;
    bool fold = false, dot_all = false;
    while (!gr_at_char(e, '/')) {
        if (e->at >= e->n || e->s[e->at] == '\n')
            refuse(e, ROSE_E_INVAL, "the '/' that ends an expression is missing");
        e->at += gr_at_char(e, '\\') && e->at + 1 < e->n ? 2 : 1;
    }
    const size_t n = e->at++ - from;
    for (size_t n_flags = rose_gr_source_name(e); n_flags > 0; n_flags--) {
        const char flag = e->s[e->at];
        fold = fold || flag == 'i';
        dot_all = dot_all || flag == 's';
        if (strchr("isu", flag) == NULL)
            refuse(e, ROSE_E_UNSUPPORTED,
                   "of the flags of expressions only i, s and u are supported");
        e->at++;
    }
    return rose_gr_regex_with(e->b, e->s + from, n, fold, dot_all);
}

/* %json and a schema. */
static gr_node read_json(gr_source *e)
{
    rose_json_error error;
    rose_json *schema;
    unsigned depth = 0;
    bool quoted = false;
    rose_gr_source_skip(e);
    const size_t from = e->at;
    do {
        if (e->at >= e->n || (depth == 0 && !gr_at_char(e, '{')))
            refuse(e, ROSE_E_INVAL, "%json needs a schema in braces");
        const char c = e->s[e->at];
        if (c == '"') quoted = !quoted;
        if (quoted && c == '\\' && e->at + 1 < e->n) e->at++;
        if (!quoted) depth += (c == '{') - (unsigned)(c == '}');
        e->at++;
    } while (depth > 0);
    const rose_status st =
        rose_json_parse(&schema, e->s + from, e->at - from, ROSE_JSON_NUL, &error);
    if (st == ROSE_E_NOMEM) rose_gr_fail(e->b, st, "out of memory");
    if (st != ROSE_OK) refuse(e, ROSE_E_INVAL, "the schema of %json is not JSON");
    return rose_gr_schema_within(e->b, rose_gr_keep(e->b, schema), NULL);
}

/* ---- structure ---- */

/* in_terminal: names must be terminals, and nothing is ignored between the parts. */
static gr_node read_alt(gr_source *e, bool in_terminal);

static gr_node read_name(gr_source *e, size_t n, bool in_terminal)
{
    const char *name = e->s + e->at;
    const bool terminal = is_terminal(name, n);
    if (in_terminal && !terminal)
        refuse(e, ROSE_E_INVAL, "a terminal cannot contain a rule (lower case)");
    e->at += n;
    if (gr_at_char(e, '{') && !(e->at + 1 < e->n && strchr("0123456789,", e->s[e->at + 1]) != NULL))
        refuse(e, ROSE_E_UNSUPPORTED, "templates of rules are not supported");
    const gr_node rule = rose_gr_source_rule(e, name, n);
    return terminal && !in_terminal ? GR_SEQ(e->b, rule, e->ignore) : rule;
}

static gr_node read_group(gr_source *e, char close, bool in_terminal)
{
    const gr_node x = read_alt(e, in_terminal);
    if (!gr_at_char(e, close))
        refuse(e, ROSE_E_INVAL, close == ')' ? "a ')' is missing" : "a ']' is missing");
    e->at++;
    return close == ')' ? x : rose_gr_opt(e->b, x);
}

/* Refuses what llguidance and Lark know and this reader does not. */
static _Noreturn void refuse_item(const gr_source *e)
{
    static const struct {
        const char *begin, *why;
    } known[] = {
        {"<", "tokens in a grammar are not supported"},
        {"&", "'&' (intersection) is not supported"},
        {"~", "'~' (negation) is not supported; a repetition is written after its item: item~2..5"},
        {"%regex", "%regex is not supported"},
        {"%lark", "nested grammars (%lark) are not supported"},
        {"@", "references to other grammars are not supported"},
        {"'", "a string needs double quotes"},
        {"*", "nothing to repeat"},
        {"+", "nothing to repeat"},
        {"?", "nothing to repeat"},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (gr_looking_at(e, known[i].begin))
            refuse(e, i < 6 ? ROSE_E_UNSUPPORTED : ROSE_E_INVAL, known[i].why);
    refuse(e, ROSE_E_INVAL, "a string, /expression/, name, '(' or '[' was expected");
}

static gr_node read_item(gr_source *e, bool in_terminal)
{
    const size_t n = rose_gr_source_name(e);
    gr_node x;
    if (n > 0) return read_name(e, n, in_terminal);
    if (gr_take(e, "(")) return read_group(e, ')', in_terminal);
    if (gr_take(e, "[")) return read_group(e, ']', in_terminal);
    if (gr_take(e, "\""))
        x = read_string(e);
    else if (gr_take(e, "/"))
        x = read_regex(e);
    else if (!in_terminal && gr_take(e, "%json"))
        x = read_json(e);
    else
        refuse_item(e);
    return in_terminal ? x : GR_SEQ(e->b, x, e->ignore);
}

/* An operator stands on the line of its item: a '?' on the next line marks a rule. */
static gr_node read_operator(gr_source *e, gr_node x)
{
    rose_gr_source_skip_blanks(e);
    if (!gr_take(e, "~")) return rose_gr_source_operator(e, x);
    const uint32_t min = rose_gr_source_number(e),
                   max = gr_take(e, "..") ? rose_gr_source_number(e) : min;
    return rose_gr_source_bounded(e, x, min, max);
}

static void skip_alias(gr_source *e)
{
    if (!gr_take(e, "->")) return;
    rose_gr_source_skip_blanks(e);
    const size_t n = rose_gr_source_name(e);
    if (n == 0) refuse(e, ROSE_E_INVAL, "a name was expected after '->'");
    e->at += n;
    rose_gr_source_skip(e);
}

static gr_node read_seq(gr_source *e, bool in_terminal)
{
    gr_list l = {0};
    for (rose_gr_source_skip(e); e->at < e->n; rose_gr_source_skip(e)) {
        if (strchr("|)]", e->s[e->at]) != NULL || gr_looking_at(e, "->") || at_definition(e) ||
            at_directive(e))
            break;
        const gr_node x = read_operator(e, read_item(e, in_terminal));
        if (e->at < e->n && e->s[e->at] != '\0' && strchr("*+?~", e->s[e->at]) != NULL)
            refuse(e, ROSE_E_INVAL, "an operator follows an operator; write a group");
        rose_gr_push(e->b, &l, x);
    }
    skip_alias(e);
    return rose_gr_seq(e->b, l.v, l.n);
}

static gr_node read_alt(gr_source *e, bool in_terminal)
{
    gr_list l = {0};
    rose_gr_enter(e->b);
    do {
        rose_gr_push(e->b, &l, read_seq(e, in_terminal));
    } while (gr_take(e, "|"));
    rose_gr_leave(e->b);
    return rose_gr_alt(e->b, l.v, l.n);
}

/* ---- statements ---- */

static void read_definition(gr_source *e)
{
    if (gr_at_char(e, '?') || gr_at_char(e, '!')) e->at++;
    const char *name = e->s + e->at;
    const size_t n = rose_gr_source_name(e);
    if (n == 0) refuse(e, ROSE_E_INVAL, "the name of a rule or terminal was expected");
    const gr_node rule = rose_gr_source_rule(e, name, n);
    rose_gr_source_check_new(e, rule);
    e->at += n;
    if (gr_at_char(e, '{')) refuse(e, ROSE_E_UNSUPPORTED, "templates of rules are not supported");
    if (gr_at_char(e, '['))
        refuse(e, ROSE_E_UNSUPPORTED,
               "attributes of rules such as [max_tokens=5] are not supported");
    if (gr_take(e, ".")) {
        (void)gr_take(e, "-");
        (void)rose_gr_source_number(e);
    }
    rose_gr_source_skip_blanks(e);
    if (!gr_take(e, ":"))
        refuse(e, ROSE_E_INVAL,
               "':' was expected: a grammar of Lark has rules `name: ...`, one of EBNF or GBNF "
               "`name ::= ...`");
    const gr_node body = read_alt(e, is_terminal(name, n));
    if (gr_at_char(e, ')') || gr_at_char(e, ']'))
        refuse(e, ROSE_E_INVAL, "a ')' or ']' was not opened");
    rose_gr_source_define(e, rule, body);
}

/* The terminals of Lark's common.lark. */
static const struct {
    const char *name, *regex;
} common[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[0-9a-fA-F]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT",
     "[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"},
    {"NUMBER", "(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?(?:[0-9]+(?:\\.[0-9]*)?|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\.)*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[A-Za-z_][A-Za-z0-9_]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(?:\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"C_COMMENT", "/\\*(?:[^*]|\\*+[^*/])*\\*+/"},
    {"SQL_COMMENT", "--[^\\n]*"},
};

/* Defines the terminal alias[0..n_alias) as that of common with this name. */
static void import_one(gr_source *e, const char *name, size_t n, const char *alias, size_t n_alias)
{
    size_t i = 0, all = sizeof common / sizeof common[0];
    while (i < all && (strlen(common[i].name) != n || memcmp(common[i].name, name, n) != 0))
        i++;
    if (i == all)
        rose_gr_fail(e->b, ROSE_E_UNSUPPORTED, "%%import: `%.*s` is no terminal of common",
                     (int)(n < 80 ? n : 80), name);
    const gr_node rule = rose_gr_source_rule(e, alias, n_alias);
    if (e->b->rules[e->b->nodes[rule].a].body != GR_NONE) return; /* imported twice */
    rose_gr_rule_define(e->b, rule, rose_gr_regex(e->b, common[i].regex, strlen(common[i].regex)));
}

/* common.NAME, common.NAME -> ALIAS, common (NAME, NAME) */
static void read_import(gr_source *e)
{
    rose_gr_source_skip_blanks(e);
    if (!gr_take(e, "common"))
        refuse(e, ROSE_E_UNSUPPORTED, "%import: only the terminals of `common` can be imported");
    rose_gr_source_skip_blanks(e);
    const bool many = gr_take(e, "(");
    if (!many && !gr_take(e, ".")) refuse(e, ROSE_E_INVAL, "%import: '.' or '(' was expected");
    do {
        rose_gr_source_skip(e);
        const char *name = e->s + e->at, *alias = name;
        const size_t n = rose_gr_source_name(e);
        size_t n_alias = n;
        if (n == 0) refuse(e, ROSE_E_INVAL, "%import: the name of a terminal was expected");
        e->at += n;
        rose_gr_source_skip_blanks(e);
        if (!many && gr_take(e, "->")) {
            rose_gr_source_skip_blanks(e);
            alias = e->s + e->at;
            if ((n_alias = rose_gr_source_name(e)) == 0 || !is_terminal(alias, n_alias))
                refuse(e, ROSE_E_INVAL, "%import: a name in upper case was expected after '->'");
            e->at += n_alias;
        }
        import_one(e, name, n, alias, n_alias);
        if (many) rose_gr_source_skip(e);
    } while (many && gr_take(e, ","));
    if (many && !gr_take(e, ")")) refuse(e, ROSE_E_INVAL, "%import: a ')' is missing");
}

/* %llguidance {}: options of llguidance, of which there must be none. */
static void read_options(gr_source *e)
{
    rose_gr_source_skip(e);
    const bool open = gr_take(e, "{");
    rose_gr_source_skip(e);
    if (!open || !gr_take(e, "}"))
        refuse(e, ROSE_E_UNSUPPORTED, "options of %llguidance are not supported, {} is");
}

static void read_directive(gr_source *e, gr_list *ignored)
{
    if (gr_take(e, "%ignore"))
        rose_gr_push(e->b, ignored, read_alt(e, true));
    else if (gr_take(e, "%import"))
        read_import(e);
    else if (gr_take(e, "%llguidance"))
        read_options(e);
    else
        refuse(e, ROSE_E_UNSUPPORTED,
               "of the directives only %ignore, %import and %json are supported");
}

/* Is there an %ignore? In a string it does no harm. */
static bool has_ignore(const gr_source *e)
{
    gr_source at = *e;
    for (; at.at < at.n; at.at++)
        if (gr_looking_at(&at, "%ignore")) return true;
    return false;
}

gr_node rose_gr_lark(gr_build *b, const char *text, size_t n)
{
    gr_source e = {.b = b, .s = text, .n = n, .lark = true, .ignore = GR_EMPTY};
    gr_list ignored = {0};
    if (has_ignore(&e)) e.ignore = rose_gr_rule_new(b, "of %ignore");
    for (rose_gr_source_skip(&e); e.at < n; rose_gr_source_skip(&e)) {
        if (gr_at_char(&e, '%'))
            read_directive(&e, &ignored);
        else
            read_definition(&e);
    }
    if (e.ignore != GR_EMPTY)
        rose_gr_rule_define(b, e.ignore,
                            rose_gr_repeat(b, rose_gr_alt(b, ignored.v, ignored.n), 0, GR_INF));
    return GR_SEQ(b, e.ignore, rose_gr_source_start(&e, "start"));
}
