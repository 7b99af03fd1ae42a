/* The C library: structs of older and newer headers, every sampling field, structured output,
 * embeddings, and what is refused. */
#include "lib/lib_fixture.h"

#include <math.h>

static const char king[] = "Once upon a time there was a king";

static char *greedy(rose_lib *rose, const char *prompt, uint32_t n)
{
    rose_lib_params p;
    rose_lib_params_default(&p);
    p.max_tokens = n;
    return generate(rose, prompt, &p);
}

/* ---- versions ---- */

/* A later header's struct. */
typedef struct newer {
    rose_lib_params p;
    uint64_t later[3];
} newer;

static void versions(void **state)
{
    rose_lib *rose = open_lib(NULL);
    rose_lib_request *r;
    char err[ROSE_LIB_ERR];
    (void)state;
    assert_int_equal(rose_lib_api_version(),
                     ROSE_LIB_VERSION_MAJOR * 1000 + ROSE_LIB_VERSION_MINOR);
    assert_non_null(rose_lib_version());

    /* an older struct: what it lacks has its default, whatever comes after it */
    rose_lib_params old;
    memset(&old, 0xFF, sizeof old);
    rose_lib_params_init(&old, offsetof(rose_lib_params, presence_penalty), NULL);
    old.max_tokens = 8;
    char *want = greedy(rose, king, 8), *got = generate(rose, king, &old);
    assert_string_equal(got, want);
    free(got);

    /* a newer struct is taken as long as it asks for nothing new */
    newer n;
    rose_lib_params_init(&n.p, sizeof n, NULL);
    n.p.max_tokens = 8;
    got = generate(rose, king, &n.p);
    assert_string_equal(got, want);
    n.later[2] = 1;
    assert_int_equal(rose_lib_submit_text(rose, king, 4, &n.p, &r, err), ROSE_LIB_E_INVAL);
    assert_non_null(strstr(err, "install the library of your header"));
    assert_null(r);
    free(got);
    free(want);

    static const size_t wrong[] = {0, 1, sizeof(size_t), 4097, SIZE_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        rose_lib_params p;
        rose_lib_embed_params ep;
        rose_lib_options o = {.size = wrong[i]};
        rose_lib_piece piece;
        rose_lib *other;
        rose_lib_params_default(&p);
        rose_lib_embed_params_default(&ep);
        r = submit(rose, king, &p);
        piece.size = wrong[i];
        assert_int_equal(rose_lib_next(r, &piece, -1), ROSE_LIB_E_INVAL);
        rose_lib_release(r);
        p.size = ep.size = wrong[i];
        assert_int_equal(rose_lib_submit_text(rose, king, 4, &p, &r, err), ROSE_LIB_E_INVAL);
        assert_non_null(strstr(err, "call rose_lib_params_default first"));
        assert_int_equal(rose_lib_submit_embed_text(rose, king, 4, &ep, &r, err), ROSE_LIB_E_INVAL);
        assert_non_null(strstr(err, "call rose_lib_embed_params_default first"));
        assert_int_equal(rose_lib_open(&other, "models/rose-tiny", &o, err), ROSE_LIB_E_INVAL);
        assert_non_null(strstr(err, "call rose_lib_options_default first"));
        assert_null(other);
    }
    rose_lib_close(rose);
}

static void old_pieces(void **state)
{
    rose_lib *rose = open_lib(NULL);
    rose_lib_params p;
    struct {
        rose_lib_piece piece;
        unsigned char after[8];
    } x;
    (void)state;
    rose_lib_params_default(&p);
    rose_lib_request *r = submit(rose, king, &p);
    memset(&x, 0xA5, sizeof x);
    x.piece.size = offsetof(rose_lib_piece, stop);
    assert_int_equal(rose_lib_next(r, &x.piece, -1), 1);
    assert_int_equal(x.piece.has_token, 1);
    assert_int_equal(x.piece.finish, ROSE_LIB_RUNNING);
    const unsigned char *bytes = (const unsigned char *)&x;
    for (size_t i = x.piece.size; i < sizeof x; i++)
        assert_int_equal(bytes[i], 0xA5);
    x.piece.size = sizeof x; /* of a later header: only what is known is written */
    assert_int_equal(rose_lib_next(r, &x.piece, -1), 1);
    for (size_t i = 0; i < sizeof x.after; i++)
        assert_int_equal(x.after[i], 0xA5);
    rose_lib_release(r);
    rose_lib_close(rose);
}

