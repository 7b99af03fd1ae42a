/* base/gguf_tokens.c - tokens that the metadata of a GGUF file do not describe well: control tokens
 * that only their text tells, and ids that no token has. */
#include <string.h>

#include "base/gguf.h"

/* Texts that llama.cpp takes for control tokens whatever their type says, because converters of
 * some models wrote NORMAL. */
static const struct {
    const char *text;
    rose_gguf_token_kind kind;
} known[] = {
    {"<|eot_id|>", ROSE_GGUF_ENDS_TEXT},
    {"<|im_end|>", ROSE_GGUF_ENDS_TEXT},
    {"<|end|>", ROSE_GGUF_ENDS_TEXT},
    {"<|return|>", ROSE_GGUF_ENDS_TEXT},
    {"<|call|>", ROSE_GGUF_ENDS_TEXT},
    {"<|flush|>", ROSE_GGUF_ENDS_TEXT},
    {"<|calls|>", ROSE_GGUF_ENDS_TEXT},
    {"<end_of_turn>", ROSE_GGUF_ENDS_TEXT},
    {"<|endoftext|>", ROSE_GGUF_ENDS_TEXT},
    {"</s>", ROSE_GGUF_ENDS_TEXT},
    {"<|eom_id|>", ROSE_GGUF_ENDS_TEXT},
    {"<EOT>", ROSE_GGUF_ENDS_TEXT},
    {"_<EOT>", ROSE_GGUF_ENDS_TEXT},
    {"[EOT]", ROSE_GGUF_ENDS_TEXT},
    {"[EOS]", ROSE_GGUF_ENDS_TEXT},
    {"<|end_of_text|>", ROSE_GGUF_ENDS_TEXT},
    {"<end_of_utterance>", ROSE_GGUF_ENDS_TEXT},
    {"<eos>", ROSE_GGUF_ENDS_TEXT},
    {"<turn|>", ROSE_GGUF_ENDS_TEXT},
    {"<|tool_response>", ROSE_GGUF_ENDS_TEXT},
    {"<\xef\xbd\x9c" /* U+FF5C and U+2581, as DeepSeek writes them */
     "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
     ROSE_GGUF_ENDS_TEXT},
    {"[e~[", ROSE_GGUF_ENDS_TEXT},
    /* padding, repository and file of code completion also end a text */
    {"<|fim_pad|>", ROSE_GGUF_ENDS_TEXT},
    {"<fim-pad>", ROSE_GGUF_ENDS_TEXT},
    {"<fim_pad>", ROSE_GGUF_ENDS_TEXT},
    {"<PAD>", ROSE_GGUF_ENDS_TEXT},
    {"[PAD]", ROSE_GGUF_ENDS_TEXT},
    {"<|fim_repo|>", ROSE_GGUF_ENDS_TEXT},
    {"<|repo_name|>", ROSE_GGUF_ENDS_TEXT},
    {"<fim-repo>", ROSE_GGUF_ENDS_TEXT},
    {"<REPO>", ROSE_GGUF_ENDS_TEXT},
    {"<reponame>", ROSE_GGUF_ENDS_TEXT},
    {"<|file_sep|>", ROSE_GGUF_ENDS_TEXT},
    {"<|fim_prefix|>", ROSE_GGUF_CONTROLS},
    {"<fim-prefix>", ROSE_GGUF_CONTROLS},
    {"<fim_prefix>", ROSE_GGUF_CONTROLS},
    {"<\xef\xbd\x9c"
     "fim\xe2\x96\x81"
     "begin\xef\xbd\x9c>",
     ROSE_GGUF_CONTROLS},
    {"<PRE>", ROSE_GGUF_CONTROLS},
    {"\xe2\x96\x81<PRE>", ROSE_GGUF_CONTROLS},
    {"<|code_prefix|>", ROSE_GGUF_CONTROLS},
    {"<|prefix|>", ROSE_GGUF_CONTROLS},
    {"<|fim_suffix|>", ROSE_GGUF_CONTROLS},
    {"<fim-suffix>", ROSE_GGUF_CONTROLS},
    {"<fim_suffix>", ROSE_GGUF_CONTROLS},
    {"<\xef\xbd\x9c"
     "fim\xe2\x96\x81hole\xef\xbd\x9c>",
     ROSE_GGUF_CONTROLS},
    {"<SUF>", ROSE_GGUF_CONTROLS},
    {"\xe2\x96\x81<SUF>", ROSE_GGUF_CONTROLS},
    {"<|code_suffix|>", ROSE_GGUF_CONTROLS},
    {"<|suffix|>", ROSE_GGUF_CONTROLS},
    {"<|fim_middle|>", ROSE_GGUF_CONTROLS},
    {"<fim-middle>", ROSE_GGUF_CONTROLS},
    {"<fim_middle>", ROSE_GGUF_CONTROLS},
    {"<\xef\xbd\x9c"
     "fim\xe2\x96\x81"
     "end\xef\xbd\x9c>",
     ROSE_GGUF_CONTROLS},
    {"<MID>", ROSE_GGUF_CONTROLS},
    {"\xe2\x96\x81<MID>", ROSE_GGUF_CONTROLS},
    {"<|code_middle|>", ROSE_GGUF_CONTROLS},
    {"<|middle|>", ROSE_GGUF_CONTROLS},
};

bool rose_gguf_str_is(rose_gguf_str s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.s, text, s.n) == 0;
}

rose_gguf_token_kind rose_gguf_token_kind_of(rose_gguf_str text, int32_t type)
{
    /* every text in the table begins with one of these bytes, which few tokens do */
    if (text.n < 4 || strchr("<_[\xe2", text.s[0]) == NULL) return ROSE_GGUF_PLAIN;
    /* Gemma's </s> is a tag of HTML, and the file says so. */
    if (type == ROSE_GGUF_USER_DEFINED && rose_gguf_str_is(text, "</s>")) return ROSE_GGUF_PLAIN;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (rose_gguf_str_is(text, known[i].text)) return known[i].kind;
    return ROSE_GGUF_PLAIN;
}

bool rose_gguf_get_id(const rose_gguf *g, const char *key, uint64_t n_ids, uint32_t *id)
{
    rose_err err;
    uint32_t found = 0;
    if (rose_gguf_get(g, key) == NULL) return true;
    if (rose_gguf_get_u32(g, key, &found, &err) != ROSE_OK || found >= n_ids) return false;
    *id = found;
    return true;
}
