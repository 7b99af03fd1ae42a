/* bench/proc.c - see proc.h. */
#include "bench/proc.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/results.h"

enum { LOG_BYTES = 1 << 20, TAIL_BYTES = 4096, FIRST_CHARS = 110 };

static void redirect(const char *path, int fd)
{
    int to = path != NULL ? open(path, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;
    if (to < 0) return;
    dup2(to, fd);
    close(to);
}

/* Runs in the child until exec. If exec fails, errno is written to fd. */
static void become(char *const *argv, const char *out_path, const char *err_path, const int *cpus,
                   uint32_t n_cpus, pid_t parent, int fd)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127); /* the parent died before prctl took effect */
    redirect("/dev/null", STDIN_FILENO);
    redirect(out_path, STDOUT_FILENO);
    redirect(err_path, STDERR_FILENO);
    if (n_cpus > 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        for (uint32_t i = 0; i < n_cpus; i++)
            CPU_SET((size_t)cpus[i], &set);
        sched_setaffinity(0, sizeof set, &set);
    }
    execvp(argv[0], argv);
    int e = errno;
    if (write(fd, &e, sizeof e) < 0) _exit(126);
    _exit(127);
}

rose_status rose_proc_start(rose_proc *p, char *const *argv, const char *out_path,
                            const char *err_path, const int *cpus, uint32_t n_cpus, rose_err *err)
{
    int fds[2], e = 0;
    *p = (rose_proc){0};
    if (pipe2(fds, O_CLOEXEC) != 0) return rose_fail(err, ROSE_E_IO, "pipe: %s", strerror(errno));
    const pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) become(argv, out_path, err_path, cpus, n_cpus, parent, fds[1]);
    e = pid < 0 ? errno : 0;
    close(fds[1]);
    if (pid > 0 && read(fds[0], &e, sizeof e) == sizeof e) waitpid(pid, NULL, 0);
    close(fds[0]);
    if (e != 0) return rose_fail(err, ROSE_E_IO, "%s: %s", argv[0], strerror(e));
    p->pid = pid;
    return ROSE_OK;
}

bool rose_proc_running(rose_proc *p)
{
    if (p->pid == 0 || p->ended) return false;
    pid_t r = waitpid(p->pid, &p->status, WNOHANG);
    p->ended = r == p->pid || (r < 0 && errno == ECHILD);
    return !p->ended;
}

void rose_proc_stop(rose_proc *p, uint32_t grace_ms)
{
    const struct timespec tick = {0, 2000000};
    const uint64_t deadline = rose_now_ns() + (uint64_t)grace_ms * 1000000u;
    if (!rose_proc_running(p)) return;
    kill(p->pid, SIGTERM);
    while (rose_proc_running(p)) {
        if (rose_now_ns() > deadline) kill(p->pid, SIGKILL);
        nanosleep(&tick, NULL);
    }
}

bool rose_proc_wait(rose_proc *p)
{
    if (p->pid == 0) return false;
    while (!p->ended) {
        pid_t r = waitpid(p->pid, &p->status, 0);
        p->ended = r == p->pid || (r < 0 && errno != EINTR);
    }
    return WIFEXITED(p->status) && WEXITSTATUS(p->status) == 0;
}

void rose_proc_describe(const rose_proc *p, char *out, size_t cap)
{
    if (WIFSIGNALED(p->status))
        snprintf(out, cap, "signal %d", WTERMSIG(p->status));
    else
        snprintf(out, cap, "exit code %d", WEXITSTATUS(p->status));
}

/* Copies the text from the word that ends in "Error:" or "Exception:" to the end of its line. */
static bool first_error(const char *text, char *out, size_t cap)
{
    const char *a = strstr(text, "Error: "), *b = strstr(text, "Exception: ");
    const char *at = a == NULL || (b != NULL && b < a) ? b : a;
    if (at == NULL) return false;
    while (at > text && (isalnum((unsigned char)at[-1]) || at[-1] == '.' || at[-1] == '_'))
        at--;
    snprintf(out, cap, "%.*s", (int)strcspn(at, "\r\n"), at);
    return true;
}

