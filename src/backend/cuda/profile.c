/* backend/cuda/profile.c - what NVIDIA's tools add to a profile (base/profile.h): NVTX ranges with
 * the names of our spans, which nsys shows; and the kernels, copies and fills of the GPU, through
 * CUPTI.
 *
 * Both are optional. NVTX is only a set of headers: without a tool attached, a range costs a load
 * and a branch. CUPTI belongs to the toolkit, not to the driver, and is loaded when a recording
 * starts. If CUPTI is missing, or its major version differs from its header's, the recording goes
 * on without the GPU's kernels and says why. CUPTI asks for buffers on the engine thread, so a
 * fixed number of them is allocated at the start. Records that find no free buffer are lost; the
 * profile says how many. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_internal.h"
#include "base/clock.h"
#include "base/dl.h"
#include "base/profile.h"

#if defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define HAVE_NVTX 1
#endif
#if __has_include(<cupti.h>)
#include <cupti.h>
#define HAVE_CUPTI 1
#endif
#endif

/* ---- NVTX ---- */

#ifdef HAVE_NVTX
static nvtxDomainHandle_t g_domain;

static void push(const char *name)
{
    nvtxEventAttributes_t a = {.version = NVTX_VERSION,
                               .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                               .messageType = NVTX_MESSAGE_TYPE_ASCII};
    a.message.ascii = name;
    nvtxDomainRangePushEx(g_domain, &a);
}

static void pop(void)
{
    nvtxDomainRangePop(g_domain);
}

rose_status rose_backend_nvtx(rose_err *err)
{
    const rose_prof_hooks h = {.push = push, .pop = pop};
    (void)err;
    g_domain = nvtxDomainCreateA("roseinfer");
    rose_prof_set_hooks(&h);
    return ROSE_OK;
}
#else
rose_status rose_backend_nvtx(rose_err *err)
{
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "nvtx: the toolkit that this program was built with has no nvtx3 headers");
}
#endif

/* ---- CUPTI ---- */

#ifdef HAVE_CUPTI
enum { N_BUFFERS = 64, BUFFER_BYTES = 1 << 20, BUFFER_ALIGN = 64, CLOCK_SAMPLES = 16 };

/* Later versions of these records only append fields. */
typedef CUpti_ActivityKernel9 kernel_record;
typedef CUpti_ActivityMemcpy5 copy_record;
typedef CUpti_ActivityMemset4 fill_record;
#if CUPTI_API_VERSION >= 130000
_Static_assert(offsetof(CUpti_ActivityKernel10, start) == offsetof(kernel_record, start) &&
                   offsetof(CUpti_ActivityKernel10, name) == offsetof(kernel_record, name) &&
                   offsetof(CUpti_ActivityKernel10, streamId) == offsetof(kernel_record, streamId),
               "CUPTI has moved the members of a kernel's record");
_Static_assert(offsetof(CUpti_ActivityMemcpy6, start) == offsetof(copy_record, start) &&
                   offsetof(CUpti_ActivityMemcpy6, bytes) == offsetof(copy_record, bytes) &&
                   offsetof(CUpti_ActivityMemcpy6, streamId) == offsetof(copy_record, streamId),
               "CUPTI has moved the members of a copy's record");
#endif

typedef struct cupti_api {
    CUptiResult(CUPTIAPI *version)(uint32_t *);
    CUptiResult(CUPTIAPI *timestamp)(uint64_t *);
    CUptiResult(CUPTIAPI *callbacks)(CUpti_BuffersCallbackRequestFunc,
                                     CUpti_BuffersCallbackCompleteFunc);
    CUptiResult(CUPTIAPI *enable)(CUpti_ActivityKind);
    CUptiResult(CUPTIAPI *disable)(CUpti_ActivityKind);
    CUptiResult(CUPTIAPI *flush)(uint32_t);
    CUptiResult(CUPTIAPI *next)(uint8_t *, size_t, CUpti_Activity **);
    CUptiResult(CUPTIAPI *lost)(CUcontext, uint32_t, size_t *);
    CUptiResult(CUPTIAPI *text)(CUptiResult, const char **);
} cupti_api;

typedef struct buffer {
    uint8_t *bytes; /* [BUFFER_BYTES], owned */
    size_t n_valid; /* bytes that CUPTI filled */
    bool lent;      /* given to CUPTI; at most once in a recording */
    bool back;
} buffer;

/* The recorder's lock protects all fields but `buffers` and `lost`. CUPTI's threads use these two
 * under `lock`. */
