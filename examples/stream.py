#!/usr/bin/env python3
"""The roseinfer library in Python, without a package: ctypes, and asyncio on the wake-up descriptor.

    ROSEINFER_LIBRARY=/usr/local/lib/libroseinfer.so python3 stream.py models/rose-tiny "Once upon a time" "The king"

All prompts run at once. Each continuation is printed on a line of its own when it is complete, in the order of the prompts.
"""
import asyncio
import ctypes as c
import os
import sys

lib = c.CDLL(os.environ.get("ROSEINFER_LIBRARY", "libroseinfer.so.1"))
RUNNING, FAILED = 0, 4


# The first members of the structures in roseinfer.h: the library gives the others their defaults.
class Params(c.Structure):
    _fields_ = [("size", c.c_size_t), ("max_tokens", c.c_uint32), ("temperature", c.c_float), ("top_p", c.c_float),
                ("min_p", c.c_float), ("top_k", c.c_uint32), ("seed", c.c_uint64), ("ignore_eos", c.c_int),
                ("repetition_penalty", c.c_float), ("presence_penalty", c.c_float), ("frequency_penalty", c.c_float),
                ("min_tokens", c.c_uint32), ("logprobs", c.c_int), ("top_logprobs", c.c_uint32), ("stop", c.POINTER(c.c_char_p)),
                ("n_stop", c.c_size_t), ("include_stop", c.c_int), ("stop_ids", c.POINTER(c.c_uint32)), ("n_stop_ids", c.c_size_t),
                ("bias_ids", c.POINTER(c.c_uint32)), ("bias", c.POINTER(c.c_float)), ("n_bias", c.c_size_t),
                ("allowed_ids", c.POINTER(c.c_uint32)), ("n_allowed", c.c_size_t), ("bad_ids", c.POINTER(c.c_uint32)),
                ("bad_lens", c.POINTER(c.c_uint32)), ("n_bad", c.c_size_t), ("structure", c.c_int),
                ("structure_text", c.c_char_p), ("structure_ordered", c.c_int), ("skip_special", c.c_int),
                ("add_special", c.c_int), ("priority", c.c_int32), ("cache_salt", c.c_char_p), ("wakeup", c.c_int)]


class Piece(c.Structure):
    _fields_ = [("size", c.c_size_t), ("has_token", c.c_int), ("id", c.c_uint32), ("text", c.c_void_p),
                ("text_len", c.c_size_t), ("finish", c.c_int), ("t_ns", c.c_uint64)]


lib.rose_lib_params_init.argtypes = [c.POINTER(Params), c.c_size_t, c.c_void_p]
lib.rose_lib_params_init.restype = None
lib.rose_lib_ready.argtypes = [c.c_void_p, c.POINTER(c.c_void_p), c.c_size_t]
lib.rose_lib_ready.restype = c.c_size_t
lib.rose_lib_wakeup_fd.argtypes = lib.rose_lib_close.argtypes = lib.rose_lib_release.argtypes = [c.c_void_p]
lib.rose_lib_request_error.argtypes = [c.c_void_p]
lib.rose_lib_request_error.restype = c.c_char_p
lib.rose_lib_next.argtypes = [c.c_void_p, c.POINTER(Piece), c.c_int]
lib.rose_lib_submit_text.argtypes = [c.c_void_p, c.c_char_p, c.c_size_t, c.POINTER(Params), c.POINTER(c.c_void_p), c.c_char_p]


class Engine:
    def __init__(self, model):
        self.rose, self.err, self.queues = c.c_void_p(), c.create_string_buffer(512), {}
        self.check(lib.rose_lib_open(c.byref(self.rose), model.encode(), None, self.err))
        asyncio.get_running_loop().add_reader(lib.rose_lib_wakeup_fd(self.rose), self.read)

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.err.value.decode())

    def close(self):
        asyncio.get_running_loop().remove_reader(lib.rose_lib_wakeup_fd(self.rose))
        lib.rose_lib_close(self.rose)

    def read(self):
        """The event loop calls this when a request has something new."""
        ready, piece = (c.c_void_p * 64)(), Piece(size=c.sizeof(Piece))
        for r in ready[:lib.rose_lib_ready(self.rose, ready, 64)]:
            while lib.rose_lib_next(r, c.byref(piece), 0) == 1:
                self.queues[r].put_nowait((c.string_at(piece.text, piece.text_len), piece.finish))

    async def stream(self, prompt, **values):
        """The pieces of the text that follows a prompt."""
        params, r, text = Params(), c.c_void_p(), prompt.encode()
        lib.rose_lib_params_init(c.byref(params), c.sizeof(params), None)
        for name, value in {**values, "wakeup": 1}.items():
            setattr(params, name, value)
        self.check(lib.rose_lib_submit_text(self.rose, text, len(text), c.byref(params), c.byref(r), self.err))
        queue = self.queues[r.value] = asyncio.Queue()
        finish = RUNNING
        try:
            while finish == RUNNING:
                piece, finish = await queue.get()
                yield piece.decode()
            if finish == FAILED:
                raise RuntimeError(lib.rose_lib_request_error(r).decode())
        finally:  # also when the reader goes away
            del self.queues[r.value]
            lib.rose_lib_release(r)


async def complete(engine, prompt):
    return "".join([piece async for piece in engine.stream(prompt, max_tokens=32)])


async def main(model, *prompts):
    engine = Engine(model)
    tasks = [asyncio.ensure_future(complete(engine, p)) for p in prompts]
    try:
        for text in await asyncio.gather(*tasks):
            print(text)
    finally:  # after an error others still run; each request must be released before its engine is closed
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        engine.close()


if len(sys.argv) < 3:
    sys.exit("usage: stream.py MODEL PROMPT...")
asyncio.run(main(*sys.argv[1:]))