/* ---- what ends a text ---- */

/* The token ids of the greedy text. */
static uint32_t greedy_ids(rose_lib *rose, uint32_t *ids, uint32_t n)
{
    rose_lib_params p;
    rose_lib_piece piece;
    uint32_t at = 0;
    rose_lib_params_default(&p);
    rose_lib_piece_init(&piece);
    p.max_tokens = n;
    rose_lib_request *r = submit(rose, king, &p);
    while (rose_lib_next(r, &piece, -1) == 1)
        if (piece.has_token) ids[at++] = piece.id;
    rose_lib_release(r);
    return at;
}

static void stop_strings(void **state)
{
    rose_lib *rose = open_lib(NULL);
    rose_lib_params p;
    rose_lib_piece last;
    char *whole = greedy(rose, king, 40);
    (void)state;
    assert_true(strlen(whole) > 40);
    for (size_t at = 1; at + 6 < strlen(whole); at += 3) {
        char stop[7];
        memcpy(stop, whole + at, 6);
        stop[6] = '\0';
        const size_t found = (size_t)(strstr(whole, stop) - whole);
        const char *const list[] = {"never in this text", stop};
        for (int include = 0; include < 2; include++) {
            rose_lib_params_default(&p);
            p.max_tokens = 40;
            p.stop = list;
            p.n_stop = 2;
            p.include_stop = include;
            rose_lib_request *r = submit(rose, king, &p);
            char *got = read_to_end(r, &last);
            assert_int_equal(strlen(got), found + (include ? 6 : 0));
            assert_memory_equal(got, whole, strlen(got));
            assert_int_equal(last.finish, ROSE_LIB_STOP);
            assert_int_equal(last.stop, ROSE_LIB_STOP_STRING);
            assert_int_equal(last.stop_index, 1);
            assert_int_equal(rose_lib_next(r, &last, -1), 0); /* there is nothing after it */
            assert_int_equal(last.finish, ROSE_LIB_STOP);
            rose_lib_release(r);
            free(got);
        }
    }
    /* a string that ends before min_tokens does not count */
    char first[2] = {whole[0], '\0'};
    const char *const list[] = {first};
    rose_lib_params_default(&p);
    p.max_tokens = 20;
    p.stop = list;
    p.n_stop = 1;
    rose_lib_request *r = submit(rose, king, &p);
    char *got = read_to_end(r, &last);
    assert_string_equal(got, "");
    free(got);
    rose_lib_release(r);
    p.min_tokens = 20;
    got = generate(rose, king, &p);
    assert_memory_equal(got, whole, strlen(got));
    assert_true(strlen(got) > 20);
    free(got);
    free(whole);
    rose_lib_close(rose);
}

static void stop_ids(void **state)
{
    rose_lib *rose = open_lib(NULL);
    rose_lib_params p;
    rose_lib_piece last;
    uint32_t ids[24];
    (void)state;
    const uint32_t n = greedy_ids(rose, ids, 24);
    assert_int_equal(n, 24);
    const uint32_t stop[] = {4000, ids[9]};
    uint32_t first = 0;
    while (ids[first] != ids[9])
        first++;
    rose_lib_params_default(&p);
    p.max_tokens = 24;
    p.stop_ids = stop;
    p.n_stop_ids = 2;
    char *before = greedy(rose, king, first), *with = greedy(rose, king, first + 1);
    for (int include = 0; include < 2; include++) {
        p.include_stop = include;
        rose_lib_request *r = submit(rose, king, &p);
        char *got = read_to_end(r, &last);
        assert_string_equal(got, include ? with : before);
        assert_int_equal(last.stop, ROSE_LIB_STOP_ID);
        assert_int_equal(last.id, ids[9]);
        rose_lib_release(r);
        free(got);
    }
    /* the end of sequence, which a bias forces */
    const uint32_t *eos;
    const float most = 100;
    assert_int_equal(rose_lib_eos_ids(rose, &eos), 1);
    rose_lib_params_default(&p);
    p.bias_ids = eos;
    p.bias = &most;
    p.n_bias = 1;
    p.min_tokens = 5;
    rose_lib_request *r = submit(rose, king, &p);
    char *got = read_to_end(r, &last);
    assert_int_equal(last.finish, ROSE_LIB_STOP);
    assert_int_equal(last.stop, ROSE_LIB_STOP_EOS);
    assert_int_equal(last.id, eos[0]);
    char *five = greedy(rose, king, 5);
    assert_string_equal(got, five);
    rose_lib_release(r);
    free(got);
    free(five);
    free(before);
    free(with);
    rose_lib_close(rose);
}

