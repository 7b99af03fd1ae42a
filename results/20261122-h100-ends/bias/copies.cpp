
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <cstdint>
#include "backend/cuda/wide_walk.h"
#define ROSE_DEVICE static inline
enum { ROSE_CUDA_CHUNK_K32 = 6 };
struct CUtensorMap { int which; };
// ---- the machine ----
struct Slot { long expected, got; int phase_full; bool armed; int w_stage, w_n8, h_stage, h_row8; };
static int N_STAGES, SLOTS, TNN, GROUPSN, PEERSN; static uint32_t RINGB, FULLB, EMPTYB, BIASB, STAGEB;
static std::vector<Slot> slots; static std::vector<int> place_tile_n0; static std::vector<uint32_t> piece;
static long n_freed, n_filled; static const float *BIAS; static uint32_t NOUT; static bool want_bias;
#define CHECK(c) do { if (!(c)) { printf("FAILED %s line %d\n", #c, __LINE__); exit(1); } } while (0)
static wide_walk W; static uint32_t AT, STEP, RANK;
static long consumed; // stages
static int slot_of(uint32_t bar) { CHECK(bar >= FULLB && bar < FULLB + 8u * SLOTS && (bar - FULLB) % 8 == 0); return (bar - FULLB) / 8; }
static void barrier_expect(uint32_t bar, uint32_t bytes) { Slot &s = slots[slot_of(bar)]; CHECK(!s.armed); s.armed = true; s.expected = bytes; }
static void copy_piece(uint32_t to, const void *from, uint32_t bytes, uint32_t bar) {
    Slot &s = slots[slot_of(bar)]; s.got += bytes; CHECK(bytes % 16 == 0 && to % 16 == 0 && bytes > 0);
    CHECK(to >= BIASB && (to - BIASB) % (TNN * 4) == 0); const size_t pl = (to - BIASB) / (TNN * 4); CHECK(pl < place_tile_n0.size());
    const long n0 = (const float *)from - BIAS; CHECK(n0 >= 0 && n0 % TNN == 0 && n0 + bytes / 4 <= NOUT && bytes == 4 * (NOUT - n0 < (uint32_t)TNN ? NOUT - n0 : TNN));
    place_tile_n0[pl] = (int)n0; }
static void box(uint32_t to, const CUtensorMap *map, uint32_t core, uint32_t block, uint32_t bar, uint32_t blocks) {
    const int i = slot_of(bar); Slot &s = slots[i]; const uint32_t base = RINGB + i * STAGEB; CHECK(core % 8 == 0);
    s.got += blocks * 1024;
    if (map->which == 0) { CHECK(to == base); s.h_stage = core / 8; s.h_row8 = block; }
    else { s.w_stage = core / 8; s.w_n8 = block - (PEERSN == 2 ? RANK * (TNN / 16) : 0); CHECK(to == base + GROUPSN * 8192u + (PEERSN == 2 ? RANK * (TNN / 16) * 1024 : 0)); } }
