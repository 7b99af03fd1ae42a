/* cli/random_model.c - `roseinfer random-model`. */
#include <stdio.h>
#include <string.h>

#include "base/opts.h"
#include "cli/cli.h"
#include "model/inspect.h"
#include "model/random.h"
#include "tokenizer/tokenizer.h"

/* The vocabulary size is that of the tokenizer, if one is given; the tokenizer must load. */
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
            "or name at least that many",
            o->vocab_size, o->tokenizer, n);
    if (o->vocab_size == 0) o->vocab_size = n;
    return ROSE_OK;
}

/* arg is --NAME, --NAME=VALUE or --no-NAME. */
static bool names_option(const char *arg, const char *name)
{
    const size_t n = strlen(name);
    if (strncmp(arg, "--", 2) != 0) return false;
    if (strncmp(arg, "--no-", 5) == 0 && strcmp(arg + 5, name) == 0) return true;
    return strncmp(arg + 2, name, n) == 0 && (arg[2 + n] == '\0' || arg[2 + n] == '=');
}

/* A preset or a config.json has a shape, so options of the shape would have no effect: they are
 * refused. --layers is obeyed with a preset. */
static rose_status check_shape(const rose_random_opts *o, int argc, char **argv, rose_err *err)
{
    static const char *const names[] = {"layers",        "arch",     "d-model", "heads",
                                        "kv-heads",      "head-dim", "d-ff",    "vocab-size",
                                        "max-positions", "tied"};
    const bool preset = o->preset != NULL;
    if (preset && o->config != NULL)
        return rose_fail(err, ROSE_E_INVAL, "--preset and --config exclude each other");
    for (int i = 1; i < argc && (preset || o->config != NULL); i++)
        for (size_t k = preset ? 1 : 0; k < sizeof names / sizeof *names; k++)
            if (names_option(argv[i], names[k]))
                return rose_fail(err, ROSE_E_INVAL,
                                 "%s: %s has a shape of its own: leave the option out", argv[i],
                                 preset ? "the preset" : "the file of --config");
    return ROSE_OK;
}

/* Prints "OUT: 124,439,808 parameters, F32, 474.7 MiB" on standard output. */
static rose_status say_written(const char *out, bool weights, rose_err *err)
{
    rose_model *m = NULL;
    char n[32], bytes[32];
    rose_status st = rose_model_open_as(&m, out, weights ? "auto" : "dummy", err);
    if (st != ROSE_OK) return st;
    printf("%s: %s parameters, %s, %s\n", out, rose_format_count(m->n_params, n),
           rose_formats[m->dtype].name,
           weights ? rose_format_bytes(m->file_bytes, bytes)
                   : "no weight files (--load-format dummy)");
    rose_model_close(m);
    return ROSE_OK;
}

int rose_cmd_random_model(int argc, char **argv)
{
    rose_random_opts o;
    rose_random_opts_default(&o);
    const char *dtype = NULL, *arch = o.arch;
    bool weights = true;
    const uint32_t default_vocab = o.vocab_size, default_layers = o.n_layers;
    o.vocab_size = o.n_layers = 0;
    const rose_opt opts[] = {
        ROSE_ROW_STRING("preset", &o.preset, "NAME",
                        "shape of a public model: " ROSE_RANDOM_PRESETS,
                        .unset = "--config, or the options below"),
        ROSE_ROW_STRING("config", &o.config, "FILE",
                        "a config.json to take architecture and shape from",
                        .unset = "from the options below"),
        ROSE_ROW_STRING("arch", &arch, "TYPE", "model_type of a family, as in config.json"),
        ROSE_ROW_U32("layers", &o.n_layers, "N", 1, 1024, "blocks", .unset = "12, or the preset's"),
        ROSE_ROW_U32("d-model", &o.d_model, "N", 1, 65536, "width of the residual stream"),
        ROSE_ROW_U32("heads", &o.n_heads, "N", 1, 1024,
                     "attention heads; without --head-dim they must divide --d-model"),
        ROSE_ROW_U32("kv-heads", &o.n_kv_heads, "N", 0, 1024,
                     "heads of keys and values; must divide --heads; not for gpt2",
                     .unset = "as --heads"),
        ROSE_ROW_U32("head-dim", &o.head_dim, "N", 0, 1024, "width of a head; not for gpt2",
                     .unset = "--d-model / --heads"),
        ROSE_ROW_U32("d-ff", &o.d_ff, "N", 0, 1u << 20, "width of the MLP",
                     .unset = "4 x --d-model"),
        ROSE_ROW_U32("vocab-size", &o.vocab_size, "N", 257, 1u << 24,
                     "entries; the first 256 are bytes, the last is <|endoftext|>",
                     .unset = "50257, or the tokenizer's"),
        ROSE_ROW_STRING("tokenizer", &o.tokenizer, "FOLDER", "copy this model's tokenizer",
                        .unset = "one token a byte, and fillers"),
        ROSE_ROW_U32("max-positions", &o.max_positions, "N", 1, 1u << 20, "longest context"),
        ROSE_ROW_CHOICE("dtype", &dtype, "F32|F16|BF16", "type of the weights",
                        .unset = "F32; BF16 with --preset"),
        ROSE_ROW_BOOL("weights", &weights,
                      "write the weights; without them the folder is for --load-format dummy"),
        ROSE_ROW_BOOL("tied", &o.tied_head, "the head is the token embedding"),
        ROSE_ROW_BOOL("prefix", &o.prefix, "tensor names start with transformer."),
        ROSE_ROW_BYTES("max-shard-bytes", &o.max_shard_bytes, 0, 0,
                       "split the weights into files of at most so many bytes",
                       .unset = "one file"),
        ROSE_ROW_FLOAT("init-std", &o.init_std, "X", 0, 10,
                       "standard deviation of the weights; larger ones make sharper attention"),
        ROSE_ROW_U64("seed", &o.seed, "N", 0, 0,
                     "same options and seed, same bytes on any machine"),
    };
    const char *out;
    const int rc = rose_opts_parse_one("roseinfer random-model OUT [options]",
                                       "Writes a model of the given family and shape with seeded "
                                       "random weights to the new folder OUT, "
                                       "in\nHugging Face layout. The defaults are GPT-2 124M.",
                                       opts, sizeof opts / sizeof *opts, argc, argv, &out);
    if (rc >= 0) return rc;
    rose_err err = {{0}};
    if (check_shape(&o, argc, argv, &err) != ROSE_OK) return rose_die(&err);
    if (o.n_layers != 0) o.preset_layers = o.n_layers;
    if (o.n_layers == 0) o.n_layers = default_layers;
    o.arch = arch;
    o.no_weights = !weights;
    if (dtype == NULL || !rose_format_named(dtype, &o.dtype))
        o.dtype = o.preset != NULL ? ROSE_BF16 : ROSE_F32;
    if (o.tokenizer != NULL && vocab_of(&o, &err) != ROSE_OK) return rose_die(&err);
    if (o.vocab_size == 0) o.vocab_size = default_vocab;
    rose_status st = rose_random_model_write(&o, out, &err);
    if (st == ROSE_OK) st = say_written(out, weights, &err);
    return st == ROSE_OK ? 0 : rose_die(&err);
}
