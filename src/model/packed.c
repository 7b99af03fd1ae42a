/* model/packed.c - names the format of safetensors files whose weights are quantized. Their
 * config.json often says nothing (MLX, GPTQ folders of older tools), and then only the tensors show
 * the format. The reader could otherwise only say that one tensor is missing. */
#include <string.h>

#include "model/weights.h"

static const struct {
    const char *suffix, *dtype; /* dtype NULL: any */
    const char *format;
} signs[] = {
    {".g_idx", NULL, "GPTQ"}, /* before qweight, which AWQ has too */
    {".qzeros", NULL, "GPTQ or AWQ"},
    {".qweight", NULL, "GPTQ or AWQ"},
    {".biases", NULL, "MLX"},
    {".scales", NULL, "MLX"}, /* newer formats of MLX have no biases */
    {".weight_packed", NULL, "compressed-tensors"},
    {".weight_scale_2", NULL, "NVFP4 of modelopt"},
    {".weight_scale_inv", NULL, "FP8 with block scales"},
    {".weight_scale", NULL, "FP8 or INT8 with scales"},
    {".quant_state.bitsandbytes__nf4", NULL, "bitsandbytes NF4"},
    {".quant_state.bitsandbytes__fp4", NULL, "bitsandbytes FP4"},
    {".SCB", NULL, "bitsandbytes INT8"},
    {"_blocks", "U8", "MXFP4"},
};
enum { N_SIGNS = sizeof signs / sizeof signs[0] };

static bool shows(const rose_st_tensor *t, size_t sign)
{
    const size_t n = strlen(t->name), k = strlen(signs[sign].suffix);
    if (n <= k || strcmp(t->name + n - k, signs[sign].suffix) != 0) return false;
    return signs[sign].dtype == NULL || strcmp(t->dtype_name, signs[sign].dtype) == 0;
}

rose_status rose_weights_check_packed(const rose_weights *w, rose_err *err)
{
    const rose_st_tensor *found = NULL;
    size_t best = N_SIGNS; /* the first sign of the table that a tensor shows */
    for (size_t i = 0; i < w->n_tensors; i++)
        for (size_t s = 0; s < best; s++)
            if (shows(w->by_name[i], s)) {
                best = s;
                found = w->by_name[i];
            }
    if (found == NULL) return ROSE_OK;
    return rose_fail(err, ROSE_E_UNSUPPORTED,
                     "%s: the tensor '%s' shows that the weights are quantized (%s), which is not "
                     "supported; use the model's folder in BF16 or F16, or a GGUF file of it",
                     rose_weights_label(w, found), found->name, signs[best].format);
}
