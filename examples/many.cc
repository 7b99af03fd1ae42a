// examples/many.cc - the roseinfer library in C++: several prompts at once, read from one poll
// loop.
//
//     c++ -std=c++17 many.cc -o many $(pkg-config --cflags --libs roseinfer)
//     ./many models/rose-tiny "Once upon a time" "The king"
//
// Writes each continuation on a line of its own, in the order of the prompts.
#include <roseinfer.h>

#include <poll.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace
{

struct Close {
    void operator()(rose_lib *rose) const
    {
        rose_lib_close(rose);
    }
    void operator()(rose_lib_request *r) const
    {
        rose_lib_release(r);
    }
};
using Engine = std::unique_ptr<rose_lib, Close>;
using Request = std::unique_ptr<rose_lib_request, Close>;

struct Reply {
    std::string text;
    Request request;
};

Engine open(const char *model)
{
    char err[ROSE_LIB_ERR];
    rose_lib *rose;
    if (rose_lib_open(&rose, model, nullptr, err) != 0) throw std::runtime_error(err);
    return Engine(rose);
}

void submit(rose_lib *rose, const std::string &prompt, Reply *reply)
{
    char err[ROSE_LIB_ERR];
    rose_lib_params params;
    rose_lib_request *r;
    rose_lib_params_default(&params);
    params.max_tokens = 32;
    params.wakeup = 1; // the descriptor below tells of this request
    params.user = reply;
    if (rose_lib_submit_text(rose, prompt.data(), prompt.size(), &params, &r, err) != 0)
        throw std::runtime_error(err);
    reply->request.reset(r);
}

// Reads what a request has; true: it has ended.
bool read(rose_lib_request *r)
{
    auto *reply = static_cast<Reply *>(rose_lib_user(r));
    rose_lib_piece piece;
    rose_lib_piece_init(&piece);
    while (rose_lib_next(r, &piece, 0) == 1)
        reply->text.append(piece.text, piece.text_len);
    if (piece.finish == ROSE_LIB_FAILED) throw std::runtime_error(rose_lib_request_error(r));
    return piece.finish != ROSE_LIB_RUNNING;
}

} // namespace

int main(int argc, char **argv)
try {
    if (argc < 3) {
        std::fprintf(stderr, "usage: %s MODEL PROMPT...\n", argv[0]);
        return 2;
    }
    const Engine rose = open(argv[1]);
    std::vector<Reply> replies(static_cast<std::size_t>(argc - 2));
    for (std::size_t i = 0; i < replies.size(); i++)
        submit(rose.get(), argv[i + 2], &replies[i]);
    for (std::size_t left = replies.size(); left > 0;) {
        pollfd fd{rose_lib_wakeup_fd(rose.get()), POLLIN, 0};
        if (poll(&fd, 1, -1) < 0) continue; // a signal
        rose_lib_request *ready[16];
        const std::size_t n = rose_lib_ready(rose.get(), ready, 16);
        for (std::size_t i = 0; i < n; i++)
            if (read(ready[i])) left--;
    }
    for (const Reply &reply : replies)
        std::printf("%s\n", reply.text.c_str());
    return 0;
} catch (const std::exception &e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
}
