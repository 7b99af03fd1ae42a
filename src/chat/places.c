/* chat/places.c - where a template shows instructions, and what becomes of those that it would not
 * show.
 *
 * Instructions are messages of the roles system and developer. Many templates show a system message
 * only as the first message. They drop it elsewhere, or raise an exception, and few know the role
 * developer. So each template is tried when it is opened: short conversations, whose contents are
 * needles, are rendered, and a role is shown at a place if all needles are there in their order.
 *
 * A message that the template does not show becomes a user message at its place, in a mark:
 * <system>, the text, </system>. The text before it stays the same, and so does the prefix cache.
 * Where the template takes no second message of a user in a row, the neighbour takes the text up:
 * the user or the tool before it, else the user after it. This file decides nothing by the messages
 * that follow, except for that neighbour: a message must not change when the conversation grows.
 *
 * Agents send turns that some templates refuse: two messages of one role in a row, or a user right
 * after the result of a tool. Where a probe fails, the former become one message, and the latter
 * gets an empty reply before it, or else joins the result. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat/chat_internal.h"

#define NEEDLE "ROSE-NEEDLE-"

/* Most steps of a probe: ten times what the templates of 52 released models needed. */
enum { PROBE_STEPS = 100000 };

/* ---- probes ---- */

typedef struct probe {
    const rose_template *t;
    const rose_json *tokens, *tools;
    rose_chat_forms forms;
    const rose_template_limits *limits;
    rose_status st; /* once it is no OK, nothing more is rendered */
} probe;

static const char *role_name(char c)
{
    switch (c) {
    case 'S':
        return "system";
    case 'D':
        return "developer";
    case 'A':
    case 'C': /* a call of a tool */
    case 'P': /* two calls */
    case 'N': /* an empty reply */
        return "assistant";
    case 'T':
        return "tool";
    case 'X':
        return "developes"; /* a role that no template knows, as long as developer */
    default:
        return "user";
    }
}

static bool has_needle(char c)
{
    return c != 'C' && c != 'P' && c != 'N';
}

static size_t n_needles(const char *roles)
{
    size_t n = 0;
    for (; *roles != '\0'; roles++)
        n += has_needle(*roles);
    return n;
}

/* The message of letter c; its content is needle n. NULL: no memory. */
static rose_json *make_message(const probe *p, char c, size_t n)
{
    char needle[48] = "";
    if (has_needle(c)) snprintf(needle, sizeof needle, NEEDLE "%zu;", n);
    rose_json *content = p->forms.wrap
                             ? rose_json_pack("[{s:s,s:s}]", "type", "text", "text", needle)
                             : rose_json_string(needle);
    if (c == 'T')
        return rose_json_pack("{s:s,s:o,s:s}", "role", "tool", "content", content, "tool_call_id",
                              "abcdefghi");
    if (c != 'C' && c != 'P')
        return rose_json_pack("{s:s,s:o}", "role", role_name(c), "content", content);
    rose_json *arguments = p->forms.only_text ? rose_json_string("{}") : rose_json_object();
    rose_json *call = rose_json_pack("{s:s,s:s,s:{s:s,s:o}}", "id", "abcdefghi", "type", "function",
                                     "function", "name", "f", "arguments", arguments);
    rose_json *calls = c == 'P' ? rose_json_pack("[O,o]", call, call) : rose_json_pack("[o]", call);
    return rose_json_pack("{s:s,s:o,s:o}", "role", role_name(c), "content", content, "tool_calls",
                          calls);
}

/* One message for each letter of `roles`, with needles from 0 on. NULL: no memory. */
static rose_json *make_messages(const probe *p, const char *roles)
{
    rose_json *list = rose_json_array();
    size_t n = 0;
    for (; list != NULL && *roles != '\0'; roles++) {
        if (rose_json_append_new(list, make_message(p, *roles, n)) != 0) {
            rose_json_decref(list);
            return NULL;
        }
        n += has_needle(*roles);
    }
    return list;
}

/* A trial with a smaller limit, because there are dozens of probes. Beyond it a template of a
 * request counts as slow, and a model's own as one that fails. */
