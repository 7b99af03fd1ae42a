"""LLM: an engine for programs with threads, or with none."""
from __future__ import annotations

import itertools
import time
from collections import deque
from functools import partial
from operator import index
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from . import _native as n
from ._engine import WAIT_MS, Engine, Request, split_prompt
from .params import (CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput, Message, Prompt, RequestOutput,
                     SamplingParams, StreamPiece, _unsigned, choice_seed, native_params, random_seed)

MAX_N = 16384  # results of one prompt
Job = Tuple[int, Callable[[], Request]]  # the number of its prompt, and what submits it
OneOrMore = Union[None, SamplingParams, Sequence[SamplingParams]]


def engine_options(dtype: Optional[str] = None, *, device: Optional[str] = None, quantization: Optional[str] = None,
                   isa: Optional[str] = None, threads: int = 0, pin_threads: bool = False, max_model_len: int = 0,
                   max_num_seqs: int = 0, max_num_batched_tokens: int = 0, num_kv_pages: int = 0,
                   max_num_queued_reqs: int = 0, enable_prefix_caching: bool = True, chat_template: Optional[str] = None,
                   generation_config: Optional[str] = None, load_format: Optional[str] = None,
                   pooling: Optional[str] = None) -> Dict[str, Any]:
    """The options of LLM and AsyncLLM as those of the C library; None and 0 take its default.

    dtype: auto, float32, bfloat16, float16. device: auto, cpu, cuda. quantization: none, int8. isa: auto, scalar, avx2,
    avx512, avx512-bf16, amx. threads: compute threads; default one for each CPU. max_model_len: longest context in
    tokens. max_num_seqs, max_num_batched_tokens: what a step holds at most. num_kv_pages: pages of 16 tokens.
    max_num_queued_reqs: requests that may wait. chat_template: a file or the template itself. generation_config: auto,
    none, or a file. load_format: auto, dummy. pooling: auto, last, mean."""
    numbers = {"threads": threads, "max_model_len": max_model_len, "max_num_seqs": max_num_seqs,
               "max_num_batched_tokens": max_num_batched_tokens, "num_kv_pages": num_kv_pages,
               "max_num_queued_reqs": max_num_queued_reqs}
    for name, value in numbers.items():
        _unsigned(value, 32, name)
    with n.checked("pin_threads or enable_prefix_caching"):
        pin_threads, enable_prefix_caching = bool(pin_threads), bool(enable_prefix_caching)
    return dict(threads=threads, max_model_len=max_model_len, max_num_seqs=max_num_seqs,
                max_batched_tokens=max_num_batched_tokens, kv_pages=num_kv_pages, max_queued=max_num_queued_reqs,
                dtype=dtype, device=device, quantization=quantization, isa=isa, pin_threads=int(pin_threads),
                no_prefix_cache=int(not enable_prefix_caching), chat_template=chat_template,
                generation_config=generation_config, load_format=load_format, pooling=pooling)


def as_list(prompts: Any) -> List[Any]:
    """A list of prompts; a text, a dict and a list of ids are one prompt."""
    with n.checked("prompts"):
        one = isinstance(prompts, (str, dict)) or (len(prompts) > 0 and isinstance(prompts[0], int))
        return [prompts] if one else list(prompts)


def text_of(prompt: Any) -> Optional[str]:
    """The text of a prompt, None for ids and for what is no prompt."""
    try:
        return split_prompt(prompt)[0]
    except n.InvalidArgumentError:
        return None


def params_for(params: OneOrMore, count: int) -> List[Optional[SamplingParams]]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    with n.checked("sampling_params"):
        all_params = list(params)
    if len(all_params) != count:
        raise n.InvalidArgumentError(f"{len(all_params)} sampling parameters for {count} prompts; give one, or one for each")
    for p in all_params:
        if p is not None and not isinstance(p, SamplingParams):
            raise n.InvalidArgumentError(f"sampling_params: {type(p).__name__} instead of SamplingParams")
    return all_params


def seeds_for(p: Optional[SamplingParams]) -> List[int]:
    """One for each choice."""
    if p is None:
        return [random_seed()]
    with n.checked("seed"):
        seed = index(p.seed) if p.seed is not None else random_seed()
    if not 1 <= _unsigned(p.n, 64, "n") <= MAX_N:
        raise n.InvalidArgumentError(f"n: {p.n} is out of range; it is 1 to {MAX_N}")
    return [choice_seed(seed, i) for i in range(p.n)]


