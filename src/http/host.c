/* http/host.c - checks whether the Host header holds a name of this server.
 *
 * A server on a loopback address trusts every program of its machine, and a web browser is one
 * of them. By DNS rebinding a web page can give its own name the address 127.0.0.1. The browser
 * then takes this server for the page's own site, and lets the page read replies. The browser
 * still sends the page's name in Host. So a server that listens on a loopback address accepts
 * only "localhost", loopback addresses, its own --host, the address that the client has
 * connected to, and the names of --allowed-hosts. None of these can be the rebound name of a
 * foreign page. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "http/http_internal.h"

typedef struct name {
    const char *s;
    size_t n;
} name;

/* Cuts "name", "name:80" or "[::1]:80" to the name or address alone, without a final dot. The
 * result is empty if s is none of these. An IPv6 address without brackets, as in an absolute URI
 * or an option, stays as it is. */
static name cut_port(const char *s, size_t n)
{
    const name none = {s, 0};
    size_t end = n;
    if (n > 0 && s[0] == '[') {
        const char *close = memchr(s, ']', n);
        if (close == NULL) return none;
        end = (size_t)(close - s);
        if (end + 1 < n && s[end + 1] != ':') return none;
        return (name){s + 1, end - 1};
    }
    const char *colon = memchr(s, ':', n);
    if (colon != NULL && memrchr(s, ':', n) == colon) end = (size_t)(colon - s);
    for (size_t i = end + 1; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return none;
    }
    if (end > 1 && s[end - 1] == '.') end--;
    return (name){s, end};
}

static bool same(name a, name b)
{
    return a.n > 0 && a.n == b.n && strncasecmp(a.s, b.s, a.n) == 0;
}

static void map_v4(struct in6_addr *out, const struct in_addr *v4)
{
    memset(out, 0, sizeof *out);
    memset(out->s6_addr + 10, 0xff, 2);
    memcpy(out->s6_addr + 12, v4, 4);
}

/* Reads a literal address as IPv6; IPv4 becomes ::ffff:a.b.c.d. */
static bool read_address(name a, struct in6_addr *out)
{
    char text[INET6_ADDRSTRLEN];
    struct in_addr v4;
    if (a.n == 0 || a.n >= sizeof text) return false;
    memcpy(text, a.s, a.n);
    text[a.n] = '\0';
    if (inet_pton(AF_INET6, text, out) == 1) return true;
    if (inet_pton(AF_INET, text, &v4) != 1) return false;
    map_v4(out, &v4);
    return true;
}

static bool is_loopback(name a)
{
    struct in6_addr addr;
    if (same(a, (name){"localhost", 9})) return true;
    if (!read_address(a, &addr)) return false;
    return IN6_IS_ADDR_LOOPBACK(&addr) || (IN6_IS_ADDR_V4MAPPED(&addr) && addr.s6_addr[12] == 127);
}

bool rose_http_host_is_loopback(const char *host, size_t len)
{
    return is_loopback(cut_port(host, len));
}

bool rose_http_host_listed(const rose_opt_list *list, const char *host, size_t len)
{
    const name given = cut_port(host, len);
    for (uint32_t i = 0; i < list->n; i++) {
        const char *entry = rose_opt_list_get(list, i);
        if (strcmp(entry, "*") == 0 || same(cut_port(entry, strlen(entry)), given)) return true;
    }
    return false;
}

/* Tells whether a is the address to which the client has connected. Health probes that know no
 * name put it into Host. */
static bool is_own_address(int fd, name a)
{
    struct sockaddr_storage own;
    socklen_t n = sizeof own;
    struct in6_addr want, have;
    if (!read_address(a, &want) || getsockname(fd, (struct sockaddr *)&own, &n) < 0) return false;
    if (own.ss_family == AF_INET6) {
        have = ((const struct sockaddr_in6 *)&own)->sin6_addr;
    } else if (own.ss_family == AF_INET) {
        map_v4(&have, &((const struct sockaddr_in *)&own)->sin_addr);
    } else {
        return false;
    }
    return memcmp(&want, &have, sizeof want) == 0;
}

bool rose_http_host_allowed(const rose_http_conn *c, const char *host, size_t len)
{
    const rose_http_opts *o = &c->io->h->opts;
    if (!c->io->h->check_host || len == 0) return true;
    const name given = cut_port(host, len);
    return is_loopback(given) || same(given, cut_port(o->host, strlen(o->host))) ||
           rose_http_host_listed(&o->allowed_hosts, host, len) || is_own_address(c->fd, given);
}