static struct {
    void *lib;
    cupti_api api;
    int64_t offset_ns; /* CUPTI's clock minus ours */
    pthread_mutex_t lock;
    buffer buffers[N_BUFFERS];
    uint64_t lost;
} g = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                           CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static void CUPTIAPI lend(uint8_t **bytes, size_t *size, size_t *max_records)
{
    *bytes = NULL;
    *size = 0;
    *max_records = 0;
    pthread_mutex_lock(&g.lock);
    for (int i = 0; i < N_BUFFERS && *bytes == NULL; i++) {
        if (g.buffers[i].lent || g.buffers[i].bytes == NULL) continue;
        g.buffers[i].lent = true;
        *bytes = g.buffers[i].bytes;
        *size = BUFFER_BYTES;
    }
    pthread_mutex_unlock(&g.lock);
}

static void CUPTIAPI take_back(CUcontext ctx, uint32_t stream, uint8_t *bytes, size_t size,
                               size_t n_valid)
{
    size_t n_lost = 0;
    (void)size;
    if (g.api.lost(ctx, stream, &n_lost) != CUPTI_SUCCESS) n_lost = 0;
    pthread_mutex_lock(&g.lock);
    g.lost += n_lost;
    for (int i = 0; i < N_BUFFERS; i++) {
        if (bytes == NULL || g.buffers[i].bytes != bytes) continue;
        g.buffers[i].n_valid = n_valid;
        g.buffers[i].back = true;
    }
    pthread_mutex_unlock(&g.lock);
}

static void drop(void *arg)
{
    (void)arg;
    pthread_mutex_lock(&g.lock);
    for (int i = 0; i < N_BUFFERS; i++) {
        /* CUPTI may still write into a buffer that it did not return at the flush: do not free that
         * one */
        if (!g.buffers[i].lent || g.buffers[i].back) free(g.buffers[i].bytes);
        g.buffers[i] = (buffer){0};
    }
    g.lost = 0;
    pthread_mutex_unlock(&g.lock);
}

static rose_status load_library(rose_err *err)
{
    const rose_dl_function functions[] = {
        {"cuptiGetVersion", &g.api.version},
        {"cuptiGetTimestamp", &g.api.timestamp},
        {"cuptiActivityRegisterCallbacks", &g.api.callbacks},
        {"cuptiActivityEnable", &g.api.enable},
        {"cuptiActivityDisable", &g.api.disable},
        {"cuptiActivityFlushAll", &g.api.flush},
        {"cuptiActivityGetNextRecord", &g.api.next},
        {"cuptiActivityGetNumDroppedRecords", &g.api.lost},
        {"cuptiGetResultString", &g.api.text},
    };
    char soname[32];
    const char *const paths[] = {soname, "libcupti.so"};
    uint32_t version = 0;
    const unsigned major = CUPTI_API_VERSION / 10000;
    rose_err why = {""};
    if (g.lib != NULL) return ROSE_OK;
    /* Before CUPTI 13 the header's version number is not the library's, so only the plain name is
     * known. */
    snprintf(soname, sizeof soname, major >= 13 ? "libcupti.so.%u" : "libcupti.so", major);
    const rose_status st = rose_dl_open(&g.lib, paths, sizeof paths / sizeof *paths, functions,
                                        sizeof functions / sizeof *functions, &why);
    if (st == ROSE_E_NOTFOUND)
        return rose_fail(err, st, "no GPU kernels: %s is not in the library path", soname);
    if (st != ROSE_OK) return rose_fail(err, st, "no GPU kernels: %s", why.msg);
    if (g.api.version(&version) == CUPTI_SUCCESS && version / 10000 == major) return ROSE_OK;
    rose_dl_close(g.lib);
    g.lib = NULL;
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "no GPU kernels: libcupti is version %u, this program was built for %u",
                     version, (unsigned)CUPTI_API_VERSION);
}

static rose_status check(CUptiResult r, const char *what, rose_err *err)
{
    const char *text = NULL;
    if (r == CUPTI_SUCCESS) return ROSE_OK;
    if (g.api.text(r, &text) != CUPTI_SUCCESS || text == NULL) text = "unknown";
    return rose_fail(err, ROSE_E_BACKEND, "no GPU kernels: %s: %s", what, text);
}

/* Measure the difference of the two clocks, from the pair of readings that are closest together. */
static rose_status align_clocks(rose_err *err)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < CLOCK_SAMPLES; i++) {
        uint64_t theirs = 0, before = rose_now_ns();
        rose_status st = check(g.api.timestamp(&theirs), "cuptiGetTimestamp", err);
        uint64_t after = rose_now_ns();
        if (st != ROSE_OK) return st;
        if (after - before >= best) continue;
        best = after - before;
        g.offset_ns = (int64_t)(theirs - (before + best / 2));
    }
    return ROSE_OK;
}

