/* libFuzzer target: config.json as arbitrary bytes, through the families' parsers. */
#include <stdlib.h>

#include "base/log.h"
#include "model/family.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    rose_config c;
    rose_err err;
    rose_arch a;
    const rose_family *family;
    rose_log_set_level(ROSE_LOG_OFF); /* it warns of ids */
    if (rose_config_parse(&c, (const char *)data, size, "fuzz", &err) != ROSE_OK) return 0;
    if (rose_family_find(&family, &c, &err) == ROSE_OK && family->parse(&c, &a, &err) == ROSE_OK) {
        if (a.n_heads == 0 || a.d_model % a.n_heads != 0 || a.d_ff == 0) abort();
        if (a.n_eos > ROSE_MAX_EOS || a.bos_id >= (int64_t)a.vocab_size) abort();
    }
    rose_config_close(&c);
    return 0;
}
