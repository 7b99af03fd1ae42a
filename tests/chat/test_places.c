/* Instructions are never lost: messages of the roles system and developer, wherever they are, reach
 * the prompt once and in their order, as what the template shows there. */
#include "tokenizer/tok_fixture.h"

#include "base/buf.h"
#include "base/json.h"
#include "chat/chat.h"

/* ---- conversations ---- */

/* One message for each letter: S system, D developer, U user, A assistant, C a call, T its result,
 * P two calls with text, F a function, and E a system message without text. Message i says
 * "<letter>i.". */
static rose_json *conversation(const char *roles)
{
    rose_json *list = rose_json_array();
    for (size_t i = 0; roles[i] != '\0'; i++) {
        const char c = roles[i];
        const char *role = c == 'S' || c == 'E' ? "system"
                           : c == 'D'           ? "developer"
                           : c == 'U'           ? "user"
                           : c == 'T'           ? "tool"
                           : c == 'F'           ? "function"
                                                : "assistant";
        char text[32] = "";
        if (c != 'E' && c != 'C') snprintf(text, sizeof text, "%c%zu.", c, i);
        rose_json *m = rose_json_pack("{s:s,s:s}", "role", role, "content", text);
        if (c == 'T') rose_json_set_new(m, "tool_call_id", rose_json_string("call_0123"));
        if (c == 'C')
            rose_json_set_new(m, "tool_calls",
                              rose_json_pack("[{s:s,s:s,s:{s:s,s:s}}]", "id", "call_0123", "type",
                                             "function", "function", "name", "f", "arguments",
                                             "{}"));
        if (c == 'P')
            rose_json_set_new(m, "tool_calls",
                              rose_json_pack("[{s:{s:s,s:s}},{s:{s:s,s:s}}]", "function", "name",
                                             "f", "arguments", "{}", "function", "name", "g",
                                             "arguments", "{}"));
        rose_json_append_new(list, m);
    }
    return list;
}

static rose_status render_list(const rose_chat *chat, rose_json *messages, bool prompt,
                               rose_template_text *text, rose_err *err)
{
    const rose_template_input in = {
        .messages = messages, .add_generation_prompt = prompt, .now_s = 1790000000, .utc = true};
    const rose_status st = rose_chat_render(chat, &in, text, err);
    rose_json_decref(messages);
    return st;
}

static rose_status render(const rose_chat *chat, const char *roles, bool prompt,
                          rose_template_text *text, rose_err *err)
{
    return render_list(chat, conversation(roles), prompt, text, err);
}

static rose_chat *open_template(const char *template)
{
    rose_chat *chat = NULL;
    rose_err err = {""};
    if (rose_chat_derive(&chat, NULL, template, strlen(template), &(rose_template_limits){0},
                         &err) != ROSE_OK)
        fail_msg("%s", err.msg);
    return chat;
}

/* ---- templates of our own ---- */

#define GENERATION "{% if add_generation_prompt %}[assistant]{% endif %}"
static const char echo[] =
    "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}" GENERATION;
/* Qwen 3.5: a system message elsewhere than at the start is an error; so is a conversation without
 * a user */
static const char strict[] =
    "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
    "{{ raise_exception('No user query') }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "{% if m.role in ['system', 'user', 'assistant', 'tool'] %}[{{ m.role }}]{{ m.content }}"
    "{% endif %}{% endfor %}" GENERATION;
/* gpt-oss: the first message may be the system's or the developer's; others are dropped */
static const char harmony[] =
    "{% if messages[0].role in ['system', 'developer'] %}[developer]{{ messages[0].content }}"
    "{% endif %}{% for m in messages %}{% if m.role in ['user', 'assistant'] %}[{{ m.role }}]"
    "{{ m.content }}{% endif %}{% endfor %}" GENERATION;
/* Gemma: no system message, roles alternate */
#define ALTERNATE                                                                                  \
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"                 \
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}[{{ m.role }}]"          \
    "{{ m.content }}{% endfor %}" GENERATION
