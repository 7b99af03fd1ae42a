/* api/serve_opts.c - see serve_opts.h: the table of the server's options. A new option needs a
 * field of rose_http_opts or rose_api_opts, its default in rose_http_opts_default or
 * rose_api_opts_default, and a row here. */
#include "api/serve_opts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/profile.h"

enum { SPARE_CPUS = 4 };

void rose_serve_opts_default(rose_serve_flags *f)
{
    memset(f, 0, sizeof *f);
    rose_http_opts_default(&f->http);
    rose_api_opts_default(&f->api);
    rose_engine_flags_init(&f->engine);
    rose_batch_store_opts_default(&f->batch);
    f->api.model_id = NULL;
    f->log_level = "info";
    f->pull = true;
    f->uds_mode = "0600";
    f->generation_config = "auto";
    f->pooling_type = f->task = "auto";
    f->shutdown_timeout = 60;
    f->io_slice_us = 100;
    if (rose_cpus_allowed(f->io_cpu_list, ROSE_MAX_CPUS) < SPARE_CPUS ||
        rose_cpus_quota() < SPARE_CPUS) {
        f->api.early_wake = false;
    } else {
        f->api.poll_us = 2000;
    }
}

/* A table: as long as there are options. */
static size_t server_rows(rose_serve_flags *f, rose_opt *rows)
{
    const rose_opt all[] = {
        ROSE_ROW_BRIEF_HEADING("Server"),
        ROSE_ROW_STRING("config", &f->config, "FILE",
                        "read options from this file, in JSON or YAML: 'max-num-seqs: 8' is "
                        "--max-num-seqs 8, and 'model' is MODEL",
                        .config = true),
        ROSE_ROW_LIST("served-model-name", &f->served_names, "NAME",
                      "name of the model in the API. The option may be repeated: requests may use "
                      "any of the names, and replies have the first",
                      .unset = "the folder's name", .first = true),
        ROSE_ROW_STRING("host", &f->http.host, "HOST", "address to listen on, or unix:PATH",
                        .first = true),
        ROSE_ROW_U32("port", &f->http.port, "N", 0, 65535,
                     "port to listen on; 0 takes a free one and logs it", .first = true),
        ROSE_ROW_STRING(
            "uds", &f->http.uds, "PATH",
            "Unix socket to listen on instead of --host and --port. The socket of a dead "
            "server is replaced"),
        ROSE_ROW_STRING("uds-mode", &f->uds_mode, "MODE",
                        "file mode of the Unix socket, octal: who may connect"),
        ROSE_ROW_STRING("root-path", &f->http.root_path, "PATH",
                        "prefix under which a proxy shows the server, as /llm. Paths may come with "
                        "it or without it",
                        .unset = "none"),
        ROSE_ROW_STRING(
            "ssl-certfile", &f->http.tls_cert, "FILE",
            "serve HTTPS with this certificate: a PEM file with the chain. OpenSSL 3 must "
            "be installed"),
        ROSE_ROW_STRING("ssl-keyfile", &f->http.tls_key, "FILE",
                        "PEM file of the certificate's private key, without a password",
                        .unset = "in --ssl-certfile"),
        ROSE_ROW_LIST(
            "allowed-hosts", &f->http.allowed_hosts, "NAME",
            "names besides localhost that the Host header may hold, as a proxy or another "
            "machine sends them. The option may be repeated; * allows any name",
            .unset = "none on a loopback address, else any"),
        ROSE_ROW_LIST(
            "api-key", &f->api_keys, "KEY",
            "key that requests must send as 'Authorization: Bearer KEY'. The option may be "
            "repeated. Other users of the machine see it in ps; --api-key-file and the "
            "environment variable ROSEINFER_API_KEY hide it. Without any of them, VLLM_API_KEY "
            "and LLAMA_API_KEY count",
            .unset = "none: the server is open", .secret = true, .env_apart = true),
        ROSE_ROW_LIST("allowed-origins", &f->http.allowed_origins, "ORIGIN",
                      "web pages that may use the server from a browser, as https://example.org. "
                      "The option may be repeated; * allows every page",
                      .unset = "none"),
        ROSE_ROW_STRING("api-key-file", &f->api_key_file, "FILE",
                        "file of API keys, one a line, in addition to --api-key"),
        ROSE_ROW_STRING("chat-template", &f->chat_template, "FILE",
                        "chat template: a file, the text of a template, chatml, or plain (User: "
                        "and Assistant:)",
                        .unset = "the model's own, else plain", .first = true),
        ROSE_ROW_STRING("chat-template-kwargs", &f->api.chat_kwargs, "JSON",
                        "variables for the chat template, such as {\"enable_thinking\": false}. A "
                        "request's chat_template_kwargs takes precedence"),
        ROSE_ROW_FLAG("trust-request-chat-template", &f->trust_request_template,
                      "allow requests to bring a chat template of their own (chat_template)"),
        ROSE_ROW_CHOICE("tool-call-parser", &f->api.tool_call_parser,
                        "auto|none|hermes|llama3_json|qwen3_xml|pythonic|mistral",
                        "format in which the model writes calls of tools; auto takes the one that "
                        "the chat template shows, else hermes with a description of the tools in "
                        "the system message"),
        ROSE_ROW_CHOICE("reasoning-parser", &f->api.reasoning_parser,
                        "auto|none|qwen3|deepseek_r1|mistral",
                        "format in which the model writes its reasoning, which is kept apart from "
                        "the reply; auto takes the one that the chat template shows. deepseek_r1: "
                        "a reply begins with reasoning even without <think>"),
        ROSE_ROW_STRING("generation-config", &f->generation_config, "auto|none|PATH",
                        "sampling defaults of requests: those of the model, none, or those of "
                        "another folder or generation_config.json. vllm means none"),
        ROSE_ROW_STRING("override-generation-config", &f->generation_override, "JSON",
                        "sampling defaults that take precedence over --generation-config, as "
                        "{\"temperature\": 0.2, \"top_p\": 0.9}",
                        .unset = "none"),
        ROSE_ROW_CHOICE("pooling-type", &f->pooling_type, "auto|last|mean",
                        "the state that is an embedding: of the last token, or the mean of all. "
                        "auto reads the model's files, else last"),
        ROSE_ROW_CHOICE("task", &f->task, "auto|embed|rerank",
                        "what /v1/rerank and /v1/score compare: embeddings, or the answers yes and "
                        "no of a reranker. auto reads the model's config.json"),
        ROSE_ROW_STRING("seed", &f->seed, "N",
                        "seed of the requests that have none: request i since the start gets one "
                        "that follows from N and i, so that the same requests in the same order "
                        "get the same replies",
                        .unset = "random for each request"),
        ROSE_ROW_CHOICE("log-level", &f->log_level, "debug|info|warn|error|off",
                        "write log lines of this level and above to standard error", .first = true),
        ROSE_ROW_STRING("access-log", &f->access_log, "FILE",
                        "append a line of JSON for each request to this file; - is standard output",
                        .unset = "none", .first = true),
        ROSE_ROW_STRING("kv-events-config", &f->kv_events, "JSON",
                        "publish changes of the prefix cache for routers over ZeroMQ, as "
                        "{\"enable_kv_cache_events\": true, \"endpoint\": \"tcp://*:5557\"}. "
                        "libzmq must be installed",
                        .unset = "none"),
        ROSE_ROW_BOOL("web", &f->api.web, "serve a page at / to chat and to watch the server"),
        ROSE_ROW_BOOL("pull", &f->pull,
                      "fetch a model of the hub, ORG/NAME, that is not in the cache"),
        ROSE_ROW_BOOL("strict-fields", &f->api.strict_fields,
                      "refuse requests with fields that would be ignored. Otherwise the reply "
                      "names these fields in the header X-Ignored-Fields"),
        ROSE_ROW_U32("stream-interval", &f->api.stream_interval, "N", 1, 65536,
                     "number of tokens in each event of a stream; the first token is always sent "
                     "alone and at once"),
        ROSE_ROW_FLOAT("sse-ping-s", &f->api.sse_ping_s, "S", 0, 86400,
                       "seconds between two signs of life in a stream that waits for its first "
                       "token, so that proxies keep the connection. The response of a request in "
                       "the queue begins after this time. 0: it begins with the first token"),
        ROSE_ROW_BOOL("fast-sse", &f->api.fast_sse,
                      "build the events of a stream from prepared bytes instead of by the general "
                      "JSON writer"),

        ROSE_ROW_BRIEF_HEADING("Limits and time-outs"),
        ROSE_ROW_U32("max-n", &f->api.max_n, "N", 1, 4096,
                     "largest number of choices in one request: its prompts times its n"),
        ROSE_ROW_U32(
            "template-timeout-ms", &f->api.template_ms, "MS", 1, 0,
            "most CPU time that the chat template takes for one request; after it the request "
            "gets 400"),
        ROSE_ROW_BYTES("grammar-cache-bytes", &f->api.grammar_cache_bytes, 0, (uint64_t)1 << 40,
                       "most bytes of compiled grammars of structured output that are kept for "
                       "further requests"),
        ROSE_ROW_BYTES("max-body-size", &f->http.max_body_bytes, 1024, (uint64_t)1 << 32,
                       "longest request body; a longer one gets 413"),
        ROSE_ROW_BYTES("max-total-body-size", &f->http.max_total_body_bytes, 0, 0,
                       "most bytes of request bodies in memory at a time; a request beyond it "
                       "gets 503",
                       .unset = "32 times --max-body-size"),
        ROSE_ROW_U32("max-connections", &f->http.max_connections, "N", 1, 1u << 20,
                     "most open connections. One more replaces the connection that has waited "
                     "longest without a complete request, or gets 503"),
        ROSE_ROW_U32("header-timeout-ms", &f->http.header_timeout_ms, "MS", 1, 0,
                     "longest time from the first byte of a request to the end of its headers; "
                     "after it the client gets 408"),
        ROSE_ROW_U32("body-timeout-ms", &f->http.body_timeout_ms, "MS", 1, 0,
                     "longest pause within a request body; after it the client gets 408"),
        ROSE_ROW_U32("body-min-rate", &f->http.body_min_rate, "N", 0, 0,
                     "least bytes a second of a request body, on average, once --body-timeout-ms "
                     "has passed; a slower client gets 408. 0 sets no limit"),
        ROSE_ROW_U32("body-total-timeout-ms", &f->http.body_total_ms, "MS", 1, 0,
                     "longest time for a whole request body; after it the client gets 408"),
        ROSE_ROW_U32("idle-timeout-ms", &f->http.idle_timeout_ms, "MS", 1, 0,
                     "close a connection that has had no request for this time"),
        ROSE_ROW_U32("write-timeout-ms", &f->http.write_timeout_ms, "MS", 1, 0,
                     "drop a client that has read nothing for this time while a reply waits"),
        ROSE_ROW_BYTES("max-pending-bytes", &f->http.max_pending_bytes, 4096, 0,
                       "most unsent bytes of one stream; a client that reads more slowly is "
                       "dropped"),
        ROSE_ROW_BYTES("max-total-pending-bytes", &f->http.max_total_pending_bytes, 0, 0,
                       "most unsent bytes of all replies together; beyond it the client that has "
                       "read nothing for longest is dropped",
                       .unset = "256 times --max-pending-bytes"),
        ROSE_ROW_U32("shutdown-timeout", &f->shutdown_timeout, "S", 0, 0,
                     "seconds that running requests may still take after SIGTERM"),

        ROSE_ROW_BRIEF_HEADING("Server threads"),
        ROSE_ROW_U32("io-threads", &f->http.n_threads, "N", 1, 64,
                     "number of threads for connections and streams"),
        ROSE_ROW_STRING("io-cpus", &f->io_cpus, "LIST", "CPUs of the I/O threads, as 0-3,6",
                        .unset = "not pinned"),
        ROSE_ROW_U32("io-slice-us", &f->io_slice_us, "US", 0, 100000,
                     "time slice that I/O threads and tokenizer workers ask the kernel for. A "
                     "short slice lets them run sooner on a CPU that computes (Linux 6.12). 0 "
                     "leaves it to the kernel"),
        ROSE_ROW_BOOL("async-admit", &f->api.async_admit,
                      "parse and tokenise requests on worker threads instead of the I/O threads"),
        ROSE_ROW_U32("tokenize-workers", &f->api.n_workers, "N", 1, 64,
                     "number of these worker threads"),
        ROSE_ROW_U32("inline-admit-bytes", &f->api.inline_bytes, "N", 0, ROSE_API_MAX_INLINE,
                     "parse and tokenise completions with bodies up to this size on the I/O thread "
                     "nevertheless, while that takes at most a fifth of its time; 0 does so for "
                     "none"),
        ROSE_ROW_BOOL("early-wake", &f->api.early_wake,
                      "with a GPU: wake the engine thread when a request has arrived, before it is "
                      "tokenised",
                      .says = "on; off with fewer than 4 CPUs"),
        ROSE_ROW_U32("io-poll-us", &f->api.poll_us, "US", 0, 1000000,
                     "with a GPU and --early-wake: how long an I/O thread polls for the first "
                     "token of a request before it sleeps",
                     .says = "2000; 0 with fewer than 4 CPUs"),
    };
    _Static_assert(sizeof all / sizeof *all <= 80, "too many rows");
    memcpy(rows, all, sizeof all);
    return sizeof all / sizeof *all;
}