/* ---- which ids are sampled ---- */

static void biases_and_bans(void **state)
{
    rose_lib *rose = open_lib(NULL);
    rose_lib_params p;
    rose_lib_piece piece;
    uint32_t ids[8], allowed[] = {700, 300, 1200};
    const uint32_t n_ids = greedy_ids(rose, ids, 8);
    (void)state;
    assert_int_equal(n_ids, 8);
    rose_lib_piece_init(&piece);

    rose_lib_params_default(&p);
    p.max_tokens = 30;
    p.temperature = 5;
    p.allowed_ids = allowed;
    p.n_allowed = 3;
    rose_lib_request *r = submit(rose, king, &p);
    uint32_t n = 0;
    for (; rose_lib_next(r, &piece, -1) == 1; n++)
        assert_true(piece.id == 700 || piece.id == 300 || piece.id == 1200);
    assert_int_equal(n, 30);
    rose_lib_release(r);

    /* the second greedy id may not follow the first */
    const uint32_t lens[] = {2};
    rose_lib_params_default(&p);
    p.max_tokens = 2;
    p.bad_ids = ids;
    p.bad_lens = lens;
    p.n_bad = 1;
    r = submit(rose, king, &p);
    assert_int_equal(rose_lib_next(r, &piece, -1), 1);
    assert_int_equal(piece.id, ids[0]);
    assert_int_equal(rose_lib_next(r, &piece, -1), 1);
    assert_int_not_equal(piece.id, ids[1]);
    rose_lib_release(r);

    /* without its first id another one comes */
    const float least = -100;
    rose_lib_params_default(&p);
    p.max_tokens = 1;
    p.bias_ids = ids;
    p.bias = &least;
    p.n_bias = 1;
    r = submit(rose, king, &p);
    assert_int_equal(rose_lib_next(r, &piece, -1), 1);
    assert_int_not_equal(piece.id, ids[0]);
    rose_lib_release(r);

    /* the allowed ids are all banned: no token is left */
    const uint32_t one[] = {1, 1, 1};
    rose_lib_params_default(&p);
    p.allowed_ids = allowed;
    p.n_allowed = 3;
    p.bad_ids = allowed;
    p.bad_lens = one;
    p.n_bad = 3;
    char err[ROSE_LIB_ERR];
    assert_int_equal(rose_lib_submit_text(rose, king, 4, &p, &r, err), ROSE_LIB_E_INVAL);
    assert_non_null(strstr(err, "leave no token"));
    /* the same after one token */
    const uint32_t pair[] = {700, 700}, two[] = {2};
    p.n_allowed = 1;
    p.bad_ids = pair;
    p.bad_lens = two;
    p.n_bad = 1;
    r = submit(rose, king, &p);
    assert_string_equal(rose_lib_request_error(r), "");
    assert_int_equal(rose_lib_next(r, &piece, -1), 1);
    while (piece.finish == ROSE_LIB_RUNNING)
        assert_int_equal(rose_lib_next(r, &piece, -1), 1);
    assert_int_equal(piece.finish, ROSE_LIB_FAILED);
    assert_non_null(strstr(rose_lib_request_error(r), "after 1 tokens"));
    rose_lib_release(r);
    rose_lib_close(rose);
}