static rose_status trial(probe *p, rose_template_text *text, const rose_template_input *in)
{
    const uint64_t most = p->limits->steps;
    rose_template_limits own = *p->limits;
    uint64_t used = 0;
    own.steps = most > 0 ? most / 16 + 1 : PROBE_STEPS;
    own.used = &used;
    const rose_status st = rose_chat_trial(text, p->t, in, &own);
    if (st != ROSE_E_INVAL || most == 0) return st == ROSE_E_INVAL ? ROSE_OK : st;
    if (p->limits->used != NULL) *p->limits->used = most + 1;
    return st;
}

/* Renders the messages, which it takes; text->bytes is NULL where the template fails on them. */
static void render_list(probe *p, rose_template_text *text, rose_json *messages, bool prompt)
{
    *text = (rose_template_text){0};
    const rose_template_input in = {.messages = messages,
                                    .tools = p->tools,
                                    .tokens = p->tokens,
                                    .add_generation_prompt = prompt};
    if (messages == NULL) p->st = ROSE_E_NOMEM;
    if (p->st == ROSE_OK) p->st = trial(p, text, &in);
    rose_json_decref(messages);
}

static void render(probe *p, rose_template_text *text, const char *roles, bool prompt)
{
    render_list(p, text, make_messages(p, roles), prompt);
}

/* Whether the text has needles 0 .. n-1, each once and in this order. */
static bool in_order(const char *text, size_t n)
{
    size_t seen = 0;
    for (; text != NULL && (text = strstr(text, NEEDLE)) != NULL; seen++) {
        text += sizeof NEEDLE - 1;
        if (seen == n || strtoul(text, NULL, 10) != seen) return false;
    }
    return seen == n;
}

/* Whether the template shows the whole conversation. */
static bool shows(probe *p, const char *roles)
{
    rose_template_text text;
    render(p, &text, roles, false);
    const bool ok = in_order(text.bytes, n_needles(roles));
    rose_template_text_free(&text);
    return ok;
}

/* Whether the template does not fail on the conversation. */
static bool takes(probe *p, const char *roles)
{
    rose_template_text text;
    render(p, &text, roles, false);
    const bool ok = text.bytes != NULL;
    rose_template_text_free(&text);
    return ok;
}

/* Whether the conversation and the one with another role for message `at` give the same text. */
static bool same(probe *p, const char *roles, size_t at, char other)
{
    rose_template_text a, b;
    char changed[16];
    snprintf(changed, sizeof changed, "%s", roles);
    changed[at] = other;
    render(p, &a, roles, false);
    render(p, &b, changed, false);
    if (other == 'X' && b.bytes != NULL) { /* apart from the name of the role */
        for (char *s = b.bytes; (s = strcasestr(s, "developes")) != NULL; s++)
            s[8]--; /* s to r, in either case */
    }
    const bool equal = a.bytes != NULL && b.bytes != NULL && strcmp(a.bytes, b.bytes) == 0;
    rose_template_text_free(&a);
    rose_template_text_free(&b);
    return equal;
}

/* Whether the template shows message `at`, and not only because it copies the name of any role into
 * the text: such a template does not know the developer. */
static bool shows_role(probe *p, const char *roles, size_t at)
{
    return shows(p, roles) && (roles[at] != 'D' || !same(p, roles, at, 'X'));
}

/* Whether it shows instructions in the middle, and not as a turn of another role. */
static bool shows_inside(probe *p, const char *roles, size_t at)
{
    return shows_role(p, roles, at) && !same(p, roles, at, 'A') && !same(p, roles, at, 'U');
}

/* Whether a conversation that ends with this message still gets its generation prompt: the bytes
 * that add_generation_prompt adds to one that ends with a user. */
static bool prompts_after(probe *p, const char *roles)
{
    rose_template_text without, with, text;
    render(p, &without, "U", false);
    render(p, &with, "U", true);
    render(p, &text, roles, true);
    bool ok = in_order(text.bytes, strlen(roles));
    if (ok && without.bytes != NULL && with.bytes != NULL && with.len >= without.len &&
        memcmp(with.bytes, without.bytes, without.len) == 0) {
        const size_t n = with.len - without.len;
        ok = text.len >= n && memcmp(text.bytes + text.len - n, with.bytes + without.len, n) == 0;
    }
    rose_template_text_free(&without);
    rose_template_text_free(&with);
    rose_template_text_free(&text);
    return ok;
}

