/* model/config.h - a JSON settings file (config.json, generation_config.json) and its fields.
 * Each field is checked for type and range; messages name the file, the field, what was found
 * and what was expected. For src/model, and for src/chat the files that name a chat template. */
#ifndef ROSE_MODEL_CONFIG_H
#define ROSE_MODEL_CONFIG_H

#include "base/json.h"

#include "model/model.h"

typedef struct rose_config {
    rose_json *root; /* an object, unless `any` allowed more; owned */
    char label[256]; /* the file as messages show it */
} rose_config;

/* Reads and parses the file; ROSE_E_NOTFOUND if there is none. Duplicate keys are refused. */
rose_status rose_config_open(rose_config *out, const char *path, rose_err *err);

/* As rose_config_open, for the file `name` of a folder. any: its top level may be something else
 * than an object. */
rose_status rose_config_open_in(rose_config *out, const char *folder, const char *name, bool any,
                                rose_err *err);

/* As rose_config_open, for a config.json whose bytes are in memory. label: its name in messages. */
rose_status rose_config_parse(rose_config *out, const char *text, size_t n, const char *label,
                              rose_err *err);
void rose_config_close(rose_config *c); /* accepts {0}; leaves {0} */

/* The field's value: `name`, or else `alias` (may be NULL); JSON null counts as absent: NULL. */
rose_json *rose_config_get(const rose_config *c, const char *name, const char *alias);

/* A value as short text for a message: "-3", "the string \"abc\"", "a list". */
const char *rose_config_describe(const rose_json *v, char out[64]);

/* Each reads one field into *out. Absent or null: *out keeps the default that the caller put there,
 * unless `required`. */
typedef struct rose_config_u32 {
    const char *name;
    const char *alias; /* second name, or NULL */
    uint32_t min, max; /* inclusive */
    bool required;
    bool clamp; /* a larger number means max; a smaller one than min is ignored with a warning */
} rose_config_u32;
rose_status rose_config_read_u32(const rose_config *c, const rose_config_u32 *f, uint32_t *out,
                                 rose_err *err);
rose_status rose_config_read_bool(const rose_config *c, const char *name, bool *out, rose_err *err);

/* A number > 0 and <= max, as fp32. */
rose_status rose_config_read_positive(const rose_config *c, const char *name, double max,
                                      float *out, rose_err *err);

/* The object at `name` as a config of its own, labelled with both names; absent, null,
 * false or an empty list: root NULL.
 * out borrows from c: do not close it. */
rose_status rose_config_sub(rose_config *out, const rose_config *c, const char *name,
                            rose_err *err);

/* Puts id at `name` where config.json does not have the field at all; id -1 puts nothing. An
 * explicit null stays. */
rose_status rose_config_default_id(const rose_config *c, const char *name, int64_t id,
                                   rose_err *err);

/* activation_function by the names that transformers uses; UNSUPPORTED for others. */
rose_status rose_config_read_act(const rose_config *c, const char *name, rose_act *out,
                                 rose_err *err);

/* Reads bos_token_id into a->bos_id: an id, or a list of one. -1 if it is absent or null. What is
 * no id of the vocabulary gives -1 and a warning. */
void rose_config_read_bos(const rose_config *c, rose_arch *a);

/* Adds eos_token_id, an id or a list of ids, to a->eos_ids without duplicates. What is no id of the
 * vocabulary can never be generated, so it is dropped with a warning. So are ids for which the list
 * has no room. */
void rose_config_add_eos(const rose_config *c, rose_arch *a);

#endif
