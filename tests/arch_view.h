/* tests/arch_view.h - what tests ask of an architecture whose layers are of several kinds. */
#ifndef ROSE_TESTS_ARCH_VIEW_H
#define ROSE_TESTS_ARCH_VIEW_H

#include "model/model.h"

/* The window of the sliding layers; 0: there are none. */
static inline uint32_t view_window(const rose_arch *a)
{
    for (uint32_t i = 0; i < a->n_kinds; i++)
        if (a->kinds[i].mixer.window > 0) return a->kinds[i].mixer.window;
    return 0;
}

/* The rope of layers that see everything and rotate; without such a layer, that of the first kind.
 */
static inline const rose_rope *view_full(const rose_arch *a)
{
    for (uint32_t i = 0; i < a->n_kinds; i++)
        if (a->kinds[i].mixer.window == 0 && a->kinds[i].mixer.rope.dim > 0)
            return &a->kinds[i].mixer.rope;
    return &a->kinds[0].mixer.rope;
}

/* The rope of sliding layers; without such a layer, the other one. */
static inline const rose_rope *view_sliding(const rose_arch *a)
{
    for (uint32_t i = 0; i < a->n_kinds; i++)
        if (a->kinds[i].mixer.window > 0) return &a->kinds[i].mixer.rope;
    return view_full(a);
}

#endif
