"""An open engine and its requests, safe in any number of threads: what LLM and AsyncLLM share.

The C library forbids to use an engine during its close, and to use a request in two threads. Here a counter and locks
keep these rules: close waits for calls that run, and ends every request before the engine."""
from __future__ import annotations

import ctypes
import json
import os
import threading
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_uint32, c_void_p
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from . import _native as n
from .params import Logprob, Prompt, SamplingParams, StreamPiece, _as_text, _ids, _unsigned, native_params

# A call that waits comes back so often, to see Ctrl-C and close.
WAIT_MS = 100
FINISH = {n.RUNNING: None, n.STOP: "stop", n.LENGTH: "length", n.CANCELLED: "abort"}


def _piece(c: n.PieceStruct, stop: List[str]) -> StreamPiece:
    text = ctypes.string_at(c.text, c.text_len).decode("utf-8", "replace") if c.text_len else ""
    reason = None
    if c.finish == n.STOP and c.stop == n.STOP_ID:
        reason = c.id
    elif c.finish == n.STOP and c.stop == n.STOP_STRING:
        reason = stop[c.stop_index]
    logprobs = None
    if c.has_token and c.n_logprobs:
        logprobs = {p.id: Logprob(p.logprob, p.rank) for p in c.logprobs[:c.n_logprobs]}
    return StreamPiece(text, c.id if c.has_token else None, FINISH[c.finish], reason, logprobs)


class Request:
    """A running request. Any thread may call any method; a second `next` waits for the first."""

    def __init__(self, engine: Engine, handle: int, stop: List[str]) -> None:
        self.key = handle
        self._handle: Optional[int] = handle
        self._engine, self._stop = engine, stop
        # Locks of this file are reentrant: the garbage collector may close a dropped stream at any time in any thread.
        self._in_use = threading.RLock()  # held while a thread reads or releases the request
        self._alive = threading.RLock()  # held while a thread cancels it or takes the handle away
        self._c = n.PieceStruct(size=ctypes.sizeof(n.PieceStruct))

    @property
    def handle(self) -> int:
        self._engine.check_process()
        if self._handle is None:
            raise n.ClosedError("the request was closed; LLM.close ends all requests")
        return self._handle

    def next(self, timeout_ms: int) -> Optional[StreamPiece]:
        """None: nothing came in time, or the request has ended and its last piece was given."""
        with self._in_use:
            got = n.library().next(self.handle, byref(self._c), timeout_ms)
            n.check(got, ctypes.create_string_buffer(b"rose_lib_next refused its arguments"))
            if got == 0:
                return None
            if self._c.finish == n.FAILED:
                raise n.RequestFailedError(n.library().request_error(self.handle).decode("utf-8", "replace"))
            return _piece(self._c, self._stop)

    def pieces(self) -> Iterator[StreamPiece]:
        """All pieces up to the last; waits for each."""
        while True:
            piece = self.next(WAIT_MS)
            if piece is not None:
                yield piece
                if piece.finish_reason is not None:
                    return

    def tokens(self) -> Dict[str, int]:
        with self._in_use:
            return {"n_prompt_tokens": n.library().prompt_tokens(self.handle),
                    "num_cached_tokens": n.library().cached_tokens(self.handle)}

    def embedding(self) -> List[float]:
        """After the last piece."""
        with self._in_use:
            size = c_size_t()
            values = n.library().embedding(self.handle, byref(size))
            if not values:
                raise n.RequestFailedError("the embedding was aborted")
            return list(values[:size.value])

    def cancel(self) -> None:
        """The request ends soon, with the finish reason "abort". Does not wait."""
        with self._alive:
            if self._handle is not None:
                n.library().cancel(self._handle)

    def close(self) -> None:
        """Frees the request; a running one is cancelled. Any number of times."""
        if not self._engine.is_ours():
            return
        self.cancel()
        with self._in_use:
            with self._alive:
                handle, self._handle = self._handle, None
            if handle is not None:
                n.library().release(handle)
                self._engine._forget(self)


