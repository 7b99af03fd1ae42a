/* tests/backend/emulated/machine.cc - machine.h: fibers, turns, launches. */
#include "machine.h"

namespace machine
{

thread_local block *t_block;
thread_local char t_anchor;
manner g_manner;
bool g_hung;
const void *g_kernel;
std::vector<std::function<bool()>> *g_recorded;
static uint64_t g_any;

static void begin_fiber()
{
    fiber *f = t_block->running;
    now().kernel();
    if (!f->open.empty() || !f->groups.empty()) die("products that nobody has waited for");
    for (const auto &group : f->added)
        if (!group.empty()) die("copies that nobody has waited for");
    if (!f->adding.empty()) die("copies that nobody has waited for");
    f->done = true;
    now().progress++;
    yield();
}

__attribute__((noinline)) static void go_on(block &b, fiber &f)
{
    b.running = &f;
    if (_setjmp(b.scheduler) != 0) return;
    if (f.begun) _longjmp(f.here, 1);
    f.begun = true;
    setcontext(&f.context);
}

/* Every thread of the block as far as it goes. Returns whether some are left. */
static bool sweep(block &b)
{
    bool left = false;
    for (fiber &f : b.fibers) {
        if (f.done) continue;
        go_on(b, f);
        left |= !f.done;
    }
    return left;
}

/* Memory is kept from launch to launch: new pages would take longer than the kernels. Callers hold
 * the launch's lock. */
template <size_t BYTES> struct pool {
    std::vector<void *> free;
    void *take()
    {
        if (free.empty()) return aligned_alloc(1024, BYTES);
        void *p = free.back();
        free.pop_back();
        return p;
    }
};
static pool<STACK> g_stacks;
static pool<ARENA> g_arenas;

static void start(block &b, launch &l)
{
    t_block = &b;
    b.statics = &t_anchor;
    b.arena = static_cast<uint8_t *>(g_arenas.take());
    memset(b.arena, 0xa5, ARENA);
    b.begun = true;
    b.fibers.resize(l.threads);
    b.warps.resize((l.threads + 31) / 32);
    for (uint32_t i = 0; i < l.threads; i++) {
        fiber &f = b.fibers[i];
        f.of = &b;
        f.thread.x = i;
        f.stack = static_cast<char *>(g_stacks.take());
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack;
        f.context.uc_stack.ss_size = STACK;
        f.context.uc_link = nullptr;
        makecontext(&f.context, begin_fiber, 0);
    }
}

/* To the next block that has not ended. */
static void pass(launch &l, size_t i)
{
    const size_t n = l.blocks.size();
    for (size_t k = 1; k <= n; k++)
        if (!l.blocks[(i + k) % n].ended) {
            l.whose = (i + k) % n;
            l.turns[l.whose].notify_one();
            return;
        }
}

/* A block on its host thread; the blocks take turns, as far as each goes. */
static void run_block(launch &l, size_t i)
{
    std::unique_lock<std::mutex> mine(l.lock);
    block &b = l.blocks[i];
    l.turns[i].wait(mine, [&] { return l.whose == i; });
    start(b, l);
    for (;;) {
        const uint64_t first = l.progress;
        uint64_t before = first - 1;
        bool left = true;
        while (left && l.progress != before) { /* a turn costs more than a sweep */
            before = l.progress;
            left = sweep(b);
        }
        l.idle = l.progress != first ? 0 : l.idle + 1;
        if (l.idle > l.alive && !l.hung) { /* nobody goes on: a copy arrives, or it has hung */
            l.hung = l.copies.empty();
            if (!l.hung) {
                /* Any of them: the hardware promises no order. */
                const size_t which = (g_any = g_any * 6364136223846793005u + 1) >> 33;
                const auto it = l.copies.begin() + (ptrdiff_t)(which % l.copies.size());
                (*it)();
                l.copies.erase(it);
                l.idle = 0;
            }
        }
        if (!left || l.hung) break;
        pass(l, i);
        l.turns[i].wait(mine, [&] { return l.whose == i; });
    }
    b.ended = true;
    for (uint32_t at = l.shared; at < ARENA; at++)
        if (b.arena[at] != 0xa5)
            die("place %u of %u bytes of shared memory was written", at, l.shared);
    for (fiber &f : b.fibers)
        g_stacks.free.push_back(f.stack);
    g_arenas.free.push_back(b.arena);
    l.alive--;
    pass(l, i);
}

bool run(launch &l, uint32_t peers)
{
    l.how = g_manner;
    for (uint32_t y = 0; y < l.grid.y; y++)
        for (uint32_t x = 0; x < l.grid.x; x += peers) {
            l.blocks = std::vector<block>(peers);
            l.cluster = named();
            l.copies.clear();
            l.whose = l.idle = 0;
            l.alive = peers;
            l.turns.reset(new std::condition_variable[peers]);
            l.hung = false;
            for (uint32_t i = 0; i < peers; i++) {
                l.blocks[i].of = &l;
                l.blocks[i].rank = i;
                l.blocks[i].place.x = x + i;
                l.blocks[i].place.y = y;
            }
            std::vector<std::thread> hosts;
            for (uint32_t i = 0; i < peers; i++)
                hosts.emplace_back(run_block, std::ref(l), i);
            for (std::thread &t : hosts)
                t.join();
            if (!l.hung && !l.copies.empty()) die("copies that nobody has waited for");
            if (l.hung) {
                printf("hung: block %u of %u\n", x, l.grid.x);
                g_hung = true;
                return false;
            }
        }
    return true;
}

} // namespace machine
