/* cli/chat.c - `roseinfer chat`: a conversation in the terminal, through the C library. The whole
 * conversation is the prompt of each reply. The engine's prefix cache keeps the KV of the earlier
 * part, so only the new message is computed. In a pipe each line of standard input is a message,
 * and standard output gets the replies alone. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "cli/cli.h"
#include "model/generation.h"

typedef struct chat {
    rose_lib *rose;       /* owned */
    rose_json *messages;  /* owned: a list of {"role", "content"}; a system message comes first */
    rose_buf line, reply; /* the message and the reply of this turn */
    rose_lib_params p;
    rose_screen screen;
    bool tty; /* a terminal is attached: show the input prompt and notes */
    bool timings, failed;
    uint32_t max_tokens;  /* 0: what the context leaves */
    rose_opt set_rows[8]; /* what /set can change */
    uint32_t n_set_rows;
} chat;

/* ---- Ctrl-C ---- */

static pthread_t main_thread;
/* Only the main thread uses these two. */
static rose_lib_request *volatile running;
static volatile sig_atomic_t interrupted;

/* Stops the reply. The kernel may deliver the signal to any thread, so other threads forward it to
 * the main thread. */
static void on_interrupt(int sig)
{
    const int saved = errno;
    if (!pthread_equal(pthread_self(), main_thread)) {
        pthread_kill(main_thread, sig);
    } else {
        interrupted = 1;
        if (running != NULL) rose_lib_cancel(running);
    }
    errno = saved;
}

static void catch_interrupts(void)
{
    /* SA_RESTART: a signal during a write to the terminal must not look like a closed terminal. */
    struct sigaction a = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    main_thread = pthread_self();
    sigaction(SIGINT, &a, NULL);
}

/* ---- messages ---- */

static int complain(chat *c, const char *what)
{
    fprintf(stderr, "roseinfer: %s\n", what);
    c->failed = true;
    return 1;
}

/* Adds a message at index `at`. */
static bool add_message(chat *c, size_t at, const char *role, const char *text, size_t len)
{
    rose_json *content = rose_json_stringn(len > 0 ? text : "", len);
    rose_json *m =
        content != NULL ? rose_json_pack("{s:s, s:o}", "role", role, "content", content) : NULL;
    return m != NULL && rose_json_insert_new(c->messages, at, m) == 0;
}

static bool has_system(const chat *c)
{
    const rose_json *role = rose_json_get(rose_json_at(c->messages, 0), "role");
    return role != NULL && strcmp(rose_json_text(role), "system") == 0;
}

static bool set_system(chat *c, const char *text)
{
    const bool had = has_system(c), has = *text != '\0';
    if (has && !add_message(c, 0, "system", text, strlen(text))) {
        complain(c, "the system message is not UTF-8");
        return false;
    }
    if (had) rose_json_remove(c->messages, has);
    return true;
}

/* ---- replies ---- */

static void print_timings(const chat *c, const rose_lib_request *r, uint32_t n, uint64_t start,
                          uint64_t first, uint64_t last)
{
    if (!c->timings || n == 0) return;
    fprintf(stderr, "[prompt of %u tokens, %u of them cached; first token after %.0f ms; %u tokens",
            rose_lib_prompt_tokens(r), rose_lib_cached_tokens(r), (double)(first - start) * 1e-6,
            n);
    if (n > 1 && last > first)
        fprintf(stderr, ", %.1f tokens/s", (n - 1) * 1e9 / (double)(last - first));
    fprintf(stderr, "]\n");
}

/* Streams a reply to stdout and into c->reply; returns its finish, or RUNNING if stdout is gone. */
static rose_lib_finish stream(chat *c, rose_lib_request *r, uint64_t start)
{
    rose_lib_piece piece;
    uint32_t n = 0;
    uint64_t first = 0, last = 0;
    bool at_newline = true;
    rose_lib_piece_init(&piece);
    rose_screen_begin(&c->screen);
    c->reply.len = 0;
    while (rose_lib_next(r, &piece, -1) == 1) {
        if (piece.has_token) last = piece.t_ns;
        if (piece.has_token && n++ == 0) first = last;
        if (piece.text_len == 0) continue;
        /* Many vocabularies begin a reply with a space. */
        const size_t skip = c->reply.len == 0 && piece.text[0] == ' ';
        if (rose_buf_add(&c->reply, piece.text, piece.text_len) != ROSE_OK) rose_lib_cancel(r);
        at_newline = piece.text[piece.text_len - 1] == '\n';
        if (c->tty)
            rose_screen_put(&c->screen, piece.text + skip, piece.text_len - skip);
        else
            fwrite(piece.text + skip, 1, piece.text_len - skip, stdout);
        if (fflush(stdout) != 0) return ROSE_LIB_RUNNING;
    }
    if (!at_newline || !c->tty) putchar('\n');
    if (fflush(stdout) != 0) return ROSE_LIB_RUNNING;
    print_timings(c, r, n, start, first, last);
    if (piece.finish == ROSE_LIB_LENGTH &&
        rose_lib_prompt_tokens(r) + n >= rose_lib_max_model_len(c->rose))
        fprintf(stderr, "[the context of %u tokens is full: /reset begins a new conversation]\n",
                rose_lib_max_model_len(c->rose));
    return piece.finish;
}

