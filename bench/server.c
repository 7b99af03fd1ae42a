/* bench/server.c - see server.h. A driver is one row of a table: the command line that users of
 * that server type, and the path that answers 200 when the server is ready. */
#include "bench/server.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/utf8.h"
#include "bench/results.h"

enum { POLL_MS = 1, GET_TIMEOUT_MS = 2000, STOP_GRACE_MS = 15000 };

typedef struct driver {
    const char *name, *command, *model_flag, *ready_path;
    const char *command_option, *args_option, *command_help;
} driver;

/* command NULL: `roseinfer serve` of this installation. model_flag "": the model is given as an
 * argument without a flag. */
static const driver drivers[ROSE_N_DRIVERS] = {
    {"roseinfer", NULL, "", "/ready", "roseinfer-cmd", "roseinfer-args", "command of roseinfer"},
    {"vllm", "python3 -m vllm.entrypoints.openai.api_server", "--model", "/health", "vllm-cmd",
     "vllm-args", "command of vLLM's server, with its interpreter"},
    {"sglang", "python3 -m sglang.launch_server", "--model-path", "/health", "sglang-cmd",
     "sglang-args", "command of SGLang's server, with its interpreter"},
    {"trtllm", "trtllm-serve", "", "/health", "trtllm-cmd", "trtllm-args",
     "command of TensorRT-LLM's server"},
    {"llama", "llama-server", "-m", "/health", "llama-cmd", "llama-args",
     "command of llama.cpp's server"},
    {"llama-python", "python3 -m llama_cpp.server --interrupt_requests False", "--model",
     "/v1/models", "llama-python-cmd", "llama-python-args",
     "command of llama-cpp-python's server, with its interpreter"},
    {"transformers", "transformers serve", "", "/health", "transformers-cmd", "transformers-args",
     "command of transformers' server"},
};
enum { DRIVER_ROSEINFER = 0, DRIVER_LLAMA = 4, DRIVER_LLAMA_PYTHON = 5 };

void rose_server_flags_init(rose_server_flags *f)
{
    *f = (rose_server_flags){.ready_timeout_s = 600};
    for (int i = 0; i < ROSE_N_DRIVERS; i++)
        f->command[i] = drivers[i].command;
    rose_engine_flags_init(&f->engine);
}

size_t rose_server_flags_rows(rose_server_flags *f, bool ours, rose_opt *rows)
{
    const int n_drivers = ours ? DRIVER_ROSEINFER + 1 : ROSE_N_DRIVERS;
    size_t n = 0;
    rows[n++] = (rose_opt){.name = "Servers under test", .kind = ROSE_OPT_HEADING};
    for (int i = 0; i < n_drivers; i++) {
        rows[n++] = (rose_opt)ROSE_ROW_STRING(drivers[i].command_option, &f->command[i], "COMMAND",
                                              drivers[i].command_help, .unset = "roseinfer serve");
        rows[n++] =
            (rose_opt)ROSE_ROW_STRING(drivers[i].args_option, &f->args[i], "ARGS",
                                      "more arguments for it, as one quoted word", .unset = "none");
    }
    if (!ours)
        rows[n++] = (rose_opt)ROSE_ROW_STRING("llama-model", &f->llama_model, "FILE",
                                              "the GGUF file for llama.cpp", .unset = "MODEL");
    rows[n++] =
        (rose_opt)ROSE_ROW_STRING("server-cpus", &f->server_cpus, "LIST",
                                  "CPUs of the servers that we start, as 0-3,6", .unset = "all");
    rows[n++] = (rose_opt)ROSE_ROW_U32("timeout-ready-s", &f->ready_timeout_s, "S", 1, 86400,
                                       "longest time that a server may take to start");
    const size_t n_engine = rose_engine_flags_rows(&f->engine, rows + n);
    if (rows[n].kind == ROSE_OPT_HEADING)
        rows[n].name = "Engine of our server, as in serve (other servers: --NAME-args)";
    return n + n_engine;
}