static void log_probabilities(void **state)
{
    rose_lib *rose = open_lib(NULL);
    rose_lib_params p;
    rose_lib_piece piece;
    (void)state;
    rose_lib_piece_init(&piece);
    for (uint32_t top = 0; top <= 20; top += 5) {
        rose_lib_params_default(&p);
        p.max_tokens = 10;
        p.temperature = 2;
        p.seed = 7;
        p.logprobs = 1;
        p.top_logprobs = top;
        rose_lib_request *r = submit(rose, king, &p);
        while (rose_lib_next(r, &piece, -1) == 1) {
            const rose_lib_logprob *l = piece.logprobs;
            assert_int_equal(piece.n_logprobs, 1 + top);
            assert_int_equal(l[0].id, piece.id);
            assert_true(l[0].logprob < 0 && l[0].rank >= 1 && l[0].rank <= 4096);
            double sum = 0;
            for (uint32_t i = 1; i <= top; i++) {
                assert_int_equal(l[i].rank, i);
                assert_true(i == 1 || l[i].logprob <= l[i - 1].logprob);
                if (l[i].id == l[0].id) assert_memory_equal(&l[i].logprob, &l[0].logprob, 4);
                sum += exp((double)l[i].logprob);
            }
            assert_true(sum <= 1.0001);
        }
        rose_lib_release(r);
    }
    rose_lib_params_default(&p);
    rose_lib_request *r = submit(rose, king, &p);
    assert_int_equal(rose_lib_next(r, &piece, -1), 1);
    assert_null(piece.logprobs);
    assert_int_equal(piece.n_logprobs, 0);
    rose_lib_release(r);
    rose_lib_close(rose);
}

/* A penalty, a priority, a seed or a salt changes what it should. */
static void other_fields(void **state)
{
    rose_lib *rose = open_lib(NULL);
    rose_lib_params p, q;
    (void)state;
    char *plain = greedy(rose, "the the the the", 24);
    rose_lib_params_default(&p);
    p.max_tokens = 24;
    for (int i = 0; i < 3; i++) {
        q = p;
        if (i == 0) q.presence_penalty = 2;
        if (i == 1) q.frequency_penalty = 2;
        if (i == 2) q.repetition_penalty = 50;
        char *got = generate(rose, "the the the the", &q);
        assert_string_not_equal(got, plain);
        free(got);
    }
    q = p;
    q.priority = -3;
    q.cache_salt = "tenant";
    q.ignore_eos = 1;
    q.add_special = 1;
    q.skip_special = 1;
    char *got = generate(rose, "the the the the", &q);
    assert_string_equal(got, plain);
    free(got);
    p.temperature = 1;
    p.seed = 1;
    char *a = generate(rose, king, &p), *b = generate(rose, king, &p);
    p.seed = 2;
    char *c = generate(rose, king, &p);
    assert_string_equal(a, b);
    assert_string_not_equal(a, c);
    free(a);
    free(b);
    free(c);
    free(plain);

    /* equal beginnings are shared only with the same salt */
    static const char longer[] = "one two three four five six seven eight nine ten eleven twelve "
                                 "thirteen fourteen fifteen sixteen seventeen eighteen";
    rose_lib_piece last;
    rose_lib_params_default(&p);
    p.max_tokens = 2;
    uint32_t cached[3];
    for (int i = 0; i < 3; i++) {
        p.cache_salt = i == 2 ? "other" : NULL;
        rose_lib_request *r = submit(rose, longer, &p);
        free(read_to_end(r, &last));
        cached[i] = rose_lib_cached_tokens(r);
        rose_lib_release(r);
    }
    assert_int_equal(cached[0], 0);
    assert_true(cached[1] > 0);
    assert_int_equal(cached[2], 0);
    rose_lib_close(rose);
    rose = open_with((rose_lib_options){.no_prefix_cache = 1});
    p.cache_salt = NULL;
    for (int i = 0; i < 2; i++) {
        rose_lib_request *r = submit(rose, longer, &p);
        free(read_to_end(r, &last));
        assert_int_equal(rose_lib_cached_tokens(r), 0);
        rose_lib_release(r);
    }
    rose_lib_close(rose);
}

/* ---- what is refused ---- */

static const float nan_bias[] = {NAN}, big_bias[] = {101}, two_bias[] = {1, 1};
static const uint32_t id_700[] = {700, 700}, id_5000[] = {5000}, zero[] = {0};
static const char *const null_stop[] = {"a", NULL}, *const empty_stop[] = {""};