static const char alternate[] = ALTERNATE;
/* Llama 2: one system message, inside of the first user's turn */
static const char merged[] =
    "{% if messages[0].role == 'system' %}{% set s = messages[0].content + '~' %}"
    "{% set messages = messages[1:] %}{% else %}{% set s = '' %}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}[{{ m.role }}]"
    "{% if loop.first %}{{ s }}{% endif %}{{ m.content }}{% endfor %}" GENERATION;
/* Mistral: calls and their results count for no turn, a user follows no result, the system message
 * is in the last message if that is a user's, and ids have nine letters */
#define ROWS                                                                                       \
    "{% set ns = namespace(i=0) %}{% set s = '' %}{% if messages[0].role == 'system' %}"           \
    "{% set s = messages[0].content %}{% set messages = messages[1:] %}{% endif %}"                \
    "{% for m in messages %}{% if m.role != 'tool' and not m.tool_calls %}"                        \
    "{% if (m.role == 'user') != (ns.i % 2 == 0) %}{{ raise_exception('must alternate') }}"        \
    "{% endif %}{% set ns.i = ns.i + 1 %}{% endif %}"
static const char calls_skipped[] =
    ROWS "{% if loop.last and m.role == 'user' %}{{ s }}{% endif %}"
         "{% set id = m.tool_calls[0].id if m.tool_calls else m.tool_call_id or '123456789' %}"
         "{% if id | length != 9 or '_' in id %}{{ raise_exception('nine letters') }}{% endif %}"
         "[{{ m.role }}]{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments }}{% else %}"
         "{{ m.content }}{% endif %}{% endfor %}";
/* Llama 3.1 */
static const char one_call[] =
    "{% for m in messages %}{% if m.tool_calls and m.tool_calls | length != 1 %}"
    "{{ raise_exception('single tool-calls') }}{% endif %}[{{ m.role }}]{{ m.content }}"
    "{% if m.tool_calls %}({{ m.tool_calls[0].function.name }}){% endif %}{% endfor %}";
/* the same without an empty reply */
static const char no_gap[] =
    ROWS "{% if m.role == 'assistant' and not m.content and not m.tool_calls %}"
         "{{ raise_exception('empty') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}";
/* DeepSeek R1: the last system message, at the start; Mistral: only users are told apart */
static const char last_counts[] =
    "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}"
    "{% set ns.s = m.content %}{% endif %}{% endfor %}{{ ns.s }}{% for m in messages %}"
    "{% if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}" GENERATION;
static const char two_kinds[] =
    "{% for m in messages %}{% if m.role == 'user' %}[user]{{ m.content }}{% else %}[reply]"
    "{{ m.content }}{% endif %}{% endfor %}";
static const char in_parts[] =
    "{% for m in messages %}{% if m.role != 'developer' and (loop.first or m.role != 'system') %}"
    "[{{ m.role }}]{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}";