class Engine:
    def __init__(self, model: str, options: Dict[str, Any]) -> None:
        self._handle = c_void_p()
        self._calls = 0  # that use the handle now
        self._requests: Dict[int, Request] = {}
        self._changed = threading.Condition(threading.RLock())  # guards the two above and _closed
        self._closed = False
        self._pid = os.getpid()
        err = ctypes.create_string_buffer(n.ERR_BYTES)
        c = n.Options(size=ctypes.sizeof(n.Options))
        for name, value in options.items():
            if value is not None:
                with n.checked(name):  # ctypes would take an integer for a pointer to a text
                    is_text = dict(n.Options._fields_)[name] is ctypes.c_char_p
                    setattr(c, name, _as_text(value, name) if is_text else value)
        with n.checked("model"):
            path = os.fsencode(model)
            if b"\0" in path:
                raise ValueError("the path has a NUL character")
        n.check(n.library().open(byref(self._handle), path, byref(c), err), err)

    @contextmanager
    def use(self) -> Iterator[c_void_p]:
        """The handle, which close leaves alone until the end of the block."""
        self.check_process()
        with self._changed:
            if self._closed:
                raise n.ClosedError("the engine is closed")
            self._calls += 1
        try:
            yield self._handle
        finally:
            with self._changed:
                self._calls -= 1
                self._changed.notify_all()

    def is_ours(self) -> bool:
        """False: this process was forked after the engine was opened."""
        return os.getpid() == self._pid

    def check_process(self) -> None:
        if not self.is_ours():
            raise n.ClosedError("this process was forked after the engine was opened; open an engine of its own here")

    def refuse(self) -> None:
        """Calls that begin from now on get ClosedError; does not wait."""
        if self.is_ours():
            with self._changed:
                self._closed = True

    def close(self) -> None:
        """Ends all requests and frees the engine; their waiting threads get ClosedError or the reason "abort"."""
        if not self.is_ours():
            return
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._calls == 0)
            requests = list(self._requests.values())
            handle, self._handle = self._handle, c_void_p()
        for r in requests:
            r.cancel()
        for r in requests:
            r.close()
        if handle:
            n.library().close(handle)

    def _forget(self, request: Request) -> None:
        with self._changed:
            # The library frees a request before this is called, and a new one may be at its address by now.
            if self._requests.get(request.key) is request:
                del self._requests[request.key]

    def _submit(self, function: Callable[..., int], params: Any, stop: List[str], *args: Any) -> Request:
        err, out = ctypes.create_string_buffer(n.ERR_BYTES), c_void_p()
        with self.use() as handle:
            n.check(function(handle, *args, byref(params), byref(out), err), err)
            request = Request(self, int(out.value or 0), stop)
            with self._changed:
                self._requests[request.key] = request
        return request

    def submit(self, prompt: Prompt, p: Optional[SamplingParams], seed: int, add_special: bool, wakeup: bool) -> Request:
        lib, (text, ids) = n.library(), split_prompt(prompt)
        with self.use() as handle:
            params = native_params(handle, p, seed, add_special, wakeup)
        if ids is not None:
            return self._submit(lib.submit_ids, params, stops(p), _ids(ids, "prompt"), len(ids))
        data = _utf8(text, "prompt")
        return self._submit(lib.submit_text, params, stops(p), data, len(data))

    def submit_chat(self, messages: Sequence[Dict[str, Any]], options: Dict[str, Any], p: Optional[SamplingParams],
                    seed: int, wakeup: bool) -> Request:
        with self.use() as handle:
            params = native_params(handle, p, seed, False, wakeup)
        data, more = chat_json(messages, options)
        return self._submit(n.library().submit_chat, params, stops(p), data, len(data), more)

    def submit_embed(self, prompt: Prompt, normalize: Optional[bool], dimensions: int, wakeup: bool) -> Request:
        lib, (text, ids) = n.library(), split_prompt(prompt)
        params = n.EmbedParams()
        lib.embed_params_init(byref(params), ctypes.sizeof(params))
        params.dimensions, params.wakeup = _unsigned(dimensions, 32, "dimensions"), wakeup
        if normalize is not None:
            params.normalize = bool(normalize)
        if ids is not None:
            return self._submit(lib.submit_embed_ids, params, [], _ids(ids, "prompt"), len(ids))
        data = _utf8(text, "prompt")
        return self._submit(lib.submit_embed_text, params, [], data, len(data))

    def fact(self, name: str) -> int:
        with self.use() as handle:
            return int(getattr(n.library(), name)(handle))

    def eos_ids(self) -> List[int]:
        with self.use() as handle:
            ids = ctypes.POINTER(c_uint32)()
            size = n.library().eos_ids(handle, byref(ids))
            return list(ids[:size])

    def ready(self, room: Any) -> List[int]:
        """The keys of requests with params.wakeup that have something new; room: an array of c_void_p."""
        with self.use() as handle:
            return list(room[:n.library().ready(handle, room, len(room))])

    def _to_ids(self, function: Callable[..., int], *args: Any) -> List[int]:
        err, size, ids = ctypes.create_string_buffer(n.ERR_BYTES), c_size_t(), ctypes.POINTER(c_uint32)()
        with self.use() as handle:
            n.check(function(handle, *args, byref(ids), byref(size), err), err)
        try:
            return list(ids[:size.value])
        finally:
            n.library().free(ids)

    def tokenize(self, text: str) -> List[int]:
        data = _utf8(text, "text")
        return self._to_ids(n.library().tokenize, data, len(data))

    def tokenize_chat(self, messages: Sequence[Dict[str, Any]], options: Dict[str, Any]) -> List[int]:
        data, more = chat_json(messages, options)
        return self._to_ids(n.library().tokenize_chat, data, len(data), more)

    def detokenize(self, ids: Sequence[int]) -> str:
        err, size, text = ctypes.create_string_buffer(n.ERR_BYTES), c_size_t(), c_void_p()
        with self.use() as handle:
            n.check(n.library().detokenize(handle, _ids(ids, "ids"), len(ids), byref(text), byref(size), err), err)
        try:
            return ctypes.string_at(text, size.value).decode("utf-8", "replace")
        finally:
            n.library().free(text)


