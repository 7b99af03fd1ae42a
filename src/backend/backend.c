/* backend/backend.c - the code that all backends share, and the choice among them. */
#include "backend/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

const char *rose_compute_name(rose_compute c)
{
    return c == ROSE_COMPUTE_AUTO ? "auto" : rose_formats[rose_compute_format(c)].torch;
}

const char *rose_plan_text(const rose_memory_plan *p)
{
    if (p->int8_activations) return "float32 with int8 activations and a bfloat16 KV cache";
    if (p->quantization == ROSE_QUANT_INT8) return "bfloat16 with int8 weights";
    return rose_compute_name(p->dtype);
}

void rose_plan_steps_text(const rose_memory_plan *p, char out[ROSE_PLAN_STEPS_TEXT])
{
    const int n = snprintf(out, ROSE_PLAN_STEPS_TEXT, "steps of up to %u sequences and %u tokens",
                           p->max_seqs, p->max_step_tokens);
    if (p->busy_step_tokens > 0 && p->busy_step_tokens < p->max_step_tokens)
        snprintf(out + n, ROSE_PLAN_STEPS_TEXT - (size_t)n, ", %u while sequences decode",
                 p->busy_step_tokens);
}

void rose_plan_kv_text(const rose_memory_plan *p, char out[ROSE_PLAN_KV_TEXT])
{
    int n = snprintf(out, ROSE_PLAN_KV_TEXT, "%u pages of %d tokens", p->pools[0].n_blocks,
                     ROSE_KV_PAGE_TOKENS);
    for (uint32_t i = 0; i < p->n_pools; i++) {
        const rose_pool *k = &p->pools[i];
        if (i > 0) n += snprintf(out + n, ROSE_PLAN_KV_TEXT - (size_t)n, ", %u", k->n_blocks);
        const char *const plural = k->n_layers == 1 ? "" : "s";
        if (k->window > 0)
            n += snprintf(out + n, ROSE_PLAN_KV_TEXT - (size_t)n,
                          " for %u layer%s with a window of %u", k->n_layers, plural, k->window);
        else if (p->n_pools > 1)
            n += snprintf(out + n, ROSE_PLAN_KV_TEXT - (size_t)n, " for %u full layer%s",
                          k->n_layers, plural);
    }
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

rose_status rose_backend_cuda(const rose_backend_ops **out, uint32_t gpu, rose_err *err)
{
    (void)gpu;
    *out = NULL;
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "device cuda: this program was built without CUDA (it needs nvcc); "
                     "device auto and device cpu compute on the CPU");
}

bool rose_backend_gpu_name(char *out, size_t cap)
{
    if (cap > 0) out[0] = '\0';
    return false;
}
#endif

static bool is_auto(const char *device)
{
    return device == NULL || strcmp(device, "auto") == 0;
}

bool rose_backend_is_gpu(const char *device, uint32_t *gpu)
{
    *gpu = 0;
    if (strncmp(device, "cuda", 4) != 0) return false;
    if (device[4] == '\0') return true;
    const char *digits = device + 5;
    const size_t n = device[4] == ':' ? strspn(digits, "0123456789") : 0;
    if (n == 0 || n > 4 || digits[n] != '\0') return false;
    *gpu = (uint32_t)strtoul(digits, NULL, 10);
    return true;
}

rose_status rose_backend_pick(const rose_backend_ops **out, const char *device, rose_err *err)
{
    *out = NULL;
    if (is_auto(device)) {
        if (rose_backend_cuda(out, 0, NULL) != ROSE_OK) *out = rose_backend_cpu();
        return ROSE_OK;
    }
    uint32_t gpu;
    if (rose_backend_is_gpu(device, &gpu)) return rose_backend_cuda(out, gpu, err);
    if (strcmp(device, "cpu") != 0)
        return rose_fail(
            err, ROSE_E_INVAL,
            "device '%.80s': expected auto, cpu, cuda or cuda:N, where N is the number "
            "of a GPU",
            device);
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
