/* cli/random_model.c - `roseinfer random-model`. */
#include <stdio.h>
#include <string.h>

#include "base/opts.h"
#include "cli/cli.h"
#include "model/random.h"
#include "tokenizer/tokenizer.h"

/* The vocabulary is that of the tokenizer, if one is given; it must load. */
static rose_status vocab_of(rose_random_opts *o, rose_err *err)
{
    rose_tokenizer *t = NULL;
    rose_status st = rose_tokenizer_open(&t, o->tokenizer, err);
    if (st != ROSE_OK) return st;
    uint32_t n = rose_tokenizer_vocab_size(t);
    rose_tokenizer_close(t);
    if (o->vocab_size != 0 && o->vocab_size < n)
        return rose_fail(
            err, ROSE_E_INVAL,
            "--vocab-size %u: the tokenizer of %s has %u entries; leave the option out "
            "or name at least so many",
            o->vocab_size, o->tokenizer, n);
    if (o->vocab_size == 0) o->vocab_size = n;
    return ROSE_OK;
}

/* Mostly the table of options. */
int rose_cmd_random_model(int argc, char **argv)
{
    rose_random_opts o;
    rose_random_opts_default(&o);
    const char *dtype = "F32", *arch = o.arch;
    uint32_t default_vocab = o.vocab_size;
    o.vocab_size = 0;
    const rose_opt opts[] = {
        {.name = "arch",
         .kind = ROSE_OPT_CHOICE,
         .dest = &arch,
         .choices = "gpt2",
         .help = "architecture"},
        {.name = "layers",
         .kind = ROSE_OPT_U32,
         .dest = &o.n_layers,
         .arg = "N",
         .min = 1,
         .max = 1024,
         .help = "blocks"},
        {.name = "d-model",
         .kind = ROSE_OPT_U32,
         .dest = &o.d_model,
         .arg = "N",
         .min = 1,
         .max = 65536,
         .help = "width of the residual stream"},
        {.name = "heads",
         .kind = ROSE_OPT_U32,
         .dest = &o.n_heads,
         .arg = "N",
         .min = 1,
         .max = 1024,
         .help = "attention heads; must divide --d-model"},
        {.name = "d-ff",
         .kind = ROSE_OPT_U32,
         .dest = &o.d_ff,
         .arg = "N",
         .max = 1u << 20,
         .unset = "4 x --d-model",
         .help = "width of the MLP"},
        {.name = "vocab-size",
         .kind = ROSE_OPT_U32,
         .dest = &o.vocab_size,
         .arg = "N",
         .min = 257,
         .max = 1u << 24,
         .unset = "50257, or the tokenizer's",
         .help = "entries; the first 256 are bytes, the last is <|endoftext|>"},
        {.name = "tokenizer",
         .kind = ROSE_OPT_STRING,
         .dest = &o.tokenizer,
         .arg = "FOLDER",
         .unset = "one token a byte, and fillers",
         .help = "copy this model's tokenizer"},
        {.name = "max-positions",
         .kind = ROSE_OPT_U32,
         .dest = &o.max_positions,
         .arg = "N",
         .min = 1,
         .max = 1u << 20,
         .help = "longest context"},
        {.name = "dtype",
         .kind = ROSE_OPT_CHOICE,
         .dest = &dtype,
         .choices = "F32|F16|BF16",
         .help = "type of the stored weights"},
        {.name = "tied",
         .kind = ROSE_OPT_BOOL,
         .dest = &o.tied_head,
         .help = "the head is the token embedding"},
        {.name = "prefix",
         .kind = ROSE_OPT_BOOL,
         .dest = &o.prefix,
         .help = "tensor names start with transformer."},
        {.name = "max-shard-bytes",
         .kind = ROSE_OPT_BYTES,
         .dest = &o.max_shard_bytes,
         .arg = "BYTES",
         .unset = "one file",
         .help = "split the weights into files of at most so many bytes"},
        {.name = "seed",
         .kind = ROSE_OPT_U64,
         .dest = &o.seed,
         .arg = "N",
         .help = "same options and seed, same bytes on any machine"},
    };
    const rose_command cmd = {
        .usage = "roseinfer random-model OUT [options]",
        .about = "Writes a model of the given shape with seeded random weights to the new folder "
                 "OUT, in\n"
                 "Hugging Face layout. The defaults are GPT-2 124M.",
        .opts = opts,
        .n_opts = sizeof opts / sizeof *opts,
        .min_args = 1,
        .max_args = 1,
    };
    const char *args[1];
    uint32_t n_args;
    int rc = rose_opts_parse(&cmd, argc, argv, args, &n_args);
    if (rc >= 0) return rc;
    o.arch = arch;
    o.dtype = strcmp(dtype, "F32") == 0   ? ROSE_F32
              : strcmp(dtype, "F16") == 0 ? ROSE_F16
                                          : ROSE_BF16;
    rose_err err = {{0}};
    if (o.tokenizer != NULL && vocab_of(&o, &err) != ROSE_OK) return rose_die(&err);
    if (o.vocab_size == 0) o.vocab_size = default_vocab;
    return rose_random_model_write(&o, args[0], &err) == ROSE_OK ? 0 : rose_die(&err);
}
