/* hub/hub.h - models of the Hugging Face hub: what is in the cache on this machine, and how to
 * fetch the rest (cache.c). The cache has the layout of huggingface_hub, so both programs share it.
 * The caller reads the environment. Main thread, before other threads start. */
#ifndef ROSE_HUB_HUB_H
#define ROSE_HUB_HUB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"

/* All texts are borrowed. */
typedef struct rose_hub {
    char name[200];       /* "ORG/NAME" */
    char quant[56];       /* "Q4_K_M": the GGUF file of this type; "" = the model's own files */
    const char *revision; /* a branch, tag or commit */
    const char *endpoint; /* "https://huggingface.co", no '/' at the end */
    const char *cache;    /* the folder of models--ORG--NAME */
    const char *token;    /* NULL = none */
    const char *ca_file;  /* certificates to trust; NULL = libcurl's own */
    const char *ca_dir;   /* a folder of them; NULL = libcurl's own */
    const char *ca_from;  /* the variables that named these two; NULL = none did */
    uint32_t stall_s;     /* give a connection up that brought nothing for so long */
    uint32_t retries;     /* failed tries in a row before an error */
    bool log;             /* progress goes to the log, not to standard error */
} rose_hub;

/* Reads ORG/NAME[:QUANT] into name and quant. False if text has another form. */
bool rose_hub_parse(rose_hub *h, const char *text);

/* Appends the path of the model in the cache, complete: a folder, or a GGUF file. Errors: NOTFOUND
 * (not there, or not all of it), INVAL (several GGUF files fit), NOMEM. */
rose_status rose_hub_find(const rose_hub *h, rose_buf *path, rose_err *err);

/* Fetches what the cache lacks of the model and appends the path. A file under its final name is
 * always whole, and its SHA-256 was checked if the hub gave one. Errors: NOTFOUND, INVAL, IO,
 * FORMAT, UNSUPPORTED, NOMEM. */
rose_status rose_hub_pull(const rose_hub *h, rose_buf *path, rose_err *err);

/* ---- http.c: GET through libcurl, which is loaded on the first call ---- */

/* Takes n bytes of the body. False: stop; the receiver knows why. */
typedef bool (*rose_hub_take)(void *ctx, const void *bytes, size_t n);

typedef struct rose_hub_reply {
    long code;             /* of HTTP; 0: no reply */
    bool again;            /* a failure of the network or the server: worth another try */
    uint64_t first, total; /* of Content-Range; 0, 0 without it */
    uint32_t retry_after;  /* seconds; 0 = not said */
    char error_code[40];   /* of X-Error-Code */
} rose_hub_reply;

/* Asks for url from byte `from` on. Redirects are followed; only the endpoint's own origin gets the
 * token. start is called before the body of a reply 200 or 206, whose bytes go to take. Errors: IO
 * (the network), UNSUPPORTED (no libcurl), FORMAT (a redirect that must not be followed), NOMEM.
 * A reply with another code is no error. */
rose_status rose_hub_get(const rose_hub *h, const char *url, uint64_t from,
                         bool (*start)(void *ctx, const rose_hub_reply *r), rose_hub_take take,
                         void *ctx, rose_hub_reply *r, rose_err *err);

#endif