/* Whether the template shows a message of this role after the first turn, wherever it is. */
static bool shows_later(probe *p, char role, bool system_first)
{
    static const char *const shapes[] = {"U?AU", "UA?U", "SU?AU"};
    char roles[16];
    for (size_t i = 0; i < (system_first ? 3 : 2); i++) {
        snprintf(roles, sizeof roles, "%s", shapes[i]);
        char *at = strchr(roles, '?');
        *at = role;
        /* Two turns of a user in a row are a question of the whole conversation alone. */
        if (role == 'U' ? !shows(p, roles) : !shows_inside(p, roles, (size_t)(at - roles)))
            return false;
    }
    snprintf(roles, sizeof roles, "U%c", role);
    return prompts_after(p, roles);
}

/* Whether the template shows both parts of a system message. */
static bool shows_parts(probe *p)
{
    rose_template_text text;
    rose_json *messages =
        rose_json_pack("[{s:s,s:[{s:s,s:s},{s:s,s:s}]},{s:s,s:s}]", "role", "system", "content",
                       "type", "text", "text", NEEDLE "0;", "type", "text", "text", NEEDLE "1;",
                       "role", "user", "content", NEEDLE "2;");
    render_list(p, &text, messages, false);
    const bool ok = in_order(text.bytes, 3);
    rose_template_text_free(&text);
    return ok;
}

rose_status rose_chat_places_find(rose_chat_places *out, const rose_template *t,
                                  rose_chat_forms forms, const rose_json *tokens,
                                  const rose_json *tools, const rose_template_limits *limits)
{
    probe p = {.t = t, .tokens = tokens, .forms = forms, .limits = limits};
    if (!shows(&p, "U")) p.tools = tools; /* there are templates for requests with tools alone */
    /* A template that does not even show a user is for something else: it gets what comes. */
    *out = (rose_chat_places){true,        true, true, true, true, true,
                              forms.parts, true, true, true, true, true};
    if (shows(&p, "U")) {
        out->system_first = shows_role(&p, "SU", 0);
        out->developer_first = shows_role(&p, "DU", 0);
        out->leads =
            shows(&p, "SSU") &&
            (!out->developer_first || (shows(&p, "SDU") && shows(&p, "DSU") && shows(&p, "DDU")));
        out->system_later = shows_later(&p, 'S', out->system_first);
        out->developer_later = shows_later(&p, 'D', out->system_first);
        out->users = shows_later(&p, 'U', out->system_first);
        out->parts = forms.wrap || (forms.parts && shows_parts(&p));
        out->user_rows = takes(&p, "UUAU");
        out->reply_rows = takes(&p, "UAAU");
        out->user_after_tool = !takes(&p, "UCT") || takes(&p, "UCTU");
        out->several_calls = takes(&p, "UPTT") || !takes(&p, "UCCTT");
        out->gap = !out->user_after_tool && shows(&p, "UCTNU");
    }
    return p.st;
}

/* ---- texts ---- */

static bool is_instruction(const rose_json *m)
{
    return rose_chat_has_role(m, "system") || rose_chat_has_role(m, "developer");
}

/* The number of texts of a content, and each of them. */
static size_t n_texts(const rose_json *content)
{
    return rose_json_is_array(content) ? rose_json_count(content) : rose_json_is_string(content);
}

static const rose_json *text_at(const rose_json *content, size_t k)
{
    return rose_json_is_array(content) ? rose_json_get(rose_json_at(content, k), "text") : content;
}

rose_status rose_chat_add_texts(rose_buf *out, const rose_json *content)
{
    rose_status st = ROSE_OK;
    for (size_t k = 0; k < n_texts(content) && st == ROSE_OK; k++) {
        const rose_json *text = text_at(content, k);
        if (k > 0) st = rose_buf_add(out, "\n", 1);
        if (st == ROSE_OK) st = rose_buf_add(out, rose_json_text(text), rose_json_text_len(text));
    }
    return st;
}

static bool is_empty(const rose_json *content)
{
    for (size_t k = 0; k < n_texts(content); k++) {
        if (rose_json_text_len(text_at(content, k)) > 0) return false;
    }
    return true;
}

/* ---- placing ---- */

typedef struct placing {
    const rose_chat_places *places;
    bool wrap; /* a content is a list of parts */
    bool oom;
    bool replied; /* a reply without calls has followed the last message of a user */
    rose_json *out;
    rose_buf after;  /* text for the end of the last message of `out` */
    rose_buf before; /* marked texts for the front of the next message of a user */
} placing;

