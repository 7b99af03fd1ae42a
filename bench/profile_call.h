/* bench/profile_call.h - functions that the profile stages of `bench online` and `bench offline`
 * share. Main thread. */
#ifndef ROSE_BENCH_PROFILE_CALL_H
#define ROSE_BENCH_PROFILE_CALL_H

#include "base/json.h"

#include "bench/server.h"

/* Sends POST path ("/start_profile" or "/stop_profile") to the server and stores its answer as
 * row[name]. Any status other than 200 is the error CLOSED with the server's message. */
rose_status rose_profile_call(rose_json *row, const rose_url *u, const char *path, const char *name,
                              rose_err *err);

/* Notes the command line, the log and the version of a server in the row of its profile. */
void rose_profile_note_server(rose_json *row, const rose_server *s);

/* Begins profile_manifest.json: its meta is that of any result and `more`, which it frees. NULL:
 * out of memory. */
rose_json *rose_profile_manifest_begin(int argc, char **argv, rose_json *more);

/* Makes one profile: puts its files into dir and what is to be said of it into row. */
typedef rose_status rose_profile_attempt(void *ctx, char *dir, rose_json *row, rose_err *err);

/* Makes one profile in results/profiles/TOOL/LABEL, adds its row to root["runs"] and writes
 * results/profile_manifest.json. Returns true if the profile succeeded; otherwise a message was
 * printed. */
bool rose_profile_try(rose_json *root, const char *results, const char *tool, const char *label,
                      rose_profile_attempt *attempt, void *ctx);

/* Ends a stage that began at start_ns: adds its end and duration to root["meta"], writes root to
 * dir/profile_manifest.json and prints that path. Frees root. Returns false, after a message on
 * standard error, if the file cannot be written. */
bool rose_profile_manifest_end(rose_json *root, const char *dir, uint64_t start_ns);

#endif
