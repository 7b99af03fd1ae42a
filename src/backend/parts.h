/* backend/parts.h - the parts of both backends that bench/ times one at a time: kernels, packing,
 * thread pool; with ROSE_CUDA also the GPU, its GEMMs and CUDA's own headers. The include law names
 * this header (tools/check_includes): nothing in src/ includes it. It is not an interface. Change
 * what it shows as you like, and bench/ with it. */
#ifndef ROSE_BACKEND_PARTS_H
#define ROSE_BACKEND_PARTS_H

#include "backend/cpu/cpu_internal.h"
#include "backend/cpu/numerics.h"
#include "backend/cpu/pack.h"
#include "model/convert.h"

#if ROSE_CUDA /* set by the Makefile for bench/ */
#include "backend/cuda/cuda_internal.h"
#endif

#endif
