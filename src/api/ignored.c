/* api/ignored.c - request fields that the API ignores. The header X-Ignored-Fields tells the
 * client. One log line for each name, and a metric, tell the operator.
 *
 * The names come from clients. They are written with few safe characters and every other byte as
 * %XX. So no name can end a header line, add a header or forge a log line. The lists that hold
 * names have a fixed size. */
#include <stdio.h>
#include <string.h>

#include "api/api_internal.h"
#include "base/log.h"
#include "base/utf8.h"

static bool is_plain(unsigned char c)
{
    return c != '\0' && strchr(ROSE_ALNUM "-_.[]", c) != NULL;
}

/* Writes the name in safe characters, cut before the first character that does not fit. An empty
 * name becomes "". */
static void put_name(char out[ROSE_API_IGNORED_BYTES + 1], const char *name)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t n = 0;
    for (; *name != '\0'; name++) {
        const unsigned char c = (unsigned char)*name;
        if (n + (is_plain(c) ? 1 : 3) > ROSE_API_IGNORED_BYTES) break;
        if (is_plain(c)) {
            out[n++] = *name;
        } else {
            out[n++] = '%';
            out[n++] = hex[c >> 4];
            out[n++] = hex[c & 15];
        }
    }
    out[n] = '\0';
    if (n == 0) memcpy(out, "\"\"", 3);
}

void rose_api_ignored_add(rose_api_ignored *g, const char *name)
{
    if (g->n < ROSE_API_MAX_IGNORED) put_name(g->names[g->n], name);
    g->n++;
}

bool rose_api_unknown_field(rose_api_ignored *g, const char *name, rose_api_error *err)
{
    if (g->strict)
        return rose_api_fail(err, 400, "unknown_field", name, "unknown field '%.200s'", name);
    rose_api_ignored_add(g, name);
    return true;
}

bool rose_api_hint(rose_api_ignored *g, const char *name, rose_api_error *err)
{
    if (g->strict) return rose_api_fail_unsupported(err, name, NULL);
    rose_api_ignored_add(g, name);
    return true;
}

bool rose_api_leave_out(rose_api_ignored *g, const char *name, const rose_json *type,
                        rose_api_error *err)
{
    char whole[ROSE_API_IGNORED_BYTES + 1];
    if (g->strict || !rose_json_is_string(type)) return rose_api_fail_type(err, name, name, type);
    snprintf(whole, sizeof whole, "%s.%s", name, rose_json_text(type));
    rose_api_ignored_add(g, whole);
    return true;
}

static uint32_t n_names(const rose_api_ignored *g)
{
    return g->n < ROSE_API_MAX_IGNORED ? g->n : ROSE_API_MAX_IGNORED;
}

void rose_api_ignored_header(rose_api_out *o, const rose_api_ignored *g)
{
    if (g->n == 0) return;
    rose_api_puts(o, "X-Ignored-Fields: ");
    for (uint32_t i = 0; i < n_names(g); i++) {
        if (i > 0) rose_api_puts(o, ", ");
        rose_api_puts(o, g->names[i]);
    }
    rose_api_puts(o, "\r\n");
}

/* Turns "messages[12].name" into "messages[].name": one log line for a member, whichever message
 * has it. */
static void without_indices(char *out, const char *name)
{
    for (; *name != '\0'; name++) {
        *out++ = *name;
        if (*name != '[') continue;
        while (name[1] >= '0' && name[1] <= '9')
            name++;
    }
    *out = '\0';
}

/* True: the name is new, and there was room for it. The caller holds the lock. */
static bool remember(rose_api_logged_fields *l, const char *name)
{
    for (uint32_t i = 0; i < l->n; i++) {
        if (strcmp(l->names[i], name) == 0) return false;
    }
    if (l->n == ROSE_API_MAX_LOGGED) return false;
    memcpy(l->names[l->n++], name, strlen(name) + 1);
    return true;
}

void rose_api_ignored_log(rose_api_logged_fields *l, const rose_api_ignored *g)
{
    char name[ROSE_API_IGNORED_BYTES + 1];
    for (uint32_t i = 0; i < n_names(g); i++) {
        without_indices(name, g->names[i]);
        pthread_mutex_lock(&l->lock);
        const bool fresh = remember(l, name);
        const bool full = l->n == ROSE_API_MAX_LOGGED;
        pthread_mutex_unlock(&l->lock);
        if (!fresh) continue;
        rose_log(ROSE_LOG_WARN, "api",
                 "the request field %s was ignored (said once; the replies name it in "
                 "X-Ignored-Fields; --strict-fields refuses it)",
                 name);
        if (full)
            rose_log(ROSE_LOG_WARN, "api",
                     "%d names of ignored fields were logged; no further name will be",
                     ROSE_API_MAX_LOGGED);
    }
}
