/* base/profile_json.c - writes a recording as a file in Chrome's trace event format (the JSON
 * object form).
 *
 * Spans are complete events (X). Flows are s/t/f events that bind to the enclosing span. Parts
 * of a request are async events (b/e) of category "request". Figures are args. Times are
 * microseconds since the recording began, with nanoseconds after the decimal point. A thread's
 * events are sorted by start time, longer ones first, so that a span comes before the spans
 * within it. The caller checks the file for errors (ferror). */
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/profile_internal.h"

enum { DEVICE_PID_STEP = 1, MAX_NAME = 200, MAX_DEVICE_TRACKS = 64 };

/* Writes a JSON string. A character that is not printable ASCII becomes '?', because names come
 * only from us or from a compiler. */
static void put_string(FILE *f, const char *s)
{
    fputc('"', f);
    for (size_t i = 0; s[i] != '\0' && i < MAX_NAME; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\') fputc('\\', f);
        fputc(c >= 0x20 && c < 0x7f ? c : '?', f);
    }
    fputc('"', f);
}

static void put_time(rose_prof_writer *w, const char *key, uint64_t ns)
{
    fprintf(w->file, ",\"%s\":%" PRIu64 ".%03u", key, ns / 1000, (unsigned)(ns % 1000));
}

/* Writes the beginning of an event's JSON object; the caller adds members and closes the object. */
static void open_event(rose_prof_writer *w, const char *ph, const char *name, long pid, long tid)
{
    fputs(w->first ? "\n{\"ph\":\"" : ",\n{\"ph\":\"", w->file);
    w->first = false;
    fprintf(w->file, "%s\",\"pid\":%ld,\"tid\":%ld,\"name\":", ph, pid, tid);
    put_string(w->file, name);
}

static uint64_t since_start(const rose_prof_writer *w, uint64_t ns)
{
    return ns > w->start_ns ? ns - w->start_ns : 0;
}

static void put_meta(rose_prof_writer *w, const char *what, long pid, long tid, const char *name)
{
    open_event(w, "M", what, pid, tid);
    fputs(",\"args\":{\"name\":", w->file);
    put_string(w->file, name);
    fputs("}}", w->file);
}

static void put_arg(rose_prof_writer *w, const char *arg, uint64_t value)
{
    if (arg == NULL) return;
    fputs(",\"args\":{", w->file);
    put_string(w->file, arg);
    fprintf(w->file, ":%" PRIu64 "}", value);
}

static void put_async(rose_prof_writer *w, const rose_prof_event *e, long tid)
{
    for (int end = 0; end < 2; end++) {
        open_event(w, end ? "e" : "b", e->name, (long)getpid(), tid);
        put_time(w, "ts", since_start(w, end ? e->end_ns : e->begin_ns));
        fprintf(w->file, ",\"cat\":\"request\",\"id\":\"%" PRIu64 "\"}", e->value);
    }
}

static void put_event(rose_prof_writer *w, const rose_prof_event *e, long tid)
{
    static const char *const ph[] = {
        [ROSE_PROF_SPAN] = "X",      [ROSE_PROF_COUNTER] = "C",  [ROSE_PROF_FLOW_BEGIN] = "s",
        [ROSE_PROF_FLOW_STEP] = "t", [ROSE_PROF_FLOW_END] = "f", [ROSE_PROF_ASYNC] = "b"};
    w->n_events++;
    if (e->kind == ROSE_PROF_ASYNC) {
        put_async(w, e, tid);
        return;
    }
    open_event(w, ph[e->kind], e->name, (long)getpid(), tid);
    put_time(w, "ts", since_start(w, e->begin_ns));
    switch (e->kind) {
    case ROSE_PROF_SPAN:
        put_time(w, "dur", since_start(w, e->end_ns) - since_start(w, e->begin_ns));
        put_arg(w, e->arg, e->value);
        break;
    case ROSE_PROF_COUNTER:
        put_arg(w, "value", e->value);
        break;
    case ROSE_PROF_FLOW_BEGIN:
    case ROSE_PROF_FLOW_STEP:
    case ROSE_PROF_FLOW_END:
        fprintf(w->file, ",\"cat\":\"request\",\"id\":%" PRIu64 ",\"bp\":\"e\"", e->value);
        break;
    case ROSE_PROF_ASYNC:
        break;
    }
    fputc('}', w->file);
}

static int by_time(const void *pa, const void *pb)
{
    const rose_prof_event *a = pa, *b = pb;
    if (a->begin_ns != b->begin_ns) return a->begin_ns < b->begin_ns ? -1 : 1;
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1; /* spans before what is within */
    return a->end_ns == b->end_ns ? 0 : a->end_ns > b->end_ns ? -1 : 1;
}

void rose_prof_json_begin(rose_prof_writer *w)
{
    fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[", w->file);
    put_meta(w, "process_name", (long)getpid(), 0, "roseinfer");
}

void rose_prof_json_track(rose_prof_writer *w, rose_prof_track *t)
{
    put_meta(w, "thread_name", (long)getpid(), t->tid, t->name);
    qsort(t->events, t->n, sizeof *t->events, by_time);
    for (uint64_t i = 0; i < t->n; i++)
        put_event(w, &t->events[i], t->tid);
}

/* The spans of a source are shown next to the threads, as a process of their own. */
void rose_prof_write_span(rose_prof_writer *w, uint32_t track, const char *track_name,
                          const char *name, uint64_t begin_ns, uint64_t end_ns, const char *arg,
                          uint64_t value)
{
    const long pid = (long)getpid() + DEVICE_PID_STEP;
    if (end_ns < begin_ns || begin_ns < w->start_ns || begin_ns > w->end_ns) return;
    if (w->n_device == 0) put_meta(w, "process_name", pid, 0, "device");
    if (track < MAX_DEVICE_TRACKS && !(w->device_tracks >> track & 1)) {
        w->device_tracks |= UINT64_C(1) << track;
        put_meta(w, "thread_name", pid, (long)track, track_name);
    }
    open_event(w, "X", name, pid, (long)track);
    put_time(w, "ts", begin_ns - w->start_ns);
    put_time(w, "dur", end_ns - begin_ns);
    put_arg(w, arg, value);
    fputc('}', w->file);
    w->n_events++;
    w->n_device++;
}

void rose_prof_json_end(rose_prof_writer *w, const rose_prof_track *tracks, uint32_t n_tracks,
                        uint64_t n_dropped, const char *note)
{
    fprintf(w->file, "\n],\"otherData\":{\"clock\":\"CLOCK_MONOTONIC\",\"start_ns\":%" PRIu64,
            w->start_ns);
    fprintf(w->file, ",\"duration_ns\":%" PRIu64 ",\"events\":%" PRIu64 ",\"dropped\":%" PRIu64,
            w->end_ns - w->start_ns, w->n_events, n_dropped);
    fputs(",\"dropped_by_thread\":[", w->file);
    for (uint32_t i = 0, n = 0; i < n_tracks; i++) {
        if (tracks[i].n_dropped == 0) continue;
        fputs(n++ > 0 ? ",{\"thread\":" : "{\"thread\":", w->file);
        put_string(w->file, tracks[i].name);
        fprintf(w->file, ",\"tid\":%ld,\"dropped\":%" PRIu64 "}", tracks[i].tid,
                tracks[i].n_dropped);
    }
    fputs("],\"note\":", w->file);
    put_string(w->file, note);
    fputs("}}\n", w->file);
}