rose_status rose_engine_args(const rose_engine_flags *f, rose_buf *out, rose_err *err)
{
    static rose_engine_flags copy;
    rose_opt rows[ROSE_ENGINE_FLAG_ROWS];
    copy = *f;
    if (rose_opts_changed(rows, rose_engine_flags_rows(&copy, rows), out) == ROSE_OK &&
        rose_buf_str(out) != NULL)
        return ROSE_OK;
    return rose_fail(err, ROSE_E_NOMEM, "out of memory");
}

static int find_driver(const char *name, size_t len)
{
    for (int i = 0; i < ROSE_N_DRIVERS; i++) {
        if (strlen(drivers[i].name) == len && memcmp(drivers[i].name, name, len) == 0) return i;
    }
    return -1;
}

/* Labels become file names, so few characters are allowed. */
static bool good_label(const char *s)
{
    if (s[0] == '\0' || s[0] == '.') return false;
    for (; *s != '\0'; s++) {
        if (!isalnum((unsigned char)*s) && strchr("._+-", *s) == NULL) return false;
    }
    return true;
}

rose_status rose_server_label(char out[ROSE_LABEL_BYTES], const char *part, const char *name,
                              size_t len, rose_err *err)
{
    if (len < ROSE_LABEL_BYTES) {
        memcpy(out, name, len);
        out[len] = '\0';
        if (good_label(out)) return ROSE_OK;
    }
    return rose_fail(err, ROSE_E_INVAL,
                     "backend '%s': its name may hold up to %d letters, digits, ._+-", part,
                     ROSE_LABEL_BYTES - 1);
}

static rose_status parse_one(const char *part, rose_server_spec *s, rose_err *err)
{
    const size_t len = strcspn(part, "=");
    const char *name = part[len] == '=' ? part + len + 1 : part;
    const bool at_url = len == 3 && strncmp(part, "url=", 4) == 0;
    *s = (rose_server_spec){.driver = find_driver(part, len)};
    if (s->driver < 0 && !at_url)
        return rose_fail(err, ROSE_E_INVAL,
                         "backend '%s': expected roseinfer, vllm, sglang, trtllm, llama, "
                         "llama-python, transformers, each with =NAME or without, or "
                         "url=NAME=http://HOST:PORT",
                         part);
    const size_t name_len = at_url ? strcspn(name, "=") : strlen(name);
    if (at_url && name[name_len] == '\0')
        return rose_fail(err, ROSE_E_INVAL, "backend '%s': expected url=NAME=http://...", part);
    rose_status st = rose_server_label(s->label, part, name, name_len, err);
    return st == ROSE_OK && at_url ? rose_url_parse(&s->url, name + name_len + 1, err) : st;
}

rose_status rose_server_list_parse(const char *text, rose_server_spec *specs, uint32_t *n,
                                   rose_err *err)
{
    *n = 0;
    for (const char *p = text;;) {
        char part[512];
        size_t len = strcspn(p, ",");
        if (*n == ROSE_MAX_BACKENDS || len >= sizeof part)
            return rose_fail(err, ROSE_E_INVAL, "--backends: at most %d, each under 512 bytes",
                             ROSE_MAX_BACKENDS);
        snprintf(part, sizeof part, "%.*s", (int)len, p);
        rose_status st = parse_one(part, &specs[*n], err);
        if (st != ROSE_OK) return st;
        for (uint32_t i = 0; i < *n; i++) {
            if (strcmp(specs[i].label, specs[*n].label) == 0)
                return rose_fail(err, ROSE_E_INVAL, "--backends: '%s' is there twice",
                                 specs[i].label);
        }
        (*n)++;
        if (p[len] == '\0') return ROSE_OK;
        p += len + 1;
    }
}

/* ---- start ---- */

typedef struct argv_builder {
    char *args[ROSE_PROC_MAX_ARGS];
    uint32_t n;
    rose_buf words[4]; /* memory that args point into */
    char port[8];
} argv_builder;

static void push(argv_builder *b, const char *arg)
{
    if (b->n + 1 < ROSE_PROC_MAX_ARGS) b->args[b->n++] = (char *)(uintptr_t)arg;
}

