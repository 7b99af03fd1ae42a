/* base/memlock.h - makes memory ready before it is needed. Locked memory is never paged out; the
 * first use of touched memory causes no page fault. Any thread. */
#ifndef ROSE_BASE_MEMLOCK_H
#define ROSE_BASE_MEMLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Tells whether this process may lock `bytes` more, by trying it on an empty mapping. Errors:
 * NOMEM, with the limit and how to raise it; the message begins with `what`. */
rose_status rose_memory_lock_probe(uint64_t bytes, const char *what, rose_err *err);

/* Locks [base, base + bytes). Pages are locked when they are first touched, so untouched pages
 * take no memory yet. munmap unlocks. Errors: as rose_memory_lock_probe. */
rose_status rose_memory_lock(void *base, uint64_t bytes, const char *what, rose_err *err);

/* Writes one byte of every page of [base, base + bytes), without changing it, so that all pages
 * exist. */
void rose_memory_touch(void *base, uint64_t bytes);

uint64_t rose_memory_locked(void); /* bytes that this process has locked (VmLck); 0 if unknown */

#endif
