/* cli/inspect.c - `roseinfer inspect`: says what a model is and how much memory it would take,
 * before loading it. */
#include <stdio.h>
#include <string.h>

#include "base/opts.h"
#include "chat/chat.h"
#include "cli/cli.h"
#include "engine/flags.h"
#include "model/inspect.h"
#include "model/pooling.h"

static void plan_row(const char *what, uint64_t bytes, const char *note)
{
    char text[32];
    printf("  %-12s %12s  %s\n", what, rose_format_bytes(bytes, text), note);
}

static void print_plan(const rose_memory_plan *p)
{
    char note[ROSE_PLAN_KV_TEXT + 80];
    printf("Memory plan (%s, %u compute threads)\n", rose_plan_text(p), p->n_threads);
    plan_row("weights", p->weights, "packed for the kernels");
    rose_plan_kv_text(p, note);
    snprintf(note + strlen(note), 80, "; a full context is %u tokens", p->max_model_len);
    plan_row("KV pages", p->kv, note);
    rose_plan_steps_text(p, note);
    plan_row("scratch", p->scratch, note);
    if (p->graphs > 0) plan_row("graphs", p->graphs, "captured steps and kernels, at most");
    plan_row("total", p->total, "");
    if (p->available > 0)
        plan_row("available", p->available, "memory of this device that is free now");
}

static rose_json *plan_json(const rose_memory_plan *p)
{
    return rose_json_pack(
        "{s:s, s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "dtype",
        rose_compute_name(p->dtype), "quantization", rose_quantization_name(p->quantization),
        "int8_activations", p->int8_activations ? 1 : 0, "threads", (int64_t)p->n_threads,
        "max_num_seqs", (int64_t)p->max_seqs, "max_num_batched_tokens", (int64_t)p->max_step_tokens,
        "busy_num_batched_tokens",
        (int64_t)(p->busy_step_tokens > 0 ? p->busy_step_tokens : p->max_step_tokens),
        "max_model_len", (int64_t)p->max_model_len, "weights_bytes", (int64_t)p->weights,
        "kv_page_bytes", (int64_t)p->pools[0].block_bytes, "kv_pages",
        (int64_t)p->pools[0].n_blocks, "kv_bytes", (int64_t)p->kv, "scratch_bytes",
        (int64_t)p->scratch, "graphs_bytes", (int64_t)p->graphs, "total_bytes", (int64_t)p->total,
        "available_bytes", (int64_t)p->available);
}

/* What the plan makes of the model. */
typedef struct planned {
    const rose_backend_ops *ops;
    const rose_model *m;
    const rose_memory_plan *p;
} planned;

static rose_kept kept(const void *ctx, const void *data)
{
    const planned *x = ctx;
    return x->ops->kept(x->m, x->p, data);
}

/* null if there is none. */
static rose_json *spec_json(const planned *x, const rose_spec_opts *o)
{
    if (o->method == ROSE_SPEC_NONE || rose_engine_why_no_spec(x->ops, x->p) != NULL)
        return rose_json_null();
    return rose_json_pack("{s:s, s:i}", "method", rose_spec_method_name(o->method),
                          "num_speculative_tokens", (int)o->n_tokens);
}

static int print_json(const planned *x, const rose_keeper *k, const rose_spec_opts *spec)
{
    rose_json *root = rose_model_json(x->m, k);
    int rc = 1;
    if (root != NULL && rose_json_set_new(root, "memory_plan", plan_json(x->p)) == 0 &&
        rose_json_set_new(root, "speculation", spec_json(x, spec)) == 0 &&
        rose_json_dumpf(root, stdout, ROSE_JSON_INDENT(2) | ROSE_JSON_REAL_PRECISION(7)) == 0 &&
        putchar('\n') != EOF)
        rc = 0;
    if (rc != 0) fprintf(stderr, "roseinfer: cannot write the JSON\n");
    rose_json_decref(root);
    return rc;
}

/* Reads what serve also reads at its start, so that inspect refuses what serve refuses. */
static rose_status check_texts(const char *model, const rose_arch *a, rose_err *err)
{
    rose_chat *chat = NULL;
    rose_tokenizer *tok = NULL;
    rose_generation generation;
    rose_pooling_config pooling;
    rose_status st = rose_chat_open(&chat, model, NULL, err);
    if (st == ROSE_OK) st = rose_generation_choose(&generation, model, NULL, NULL, err);
    if (st == ROSE_OK) st = rose_pooling_read(&pooling, model, NULL, NULL, err);
    if (st == ROSE_OK) st = rose_tokenizer_open(&tok, model, err);
    if (st == ROSE_OK) rose_tokenizer_warn_beyond(tok, a->vocab_size);
    rose_tokenizer_close(tok);
    rose_chat_close(chat);
    return st;
}

int rose_cmd_inspect(int argc, char **argv)
{
    static rose_engine_flags flags;
    rose_engine_flags_init(&flags);
    bool json = false, tensors = true, pull = true;
    rose_opt opts[ROSE_ENGINE_FLAG_ROWS + 3] = {
        ROSE_ROW_FLAG("json", &json, "print JSON"),
        ROSE_ROW_BOOL("tensors", &tensors, "list the tensors"),
        ROSE_CLI_PULL_ROW(&pull),
    };
    const char *model;
    int rc = rose_opts_parse_one(
        "roseinfer inspect MODEL [options]",
        "Prints the architecture, the tensors and the memory plan of a model without loading "
        "it.\nThe engine options change the plan as they would for serve. What serve refuses is "
        "refused.",
        opts, 3 + rose_engine_flags_rows(&flags, opts + 3), argc, argv, &model);
    if (rc >= 0) return rc;

    rose_err err = {{0}};
    rose_model *m = NULL;
    rose_engine_opts o;
    rose_memory_plan plan;
    char guesses[ROSE_ENGINE_SPEC_TEXT];
    rose_status st = rose_engine_flags_read(&flags, &o, &err);
    rose_buf path = {0};
    if (st == ROSE_OK && !rose_cli_find_model(&model, &path, pull, false, &err)) st = ROSE_E_IO;
    if (st == ROSE_OK) st = rose_model_open_as(&m, model, flags.load_format, &err);
    if (st != ROSE_OK) {
        rose_buf_free(&path);
        return rose_die(&err);
    }
    const rose_backend_ops *ops = NULL;
    st = check_texts(model, &m->arch, &err);
    rose_buf_free(&path);
    if (st == ROSE_OK) st = rose_backend_pick_for(&ops, flags.device, m, &err);
    if (st == ROSE_OK) st = ops->plan(m, &o.backend, &plan, &err);
    const planned all = {ops, m, &plan};
    const rose_keeper keeper = {kept, &all};
    const rose_keeper *k = st == ROSE_OK && ops->kept != NULL ? &keeper : NULL;
    if (st == ROSE_OK && json) {
        rc = print_json(&all, k, &o.spec);
    } else {
        rc = 0;
        if (!json) rose_model_print_arch(m, k, stdout);
        if (!json && tensors) rose_model_print_tensors(m, k, stdout);
        if (st == ROSE_OK) {
            print_plan(&plan);
            rose_engine_spec_text(ops, &plan, &o.spec, guesses);
            printf("Speculation: %s\n", guesses);
        }
    }
    if (st != ROSE_OK) rc = rose_die(&err);
    rose_model_close(m);
    return rc;
}
