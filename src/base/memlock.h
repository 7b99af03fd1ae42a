/* base/memlock.h - memory that is there when it is needed: locked (never paged out) and touched
 * (no page fault at its first use). Any thread. */
#ifndef ROSE_BASE_MEMLOCK_H
#define ROSE_BASE_MEMLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Whether this process may lock so many bytes more, by trying it on an empty mapping. Errors: NOMEM
 * with the limit and how to raise it; `what` begins the message. */
rose_status rose_memory_lock_probe(uint64_t bytes, const char *what, rose_err *err);

/* Lock [base, base + bytes), as its pages come: what was never touched takes no memory yet.
 * Unlocked by munmap. Errors: as above. */
rose_status rose_memory_lock(void *base, uint64_t bytes, const char *what, rose_err *err);

/* Write to every page of [base, base + bytes) what it holds, so that all are there. */
void rose_memory_touch(void *base, uint64_t bytes);

uint64_t rose_memory_locked(void); /* bytes that this process has locked (VmLck); 0 if unknown */

#endif