static size_t batch_rows(rose_serve_flags *f, rose_opt *rows)
{
    const rose_opt all[] = {
        ROSE_ROW_BRIEF_HEADING("Files and batches"),
        ROSE_ROW_STRING("batch-dir", &f->batch.dir, "DIR",
                        "keep files and batches here, for /v1/files and /v1/batches. Batches run "
                        "after other requests, and go on after a restart",
                        .unset = "both paths answer 404"),
        ROSE_ROW_U32("batch-max-lines", &f->batch.max_lines, "N", 1, 1u << 30,
                     "most requests of one batch"),
        ROSE_ROW_U32("batch-max-files", &f->batch.max_files, "N", 1, 1u << 20,
                     "most files of one API key, and likewise most batches; without keys all "
                     "clients count as one"),
        ROSE_ROW_BYTES("batch-max-bytes", &f->batch.max_bytes, 1, 0,
                       "most bytes of all files; an upload beyond them is refused, and a batch "
                       "whose results go beyond them fails"),
        ROSE_ROW_U32("batch-expire-hours", &f->batch.expire_hours, "N", 0, 1u << 20,
                     "age at which files and ended batches are deleted; 0 deletes none"),
    };
    _Static_assert(sizeof all / sizeof *all <= 8, "too many rows");
    memcpy(rows, all, sizeof all);
    return sizeof all / sizeof *all;
}

