/* Renders templates for tests/template: reads one JSON object a line from stdin and answers with
 * one a line. Members: template, and those of rose_template_input (kwargs, tokens, messages, ...).
 * The answer is {"text", "runs": [[end, message], ...]} or {"error"}. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "template/template.h"

static rose_json *answer(const rose_template_text *out)
{
    rose_json *runs = rose_json_array();
    for (size_t i = 0; i < out->n_runs; i++)
        rose_json_append_new(
            runs, rose_json_pack("[I, b]", (int64_t)out->runs[i].end, out->runs[i].message));
    rose_json *root = rose_json_object();
    rose_json_set_new(root, "text", rose_json_stringn(out->bytes, out->len));
    rose_json_set_new(root, "runs", runs);
    return root;
}

static rose_json *render(const rose_json *q)
{
    const rose_json *text = rose_json_get(q, "template");
    rose_template_input in = {.messages = rose_json_get(q, "messages"),
                              .tools = rose_json_get(q, "tools"),
                              .documents = rose_json_get(q, "documents"),
                              .kwargs = rose_json_get(q, "kwargs"),
                              .tokens = rose_json_get(q, "tokens"),
                              .now_s = rose_json_int(rose_json_get(q, "now")),
                              .utc = true};
    rose_template *t = NULL;
    rose_template_text out = {0};
    rose_err err = {""};
    rose_json *a;
    in.add_generation_prompt = rose_json_is_true(rose_json_get(q, "add_generation_prompt"));
    in.continue_final_message = rose_json_is_true(rose_json_get(q, "continue_final_message"));
    if (rose_template_compile(&t, rose_json_text(text), rose_json_text_len(text), &err) !=
            ROSE_OK ||
        rose_template_render(&out, t, &in, &err) != ROSE_OK)
        a = rose_json_pack("{s: s}", "error", err.msg);
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
        rose_json_error e;
        rose_json *q = NULL, *a;
        char *s;
        if (rose_json_parse(&q, line, (size_t)n, ROSE_JSON_NUL, &e) != ROSE_OK) {
            fprintf(stderr, "template_pipe: %s\n", e.text);
            return 1;
        }
        a = render(q);
        if ((s = rose_json_dumps(a, ROSE_JSON_COMPACT)) == NULL) return 1;
        puts(s);
        fflush(stdout);
        free(s);
        rose_json_decref(a);
        rose_json_decref(q);
    }
    free(line);
    return 0;
}
