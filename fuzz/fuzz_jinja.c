/* libFuzzer target: a chat template, a NUL byte, and the JSON object of its inputs: messages,
 * tools, documents, kwargs, tokens, and two options. Without valid JSON a fixed conversation is
 * used. Whatever both hold, the text is UTF-8, its runs cover it, and the limits hold. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "template/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { OUTPUT = 1 << 18 };

static const char fixed[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"s<|im_end|>\"},"
    "{\"role\": \"user\", \"content\": \" \\u00e9 \\ud83d\\ude00 'q' \\n\"},"
    "{\"role\": \"assistant\", \"content\": \"<think>a</think>b\", \"tool_calls\": [{\"id\": \"1\","
    "\"function\": {\"name\": \"f\", \"arguments\": {\"x\": [1, 2.5, null, true]}}}]}],"
    "\"tools\": [{\"function\": {\"name\": \"f\", \"parameters\": {}}}],"
    "\"tokens\": {\"bos_token\": \"<s>\"}, \"add_generation_prompt\": true}";

static void check(const rose_template_text *out)
{
    size_t at = 0;
    rose_json *text = rose_json_stringn(out->bytes, out->len);
    if (text == NULL || out->len > OUTPUT) abort(); /* not UTF-8, or too long */
    rose_json_decref(text);
    for (size_t i = 0; i < out->n_runs; i++) {
        if (out->runs[i].end <= at) abort();
        if (i > 0 && out->runs[i].message == out->runs[i - 1].message) abort();
        at = out->runs[i].end;
    }
    if (at != out->len || out->bytes[out->len] != '\0') abort();
}

static void render(const rose_template *t, const rose_json *q)
{
    rose_template_input in = {.messages = rose_json_get(q, "messages"),
                              .tools = rose_json_get(q, "tools"),
                              .documents = rose_json_get(q, "documents"),
                              .kwargs = rose_json_get(q, "kwargs"),
                              .tokens = rose_json_get(q, "tokens"),
                              .now_s = 1790000000,
                              .utc = true,
                              .limits = {200000, (size_t)32 << 20, OUTPUT, 200}};
    rose_template_text out;
    rose_err err = {""};
    in.add_generation_prompt = rose_json_is_true(rose_json_get(q, "add_generation_prompt"));
    in.continue_final_message = rose_json_is_true(rose_json_get(q, "continue_final_message"));
    if (rose_template_render(&out, t, &in, &err) == ROSE_OK)
        check(&out);
    else if (err.msg[0] == '\0' || out.bytes != NULL)
        abort();
    rose_template_text_free(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    size_t n = size == 0 ? 0 : strnlen(text, size);
    rose_template *t;
    rose_err err = {""};
    rose_json_error e;
    rose_json *q = NULL;
    if (rose_template_compile(&t, text, n, &err) != ROSE_OK) {
        if (t != NULL || err.msg[0] == '\0') abort();
        return 0;
    }
    if (n == size ||
        rose_json_parse(&q, text + n + 1, size - n - 1, ROSE_JSON_NUL, &e) != ROSE_OK ||
        !rose_json_is_object(q)) {
        rose_json_decref(q);
        if (rose_json_parse(&q, fixed, sizeof fixed - 1, 0, &e) != ROSE_OK) abort();
    }
    render(t, q);
    rose_json_decref(q);
    rose_template_free(t);
    return 0;
}
