/* tests/backend/emulated/machine.h - emulates a GPU of sm_90a for kernels compiled as C++, one
 * thread after the other. Each CUDA thread is a fiber on the thread of the host that launches. The
 * blocks of a cluster take turns. The emulation has what the GEMM kernels of
 * gemm_wide.cuh use: barriers in shared memory, tensor copies, wgmma with both operands in shared
 * memory, clusters, named barriers, warps.
 *
 * If the hardware may do something at any time within a period, the emulation does it at the start
 * or at the end. Copies (also stores to other blocks) happen when they are
 * requested. Or they happen when nothing else can run or a thread waits for them. Tensor-core
 * products happen when they are issued or when they are waited for. So a place that is written too
 * early, or read before its data is there, gives wrong values. If no thread can run and no copy is
 * under way, the launch hangs, and machine::run reports it. An access outside the launch's shared
 * memory, or to a block that has ended, ends the program with a message.
 *
 * Not emulated: time, the order of memory between threads, registers, caches, kernels that begin
 * before the previous one has ended, and static shared memory of clusters, but for barriers. */
#ifndef ROSE_TESTS_EMULATED_MACHINE_H
#define ROSE_TESTS_EMULATED_MACHINE_H

#include <setjmp.h>
#include <stdint.h>
#include <ucontext.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include <cuda_runtime.h>

/* A function that kernels call at many places. Kernels compile faster than with it inline. */
#define ROSE_CALL [[gnu::noinline]] inline

namespace machine
{

enum { ARENA = 256 << 10, STATICS = 0x400000, LOCAL = 0xffffff, STACK = 96 << 10 };

[[noreturn]] inline void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("emulated GPU: ", stdout);
    vprintf(format, arguments);
    putchar('\n');
    fflush(stdout);
    abort();
}

/* What the copies and products of a launch do. */
struct manner {
    bool late_copies, late_products;
};

struct barrier { /* mbarrier */
    int64_t count = 0, pending = 0, bytes = 0;
    uint32_t phase = 0;
};

struct named { /* bar.sync, bar.arrive */
    uint32_t arrived = 0, turn = 0;
};

struct block;

/* Runs one fiber after another: a new one costs more than many kernels. */
struct stack {
    ucontext_t context; /* for the first time; then */
    jmp_buf here;
    bool begun = false;
    alignas(16) char memory[STACK];
};

typedef std::vector<std::function<void()>> actions;

struct fiber {
    stack *on = nullptr;
    bool (*holds)(void *) = nullptr; /* what it waits for; NULL: it can run */
    void *what = nullptr;
    uint3 thread{};
    bool done = false;
    actions open, adding;               /* products, copies of cp.async */
    std::vector<actions> groups, added; /* groups of them, committed */
    uint32_t cluster_turn = 0;
};

struct warp { /* what lanes exchange */
    uint64_t value[2][32];
    uint32_t arrived = 0, turn = 0;
};

struct launch;

struct block {
    launch *of = nullptr;
    uint32_t rank = 0;
    uint3 place{};
    std::vector<fiber> fibers;
    std::vector<warp> warps;
    std::map<uint32_t, named> barriers;
    named all;
    std::map<const void *, barrier> mbarriers;
    char *statics = nullptr;  /* near the thread_local ones */
    uint8_t *arena = nullptr; /* of ARENA bytes, aligned */
    fiber *running = nullptr;
    jmp_buf scheduler;
    bool begun = false, ended = false;
};

struct launch {
    dim3 grid;
    uint32_t threads = 0, shared = 0;
    manner how{};
    std::vector<block> blocks; /* of the cluster that runs */
    actions copies;
    uint64_t progress = 0;
    named cluster;
    size_t idle = 0, alive = 0;
    bool hung = false;
    std::function<void()> kernel;
};

extern block *g_block;
extern thread_local char t_anchor;

inline fiber &me()
{
    return *g_block->running;
}

inline launch &now()
{
    return *g_block->of;
}

/* To the block's scheduler, and back in the next sweep. Not by swapcontext, which asks the kernel.
 */
ROSE_CALL void yield()
{
    block *b = g_block;
    if (_setjmp(b->running->on->here) == 0) _longjmp(b->scheduler, 1);
}

/* Until it holds. The scheduler asks: to go on only in order to ask costs most of the time. */
template <typename F> inline void wait_until(F holds)
{
    if (!holds()) {
        me().what = &holds;
        me().holds = [](void *what) { return (*static_cast<F *>(what))(); };
        yield();
    }
    now().progress++;
}

