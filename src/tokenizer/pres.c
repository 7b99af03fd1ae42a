/* tokenizer/pres.c - what each value of tokenizer.ggml.pre stands for. GGUF files have no pattern
 * of their own: the key names one, and llama.cpp knows the names. The ids are those of llama.cpp,
 * because its converter wrote the name and its users compare with it. In two places its pattern is
 * coarser than the family's tokenizer.json, which has classes that llama.cpp's regular expressions
 * lack: gpt-4o and tekken take letters outside ASCII as capital and small at once, and combining
 * marks as no letters. Only qwen2 differs from llama.cpp: we apply NFC, as Qwen's tokenizer.json
 * says, so that both files of one model give the same ids.
 *
 * Names of encoders (jina, roberta-bpe, modern-bert) and of architectures that the program does not
 * load are missing, unless another row has their pattern. */
#include "tokenizer/tokenizer_internal.h"

#define CONTRACTION "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
#define SPACES      "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* A word of capital, then of small letters; one of the two may be empty. */
#define WORD(end)                                                                                  \
    "[^\\r\\n\\p{L}\\p{N}]?[^\\P{L}a-z]*[^\\P{L}A-Z]+" end                                         \
    "|[^\\r\\n\\p{L}\\p{N}]?[^\\P{L}a-z]+[^\\P{L}A-Z]*" end
#define OTHERS "| ?[^\\s\\p{L}\\p{N}]+"
/* Letters of the scripts with capitals, as DeepSeek's tokenizer.json lists them. */
#define DEEPSEEK_WORDS                                                                             \
    "\\s?[A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"            \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"         \
    "\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-"         \
    "\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}"             \
    "\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-"       \
    "\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}"        \
    "\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}"         \
    "\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}"        \
    "\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-"       \
    "\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}"          \
    "\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}"         \
    "\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}"         \
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-"        \
    "\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}"        \
    "\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}"               \
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}"         \
    "\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}]+"
/* From U+0800 to Han, and Hangul; llama.cpp sees white space there as a vertical tab. */
#define DEEPSEEK_OTHERS                                                                            \
    "[\\x{800}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}"                 \
    "\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{9fa5}\\x{ac00}-\\x{d7ff}]+"
/* A run without white space, full stops, commas, ! ? | and parentheses, as Bloom's tokenizer.json
 * has it. */
#define BLOOM_WORDS " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"

static const rose_pre pres[] = {
    {.names = "gpt-2 phi-2 olmo mpt jais trillion granite-docling gigachat a.x-4.0 mellum exaone4",
     .scan = rose_scan_gpt2},
    {.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
     .scan = rose_scan_llama3,
     .ignore_merges = true,
     .add_bos = true},
    {.names = "glm4", .scan = rose_scan_llama3, .ignore_merges = true},
    {.names = "smaug-bpe dbrx chatglm-bpe", .scan = rose_scan_llama3},
    {.names = "qwen2", .scan = rose_scan_qwen2, .is_nfc = true},
    {.names = "deepseek-r1-qwen megrez stablelm2 hunyuan kormo solar-open grok-2",
     .scan = rose_scan_qwen2},
    {.names = "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
     .scan = rose_scan_smollm},
    {.names = "default",
     .patterns = {"[\\p{P}$+<=>^~|]+", ROSE_GPT2_PATTERN, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {.names = "falcon", .patterns = {"[\\p{P}$+<=>^~|`]+", ROSE_GPT2_PATTERN, "[0-9][0-9][0-9]"}},
    {.names = "deepseek-llm",
     .patterns = {"[\r\n]", DEEPSEEK_WORDS,
                  "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}"
                  "\\x{3001}-\\x{3002}]+",
                  "(?<!\\s)\\s++(?![\\s\\S])", /* \s+$, in linear time */
                  DEEPSEEK_OTHERS, "\\p{N}+"}},
    {.names = "deepseek-coder",
     .patterns = {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", DEEPSEEK_OTHERS, "\\p{N}"}},
    {.names = "deepseek-v3 hunyuan-dense joyai-llm",
     .patterns =
         {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
          "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
          "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" SPACES}},
    {.names = "gpt-4o llama4 kanana2 talkie",
     .patterns = {WORD("(?:" CONTRACTION ")?") "|\\p{N}{1,3}" OTHERS "[\\r\\n/]*" SPACES}},
    {.names = "tekken",
     .patterns = {WORD("") "|\\p{N}" OTHERS "[\\r\\n/]*" SPACES},
     .ignore_merges = true,
     .add_bos = true},
    {.names = "seed-coder",
     .patterns = {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                              "| ?[^\\s\\p{L}\\p{N}\\r\\n]+" SPACES}},
    {.names = "bailingmoe bailingmoe2 llada-moe",
     .patterns = {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" OTHERS
                              "[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {.names = "qwen35",
     .patterns = {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                              "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" SPACES}},
    {.names = "ufakzeka",
     .patterns = {"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" OTHERS "[\\r\\n]*" SPACES}},
    {.names = "minicpm5",
     .patterns = {"\\p{N}{1,3}",
                  CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}+" OTHERS "[\\r\\n]*" SPACES},
     .ignore_merges = true},
    {.names = "jais-2",
     .patterns = {CONTRACTION
                  "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" OTHERS
                  "[\\r\\n]*|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)"
                  "|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)"
                  "|\\s{1,2}(?!\\S)|\\s"}},
    {.names = "poro-chat bloom gpt3-finnish", .patterns = {BLOOM_WORDS}},
    {.names = "viking", .patterns = {BLOOM_WORDS, "\\p{N}"}},
};

/* Whether name is one of the words in a list with spaces between them. */
static bool is_listed(const char *names, const char *name)
{
    const size_t n = strlen(name);
    if (strchr(name, ' ') != NULL) return false;
    for (const char *p = names; n > 0 && (p = strstr(p, name)) != NULL; p++)
        if ((p == names || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0')) return true;
    return false;
}

const rose_pre *rose_pre_find(const char *name)
{
    for (size_t i = 0; i < sizeof pres / sizeof pres[0]; i++)
        if (is_listed(pres[i].names, name)) return &pres[i];
    return NULL;
}