#define MARK(text) "<system>\n" text "\n</system>"
static const struct {
    const char *template, *roles, *want;
} samples[] = {
    /* shown where they are */
    {echo, "SUAU", "[system]S0.[user]U1.[assistant]A2.[user]U3."},
    {echo, "USAUS", "[user]U0.[system]S1.[assistant]A2.[user]U3.[system]S4."},
    {echo, "SSU", "[system]S0.[system]S1.[user]U2."},
    {echo, "DU", "[system]D0.[user]U1."}, /* copying a role's name is not knowing it */
    {echo, "UDAEU", "[user]U0.[system]D1.[assistant]A2.[system][user]U4."},
    {echo, "FU", "[function]F0.[user]U1."},
    {last_counts, "SU", "S0.[user]U1."},
    {harmony, "DU", "[developer]D0.[user]U1."},
    {two_kinds, "SU", "[reply]S0.[user]U1."},
    /* several at the start are one */
    {strict, "SSU", "[system]S0.\n\nS1.[user]U2."},
    {strict, "SDSU", "[system]S0.\n\nD1.\n\nS2.[user]U3."},
    {strict, "DEU", "[system]D0.[user]U2."},
    {harmony, "SDU", "[developer]S0.\n\nD1.[user]U2."},
    {merged, "SDUA", "[user]S0.\n\nD1.~U2.[assistant]A3."},
    {in_parts, "SDU", "[system]S0.\n\nD1.[user]U2."},
    {last_counts, "SSU", "S0.\n\nS1.[user]U2."},
    /* a marked user message at their place */
    {strict, "SUSAU", "[system]S0.[user]U1.[user]" MARK("S2.") "[assistant]A3.[user]U4."},
    {strict, "UD", "[user]U0.[user]" MARK("D1.")},
    {strict, "UCTS", "[user]U0.[assistant][tool]T2.[user]" MARK("S3.")},
    {strict, "UEAU", "[user]U0.[assistant]A2.[user]U3."},
    {harmony, "SUDAU", "[developer]S0.[user]U1.[user]" MARK("D2.") "[assistant]A3.[user]U4."},
    {last_counts, "SUS", "S0.[user]U1.[user]" MARK("S2.")},
    {two_kinds, "USAU", "[user]U0.[user]" MARK("S1.") "[reply]A2.[user]U3."},
    {in_parts, "USAU", "[user]U0.[user]" MARK("S1.") "[assistant]A2.[user]U3."},
    /* within the turn of a neighbour */
    {alternate, "SU", "[user]" MARK("S0.") "\n\nU1."},
    {alternate, "SDU", "[user]" MARK("S0.") "\n\n" MARK("D1.") "\n\nU2."},
    {alternate, "USAU", "[user]U0.\n\n" MARK("S1.") "[assistant]A2.[user]U3."},
    {alternate, "USSDAU",
     "[user]U0.\n\n" MARK("S1.") "\n\n" MARK("S2.") "\n\n" MARK("D3.") "[assistant]A4.[user]U5."},
    {alternate, "UASU", "[user]U0.[assistant]A1.[user]" MARK("S2.") "\n\nU3."},
    {alternate, "UAS", "[user]U0.[assistant]A1.[user]" MARK("S2.")},
    {alternate, "USAUS", "[user]U0.\n\n" MARK("S1.") "[assistant]A2.[user]U3.\n\n" MARK("S4.")},
    {alternate, "USUA", "[user]U0.\n\n" MARK("S1.") "\n\nU2.[assistant]A3."},
    {merged, "SUSA", "[user]S0.~U1.\n\n" MARK("S2.") "[assistant]A3."},
    {merged, "UASU", "[user]U0.[assistant]A1.[user]" MARK("S2.") "\n\nU3."},
    /* turns that the template refuses */
    {alternate, "UUAAU", "[user]U0.\n\nU1.[assistant]A2.\n\nA3.[user]U4."},
    {echo, "UUAAU", "[user]U0.[user]U1.[assistant]A2.[assistant]A3.[user]U4."},
    {calls_skipped, "SU", "S0.[user]U1."},
    {calls_skipped, "SUCT", "[user]" MARK("S0.") "\n\nU1.[assistant]{}[tool]T3."},
    {calls_skipped, "UCTU", "[user]U0.[assistant]{}[tool]T2.[assistant][user]U3."},
    {calls_skipped, "UCTSU",
     "[user]U0.[assistant]{}[tool]T2.\n\n" MARK("S3.") "[assistant][user]U4."},
    {calls_skipped, "UCTUUCTTAU",
     "[user]U0.[assistant]{}[tool]T2.[assistant][user]U3.\n\nU4.[assistant]{}[tool]T6.[tool]T7."
     "[assistant]A8.[user]U9."},
    {calls_skipped, "UACTU", "[user]U0.[assistant]A1.[assistant]{}[tool]T3.[user]U4."},
    {one_call, "UPTTA", "[user]U0.[assistant]P1.(f)[assistant](g)[tool]T2.[tool]T3.[assistant]A4."},
    {no_gap, "UCTU", "[user]U0.[assistant][tool]T2.\n\nU3."},
    {strict, "UCTU", "[user]U0.[assistant][tool]T2.[user]U3."},
    /* nothing but instructions */
    {strict, "S", "[user]" MARK("S0.")},
    {alternate, "SS", "[user]" MARK("S0.") "\n\n" MARK("S1.")},
};

