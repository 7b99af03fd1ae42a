/* library tests - an engine on models/rose-tiny, and whole texts. */
#ifndef ROSE_TESTS_LIB_FIXTURE_H
#define ROSE_TESTS_LIB_FIXTURE_H

#include "tokenizer/tok_fixture.h"

#include "roseinfer.h"

static inline rose_lib *open_with(rose_lib_options o)
{
    char path[512], err[ROSE_LIB_ERR];
    rose_lib *rose = NULL;
    o.size = sizeof o;
    o.device = "cpu";
    o.threads = 1;
    if (o.kv_pages == 0) o.kv_pages = 64;
    if (o.max_num_seqs == 0) o.max_num_seqs = 4;
    snprintf(path, sizeof path, "%s/models/rose-tiny", repo_root());
    if (rose_lib_open(&rose, path, &o, err) != 0) fail_msg("%s", err);
    return rose;
}

static inline rose_lib *open_lib(const char *template)
{
    return open_with((rose_lib_options){.chat_template = template});
}

static inline rose_lib_request *submit(rose_lib *rose, const char *text, const rose_lib_params *p)
{
    rose_lib_request *r = NULL;
    char err[ROSE_LIB_ERR];
    if (rose_lib_submit_text(rose, text, strlen(text), p, &r, err) != 0) fail_msg("%s", err);
    return r;
}

/* The whole reply, owned; *last gets its last piece, without borrowed members. Does not release. */
static inline char *read_to_end(rose_lib_request *r, rose_lib_piece *last)
{
    rose_buf out = {0};
    rose_lib_piece piece;
    rose_lib_piece_init(&piece);
    rose_lib_piece_init(last);
    while (rose_lib_next(r, &piece, -1) == 1) {
        assert_int_equal(rose_buf_add(&out, piece.text, piece.text_len), ROSE_OK);
        *last = piece;
    }
    last->text = NULL;
    last->logprobs = NULL;
    assert_non_null(rose_buf_str(&out));
    return out.data;
}

static inline char *read_all(rose_lib_request *r)
{
    rose_lib_piece last;
    char *text = read_to_end(r, &last);
    rose_lib_release(r);
    return text;
}

static inline char *generate(rose_lib *rose, const char *text, const rose_lib_params *p)
{
    return read_all(submit(rose, text, p));
}

#endif
