/* base/gguf_internal.h - what the two halves of the GGUF reader share. */
#ifndef ROSE_BASE_GGUF_INTERNAL_H
#define ROSE_BASE_GGUF_INTERNAL_H

#include "base/gguf.h"

/* Bytes of an element of this type; 0 for strings and arrays. */
size_t rose_gguf_type_bytes(rose_gguf_type t);

int rose_gguf_compare(rose_gguf_str a, rose_gguf_str b); /* as strcmp */

#endif