/* These rows follow the engine's rows, so that their group comes late in --help-all. */
static size_t profiling_rows(rose_serve_flags *f, rose_opt *rows)
{
    const rose_opt all[] = {
        ROSE_ROW_BRIEF_HEADING("Profiling"),
        ROSE_ROW_STRING("profiler-dir", &f->api.profiler_dir, "DIR",
                        "allow POST /start_profile and /stop_profile, which write traces to DIR",
                        .unset = "both are refused"),
        ROSE_ROW_U32("profiler-events", &f->api.profiler_events, "N", ROSE_PROF_MIN_EVENTS,
                     ROSE_PROF_MAX_EVENTS,
                     "number of events of each thread that a profile holds, 48 bytes each"),
        ROSE_ROW_FLAG("nvtx", &f->nvtx, "mark what a profile shows as NVTX ranges, for nsys"),
        ROSE_ROW_U32("stall-warn-ms", &f->stall_warn_ms, "MS", 0, 3600000,
                     "log an engine step, a turn of an I/O thread, a tokenizer job or a wait for a "
                     "client that takes longer than this, and why",
                     .unset = "off"),
    };
    _Static_assert(sizeof all / sizeof *all <= 8, "too many rows");
    memcpy(rows, all, sizeof all);
    return sizeof all / sizeof *all;
}