/* Takes the message of this turn back, so that the conversation is as before. */
static void take_back(chat *c)
{
    rose_json_remove(c->messages, rose_json_count(c->messages) - 1);
}

/* Submits the conversation; NULL, after a complaint, if that fails. */
static rose_lib_request *submit(chat *c)
{
    char err[ROSE_LIB_ERR] = "out of memory";
    rose_lib_request *r = NULL;
    char *text = rose_json_dumps(c->messages, ROSE_JSON_COMPACT);
    const bool begun = rose_json_count(c->messages) > 1u + has_system(c);
    c->p.max_tokens = c->max_tokens != 0 ? c->max_tokens : rose_lib_max_model_len(c->rose);
    if (text != NULL) rose_lib_submit_chat(c->rose, text, strlen(text), NULL, &c->p, &r, err);
    free(text);
    if (r != NULL) return r;
    fprintf(stderr, "roseinfer: %s%s\n", err, begun ? "; /reset begins a new conversation" : "");
    c->failed = true;
    return NULL;
}

/* Puts the reply into the conversation, or takes the message back that got none. */
static void keep_reply(chat *c, rose_lib_finish finish)
{
    const bool none = c->reply.len == 0 && finish != ROSE_LIB_STOP;
    const size_t n = rose_json_count(c->messages);
    if (finish == ROSE_LIB_FAILED)
        complain(c, "the reply failed: the model gives no finite logits, or the engine failed "
                    "(then its log line says why)");
    if (none)
        take_back(c);
    else if (!add_message(c, n, "assistant", c->reply.data, c->reply.len))
        complain(c, "out of memory");
    if (!c->tty) return;
    if (finish == ROSE_LIB_CANCELLED)
        puts(none ? "[stopped; the message is taken back]" : "[stopped]");
    putchar('\n');
}

/* Answers the message in c->line. False: stdout is closed. */
static bool answer(chat *c)
{
    const uint64_t start = rose_now_ns();
    if (!add_message(c, rose_json_count(c->messages), "user", c->line.data, c->line.len)) {
        complain(c, "the message is not UTF-8");
        return true;
    }
    interrupted = 0;
    rose_lib_request *r = submit(c);
    if (r == NULL) {
        take_back(c);
        return true;
    }
    if (c->tty) running = r;
    if (interrupted) rose_lib_cancel(r); /* Ctrl-C came while the message was submitted */
    const rose_lib_finish finish = stream(c, r, start);
    running = NULL;
    rose_lib_release(r);
    if (finish != ROSE_LIB_RUNNING) keep_reply(c, finish);
    return finish != ROSE_LIB_RUNNING;
}

/* ---- commands ---- */

typedef struct command {
    const char *name, *args, *help;
    void (*run)(chat *c, char *args); /* NULL: ends the program */
} command;

static void note(const chat *c, const char *text)
{
    if (c->tty) printf("[%s]\n", text);
}

static void do_reset(chat *c, char *args)
{
    (void)args;
    while (rose_json_count(c->messages) > has_system(c))
        take_back(c);
    note(c, "a new conversation");
}

static void do_system(chat *c, char *args)
{
    if (set_system(c, args)) note(c, *args != '\0' ? "system message set" : "no system message");
}

static void do_timings(chat *c, char *args)
{
    (void)args;
    c->timings = !c->timings;
    note(c, c->timings ? "timings after each reply" : "no timings");
}

static void print_setting(const rose_opt *o)
{
    if (o->kind == ROSE_OPT_FLOAT)
        printf("%-19s %g\n", o->name, (double)*(const float *)o->dest);
    else if (o->kind == ROSE_OPT_U64)
        printf("%-19s %llu\n", o->name, (unsigned long long)*(const uint64_t *)o->dest);
    else
        printf("%-19s %u\n", o->name, *(const uint32_t *)o->dest);
}

