/* backend/backend.c - the code that all backends share, and the choice among them. */
#include "backend/backend.h"

#include <string.h>

#include "backend/kernel_bench.h"
#include "base/log.h"

const char *rose_compute_name(rose_compute c)
{
    switch (c) {
    case ROSE_COMPUTE_F32:
        return "float32";
    case ROSE_COMPUTE_BF16:
        return "bfloat16";
    case ROSE_COMPUTE_F16:
        return "float16";
    case ROSE_COMPUTE_AUTO:
        break;
    }
    return "auto";
}

const char *rose_plan_text(const rose_memory_plan *p)
{
    if (p->int8_activations) return "float32 with int8 activations and a bfloat16 KV cache";
    if (p->quantization == ROSE_QUANT_INT8) return "bfloat16 with int8 weights";
    return rose_compute_name(p->dtype);
}

const char *rose_quantization_name(rose_quantization q)
{
    return q == ROSE_QUANT_INT8 ? "int8" : "none";
}

const char *rose_prefill_name(rose_prefill p)
{
    static const char *const names[] = {"auto", "flash", "naive", "auto2"};
    return (unsigned)p < sizeof names / sizeof *names ? names[p] : "unknown";
}

#if !ROSE_CUDA /* set by the Makefile */
rose_status rose_backend_nvtx(rose_err *err)
{
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "nvtx: this program was built without CUDA (it needs nvcc)");
}

rose_status rose_backend_cuda(const rose_backend_ops **out, rose_err *err)
{
    *out = NULL;
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "device cuda: this program was built without CUDA (it needs nvcc)");
}

bool rose_backend_gpu_name(char *out, size_t cap)
{
    if (cap > 0) out[0] = '\0';
    return false;
}

rose_status rose_kernel_bench_cuda(const rose_kernel_bench_ops **out, rose_err *err)
{
    const rose_backend_ops *ops;
    *out = NULL;
    return rose_backend_cuda(&ops, err);
}
#endif

static bool is_auto(const char *device)
{
    return device == NULL || strcmp(device, "auto") == 0;
}

rose_status rose_backend_pick(const rose_backend_ops **out, const char *device, rose_err *err)
{
    *out = NULL;
    if (is_auto(device)) {
        if (rose_backend_cuda(out, NULL) != ROSE_OK) *out = rose_backend_cpu();
        return ROSE_OK;
    }
    if (strcmp(device, "cuda") == 0) return rose_backend_cuda(out, err);
    if (strcmp(device, "cpu") != 0)
        return rose_fail(err, ROSE_E_INVAL, "device '%s': expected auto, cpu or cuda", device);
    *out = rose_backend_cpu();
    return ROSE_OK;
}

const rose_backend_ops *rose_backend_that_computes(const rose_backend_ops *first,
                                                   const rose_model *m)
{
    rose_err why = {""};
    if (first->check == NULL || first->check(m, &why) == ROSE_OK) return first;
    rose_log(ROSE_LOG_WARN, "backend", "the CPU computes this model: %s", why.msg);
    return rose_backend_cpu();
}

rose_status rose_backend_pick_for(const rose_backend_ops **out, const char *device,
                                  const rose_model *m, rose_err *err)
{
    const rose_status st = rose_backend_pick(out, device, err);
    if (st == ROSE_OK && is_auto(device)) *out = rose_backend_that_computes(*out, m);
    return st;
}