static void instructions_keep_their_place(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        rose_template_text text;
        rose_err err = {""};
        rose_chat *chat = open_template(samples[i].template);
        if (render(chat, samples[i].roles, false, &text, &err) != ROSE_OK)
            fail_msg("sample %zu, %s: %s", i, samples[i].roles, err.msg);
        if (strcmp(text.bytes, samples[i].want) != 0)
            fail_msg("sample %zu, %s: %s, not %s", i, samples[i].roles, text.bytes,
                     samples[i].want);
        rose_template_text_free(&text);
        rose_chat_close(chat);
    }
}

/* ---- every template, every conversation ---- */

/* The text of each message stands in the prompt once, and all of them in their order. Mistral's
 * template has the system message at the start in the last turn of the user. */
static void expect_in_order(const char *name, const char *roles, const char *text)
{
    const char *from = text;
    const bool late = strcmp(name, "mistral") == 0;
    for (size_t i = 0; roles[i] != '\0'; i++) {
        char says[32];
        if (roles[i] == 'C') continue;
        snprintf(says, sizeof says, "%c%zu.", roles[i], i);
        const bool moves = late && i < strcspn(roles, "U");
        const char *at = strstr(moves ? text : from, says);
        if (moves && at != NULL && strstr(at + 1, says) == NULL) continue;
        if (at == NULL || strstr(text, says) != at)
            fail_msg("%s, %s: message %zu is not there once and in order: %s", name, roles, i,
                     text);
        from = at + strlen(says);
    }
}

static void check_all(const char *name, const char *template)
{
    static const char *const all[] = {"SU",     "DU",     "SSU",   "SDU",   "DSU",  "DDU",
                                      "UDAU",   "UADU",   "USAU",  "UASU",  "US",   "UD",
                                      "SUSAU",  "SUDAU",  "SUAUS", "SUAUD", "SUAS", "SUASU",
                                      "SUSASU", "SDUDAU", "SUSSU", "UAUSAU"};
    rose_chat *chat = open_template(template);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        for (int prompt = 0; prompt < 2; prompt++) {
            rose_template_text text;
            rose_err err = {""};
            if (render(chat, all[i], prompt != 0, &text, &err) != ROSE_OK)
                fail_msg("%s, %s: %s", name, all[i], err.msg);
            expect_in_order(name, all[i], text.bytes);
            rose_template_text_free(&text);
        }
    }
    rose_chat_close(chat);
}

static void read_file(rose_buf *b, const char *path)
{
    char piece[4096];
    size_t n;
    FILE *f = fopen(path, "rb");
    if (f == NULL) fail_msg("%s is missing", path);
    while ((n = fread(piece, 1, sizeof piece, f)) > 0)
        assert_int_equal(rose_buf_add(b, piece, n), ROSE_OK);
    fclose(f);
    assert_non_null(rose_buf_str(b));
}

static void every_template_shows_them(void **state)
{
    static const char *const files[] = {"chatml", "gemma",   "llama3",  "mistral",
                                        "phi3",   "smollm2", "smollm3", "thinking"};
    static const char *const ours[] = {echo,   strict,      harmony,   alternate,
                                       merged, last_counts, two_kinds, in_parts};
    (void)state;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        check_all(ours[i], ours[i]);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[512];
        static const char tokens[] = "{% set bos_token = '<s>' %}{% set eos_token = '</s>' %}";
        rose_buf b = {0};
        assert_int_equal(rose_buf_add(&b, tokens, sizeof tokens - 1), ROSE_OK);
        snprintf(path, sizeof path, "%s/tests/template/data/%s.jinja", repo_root(), files[i]);
        read_file(&b, path);
        check_all(files[i], b.data);
        rose_buf_free(&b);
    }
}

