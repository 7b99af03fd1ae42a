/* base/hist.c - the bucket bounds of the program's histograms. */
#include "base/hist.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define S  UINT64_C(1000000000)

/* The bounds of the histogram's buckets: those of vLLM from 1 ms on, and finer ones below 1 ms
 * for small models. */
const rose_hist_bounds rose_hist_latency = {
    27, {50 * US, 100 * US,  200 * US, 500 * US, 1 * MS,   2 * MS,   5 * MS,   10 * MS, 20 * MS,
         40 * MS, 60 * MS,   80 * MS,  100 * MS, 250 * MS, 500 * MS, 750 * MS, 1 * S,   2500 * MS,
         5 * S,   7500 * MS, 10 * S,   20 * S,   40 * S,   80 * S,   160 * S,  640 * S, 2560 * S}};

const rose_hist_bounds rose_hist_step = {
    22, {1 * US,   2 * US,   5 * US, 10 * US, 20 * US, 50 * US, 100 * US, 200 * US,
         500 * US, 1 * MS,   2 * MS, 5 * MS,  10 * MS, 20 * MS, 50 * MS,  100 * MS,
         200 * MS, 500 * MS, 1 * S,  2 * S,   5 * S,   10 * S}};

const rose_hist_bounds rose_hist_tokens = {19,
                                           {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000,
                                            10000, 20000, 50000, 100000, 200000, 500000, 1000000}};
