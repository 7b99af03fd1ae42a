/* Renders templates for tests/template: reads one JSON object a line from stdin and answers with
 * one a line. Members: template, and those of rose_template_input (kwargs, tokens, messages, ...).
 * The answer is {"text", "runs": [[end, message], ...]} or {"error"}. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "template/template.h"

static json_t *answer(const rose_template_text *out)
{
    json_t *runs = json_array();
    for (size_t i = 0; i < out->n_runs; i++)
        json_array_append_new(
            runs, json_pack("[I, b]", (json_int_t)out->runs[i].end, out->runs[i].message));
    json_t *root = json_object();
    json_object_set_new(root, "text", json_stringn(out->bytes, out->len));
    json_object_set_new(root, "runs", runs);
    return root;
}

static json_t *render(const json_t *q)
{
    const json_t *text = json_object_get(q, "template");
    rose_template_input in = {.messages = json_object_get(q, "messages"),
                              .tools = json_object_get(q, "tools"),
                              .documents = json_object_get(q, "documents"),
                              .kwargs = json_object_get(q, "kwargs"),
                              .tokens = json_object_get(q, "tokens"),
                              .now_s = json_integer_value(json_object_get(q, "now")),
                              .utc = true};
    rose_template *t = NULL;
    rose_template_text out = {0};
    rose_err err = {""};
    json_t *a;
    in.add_generation_prompt = json_is_true(json_object_get(q, "add_generation_prompt"));
    in.continue_final_message = json_is_true(json_object_get(q, "continue_final_message"));
    if (rose_template_compile(&t, json_string_value(text), json_string_length(text), &err) !=
            ROSE_OK ||
        rose_template_render(&out, t, &in, &err) != ROSE_OK)
        a = json_pack("{s: s}", "error", err.msg);
    else
        a = answer(&out);
    rose_template_text_free(&out);
    rose_template_free(t);
    return a;
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        json_error_t e;
        json_t *q = NULL, *a;
        char *s;
        if (rose_json_parse(&q, line, (size_t)n, JSON_ALLOW_NUL, &e) != ROSE_OK) {
            fprintf(stderr, "template_pipe: %s\n", e.text);
            return 1;
        }
        a = render(q);
        if ((s = json_dumps(a, JSON_COMPACT)) == NULL) return 1;
        puts(s);
        fflush(stdout);
        free(s);
        json_decref(a);
        json_decref(q);
    }
    free(line);
    return 0;
}