static void add(placing *p, rose_buf *b, const char *bytes, size_t n)
{
    if (rose_buf_add(b, bytes, n) != ROSE_OK) p->oom = true;
}

static void add_content(placing *p, rose_buf *b, const rose_json *content)
{
    if (rose_chat_add_texts(b, content) != ROSE_OK) p->oom = true;
}

/* Appends a content, in the mark if asked, after an empty line if something is there already. */
static void add_block(placing *p, rose_buf *b, const rose_json *content, bool marked)
{
    if (b->len > 0) add(p, b, "\n\n", 2);
    if (marked) add(p, b, "<system>\n", 9);
    add_content(p, b, content);
    if (marked) add(p, b, "\n</system>", 10);
}

static rose_json *last_of(const placing *p)
{
    const size_t n = rose_json_count(p->out);
    return n == 0 ? NULL : rose_json_at(p->out, n - 1);
}

/* A content of this text; b becomes empty. */
static rose_json *take_content(const placing *p, rose_buf *b)
{
    rose_json *text = rose_json_stringn(b->len > 0 ? b->data : "", b->len);
    b->len = 0;
    return p->wrap ? rose_json_pack("[{s:s,s:o}]", "type", "text", "text", text) : text;
}

/* A copy of a message with another value of a member; takes v. NULL: no memory. */
static rose_json *copy_with(const rose_json *m, const char *key, rose_json *v)
{
    rose_json *copy = rose_json_copy(m);
    if (rose_json_set_new(copy, key, v) == 0) return copy;
    rose_json_decref(copy);
    return NULL;
}

/* Adds `after` to the last message. It gathers first, because a long list of instructions would
 * otherwise be copied once for each of them. */
static void flush_after(placing *p)
{
    rose_buf b = {0};
    rose_json *last = last_of(p);
    if (p->after.len == 0) return;
    add_content(p, &b, rose_json_get(last, "content"));
    if (b.len > 0) add(p, &b, "\n\n", 2);
    add(p, &b, p->after.data, p->after.len);
    p->after.len = 0;
    rose_json *m = copy_with(last, "content", take_content(p, &b));
    if (rose_json_replace_new(p->out, rose_json_count(p->out) - 1, m) != 0) p->oom = true;
    rose_buf_free(&b);
}

static bool is_reply(const rose_json *m)
{
    return rose_chat_has_role(m, "assistant") &&
           rose_json_count(rose_json_get(m, "tool_calls")) == 0;
}

/* Whether it is a user's message that the template refuses right after the last one, a result.
 * After a reply before the calls it takes it: that reply has ended the user's turn. */
static bool follows_tool(const placing *p, const rose_json *m)
{
    return !p->places->user_after_tool && !p->replied && rose_chat_has_role(m, "user") &&
           rose_chat_has_role(last_of(p), "tool");
}

/* Whether the template refuses the message right after the last one, so that both become one. */
static bool joins_last(const placing *p, const rose_json *m)
{
    const rose_json *last = last_of(p);
    const rose_chat_places *x = p->places;
    if (follows_tool(p, m)) return !x->gap;
    if (rose_chat_has_role(m, "user") && rose_chat_has_role(last, "user")) return !x->user_rows;
    return is_reply(m) && is_reply(last) && !x->reply_rows;
}

/* Adds a message, which it takes. */
static void append(placing *p, rose_json *m)
{
    if (joins_last(p, m)) {
        add_block(p, &p->after, rose_json_get(m, "content"), false);
        rose_json_decref(m);
        return;
    }
    flush_after(p);
    if (follows_tool(p, m)) {
        rose_json *reply = rose_json_pack("{s:s,s:o}", "role", "assistant", "content",
                                          take_content(p, &(rose_buf){0}));
        if (rose_json_append_new(p->out, reply) != 0) p->oom = true;
    }
    p->replied = is_reply(m) || (p->replied && !rose_chat_has_role(m, "user"));
    if (rose_json_append_new(p->out, m) != 0) p->oom = true;
}

static void append_text(placing *p, const char *role, rose_buf *b)
{
    append(p, rose_json_pack("{s:s,s:o}", "role", role, "content", take_content(p, b)));
}