/* The rows of the command line read the value. */
static void do_set(chat *c, char *args)
{
    const rose_command set = {
        .usage = "/set NAME VALUE", .about = "", .opts = c->set_rows, .n_opts = c->n_set_rows};
    char name[64] = "", word[] = "set";
    const size_t n = strcspn(args, " =");
    uint32_t n_args;
    for (uint32_t i = 0; *args == '\0' && i < c->n_set_rows; i++)
        print_setting(&c->set_rows[i]);
    if (*args == '\0') return;
    snprintf(name, sizeof name, "--%.*s", (int)(n < 40 ? n : 40), args);
    args += n;
    args += strspn(args, " =");
    char *argv[] = {word, name, args};
    if (rose_opts_parse(&set, *args != '\0' ? 3 : 2, argv, NULL, &n_args) >= 0) c->failed = true;
}

static void do_help(chat *c, char *args);

static const command commands[] = {
    {"help", "", "these lines", do_help},
    {"reset", "", "begin a new conversation; the system message stays", do_reset},
    {"system", "TEXT", "replace the system message; without TEXT remove it", do_system},
    {"set", "NAME VALUE", "change an option, such as temperature; without NAME list them", do_set},
    {"timings", "", "show times and token counts after each reply, or no more", do_timings},
    {"quit", "", "end the program, as Ctrl-D does", NULL},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void do_help(chat *c, char *args)
{
    (void)c;
    (void)args;
    for (size_t i = 0; i < N_COMMANDS; i++)
        printf("/%-7s %-11s %s\n", commands[i].name, commands[i].args, commands[i].help);
    puts("\"\"\"                  begins and ends a message of several lines\n"
         "Ctrl-C               stops the reply, or clears the line");
}

/* Runs the command in c->line. False: the program ends. */
static bool run_command(chat *c)
{
    char *name = c->line.data + 1;
    const size_t n = strcspn(name, " ");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strlen(commands[i].name) != n || memcmp(commands[i].name, name, n) != 0) continue;
        if (commands[i].run == NULL) return false;
        commands[i].run(c, name + n + strspn(name + n, " "));
        return true;
    }
    fprintf(
        stderr,
        "roseinfer: there is no command /%.*s: /help lists the commands; \"\"\"/%.*s\"\"\" is a "
        "message\n",
        n < 40 ? (int)n : 40, name, n < 40 ? (int)n : 40, name);
    c->failed = true;
    return true;
}

/* ---- the program ---- */

static int talk(chat *c)
{
    rose_err e = {{0}};
    rose_lines *lines = NULL;
    rose_line kind;
    rose_status st = rose_lines_open(&lines, c->tty, &e);
    for (bool more = true; more && st == ROSE_OK;) {
        st = rose_lines_next(lines, &kind, &c->line, &e);
        if (st != ROSE_OK || kind == ROSE_LINE_END) break;
        if (kind == ROSE_LINE_CLEARED || c->line.len == 0) continue;
        if (rose_buf_str(&c->line) == NULL)
            st = rose_fail(&e, ROSE_E_NOMEM, "out of memory");
        else
            more = kind == ROSE_LINE_TEXT && c->line.data[0] == '/' ? run_command(c) : answer(c);
    }
    if (c->tty && st == ROSE_OK && kind == ROSE_LINE_END) putchar('\n');
    rose_lines_close(lines);
    if (st != ROSE_OK) return rose_die(&e);
    return c->failed && !c->tty ? 1 : 0;
}

/* Sets what the model recommends. */
static rose_status recommend(chat *c, const char *model, const char *from, const char *override,
                             rose_err *err)
{
    rose_generation g;
    rose_lib_params *p = &c->p;
    const rose_status st = rose_generation_choose(&g, model, from, override, err);
    if (g.has & ROSE_GENERATION_TEMPERATURE) p->temperature = g.temperature;
    if (g.has & ROSE_GENERATION_TOP_P) p->top_p = g.top_p;
    if (g.has & ROSE_GENERATION_TOP_K) p->top_k = g.top_k;
    if (g.has & ROSE_GENERATION_MIN_P) p->min_p = g.min_p;
    if (g.has & ROSE_GENERATION_REPETITION) p->repetition_penalty = g.repetition;
    if (g.has & ROSE_GENERATION_MAX_TOKENS) c->max_tokens = g.max_tokens;
    return st;
}

