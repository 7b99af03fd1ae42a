/* cli/health.c - `roseinfer health`: asks a server whether it is well, for containers that hold
 * neither a shell nor curl. One GET, of whose reply it reads the status line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fetch.h"
#include "base/opts.h"
#include "cli/cli.h"

/* The status line of the reply, which is then terminated. */
typedef struct answer {
    char line[256];
    size_t n;
} answer;

static rose_status take_line(void *ctx, const char *bytes, size_t n, bool *done)
{
    answer *a = ctx;
    for (size_t i = 0; i < n && a->n + 1 < sizeof a->line; i++)
        a->line[a->n++] = bytes[i];
    const size_t len = strcspn(a->line, "\r\n");
    *done = len < a->n || a->n + 1 == sizeof a->line;
    a->line[len] = '\0';
    return ROSE_OK;
}

static rose_status parse_url(rose_url *u, const char *url, rose_err *err)
{
    if (strncmp(url, "https://", 8) == 0)
        return rose_fail(err, ROSE_E_UNSUPPORTED,
                         "%s: health does not speak TLS; use another probe", url);
    if (rose_url_parse(u, url, NULL) != ROSE_OK)
        return rose_fail(err, ROSE_E_INVAL,
                         "'%.200s' is no URL of the form http://HOST:PORT/health", url);
    if (u->path[0] == '\0') strcpy(u->path, "/health");
    return ROSE_OK;
}

/* Where `serve` with the same environment listens. Kubernetes may set ROSEINFER_PORT to a URL,
 * which `serve` ignores as well. */
static const char *default_url(char url[64])
{
    const char *port = getenv("ROSEINFER_PORT");
    const bool number = port != NULL && port[0] != '\0' && strlen(port) <= 5 &&
                        port[strspn(port, "0123456789")] == '\0';
    snprintf(url, 64, "http://127.0.0.1:%s/health", number ? port : "8888");
    return url;
}

int rose_cmd_health(int argc, char **argv)
{
    char url[64];
    const char *uds = getenv("ROSEINFER_UDS"), *args[1] = {default_url(url)};
    uint32_t timeout_s = 5, n_args = 0;
    const rose_opt opts[] = {
        ROSE_ROW_STRING("uds", &uds, "PATH", "Unix socket to ask instead of the URL's host",
                        .says = "$ROSEINFER_UDS"),
        ROSE_ROW_U32("timeout-s", &timeout_s, "S", 1, 3600, "give up after S seconds"),
    };
    const rose_command c = {
        .usage = "roseinfer health [URL] [options]",
        .about =
            "Asks a server whether it is well. URL is http://127.0.0.1:8888/health by default, "
            "with the\nport of $ROSEINFER_PORT if that is set; /ready asks whether the server "
            "takes requests. The\nexit code is 0 if the answer is 200, else 1.",
        .opts = opts,
        .n_opts = sizeof opts / sizeof *opts,
        .max_args = 1};
    const int rc = rose_opts_parse(&c, argc, argv, args, &n_args);
    if (rc >= 0) return rc;

    rose_err err = {{0}}, why = {{0}};
    rose_url u;
    answer a = {0};
    char request[sizeof u + 80];
    if (parse_url(&u, args[0], &err) != ROSE_OK) return rose_die(&err);
    const bool v6 = strchr(u.host, ':') != NULL;
    const int n = snprintf(request, sizeof request,
                           "GET %s HTTP/1.1\r\nHost: %s%s%s\r\nConnection: close\r\n\r\n", u.path,
                           v6 ? "[" : "", u.host, v6 ? "]" : "");
    rose_status st = rose_fetch(&u, uds != NULL && *uds != '\0' ? uds : NULL, request, (size_t)n,
                                timeout_s * 1000, take_line, &a, &why);
    if (st != ROSE_OK)
        st = rose_fail(&err, st, "%s: %s", u.path, why.msg);
    else if (strncmp(a.line, "HTTP/1.1 200", 12) != 0)
        st = rose_fail(&err, ROSE_E_IO, "%s: the server answered '%s'", u.path,
                       a.line[0] != '\0' ? a.line : "nothing");
    if (st != ROSE_OK) return rose_die(&err);
    printf("%s: %s\n", u.path, a.line);
    return 0;
}
