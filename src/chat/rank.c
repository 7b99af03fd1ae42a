/* chat/rank.c - see rank.h. */
#include "chat/rank.h"

#include <string.h>

const char rose_rank_head[] =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    "the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n"
    "<|im_start|>user\n";
const char rose_rank_tail[] = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
static const char card[] =
    "Given a web search query, retrieve relevant passages that answer the query";

static rose_status add(rose_buf *out, const char *label, rose_rank_text t)
{
    const rose_status st = rose_buf_add(out, label, strlen(label));
    return st == ROSE_OK && t.len > 0 ? rose_buf_add(out, t.text, t.len) : st;
}

rose_status rose_rank_body(rose_buf *out, rose_rank_text instruction, rose_rank_text query,
                           rose_rank_text document)
{
    if (instruction.text == NULL) instruction = (rose_rank_text){card, sizeof card - 1};
    rose_status st = add(out, "<Instruct>: ", instruction);
    if (st == ROSE_OK) st = add(out, "\n<Query>: ", query);
    return st == ROSE_OK ? add(out, "\n<Document>: ", document) : st;
}

rose_status rose_rank_answers(const rose_tokenizer *t, uint32_t vocab, uint32_t answers[2],
                              rose_err *err)
{
    static const char *const names[2] = {"yes", "no"};
    for (int i = 0; i < 2; i++)
        if (!rose_tokenizer_find(t, names[i], strlen(names[i]), &answers[i]) || answers[i] >= vocab)
            return rose_fail(err, ROSE_E_INVAL,
                             "the model's vocabulary has no token '%s', so it cannot rank; "
                             "--task embed compares embeddings",
                             names[i]);
    return ROSE_OK;
}