static void greet(const chat *c, const char *model)
{
    size_t n = strlen(model);
    while (n > 1 && model[n - 1] == '/')
        n--;
    const char *base = memrchr(model, '/', n - (n > 0));
    base = base != NULL ? base + 1 : model;
    printf("%.*s, context of %u tokens. Ctrl-D quits, /help lists the commands.\n",
           (int)(model + n - base), base, rose_lib_max_model_len(c->rose));
}

/* folder: where the files of the model are. */
static int open_and_talk(chat *c, const char *folder, const char *model,
                         const rose_lib_options *lib, const char *system)
{
    char err[ROSE_LIB_ERR] = "";
    if ((c->messages = rose_json_array()) == NULL) return complain(c, "out of memory");
    if (rose_lib_open(&c->rose, folder, lib, err) != 0) return complain(c, err);
    if (!rose_lib_has_chat_template(c->rose)) {
        fprintf(stderr,
                "roseinfer: %s has no chat template: give one with --chat-template FILE, or "
                "continue a text with `roseinfer generate`\n",
                model);
        return 1;
    }
    if (system != NULL && !set_system(c, system)) return 1;
    if (c->tty) {
        catch_interrupts();
        greet(c, model);
    }
    return talk(c);
}

int rose_cmd_chat(int argc, char **argv)
{
    chat c = {.tty = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1};
    rose_lib_options lib = {ROSE_CLI_LIB_OPTIONS, .generation_config = "auto"};
    bool pin = false, pull = true;
    const char *system = NULL, *override = NULL, *model;
    const rose_opt rows[] = {
        ROSE_ROW_STRING("system-prompt", &system, "TEXT", "the system message",
                        .unset = "none, or what the template writes"),
        ROSE_ROW_STRING("chat-template", &lib.chat_template, "FILE",
                        "the chat template: a file, or the template itself",
                        .unset = "the model's"),
        ROSE_ROW_STRING("generation-config", &lib.generation_config, "auto|none|PATH",
                        "sampling defaults: those of the model, none, or those of another folder "
                        "or generation_config.json"),
        ROSE_ROW_STRING("override-generation-config", &override, "JSON",
                        "sampling defaults that take precedence over --generation-config, as "
                        "{\"temperature\": 0.2, \"top_p\": 0.9}",
                        .unset = "none"),
        ROSE_ROW_BOOL("timings", &c.timings, "print times and token counts after each reply"),
        ROSE_ROW_U32("max-tokens", &c.max_tokens, "N", 0, 0, "most tokens of a reply",
                     .letter = 'n', .unset = "what the context leaves"),
        ROSE_CLI_SAMPLING_ROWS(&c.p, "random"),
        ROSE_CLI_PULL_ROW(&pull),
        ROSE_CLI_ENGINE_ROWS(&lib, &pin),
    };
    enum { N_ROWS = sizeof rows / sizeof *rows, FIRST_SET = 5, N_SET = 7 };
    static const char usage[] = "roseinfer chat MODEL [options]";
    static const char about[] =
        "A conversation with a model in the terminal; /help lists the commands. What the model's\n"
        "files recommend replaces the defaults of max-tokens and of sampling, as in serve.\n"
        "In a pipe each line of standard input is a message; standard output gets the replies.";

    rose_lib_params_default(&c.p);
    c.p.temperature = 1; /* as the server's */
    if (getrandom(&c.p.seed, sizeof(uint32_t), 0) < 0) c.p.seed = rose_now_ns();
    int rc = rose_opts_parse_one(usage, about, rows, N_ROWS, argc, argv, &model);
    if (rc >= 0) return rc;

    /* A second reading, so that what is given counts more than what the model recommends. */
    rose_err e = {{0}};
    rose_buf path = {0};
    const char *folder = model;
    if (!rose_cli_find_model(&folder, &path, pull, false, &e) ||
        recommend(&c, folder, lib.generation_config, override, &e) != ROSE_OK) {
        rose_buf_free(&path);
        return rose_die(&e);
    }
    rose_opts_parse_one(usage, about, rows, N_ROWS, argc, argv, &model);
    memcpy(c.set_rows, rows + FIRST_SET, N_SET * sizeof *rows);
    c.n_set_rows = N_SET;
    lib.pin_threads = pin;
    rc = open_and_talk(&c, folder, model, &lib, system);
    rose_buf_free(&path);
    rose_lib_close(c.rose);
    rose_json_decref(c.messages);
    rose_screen_free(&c.screen);
    rose_buf_free(&c.line);
    rose_buf_free(&c.reply);
    return rc;
}