static void disable_all(void)
{
    for (int i = 0; i < N_KINDS; i++)
        g.api.disable(kinds[i]);
}

static rose_status start(void *arg, rose_err *err)
{
    rose_status st = load_library(err);
    if (st != ROSE_OK) return st;
    for (int i = 0; i < N_BUFFERS && st == ROSE_OK; i++) {
        g.buffers[i].bytes = aligned_alloc(BUFFER_ALIGN, BUFFER_BYTES);
        if (g.buffers[i].bytes == NULL)
            st = rose_fail(err, ROSE_E_NOMEM, "no GPU kernels: no memory for CUPTI's buffers");
    }
    if (st == ROSE_OK) st = align_clocks(err);
    if (st == ROSE_OK)
        st = check(g.api.callbacks(lend, take_back), "cuptiActivityRegisterCallbacks", err);
    for (int i = 0; i < N_KINDS && st == ROSE_OK; i++)
        st = check(g.api.enable(kinds[i]), "cuptiActivityEnable", err);
    if (st != ROSE_OK) {
        disable_all();
        drop(arg);
    }
    return st;
}

static void stop(void *arg)
{
    (void)arg;
    disable_all();
    g.api.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED); /* CUPTI returns all buffers */
}

/* The last part of a mangled name: "layernorm_kernel" of "_ZN4rose16layernorm_kernelIf...". */
static void plain_name(const char *mangled, char *out, size_t cap)
{
    const char *p = mangled, *name = mangled;
    size_t n = strlen(mangled);
    if (strncmp(p, "_Z", 2) == 0) {
        p += p[2] == 'N' ? 3 : 2;
        while (*p >= '0' && *p <= '9') {
            char *end;
            unsigned long len = strtoul(p, &end, 10);
            if (len == 0 || len > strlen(end)) break;
            name = end;
            n = len;
            p = end + len;
        }
    }
    snprintf(out, cap, "%.*s", (int)(n < cap ? n : cap - 1), name);
}

static void write_one(rose_prof_writer *w, uint32_t stream, const char *name, uint64_t begin,
                      uint64_t end, const char *arg, uint64_t value)
{
    char track[32];
    snprintf(track, sizeof track, "CUDA stream %u", stream);
    rose_prof_write_span(w, stream, track, name, begin - (uint64_t)g.offset_ns,
                         end - (uint64_t)g.offset_ns, arg, value);
}

static const char *copy_name(uint8_t kind)
{
    if (kind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD) return "copy to device";
    if (kind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH) return "copy to host";
    return "copy";
}

static void write_record(rose_prof_writer *w, const CUpti_Activity *record)
{
    const void *r = record;
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const kernel_record *k = r;
        char name[128];
        plain_name(k->name != NULL ? k->name : "kernel", name, sizeof name);
        uint64_t blocks = (uint64_t)k->gridX * (uint64_t)k->gridY * (uint64_t)k->gridZ;
        write_one(w, k->streamId, name, k->start, k->end, "blocks", blocks);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const copy_record *c = r;
        write_one(w, c->streamId, copy_name(c->copyKind), c->start, c->end, "bytes", c->bytes);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const fill_record *f = r;
        write_one(w, f->streamId, "fill", f->start, f->end, "bytes", f->bytes);
    }
}

static uint64_t write_all(void *arg, rose_prof_writer *w, rose_err *err)
{
    (void)arg;
    (void)err;
    for (int i = 0; i < N_BUFFERS; i++) {
        CUpti_Activity *record = NULL;
        const buffer *b = &g.buffers[i];
        while (b->n_valid > 0 && g.api.next(b->bytes, b->n_valid, &record) == CUPTI_SUCCESS)
            write_record(w, record);
    }
    return g.lost;
}

static const rose_prof_source g_source = {
    .name = "cuda", .start = start, .stop = stop, .write = write_all, .drop = drop};
#else
/* A source that never starts has nothing to stop, write or drop. */
static rose_status start(void *arg, rose_err *err)
{
    (void)arg;
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "no GPU kernels: the toolkit that this program was built with has no CUPTI");
}

static const rose_prof_source g_source = {.name = "cuda", .start = start};
#endif

static rose_status left_out(void *arg, rose_err *err)
{
    (void)arg;
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "no GPU kernels: record them with --profiler-kernels");
}

void rose_cuda_profile(bool on, bool kernels)
{
    static const rose_prof_source none = {.name = "cuda", .start = left_out};
    rose_prof_set_source(!on ? NULL : kernels ? &g_source : &none);
}
