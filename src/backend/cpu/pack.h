/* backend/cpu/pack.h - converts weights of the model's mapping to packed weights. Values are
 * exact or rounded once: fp32 keeps the values of any source dtype, bf16 rounds to nearest even.
 * Both read through model/convert.h. These are pure functions of a range, so that threads can
 * share a tensor. */
#ifndef ROSE_BACKEND_CPU_PACK_H
#define ROSE_BACKEND_CPU_PACK_H

#include "backend/cpu/kernels.h"
#include "model/model.h"

/* Panels p0 .. p1-1 of the matrix w[k][n] into `panels` (rose_panels_bytes(type, k, n), 64-byte
 * aligned), padding included. The tensor is stored [k][n], or [n][k] if transposed. About 0.5 ns an
 * element. int8: scale[n] of these panels becomes the largest magnitude of the output / 127 (0
 * where that is below 1e-30) and a value the nearest integer of w / scale, ties to even; false, and
 * unspecified contents, if a value is not finite. The other types: scale is NULL, true. Quantized
 * types: w has the blocks of that type (rose_quant_has) and is transposed; k is a multiple of the
 * block. */
bool rose_pack_panels(void *panels, float *scale, rose_format type, const rose_tensor *w,
                      uint32_t k, uint32_t n, bool transposed, uint32_t p0, uint32_t p1);

/* Writes elements first .. first+count-1 of t to out, rounded to bf16. */
void rose_pack_bf16(uint16_t *out, const rose_tensor *t, uint64_t first, uint64_t count);

/* Row `n` of a packed matrix (its k true values, as fp32): how a tied head serves the embedding.
 * int8: the integer times the scale, rounded to bf16. Quantized types: the exact fp32 value. */
void rose_panel_row(float *out, const void *panels, const float *scale, rose_format type,
                    uint32_t k, uint32_t n);

#endif
