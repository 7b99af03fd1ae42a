/* base/cpuinfo.c - see cpuinfo.h. Instruction sets are read from CPUID and XGETBV directly. A
 * level counts only if the operating system also saves its registers. Memory figures come from
 * /proc and the cgroup files; a file that cannot be read counts as no limit. */
#include "base/cpuinfo.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/procstat.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

enum { N_LEVELS = ROSE_ISA_AVX512_BF16 + 1 };

static const char *const g_names[N_LEVELS] = {"scalar", "avx2", "avx512",
                                              "amx",    "neon", "avx512-bf16"};

#if defined(__x86_64__)

enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

#define XCR0_AVX    UINT64_C(0x6)     /* XMM and YMM state */
#define XCR0_AVX512 UINT64_C(0xe6)    /* and opmask, ZMM */
#define XCR0_AMX    UINT64_C(0x60000) /* tile configuration and data */

typedef struct cpu_bits {
    uint32_t leaf1_c, leaf7_b, leaf7_c, leaf7_d, leaf7_1a;
    uint64_t xcr0;
} cpu_bits;

/* One requirement of a level: a bit of a CPUID word. */
typedef struct feature {
    rose_isa level;
    char word; /* which CPUID word: 'c' = leaf 1 ECX, 'b' = leaf 7 EBX, 'd' = leaf 7 EDX, 'a' =
                  leaf 7.1 EAX */
    uint32_t bit;
    const char *name; /* as in /proc/cpuinfo */
} feature;

static const feature g_features[] = {
    {ROSE_ISA_AVX2, 'c', 12, "fma"},        {ROSE_ISA_AVX2, 'c', 29, "f16c"},
    {ROSE_ISA_AVX2, 'b', 5, "avx2"},        {ROSE_ISA_AVX512, 'b', 16, "avx512f"},
    {ROSE_ISA_AVX512, 'b', 17, "avx512dq"}, {ROSE_ISA_AVX512, 'b', 30, "avx512bw"},
    {ROSE_ISA_AVX512, 'b', 31, "avx512vl"}, {ROSE_ISA_AMX, 'd', 24, "amx_tile"},
    {ROSE_ISA_AMX, 'd', 22, "amx_bf16"},    {ROSE_ISA_AVX512_BF16, 'a', 5, "avx512_bf16"},
};

static uint64_t read_xcr0(void)
{
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return ((uint64_t)hi << 32) | lo;
}

static cpu_bits read_cpu(void)
{
    cpu_bits c = {0};
    uint32_t a, b, d;
    if (!__get_cpuid(1, &a, &b, &c.leaf1_c, &d)) return c;
    if ((c.leaf1_c >> 27 & 1u) != 0) c.xcr0 = read_xcr0(); /* OSXSAVE */
    if (!__get_cpuid_count(7, 0, &a, &c.leaf7_b, &c.leaf7_c, &c.leaf7_d))
        c.leaf7_b = c.leaf7_c = c.leaf7_d = 0;
    uint32_t b1, c1, d1;
    if (!__get_cpuid_count(7, 1, &c.leaf7_1a, &b1, &c1, &d1)) c.leaf7_1a = 0;
    return c;
}

bool rose_cpu_has_avxvnni(void)
{
    return (read_cpu().leaf7_1a >> 4 & 1u) != 0;
}

bool rose_cpu_has_avx512vnni(void)
{
    return (read_cpu().leaf7_c >> 11 & 1u) != 0;
}

static uint32_t feature_word(const cpu_bits *c, char word)
{
    switch (word) {
    case 'a':
        return c->leaf7_1a;
    case 'b':
        return c->leaf7_b;
    case 'c':
        return c->leaf1_c;
    default:
        return c->leaf7_d;
    }
}

/* The levels form a ladder, in which each includes those below it. The level avx512-bf16 is not
 * on the ladder. It extends avx512, so this returns avx512 for it. */
static rose_isa ladder_step(rose_isa level)
{
    return level == ROSE_ISA_AVX512_BF16 ? ROSE_ISA_AVX512 : level;
}

