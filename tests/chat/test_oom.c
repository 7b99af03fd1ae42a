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

static const char settings[] =
    "{\"bos_token\": \"<s>\", \"chat_template\": [{\"name\": \"default\", \"template\": "
    "\"{% for m in messages %}{{ m.content ~ (m.tool_calls or []) }}{% endfor %}\"}, {\"name\": "
    "\"tool_use\", \"template\": \"{{ bos_token }}\"}]}";
static const char request[] =
    "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": "
    "\"text\", \"text\": \"b\"}]}, {\"role\": \"assistant\", \"tool_calls\": [{\"function\": "
    "{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": [1, 2]}\"}}]}]";

static rose_status once(const char *folder, const rose_json *messages, rose_err *err)
{
    const rose_template_input in = {.messages = messages};
    rose_chat *chat = NULL;
    rose_template_text text = {0};
    rose_status st = rose_chat_open(&chat, folder, NULL, err);
    if (st == ROSE_OK) st = rose_chat_render(chat, &in, &text, err);
    rose_template_text_free(&text);
    rose_chat_close(chat);
    return st;
}

static void every_allocation(void **state)
{
    temp_dir d;
    rose_json_error e;
    rose_json *messages = NULL;
    (void)state;
    temp_make(&d);
    temp_write(&d, "tokenizer_config.json", settings, sizeof settings - 1);
    assert_int_equal(rose_json_parse(&messages, request, sizeof request - 1, 0, &e), ROSE_OK);
    for (int persist = 0; persist < 2; persist++) {
        long refused = 0;
        for (bool injected = true; injected;) {
            rose_err err = {""};
            long live = atomic_load(&falloc.live);
            falloc_arm(refused + 1, persist != 0);
            rose_status st = once(d.path, messages, &err);
            injected = falloc_disarm();
            if (st != ROSE_OK && st != ROSE_E_NOMEM)
                fail_msg("allocation %ld: %s", refused + 1, err.msg);
            assert_true(st != ROSE_OK || !injected || persist == 0);
            assert_int_equal(atomic_load(&falloc.live), live);
            assert_true((err.msg[0] != '\0') == (st != ROSE_OK));
            refused += injected;
        }
        assert_true(refused >= 40);
    }
    rose_json_decref(messages);
    temp_remove(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
