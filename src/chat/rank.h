/* chat/rank.h - the prompt in which a reranker judges a document: the template of Qwen3-Reranker's
 * model card. Its answer is yes or no, and the score is P(yes) / (P(yes) + P(no)). The prompt is
 * head, body and tail; no special token may match in the body, which holds foreign texts. */
#ifndef ROSE_CHAT_RANK_H
#define ROSE_CHAT_RANK_H

#include "base/buf.h"
#include "tokenizer/tokenizer.h"

extern const char rose_rank_head[], rose_rank_tail[];

/* A text of len bytes; text NULL = not given. */
typedef struct rose_rank_text {
    const char *text;
    size_t len;
} rose_rank_text;

/* Appends the body. instruction: what to judge; not given = that of the model card. Errors: NOMEM.
 */
rose_status rose_rank_body(rose_buf *out, rose_rank_text instruction, rose_rank_text query,
                           rose_rank_text document);

/* The ids of the answers yes and no; vocab: ids that the model has. INVAL: it lacks one. */
rose_status rose_rank_answers(const rose_tokenizer *t, uint32_t vocab, uint32_t answers[2],
                              rose_err *err);

#endif