static void copy_box(uint32_t to, const CUtensorMap *map, uint32_t core, uint32_t block, uint32_t bar) { box(to, map, core, block, bar, map->which == 0 ? GROUPSN * 8 : TNN / 8); }
static void copy_box_to_both(uint32_t to, const CUtensorMap *map, uint32_t core, uint32_t block, uint32_t bar) { CHECK(PEERSN == 2); box(to, map, core, block, bar, TNN / 16); slots[slot_of(bar)].got += TNN / 16 * 1024; /* the peer's half */ }
static bool waited;
static void pdl_wait() { waited = true; }
static uint32_t tile_at(long stage) { return AT + (uint32_t)(stage / N_STAGES) * STEP; }
static void consume() { // the oldest stage
    const int i = consumed % SLOTS; Slot &s = slots[i]; const wide_tile_place t = wide_place(&W, tile_at(consumed)); const int st = consumed % N_STAGES;
    CHECK(waited && s.armed && s.got == s.expected); CHECK(s.w_stage == st && s.h_stage == st && s.w_n8 == (int)t.col * TNN / 8 && s.h_row8 == (int)((t.row * PEERSN + RANK) * GROUPSN * 8));
    s = Slot{}; consumed++;
}
/* The slowest that consumers may be: a tile's bias is read until the next tile's third stage is freed, which needs it started. */
static void barrier_wait(uint32_t bar, uint32_t parity);
#include "part.h"
static int bias_places;
static long filled;
static void check_bias(long tile) { if (!want_bias) return; const wide_tile_place t = wide_place(&W, AT + (uint32_t)tile * STEP); CHECK(place_tile_n0[tile % bias_places] == (int)t.col * TNN); }
static void barrier_wait(uint32_t bar, uint32_t parity) {
    CHECK(bar >= EMPTYB && (bar - EMPTYB) / 8 < (uint32_t)SLOTS); const int i = (bar - EMPTYB) / 8; CHECK(i == filled % SLOTS);
    CHECK(parity == (((filled / SLOTS) & 1) ^ 1u));
    while (filled - consumed >= SLOTS) { /* as late as can be: the oldest stage is freed only now */
        const long tile = consumed / N_STAGES; const int st = consumed % N_STAGES;
        if (st < 3 && tile > 0) check_bias(tile - 1); /* its end may last until stage 2 of the next tile is freed */
        consume();
    }
    filled++;
}
template <int GROUPS, int TN, int PEERS> static void run(uint32_t rows, uint32_t n, uint32_t k, bool bias, uint32_t most) {
    constexpr int STAGES = STAGES_OF<GROUPS, TN>;
    static float b[1 << 16]; BIAS = b; NOUT = n; want_bias = bias; TNN = TN; GROUPSN = GROUPS; PEERSN = PEERS; SLOTS = STAGES; STAGEB = WIDE_STAGE<GROUPS, TN>;
    RINGB = 1 << 20; FULLB = 4096; EMPTYB = 8192; BIASB = 16384; bias_places = BIASES<STAGES>;
    W = wide_walk_of(rows, PEERS * GROUPS * 64, n, TN, (uint64_t)k * 2); const uint32_t blocks = W.n < most ? W.n : most; N_STAGES = (k + CHUNK_K - 1) / CHUNK_K * CHUNK_STAGES;
    CUtensorMap w = {1}, h = {0};
    for (AT = 0; AT < blocks; AT += 1 + AT / 3) for (RANK = 0; RANK < (uint32_t)PEERS; RANK++) {
        STEP = blocks; slots.assign(SLOTS, Slot{}); place_tile_n0.assign(bias_places, -1); consumed = filled = 0; waited = false;
        // the early stages do not wait
        const long early = N_STAGES < STAGES ? N_STAGES : STAGES; filled = early;
        const wide_copies c = {&w, &h, bias ? b : NULL, RINGB, FULLB, EMPTYB, BIASB, n, (uint32_t)N_STAGES, RANK};
        copy_wide<GROUPS, TN, STAGES, PEERS>(c, W, AT, STEP);
        const long all = (long)((W.n - AT + STEP - 1) / STEP) * N_STAGES; CHECK(filled == all);
        while (consumed < all) { const long tile = consumed / N_STAGES; if (consumed % N_STAGES < 3 && tile > 0) check_bias(tile - 1); consume(); }
        check_bias(all / N_STAGES - 1);
    }
}
int main() {
    long n_runs = 0; const uint32_t ks[] = {64, 192, 200, 384, 576, 768, 1600, 3072}, ns[] = {8, 48, 96, 136, 192, 768, 1032, 2304, 8200}, rs[] = {1, 64, 65, 130, 300, 2047, 8192};
    for (uint32_t k : ks) for (uint32_t n : ns) for (uint32_t r : rs) for (int bias = 0; bias < 2; bias++) for (uint32_t most : {3u, 17u, 132u}) {
        run<2, 192, 1>(r, n, k, bias, most); run<2, 192, 2>(r, n, k, bias, most); run<2, 96, 1>(r, n, k, bias, most); run<1, 96, 1>(r, n, k, bias, most); run<1, 48, 1>(r, n, k, bias, most); n_runs += 5; }
    printf("%ld shapes pass\n", n_runs);
}