def chat_json(messages: Sequence[Dict[str, Any]], options: Dict[str, Any]) -> Any:
    given = {k: v for k, v in options.items() if v is not None}
    with n.checked("messages"):
        if isinstance(messages, (str, dict)):
            raise TypeError(f"a list of messages is needed, not {type(messages).__name__}")
        data = json.dumps(list(messages)).encode()
    with n.checked("tools, documents or chat_template_kwargs"):
        return data, json.dumps(given).encode() if given else None


def _utf8(text: str, name: str) -> bytes:
    with n.checked(name):
        return text.encode()


def stops(p: Optional[SamplingParams]) -> List[str]:
    stop = p.stop if p is not None else None
    return [stop] if isinstance(stop, str) else list(stop or ())


def split_prompt(prompt: Prompt) -> Any:
    """(text, None) or (None, ids)."""
    if isinstance(prompt, dict):
        if "prompt_token_ids" in prompt:
            with n.checked("prompt_token_ids"):
                return None, list(prompt["prompt_token_ids"])
        prompt = prompt.get("prompt", ())
    if isinstance(prompt, str):
        return prompt, None
    if isinstance(prompt, (list, tuple)) and prompt and all(isinstance(i, int) for i in prompt):
        return None, list(prompt)
    what = type(prompt).__name__
    if isinstance(prompt, (list, tuple)):
        what = f"a list with {prompt}"[:80] if prompt else "empty"
    raise n.InvalidArgumentError("a prompt is a text, a list of token ids, or a dict with \"prompt\" or "
                                 f"\"prompt_token_ids\", not {what}")
