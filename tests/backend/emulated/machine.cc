/* tests/backend/emulated/machine.cc - machine.h: fibers, turns, launches. */
#include "machine.h"

#include <link.h>

namespace machine
{

block *g_block;
thread_local char t_anchor;
manner g_manner;
bool g_hung;
const void *g_kernel;
std::vector<std::function<bool()>> *g_recorded;
static uint64_t g_any;

static void live()
{
    for (;;) {
        now().kernel();
        fiber &f = me();
        if (!f.open.empty() || !f.groups.empty()) die("products that nobody has waited for");
        for (const auto &group : f.added)
            if (!group.empty()) die("copies that nobody has waited for");
        if (!f.adding.empty()) die("copies that nobody has waited for");
        f.done = true;
        now().progress++;
        yield(); /* comes back as another fiber */
    }
}

__attribute__((noinline)) static void go_on(block &b, stack &s)
{
    if (_setjmp(b.scheduler) != 0) return;
    if (s.begun) _longjmp(s.here, 1);
    s.begun = true;
    setcontext(&s.context);
}

/* Every thread of the block as far as it goes. Returns whether some are left. */
static bool sweep(block &b)
{
    bool left = false;
    for (fiber &f : b.fibers) {
        if (f.done) continue;
        b.running = &f;
        if (f.holds == nullptr || f.holds(f.what)) {
            f.holds = nullptr;
            go_on(b, *f.on);
        }
        left |= !f.done;
    }
    return left;
}

/* Memory is kept from launch to launch: new pages would take longer than the kernels. An arena is
 * full of FILLER when it is taken. */
enum { FILLER = 0xa5 };
static std::vector<stack *> g_stacks;
static std::vector<uint8_t *> g_arenas;

static stack *take_stack()
{
    if (g_stacks.empty()) return new stack;
    stack *s = g_stacks.back();
    g_stacks.pop_back();
    return s;
}

static uint8_t *take_arena()
{
    if (g_arenas.empty()) {
        void *p = aligned_alloc(1024, ARENA);
        if (p == nullptr) die("out of memory");
        return static_cast<uint8_t *>(memset(p, FILLER, ARENA));
    }
    uint8_t *p = g_arenas.back();
    g_arenas.pop_back();
    return p;
}

static void start(block &b, launch &l)
{
    b.statics = &t_anchor;
    b.arena = take_arena();
    b.begun = true;
    b.fibers.resize(l.threads);
    b.warps.resize((l.threads + 31) / 32);
    for (uint32_t i = 0; i < l.threads; i++) {
        stack *s = take_stack();
        b.fibers[i].thread.x = i;
        b.fibers[i].on = s;
        if (s->begun) continue;
        getcontext(&s->context);
        s->context.uc_stack.ss_sp = s->memory;
        s->context.uc_stack.ss_size = STACK;
        s->context.uc_link = nullptr;
        makecontext(&s->context, live, 0);
    }
}

static void end(block &b, launch &l)
{
    b.ended = true;
    l.alive--;
    const uint8_t *beyond = b.arena + l.shared;
    const uint32_t n = ARENA - l.shared;
    if (*beyond != FILLER || memcmp(beyond, beyond + 1, n - 1) != 0)
        die("a place beyond %u bytes of shared memory was written", l.shared);
    memset(b.arena, FILLER, l.shared);
    g_arenas.push_back(b.arena);
    for (fiber &f : b.fibers) {
        f.on->begun = f.done; /* in a launch that hung it is within the kernel */
        g_stacks.push_back(f.on);
    }
}

/* Nobody goes on: a copy arrives, any of them, as the hardware promises no order. Or it hangs. */
static void settle_idle(launch &l)
{
    if (l.copies.empty()) {
        l.hung = l.idle > l.alive;
        return;
    }
    const size_t which = (g_any = g_any * 6364136223846793005u + 1) >> 33;
    auto &one = l.copies[which % l.copies.size()];
    std::swap(one, l.copies.back());
    l.copies.back()();
    l.copies.pop_back();
    l.idle = 0;
}

/* A block's turn: as far as it goes. */
static void take_turn(block &b, launch &l)
{
    g_block = &b;
    if (!b.begun) start(b, l);
    const uint64_t first = l.progress;
    uint64_t before = first - 1;
    bool left = true;
    while (left && l.progress != before) {
        before = l.progress;
        left = sweep(b);
    }
    l.idle = l.progress != first ? 0 : l.idle + 1;
    if (left && l.idle >= l.alive) settle_idle(l);
    if (!left || l.hung) end(b, l);
}

static bool run_cluster(launch &l, uint32_t peers, uint32_t x, uint32_t y)
{
    l.blocks = std::vector<block>(peers);
    l.cluster = named();
    l.copies.clear();
    l.idle = 0;
    l.alive = peers;
    l.hung = false;
    for (uint32_t i = 0; i < peers; i++) {
        l.blocks[i].of = &l;
        l.blocks[i].rank = i;
        l.blocks[i].place.x = x + i;
        l.blocks[i].place.y = y;
    }
    for (size_t i = 0; l.alive > 0; i = (i + 1) % peers)
        if (!l.blocks[i].ended) take_turn(l.blocks[i], l);
    g_block = nullptr;
    if (!l.hung && !l.copies.empty()) die("copies that nobody has waited for");
    if (l.hung) printf("hung: block %u of %u\n", x, l.grid.x);
    return !l.hung;
}

/* The program's thread_local variables, and with them static shared memory. */
static std::vector<char> statics()
{
    std::vector<char> v;
    const auto copy = [](struct dl_phdr_info *info, size_t, void *to) {
        const char *at = static_cast<const char *>(info->dlpi_tls_data);
        for (int i = 0; at != nullptr && i < info->dlpi_phnum; i++)
            if (info->dlpi_phdr[i].p_type == PT_TLS)
                static_cast<std::vector<char> *>(to)->assign(at, at + info->dlpi_phdr[i].p_memsz);
        return 1; /* the program comes first */
    };
    dl_iterate_phdr(copy, &v);
    return v;
}

bool run(launch &l, uint32_t peers)
{
    const std::vector<char> before = peers > 1 ? statics() : std::vector<char>();
    l.how = g_manner;
    for (uint32_t y = 0; y < l.grid.y; y++)
        for (uint32_t x = 0; x < l.grid.x; x += peers)
            if (!run_cluster(l, peers, x, y)) {
                g_hung = true;
                return false;
            }
    if (peers > 1 && statics() != before) die("the blocks of a cluster wrote static shared memory");
    return true;
}

} // namespace machine
