/* base/procstat.c - see procstat.h. */
#include "base/procstat.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

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
    uint64_t size, resident;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f == NULL) return;
    if (fscanf(f, "%" SCNu64 " %" SCNu64, &size, &resident) == 2) {
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
        p->virtual_bytes = size * page;
        p->resident_bytes = resident * page;
    }
    fclose(f);
}

/* Reads field 22 of /proc/self/stat: the clock ticks from boot to the start of this process. */
static double start_time(void)
{
    char line[1024];
    uint64_t ticks = 0;
    FILE *f = fopen("/proc/self/stat", "re");
    if (f == NULL) return 0;
    size_t n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = '\0';
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
