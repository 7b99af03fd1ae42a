/* chat/sources.c - finds a model's chat templates and the texts of its special tokens: in the files
 * of a Hugging Face folder, in transformers' order, or in the metadata of a GGUF file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/folder.h"
#include "base/gguf.h"
#include "base/json.h"
#include "chat/chat_internal.h"
#include "model/config.h"

enum { MAX_TEMPLATE = 4 << 20 };

void rose_chat_texts_free(rose_chat_texts *x)
{
    rose_buf_free(&x->main);
    rose_buf_free(&x->tool_use);
    rose_json_decref(x->tokens);
    *x = (rose_chat_texts){0};
}

static rose_status no_memory(rose_err *err)
{
    return rose_fail(err, ROSE_E_NOMEM, "chat template: out of memory");
}

static void set_source(rose_chat_texts *x, const char *path)
{
    x->found = true;
    rose_path_label(x->source, path);
}

/* ---- a folder ---- */

/* *path: folder/name, owned by the caller. */
static rose_status join(char **path, const char *folder, const char *name, rose_err *err)
{
    if (asprintf(path, "%s/%s", folder, name) >= 0) return ROSE_OK;
    *path = NULL;
    return no_memory(err);
}

/* A file that is not there has nothing to say. */
static rose_status if_found(rose_status st, rose_err *err)
{
    if (st != ROSE_E_NOTFOUND) return st;
    if (err != NULL) err->msg[0] = '\0';
    return ROSE_OK;
}

static rose_status add_json(rose_buf *out, const rose_json *text, rose_err *err)
{
    if (rose_buf_add(out, rose_json_text(text), rose_json_text_len(text)) == ROSE_OK)
        return ROSE_OK;
    return no_memory(err);
}

/* A list of {name, template}, of which "default" and "tool_use" count. */
static rose_status take_list(rose_chat_texts *x, const rose_json *list, const char *path,
                             rose_err *err)
{
    for (size_t i = 0; i < rose_json_count(list); i++) {
        const rose_json *row = rose_json_at(list, i), *text = rose_json_get(row, "template");
        const char *name = rose_json_text(rose_json_get(row, "name"));
        rose_status st = ROSE_OK;
        if (name == NULL || !rose_json_is_string(text))
            return rose_fail(err, ROSE_E_FORMAT,
                             "%s: chat_template[%zu] needs the strings 'name' and 'template'", path,
                             i);
        if (strcmp(name, "default") == 0) {
            x->main.len = 0; /* of two with the same name the last one counts, as in transformers */
            st = add_json(&x->main, text, err);
            set_source(x, path);
        } else if (strcmp(name, "tool_use") == 0) {
            x->tool_use.len = 0;
            st = add_json(&x->tool_use, text, err);
        }
        if (st != ROSE_OK) return st;
    }
    if (x->found) return ROSE_OK;
    return rose_fail(err, ROSE_E_FORMAT,
                     "%s: no chat template has the name 'default'; give one with --chat-template",
                     path);
}

static rose_status take_member(rose_chat_texts *x, const rose_json *settings, const char *path,
                               rose_err *err)
{
    const rose_json *v = rose_json_get(settings, "chat_template");
    if (x->found || v == NULL || rose_json_is_null(v)) return ROSE_OK;
    if (rose_json_is_array(v)) return take_list(x, v, path, err);
    if (!rose_json_is_string(v))
        return rose_fail(err, ROSE_E_FORMAT, "%s: chat_template must be a string or a list", path);
    set_source(x, path);
    return add_json(&x->main, v, err);
}

/* A token is given as its text, or as an object with the text in "content". */
static rose_status take_tokens(rose_chat_texts *x, const rose_json *settings, rose_err *err)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        rose_json *v = rose_json_get(settings, names[i]);
        if (rose_json_is_object(v)) v = rose_json_get(v, "content");
        if (!rose_json_is_string(v) || rose_json_get(x->tokens, names[i]) != NULL) continue;
        if (rose_json_set(x->tokens, names[i], v) != 0) return no_memory(err);
    }
    return ROSE_OK;
}

static void take_class(rose_chat_texts *x, const rose_json *settings)
{
    const char *name = rose_json_text(rose_json_get(settings, "tokenizer_class"));
    if (name != NULL && strlen(name) < sizeof x->tokenizer_class) strcpy(x->tokenizer_class, name);
}

static rose_status read_settings(rose_chat_texts *x, const char *folder, const char *name,
                                 rose_err *err)
{
    char *path = NULL;
    rose_config c = {0};
    rose_status st = join(&path, folder, name, err);
    if (st == ROSE_OK) st = if_found(rose_config_open(&c, path, err), err);
    if (st == ROSE_OK) st = take_member(x, c.root, path, err);
    if (st == ROSE_OK) st = take_tokens(x, c.root, err);
    take_class(x, c.root);
    rose_config_close(&c);
    free(path);
    return st;
}

