"""AsyncLLM: an engine in asyncio. One descriptor of the library tells the event loop of all requests; no thread waits."""
from __future__ import annotations

import asyncio
import itertools
from collections import deque
from ctypes import c_void_p
from functools import partial
from typing import Any, AsyncIterator, Callable, Deque, Dict, List, Optional, Sequence

from . import _native as n
from ._engine import Request, split_prompt
from .llm import (Model, ModelPath, answer_params, answer_score, chat_options, check_scores, cosine, one_seed, open_engine,
                  pairs_of, pooling_options, seeds_for)
from .params import (CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput, Message, PoolingParams, Prompt, RequestOutput,
                     SamplingParams, ScoringOutput, ScoringRequestOutput, StreamPiece)
from .tokenizer import Tokenizer

# Requests that one look at the library takes; with more of them the descriptor stays readable.
AT_ONCE = 256


class _Stream:
    """What the event loop has read of a request and its task has not taken yet."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.pieces: Deque[StreamPiece] = deque()
        self.error: Optional[BaseException] = None
        self.news = asyncio.Event()

    def read(self) -> None:
        """Never waits."""
        try:
            while True:
                piece = self.request.next(0)
                if piece is None:
                    break
                self.pieces.append(piece)
        except n.RoseError as e:
            self.error = e
        self.news.set()


class AsyncLLM(Model):
    """An open model for asyncio: `async for piece in llm.stream("Once upon a time")`; the options are those of LLM.

    An AsyncLLM belongs to the event loop in which it is first used, and to its thread. A text is tokenised on this thread,
    as the prompt is submitted. `await llm.close()`, or `async with AsyncLLM(...) as llm`, ends all requests and
    frees the engine: their iterators raise ClosedError. Opening a model blocks; call AsyncLLM(...) before the loop
    serves others, or by `await asyncio.to_thread(AsyncLLM, model)`."""

    def __init__(self, model: ModelPath, dtype: Optional[str] = None, **options: Any) -> None:
        self._engine, self._path = open_engine(model, dict(options, dtype=dtype))
        self._fd = self._engine.fact("wakeup_fd")
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._streams: Dict[int, _Stream] = {}
        self._room = (c_void_p * AT_ONCE)()
        self._numbers = itertools.count()

    async def get_tokenizer(self) -> Tokenizer:
        return Tokenizer(self._engine, self._path, self)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends all requests and frees the engine. Any number of times."""
        self._engine.refuse()  # else a task could submit a request while another thread closes the engine
        self._stop_reading()
        for stream in self._streams.values():
            stream.error = n.ClosedError("the engine was closed before the request had ended")
            stream.news.set()
        self._streams.clear()
        await asyncio.get_running_loop().run_in_executor(None, self._engine.close)

    def __del__(self) -> None:
        if not hasattr(self, "_engine"):
            return
        self._stop_reading()
        self._engine.close()

    def _stop_reading(self) -> None:
        # A forked process shares the loop's epoll with its parent, whose reader must stay.
        if self._loop is not None and not self._loop.is_closed() and self._engine.is_ours():
            self._loop.remove_reader(self._fd)
        self._loop = None

    def _on_readable(self) -> None:
        for key in self._engine.ready(self._room):
            stream = self._streams.get(key)
            if stream is not None:
                stream.read()

    def _start(self, submit: Callable[[], Request]) -> _Stream:
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            raise RuntimeError("this AsyncLLM belongs to another event loop; open one in each loop")
        stream = _Stream(submit())
        if self._loop is None:
            loop.add_reader(self._fd, self._on_readable)
            self._loop = loop
        self._streams[stream.request.key] = stream
        return stream

    async def _pieces(self, stream: _Stream) -> AsyncIterator[StreamPiece]:
        while True:
            while stream.pieces:
                piece = stream.pieces.popleft()
                yield piece
                if piece.finish_reason is not None:
                    return
            if stream.error is not None:
                raise stream.error
            stream.news.clear()
            await stream.news.wait()

    def _end(self, stream: _Stream) -> None:
        self._streams.pop(stream.request.key, None)
        stream.request.close()

    async def _run(self, submit: Callable[[], Request]) -> AsyncIterator[StreamPiece]:
        stream = self._start(submit)
        try:
            async for piece in self._pieces(stream):
                yield piece
        finally:
            self._end(stream)

    def stream(self, prompt: Prompt, sampling_params: Optional[SamplingParams] = None, *,
               add_special_tokens: bool = True) -> AsyncIterator[StreamPiece]:
        """Continues a prompt and gives each token when it is ready. The request is submitted when the first piece is asked
        for, and cancelled when the generator is closed, dropped, or its task is cancelled."""
        return self._run(lambda: self._engine.submit(prompt, sampling_params, one_seed(sampling_params, self._engine),
                                                     add_special_tokens, True))

    def stream_chat(self, messages: Sequence[Message], sampling_params: Optional[SamplingParams] = None, *,
                    chat_template: Optional[str] = None, tools: Optional[List[Dict[str, Any]]] = None, documents: Optional[List[Dict[str, Any]]] = None,
                    chat_template_kwargs: Optional[Dict[str, Any]] = None, add_generation_prompt: bool = True,
                    continue_final_message: bool = False) -> AsyncIterator[StreamPiece]:
        """The reply to one conversation, token by token; see LLM.chat."""
        options = chat_options(tools, documents, chat_template_kwargs, add_generation_prompt, continue_final_message,
                               chat_template)
        return self._run(lambda: self._engine.submit_chat(messages, options, sampling_params,
                                                          one_seed(sampling_params, self._engine), True))

    async def generate(self, prompt: Prompt, sampling_params: Optional[SamplingParams] = None, *,
                       add_special_tokens: bool = True) -> RequestOutput:
        """The whole result of one prompt; `asyncio.gather` runs many at once."""
        def submit(seed: int) -> Request:
            return self._engine.submit(prompt, sampling_params, seed, add_special_tokens, True)

        return await self._collect(split_prompt(prompt)[0], seeds_for(sampling_params, self._engine.fresh_seed), submit)

    async def chat(self, messages: Sequence[Message], sampling_params: Optional[SamplingParams] = None, *,
                   chat_template: Optional[str] = None, tools: Optional[List[Dict[str, Any]]] = None, documents: Optional[List[Dict[str, Any]]] = None,
                   chat_template_kwargs: Optional[Dict[str, Any]] = None, add_generation_prompt: bool = True,
                   continue_final_message: bool = False) -> RequestOutput:
        """The whole reply to one conversation; see LLM.chat."""
        options = chat_options(tools, documents, chat_template_kwargs, add_generation_prompt, continue_final_message,
                               chat_template)

        def submit(seed: int) -> Request:
            return self._engine.submit_chat(messages, options, sampling_params, seed, True)

        return await self._collect(None, seeds_for(sampling_params, self._engine.fresh_seed), submit)

    async def embed(self, prompt: Prompt, *, pooling_params: Optional[PoolingParams] = None,
                    normalize: Optional[bool] = None, dimensions: int = 0) -> EmbeddingRequestOutput:
        """The vector of one text; see LLM.embed."""
        how = pooling_options(pooling_params, normalize, dimensions)
        stream = self._start(lambda: self._engine.submit_embed(prompt, *how, True))
        try:
            async for _ in self._pieces(stream):
                pass
            result = EmbeddingRequestOutput(str(next(self._numbers)), EmbeddingOutput(stream.request.embedding()))
            for name, value in stream.request.facts().items():
                setattr(result, name, value)
            return result
        finally:
            self._end(stream)

    async def score(self, data_1: str, data_2: str, *, instruction: Optional[str] = None) -> ScoringRequestOutput:
        """The similarity of two texts; see LLM.score."""
        pair = pairs_of(data_1, data_2)[0]
        result = ScoringRequestOutput(str(next(self._numbers)), ScoringOutput(0.0))
        if check_scores(self._engine, instruction):
            ids, answers = self._engine.tokenize_pair(instruction, *pair)
            both = await asyncio.gather(*(self.generate(ids, answer_params(answer)) for answer in answers))
            chances = [o.outputs[0].cumulative_logprob or 0.0 for o in both]
            result.outputs.score = answer_score(*chances)
            result.n_prompt_tokens, result.prompt_token_ids = both[0].n_prompt_tokens, both[0].prompt_token_ids
            return result
        left, right = await asyncio.gather(*(self.embed(text, normalize=False) for text in pair))
        result.outputs.score = cosine(left.outputs.embedding, right.outputs.embedding)
        result.n_prompt_tokens = left.n_prompt_tokens + right.n_prompt_tokens
        return result

    async def _collect(self, text: Optional[str], seeds: List[int], submit: Callable[[int], Request]) -> RequestOutput:
        result = RequestOutput(str(next(self._numbers)), text, [])
        streams: List[_Stream] = []
        try:
            for seed in seeds:
                streams.append(self._start(partial(submit, seed)))
            for index, stream in enumerate(streams):
                output = CompletionOutput(index)
                async for piece in self._pieces(stream):
                    output.add(piece)
                result.outputs.append(output)
                result.take(stream.request.facts())
            return result
        finally:
            for stream in streams:
                self._end(stream)