static void set_bad(int i, rose_lib_params *p, const char **part)
{
    static const char *const parts[] = {"temperature",
                                        "temperature",
                                        "top_p",
                                        "top_p",
                                        "min_p",
                                        "presence_penalty",
                                        "frequency_penalty",
                                        "repetition_penalty",
                                        "repetition_penalty",
                                        "logprobs",
                                        "bias[0] is nan",
                                        "bias[0] is 101",
                                        "names id 700 twice",
                                        "ids end at 4095",
                                        "bias_ids is NULL",
                                        "bias is NULL",
                                        "stop[1] is NULL",
                                        "stop[0] is empty",
                                        "stop is NULL",
                                        "stop holds 129",
                                        "stop_ids holds 129",
                                        "ids end at 4095",
                                        "allowed_ids holds 4097",
                                        "bad_lens[0] is 0",
                                        "bad_ids is NULL",
                                        "structure is 99",
                                        "structure is -1",
                                        "structure_text is NULL",
                                        "max_tokens"};
    *part = i < (int)(sizeof parts / sizeof *parts) ? parts[i] : NULL;
    p->logprobs = i == 9;
    p->top_logprobs = i == 9 ? 21 : 0;
    if (i == 0) p->temperature = -1;
    if (i == 1) p->temperature = NAN;
    if (i == 2) p->top_p = 0;
    if (i == 3) p->top_p = INFINITY;
    if (i == 4) p->min_p = NAN;
    if (i == 5) p->presence_penalty = -2.1f;
    if (i == 6) p->frequency_penalty = NAN;
    if (i == 7) p->repetition_penalty = -1;
    if (i == 8) p->repetition_penalty = NAN;
    if (i >= 10 && i <= 15) {
        p->bias_ids = i == 13 ? id_5000 : i == 14 ? NULL : id_700;
        p->bias = i == 10 ? nan_bias : i == 11 ? big_bias : i == 15 ? NULL : two_bias;
        p->n_bias = i == 12 ? 2 : 1;
    }
    if (i == 16 || i == 17) {
        p->stop = i == 16 ? null_stop : empty_stop;
        p->n_stop = i == 16 ? 2 : 1;
    }
    if (i == 18) p->n_stop = 1;
    if (i == 19) p->n_stop = 129;
    if (i == 20) p->n_stop_ids = 129;
    if (i == 21) {
        p->stop_ids = id_5000;
        p->n_stop_ids = 1;
    }
    if (i == 22) p->n_allowed = 4097;
    if (i == 23) {
        p->bad_ids = id_700;
        p->bad_lens = zero;
        p->n_bad = 1;
    }
    if (i == 24) {
        p->bad_lens = id_700;
        p->n_bad = 1;
    }
    if (i == 25) p->structure = (rose_lib_structure)99;
    if (i == 26) p->structure = (rose_lib_structure)-1;
    if (i == 27) p->structure = ROSE_LIB_REGEX;
    if (i == 28) p->max_tokens = 0;
}

static void bad_params(void **state)
{
    rose_lib *rose = open_lib(NULL);
    (void)state;
    for (int i = 0;; i++) {
        rose_lib_params p;
        rose_lib_request *r;
        const char *part;
        char err[ROSE_LIB_ERR] = "";
        rose_lib_params_default(&p);
        set_bad(i, &p, &part);
        if (part == NULL) break;
        assert_int_equal(rose_lib_submit_text(rose, king, sizeof king - 1, &p, &r, err),
                         ROSE_LIB_E_INVAL);
        assert_null(r);
        if (strstr(err, part) == NULL) fail_msg("%d: '%s' has no '%s'", i, err, part);
        assert_int_equal(rose_lib_submit_text(rose, king, sizeof king - 1, &p, &r, NULL),
                         ROSE_LIB_E_INVAL);
    }
    rose_lib_close(rose);
}