class Model:
    """What LLM and AsyncLLM say of an open model; constant after open."""

    _engine: Engine

    @property
    def max_model_len(self) -> int:
        """Longest context in tokens."""
        return self._engine.fact("max_model_len")

    @property
    def vocab_size(self) -> int:
        return self._engine.fact("vocab_size")

    @property
    def embedding_size(self) -> int:
        """Values of a vector of embed."""
        return self._engine.fact("embedding_size")

    @property
    def has_chat_template(self) -> bool:
        """Without one chat is refused."""
        return bool(self._engine.fact("has_chat_template"))

    @property
    def eos_token_ids(self) -> List[int]:
        """The ids that end a text."""
        return self._engine.eos_ids()

    def tokenize(self, text: str) -> List[int]:
        """The ids of a text, without BOS token."""
        return self._engine.tokenize(text)

    def tokenize_chat(self, messages: Sequence[Message], **options: Any) -> List[int]:
        """The ids that chat gives to the model for a conversation and the same options."""
        return self._engine.tokenize_chat(messages, options)

    def detokenize(self, ids: Sequence[int]) -> str:
        return self._engine.detokenize(ids)


class LLM(Model):
    """An open model: `LLM("models/rose-tiny", dtype="bfloat16")`; the options are those of engine_options.

    model is a Hugging Face folder or a GGUF file. Any number of threads may use an LLM at the same time; while the
    library computes, other threads of Python run. A stream belongs to one thread at a time. close() frees all memory and
    the compute threads; it may be called by any thread, ends all requests, and waits for calls that run. `with LLM(...)
    as llm` closes it at the end of the block. After os.fork only the parent may use it."""

    def __init__(self, model: str, dtype: Optional[str] = None, **options: Any) -> None:
        self._engine = Engine(model, engine_options(dtype, **options))
        self._numbers = itertools.count()

    def close(self) -> None:
        """Ends all requests and frees the engine. Any number of times."""
        self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_engine"):
            self._engine.close()

    def generate(self, prompts: Union[Prompt, Sequence[Prompt]], sampling_params: OneOrMore = None, *,
                 add_special_tokens: bool = True, raise_errors: bool = False) -> List[RequestOutput]:
        """Continues each prompt; the results come in the order of the prompts.

        All prompts run at the same time, as many as the engine's queue takes. A prompt that fails has the exception in the
        `error` of its output, and the others go on; raise_errors=True ends all of them and raises it. Wrong sampling
        parameters and a failed engine are always raised. add_special_tokens: the tokenizer adds its BOS token, if it has
        one."""
        all_prompts = as_list(prompts)
        params = params_for(sampling_params, len(all_prompts))

        def submit(i: int, seed: int) -> Request:
            return self._engine.submit(all_prompts[i], params[i], seed, add_special_tokens, False)

        return self._run([text_of(p) for p in all_prompts], params, submit, raise_errors)

    def chat(self, messages: Union[Sequence[Message], Sequence[Sequence[Message]]], sampling_params: OneOrMore = None, *,
             tools: Optional[List[Dict[str, Any]]] = None, documents: Optional[List[Dict[str, Any]]] = None,
             chat_template_kwargs: Optional[Dict[str, Any]] = None, add_generation_prompt: bool = True,
             continue_final_message: bool = False, raise_errors: bool = False) -> List[RequestOutput]:
        """Replies to a conversation, or to each of a list of conversations, by the model's chat template. Errors: as
        generate.

        A message is a dict of OpenAI's form, such as {"role": "user", "content": "Hi"}. continue_final_message continues
        the last message and needs add_generation_prompt=False."""
        with n.checked("messages"):
            one = len(messages) > 0 and isinstance(messages[0], dict)
            chats: List[Any] = [messages] if one else list(messages)
        params = params_for(sampling_params, len(chats))
        options = chat_options(tools, documents, chat_template_kwargs, add_generation_prompt, continue_final_message)
        return self._run([None] * len(chats), params,
                         lambda i, seed: self._engine.submit_chat(chats[i], options, params[i], seed, False), raise_errors)

    def stream(self, prompt: Prompt, sampling_params: Optional[SamplingParams] = None, *,
               add_special_tokens: bool = True) -> Stream:
        """Continues one prompt and gives each token when it is ready. The request is submitted at once, and cancelled
        when the iterator is closed or dropped."""
        return Stream(self._engine.submit(prompt, sampling_params, one_seed(sampling_params), add_special_tokens, False))

    def stream_chat(self, messages: Sequence[Message], sampling_params: Optional[SamplingParams] = None, *,
                    tools: Optional[List[Dict[str, Any]]] = None, documents: Optional[List[Dict[str, Any]]] = None,
                    chat_template_kwargs: Optional[Dict[str, Any]] = None, add_generation_prompt: bool = True,
                    continue_final_message: bool = False) -> Stream:
        """The reply to one conversation, token by token; see chat and stream."""
        options = chat_options(tools, documents, chat_template_kwargs, add_generation_prompt, continue_final_message)
        return Stream(self._engine.submit_chat(messages, options, sampling_params, one_seed(sampling_params), False))

    def embed(self, prompts: Union[Prompt, Sequence[Prompt]], *, normalize: Optional[bool] = None,
              dimensions: int = 0, raise_errors: bool = False) -> List[EmbeddingRequestOutput]:
        """The vector of each text. normalize: to length 1; None is as the model's files say. dimensions: keep the first
        values only, where the model allows it; 0 keeps all. Errors: as generate."""
        all_prompts = as_list(prompts)
        results = [EmbeddingRequestOutput(self._name(), EmbeddingOutput([])) for _ in all_prompts]

        def take(i: int, r: Request) -> None:
            for _ in r.pieces():
                pass
            results[i].outputs.embedding = r.embedding()
            results[i].n_prompt_tokens = r.tokens()["n_prompt_tokens"]

        def fail(i: int, e: n.RoseError) -> None:
            if raise_errors or not is_of_prompt(e):
                raise e
            self._probe(lambda: self._engine.submit_embed([0], normalize, dimensions, False))
            results[i].error = e

        run_all(((i, partial(self._engine.submit_embed, p, normalize, dimensions, False))
                 for i, p in enumerate(all_prompts)), take, fail)
        return results

    def _name(self) -> str:
        return str(next(self._numbers))

    @staticmethod
    def _probe(submit: Callable[[], Request]) -> None:
        """Raises the error of a request if its parameters are wrong, whatever the prompt: submits the shortest prompt."""
        try:
            submit().close()
        except n.QueueFullError:
            pass

    def _run(self, texts: List[Optional[str]], params: List[Optional[SamplingParams]],
             submit: Callable[[int, int], Request], raise_errors: bool) -> List[RequestOutput]:
        results = [RequestOutput(self._name(), text, []) for text in texts]
        sound: List[Optional[SamplingParams]] = []  # parameters that were found to be right
        for p in {id(p): p for p in params}.values():  # what is wrong in Python's eyes, before any work
            seeds_for(p)
            with self._engine.use() as handle:
                native_params(handle, p, 0, False, False)

        def take(i: int, r: Request) -> None:
            output = CompletionOutput(len(results[i].outputs))
            for piece in r.pieces():
                output.add(piece)
            results[i].outputs.append(output)
            if output.index == 0:
                for name, value in r.tokens().items():
                    setattr(results[i], name, value)

        def fail(i: int, e: n.RoseError) -> None:
            if raise_errors or not is_of_prompt(e):
                raise e
            if not any(p is params[i] for p in sound):
                self._probe(lambda: self._engine.submit([0], params[i], 0, False, False))
                sound.append(params[i])
            results[i].error = results[i].error or e

        run_all(((i, partial(submit, i, seed)) for i, p in enumerate(params) for seed in seeds_for(p)), take, fail)
        return results


