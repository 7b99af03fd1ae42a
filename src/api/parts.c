/* api/parts.c - the parts of a choice: text, reasoning, and calls of tools. They are kept in
 * the order of the model's text. An event of a stream sends the bytes that were not sent yet; a
 * reply that is not streamed has all of them. */
#include <stdlib.h>
#include <string.h>

#include "api/api_internal.h"

/* Returns a new last part without text; NULL: no memory. */
static rose_api_part *append(rose_api_choice *c, rose_api_part_kind kind, uint32_t call)
{
    if (c->n_parts == c->cap_parts) {
        const uint32_t cap = c->cap_parts == 0 ? 2 : 2 * c->cap_parts;
        rose_api_part *parts = realloc(c->parts, cap * sizeof *parts);
        if (parts == NULL) return NULL;
        c->parts = parts;
        c->cap_parts = cap;
    }
    rose_api_part *part = &c->parts[c->n_parts++];
    *part = (rose_api_part){.kind = kind, .call = call, .begin = c->text.len};
    return part;
}

static bool add_text(rose_api_choice *c, rose_api_part *part, const char *text, size_t len)
{
    if (rose_buf_add(&c->text, text, len) != ROSE_OK) return false;
    part->len += len;
    return true;
}

bool rose_api_part_add(rose_api_choice *c, rose_api_part_kind kind, uint32_t call, const char *text,
                       size_t len)
{
    rose_api_part *part = c->n_parts == 0 ? NULL : &c->parts[c->n_parts - 1];
    if (len == 0) return true;
    if (part == NULL || part->kind != kind || part->call != call) part = append(c, kind, call);
    if (part == NULL) return false;
    rose_api_extra_own(c, kind == ROSE_API_PART_TEXT ? part : NULL);
    return add_text(c, part, text, len);
}

bool rose_api_part_call(rose_api_choice *c, uint32_t call, const char *id, const char *name,
                        size_t len)
{
    rose_api_part *part = append(c, ROSE_API_PART_CALL, call);
    if (part == NULL) return false;
    snprintf(part->id, sizeof part->id, "%s", id);
    rose_api_extra_own(c, NULL);
    return add_text(c, part, name, len);
}

bool rose_api_piece_next(rose_api_choice *c, rose_api_piece *p)
{
    for (; c->n_parts_out < c->n_parts; c->n_parts_out++) {
        const rose_api_part *part = &c->parts[c->n_parts_out];
        if (part->begin + part->len <= c->n_out) {
            if (c->n_parts_out + 1 == c->n_parts) break; /* it may grow */
            continue;
        }
        *p = (rose_api_piece){.kind = part->kind,
                              .call = part->call,
                              .part = c->n_parts_out,
                              .id = part->kind == ROSE_API_PART_CALL ? part->id : NULL,
                              .text = c->text.data + c->n_out,
                              .len = part->begin + part->len - c->n_out};
        c->n_out += p->len;
        return true;
    }
    return false;
}

void rose_api_parts_clear(rose_api_choice *c)
{
    c->n_parts = 0;
    c->n_parts_out = 0;
    c->text.len = 0;
    c->n_out = 0;
}

bool rose_api_has_part(const rose_api_choice *c, rose_api_part_kind kind)
{
    for (uint32_t i = 0; i < c->n_parts; i++) {
        if (c->parts[i].kind == kind) return true;
    }
    return false;
}

void rose_api_put_parts(rose_api_out *o, const rose_api_choice *c, rose_api_part_kind kind)
{
    rose_api_puts(o, "\"");
    for (uint32_t i = 0; i < c->n_parts; i++) {
        const rose_api_part *part = &c->parts[i];
        if (part->kind == kind) rose_api_put_escaped(o, c->text.data + part->begin, part->len);
    }
    rose_api_puts(o, "\"");
}

void rose_api_put_args(rose_api_out *o, const rose_api_choice *c, const rose_api_part *call)
{
    const rose_api_part *end = c->parts + c->n_parts;
    rose_api_puts(o, "\"");
    for (const rose_api_part *p = call + 1; p < end && p->kind == ROSE_API_PART_ARGS; p++)
        rose_api_put_escaped(o, c->text.data + p->begin, p->len);
    rose_api_puts(o, "\"");
}