static void bad_prompts(void **state)
{
    static uint32_t many[600];
    rose_lib *rose = open_lib(NULL);
    rose_lib_request *r;
    char err[ROSE_LIB_ERR];
    uint32_t *ids;
    size_t n;
    (void)state;
    assert_int_equal(rose_lib_submit_ids(rose, many, 0, NULL, &r, err), ROSE_LIB_E_INVAL);
    assert_non_null(strstr(err, "empty"));
    assert_int_equal(rose_lib_submit_ids(rose, NULL, 3, NULL, &r, err), ROSE_LIB_E_INVAL);
    assert_int_equal(rose_lib_submit_ids(rose, many, 512, NULL, &r, err), ROSE_LIB_E_INVAL);
    assert_non_null(strstr(err, "512"));
    assert_int_equal(rose_lib_submit_ids(rose, many, SIZE_MAX, NULL, &r, err), ROSE_LIB_E_INVAL);
    assert_int_equal(rose_lib_submit_ids(rose, id_5000, 1, NULL, &r, err), ROSE_LIB_E_INVAL);
    assert_non_null(strstr(err, "ids end at 4095"));
    assert_int_equal(rose_lib_submit_text(rose, "", 0, NULL, &r, err), ROSE_LIB_E_INVAL);
    assert_null(r);
    assert_int_equal(rose_lib_tokenize(rose, "a\0\xFFz", 4, &ids, &n, err), 0);
    char *text;
    size_t len;
    assert_int_equal(rose_lib_detokenize(rose, ids, n, &text, &len, err), 0);
    assert_memory_equal(text, "a\0\xEF\xBF\xBDz", len); /* what is no UTF-8 becomes U+FFFD */
    rose_lib_free(text);
    rose_lib_free(ids);
    assert_int_equal(rose_lib_detokenize(rose, id_5000, 1, &text, &len, err), ROSE_LIB_E_INVAL);
    assert_null(text);
    rose_lib_release(NULL);
    rose_lib_free(NULL);
    rose_lib_close(rose);
    rose_lib_close(NULL);
}

