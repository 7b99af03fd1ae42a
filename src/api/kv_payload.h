/* api/kv_payload.h - writes KV events as vLLM's publishers do: msgpack arrays, a tag first.
 * A payload is [ts, [event, ...], dp_rank]. The events are
 *   ["BlockStored", [hash..], parent or nil, [token id..], block size, nil, "GPU"]
 *   ["BlockStored", .., "GPU", nil, [["salt"], nil..]]   a chain with a cache salt, from its root
 *   ["BlockRemoved", [hash..], "GPU"]
 *   ["AllBlocksCleared"]
 * or, as newer versions of vLLM write them, maps of the same values with the tag under "type".
 * Any thread. */
#ifndef ROSE_API_KV_PAYLOAD_H
#define ROSE_API_KV_PAYLOAD_H

#include "base/buf.h"
#include "engine/kv_feed.h"

/* Appends the payload of changes[0..n), n > 0, to out. Pages of one path that follow each other
 * become one event, and so do removals. Errors: NOMEM; then out has a part of the payload. */
rose_status rose_kv_payload_write(rose_buf *out, bool maps, double unix_time,
                                  const rose_kv_change *changes, uint32_t n);

#endif
