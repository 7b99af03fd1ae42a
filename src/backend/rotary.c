/* backend/rotary.c - see rotary.h. libm's sine differs by version and CPU, so this is our own:
 * in double, from + - * and rounding alone. The result's error is below 2^-52, so the fp32 number
 * is the nearest one unless the true value lies within that of a tie. */
#include "backend/rotary.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

/* pi / 2 in three parts. The first two have 29 significant bits, so their products with an integer
 * up to 2^24 are exact; what is left out is below 2^-111. */
#define HALF_PI_1  0x1.921fb54p+0
#define HALF_PI_2  0x1.10b4611p-30
#define HALF_PI_3  0x1.4c4c6628b80dcp-59
#define TWO_BY_PI  0x1.45f306dc9c883p-1
#define ROUND_TERM 0x1.8p52 /* adding it rounds to an integer */

/* |r| <= pi / 4: the series, up to r^17 / 17! and r^18 / 18!. low is what r lacks. */
static double sine_of(double r, double low)
{
    const double z = r * r;
    double s = 1.0 / 355687428096000.0;
    s = s * z - 1.0 / 1307674368000.0;
    s = s * z + 1.0 / 6227020800.0;
    s = s * z - 1.0 / 39916800.0;
    s = s * z + 1.0 / 362880.0;
    s = s * z - 1.0 / 5040.0;
    s = s * z + 1.0 / 120.0;
    s = s * z - 1.0 / 6.0;
    return r + (r * z * s + low);
}

static double cosine_of(double r, double low)
{
    const double z = r * r;
    double c = -1.0 / 6402373705728000.0;
    c = c * z + 1.0 / 20922789888000.0;
    c = c * z - 1.0 / 87178291200.0;
    c = c * z + 1.0 / 479001600.0;
    c = c * z - 1.0 / 3628800.0;
    c = c * z + 1.0 / 40320.0;
    c = c * z - 1.0 / 720.0;
    c = c * z + 1.0 / 24.0;
    const double half = 0.5 * z, one = 1.0 - half;
    return one + ((1.0 - one - half) + (z * z * c - r * low));
}

void rose_sincos(float angle, float *sine, float *cosine)
{
    const double x = (double)angle;
    const double n = (x * TWO_BY_PI + ROUND_TERM) - ROUND_TERM;
    const double a = x - n * HALF_PI_1; /* exact: multiples of one unit, of like size */
    const double b = n * HALF_PI_2, r0 = a - b, t = r0 - a;
    const double rest = n * HALF_PI_3 - ((a - (r0 - t)) - (b + t)); /* with r0's own error */
    const double r = r0 - rest, low = (r0 - r) - rest;
    const double s = sine_of(r, low), k = cosine_of(r, low);

    /* Exact. Comparisons are defined for any n, also for that of an infinite angle, which the
     * divisors of a hostile file can give. */
    const double quadrant = n - 4.0 * floor(0.25 * n);
    const bool swaps = quadrant == 1.0 || quadrant == 3.0;
    const double sine_part = swaps ? k : s, cosine_part = swaps ? s : k;
    *sine = (float)(quadrant < 2.0 ? sine_part : -sine_part);
    *cosine = (float)(quadrant == 0.0 || quadrant == 3.0 ? cosine_part : -cosine_part);
}

void rose_rotary_rows(float *cos, float *sin, const float *inv_freq, uint32_t half, float factor,
                      uint32_t p0, uint32_t p1)
{
    for (uint32_t p = p0; p < p1; p++) {
        float *c = cos + (size_t)(p - p0) * half, *s = sin + (size_t)(p - p0) * half;
        for (uint32_t i = 0; i < half; i++) {
            rose_sincos((float)p * inv_freq[i], &s[i], &c[i]);
            c[i] = c[i] * factor;
            s[i] = s[i] * factor;
        }
    }
}
