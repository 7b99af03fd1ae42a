/* backend/cuda/cudnn.c - cuDNN itself, found by dlopen, and plans of its engines for the graph of
 * cudnn_graph.c: no header of it is needed to build and no library to run. */
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cudnn_internal.h"
#include "base/log.h"

/* ---- errors ---- */

rose_status rose_cudnn_failed(const rose_cudnn *c, int status, const char *what, int which,
                              rose_err *err)
{
    static const char *const none = "no text";
    char text[2048] = "";
    const size_t v = c->f.version();

    c->f.last_error(text, sizeof text);
    text[sizeof text - 1] = '\0';
    for (char *p = text; *p != '\0'; p++)
        if (*p == '\n') *p = ' ';
    rose_log(ROSE_LOG_DEBUG, "cudnn", "%s (%d): %s (%d): %s", what, which, c->f.status_name(status),
             status, text[0] != '\0' ? text : none);
    return rose_fail(err,
                     status >= NOT_SUPPORTED && status < NOT_SUPPORTED_END ? ROSE_E_UNSUPPORTED
                                                                           : ROSE_E_BACKEND,
                     "cuDNN %zu.%zu.%zu: %s (%d): %s (%d): %s", v / 10000, v / 100 % 100, v % 100,
                     what, which, c->f.status_name(status), status, text[0] != '\0' ? text : none);
}

/* ---- the library ---- */

static rose_status find_functions(rose_cudnn *c, rose_err *err)
{
    static const char *const names[] = {"GetVersion",
                                        "GetErrorString",
                                        "GetLastErrorString",
                                        "Create",
                                        "Destroy",
                                        "SetStream",
                                        "BackendCreateDescriptor",
                                        "BackendDestroyDescriptor",
                                        "BackendFinalize",
                                        "BackendSetAttribute",
                                        "BackendGetAttribute",
                                        "BackendExecute"};
    enum { N = sizeof names / sizeof *names };
    void *found[N];
    _Static_assert(sizeof found == sizeof c->f, "one name a function");
    for (int i = 0; i < N; i++) {
        char name[64] = "cudnn";
        strcat(name, names[i]);
        if ((found[i] = dlsym(c->library, name)) == NULL)
            return rose_fail(err, ROSE_E_UNSUPPORTED,
                             "cuDNN lacks %s: version 9.15 or later is needed", name);
    }
    memcpy(&c->f, found, sizeof found);
    return ROSE_OK;
}

/* It stays loaded: it has threads and handlers of its own, and none of them likes to go. */
static rose_status load(rose_cudnn *c, const char *path, rose_err *err)
{
    static const char *const usual[] = {"libcudnn.so.9", "libcudnn.so",
                                        "/usr/local/cuda/lib64/libcudnn.so.9",
                                        "/usr/lib/x86_64-linux-gnu/libcudnn.so.9"};
    const int how = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
    char why[256] = "";

    if (path != NULL && path[0] == '\0') path = NULL;
    if (path != NULL && (c->library = dlopen(path, how)) == NULL) {
        const char *text = dlerror();
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "cuDNN: %s: --cudnn-library wants the path of libcudnn.so.9",
                         text != NULL ? text : path);
    }
    for (size_t i = 0; c->library == NULL && i < sizeof usual / sizeof *usual; i++) {
        const char *text;
        c->library = dlopen(usual[i], how);
        if (c->library == NULL && i == 0 && (text = dlerror()) != NULL)
            strncpy(why, text, sizeof why - 1);
    }
    if (c->library == NULL)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "libcudnn.so.9 not found (%s): install cuDNN 9.15 or later, or say "
                         "where it is (--cudnn-library PATH)",
                         why);
    return find_functions(c, err);
}

static rose_status describe_device(rose_cudnn *c, const char *json, rose_err *err)
{
    int e = c->f.make(DEVICE, &c->device);
    if (e == SUCCESS)
        e = c->f.set(c->device, DEVICE_JSON, IS_CHAR, (int64_t)strlen(json) + 1, json);
    if (e == SUCCESS) e = c->f.finalize(c->device);
    return e == SUCCESS ? ROSE_OK : rose_cudnn_failed(c, e, "describing a device", 0, err);
}

rose_status rose_cudnn_open(rose_cudnn **out, const char *path, const char *device, rose_err *err)
{
    rose_cudnn *c = calloc(1, sizeof *c);
    rose_status st;
    int e;

    *out = NULL;
    if (c == NULL) return rose_fail(err, ROSE_E_NOMEM, "cuDNN: out of memory");
    if ((st = load(c, path, err)) != ROSE_OK) goto done;
    const size_t v = c->f.version();
    if (v < ROSE_CUDNN_OLDEST) {
        st = rose_fail(err, ROSE_E_UNSUPPORTED,
                       "cuDNN is version %zu.%zu.%zu: 9.15 or later is needed (another one: "
                       "--cudnn-library PATH)",
                       v / 10000, v / 100 % 100, v % 100);
        goto done;
    }
    if (device != NULL)
        st = describe_device(c, device, err);
    else if ((e = c->f.create(&c->handle)) != SUCCESS)
        st = rose_cudnn_failed(c, e, "starting on the GPU", 0, err);
    if (st == ROSE_OK) *out = c;
done:
    if (st != ROSE_OK) rose_cudnn_close(c);
    return st;
}