static rose_status build_argv(argv_builder *b, const driver *d, const rose_server_flags *f,
                              const char *extra, const char *model, uint16_t port, rose_err *err)
{
    const char *command = f->command[d - drivers], *args = f->args[d - drivers];
    rose_buf engine = {0};
    rose_status st = ROSE_OK;
    snprintf(b->port, sizeof b->port, "%u", port);
    if (command == NULL) {
        push(b, rose_server_path());
        push(b, "serve");
    } else {
        st = rose_args_split(command, &b->words[0], b->args, &b->n, err);
    }
    if (d->model_flag[0] != '\0') push(b, d->model_flag);
    push(b, model);
    push(b, "--host");
    push(b, "127.0.0.1");
    push(b, "--port");
    push(b, b->port);
    if (st == ROSE_OK && d == &drivers[DRIVER_ROSEINFER])
        st = rose_engine_args(&f->engine, &engine, err);
    if (st == ROSE_OK && engine.len > 0)
        st = rose_args_split(engine.data, &b->words[3], b->args, &b->n, err);
    rose_buf_free(&engine);
    if (st == ROSE_OK && args != NULL)
        st = rose_args_split(args, &b->words[1], b->args, &b->n, err);
    if (st == ROSE_OK && extra != NULL)
        st = rose_args_split(extra, &b->words[2], b->args, &b->n, err);
    b->args[b->n] = NULL;
    return st;
}

bool rose_server_dead(rose_server *s, char *out, size_t cap)
{
    char how[32], line[256];
    if (s->proc.pid == 0 || rose_proc_running(&s->proc)) return false;
    rose_proc_describe(&s->proc, how, sizeof how);
    rose_proc_log_why(s->log, line, sizeof line);
    snprintf(out, cap, "the server ended with %s: %s", how, line);
    return true;
}

static rose_status wait_ready(rose_server *s, const char *path, const rose_server_flags *f,
                              uint64_t start_ns, rose_err *err)
{
    const struct timespec tick = {0, POLL_MS * 1000000L};
    const uint64_t deadline = start_ns + (uint64_t)f->ready_timeout_s * 1000000000u;
    char dead[320];
    for (;;) {
        int status = 0;
        rose_http_call(&s->url, path, NULL, NULL, GET_TIMEOUT_MS, &status, NULL, NULL);
        if (status == 200) {
            s->ready_s = (double)(rose_now_ns() - start_ns) * 1e-9;
            return ROSE_OK;
        }
        if (rose_server_dead(s, dead, sizeof dead))
            return rose_fail(err, ROSE_E_CLOSED, "%s", dead);
        if (rose_now_ns() > deadline)
            return rose_fail(err, ROSE_E_CLOSED, "not ready after %u s", f->ready_timeout_s);
        if (f->stop != NULL && *f->stop)
            return rose_fail(err, ROSE_E_CLOSED, "interrupted while the server started");
        nanosleep(&tick, NULL);
    }
}

/* Reads a string member of the JSON that a GET returns, either of the first element of "data" or of
 * the object itself. "" if it is not there. */
static void get_string(const rose_url *u, const char *path, const char *key, char *out, size_t cap)
{
    rose_buf body = {0};
    rose_json_error e;
    rose_json *o = NULL;
    int status;
    out[0] = '\0';
    if (rose_http_call(u, path, NULL, NULL, GET_TIMEOUT_MS, &status, &body, NULL) == ROSE_OK &&
        status == 200 && body.data != NULL &&
        rose_json_parse(&o, body.data, body.len, 0, &e) == ROSE_OK) {
        const rose_json *v = rose_json_at(rose_json_get(o, "data"), 0);
        v = rose_json_get(v != NULL ? v : o, key);
        if (rose_json_is_string(v)) snprintf(out, cap, "%s", rose_json_text(v));
        rose_results_text(out);
    }
    rose_json_decref(o);
    rose_buf_free(&body);
}

static const char *model_of(const rose_server_spec *spec, const rose_server_flags *f,
                            const char *model_dir)
{
    const bool gguf = spec->driver == DRIVER_LLAMA || spec->driver == DRIVER_LLAMA_PYTHON;
    return gguf && f->llama_model != NULL ? f->llama_model : model_dir;
}

