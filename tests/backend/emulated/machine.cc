/* tests/backend/emulated/machine.cc - machine.h: fibers, turns, launches. */
#include "machine.h"

namespace machine
{

thread_local block *t_block;
thread_local char t_anchor;
manner g_manner;
bool g_hung;
const void *g_kernel;

static void begin_fiber()
{
    fiber *f = t_block->running;
    now().kernel();
    if (!f->open.empty() || !f->groups.empty()) abort(); /* products that nobody waited for */
    f->done = true;
    now().progress++;
    yield();
}

/* Every thread of the block as far as it goes. Returns whether some are left. */
static bool sweep(block &b)
{
    bool left = false;
    for (fiber &f : b.fibers) {
        if (f.done) continue;
        b.running = &f;
        swapcontext(&b.scheduler, &f.context);
        left |= !f.done;
    }
    return left;
}

static void start(block &b, launch &l)
{
    t_block = &b;
    b.statics = &t_anchor;
    b.memory.reset(new uint8_t[ARENA + 1024]);
    b.arena = b.memory.get() + (1024 - reinterpret_cast<uintptr_t>(b.memory.get()) % 1024);
    memset(b.arena, 0xa5, ARENA);
    b.fibers.resize(l.threads);
    b.warps.resize((l.threads + 31) / 32);
    for (uint32_t i = 0; i < l.threads; i++) {
        fiber &f = b.fibers[i];
        f.of = &b;
        f.thread.x = i;
        f.stack.reset(new char[STACK]);
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.get();
        f.context.uc_stack.ss_size = STACK;
        f.context.uc_link = nullptr;
        makecontext(&f.context, begin_fiber, 0);
    }
}

/* A block on its host thread; the blocks take turns, a sweep each. */
static void run_block(launch &l, size_t i)
{
    std::unique_lock<std::mutex> mine(l.lock);
    block &b = l.blocks[i];
    l.turn.wait(mine, [&] { return l.whose == i; });
    start(b, l);
    for (bool left = true; left && !l.hung;) {
        const uint64_t before = l.progress;
        left = sweep(b);
        l.idle = l.progress != before ? 0 : l.idle + 1;
        if (l.idle > l.blocks.size()) { /* nobody goes on: a copy arrives, or it has hung */
            if (l.copies.empty()) {
                l.hung = true;
            } else {
                l.copies.front()();
                l.copies.pop_front();
                l.idle = 0;
            }
        }
        l.whose = (i + 1) % l.blocks.size();
        l.turn.notify_all();
        l.turn.wait(mine, [&] { return l.whose == i; });
    }
    /* Others may still reach this block's memory: its turns go by until all have ended. */
    l.alive--;
    while (l.alive > 0) {
        l.whose = (i + 1) % l.blocks.size();
        l.turn.notify_all();
        l.turn.wait(mine, [&] { return l.whose == i || l.alive == 0; });
        if (l.alive > 0 && l.whose == i) l.idle++;
    }
    l.turn.notify_all();
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
            if (l.hung) {
                printf("hung: block %u of %u\n", x, l.grid.x);
                g_hung = true;
                return false;
            }
        }
    return true;
}

} // namespace machine
