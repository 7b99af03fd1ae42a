/* model/random_tokenizer.c - a byte-level BPE vocabulary without merges, for random models.
 * Every text encodes, with one token for each byte, and every id below the vocabulary size
 * decodes to some text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/utf8.h"
#include "model/random_internal.h"

#define END_OF_TEXT "<|endoftext|>"

/* GPT-2 writes bytes as printable characters. Printable bytes stand for themselves, in this
 * order, and the others follow from U+0100 upwards. */
static bool is_plain_byte(unsigned b)
{
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
}

static int add_byte_tokens(rose_json *vocab)
{
    char text[4];
    int id = 0, bad = 0;
    for (unsigned b = 0; b < 256; b++) {
        if (!is_plain_byte(b)) continue;
        const unsigned len = rose_utf8_encode(b, text);
        bad |= rose_json_setn_new(vocab, text, len, rose_json_integer(id++));
    }
    for (unsigned cp = 0x100; id < 256; cp++) {
        const unsigned len = rose_utf8_encode(cp, text);
        bad |= rose_json_setn_new(vocab, text, len, rose_json_integer(id++));
    }
    return bad;
}

/* Bytes 0-255, then fillers " w256", " w257", ... (U+0120 stands for the space), and the end of
 * text last. */
static rose_json *make_vocab(uint32_t vocab_size)
{
    rose_json *vocab = rose_json_object();
    int bad = vocab == NULL ? -1 : add_byte_tokens(vocab);
    for (uint32_t id = 256; bad == 0 && id + 1 < vocab_size; id++) {
        char text[24];
        snprintf(text, sizeof text, "\xC4\xA0w%u", id);
        bad |= rose_json_set_new(vocab, text, rose_json_integer(id));
    }
    if (bad == 0) bad = rose_json_set_new(vocab, END_OF_TEXT, rose_json_integer(vocab_size - 1));
    if (bad == 0) return vocab;
    rose_json_decref(vocab);
    return NULL;
}

/* A byte-level stage of tokenizer.json; pre_tokenizer, post_processor and
 * decoder all use the same one. */
static rose_json *byte_level(bool trim)
{
    return rose_json_pack("{s:s,s:b,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                          "trim_offsets", trim ? 1 : 0, "use_regex", 1);
}

static rose_json *make_tokenizer(rose_json *vocab, uint32_t eos)
{
    rose_json *added =
        rose_json_pack("[{s:i,s:s,s:b,s:b,s:b,s:b,s:b}]", "id", (int)eos, "content", END_OF_TEXT,
                       "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
    rose_json *model = rose_json_pack("{s:s,s:n,s:n,s:s,s:s,s:b,s:b,s:b,s:O,s:[]}", "type", "BPE",
                                      "dropout", "unk_token", "continuing_subword_prefix", "",
                                      "end_of_word_suffix", "", "fuse_unk", 0, "byte_fallback", 0,
                                      "ignore_merges", 0, "vocab", vocab, "merges");
    return rose_json_pack("{s:s,s:n,s:n,s:o,s:n,s:o,s:o,s:o,s:o}", "version", "1.0", "truncation",
                          "padding", "added_tokens", added, "normalizer", "pre_tokenizer",
                          byte_level(true), "post_processor", byte_level(false), "decoder",
                          byte_level(true), "model", model);
}

static rose_json *make_settings(const rose_arch *a)
{
    return rose_json_pack("{s:s,s:b,s:s,s:s,s:s,s:i}", "tokenizer_class", "GPT2Tokenizer",
                          "add_prefix_space", 0, "bos_token", END_OF_TEXT, "eos_token", END_OF_TEXT,
                          "unk_token", END_OF_TEXT, "model_max_length", (int)a->max_positions);
}

rose_status rose_random_tokenizer_write(rose_folder *f, const rose_arch *a, rose_err *err)
{
    static const char merges[] = "#version: 0.2\n";
    rose_json *vocab = make_vocab(a->vocab_size);
    if (vocab == NULL) return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", f->dir);
    rose_status st = rose_folder_write_json(f, "vocab.json", rose_json_incref(vocab), 0, err);
    if (st == ROSE_OK) st = rose_folder_write(f, "merges.txt", merges, sizeof merges - 1, err);
    if (st == ROSE_OK)
        st = rose_folder_write_json(f, "tokenizer.json", make_tokenizer(vocab, a->vocab_size - 1),
                                    0, err);
    if (st == ROSE_OK)
        st = rose_folder_write_json(f, "tokenizer_config.json", make_settings(a),
                                    ROSE_JSON_INDENT(2), err);
    rose_json_decref(vocab);
    return st;
}

static rose_status copy_file(rose_folder *f, const char *from, const char *name, rose_err *err)
{
    rose_map in = {0};
    rose_status st = rose_file_map(&in, from, err);
    if (st == ROSE_OK) st = rose_folder_write(f, name, in.data, in.size, err);
    rose_file_unmap(&in);
    return st;
}

rose_status rose_random_tokenizer_copy(rose_folder *f, const char *from, rose_err *err)
{
    static const char *const names[] = {"tokenizer.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "added_tokens.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json"};
    rose_status st = ROSE_OK;
    size_t n = 0;
    for (size_t i = 0; st == ROSE_OK && i < sizeof names / sizeof *names; i++) {
        char *path = NULL;
        if (asprintf(&path, "%s/%s", from, names[i]) < 0)
            return rose_fail(err, ROSE_E_NOMEM, "%s: out of memory", f->dir);
        if (rose_file_exists(path)) {
            st = copy_file(f, path, names[i], err);
            n++;
        }
        free(path);
    }
    if (st == ROSE_OK && n == 0)
        st = rose_fail(err, ROSE_E_INVAL, "%s has no tokenizer.json or vocab.json", from);
    return st;
}
