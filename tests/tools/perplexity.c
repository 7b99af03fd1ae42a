/* tests/tools/perplexity.c - what a text costs a model:
 *
 *     perplexity [--device NAME] MODEL TEXT [BYTES [DTYPE...]]
 *
 * prints exp of the mean negative log-probability for each DTYPE of --dtype (auto and float32 by
 * default), and its ratio to the last one. The device is cpu by default. The first BYTES of the
 * text (all of it by default, or with 0) are cut into windows of 512 tokens; in each, every token
 * but the first is scored. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/file.h"
#include "tokenizer/tokenizer.h"

enum { WINDOW = 512, N_PAGES = WINDOW / ROSE_KV_PAGE_TOKENS, MAX_DTYPES = 4 };

static void check(rose_status st, const rose_err *err)
{
    if (st == ROSE_OK) return;
    fprintf(stderr, "perplexity: %s\n", err->msg);
    exit(1);
}

static rose_compute parse_dtype(const char *name)
{
    for (int c = ROSE_COMPUTE_AUTO; c <= ROSE_COMPUTE_F16; c++)
        if (strcmp(rose_compute_name((rose_compute)c), name) == 0) return (rose_compute)c;
    fprintf(stderr, "perplexity: dtype %s is unknown\n", name);
    exit(1);
}

/* The sum of the log-probabilities of ids[1 .. n-1], each after all ids before it. */
static double score_window(const rose_backend_ops *ops, void *ctx, const uint32_t *ids, uint32_t n)
{
    static rose_logprob reports[WINDOW];
    static rose_output_rules rules[WINDOW];
    static uint32_t pages[N_PAGES];
    static rose_batch_out outs[WINDOW];
    const rose_batch_seq seq = {.n = n, .table = {pages, pages, pages, pages}};
    rose_err err = {""};
    rose_step_result result;
    uint64_t ticket;
    double sum = 0.0;

    for (uint32_t i = 0; i < N_PAGES; i++)
        pages[i] = i;
    for (uint32_t i = 0; i + 1 < n; i++) {
        rules[i] =
            (rose_output_rules){.score_id = ids[i + 1], .report = &reports[i], .repetition = 1.0f};
        outs[i] = (rose_batch_out){.row = i, .pos = i + 1, .rules = &rules[i]};
    }
    const rose_batch b = {
        .n_seqs = 1, .n_tokens = n, .tokens = ids, .n_outputs = n - 1, .seqs = &seq, .outs = outs};
    check(ops->step(ctx, &b, &ticket, &err), &err);
    check(ops->collect(ctx, ticket, &result, &err), &err);
    for (uint32_t i = 0; i + 1 < n; i++)
        sum += (double)reports[i].logprob;
    return sum;
}

static double perplexity(const rose_backend_ops *ops, const rose_model *m, const rose_ids *ids,
                         rose_compute dtype)
{
    rose_backend_opts o;
    rose_memory_plan plan;
    rose_err err = {""};
    void *ctx = NULL;
    double sum = 0.0;
    uint64_t scored = 0;

    rose_backend_opts_default(&o);
    o.dtype = dtype;
    o.max_seqs = 64; /* as many rows of logits at a time */
    o.max_step_tokens = WINDOW;
    o.max_model_len = m->arch.max_positions < WINDOW ? m->arch.max_positions : WINDOW;
    o.kv_pages = N_PAGES;
    check(ops->plan(m, &o, &plan, &err), &err);
    check(ops->open(&ctx, m, &o, &plan, &err), &err);
    for (size_t at = 0; at + 1 < ids->len; at += plan.max_model_len) {
        const size_t left = ids->len - at;
        const uint32_t n = left < plan.max_model_len ? (uint32_t)left : plan.max_model_len;
        sum += score_window(ops, ctx, ids->data + at, n);
        scored += n - 1;
    }
    ops->close(ctx);
    const double ppl = exp(-sum / (double)scored);
    printf("%-4s %-10s perplexity %.4f over %llu tokens", ops->name, rose_compute_name(dtype), ppl,
           (unsigned long long)scored);
    fflush(stdout);
    return ppl;
}

int main(int argc, char **argv)
{
    static const char *const usual[] = {"auto", "float32"};
    rose_err err = {""};
    rose_model *m = NULL;
    rose_tokenizer *t = NULL;
    rose_encoder *e = NULL;
    rose_buf text = {0};
    rose_ids ids = {0};
    double all[MAX_DTYPES];
    const char *device = "cpu";
    const rose_backend_ops *ops;

    if (argc > 2 && strcmp(argv[1], "--device") == 0) {
        device = argv[2];
        argc -= 2;
        argv += 2;
    }
    if (argc < 3 || argc > 4 + MAX_DTYPES) {
        fprintf(stderr,
                "perplexity [--device NAME] MODEL TEXT [BYTES [DTYPE...]], at most %d DTYPEs\n",
                MAX_DTYPES);
        return 1;
    }
    check(rose_backend_pick(&ops, device, &err), &err);
    check(rose_file_read(&text, argv[2], (size_t)1 << 30, &err), &err);
    const size_t bytes = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
    if (bytes > 0 && bytes < text.len) text.len = bytes;
    check(rose_model_open(&m, argv[1], &err), &err);
    check(rose_tokenizer_open(&t, argv[1], &err), &err);
    check(rose_encoder_create(&e, t, &err), &err);
    check(rose_encode(e, text.data, text.len, ROSE_ENCODE_PLAIN_SPECIAL, &ids, &err), &err);

    const int n = argc > 4 ? argc - 4 : 2;
    for (int i = 0; i < n; i++) {
        all[i] = perplexity(ops, m, &ids, parse_dtype(argc > 4 ? argv[4 + i] : usual[i]));
        printf("%s", i + 1 < n ? "\n" : ";");
    }
    for (int i = 0; i + 1 < n; i++)
        printf(" ratio %.5f", all[i] / all[n - 1]);
    printf("\n");
    rose_ids_free(&ids);
    rose_buf_free(&text);
    rose_encoder_destroy(e);
    rose_tokenizer_close(t);
    rose_model_close(m);
    return 0;
}