def is_of_prompt(e: n.RoseError) -> bool:
    """Whether an error concerns one prompt, and not the engine with all of them."""
    return isinstance(e, (n.InvalidArgumentError, n.RequestFailedError))


def run_all(jobs: Iterable[Job], take: Callable[[int, Request], None], fail: Callable[[int, n.RoseError], None]) -> None:
    """Submits each job and takes its result, in order. When the queue is full, the oldest request is taken first. fail
    gets the error of a job, and the job's further choices are left out unless it raises."""
    running: Deque[Tuple[int, Request]] = deque()  # number of the prompt
    failed = -1  # the last prompt that could not be submitted

    def take_oldest() -> None:
        i, r = running[0]
        try:
            take(i, r)
        except n.RoseError as e:
            fail(i, e)
        running.popleft()[1].close()

    try:
        for i, submit in jobs:
            while i != failed:
                try:
                    running.append((i, submit()))
                    break
                except n.QueueFullError:
                    if running:
                        take_oldest()
                    else:  # requests of other threads fill the queue
                        time.sleep(WAIT_MS / 1000)
                except n.RoseError as e:
                    failed = i
                    fail(i, e)
        while running:
            take_oldest()
    finally:
        for _, r in running:  # all are cancelled before the first close, which waits for the end of a step
            r.cancel()
        for _, r in running:
            r.close()


class Stream(Iterator[StreamPiece]):
    """The pieces of one request. Not a generator: its request exists before the first piece is asked for, and must be
    closed even if none ever is."""

    def __init__(self, request: Request) -> None:
        self._request, self._pieces = request, request.pieces()

    def __next__(self) -> StreamPiece:
        try:
            return next(self._pieces)
        except BaseException:  # also StopIteration: the last piece was given
            self.close()
            raise

    def cancel(self) -> None:
        """Any thread. The last piece then has the finish reason "abort"."""
        self._request.cancel()

    def close(self) -> None:
        self._request.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_request"):
            self.close()


def one_seed(p: Optional[SamplingParams]) -> int:
    seeds = seeds_for(p)
    if len(seeds) > 1:
        raise n.InvalidArgumentError("n: a stream has one result; start a stream for each, or call generate")
    return seeds[0]


def chat_options(tools: Any, documents: Any, kwargs: Any, add_generation_prompt: bool,
                 continue_final: bool) -> Dict[str, Any]:
    return {"tools": tools, "documents": documents, "chat_template_kwargs": kwargs,
            "add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final}
