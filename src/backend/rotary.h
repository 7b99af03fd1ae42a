/* backend/rotary.h - sines and cosines of rotary positions (docs/NUMERICS.md, rule 12), made
 * once at open. Pure; the same bits on every machine, with FTZ or without. */
#ifndef ROSE_BACKEND_ROTARY_H
#define ROSE_BACKEND_ROTARY_H

#include <stdint.h>

/* The fp32 numbers nearest to sine and cosine of an angle in 0 .. 2^24. */
void rose_sincos(float angle, float *sine, float *cosine);

/* Positions p0 .. p1-1 of the tables cos[position][half] and sin[position][half], times `factor`.
 * cos and sin point to the row of position p0. */
void rose_rotary_rows(float *cos, float *sin, const float *inv_freq, uint32_t half, float factor,
                      uint32_t p0, uint32_t p1);

#endif
