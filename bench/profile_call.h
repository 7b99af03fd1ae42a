/* bench/profile_call.h - what the profile stages of `bench online` and `bench offline` share. Main
 * thread. */
#ifndef ROSE_BENCH_PROFILE_CALL_H
#define ROSE_BENCH_PROFILE_CALL_H

#include <jansson.h>

#include "bench/load.h"

/* Creates path and what is above it; writes to path meanwhile. IO. */
rose_status rose_profile_dirs(char *path, rose_err *err);

/* POST path ("/start_profile", "/stop_profile") to the server; what it says becomes row[name].
 * Another status than 200 is CLOSED, with the server's message. */
rose_status rose_profile_call(json_t *row, const rose_url *u, const char *path, const char *name,
                              rose_err *err);

/* Ends a stage that began at start_ns: root, whose "meta" there is, gets end and duration and
 * becomes dir/profile_manifest.json, whose path goes to standard output. Consumes root. False: not
 * written, as standard error then says. */
bool rose_profile_manifest_end(json_t *root, const char *dir, uint64_t start_ns);

#endif
