/* base/procstat.c - see procstat.h. */
#include "base/procstat.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

bool rose_proc_read(const char *path, char *text, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    size_t n = 0;
    ssize_t got;
    while (n < cap - 1 && (got = read(fd, text + n, cap - 1 - n)) > 0)
        n += (size_t)got;
    close(fd);
    text[n] = '\0';
    return n > 0;
}

bool rose_proc_number(const char *text, const char *key, uint64_t *out)
{
    size_t len = strlen(key);
    for (const char *p = text; p != NULL && *p != '\0'; p = strchr(p, '\n')) {
        if (*p == '\n') p++;
        if (strncmp(p, key, len) != 0) continue;
        return sscanf(p + len, "%" SCNu64, out) == 1;
    }
    return false;
}

static double clock_seconds(clockid_t id)
{
    struct timespec t;
    if (clock_gettime(id, &t) != 0) return 0;
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint32_t count_fds(void)
{
    uint32_t n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (d == NULL) return 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(d);
    return n > 0 ? n - 1 : 0; /* less the one we read with */
}

static void read_memory(rose_procstat *p)
{
    char text[256];
    uint64_t size, resident, page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (!rose_proc_read("/proc/self/statm", text, sizeof text) ||
        sscanf(text, "%" SCNu64 " %" SCNu64, &size, &resident) != 2)
        return;
    p->virtual_bytes = size * page;
    p->resident_bytes = resident * page;
}

/* Reads field 22 of /proc/self/stat: the clock ticks from boot to the start of this process. */
static double start_time(void)
{
    char line[1024];
    uint64_t ticks = 0;
    if (!rose_proc_read("/proc/self/stat", line, sizeof line)) return 0;
    const char *at = strrchr(line, ')'); /* the name may hold anything */
    for (int field = 2; at != NULL && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (at == NULL || sscanf(at, "%" SCNu64, &ticks) != 1) return 0;
    double boot = clock_seconds(CLOCK_REALTIME) - clock_seconds(CLOCK_BOOTTIME);
    return boot + (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

rose_procstat rose_procstat_read(void)
{
    rose_procstat p = {0};
    struct rlimit limit;
    struct rusage usage;
    read_memory(&p);
    if (getrusage(RUSAGE_SELF, &usage) == 0) {
        p.minor_faults = (uint64_t)usage.ru_minflt;
        p.major_faults = (uint64_t)usage.ru_majflt;
    }
    p.cpu_seconds = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
    p.open_fds = count_fds();
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur <= UINT32_MAX)
        p.max_fds = (uint32_t)limit.rlim_cur;
    p.start_time_seconds = start_time();
    return p;
}