/* A template in a file of its own, and beside it the one for requests with tools. */
static rose_status read_jinja(rose_chat_texts *x, const char *folder, rose_err *err)
{
    char *path = NULL, *beside = NULL;
    rose_status st = join(&path, folder, "chat_template.jinja", err);
    if (st == ROSE_OK) st = join(&beside, folder, "additional_chat_templates/tool_use.jinja", err);
    if (st == ROSE_OK) st = if_found(rose_file_read(&x->main, path, MAX_TEMPLATE, err), err);
    if (st == ROSE_OK && x->main.data != NULL) {
        set_source(x, path);
        st = if_found(rose_file_read(&x->tool_use, beside, MAX_TEMPLATE, err), err);
    }
    free(path);
    free(beside);
    return st;
}

static rose_status read_folder(rose_chat_texts *x, const char *folder, rose_err *err)
{
    rose_status st = x->found ? ROSE_OK : read_jinja(x, folder, err);
    if (st == ROSE_OK) st = read_settings(x, folder, "chat_template.json", err);
    if (st == ROSE_OK) st = read_settings(x, folder, "tokenizer_config.json", err);
    if (st == ROSE_OK) st = read_settings(x, folder, "special_tokens_map.json", err);
    return st;
}

/* ---- a GGUF file ---- */

static rose_status copy_key(rose_buf *out, const rose_gguf *g, const char *key, rose_err *err)
{
    rose_gguf_str s = {NULL, 0};
    const rose_status st = rose_gguf_get_string(g, key, &s, err);
    if (st != ROSE_OK || s.s == NULL) return st;
    return rose_buf_add(out, s.s, s.n) == ROSE_OK ? ROSE_OK : no_memory(err);
}

/* Finds the texts of the tokens that the metadata name by id. */
static rose_status find_tokens(rose_chat_texts *x, const rose_gguf *g, rose_err *err)
{
    static const char *const names[][2] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
                                           {"eos_token", "tokenizer.ggml.eos_token_id"},
                                           {"unk_token", "tokenizer.ggml.unknown_token_id"},
                                           {"pad_token", "tokenizer.ggml.padding_token_id"}};
    enum { N = sizeof names / sizeof *names };
    uint32_t ids[N], id = 0;
    const rose_gguf_value *v = NULL;
    rose_gguf_str s;
    rose_status st = rose_gguf_get_array(g, "tokenizer.ggml.tokens", ROSE_GGUF_STRING, &v, err);
    for (size_t k = 0; st == ROSE_OK && k < N; k++) {
        ids[k] = UINT32_MAX;
        st = rose_gguf_get_u32(g, names[k][1], &ids[k], err);
    }
    if (st != ROSE_OK || v == NULL) return st;
    for (size_t at = 0; rose_gguf_next_string(v, &at, &s); id++)
        for (size_t k = 0; k < N; k++)
            if (ids[k] == id &&
                rose_json_set_new(x->tokens, names[k][0], rose_json_stringn(s.s, s.n)) != 0)
                return rose_fail(err, ROSE_E_FORMAT, "%s: token %u is not UTF-8, or out of memory",
                                 g->label, id);
    return ROSE_OK;
}

static rose_status read_gguf(rose_chat_texts *x, const char *path, rose_err *err)
{
    rose_gguf g;
    rose_status st = rose_gguf_open(&g, path, err);
    if (st != ROSE_OK) return st;
    if (!x->found) st = copy_key(&x->main, &g, "tokenizer.chat_template", err);
    if (!x->found && x->main.data != NULL) {
        set_source(x, path);
        if (st == ROSE_OK) st = copy_key(&x->tool_use, &g, "tokenizer.chat_template.tool_use", err);
    }
    if (st == ROSE_OK) st = find_tokens(x, &g, err);
    rose_gguf_close(&g);
    return st;
}

/* ---- --chat-template ---- */

static rose_status read_given(rose_chat_texts *x, const char *given, rose_err *err)
{
    const bool text = strpbrk(given, "{}\n") != NULL;
    x->found = true;
    if (text && !rose_file_exists(given)) {
        snprintf(x->source, sizeof x->source, "--chat-template");
        return rose_buf_add(&x->main, given, strlen(given)) == ROSE_OK ? ROSE_OK : no_memory(err);
    }
    set_source(x, given);
    const rose_status st = rose_file_read(&x->main, given, MAX_TEMPLATE, err);
    if (st != ROSE_E_NOTFOUND) return st;
    return rose_fail(err, st,
                     "chat template '%.200s': there is no such file; give a file, the template "
                     "itself, or plain",
                     given);
}

rose_status rose_chat_texts_read(rose_chat_texts *out, const char *model, const char *given,
                                 rose_err *err)
{
    char *file = NULL;
    rose_status st = ROSE_OK;
    *out = (rose_chat_texts){.tokens = rose_json_object()};
    if (out->tokens == NULL) return no_memory(err);
    if (given != NULL) st = read_given(out, given, err);
    if (st == ROSE_OK) st = rose_folder_find_gguf(&file, model, err);
    if (st == ROSE_OK) st = file != NULL ? read_gguf(out, file, err) : read_folder(out, model, err);
    free(file);
    if (st != ROSE_OK) rose_chat_texts_free(out);
    return st;
}
