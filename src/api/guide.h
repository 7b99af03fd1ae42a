/* api/guide.h - structured output: what the text of a request must obey, and the guides of its
 * choices. A guide (engine/engine.h) tells the engine which ids may come next.
 *
 * A request asks for a structure (structured.c reads its fields). A worker finds or compiles the
 * grammar and keeps it in the job; each choice then gets a guide of its own. The vocabulary and the
 * cache of grammars belong to the model. The first request that needs them makes them, which takes
 * 15 to 100 ms.
 *
 * An I/O thread never compiles a grammar. It hands the job to a worker instead. At most half of the
 * workers compile at a time (worker.c), so other requests find a free worker. Clients take turns
 * (turns.h). */
#ifndef ROSE_API_GUIDE_H
#define ROSE_API_GUIDE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/json.h"
#include "engine/engine.h"
#include "grammar/cache.h"

/* What the text must obey. */
typedef struct rose_api_structure {
    bool any; /* false: the text is free */
    rose_grammar_kind kind;
    bool schema_order;
    char param[64];         /* the field that asks for it */
    const rose_json *value; /* borrowed from the request. A string is the text of the grammar; the
                             * JSON of any other value is the text. NULL: the kind has no text */
} rose_api_structure;

/* The grammars of the model; a member of rose_api. */
typedef struct rose_api_grammars {
    pthread_mutex_t lock;                /* held while the cache is made */
    _Atomic(rose_grammar_cache *) cache; /* owned; NULL until a request needs it */
    size_t max_bytes;                    /* of the cache */
} rose_api_grammars;

void rose_api_grammars_init(rose_api_grammars *g, size_t max_bytes);
void rose_api_grammars_free(rose_api_grammars *g); /* call after the workers have ended */
/* All figures are 0 until a request has made the cache. Any thread. */
void rose_api_grammars_read(const rose_api_grammars *g, rose_grammar_cache_stats *out);

/* Sets j->grammar to the grammar of what the fields of a request ask for, from the cache or newly
 * compiled; if they ask for nothing, it does nothing. Call it on the thread that runs the job,
 * before the prompts are tokenised. False: the caller must return. Either j->err says why (400 with
 * the compiler's message and s->param), or j->declined is set and a worker must run the job again.
 */
struct rose_api_job;
bool rose_api_guide_load(struct rose_api_job *j, const rose_api_structure *s);

/* Gives each choice of the job a guide that stands at the start of j->grammar. Without a grammar it
 * does nothing. False: out of memory, and j->err says so. */
bool rose_api_guides_create(struct rose_api_job *j);

/* Destroys a guide that was not passed to the engine. Accepts {0}, which is no guide. */
void rose_api_guide_destroy(rose_guide *g);

#endif
