/* base/opts_near.c - finds the name that a person probably meant, if the typed name is unknown.
 * Pure text work. */
#include <string.h>

#include "base/opts_internal.h"

enum { MAX_NAME = 64, MAX_EDITS = 4 };

/* Returns the number of edits from a[0..n) to b: insert, delete or replace a byte, or swap two
 * neighbours. */
static unsigned edits(const char *a, size_t n, const char *b)
{
    unsigned rows[3][MAX_NAME + 1], *two = rows[0], *one = rows[1], *now = rows[2];
    const size_t m = strlen(b);
    if (n > MAX_NAME || m > MAX_NAME) return MAX_NAME;
    for (size_t j = 0; j <= m; j++)
        one[j] = (unsigned)j;
    for (size_t i = 1; i <= n; i++) {
        now[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            unsigned best = one[j - 1] + (a[i - 1] != b[j - 1]);
            if (one[j] + 1 < best) best = one[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && two[j - 2] < best)
                best = two[j - 2] + 1;
            now[j] = best;
        }
        unsigned *free_row = two;
        two = one;
        one = now;
        now = free_row;
    }
    return one[m];
}

static bool has_word(const char *name, const char *word, size_t len)
{
    for (const char *p = name; p != NULL; p = strchr(p, '-') ? strchr(p, '-') + 1 : NULL) {
        if (strcspn(p, "-") == len && memcmp(p, word, len) == 0) return true;
    }
    return false;
}

/* True if `typed` is several words, such as max-seqs, and all of them occur in `name`. A single
 * word, such as model, is too unspecific. */
static bool words_stand_in(const char *typed, size_t len, const char *name)
{
    size_t words = 0;
    for (size_t i = 0; i <= len; words++) {
        size_t end = i;
        while (end < len && typed[end] != '-')
            end++;
        if (!has_word(name, typed + i, end - i)) return false;
        i = end + 1;
    }
    return words >= 2;
}

void rose_near_try(rose_near *n, const char *typed, size_t len, const char *candidate)
{
    const unsigned d = edits(typed, len, candidate);
    size_t most = len < 6 ? 1 : len / 3;
    if (most > MAX_EDITS) most = MAX_EDITS;
    if (d > most && !words_stand_in(typed, len, candidate)) return;
    if (n->name != NULL && n->distance <= d) return;
    *n = (rose_near){candidate, d};
}
