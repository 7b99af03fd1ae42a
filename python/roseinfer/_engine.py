"""An open engine and its requests, safe in any number of threads: what LLM and AsyncLLM share.

The C library forbids to use an engine during its close, and to use a request in two threads. Here a counter and locks
keep these rules: close waits for calls that run, and ends every request before the engine."""
from __future__ import annotations

import ctypes
import itertools
import json
import os
import threading
import time
from contextlib import contextmanager
from ctypes import byref, c_size_t, c_uint32, c_void_p
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from . import _native as n
from .options import Settings
from .params import (Logprob, Prompt, RequestMetrics, SamplingParams, StreamPiece, _as_text, _ids, _unsigned, bad_words,
                     choice_seed, native_params, random_seed, recommended)

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

    def __init__(self, engine: Engine, handle: int, stop: List[str], arrival_ns: int) -> None:
        self.key = handle
        self._arrival_ns = arrival_ns
        self._first_ns = self._last_ns = self._end_ns = 0
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
            if self._c.has_token:
                self._first_ns, self._last_ns = self._first_ns or self._c.t_ns, self._c.t_ns
            if self._c.finish != n.RUNNING:
                self._end_ns = self._c.t_ns
            return _piece(self._c, self._stop)

    def pieces(self) -> Iterator[StreamPiece]:
        """All pieces up to the last; waits for each."""
        while True:
            piece = self.next(WAIT_MS)
            if piece is not None:
                yield piece
                if piece.finish_reason is not None:
                    return

    def facts(self) -> Dict[str, Any]:
        """Members of its output, after the last piece."""
        with self._in_use:
            lib, count = n.library(), n.library().prompt_tokens(self.handle)
            return {"n_prompt_tokens": count, "num_cached_tokens": lib.cached_tokens(self.handle),
                    "prompt_token_ids": list(lib.prompt_ids(self.handle)[:count]),
                    "metrics": self._metrics(lib.admitted_ns(self.handle))}

    def _metrics(self, admitted_ns: int) -> RequestMetrics:
        start = time.time() - time.monotonic_ns() / 1e9  # of the monotonic clock

        def wall(t_ns: int) -> Optional[float]:
            return start + t_ns / 1e9 if t_ns else None

        return RequestMetrics(start + self._arrival_ns / 1e9, wall(admitted_ns), wall(self._first_ns), wall(self._last_ns),
                              wall(self._end_ns), (admitted_ns - self._arrival_ns) / 1e9 if admitted_ns else None)

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
    def __init__(self, model: str, settings: Settings) -> None:
        self._handle = c_void_p()
        self._calls = 0  # that use the handle now
        self._requests: Dict[int, Request] = {}
        self._changed = threading.Condition(threading.RLock())  # guards the two above and _closed
        self._closed = False
        self._pid = os.getpid()
        self._seed, self._numbers = settings.seed, itertools.count(1)
        self._bad: Dict[Any, List[List[int]]] = {}  # the last bad_words and their ids
        err = ctypes.create_string_buffer(n.ERR_BYTES)
        more = [_as_text(text, text.split("=", 1)[0]) for text in settings.more]
        c = n.Options(size=ctypes.sizeof(n.Options), more=(ctypes.c_char_p * len(more))(*more), n_more=len(more))
        for name, value in settings.texts.items():
            setattr(c, name, _as_text(value, name))
        with n.checked("model"):
            path = os.fsencode(model)
            if b"\0" in path:
                raise ValueError("the path has a NUL character")
        n.check(n.library().open(byref(self._handle), path, byref(c), err), err)
        self.default_params = self._recommended()

    def __reduce__(self) -> Any:
        raise TypeError("an open engine cannot be pickled, because its model is in the memory of this process: open the LLM "
                        "inside the actor or the worker process that uses it, and send it the model's path")

    def _recommended(self) -> SamplingParams:
        err, p = ctypes.create_string_buffer(n.ERR_BYTES), SamplingParams()
        with self.use() as handle:
            before, c = native_params(p, 0, False, False, []), native_params(p, 0, False, False, [])
            n.check(n.library().params_recommend(handle, byref(c), err), err)
        return recommended(p, before, c)

    def fresh_seed(self) -> int:
        """The seed of a request without one: as `serve --seed` gives it to the same request."""
        return random_seed() if self._seed is None else choice_seed(self._seed, next(self._numbers))

    def native(self, p: Optional[SamplingParams], seed: int, add_special: bool, wakeup: bool) -> n.Params:
        p = p if p is not None else self.default_params
        words = bad_words(p)
        banned = self._bad.get(words, []) if words else []  # another thread may put its own words there at any time
        if words and not banned:
            banned = [ids for word in words for ids in self._word_ids(word)]
            self._bad = {words: banned}
        return native_params(p, seed, add_special, wakeup, banned)

    def _word_ids(self, word: str) -> List[List[int]]:
        """vLLM's rule: the word itself, and after a space if that has as many tokens and begins with another one."""
        alone, spaced = self.tokenize(word), self.tokenize(" " + word.lstrip(" "))
        if not alone:
            return [spaced] if spaced else []
        return [alone, spaced] if len(spaced) == len(alone) and spaced[0] != alone[0] else [alone]

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
        err, out, now = ctypes.create_string_buffer(n.ERR_BYTES), c_void_p(), time.monotonic_ns()
        with self.use() as handle:
            n.check(function(handle, *args, byref(params), byref(out), err), err)
            request = Request(self, int(out.value or 0), stop, now)
            with self._changed:
                self._requests[request.key] = request
        return request

    def submit(self, prompt: Prompt, p: Optional[SamplingParams], seed: int, add_special: bool, wakeup: bool) -> Request:
        lib, (text, ids) = n.library(), split_prompt(prompt)
        params = self.native(p, seed, add_special, wakeup)
        if ids is not None:
            return self._submit(lib.submit_ids, params, stops(p), _ids(ids, "prompt"), len(ids))
        data = _utf8(text, "prompt")
        return self._submit(lib.submit_text, params, stops(p), data, len(data))

    def submit_chat(self, messages: Sequence[Dict[str, Any]], options: Dict[str, Any], p: Optional[SamplingParams],
                    seed: int, wakeup: bool) -> Request:
        params = self.native(p, seed, False, wakeup)
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

    def tokenize(self, text: str, add_special: bool = False) -> List[int]:
        data = _utf8(text, "text")
        return self._to_ids(n.library().tokenize_special if add_special else n.library().tokenize, data, len(data))

    def tokenize_chat(self, messages: Sequence[Dict[str, Any]], options: Dict[str, Any]) -> List[int]:
        data, more = chat_json(messages, options)
        return self._to_ids(n.library().tokenize_chat, data, len(data), more)

    def tokenize_pair(self, instruction: Optional[str], query: str, document: str) -> Any:
        """The prompt of a reranker, and the ids of its answers yes and no."""
        left, right, answers = _utf8(query, "data_1"), _utf8(document, "data_2"), (c_uint32 * 2)()
        told = None if instruction is None else _as_text(instruction, "instruction")
        ids = self._to_ids(n.library().tokenize_pair, told, left, len(left), right, len(right), answers)
        return ids, list(answers)

    def _to_text(self, function: Callable[..., int], *args: Any) -> str:
        err, size, text = ctypes.create_string_buffer(n.ERR_BYTES), c_size_t(), c_void_p()
        with self.use() as handle:
            n.check(function(handle, *args, byref(text), byref(size), err), err)
        try:
            return ctypes.string_at(text, size.value).decode("utf-8", "replace")
        finally:
            n.library().free(text)

    def detokenize(self, ids: Sequence[int], skip_special: bool = False) -> str:
        function = n.library().detokenize_plain if skip_special else n.library().detokenize
        return self._to_text(function, _ids(ids, "ids"), len(ids))

    def chat_text(self, messages: Sequence[Dict[str, Any]], options: Dict[str, Any]) -> str:
        data, more = chat_json(messages, options)
        return self._to_text(n.library().chat_text, data, len(data), more)

    def chat_template(self) -> Optional[str]:
        size = c_size_t()
        with self.use() as handle:
            text = n.library().chat_template(handle, byref(size))
            return ctypes.string_at(text, size.value).decode("utf-8", "replace") if text else None

    def special_token(self, name: str) -> Tuple[Optional[str], Optional[int]]:
        """Text and id, or None and None."""
        token_id = c_uint32()
        with self.use() as handle:
            text = n.library().special_token(handle, name.encode(), byref(token_id))
            return (None, None) if text is None else (text.decode("utf-8", "replace"), token_id.value)


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
