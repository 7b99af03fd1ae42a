/* opts_walk.h - for tests of a table of options: a row sets its own variable and no other. */
#ifndef ROSE_TESTS_OPTS_WALK_H
#define ROSE_TESTS_OPTS_WALK_H

#include <stdio.h>
#include <string.h>

#include "base/opts.h"

static size_t opt_value_size(const rose_opt *o)
{
    switch (o->kind) {
    case ROSE_OPT_BOOL:
    case ROSE_OPT_FLAG:
        return sizeof(bool);
    case ROSE_OPT_U32:
    case ROSE_OPT_ENUM:
    case ROSE_OPT_FLOAT:
        return 4;
    case ROSE_OPT_U64:
    case ROSE_OPT_BYTES:
        return 8;
    case ROSE_OPT_STRING:
    case ROSE_OPT_CHOICE:
        return sizeof(char *);
    case ROSE_OPT_LIST:
        return sizeof(rose_opt_list);
    case ROSE_OPT_HEADING:
        break;
    }
    return 0;
}

/* A value that the row accepts and that it does not have. */
static void other_value(const rose_opt *o, char *buf, size_t cap)
{
    uint64_t has = 0;
    memcpy(&has, o->dest, opt_value_size(o) <= sizeof has ? opt_value_size(o) : 0);
    buf[0] = '\0';
    switch (o->kind) {
    case ROSE_OPT_U32:
    case ROSE_OPT_U64:
    case ROSE_OPT_BYTES:
        snprintf(buf, cap, "%u", (unsigned)(has == o->min + 1 ? o->min + 2 : o->min + 1));
        break;
    case ROSE_OPT_FLOAT:
        snprintf(buf, cap, "%g", (double)(o->fmin + o->fmax) / 2);
        break;
    case ROSE_OPT_ENUM:
    case ROSE_OPT_CHOICE: { /* the last one */
        const char *last = strrchr(o->choices, '|');
        snprintf(buf, cap, "%s", last != NULL ? last + 1 : o->choices);
        break;
    }
    case ROSE_OPT_STRING:
    case ROSE_OPT_LIST:
        snprintf(buf, cap, "0");
        break;
    case ROSE_OPT_BOOL:
    case ROSE_OPT_FLAG:
    case ROSE_OPT_HEADING:
        break;
    }
}

/* Parse row i's option with another value than the one it has. `was` has the same n rows with the
 * values from before. */
static void expect_sets_itself(const rose_opt *rows, const rose_opt *was, size_t n, size_t i)
{
    const rose_opt *o = &rows[i];
    char name[64], value[64];
    char *args[] = {(char *)(uintptr_t) "test", name, value};
    const rose_command cmd = {.usage = "test", .about = "", .opts = rows, .n_opts = n};
    uint32_t n_args;
    if (o->kind == ROSE_OPT_HEADING) return;
    const bool turn_off = o->kind == ROSE_OPT_BOOL && *(const bool *)o->dest;
    snprintf(name, sizeof name, "--%s%s", turn_off ? "no-" : "", o->name);
    other_value(o, value, sizeof value);
    assert_int_equal(rose_opts_parse(&cmd, value[0] != '\0' ? 3 : 2, args, NULL, &n_args), -1);
    for (size_t j = 0; j < n; j++) {
        if (rows[j].kind == ROSE_OPT_HEADING) continue;
        const bool same = memcmp(rows[j].dest, was[j].dest, opt_value_size(&rows[j])) == 0;
        if (same == (i == j))
            fail_msg("%s %s: --%s is %s", name, value, rows[j].name,
                     same ? "unchanged" : "changed, too");
    }
}

#endif
