/* base/profile_internal.h - declarations shared by the recorder (profile.c) and the writer of
 * its file (profile_json.c). */
#ifndef ROSE_BASE_PROFILE_INTERNAL_H
#define ROSE_BASE_PROFILE_INTERNAL_H

#include "base/profile.h"

typedef struct rose_prof_event {
    const char *name, *arg; /* literals; arg NULL = no figure */
    uint64_t begin_ns;
    uint64_t end_ns; /* SPAN, ASYNC */
    uint64_t value;  /* the figure; for FLOW and ASYNC the id */
    rose_prof_kind kind;
} rose_prof_event;

/* What a thread left behind. */
typedef struct rose_prof_track {
    const char *name;
    long tid;
    rose_prof_event *events; /* [n]; sorted by the writer */
    uint64_t n, n_dropped;
} rose_prof_track;

struct rose_prof_writer {
    FILE *file;
    uint64_t start_ns, end_ns; /* of the recording */
    uint64_t n_events;
    bool first;             /* no comma yet */
    uint64_t device_tracks; /* bits of those that have a name already */
    uint64_t n_device;
};

/* These write the whole file, except for the events that the source writes in between. */
void rose_prof_json_begin(rose_prof_writer *w);
void rose_prof_json_track(rose_prof_writer *w, rose_prof_track *t);
void rose_prof_json_end(rose_prof_writer *w, const rose_prof_track *tracks, uint32_t n_tracks,
                        uint64_t n_dropped, const char *note);

#endif