size_t rose_serve_opts_rows(rose_serve_flags *f, rose_opt *rows)
{
    size_t n = server_rows(f, rows);
    n += batch_rows(f, rows + n);
    n += rose_engine_flags_rows(&f->engine, rows + n);
    return n + profiling_rows(f, rows + n);
}

/* Returns -1, or the exit code after a message. */
static int read_seed(rose_serve_flags *f)
{
    char *end;
    if (f->seed == NULL) return -1;
    errno = 0;
    f->api.seed = strtoull(f->seed, &end, 10);
    f->api.has_seed = true;
    if (f->seed[0] >= '0' && f->seed[0] <= '9' && *end == '\0' && errno == 0) return -1;
    fprintf(stderr, "roseinfer: --seed %.40s: expected a whole number from 0 to 2^64 - 1\n",
            f->seed);
    return 2;
}

int rose_serve_opts_parse(rose_serve_flags *f, int argc, char **argv, char *const *env,
                          const char **model)
{
    rose_opt opts[ROSE_SERVE_OPT_ROWS];
    uint32_t n_args;
    rose_serve_opts_default(f);
    f->sources.env = env;
    const rose_command c = {
        .usage = "roseinfer serve MODEL [options]",
        .about =
            "Serves a model over the HTTP APIs of OpenAI and Anthropic: /v1/chat/completions,\n"
            "/v1/completions, /v1/responses, /v1/messages, /v1/embeddings, /v1/rerank, /v1/score,\n"
            "/v1/models, /tokenize, /detokenize, /apply-template, /health, /ready, /version, "
            "/metrics,\n"
            "/v1/files and /v1/batches with --batch-dir, /start_profile and /stop_profile with\n"
            "--profiler-dir, and a page at /.\n"
            "SIGTERM, Ctrl-C or a hangup lets running requests finish; a second one ends at once.\n"
            "The exit code is 1 if the engine has failed. /health is 503 after that, and while the "
            "model loads.\n"
            "Options also come from environment variables (ROSEINFER_MAX_NUM_SEQS is "
            "--max-num-seqs,\n"
            "ROSEINFER_MODEL is MODEL) and from the file of --config. The command line takes "
            "precedence\n"
            "over the environment, and the environment over the file.",
        .opts = opts,
        .n_opts = rose_serve_opts_rows(f, opts),
        .min_args = 1,
        .max_args = 1,
        .foreign = &rose_serve_foreign,
    };
    int rc = rose_opts_parse_from(&c, &f->sources, argc, argv, model, &n_args);
    if (rc < 0) rc = rose_serve_foreign_check(&f->sources.foreign, *model);
    if (rc < 0) rc = rose_serve_foreign_check(&f->sources.foreign_file, *model);
    return rc < 0 ? read_seed(f) : rc;
}