size_t rose_cudnn_version(const rose_cudnn *c)
{
    return c->f.version();
}

rose_status rose_cudnn_stream(rose_cudnn *c, cudaStream_t stream, rose_err *err)
{
    const int e = c->f.set_stream(c->handle, stream);
    return e == SUCCESS ? ROSE_OK : rose_cudnn_failed(c, e, "setting the stream", 0, err);
}

void rose_cudnn_close(rose_cudnn *c)
{
    if (c == NULL) return;
    if (c->device != NULL) c->f.drop(c->device);
    if (c->handle != NULL) c->f.destroy(c->handle);
    if (c->library != NULL) dlclose(c->library);
    free(c);
}

/* ---- plans ---- */

/* Configurations of engines for the graph, the best guess first; returns how many. */
static int64_t ask(builder *b, void *graph, int mode, void **configs)
{
    int64_t n = 0;
    b->what = mode == HEURISTICS_A ? "asking for engines" : "asking for engines to fall back on";
    void *h = make(b, HEURISTICS);
    set_part(b, h, HEURISTICS_GRAPH, graph);
    set(b, h, HEURISTICS_MODE, IS_HEURISTICS, 1, &mode);
    set_part(b, h, HEURISTICS_DEVICE, b->p->c->device);
    if (finish(b, h) == NULL) return 0;
    for (int i = 0; i < MAX_CONFIGS; i++)
        configs[i] = make(b, ENGINE_CONFIG);
    if (b->st == ROSE_OK)
        check(b, b->p->c->f.get(h, HEURISTICS_RESULTS, IS_DESCRIPTOR, MAX_CONFIGS, &n, configs),
              HEURISTICS_RESULTS);
    if (b->st != ROSE_OK || n < 0) return 0;
    return n < MAX_CONFIGS ? n : MAX_CONFIGS; /* it says how many there are, not how many we got */
}

static int64_t engine_of(rose_cudnn_plan *p, void *config)
{
    int64_t n = 0, engine = -1;
    void *d = NULL;
    const rose_cudnn_functions *f = &p->c->f;
    if (f->make(ENGINE, &d) != SUCCESS) return -1;
    if (f->get(config, CONFIG_ENGINE, IS_DESCRIPTOR, 1, &n, &d) != SUCCESS ||
        f->get(d, ENGINE_INDEX, IS_INT64, 1, &n, &engine) != SUCCESS)
        engine = -1;
    f->drop(d);
    return engine;
}

/* False: this one does not do it (b->st says why). */
static bool take_config(builder *b, void *config)
{
    rose_cudnn_plan *p = b->p;
    int64_t n = 0;
    b->what = "making the plan";
    void *d = make(b, EXECUTION_PLAN);
    set_part(b, d, PLAN_CONFIG, config);
    if (p->c->handle != NULL) set(b, d, PLAN_HANDLE, IS_HANDLE, 1, &p->c->handle);
    set_part(b, d, PLAN_DEVICE, p->c->device);
    if (finish(b, d) == NULL) return false;
    if (!check(b, p->c->f.get(d, PLAN_WORKSPACE, IS_INT64, 1, &n, &p->workspace), PLAN_WORKSPACE))
        return false;
    p->engine = engine_of(p, config);
    if (p->workspace > ROSE_CUDNN_WORKSPACE) {
        b->st = rose_fail(b->err, ROSE_E_UNSUPPORTED,
                          "cuDNN: engine %lld wants a workspace of %lld bytes",
                          (long long)p->engine, (long long)p->workspace);
        return false;
    }
    p->execution = d;
    return true;
}

/* The first configuration that a plan can be made of; else the first reason why none can. */
static void choose(builder *b, void *graph)
{
    static const int modes[] = {HEURISTICS_A, HEURISTICS_FALLBACK};
    rose_err first = {""};
    rose_status st = ROSE_OK;

    for (int m = 0; m < 2; m++) {
        void *configs[MAX_CONFIGS];
        const int64_t n = ask(b, graph, modes[m], configs);
        for (int64_t i = 0; i < n; i++) {
            if (take_config(b, configs[i])) return;
            if (st == ROSE_OK) first = *b->err;
            if (st == ROSE_OK) st = b->st;
            b->st = ROSE_OK;
        }
        if (b->st != ROSE_OK && st == ROSE_OK) first = *b->err;
        if (b->st != ROSE_OK && st == ROSE_OK) st = b->st;
        b->st = ROSE_OK;
    }
    b->st = st != ROSE_OK ? st : ROSE_E_UNSUPPORTED;
    rose_fail(b->err, b->st, "%s", st != ROSE_OK ? first.msg : "cuDNN has no engine for it");
}

