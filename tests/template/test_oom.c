/* Each allocation of a compile and a render fails once, and from then on: the status is
 * ROSE_E_NOMEM, nothing leaks. */
#include "failing_alloc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "template/template.h"

#ifdef HAVE_OWN_ALLOCATOR

int main(void)
{
    return failing_alloc_skip();
}

#else

static const char text[] =
    "{% for m in messages %}{{ m|tojson(indent=2)|upper }}{{ m.content.split() }}{% endfor %}"
    "{{ 'long ' * 9000 }}";

static rose_status render(const rose_json *messages, rose_err *err)
{
    rose_template_input in = {.messages = messages};
    rose_template *t = NULL;
    rose_template_text out = {0};
    rose_status st = rose_template_compile(&t, text, strlen(text), err);
    if (st == ROSE_OK) st = rose_template_render(&out, t, &in, err);
    rose_template_text_free(&out);
    rose_template_free(t);
    return st;
}

static void every_allocation(void **state)
{
    rose_json *messages = rose_json_pack("[{s: s, s: s}]", "role", "user", "content", "a b c");
    (void)state;
    for (int persist = 0; persist < 2; persist++) {
        long refused = 0;
        for (bool injected = true; injected;) {
            rose_err err = {""};
            long live = atomic_load(&falloc.live);
            falloc_arm(refused + 1, persist != 0);
            rose_status st = render(messages, &err);
            injected = falloc_disarm();
            assert_int_equal(st, injected ? ROSE_E_NOMEM : ROSE_OK);
            assert_int_equal(atomic_load(&falloc.live), live);
            assert_true((err.msg[0] != '\0') == injected);
            refused += injected;
        }
        assert_true(refused >= 6);
    }
    rose_json_decref(messages);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
