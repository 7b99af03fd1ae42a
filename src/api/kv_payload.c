/* api/kv_payload.c - see kv_payload.h. */
#include "api/kv_payload.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A writer of msgpack. The first failure stays. */
typedef struct packer {
    rose_buf *out;
    bool maps; /* events are maps, with names */
    rose_status st;
} packer;

static void put(packer *p, const void *bytes, size_t n)
{
    if (p->st == ROSE_OK) p->st = rose_buf_add(p->out, bytes, n);
}

/* Writes a tag and the low n bytes of v, the highest first. */
static void put_tagged(packer *p, uint8_t tag, uint64_t v, uint32_t n)
{
    uint8_t b[9] = {tag};
    for (uint32_t i = 0; i < n; i++)
        b[1 + i] = (uint8_t)(v >> 8 * (n - 1 - i));
    put(p, b, 1 + n);
}

static void put_nil(packer *p)
{
    put(p, "\xc0", 1);
}

static void put_uint(packer *p, uint64_t v)
{
    if (v < 0x80)
        put_tagged(p, (uint8_t)v, 0, 0);
    else if (v <= UINT8_MAX)
        put_tagged(p, 0xcc, v, 1);
    else if (v <= UINT16_MAX)
        put_tagged(p, 0xcd, v, 2);
    else if (v <= UINT32_MAX)
        put_tagged(p, 0xce, v, 4);
    else
        put_tagged(p, 0xcf, v, 8);
}

static void put_array(packer *p, uint32_t n)
{
    if (n < 16)
        put_tagged(p, (uint8_t)(0x90 | n), 0, 0);
    else if (n <= UINT16_MAX)
        put_tagged(p, 0xdc, n, 2);
    else
        put_tagged(p, 0xdd, n, 4);
}

static void put_text(packer *p, const char *s)
{
    const size_t n = strlen(s); /* < 256 */
    if (n < 32)
        put_tagged(p, (uint8_t)(0xa0 | n), 0, 0);
    else
        put_tagged(p, 0xd9, n, 1);
    put(p, s, n);
}

static void put_double(packer *p, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    put_tagged(p, 0xcb, bits, 8);
}

/* Begins an event of n values: an array with the tag first, or a map. */
static void put_event_head(packer *p, const char *tag, uint32_t n)
{
    if (p->maps) {
        put_tagged(p, (uint8_t)(0x80 | (n + 1)), 0, 0);
        put_text(p, "type");
    } else {
        put_array(p, n + 1);
    }
    put_text(p, tag);
}

/* The name of the next value. */
static void put_name(packer *p, const char *name)
{
    if (p->maps) put_text(p, name);
}

static void put_keys(packer *p, const rose_kv_change *c, uint32_t n)
{
    put_name(p, "block_hashes");
    put_array(p, n);
    for (uint32_t i = 0; i < n; i++)
        put_uint(p, c[i].key);
}

/* The salt is a keyed hash of the request's cache_salt, so it does not show the secret. */
static void put_salt(packer *p, const rose_kv_change *root, uint32_t n)
{
    char text[33];
    snprintf(text, sizeof text, "%016" PRIx64 "%016" PRIx64, root->salt.word[0],
             root->salt.word[1]);
    put_array(p, n);
    put_array(p, 1);
    put_text(p, text);
    for (uint32_t i = 1; i < n; i++)
        put_nil(p);
}

/* Without a salt an array ends with the medium; a map always has all values. */
static void put_stored(packer *p, const rose_kv_change *c, uint32_t n)
{
    const bool salted = c->root && (c->salt.word[0] | c->salt.word[1]) != 0;
    put_event_head(p, "BlockStored", p->maps || salted ? 8 : 6);
    put_keys(p, c, n);
    put_name(p, "parent_block_hash");
    if (c->root)
        put_nil(p);
    else
        put_uint(p, c->parent_key);
    put_name(p, "token_ids");
    put_array(p, n * ROSE_KV_PAGE_TOKENS);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < ROSE_KV_PAGE_TOKENS; k++)
            put_uint(p, c[i].ids[k]);
    }
    put_name(p, "block_size");
    put_uint(p, ROSE_KV_PAGE_TOKENS);
    put_name(p, "lora_id");
    put_nil(p);
    put_name(p, "medium");
    put_text(p, "GPU"); /* the tier from which a step reads, also with the CPU backend */
    if (!p->maps && !salted) return;
    put_name(p, "lora_name");
    put_nil(p);
    put_name(p, "extra_keys");
    if (salted)
        put_salt(p, c, n);
    else
        put_nil(p);
}

/* The number of changes at c[0..n) that become one event. */
static uint32_t run_length(const rose_kv_change *c, uint32_t n)
{
    uint32_t k = 1;
    if (c->kind == ROSE_KV_STORED) {
        while (k < n && c[k].kind == ROSE_KV_STORED && !c[k].root &&
               c[k].parent_key == c[k - 1].key)
            k++;
    } else if (c->kind == ROSE_KV_REMOVED) {
        while (k < n && c[k].kind == ROSE_KV_REMOVED)
            k++;
    }
    return k;
}

static void put_event(packer *p, const rose_kv_change *c, uint32_t n)
{
    switch (c->kind) {
    case ROSE_KV_STORED:
        put_stored(p, c, n);
        break;
    case ROSE_KV_REMOVED:
        put_event_head(p, "BlockRemoved", 2);
        put_keys(p, c, n);
        put_name(p, "medium");
        put_text(p, "GPU");
        break;
    case ROSE_KV_CLEARED:
        put_event_head(p, "AllBlocksCleared", 0);
        break;
    }
}

rose_status rose_kv_payload_write(rose_buf *out, bool maps, double unix_time,
                                  const rose_kv_change *changes, uint32_t n)
{
    packer p = {.out = out, .maps = maps, .st = ROSE_OK};
    uint32_t n_events = 0;
    for (uint32_t i = 0; i < n; i += run_length(changes + i, n - i))
        n_events++;
    put_array(&p, 3);
    put_double(&p, unix_time);
    put_array(&p, n_events);
    for (uint32_t i = 0, k; i < n; i += k) {
        k = run_length(changes + i, n - i);
        put_event(&p, changes + i, k);
    }
    put_uint(&p, 0); /* the rank in data parallelism */
    return p.st;
}
