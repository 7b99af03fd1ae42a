/* Who may compile a grammar next (api/turns.h): the order is the same in every run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "api/turns.h"

static rose_api_turns t;
static rose_api_turn turns[64];
static atomic_bool gone[64];
static uint64_t n_texts;

static rose_api_turn *turn(unsigned i, uint64_t client, bool costly)
{
    atomic_store(&gone[i], false);
    turns[i] = (rose_api_turn){.client = client,
                               .text = ++n_texts * 1000,
                               .gone = &gone[i],
                               .nth = costly ? ROSE_API_LAST_TURN : 0};
    return &turns[i];
}

static unsigned number(const rose_api_turn *x)
{
    assert_non_null(x);
    return (unsigned)(x - turns);
}

/* A turn that must wait. */
static void queue(unsigned i, uint64_t client, bool costly)
{
    rose_api_turn *x = turn(i, client, costly);
    assert_int_equal(rose_api_turns_ask(&t, x), ROSE_E_EMPTY);
    rose_api_turns_wait(&t, x);
}

static void start(unsigned i, uint64_t client, bool costly)
{
    assert_int_equal(rose_api_turns_ask(&t, turn(i, client, costly)), ROSE_OK);
}

/* Ends turn i; the next one must be `next`. */
static void end(unsigned i, unsigned next)
{
    rose_api_turns_end(&t, &turns[i]);
    assert_int_equal(number(rose_api_turns_next(&t, false)), next);
}

static void clients_take_turns(void **state)
{
    (void)state;
    rose_api_turns_init(&t, 1, 100);
    start(0, 1, false);
    for (unsigned i = 1; i <= 8; i++)
        queue(i, 1, false); /* one client asks nine times */
    queue(9, 2, false);
    queue(10, 3, false);
    queue(11, 2, false);
    assert_null(rose_api_turns_next(&t, false));
    end(0, 9);  /* a client without a turn comes first */
    end(9, 10); /* then the next one */
    end(10, 1); /* then the one whose turn was longest ago */
    end(1, 11);
    queue(12, 3, false);
    end(11, 12);
    end(12, 2);
    end(2, 3); /* alone: in order of arrival */
    end(3, 4);
}

static void quick_before_costly(void **state)
{
    (void)state;
    rose_api_turns_init(&t, 2, 100);
    start(0, 1, true);
    queue(1, 2, true); /* the second place is not for costly ones */
    queue(2, 3, true);
    assert_null(rose_api_turns_next(&t, false));
    start(3, 1, false); /* a quick one begins at once beside any number of them */
    queue(4, 1, false);
    rose_api_turns_end(&t, &turns[0]);
    /* both may begin: the quick one does, although its client has had two turns */
    assert_int_equal(number(rose_api_turns_next(&t, false)), 4);
    end(3, 1);
    rose_api_turns_end(&t, &turns[4]);
    assert_null(rose_api_turns_next(&t, false)); /* turn 1 is costly and runs */
    end(1, 2);
}

static void costly_do_not_starve(void **state)
{
    unsigned n_quick = 0;
    (void)state;
    rose_api_turns_init(&t, 1, 100);
    start(0, 1, false);
    queue(1, 1, true);
    for (unsigned last = 0; n_quick < 20; n_quick++) {
        queue(2 + n_quick, 2 + n_quick, false);
        rose_api_turns_end(&t, &turns[last]);
        last = number(rose_api_turns_next(&t, false));
        if (last == 1) break;
    }
    assert_int_equal(n_quick, 8);
}

/* Three kinds of turns wait: the first ones come first, but one in nine. */
static void three_kinds(void **state)
{
    static const uint32_t nth[6] = {2, 1, 0, 2, 1, 0}, order[6] = {3, 6, 2, 5, 1, 4};
    (void)state;
    rose_api_turns_init(&t, 1, 100);
    start(0, 9, false);
    for (unsigned i = 1; i <= 6; i++) {
        rose_api_turn *x = turn(i, 10 + i, false);
        x->nth = nth[i - 1];
        assert_int_equal(rose_api_turns_ask(&t, x), ROSE_E_EMPTY);
        rose_api_turns_wait(&t, x);
    }
    for (unsigned i = 0; i < 6; i++)
        end(i == 0 ? 0 : order[i - 1], order[i]);
}

static void same_text_waits(void **state)
{
    (void)state;
    rose_api_turns_init(&t, 4, 100);
    start(0, 1, false);
    rose_api_turn *x = turn(1, 2, false);
    x->text = turns[0].text;
    assert_int_equal(rose_api_turns_ask(&t, x), ROSE_E_EMPTY);
    rose_api_turns_wait(&t, x);
    assert_null(rose_api_turns_next(&t, false));
    start(2, 3, false); /* another text */
    /* the first client leaves: the second one still needs the text */
    atomic_store(&gone[0], true);
    assert_true(rose_api_turns_wanted(&t, &turns[0]));
    atomic_store(&gone[1], true);
    assert_false(rose_api_turns_wanted(&t, &turns[0]));
    assert_true(rose_api_turns_wanted(&t, &turns[2]));
    /* a turn that nobody waits for leaves the queue at once */
    assert_int_equal(number(rose_api_turns_next(&t, false)), 1);
    rose_api_turns_end(&t, &turns[1]);
    rose_api_turns_end(&t, &turns[0]);
    assert_null(rose_api_turns_next(&t, false));
}

static void long_bodies(void **state)
{
    (void)state;
    rose_api_turns_init(&t, 1, 100);
    start(0, 1, false);
    rose_api_turn *x = turn(1, 2, false);
    x->is_long = true;
    assert_int_equal(rose_api_turns_ask(&t, x), ROSE_E_EMPTY);
    rose_api_turns_wait(&t, x);
    queue(2, 1, false);
    rose_api_turns_end(&t, &turns[0]);
    assert_int_equal(number(rose_api_turns_next(&t, true)), 2);
    end(2, 1);
}

static void one_client_leaves_room(void **state)
{
    unsigned n = 1;
    (void)state;
    rose_api_turns_init(&t, 1, 32);
    start(0, 1, false);
    for (; rose_api_turns_ask(&t, turn(n, 1, false)) == ROSE_E_EMPTY; n++)
        rose_api_turns_wait(&t, &turns[n]);
    assert_int_equal(n - 1, 16); /* half of the queue */
    unsigned m = n;
    for (; rose_api_turns_ask(&t, turn(m, 2, false)) == ROSE_E_EMPTY; m++)
        rose_api_turns_wait(&t, &turns[m]);
    assert_int_equal(m - n, 8); /* half of the rest */
    assert_int_equal(rose_api_turns_ask(&t, turn(m, 1, false)), ROSE_E_FULL);
    queue(m, 3, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_take_turns),     cmocka_unit_test(quick_before_costly),
        cmocka_unit_test(costly_do_not_starve),   cmocka_unit_test(three_kinds),
        cmocka_unit_test(same_text_waits),        cmocka_unit_test(long_bodies),
        cmocka_unit_test(one_client_leaves_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