/* Instructions that the template does not show where they are. */
static void place_marked(placing *p, const rose_json *content)
{
    rose_buf b = {0};
    if (p->places->users) {
        add_block(p, &b, content, true);
        append_text(p, "user", &b);
        rose_buf_free(&b);
    } else {
        const bool joins = p->before.len == 0 && (rose_chat_has_role(last_of(p), "user") ||
                                                  rose_chat_has_role(last_of(p), "tool"));
        add_block(p, joins ? &p->after : &p->before, content, true);
    }
}

/* A message that stays, in this role. */
static void place_here(placing *p, const rose_json *m, const char *role)
{
    rose_json *copy = copy_with(m, "role", rose_json_string(role));
    rose_buf b = {0};
    if (rose_json_is_array(rose_json_get(m, "content")) && !p->places->parts) {
        add_content(p, &b, rose_json_get(m, "content"));
        if (rose_json_set_new(copy, "content", take_content(p, &b)) != 0) p->oom = true;
        rose_buf_free(&b);
    }
    append(p, copy);
}

/* lead: only instructions stand before the message. */
static void place_instruction(placing *p, const rose_json *m, bool lead)
{
    const rose_chat_places *x = p->places;
    const rose_json *content = rose_json_get(m, "content");
    const bool joins = lead && is_instruction(last_of(p)) && !x->leads;
    if (!joins && rose_chat_has_role(m, "developer") &&
        (lead ? x->developer_first : x->developer_later))
        place_here(p, m, "developer");
    else if (!joins && (lead ? x->system_first : x->system_later))
        place_here(p, m, "system");
    else if (is_empty(content))
        return; /* nothing is lost */
    else if (joins)
        add_block(p, &p->after, content, false);
    else
        place_marked(p, content);
}

/* A message for each call; the first has the rest of the message. */
static void append_calls(placing *p, const rose_json *m)
{
    const rose_json *calls = rose_json_get(m, "tool_calls");
    for (size_t k = 0; k < rose_json_count(calls); k++) {
        rose_json *list = rose_json_pack("[O]", rose_json_at(calls, k));
        if (k == 0)
            append(p, copy_with(m, "tool_calls", list));
        else
            append(p, rose_json_pack("{s:s,s:o,s:o}", "role", "assistant", "content",
                                     take_content(p, &(rose_buf){0}), "tool_calls", list));
    }
}

static void place_other(placing *p, const rose_json *m)
{
    if (p->after.len > 0 && rose_chat_has_role(m, "user") &&
        rose_chat_has_role(last_of(p), "user")) {
        /* Instructions stand between two messages of a user: all three are one turn. */
        add_block(p, &p->after, rose_json_get(m, "content"), false);
        return;
    }
    if (p->before.len > 0 && rose_chat_has_role(m, "user")) {
        add_block(p, &p->before, rose_json_get(m, "content"), false);
        append(p, copy_with(m, "content", take_content(p, &p->before)));
        return;
    }
    if (p->before.len > 0) append_text(p, "user", &p->before);
    if (p->places->several_calls || rose_json_count(rose_json_get(m, "tool_calls")) < 2)
        append(p, rose_json_incref(m));
    else
        append_calls(p, m);
}

static void place_all(placing *p, const rose_json *messages)
{
    bool lead = true;
    for (size_t i = 0; i < rose_json_count(messages); i++) {
        const rose_json *m = rose_json_at(messages, i);
        if (is_instruction(m)) {
            place_instruction(p, m, lead);
        } else {
            place_other(p, m);
            lead = false;
        }
    }
}

/* Gathers the texts of all instructions in the first system message. Where the template shows none,
 * or no other message follows, they stand at the front of the first message of a user. */
static void place_head(placing *p, const rose_json *messages)
{
    bool system = false;
    for (size_t i = 0; i < rose_json_count(messages) && p->places->system_first; i++)
        system = system || !is_instruction(rose_json_at(messages, i));
    for (size_t i = 0; i < rose_json_count(messages); i++) {
        const rose_json *m = rose_json_at(messages, i), *content = rose_json_get(m, "content");
        if (is_instruction(m) && !is_empty(content)) add_block(p, &p->before, content, !system);
    }
    if (system && p->before.len > 0) append_text(p, "system", &p->before);
    for (size_t i = 0; i < rose_json_count(messages); i++) {
        const rose_json *m = rose_json_at(messages, i);
        if (!is_instruction(m)) place_other(p, m);
    }
}