void rose_proc_log_why(const char *log, char *out, size_t cap)
{
    char first[FIRST_CHARS + 1] = "", *text = malloc(LOG_BYTES + 1), tail[TAIL_BYTES + 1];
    FILE *f = log[0] != '\0' ? fopen(log, "rb") : NULL;
    size_t n;
    out[0] = '\0';
    if (f == NULL || text == NULL) goto done;
    n = fread(text, 1, LOG_BYTES, f);
    text[n] = '\0';
    first_error(text, first, sizeof first);
    if (fseek(f, -TAIL_BYTES, SEEK_END) != 0) rewind(f);
    n = fread(tail, 1, TAIL_BYTES, f);
    while (n > 0 && isspace((unsigned char)tail[n - 1]))
        n--;
    tail[n] = '\0';
    const char *nl = strrchr(tail, '\n'), *last = nl != NULL ? nl + 1 : tail;
    if (first[0] == '\0' || strstr(last, first) != NULL)
        snprintf(out, cap, "%s", last);
    else
        snprintf(out, cap, "%s; at the end: %s", first, last);
    rose_results_text(out);
done:
    if (f != NULL) fclose(f);
    free(text);
}

rose_status rose_args_split(const char *text, rose_buf *copy, char **args, uint32_t *n,
                            rose_err *err)
{
    copy->len = 0;
    if (rose_buf_reserve(copy, strlen(text) + 1) != ROSE_OK)
        return rose_fail(err, ROSE_E_NOMEM, "out of memory");
    char *w = copy->data;
    for (const char *p = text; *p != '\0';) {
        if (*p == ' ') {
            p++;
            continue;
        }
        if (*n + 1 >= ROSE_PROC_MAX_ARGS)
            return rose_fail(err, ROSE_E_INVAL, "too many arguments in '%s'", text);
        args[(*n)++] = w;
        char quote = 0;
        for (; *p != '\0' && (quote != 0 || *p != ' '); p++) {
            if (*p == quote)
                quote = 0;
            else if (quote == 0 && (*p == '\'' || *p == '"'))
                quote = *p;
            else
                *w++ = *p;
        }
        *w++ = '\0';
        if (quote != 0) return rose_fail(err, ROSE_E_INVAL, "an open quote in '%s'", text);
    }
    return ROSE_OK;
}

uint16_t rose_free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return 0;
    bool ok =
        bind(fd, (struct sockaddr *)&a, n) == 0 && getsockname(fd, (struct sockaddr *)&a, &n) == 0;
    close(fd);
    return ok ? ntohs(a.sin_port) : 0;
}

const char *rose_self_path(void)
{
    static char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0) return "roseinfer-bench";
    path[n] = '\0';
    return path;
}

/* A folder with the program's name is no program, although access() with X_OK succeeds for it. */
static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

const char *rose_server_path(void)
{
    static char path[4096];
    const char *self = rose_self_path(), *slash = strrchr(self, '/');
    const int len = slash != NULL ? (int)(slash - self) : 0;
    static const char *const at[] = {"", "/../.."};
    for (size_t i = 0; slash != NULL && i < sizeof at / sizeof *at; i++) {
        if (snprintf(path, sizeof path, "%.*s%s/roseinfer", len, self, at[i]) < (int)sizeof path &&
            is_program(path))
            return path;
    }
    return "roseinfer";
}

static volatile sig_atomic_t stop_asked;

static void on_signal(int sig)
{
    (void)sig;
    stop_asked = 1;
}

const volatile sig_atomic_t *rose_stop_on_signals(void)
{
    const struct sigaction sa = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    signal(SIGPIPE, SIG_IGN);
    return &stop_asked;
}