static rose_status spawn(rose_server *s, const rose_server_spec *spec, const rose_server_flags *f,
                         const char *model_dir, const char *extra, rose_err *err)
{
    const driver *d = &drivers[spec->driver];
    const char *model = model_of(spec, f, model_dir);
    argv_builder b = {0};
    int cpus[ROSE_MAX_CPUS];
    uint32_t n_cpus = 0;
    rose_status st = ROSE_OK;
    const uint16_t port = rose_free_port();
    if (port == 0) st = rose_fail(err, ROSE_E_IO, "no free port: %s", strerror(errno));
    if (st == ROSE_OK && f->server_cpus != NULL)
        st = rose_cpu_list_parse(f->server_cpus, cpus, ROSE_MAX_CPUS, &n_cpus, err);
    if (st == ROSE_OK) st = build_argv(&b, d, f, extra, model, port, err);
    for (uint32_t i = 0; i < b.n && st == ROSE_OK; i++)
        st = rose_buf_addf(&s->command, "%s%s", i > 0 ? " " : "", b.args[i]);
    if (st == ROSE_OK) {
        s->url = (rose_url){.host = "127.0.0.1"};
        memcpy(s->url.port, b.port, sizeof b.port);
        st = rose_proc_start(&s->proc, b.args, s->log, s->log, cpus, n_cpus, err);
        if (st != ROSE_OK && strcmp(b.args[0], "roseinfer") == 0)
            rose_fail(err, st,
                      "the program roseinfer is neither next to this one nor in PATH; "
                      "--roseinfer-cmd names its command");
    }
    for (size_t i = 0; i < sizeof b.words / sizeof *b.words; i++)
        rose_buf_free(&b.words[i]);
    return st;
}

/* Takes the model's path as its name. A path that is too long loses its start; no server knows a
 * model of that name, and the server's error will say so. */
static void name_by_path(rose_server *s, const char *path)
{
    rose_buf name = {0};
    if (rose_utf8_escape(&name, path, strlen(path)) == ROSE_OK && rose_buf_str(&name) != NULL)
        snprintf(s->model, sizeof s->model, "%s", name.data);
    rose_buf_free(&name);
    rose_results_text(s->model);
}

rose_status rose_server_start(rose_server *s, const rose_server_spec *spec,
                              const rose_server_flags *f, const char *model_dir, const char *extra,
                              const char *log_dir, rose_err *err)
{
    rose_status st = ROSE_OK;
    const uint64_t start = rose_now_ns();
    *s = (rose_server){.url = spec->url, .start_ns = start};
    if (log_dir != NULL && snprintf(s->log, sizeof s->log, "%s/%s.server.log", log_dir,
                                    spec->label) >= (int)sizeof s->log)
        return rose_fail(err, ROSE_E_INVAL, "the path of the log is too long");
    if (log_dir == NULL && spec->driver >= 0) {
        snprintf(s->log, sizeof s->log, "/tmp/rose-server-XXXXXX");
        const int fd = mkstemp(s->log);
        if (fd < 0) return rose_fail(err, ROSE_E_IO, "%s: %s", s->log, strerror(errno));
        close(fd);
        s->own_log = true;
    }
    if (spec->driver >= 0) {
        st = spawn(s, spec, f, model_dir, extra, err);
        if (st == ROSE_OK) st = wait_ready(s, drivers[spec->driver].ready_path, f, start, err);
    } else {
        int status;
        s->log[0] = '\0';
        st = rose_http_call(&s->url, "/v1/models", NULL, NULL, GET_TIMEOUT_MS, &status, NULL, err);
    }
    if (st == ROSE_OK) {
        get_string(&s->url, "/v1/models", "id", s->model, sizeof s->model);
        if (s->model[0] == '\0' && spec->driver >= 0) /* the server reports no name, so its model
                                                         has the name that it was started with */
            name_by_path(s, model_of(spec, f, model_dir));
        get_string(&s->url, "/v1/models", "dtype", s->dtype, sizeof s->dtype);
        get_string(&s->url, "/version", "version", s->version, sizeof s->version);
        if (s->version[0] == '\0' && spec->driver == DRIVER_LLAMA)
            get_string(&s->url, "/props", "build_info", s->version, sizeof s->version);
    }
    return st;
}

void rose_server_stop(rose_server *s)
{
    rose_proc_stop(&s->proc, STOP_GRACE_MS);
    rose_buf_free(&s->command);
    if (s->own_log) unlink(s->log);
    *s = (rose_server){0};
}
