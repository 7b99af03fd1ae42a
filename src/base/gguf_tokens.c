/* base/gguf_tokens.c - tokens that the metadata of a GGUF file do not describe well: control tokens
 * that only their text tells, and ids that no token has. */
#include <string.h>

#include "base/gguf.h"

/* What DeepSeek writes for '|' and for a space. */
#define BAR   "\xef\xbd\x9c" /* U+FF5C */
#define SPACE "\xe2\x96\x81" /* U+2581 */

/* Texts that llama.cpp takes for control tokens whatever their type says, because converters of
 * some models wrote NORMAL. */
static const char *const ends_text[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<" BAR "end" SPACE "of" SPACE "sentence" BAR ">", "[e~[",
    /* padding, repository and file of code completion also end a text */
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>",
    "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"};

/* The three parts of code completion: prefix, suffix and middle. */
static const char *const controls[] = {
    "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>",    "<" BAR "fim" SPACE "begin" BAR ">",
    "<PRE>",          SPACE "<PRE>",  "<|code_prefix|>", "<|prefix|>",
    "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>",    "<" BAR "fim" SPACE "hole" BAR ">",
    "<SUF>",          SPACE "<SUF>",  "<|code_suffix|>", "<|suffix|>",
    "<|fim_middle|>", "<fim-middle>", "<fim_middle>",    "<" BAR "fim" SPACE "end" BAR ">",
    "<MID>",          SPACE "<MID>",  "<|code_middle|>", "<|middle|>"};

static bool is_one_of(rose_gguf_str s, const char *const *texts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (rose_gguf_str_is(s, texts[i])) return true;
    return false;
}

bool rose_gguf_str_is(rose_gguf_str s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.s, text, s.n) == 0;
}

rose_gguf_token_kind rose_gguf_token_kind_of(rose_gguf_str text, int32_t type)
{
    /* every text in the lists begins with one of these bytes, which few tokens do */
    if (text.n < 4 || strchr("<_[\xe2", text.s[0]) == NULL) return ROSE_GGUF_PLAIN;
    /* Gemma's </s> is a tag of HTML, and the file says so. */
    if (type == ROSE_GGUF_USER_DEFINED && rose_gguf_str_is(text, "</s>")) return ROSE_GGUF_PLAIN;
    if (is_one_of(text, ends_text, sizeof ends_text / sizeof *ends_text))
        return ROSE_GGUF_ENDS_TEXT;
    return is_one_of(text, controls, sizeof controls / sizeof *controls) ? ROSE_GGUF_CONTROLS
                                                                         : ROSE_GGUF_PLAIN;
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