/* The prompt of a conversation begins with the prompt of its beginning, so the prefix cache has
 * it: what becomes of a message does not depend on the messages after it. */
static void the_head_stays(void **state)
{
    static const char *const ours[] = {echo, strict, harmony, alternate, merged, two_kinds};
    (void)state;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) {
        rose_chat *chat = open_template(ours[i]);
        char roles[] = "SUSAUDASUSA";
        rose_template_text whole, part;
        rose_err err = {""};
        assert_int_equal(render(chat, roles, false, &whole, &err), ROSE_OK);
        for (size_t n = strlen(roles) - 1; n >= 2; n--) {
            /* a message that ends the conversation after a reply may still move into the next turn
             */
            const bool open = roles[n - 1] == 'S' && roles[n - 2] == 'A';
            roles[n] = '\0';
            assert_int_equal(render(chat, roles, false, &part, &err), ROSE_OK);
            if (!open && strncmp(whole.bytes, part.bytes, part.len) != 0)
                fail_msg("%s: %s does not begin with %s", roles, whole.bytes, part.bytes);
            rose_template_text_free(&part);
        }
        rose_template_text_free(&whole);
        rose_chat_close(chat);
    }
}

/* ---- what is checked when a request is rendered ---- */

static rose_json *message(const char *role, rose_json *content)
{
    return rose_json_pack("{s:s,s:o}", "role", role, "content", content);
}

static void expect_shown(const char *template, rose_json *messages, const char *want)
{
    rose_template_text text;
    rose_err err = {""};
    rose_chat *chat = open_template(template);
    if (render_list(chat, messages, false, &text, &err) != ROSE_OK) fail_msg("%s", err.msg);
    assert_string_equal(text.bytes, want);
    rose_template_text_free(&text);
    rose_chat_close(chat);
}

static void expect_lost(const char *template, const char *roles, const char *says)
{
    rose_template_text text;
    rose_err err = {""};
    rose_chat *chat = open_template(template);
    assert_int_equal(render(chat, roles, false, &text, &err), ROSE_E_INVAL);
    if (strstr(err.msg, says) == NULL) fail_msg("'%s' says nothing of '%s'", err.msg, says);
    assert_null(text.bytes);
    rose_chat_close(chat);
}

/* A template may change the text of a message, which is then not lost. */
static void changed_texts_are_not_lost(void **state)
{
    static const char changes[] =
        "{% for m in messages %}[{{ m.role }}]{{ m.content | replace('a', "
        "'4') }}{% endfor %}";
    static const char first_part[] =
        "{% for m in messages %}{% if m.role == 'system' %}{% if m.content is string %}"
        "{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}{% else %}[{{ m.role }}]"
        "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}"
        "{% endfor %}{% endif %}{% endif %}{% endfor %}";
    (void)state;
    expect_shown(changes,
                 rose_json_pack("[o,o]", message("system", rose_json_string("banana")),
                                message("user", rose_json_string("x"))),
                 "[system]b4n4n4[user]x");
    expect_shown(echo,
                 rose_json_pack("[o,o]", message("system", rose_json_string(" \n")),
                                message("user", rose_json_string("x"))),
                 "[system][user]x");
    /* Gemma 3 takes parts of a user, and of a system message only the first */
    expect_shown(
        first_part,
        rose_json_pack("[o,o]",
                       message("system", rose_json_pack("[{s:s,s:s},{s:s,s:s}]", "type", "text",
                                                        "text", "a", "type", "text", "text", "b")),
                       message("user", rose_json_pack("[{s:s,s:s},{s:s,s:s}]", "type", "text",
                                                      "text", "c", "type", "text", "text", "d"))),
        "a\nb[user]cd");
    /* parts, which the template gets as one text */
    expect_shown(
        strict,
        rose_json_pack("[o,o]", message("user", rose_json_string("x")),
                       message("system", rose_json_pack("[{s:s,s:s},{s:s,s:s}]", "type", "text",
                                                        "text", "a", "type", "text", "text", "b"))),
        "[user]x[user]" MARK("a\nb"));
}