static rose_status begin(builder *b, rose_cudnn *c, const rose_cudnn_problem *p, void **graph)
{
    *graph = NULL;
    if ((b->p = calloc(1, sizeof *b->p)) == NULL)
        return rose_fail(b->err, ROSE_E_NOMEM, "cuDNN: out of memory");
    b->p->c = c;
    b->p->problem = *p;
    b->next_id = ID_VIRTUAL;
    *graph = rose_cudnn_graph(b);
    return b->st;
}

static rose_status refuse(const builder *b, const rose_cudnn_problem *p, rose_status st,
                          rose_err *err)
{
    return rose_fail(err, st, "attention of %u sequences, %u rows, %u keys, %u heads of %u: %s",
                     p->n_seqs, p->q_rows, p->kv_rows, p->n_heads, p->head_dim, b->err->msg);
}

rose_status rose_cudnn_supports(rose_cudnn *c, const rose_cudnn_problem *p, rose_err *err)
{
    rose_err why = {""};
    builder b = {.err = &why};
    void *graph, *configs[MAX_CONFIGS];
    rose_status st = begin(&b, c, p, &graph);
    if (st == ROSE_OK && ask(&b, graph, HEURISTICS_A, configs) == 0) {
        b.st = ROSE_OK; /* as choose() does */
        if (ask(&b, graph, HEURISTICS_FALLBACK, configs) == 0 && (st = b.st) == ROSE_OK)
            st = rose_fail(&why, ROSE_E_UNSUPPORTED, "cuDNN has no engine for it");
    }
    rose_cudnn_plan_drop(b.p);
    return st == ROSE_OK ? ROSE_OK : refuse(&b, p, st, err);
}

rose_status rose_cudnn_plan_make(rose_cudnn_plan **out, rose_cudnn *c, const rose_cudnn_problem *p,
                                 rose_err *err)
{
    rose_err why = {""};
    builder b = {.err = &why};
    void *graph;
    rose_status st = begin(&b, c, p, &graph);

    *out = NULL;
    if (st == ROSE_OK) choose(&b, graph);
    if (st == ROSE_OK && b.p->execution == NULL) st = b.st;
    if (st == ROSE_OK)
        *out = b.p;
    else
        rose_cudnn_plan_drop(b.p);
    return st == ROSE_OK ? ROSE_OK : refuse(&b, p, st, err);
}

uint64_t rose_cudnn_plan_workspace(const rose_cudnn_plan *p)
{
    return (uint64_t)p->workspace;
}

int64_t rose_cudnn_plan_engine(const rose_cudnn_plan *p)
{
    return p->engine;
}

rose_status rose_cudnn_plan_bind(rose_cudnn_plan *p, const rose_cudnn_operands *a, rose_err *err)
{
    static float minus_infinity = -INFINITY;
    static const int64_t ids[N_IDS] = {ID_Q,      ID_K,      ID_V,    ID_O,    ID_Q_LEN,
                                       ID_KV_LEN, ID_Q_AT,   ID_K_AT, ID_V_AT, ID_O_AT,
                                       ID_SCALE,  ID_BEYOND, ID_ABOVE};
    const void *const at[N_IDS] = {
        a->q,     a->k,     a->v,    a->o,     a->q_len,        a->kv_len,      a->q_at,
        a->kv_at, a->kv_at, a->q_at, a->scale, &minus_infinity, &minus_infinity};
    const rose_cudnn_functions *f = &p->c->f;
    void *d = NULL;

    void **more = realloc(p->bound, (p->n_bound + 1) * sizeof *more);
    if (more == NULL) return rose_fail(err, ROSE_E_NOMEM, "cuDNN: out of memory");
    p->bound = more;
    int e = f->make(VARIANT_PACK, &d);
    if (e == SUCCESS) e = f->set(d, VARIANT_IDS, IS_INT64, N_IDS, ids);
    if (e == SUCCESS) e = f->set(d, VARIANT_POINTERS, IS_POINTER, N_IDS, at);
    if (e == SUCCESS) e = f->set(d, VARIANT_WORKSPACE, IS_POINTER, 1, &a->workspace);
    if (e == SUCCESS) e = f->finalize(d);
    if (e != SUCCESS) {
        if (d != NULL) f->drop(d);
        return rose_cudnn_failed(p->c, e, "binding a plan", 0, err);
    }
    p->bound[p->n_bound++] = d;
    return ROSE_OK;
}

rose_status rose_cudnn_plan_run(rose_cudnn_plan *p, uint32_t bound, rose_err *err)
{
    const int e = p->c->f.execute(p->c->handle, p->execution, p->bound[bound]);
    return e == SUCCESS ? ROSE_OK
                        : rose_cudnn_failed(p->c, e, "running attention", (int)p->engine, err);
}

void rose_cudnn_plan_drop(rose_cudnn_plan *p)
{
    if (p == NULL) return;
    while (p->n_bound > 0)
        p->c->f.drop(p->bound[--p->n_bound]);
    while (p->n > 0)
        p->c->f.drop(p->all[--p->n]);
    free(p->bound);
    free(p);
}
