/* backend/cpu/pack.h - from the model's mapping to packed weights. Exact or rounded once: fp32
 * keeps the values of any source dtype, bf16 rounds to nearest even. Both paths read through
 * model/convert.h. Pure functions of a range, so that threads can share a tensor. */
#ifndef ROSE_BACKEND_CPU_PACK_H
#define ROSE_BACKEND_CPU_PACK_H

#include "model/model.h"

/* Panels p0 .. p1-1 of the matrix w[k][n] into `panels` (rose_panels_bytes(bf16, k, n), 64-byte
 * aligned), padding included. The tensor is stored [k][n], or [n][k] if transposed. About 0.5 ns an
 * element. */
void rose_pack_panels(void *panels, bool bf16, const rose_tensor *w, uint32_t k, uint32_t n,
                      bool transposed, uint32_t p0, uint32_t p1);

/* Elements first .. first+count-1 of t to out, as fp32, or as rounded bf16 (uint16_t). */
void rose_pack_f32(float *out, const rose_tensor *t, uint64_t first, uint64_t count);
void rose_pack_bf16(uint16_t *out, const rose_tensor *t, uint64_t first, uint64_t count);

/* Row `n` of a packed matrix (its k true values, as fp32): how a tied head serves the embedding. */
void rose_panel_row(float *out, const void *panels, bool bf16, uint32_t k, uint32_t n);

#endif