static void bad_options(void **state)
{
    rose_lib *rose;
    char err[ROSE_LIB_ERR];
    (void)state;
    static const char *const more[][1] = {
        {"prefix_cache=perhaps"}, {"max-seqs=3"}, {"max-num-seqs=0"}, {"threads"}};
    static const struct {
        rose_lib_options o;
        const char *part;
    } bad[] = {
        {{.dtype = "float64"}, "dtype 'float64'"},
        {{.quantization = "int3"}, "int3"},
        {{.pooling = "cls"}, "pooling 'cls'"},
        {{.isa = "mmx"}, "mmx"},
        {{.device = "tpu"}, "tpu"},
        {{.load_format = "lazy"}, "lazy"},
        {{.chat_template = "{% if %}"}, ""},
        {{.task = "sort"}, "task 'sort'"},
        {{.device = "cuda:x"}, "device 'cuda:x': expected one of auto|cpu|cuda"},
        {{.device = "cuda:70000"}, "cuda:70000"},
        {{.device = "cuda:0"}, "cuda"}, /* no GPU here, or a model that it cannot hold in 1 page */
        {{.more = more[0], .n_more = 1}, "prefix_cache 'perhaps': expected true or false"},
        {{.more = more[1], .n_more = 1}, "'max-seqs'; did you mean 'max-num-seqs'?"},
        {{.more = more[2], .n_more = 1}, "max-num-seqs '0': expected a whole number from 1"},
        {{.more = more[3], .n_more = 1}, "'threads' is not of the form NAME=VALUE"},
        {{.n_more = 1}, "more is NULL"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rose_lib_options o = bad[i].o;
        o.size = sizeof o;
        if (o.device == NULL) o.device = "cpu";
        char path[512];
        snprintf(path, sizeof path, "%s/models/rose-tiny", repo_root());
        assert_true(rose_lib_open(&rose, path, &o, err) < 0);
        assert_null(rose);
        if (strstr(err, bad[i].part) == NULL) fail_msg("%s", err);
    }
    assert_int_equal(rose_lib_open(&rose, "/no/such/model", NULL, err), ROSE_LIB_E_MODEL);
    assert_null(rose);
}

/* Options by name act as the members do, and override them. */
static void more_options(void **state)
{
    static const char *const more[] = {"max_model_len=64", "num-kv-pages=20", "prefix-cache=false",
                                       "decode-first=off"};
    (void)state;
    rose_lib *rose = open_with((rose_lib_options){.max_model_len = 128, .more = more, .n_more = 4});
    assert_int_equal(rose_lib_max_model_len(rose), 64);
    for (int i = 0; i < 2; i++) {
        rose_lib_request *r = submit(rose, king, NULL);
        free(read_to_end(r, &(rose_lib_piece){0}));
        assert_int_equal(rose_lib_cached_tokens(r), 0); /* no prefix cache */
        rose_lib_release(r);
    }
    rose_lib_close(rose);
    size_t n = 0;
    bool pages = false;
    for (const char *name; (name = rose_lib_option_name(n)) != NULL; n++)
        pages = pages || strcmp(name, "num-kv-pages") == 0;
    assert_true(pages && n > 40);
}

/* ---- structured output ---- */

static char *structured(rose_lib *rose, rose_lib_structure kind, const char *text, bool ordered)
{
    rose_lib_params p;
    rose_lib_piece last;
    rose_lib_params_default(&p);
    p.max_tokens = 200;
    p.temperature = 1;
    p.structure = kind;
    p.structure_text = text;
    p.structure_ordered = ordered;
    rose_lib_request *r = submit(rose, king, &p);
    char *out = read_to_end(r, &last);
    if (last.finish != ROSE_LIB_STOP) fail_msg("%s", out);
    assert_int_equal(last.stop, ROSE_LIB_STOP_EOS);
    rose_lib_release(r);
    return out;
}

static void structures(void **state)
{
    static const char schema[] =
        "{\"type\": \"object\", \"properties\": {\"b\": {\"enum\": [1, 2]}, \"a\": {\"type\": "
        "\"boolean\"}}, \"required\": [\"b\", \"a\"]}";
    rose_lib *rose = open_lib(NULL);
    (void)state;
    char *got = structured(rose, ROSE_LIB_CHOICE, "[\"red\", \"green\"]", false);
    assert_true(strcmp(got, "red") == 0 || strcmp(got, "green") == 0);
    free(got);
    got = structured(rose, ROSE_LIB_REGEX, "[0-9]{3}-[a-c]{2}x", false);
    assert_true(strlen(got) == 7 && got[3] == '-' && got[strlen(got) - 1] == 'x');
    assert_int_equal(strspn(got, "0123456789"), 3);
    free(got);
    got = structured(rose, ROSE_LIB_GRAMMAR, "root ::= \"yes\" | \"no\" \"!\"", false);
    assert_true(strcmp(got, "yes") == 0 || strcmp(got, "no!") == 0);
    free(got);
    got = structured(rose, ROSE_LIB_JSON_SCHEMA, schema, true);
    const char *a = strstr(got, "\"a\""), *b = strstr(got, "\"b\"");
    assert_true(got[0] == '{' && got[strlen(got) - 1] == '}');
    assert_true(a != NULL && b != NULL && b < a); /* the order of the schema */
    free(got);
    got = structured(rose, ROSE_LIB_JSON_SCHEMA, schema, false);
    assert_true(strstr(got, "\"a\"") != NULL && strstr(got, "\"b\"") != NULL);
    free(got);

    /* an object may be long: it begins like one */
    rose_lib_params p;
    rose_lib_params_default(&p);
    p.max_tokens = 20;
    p.structure = ROSE_LIB_JSON_OBJECT;
    got = generate(rose, king, &p);
    assert_true(got[strspn(got, " \n\t\r")] == '{');
    free(got);
    static const struct {
        rose_lib_structure kind;
        const char *text;
    } bad[] = {{ROSE_LIB_JSON_SCHEMA, "{"},
               {ROSE_LIB_JSON_SCHEMA, "{\"type\": \"strange\"}"},
               {ROSE_LIB_REGEX, "(a"},
               {ROSE_LIB_REGEX, "(a)\\1"},
               {ROSE_LIB_CHOICE, "[]"},
               {ROSE_LIB_CHOICE, "[1]"},
               {ROSE_LIB_GRAMMAR, "start ::= \"a\""},
               {ROSE_LIB_TAG, "[]"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        rose_lib_request *r;
        char err[ROSE_LIB_ERR] = "";
        p.structure = bad[i].kind;
        p.structure_text = bad[i].text;
        assert_int_equal(rose_lib_submit_text(rose, king, 4, &p, &r, err), ROSE_LIB_E_INVAL);
        assert_true(strlen(err) > 10);
    }
    rose_lib_close(rose);
}

/* ---- embeddings ---- */

static void embed(rose_lib *rose, const rose_lib_embed_params *p, float *out, size_t want)
{
    rose_lib_request *r;
    rose_lib_piece piece;
    char err[ROSE_LIB_ERR];
    size_t n;
    rose_lib_piece_init(&piece);
    if (rose_lib_submit_embed_text(rose, king, sizeof king - 1, p, &r, err) != 0)
        fail_msg("%s", err);
    assert_int_equal(rose_lib_next(r, &piece, -1), 1);
    assert_int_equal(piece.finish, ROSE_LIB_LENGTH);
    assert_int_equal(piece.has_token, 0);
    assert_int_equal(piece.text_len, 0);
    assert_int_equal(rose_lib_next(r, &piece, -1), 0);
    const float *v = rose_lib_embedding(r, &n);
    assert_int_equal(n, want);
    memcpy(out, v, n * sizeof *out);
    rose_lib_release(r);
}

static double length_of(const float *v, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)v[i] * (double)v[i];
    return sqrt(sum);
}

static void embeddings(void **state)
{
    rose_lib *rose = open_lib(NULL), *mean = open_with((rose_lib_options){.pooling = "mean"});
    rose_lib_embed_params p;
    float a[256], b[256], c[256];
    char err[ROSE_LIB_ERR];
    rose_lib_request *r;
    size_t n;
    (void)state;
    assert_int_equal(rose_lib_embedding_size(rose), 256);
    embed(rose, NULL, a, 256);
    rose_lib_embed_params_default(&p);
    embed(rose, &p, b, 256);
    assert_memory_equal(a, b, sizeof a);
    assert_true(fabs(length_of(a, 256) - 1) < 1e-5);
    p.normalize = 0;
    embed(rose, &p, b, 256);
    const double length = length_of(b, 256);
    assert_true(length > 1.5);
    for (size_t i = 0; i < 256; i++)
        assert_true(fabs((double)b[i] / length - (double)a[i]) < 1e-6);
    embed(mean, &p, c, 256);
    assert_memory_not_equal(b, c, sizeof b);
    p.dimensions = 256;
    embed(rose, &p, c, 256);
    assert_memory_equal(b, c, sizeof b);

    p.dimensions = 100; /* the model's files do not say that it may be cut */
    assert_int_equal(rose_lib_submit_embed_text(rose, king, 4, &p, &r, err), ROSE_LIB_E_INVAL);
    assert_non_null(strstr(err, "do not say that they may be cut"));
    p.dimensions = 257;
    assert_int_equal(rose_lib_submit_embed_text(rose, king, 4, &p, &r, err), ROSE_LIB_E_INVAL);
    p.dimensions = 0;
    p.normalize = 2;
    assert_int_equal(rose_lib_submit_embed_text(rose, king, 4, &p, &r, err), ROSE_LIB_E_INVAL);
    assert_non_null(strstr(err, "normalize is 2"));
    assert_int_equal(rose_lib_submit_embed_ids(rose, id_5000, 1, NULL, &r, err), ROSE_LIB_E_INVAL);
    assert_int_equal(rose_lib_submit_embed_ids(rose, NULL, 0, NULL, &r, err), ROSE_LIB_E_INVAL);
    assert_null(r);

    rose_lib_params gp; /* a request that generates has none */
    rose_lib_params_default(&gp);
    r = submit(rose, king, &gp);
    assert_null(rose_lib_embedding(r, &n));
    assert_int_equal(n, 0);
    rose_lib_release(r);
    rose_lib_close(rose);
    rose_lib_close(mean);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(versions),        cmocka_unit_test(old_pieces),
        cmocka_unit_test(stop_strings),    cmocka_unit_test(stop_ids),
        cmocka_unit_test(biases_and_bans), cmocka_unit_test(log_probabilities),
        cmocka_unit_test(other_fields),    cmocka_unit_test(bad_params),
        cmocka_unit_test(bad_prompts),     cmocka_unit_test(bad_options),
        cmocka_unit_test(more_options),    cmocka_unit_test(structures),
        cmocka_unit_test(embeddings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
