/* model/convert.h - exact conversion between the element types of weight files. Integer arithmetic
 * only, so the results do not depend on the FTZ/DAZ bits or the rounding mode of the calling
 * thread. Any thread; no state. */
#ifndef ROSE_MODEL_CONVERT_H
#define ROSE_MODEL_CONVERT_H

#include "model/model.h"

/* These functions widen fp16 or bf16 to fp32, which is exact: subnormals, signed zeros and
 * infinities keep their value; a NaN keeps its sign and payload and becomes quiet. */
float rose_f16_to_f32(uint16_t h);
float rose_bf16_to_f32(uint16_t h);

/* These functions narrow fp32 to fp16 or bf16. They round to nearest, ties to even, and overflow
 * to infinity. A NaN keeps its sign and upper payload bits and becomes quiet. */
uint16_t rose_f32_to_bf16(float f);
uint16_t rose_f32_to_f16(float f);

/* Writes elements first .. first+n-1 of t, in memory order, as fp32 to out[0..n). The range must
 * lie inside the tensor (asserted). The tensor's data may have any alignment. For loading and
 * tests: about 1 ns an element. */
void rose_tensor_read_f32(const rose_tensor *t, uint64_t first, uint64_t n, float *out);

/* Outputs first .. first+n-1 of a part of a transposed matrix, in the order of rose_linear_row: the
 * rows as they are stored (whole blocks) into out, and the bias as fp32, zeros if there is none. */
void rose_linear_copy_rows(const rose_linear *l, uint32_t part, uint64_t first, uint64_t n,
                           void *out);
void rose_linear_copy_bias(const rose_linear *l, uint32_t part, uint64_t first, uint64_t n,
                           float *out);

/* Elements of t: the product of its shape; 0 for a missing tensor (data NULL). */
uint64_t rose_tensor_n(const rose_tensor *t);

#endif