static void what_vanishes_is_refused(void **state)
{
    /* Tools change the template's mind, which no probe has seen. */
    static const char moody[] =
        "{% for m in messages %}{% if m.role != 'system' or messages | length < 6 %}"
        "[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}";
    static const char first_only[] =
        "{% if messages[0].role == 'system' %}[system]{{ messages[0].content }}{% endif %}"
        "{% for m in messages %}{% if m.role == 'assistant' or m.role == 'user' and "
        "(messages | length < 6 or '<system>' not in m.content) %}[{{ m.role }}]{{ m.content }}"
        "{% endif %}{% endfor %}";
    static const char unmarked[] =
        "{% for m in messages %}{% if messages | length < 6 or m.role != 'system' and '<system>' "
        "not in m.content %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}";
    rose_template_text text;
    rose_err err = {""};
    (void)state;
    expect_lost(strict, "UFA", "messages[1]");
    expect_lost(strict, "UFA", "'function'");
    expect_lost(strict, "FUA", "messages[0]");
    expect_shown(moody, conversation("SUAUAU"),
                 "[user]" MARK("S0.") "[user]U1.[assistant]A2.[user]U3.[assistant]A4.[user]U5.");
    expect_lost(unmarked, "SUAUAU", "messages[0]");
    /* the first system message takes what is not shown at its place */
    rose_chat *chat = open_template(first_only);
    assert_int_equal(render(chat, "SUAUASU", false, &text, &err), ROSE_OK);
    assert_string_equal(
        text.bytes, "[system]S0.\n\nS5.[user]U1.[assistant]A2.[user]U3.[assistant]A4.[user]U6.");
    rose_template_text_free(&text);
    rose_chat_close(chat);
}

/* A render that ends at its limit of steps says so, and is not replaced by one with the
 * instructions at the start, which this template renders at once, or refuses at once. */
static void a_limit_is_no_reason_to_move(void **state)
{
    static const char slow[] =
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if messages[-1].content == 'slow' and messages[0].role == 'user' %}"
        "{% for i in range(90000) %}{{ '' if i == 0 }}{% endfor %}{% endif %}";
    static const char refuses[] = "{% if messages[-1].content == 'slow' and messages[0].role == "
                                  "'system' %}{{ raise_exception('x') }}{% endif %}";
    (void)state;
    for (int i = 0; i < 2; i++) {
        char template[512];
        uint64_t used = 0;
        rose_template_text text;
        rose_err err = {""};
        snprintf(template, sizeof template, "%s%s", slow, i > 0 ? refuses : "");
        rose_chat *chat = open_template(template);
        rose_json *messages = rose_json_pack("[o,o,o]", message("user", rose_json_string("x")),
                                             message("system", rose_json_string("y")),
                                             message("user", rose_json_string("slow")));
        const rose_template_input in = {.messages = messages,
                                        .limits = {.steps = 10000, .used = &used}};
        assert_int_equal(rose_chat_render(chat, &in, &text, &err), ROSE_E_INVAL);
        assert_true(used > 10000);
        assert_null(text.bytes);
        rose_json_decref(messages);
        rose_chat_close(chat);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(instructions_keep_their_place),
        cmocka_unit_test(every_template_shows_them),
        cmocka_unit_test(the_head_stays),
        cmocka_unit_test(changed_texts_are_not_lost),
        cmocka_unit_test(what_vanishes_is_refused),
        cmocka_unit_test(a_limit_is_no_reason_to_move),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