/* ---- shared memory: 24 bits, and the block of a cluster above them ---- */

inline uint32_t address_of(const void *p)
{
    const uint8_t *at = static_cast<const uint8_t *>(p);
    if (at >= g_block->arena && at < g_block->arena + ARENA) return (uint32_t)(at - g_block->arena);
    const ptrdiff_t from = static_cast<const char *>(p) - g_block->statics;
    if (from < -(STATICS / 2) || from > STATICS / 2) die("an address that is not shared");
    return (uint32_t)(from + STATICS);
}

inline block &block_at(uint32_t address)
{
    const uint32_t peer = address >> 24;
    block &b = peer == 0 ? *g_block : now().blocks.at(peer - 1);
    if (!b.begun || b.ended)
        die("block %u reaches into block %u, which has %s", g_block->rank, b.rank,
            b.begun ? "ended" : "not begun");
    return b;
}

ROSE_CALL void *pointer_at(uint32_t address)
{
    block &b = block_at(address);
    const uint32_t at = address & LOCAL;
    if (at < ARENA && at >= now().shared)
        die("place %u of %u bytes of shared memory", at, now().shared);
    return at < ARENA ? static_cast<void *>(b.arena + at)
                      : static_cast<void *>(b.statics + ((ptrdiff_t)at - STATICS));
}

/* ---- mbarrier ---- */

ROSE_CALL barrier &barrier_at(uint32_t address)
{
    return block_at(address).mbarriers[pointer_at(address)];
}

inline void settle(barrier &b)
{
    if (b.pending < 0) die("more arrivals than a barrier was made for");
    if (b.pending != 0 || b.bytes != 0) return;
    b.phase ^= 1;
    b.pending = b.count;
    now().progress++;
}

inline void arrive(barrier &b, int64_t bytes)
{
    b.bytes += bytes;
    b.pending--;
    settle(b);
}

inline void complete(barrier &b, int64_t bytes)
{
    b.bytes -= bytes;
    settle(b);
}

/* ---- threads that meet ---- */

ROSE_CALL void meet(named &n, uint32_t expected, bool wait)
{
    const uint32_t turn = n.turn;
    if (++n.arrived == expected) {
        n.arrived = 0;
        n.turn++;
        now().progress++;
        return;
    }
    if (wait) wait_until([&] { return n.turn != turn; });
}

/* All lanes' values, in turn of lanes. */
ROSE_CALL const uint64_t *exchange(uint64_t value)
{
    warp &w = g_block->warps[me().thread.x / 32];
    const uint32_t turn = w.turn;
    w.value[turn % 2][me().thread.x % 32] = value;
    if (++w.arrived == 32) {
        w.arrived = 0;
        w.turn++;
        now().progress++;
    } else {
        wait_until([&] { return w.turn != turn; });
    }
    return w.value[turn % 2];
}

/* ---- copies and products ---- */

template <typename F> inline void start_copy(F copy)
{
    if (now().how.late_copies)
        now().copies.push_back(std::move(copy));
    else
        copy();
}

/* Runs the groups except for the youngest `left`. */
inline void run_groups(std::vector<actions> &g, size_t left)
{
    if (g.size() <= left) return;
    const auto end = g.end() - (ptrdiff_t)left;
    for (auto group = g.begin(); group != end; group++)
        for (auto &run : *group)
            run();
    g.erase(g.begin(), end);
}

/* Waits until all of the thread's groups of cp.async are done, except for the youngest `left`. */
inline void wait_added(size_t left)
{
    run_groups(me().added, left);
}

template <typename F> inline void issue(F run)
{
    if (now().how.late_products)
        me().open.push_back(std::move(run));
    else
        run();
}

inline void commit()
{
    me().groups.push_back(std::move(me().open));
    me().open.clear();
}

inline void wait_groups(size_t left)
{
    run_groups(me().groups, left);
}

/* ---- a launch ---- */

/* Runs all blocks of the grid, cluster by cluster. false: it hung (said on standard output). */
bool run(launch &l, uint32_t peers);
/* The manner of launches to come; what went wrong since the last call. */
extern manner g_manner;
extern bool g_hung;
/* The kernel of the last launch; NULL: there was none since it was set so. */
extern const void *g_kernel;
/* The launches of the capture that has begun (runtime.cc); NULL: launches run. */
extern std::vector<std::function<bool()>> *g_recorded;

} // namespace machine

#endif
