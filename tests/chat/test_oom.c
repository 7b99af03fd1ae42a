/* Each allocation of opening a chat template and rendering messages fails once, and from then on:
 * the status is ROSE_E_NOMEM, nothing leaks. */
#include "failing_alloc.h"

#include <string.h>

#include "tokenizer/tok_fixture.h"

#include "base/json.h"
#include "chat/chat.h"

#ifdef HAVE_OWN_ALLOCATOR

int main(void)
{
    return failing_alloc_skip();
}

#else

/* The default template knows no developer, a system message only at the start, and no two turns of
 * a user. It changes texts. */
static const char settings[] =
    "{\"bos_token\": \"<s>\", \"chat_template\": [{\"name\": \"default\", \"template\": "
    "\"{% for m in messages %}{% if loop.previtem is defined and loop.previtem.role == m.role %}"
    "{{ raise_exception('twice') }}{% endif %}{% if loop.first or m.role != 'system' %}"
    "{% if m.role != 'developer' %}{{ (m.content or '') | upper ~ (m.tool_calls or []) }}"
    "{% endif %}{% endif %}{% endfor %}\"}, {\"name\": \"tool_use\", \"template\": "
    "\"{{ bos_token }}\"}]}";
static const char *const requests[] = {
    "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": "
    "\"text\", \"text\": \"b\"}]}, {\"role\": \"assistant\", \"tool_calls\": [{\"function\": "
    "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": [1, 2]}\"}}]}, {\"role\": \"tool\", "
    "\"content\": \"c\"}]",
    "[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"developer\", \"content\": \"d\"}, "
    "{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"system\", \"content\": \"t\"}, "
    "{\"role\": \"assistant\", \"content\": \"a\"}, {\"role\": \"system\", \"content\": \"v\"}, "
    "{\"role\": \"user\", \"content\": \"w\"}]",
    /* two users and two replies become one */
    "[{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"user\", \"content\": \"v\"}, "
    "{\"role\": \"assistant\", \"content\": \"a\"}, "
    "{\"role\": \"assistant\", \"content\": \"b\"}, {\"role\": \"system\", \"content\": \"s\"}]",
    /* two results follow each other, and the template fails in every way */
    "[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"u\"}, "
    "{\"role\": \"tool\", \"content\": \"a\"}, {\"role\": \"tool\", \"content\": \"b\"}]"};

static rose_status once(const char *folder, const rose_json *messages, rose_err *err)
{
    const rose_template_input in = {.messages = messages};
    rose_chat *chat = NULL;
    rose_template_text text = {0};
    rose_json *described = NULL;
    rose_status st = rose_chat_open(&chat, folder, NULL, err);
    if (st == ROSE_OK) st = rose_chat_render(chat, &in, &text, err);
    if (st == ROSE_OK) st = rose_chat_describe(&described, messages, messages, err);
    rose_json_decref(described);
    rose_template_text_free(&text);
    rose_chat_close(chat);
    return st;
}

static void each_fails(const temp_dir *d, const char *request, rose_status last)
{
    rose_json_error e;
    rose_json *messages = NULL;
    assert_int_equal(rose_json_parse(&messages, request, strlen(request), 0, &e), ROSE_OK);
    for (int persist = 0; persist < 2; persist++) {
        long refused = 0;
        for (bool injected = true; injected;) {
            rose_err err = {""};
            long live = atomic_load(&falloc.live);
            falloc_arm(refused + 1, persist != 0);
            rose_status st = once(d->path, messages, &err);
            injected = falloc_disarm();
            if (st != last && st != ROSE_E_NOMEM)
                fail_msg("allocation %ld: %s", refused + 1, err.msg);
            assert_true(st != last || !injected || persist == 0);
            assert_int_equal(atomic_load(&falloc.live), live);
            assert_true((err.msg[0] != '\0') == (st != ROSE_OK));
            refused += injected;
        }
        assert_true(refused >= 40);
    }
    rose_json_decref(messages);
}

static void every_allocation(void **state)
{
    temp_dir d;
    (void)state;
    temp_make(&d);
    temp_write(&d, "tokenizer_config.json", settings, sizeof settings - 1);
    each_fails(&d, requests[0], ROSE_OK);
    each_fails(&d, requests[1], ROSE_OK);
    each_fails(&d, requests[2], ROSE_OK);
    each_fails(&d, requests[3], ROSE_E_INVAL);
    temp_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