rose_status rose_chat_places_apply(rose_json **out, const rose_json *messages,
                                   const rose_chat_places *places, rose_chat_forms forms, bool head)
{
    placing p = {.places = places, .wrap = forms.wrap, .out = rose_json_array()};
    *out = NULL;
    if (p.out == NULL) return ROSE_E_NOMEM;
    if (head)
        place_head(&p, messages);
    else
        place_all(&p, messages);
    if (p.before.len > 0) append_text(&p, "user", &p.before);
    flush_after(&p);
    if (rose_json_count(p.out) == 0) /* only empty instructions */
        append(&p, rose_json_incref(rose_json_at(messages, 0)));
    rose_buf_free(&p.before);
    rose_buf_free(&p.after);
    if (!p.oom) {
        *out = p.out;
        return ROSE_OK;
    }
    rose_json_decref(p.out);
    return ROSE_E_NOMEM;
}

/* ---- what a rendered text shows ---- */

/* Roles whose messages the template may leave out for reasons of its own: old reasoning, a
 * conversation whose last turn counts alone, results of tools. */
static bool may_vanish(const rose_json *m)
{
    return rose_chat_has_role(m, "user") || rose_chat_has_role(m, "assistant") ||
           rose_chat_has_role(m, "tool");
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Finds the texts of a content in the text from *at on, without the white space round them, which
 * templates trim; *at becomes the end of the last. */
static bool find_content(const rose_json *content, const rose_template_text *text, size_t *at)
{
    for (size_t k = 0; k < n_texts(content); k++) {
        const char *s = rose_json_text(text_at(content, k));
        size_t n = rose_json_text_len(text_at(content, k));
        for (; n > 0 && is_space(*s); n--)
            s++;
        while (n > 0 && is_space(s[n - 1]))
            n--;
        if (n == 0) continue;
        const char *found = memmem(text->bytes + *at, text->len - *at, s, n);
        if (found == NULL) return false;
        *at = (size_t)(found - text->bytes) + n;
    }
    return true;
}

size_t rose_chat_places_unseen(const rose_json *messages, const rose_template_text *text)
{
    size_t at = 0;
    const size_t n = rose_json_count(messages);
    for (size_t i = 0; i < n; i++) {
        const rose_json *m = rose_json_at(messages, i);
        if (may_vanish(m)) continue;
        if (!is_instruction(m) || !find_content(rose_json_get(m, "content"), text, &at)) return i;
    }
    return n;
}

/* A copy of the message with a needle as its content. NULL: no memory. */
static rose_json *with_needle(const rose_json *m, size_t i)
{
    char needle[48];
    snprintf(needle, sizeof needle, NEEDLE "%zu;", i);
    const bool parts = rose_json_is_array(rose_json_get(m, "content"));
    return copy_with(m, "content",
                     parts ? rose_json_pack("[{s:s,s:s}]", "type", "text", "text", needle)
                           : rose_json_string(needle));
}

static bool wants_needle(const rose_json *m)
{
    return !may_vanish(m) && !is_empty(rose_json_get(m, "content"));
}

rose_json *rose_chat_places_needles(const rose_json *messages, size_t from)
{
    rose_json *list = rose_json_array();
    for (size_t i = 0; list != NULL && i < rose_json_count(messages); i++) {
        rose_json *m = rose_json_at(messages, i);
        m = i >= from && wants_needle(m) ? with_needle(m, i) : rose_json_incref(m);
        if (rose_json_append_new(list, m) == 0) continue;
        rose_json_decref(list);
        return NULL;
    }
    return list;
}

rose_status rose_chat_places_lost(size_t *lost, const rose_json *messages, size_t from,
                                  const rose_template_text *text)
{
    const size_t n = rose_json_count(messages);
    bool *seen = calloc(n + 1, sizeof *seen);
    if (seen == NULL) return ROSE_E_NOMEM;
    for (const char *s = text->bytes; (s = strstr(s, NEEDLE)) != NULL;) {
        s += sizeof NEEDLE - 1;
        const unsigned long i = strtoul(s, NULL, 10);
        if (i < n) seen[i] = true;
    }
    for (*lost = from; *lost < n; ++*lost) {
        if (wants_needle(rose_json_at(messages, *lost)) && !seen[*lost]) break;
    }
    free(seen);
    return ROSE_OK;
}
