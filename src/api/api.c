/* api/api.c - the main object of the API: options, one wake queue pair per I/O thread, the
 * workers. */
#include "api/api.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/api_internal.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/profile.h"

void rose_api_opts_default(rose_api_opts *o)
{
    *o = (rose_api_opts){
        .model_id = "model",
        .pooling = {.pool = ROSE_POOL_LAST, .normalizes = true},
        .version = ROSE_VERSION,
        .n_io_threads = 1,
        .n_workers = 4,
        .max_queued_jobs = 1024,
        .template_ms = 2000,
        .async_admit = true,
        .inline_bytes = 4096,
        .early_wake = true,
        .fast_sse = true,
        .web = true,
        .stream_interval = 1,
        .sse_ping_s = 10.0f,
        .max_n = 128,
        .max_stop = 64,
        .tool_call_parser = "auto",
        .reasoning_parser = "auto",
        .grammar_cache_bytes = (uint64_t)128 << 20,
        .profiler_events = ROSE_PROF_DEFAULT_EVENTS,
    };
}

static rose_status check_opts(const rose_api_opts *o, rose_err *err)
{
    if (o->model_id == NULL || o->model_id[0] == '\0')
        return rose_fail(err, ROSE_E_INVAL, "api: the model has no name");
    if (o->n_io_threads < 1 || o->n_io_threads > 64)
        return rose_fail(err, ROSE_E_INVAL, "api: %u I/O threads, 1 to 64 are possible",
                         o->n_io_threads);
    if (o->n_workers < 1 || o->n_workers > 64)
        return rose_fail(err, ROSE_E_INVAL, "api: %u tokenizer workers, 1 to 64 are possible",
                         o->n_workers);
    if (o->max_queued_jobs < 1 || o->max_n < 1 || o->max_n > ROSE_API_MAX_LIVE ||
        o->max_stop > 1024 || o->inline_bytes > ROSE_API_MAX_INLINE || o->stream_interval < 1 ||
        o->stream_interval > 65536 || !(o->sse_ping_s >= 0 && o->sse_ping_s <= 86400))
        return rose_fail(err, ROSE_E_INVAL, "api: a limit is out of range");
    return ROSE_OK;
}

/* Better than a 500 when it is used. */
static rose_status check_profiler(const rose_api_opts *o, rose_err *err)
{
    struct stat s;
    if (o->profiler_events < ROSE_PROF_MIN_EVENTS || o->profiler_events > ROSE_PROF_MAX_EVENTS)
        return rose_fail(err, ROSE_E_INVAL, "api: %u profiler events, %d to %d are possible",
                         o->profiler_events, ROSE_PROF_MIN_EVENTS, ROSE_PROF_MAX_EVENTS);
    if (o->profiler_dir == NULL) return ROSE_OK;
    if (stat(o->profiler_dir, &s) != 0)
        return rose_fail(err, ROSE_E_IO, "profiler folder %s: %s", o->profiler_dir,
                         strerror(errno));
    if (!S_ISDIR(s.st_mode) || access(o->profiler_dir, W_OK | X_OK) != 0)
        return rose_fail(err, ROSE_E_IO, "profiler folder %s: it cannot be written to",
                         o->profiler_dir);
    return ROSE_OK;
}

static rose_status parse_kwargs(rose_api *a, const char *text, rose_err *err)
{
    rose_json_error e;
    if (text == NULL) return ROSE_OK;
    const rose_status st = rose_json_parse(&a->chat_kwargs, text, strlen(text), 0, &e);
    if (st == ROSE_E_NOMEM) return rose_fail(err, st, "api: out of memory");
    if (st == ROSE_OK && rose_json_is_object(a->chat_kwargs)) return ROSE_OK;
    return rose_fail(err, ROSE_E_INVAL,
                     "--chat-template-kwargs needs a JSON object, such as "
                     "{\"enable_thinking\": false}%s%.100s",
                     st != ROSE_OK ? ": " : "", st != ROSE_OK ? e.text : "");
}

static rose_status create_io(rose_api *a, rose_err *err)
{
    a->io = calloc(a->o.n_io_threads, sizeof *a->io);
    if (a->io == NULL) return rose_fail(err, ROSE_E_NOMEM, "api: out of memory");
    for (uint32_t i = 0; i < a->o.n_io_threads; i++) {
        rose_status st;
        a->io[i].api = a;
        a->io[i].thread = i;
        /* whole cache lines, so that two counting threads share none */
        size_t bytes = (sizeof(rose_api_metrics) + 63) / 64 * 64;
        a->io[i].metrics = aligned_alloc(64, bytes);
        if (a->io[i].metrics == NULL) return rose_fail(err, ROSE_E_NOMEM, "api: out of memory");
        memset(a->io[i].metrics, 0, bytes);
        if ((st = rose_wakeq_create(&a->io[i].sink, ROSE_API_MAX_LIVE, err)) != ROSE_OK) return st;
        if ((st = rose_wakeq_create(&a->io[i].done, 2 * ROSE_API_MAX_LIVE, err)) != ROSE_OK)
            return st;
    }
    return ROSE_OK;
}