/* The kernel grants tile registers to a process on request. Kernels before 5.16 refuse. */
static bool tiles_permitted(void)
{
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

/* Lists in `text` the CPU features that are missing for `level` and all levels below it; "" if
 * none is missing. */
static void missing_for(rose_isa level, char *text, size_t cap)
{
    static const uint64_t need[N_LEVELS] = {0, XCR0_AVX,   XCR0_AVX512, XCR0_AVX512 | XCR0_AMX,
                                            0, XCR0_AVX512};
    cpu_bits c = read_cpu();
    size_t n = 0;

    text[0] = '\0';
    if (level == ROSE_ISA_NEON) {
        snprintf(text, cap, "an AArch64 processor");
        return;
    }
    for (size_t i = 0; i < sizeof g_features / sizeof g_features[0]; i++) {
        const feature *f = &g_features[i];
        if (f->level != level && f->level > ladder_step(level)) continue;
        if ((feature_word(&c, f->word) >> f->bit & 1u) != 0) continue;
        int w = snprintf(text + n, cap - n, "%s%s", n > 0 ? ", " : "", f->name);
        if (w > 0) n += (size_t)w < cap - n ? (size_t)w : cap - n - 1;
    }
    if (n > 0) return;
    if ((c.xcr0 & need[level]) != need[level]) {
        snprintf(text, cap, "support of the operating system for its registers");
    } else if (level == ROSE_ISA_AMX && !tiles_permitted()) {
        snprintf(text, cap, "permission of the operating system to use tile registers");
    }
}

#else

bool rose_cpu_has_avxvnni(void)
{
    return false;
}

bool rose_cpu_has_avx512vnni(void)
{
    return false;
}

static void missing_for(rose_isa level, char *text, size_t cap)
{
#if defined(__aarch64__)
    const bool has = level == ROSE_ISA_SCALAR || level == ROSE_ISA_NEON;
#else
    const bool has = level == ROSE_ISA_SCALAR;
#endif
    snprintf(text, cap, "%s",
             has                      ? ""
             : level == ROSE_ISA_NEON ? "an AArch64 processor"
                                      : "an x86-64 processor");
}

#endif

rose_isa rose_isa_probe(void)
{
    /* Relaxed: every caller computes the same level. The level is cached so that the kernel is
     * asked once. */
    static _Atomic int cached = -1;
    int level = atomic_load_explicit(&cached, memory_order_relaxed);
    if (level >= 0) return (rose_isa)level;

    char why[256];
    for (level = ROSE_ISA_NEON; level > ROSE_ISA_SCALAR; level--) {
        missing_for((rose_isa)level, why, sizeof why);
        if (why[0] == '\0') break;
    }
    atomic_store_explicit(&cached, level, memory_order_relaxed);
    return (rose_isa)level;
}

const char *rose_isa_name(rose_isa isa)
{
    return (unsigned)isa < N_LEVELS ? g_names[isa] : "unknown";
}

rose_status rose_isa_parse(const char *name, rose_isa *out, rose_err *err)
{
    rose_isa best = rose_isa_probe();
    *out = ROSE_ISA_SCALAR;
    if (strcmp(name, "auto") == 0) {
        *out = best;
        return ROSE_OK;
    }
    for (int i = 0; i < N_LEVELS; i++) {
        if (strcmp(name, g_names[i]) != 0) continue;
        char why[256];
        missing_for((rose_isa)i, why, sizeof why);
        if (why[0] != '\0')
            return rose_fail(err, ROSE_E_UNSUPPORTED,
                             "isa %s: this machine lacks %s; its highest level is %s", name, why,
                             g_names[best]);
        *out = (rose_isa)i;
        return ROSE_OK;
    }
    return rose_fail(err, ROSE_E_INVAL,
                     "isa '%s': expected auto, scalar, avx2, avx512, avx512-bf16, amx or neon",
                     name);
}

/* ---- threads ---- */

uint32_t rose_cpus_allowed(int *cpus, uint32_t cap)
{
    /* Systems may have more CPUs than CPU_SETSIZE (1024). The kernel refuses a mask that is too
     * small, so try larger ones. */
    uint32_t n = 0;
    for (int max_cpus = CPU_SETSIZE; max_cpus <= CPU_SETSIZE * 64; max_cpus *= 4) {
        cpu_set_t *set = CPU_ALLOC((size_t)max_cpus);
        size_t bytes = CPU_ALLOC_SIZE((size_t)max_cpus);
        if (set == NULL) break;
        int rc = sched_getaffinity(0, bytes, set);
        bool retry = rc != 0 && errno == EINVAL;
        for (int i = 0; rc == 0 && i < max_cpus && n < cap; i++) {
            if (CPU_ISSET_S((size_t)i, bytes, set)) cpus[n++] = i;
        }
        CPU_FREE(set);
        if (!retry) break;
    }
    return n;
}

uint32_t rose_cpus_quota_parse(const char *text)
{
    unsigned long long quota, period;
    char end;
    if (sscanf(text, "%llu %llu%c", &quota, &period, &end) < 2 || period == 0) return UINT32_MAX;
    const unsigned long long n = quota / period + (quota % period != 0);
    return n < 1 ? 1 : n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/* The smallest figure of this process's cgroup and of all cgroups above it; UINT64_MAX without a
 * limit. dir: the folder of a cgroup. */
static uint64_t least_of_cgroups(uint64_t (*figure)(const char *dir, bool v2))
{
    char text[4096], dir[4200];
    uint64_t least = UINT64_MAX;

    if (!rose_proc_read("/proc/self/cgroup", text, sizeof text)) return least;
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        const bool v2 = strncmp(line, "0::", 3) == 0;
        char *const v1 = strstr(line, ":memory:");
        if (!v2 && v1 == NULL) continue;
        char *const path = v2 ? line + 3 : v1 + 8;
        for (;;) {
            snprintf(dir, sizeof dir, "/sys/fs/cgroup%s%s", v2 ? "" : "/memory", path);
            const uint64_t here = figure(dir, v2);
            if (here < least) least = here;
            char *slash = strrchr(path, '/');
            if (slash == NULL) break;
            *slash = '\0';
        }
    }
    return least;
}

static uint64_t cpus_of_cgroup(const char *dir, bool v2)
{
    char path[4300], text[80];
    snprintf(path, sizeof path, "%s/cpu.max", dir);
    if (!v2 || !rose_proc_read(path, text, sizeof text)) return UINT64_MAX; /* the root has none */
    return rose_cpus_quota_parse(text);
}

uint32_t rose_cpus_quota(void)
{
    const uint64_t least = least_of_cgroups(cpus_of_cgroup);
    return least < UINT32_MAX ? (uint32_t)least : UINT32_MAX;
}

int rose_thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    const int rc = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

void rose_thread_setup(const char *name, int cpu)
{
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    char short_name[16];
    snprintf(short_name, sizeof short_name, "%s", name);
    pthread_setname_np(pthread_self(), short_name);
    if (cpu < 0) return;

    int rc = EINVAL;
    size_t bytes = CPU_ALLOC_SIZE((size_t)cpu + 1);
    cpu_set_t *set = CPU_ALLOC((size_t)cpu + 1);
    if (set != NULL) {
        CPU_ZERO_S(bytes, set);
        CPU_SET_S((size_t)cpu, bytes, set);
        rc = pthread_setaffinity_np(pthread_self(), bytes, set);
        CPU_FREE(set);
    }
    if (rc != 0 && !atomic_flag_test_and_set_explicit(&warned, memory_order_relaxed)) {
        rose_log(ROSE_LOG_WARN, "base", "cannot pin thread %s to cpu %d: %s", short_name, cpu,
                 strerror(rc));
    }
}

/* struct sched_attr as Linux has defined it since 3.14. glibc defines it only since 2.41. */
typedef struct thread_attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns; /* runtime: of normal threads their slice */
} thread_attr;

