/* model/quantized.c - folders whose weights were quantized by another program: what their JSON
 * files say, as a refusal that names the method. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/family.h"

/* The names of methods as people know them. */
static const struct {
    const char *method, *name;
} names[] = {
    {"modelopt", "NVIDIA ModelOpt"},
    {"mlx", "MLX"},
    {"gptq", "GPTQ"},
    {"awq", "AWQ"},
    {"fp8", "FP8"},
    {"mxfp4", "MXFP4"},
    {"bitsandbytes", "bitsandbytes"},
    {"compressed-tensors", "compressed-tensors, of llm-compressor"},
};

/* quant_method, which "modelopt_fp4" extends; else what names the program that wrote v. NULL: v
 * does not say. */
static const char *find_method(const rose_json *v)
{
    const char *method = rose_json_text(rose_json_get(v, "quant_method"));
    if (method != NULL) return method;
    method = rose_json_text(rose_json_get(rose_json_get(v, "producer"), "name"));
    if (method != NULL) return method;
    const bool mlx = rose_json_is_integer(rose_json_get(v, "group_size")) &&
                     rose_json_is_integer(rose_json_get(v, "bits"));
    return mlx ? "mlx" : NULL;
}

/* algorithm: such as "FP8"; NULL = none. */
static rose_status refuse(const char *label, const char *field, const char *method,
                          const char *algorithm, rose_err *err)
{
    const char *name = method != NULL ? "another program" : "a method that it does not name";
    for (size_t i = 0; method != NULL && i < sizeof names / sizeof names[0]; i++)
        if (strncmp(method, names[i].method, strlen(names[i].method)) == 0) name = names[i].name;
    return rose_fail(
        err, ROSE_E_UNSUPPORTED,
        "%s: %s: the weights are quantized by %s%s%.60s%s%.40s%s, which is not "
        "supported; use the model's BF16 files (on a CPU with --quantization int8), or "
        "a GGUF file of it",
        label, field, name, method != NULL ? " (" : "", method != NULL ? method : "",
        method != NULL && algorithm != NULL ? ", " : "",
        method != NULL && algorithm != NULL ? algorithm : "", method != NULL ? ")" : "");
}

rose_status rose_quantized_refuse(const rose_config *c, const char *field, const rose_json *v,
                                  rose_err *err)
{
    return refuse(c->label, field, find_method(v), rose_json_text(rose_json_get(v, "quant_algo")),
                  err);
}

/* ModelOpt writes its settings beside a config.json that need not mention them. A quant_algo of
 * null concerns the KV cache alone. */
rose_status rose_quantized_check_folder(const char *folder, rose_err *err)
{
    rose_config c = {0};
    rose_status st = rose_config_open_in(&c, folder, "hf_quant_config.json", false, err);
    if (st == ROSE_OK) {
        const rose_json *v = rose_json_get(c.root, "quantization");
        const char *algorithm = rose_json_text(rose_json_get(v, "quant_algo"));
        if (algorithm != NULL)
            st = refuse(c.label, "quantization", find_method(c.root), algorithm, err);
    } else if (st != ROSE_E_NOMEM) { /* the types of the tensors decide */
        st = ROSE_OK;
        if (err != NULL) err->msg[0] = '\0';
    }
    rose_config_close(&c);
    return st;
}