rose_status rose_api_create(rose_api **out, const rose_api_opts *o, rose_err *err)
{
    rose_status st = ROSE_OK;
    rose_api *a = NULL;
    uint64_t first_id = rose_now_ns();

    *out = NULL;
    if ((st = check_opts(o, err)) != ROSE_OK) return st;
    if ((st = check_profiler(o, err)) != ROSE_OK) return st;
    if ((a = calloc(1, sizeof *a)) == NULL)
        return rose_fail(err, ROSE_E_NOMEM, "api: out of memory");
    a->o = *o;
    if (o->version == NULL) a->o.version = ROSE_VERSION;
    pthread_mutex_init(&a->profile_lock, NULL);
    pthread_mutex_init(&a->logged.lock, NULL);
    rose_api_grammars_init(&a->grammars, o->grammar_cache_bytes);
    if ((st = parse_kwargs(a, o->chat_kwargs, err)) != ROSE_OK) goto done;
    a->created = rose_unix_time();
    if (getrandom(&first_id, sizeof first_id, GRND_NONBLOCK) < 0) first_id = rose_now_ns();
    atomic_init(&a->next_id, first_id);
    if ((st = create_io(a, err)) != ROSE_OK) goto done;
    if (o->async_admit)
        st = rose_api_workers_create(&a->workers, a, o->n_workers, o->max_queued_jobs, err);
    if (st == ROSE_OK) *out = a;
done:
    if (st != ROSE_OK) rose_api_destroy(a);
    return st;
}

rose_http_callbacks rose_api_callbacks(rose_api *a)
{
    return (rose_http_callbacks){.on_done = a->o.access != NULL ? rose_api_on_done : NULL,
                                 .on_request = rose_api_on_request,
                                 .on_gone = rose_api_on_gone,
                                 .on_head = rose_api_on_head,
                                 .is_vital = rose_api_is_vital,
                                 .error_body = rose_api_on_error_body,
                                 .poll = rose_api_io_poll,
                                 .arg = a};
}

rose_status rose_api_attach(rose_api *a, rose_http *h, rose_err *err)
{
    a->http = h;
    for (uint32_t i = 0; i < a->o.n_io_threads; i++) {
        rose_api_io *io = &a->io[i];
        rose_status st;
        st = rose_http_watch(h, i, rose_wakeq_fd(io->sink), rose_api_io_on_sink, io, err);
        if (st != ROSE_OK) return st;
        st = rose_http_watch(h, i, rose_wakeq_fd(io->done), rose_api_io_on_done, io, err);
        if (st != ROSE_OK) return st;
    }
    return ROSE_OK;
}

void rose_api_set_engine(rose_api *a, rose_engine *e, const rose_tokenizer *t)
{
    a->tok = t;
    /* release: pairs with the acquire loads of engine; a thread that sees the engine also sees
     * tok */
    atomic_store_explicit(&a->engine, e, memory_order_release);
}

void rose_api_drain(rose_api *a)
{
    atomic_store_explicit(&a->draining, true, memory_order_relaxed); /* a flag by itself */
}

static void free_io(rose_api_io *io)
{
    rose_wakeq_destroy(io->sink);
    rose_wakeq_destroy(io->done);
    rose_encoder_destroy(io->encoder);
    free(io->piece);
    free(io->metrics);
    rose_api_out_free(&io->text);
    rose_api_out_free(&io->out);
    rose_api_out_free(&io->tail);
}

void rose_api_stop(rose_api *a)
{
    if (a == NULL) return;
    rose_api_workers_destroy(a->workers);
    a->workers = NULL;
    rose_api_profile_close(a);
    for (uint32_t i = 0; a->io != NULL && i < a->o.n_io_threads; i++) {
        if (a->io[i].done != NULL)
            rose_api_io_on_done(&a->io[i]); /* nobody waits: all are cancelled */
    }
}

void rose_api_destroy(rose_api *a)
{
    uint32_t n_left = 0;
    if (a == NULL) return;
    rose_api_stop(a);
    for (uint32_t i = 0; a->io != NULL && i < a->o.n_io_threads; i++) {
        if (a->io[i].done == NULL) continue; /* half built */
        rose_api_io_on_sink(&a->io[i]);
        n_left += a->io[i].n_jobs;
    }
    if (n_left > 0) { /* the engine was not closed; it may still write into this memory */
        rose_log(ROSE_LOG_ERROR, "api", "%u requests without an end; their memory is kept", n_left);
        return;
    }
    for (uint32_t i = 0; a->io != NULL && i < a->o.n_io_threads; i++)
        free_io(&a->io[i]);
    free(a->io);
    rose_json_decref(a->chat_kwargs);
    pthread_mutex_destroy(&a->profile_lock);
    pthread_mutex_destroy(&a->logged.lock);
    rose_api_grammars_free(&a->grammars);
    free(a);
}
