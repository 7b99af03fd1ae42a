/* base/json.h out of memory at the Nth allocation, for every N, once and from then on: each
 * operation says so or succeeds in full, and nothing leaks. */
#include "failing_alloc.h"

#include <string.h>

#include "base/json.h"

#ifdef HAVE_OWN_ALLOCATOR

int main(void)
{
    return failing_alloc_skip();
}

#else

static const char g_text[] =
    "{\"a\\u00e9\":[1,-0,1.50,123456789012345678901,{\"b\":{}},[[],null]],\"c\":\"x\\ny\","
    "\"k0\":0,\"k1\":1,\"k2\":2,\"k3\":3,\"k4\":4,\"k5\":5,\"k6\":6,\"k7\":7,\"k8\":8,\"k9\":9,"
    "\"l0\":0,\"l1\":1,\"l2\":2,\"l3\":3,\"l4\":4,\"l5\":5,\"l6\":6,\"l7\":7,\"l8\":8,\"l9\":9}";

static rose_json *g_value;

/* Each returns 1: done and right, 0: out of memory, -1: wrong. */
static int reads(void)
{
    rose_json *v;
    const rose_status st = rose_json_parse(&v, g_text, sizeof g_text - 1, 0, NULL);
    const bool same = st == ROSE_OK && rose_json_equal(v, g_value);
    rose_json_decref(v);
    return st == ROSE_OK ? (same ? 1 : -1) : st == ROSE_E_NOMEM ? 0 : -1;
}

static int writes(void)
{
    char *dump = rose_json_dumps(g_value, ROSE_JSON_INDENT(1));
    if (dump == NULL) return 0;
    rose_json *v = rose_json_loads(dump, 0, NULL);
    const bool same = rose_json_equal(v, g_value);
    const int right = v == NULL ? 0 : same ? 1 : -1;
    free(dump);
    rose_json_decref(v);
    return right;
}

static int copies(void)
{
    rose_json *v = rose_json_copy(g_value);
    const int right = v == NULL ? 0 : rose_json_equal(v, g_value) ? 1 : -1;
    rose_json_decref(v);
    return right;
}

static int packs(void)
{
    rose_json *v =
        rose_json_pack("{s:[s,f,{s:o}],s:O}", "a", "b", 1.5, "c", rose_json_array(), "d", g_value);
    rose_json_decref(v);
    return v != NULL;
}

/* A change that fails leaves the object as it was. */
static int changes(void)
{
    char key[2] = "A";
    rose_json *o = rose_json_object();
    int right = o != NULL;
    for (size_t n = 0; n < 40 && right == 1; n++, key[0]++) {
        if (rose_json_set_new(o, key, rose_json_integer(1)) != 0) right = 0;
        if (rose_json_size(o) != n + (size_t)right) right = -1;
        if (rose_json_get(o, "A") == NULL && rose_json_size(o) > 0) right = -1;
    }
    rose_json_decref(o);
    return right;
}

int main(void)
{
    static int (*const operations[])(void) = {reads, writes, copies, packs, changes};
    int bad = 0;
    g_value = rose_json_loads(g_text, 0, NULL);
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        for (long k = 1, persist = 0, injected = 1; persist < 2; k++) {
            const long before = atomic_load(&falloc.live);
            falloc_arm(k, persist == 1);
            const int right = operations[i]();
            injected = falloc_disarm();
            if (right < 0 || (!injected && right != 1) || atomic_load(&falloc.live) != before) {
                printf("operation %zu, allocation %ld: result %d, %ld blocks leak\n", i, k, right,
                       atomic_load(&falloc.live) - before);
                bad = 1;
            }
            if (!injected) {
                persist++;
                k = 0;
            }
        }
    }
    rose_json_decref(g_value);
    puts(bad ? "failed" : "passed");
    return bad;
}

#endif