void rose_thread_slice(uint32_t us)
{
    thread_attr a = {0};
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) != 0 || a.policy != SCHED_OTHER) return;
    a.size = sizeof a;
    a.runtime_ns = (uint64_t)us * 1000;
    a.deadline_ns = a.period_ns = 0;
    if (syscall(SYS_sched_setattr, 0, &a, 0) != 0)
        rose_log(ROSE_LOG_DEBUG, "base", "time slice of %u us: %s", us, strerror(errno));
}

void rose_thread_ftz(void)
{
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040u); /* FTZ bit 15, DAZ bit 6 */
#elif defined(__aarch64__)
    uint64_t fpcr;
    __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
    fpcr |= UINT64_C(1) << 24; /* FZ */
    __asm__ volatile("msr fpcr, %0" : : "r"(fpcr));
#endif
}

/* ---- memory ---- */

/* Returns the memory that one cgroup still allows: limit - (usage - file cache that can be
 * dropped). UINT64_MAX when it has no limit. */
static uint64_t cgroup_room(const char *dir, bool v2)
{
    char path[4300], text[8192];
    uint64_t limit, used, cache = 0;

    snprintf(path, sizeof path, "%s/%s", dir, v2 ? "memory.max" : "memory.limit_in_bytes");
    if (!rose_proc_read(path, text, sizeof text) || !rose_proc_number(text, "", &limit))
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", dir, v2 ? "memory.current" : "memory.usage_in_bytes");
    if (!rose_proc_read(path, text, sizeof text) || !rose_proc_number(text, "", &used))
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    if (rose_proc_read(path, text, sizeof text))
        rose_proc_number(text, v2 ? "inactive_file " : "total_inactive_file ", &cache);
    used = used > cache ? used - cache : 0;
    return limit > used ? limit - used : 0;
}

uint64_t rose_memory_available(void)
{
    char text[8192];
    uint64_t kib = 0;
    if (!rose_proc_read("/proc/meminfo", text, sizeof text) ||
        !rose_proc_number(text, "MemAvailable:", &kib))
        return 0;
    uint64_t room = least_of_cgroups(cgroup_room);
    return kib * 1024 < room ? kib * 1024 : room;
}