static rose_status read_mode(uint32_t *out, const char *text, rose_err *err)
{
    uint32_t mode = 0;
    size_t n = 0;
    for (; text[n] >= '0' && text[n] <= '7' && n < 4; n++)
        mode = mode * 8 + (uint32_t)(text[n] - '0');
    if (n == 0 || text[n] != '\0' || mode > 0777)
        return rose_fail(err, ROSE_E_INVAL, "--uds-mode %.40s: expected an octal mode up to 0777",
                         text);
    *out = mode;
    return ROSE_OK;
}

static rose_status check_root(const char *path, rose_err *err)
{
    bool ok = path == NULL || path[0] == '/' || path[0] == '\0';
    for (const char *p = path; ok && p != NULL && *p != '\0'; p++)
        ok = *p > ' ' && *p < 0x7f && *p != '?' && *p != '#';
    if (ok) return ROSE_OK;
    return rose_fail(err, ROSE_E_INVAL,
                     "--root-path %.200s: expected a path such as /llm: a slash first, no query, "
                     "and bytes other than ASCII as %%XX",
                     path);
}

rose_status rose_serve_opts_read(rose_serve_flags *f, rose_err *err)
{
    f->api.n_io_threads = f->http.n_threads;
    rose_status st = read_mode(&f->http.unix_mode, f->uds_mode, err);
    if (st == ROSE_OK) st = check_root(f->http.root_path, err);
    if (st != ROSE_OK) return st;
    if (f->io_cpus == NULL) return ROSE_OK;
    f->http.cpus = f->io_cpu_list;
    return rose_cpu_list_parse(f->io_cpus, f->io_cpu_list, ROSE_MAX_CPUS, &f->http.n_cpus, err);
}
