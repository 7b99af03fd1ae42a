"""LLM: an engine for programs with threads, or with none."""
from __future__ import annotations

import itertools
import math
import os
import time
from collections import deque
from dataclasses import replace
from functools import partial
from operator import index
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

from . import _native as n
from ._engine import WAIT_MS, Engine, Request, split_prompt
from .options import find_model, read_options
from .params import (CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput, Message, NoOutputs, PooledRequestOutput, PoolingOutput,
                     PoolingParams, PoolingRequestOutput, Prompt, RequestOutput, SamplingParams, ScoringOutput,
                     ScoringRequestOutput, StreamPiece, _unsigned, choice_seed)
from .progress import Progress, UseTqdm
from .tokenizer import Tokenizer

MAX_N = 16384  # results of one prompt
Job = Tuple[int, Callable[[], Request]]  # the number of its prompt, and what submits it
OneOrMore = Union[None, SamplingParams, Sequence[SamplingParams]]
ModelPath = Union[str, "os.PathLike[str]"]


def open_engine(model: ModelPath, options: Dict[str, Any]) -> Tuple[Engine, str]:
    """The engine, and the model's path."""
    with n.checked("model"):
        name = os.fsdecode(os.fspath(model))
    settings = read_options(name, options)
    path = find_model(name, settings.revision)
    return Engine(path, settings), path


def as_list(prompts: Any) -> List[Any]:
    """A list of prompts; a text, a dict and a list of ids are one prompt."""
    with n.checked("prompts"):
        one = isinstance(prompts, (str, dict)) or (len(prompts) > 0 and isinstance(prompts[0], int))
        return [prompts] if one else list(prompts)


def text_of(prompt: Any) -> Optional[str]:
    """The text of a prompt, None for ids and for what is no prompt."""
    try:
        text: Optional[str] = split_prompt(prompt)[0]
        return text
    except n.InvalidArgumentError:
        return None


def params_for(params: OneOrMore, count: int) -> List[Optional[SamplingParams]]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    with n.checked("sampling_params"):
        all_params: List[Optional[SamplingParams]] = list(params)
    if len(all_params) != count:
        raise n.InvalidArgumentError(f"{len(all_params)} sampling parameters for {count} prompts; give one, or one for each")
    for p in all_params:
        if p is not None and not isinstance(p, SamplingParams):
            raise n.InvalidArgumentError(f"sampling_params: {type(p).__name__} instead of SamplingParams")
    return all_params


def seeds_for(p: Optional[SamplingParams], fresh: Callable[[], int] = lambda: 0) -> List[int]:
    """One for each choice. fresh: the seed of a request without one."""
    if p is None:
        return [fresh()]
    with n.checked("seed"):
        seed = index(p.seed) if p.seed is not None else fresh()
    if not 1 <= _unsigned(p.n, 64, "n") <= MAX_N:
        raise n.InvalidArgumentError(f"n: {p.n} is out of range; it is 1 to {MAX_N}")
    return [choice_seed(seed, i) for i in range(p.n)]


# What a pooling_task of encode may be; others need states that are not kept, or a head.
POOLING_TASKS = ("embed",)


def pooling_options(p: Optional[PoolingParams], normalize: Optional[bool], dimensions: int) -> Tuple[Optional[bool], int]:
    """normalize and dimensions, of pooling_params where the call does not have them."""
    if p is None:
        return normalize, dimensions
    if not isinstance(p, PoolingParams):
        raise n.InvalidArgumentError(f"pooling_params: {type(p).__name__} instead of PoolingParams")
    return normalize if normalize is not None else p.normalize, dimensions or p.dimensions or 0


def pairs_of(data_1: Any, data_2: Any) -> List[Tuple[str, str]]:
    """One text with all, or text by text."""
    sides = []
    for name, data in (("data_1", data_1), ("data_2", data_2)):
        with n.checked(name):
            side = [data] if isinstance(data, str) else list(data)
        for text in side:
            if not isinstance(text, str):
                raise n.InvalidArgumentError(f"{name}: a text or a list of texts is needed, not {type(text).__name__}")
        sides.append(side)
    left, right = sides
    if len(left) not in (1, len(right)):
        raise n.InvalidArgumentError(f"data_1 has {len(left)} texts and data_2 has {len(right)}: one text is compared with "
                                     "all, or both have as many")
    return list(zip(left * len(right) if len(left) == 1 else left, right))


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    size = math.sqrt(math.fsum(x * x for x in a)) * math.sqrt(math.fsum(x * x for x in b))
    return math.fsum(x * y for x, y in zip(a, b)) / size if size > 0 else 0.0


def answer_params(answer: int) -> SamplingParams:
    """The log-probability of one answer, of the model's raw logits."""
    return SamplingParams(temperature=0, max_tokens=1, logprobs=0, allowed_token_ids=[answer])


def answer_score(yes: float, no: float) -> float:
    """P(yes) / (P(yes) + P(no)) of their logarithms."""
    if not (math.isfinite(yes) and math.isfinite(no)):
        raise n.RequestFailedError("the model gave no finite logit for this pair")
    return 1 / (1 + math.exp(no - yes)) if no - yes < 700 else 0.0


def check_scores(engine: Engine, instruction: Optional[str]) -> bool:
    """True: a reranker. False: cosines."""
    by = engine.fact("scores_by")
    if by == n.SCORE_NONE:
        raise n.InvalidArgumentError("the model scores or pools texts in a way that is not supported; task=\"embed\" with "
                                     "pooling=\"last\" or \"mean\" compares its embeddings")
    if by == n.SCORE_COSINE and instruction is not None:
        raise n.InvalidArgumentError("instruction is for rerankers, and this model compares embeddings (task=\"rerank\"); "
                                     "put an instruction into the texts")
    return by == n.SCORE_ANSWERS


class Model:
    """What LLM and AsyncLLM say of an open model; constant after open."""

    _engine: Engine
    _path: str

    def get_default_sampling_params(self) -> SamplingParams:
        """What a request without SamplingParams has: the defaults, with what the model's generation_config.json recommends."""
        return replace(self._engine.default_params)

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
    """An open model: `LLM("models/rose-tiny", dtype="bfloat16")`.

    model is a Hugging Face folder, a GGUF file, or a name of the hub, such as "Qwen/Qwen3-0.6B", which is fetched unless it
    is in the cache. Any number of threads may use an LLM at the same time; while the library computes, other threads of
    Python run. A stream belongs to one thread at a time. close() frees all memory and the compute threads; it may be called
    by any thread, ends all requests, and waits for calls that run. `with LLM(...) as llm` closes it at the end of the block.
    After os.fork only the parent may use it, and it cannot be pickled: open it in the process that uses it.

    The options are those of an engine that `roseinfer serve --help-all` lists, with underscores: device ("auto", "cpu",
    "cuda", "cuda:1"), quantization, max_model_len, max_num_seqs, kv_cache_memory ("2G"), gpu_memory_utilization, threads,
    prefix_cache and so on. Beside them: chat_template (a file or the template), generation_config (auto, none, or a file),
    pooling (auto, last, mean), task (auto, embed, rerank), seed (of requests without one; default random) and revision (of
    the hub). vLLM's names work where the thing is there: enable_prefix_caching, enforce_eager, kv_cache_memory_bytes, dtype
    "half"; so do its options that ask for what is so anyhow, as tensor_parallel_size=1. None takes an option's default."""

    def __init__(self, model: ModelPath, dtype: Optional[str] = None, **options: Any) -> None:
        self._engine, self._path = open_engine(model, dict(options, dtype=dtype))
        self._numbers = itertools.count()

    def get_tokenizer(self) -> Tokenizer:
        return Tokenizer(self._engine, self._path, self)

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

    def generate(self, prompts: Union[Prompt, Sequence[Prompt]], sampling_params: OneOrMore = None,
                 use_tqdm: UseTqdm = None, *, add_special_tokens: bool = True,
                 raise_errors: bool = False) -> List[RequestOutput]:
        """Continues each prompt; the results come in the order of the prompts.

        All prompts run at the same time, as many as the engine's queue takes. A prompt that fails has the exception in the
        `error` of its output, and the others go on; raise_errors=True ends all of them and raises it. Wrong sampling
        parameters and a failed engine are always raised. add_special_tokens: the tokenizer adds its BOS token, if it has
        one. use_tqdm: a progress bar, or what makes one, as tqdm does; None shows one for several prompts on a terminal."""
        all_prompts = as_list(prompts)
        params = params_for(sampling_params, len(all_prompts))

        def submit(i: int, seed: int) -> Request:
            return self._engine.submit(all_prompts[i], params[i], seed, add_special_tokens, False)

        return self._run([text_of(p) for p in all_prompts], params, submit, raise_errors, use_tqdm)

    def chat(self, messages: Union[Sequence[Message], Sequence[Sequence[Message]]], sampling_params: OneOrMore = None,
             use_tqdm: UseTqdm = None, *, chat_template: Optional[str] = None, tools: Optional[List[Dict[str, Any]]] = None, documents: Optional[List[Dict[str, Any]]] = None,
             chat_template_kwargs: Optional[Dict[str, Any]] = None, add_generation_prompt: bool = True,
             continue_final_message: bool = False, raise_errors: bool = False) -> List[RequestOutput]:
        """Replies to a conversation, or to each of a list of conversations, by the model's chat template. Errors: as
        generate.

        A message is a dict of OpenAI's form, such as {"role": "user", "content": "Hi"}. chat_template: a template in place of
        the model's. continue_final_message continues
        the last message and needs add_generation_prompt=False."""
        with n.checked("messages"):
            one = len(messages) > 0 and isinstance(messages[0], dict)
            chats: List[Any] = [messages] if one else list(messages)
        params = params_for(sampling_params, len(chats))
        options = chat_options(tools, documents, chat_template_kwargs, add_generation_prompt, continue_final_message,
                               chat_template)
        return self._run([None] * len(chats), params,
                         lambda i, seed: self._engine.submit_chat(chats[i], options, params[i], seed, False), raise_errors,
                         use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: Optional[SamplingParams] = None, *,
               add_special_tokens: bool = True) -> Stream:
        """Continues one prompt and gives each token when it is ready. The request is submitted at once, and cancelled
        when the iterator is closed or dropped."""
        return Stream(self._engine.submit(prompt, sampling_params,
                                          one_seed(sampling_params, self._engine), add_special_tokens, False))

    def stream_chat(self, messages: Sequence[Message], sampling_params: Optional[SamplingParams] = None, *,
                    chat_template: Optional[str] = None, tools: Optional[List[Dict[str, Any]]] = None, documents: Optional[List[Dict[str, Any]]] = None,
                    chat_template_kwargs: Optional[Dict[str, Any]] = None, add_generation_prompt: bool = True,
                    continue_final_message: bool = False) -> Stream:
        """The reply to one conversation, token by token; see chat and stream."""
        options = chat_options(tools, documents, chat_template_kwargs, add_generation_prompt, continue_final_message,
                               chat_template)
        return Stream(self._engine.submit_chat(messages, options, sampling_params,
                                               one_seed(sampling_params, self._engine), False))

    def embed(self, prompts: Union[Prompt, Sequence[Prompt]], use_tqdm: UseTqdm = None, *,
              pooling_params: Optional[PoolingParams] = None, normalize: Optional[bool] = None, dimensions: int = 0,
              raise_errors: bool = False) -> List[EmbeddingRequestOutput]:
        """The vector of each text. normalize: to length 1; None is as the model's files say. dimensions: keep the first
        values only, where the model allows it; 0 keeps all. pooling_params says both, too. Errors: as generate."""
        all_prompts = as_list(prompts)
        results = [EmbeddingRequestOutput(self._name(), EmbeddingOutput([])) for _ in all_prompts]

        def put(i: int, vector: List[float]) -> None:
            results[i].outputs.embedding = vector

        self._embed(all_prompts, results, put, pooling_options(pooling_params, normalize, dimensions), raise_errors, use_tqdm)
        return results

    def encode(self, prompts: Union[Prompt, Sequence[Prompt]], pooling_params: Optional[PoolingParams] = None,
               use_tqdm: UseTqdm = None, *, pooling_task: Optional[str] = None,
               raise_errors: bool = False) -> List[PoolingRequestOutput]:
        """The vectors of embed, in `outputs.data`. To turn a text into ids, use get_tokenizer().encode or tokenize."""
        if pooling_task is not None and pooling_task not in POOLING_TASKS:
            raise n.InvalidArgumentError(f"pooling_task {pooling_task!r}: expected \"embed\"; score compares texts, and the "
                                         "states of single tokens are not kept")
        all_prompts = as_list(prompts)
        results = [PoolingRequestOutput(self._name(), PoolingOutput([])) for _ in all_prompts]

        def put(i: int, vector: List[float]) -> None:
            results[i].outputs.data = vector

        self._embed(all_prompts, results, put, pooling_options(pooling_params, None, 0), raise_errors, use_tqdm)
        return results

    def score(self, data_1: Union[str, Sequence[str]], data_2: Union[str, Sequence[str]], use_tqdm: UseTqdm = None, *,
              instruction: Optional[str] = None, raise_errors: bool = False) -> List[ScoringRequestOutput]:
        """The similarity of pairs of texts: one text with each of data_2, or text by text. A reranker judges each pair by its
        template, as /v1/score does; instruction says what to judge. Any other model compares embeddings by their cosine.
        Errors: as generate."""
        pairs = pairs_of(data_1, data_2)
        results = [ScoringRequestOutput(self._name(), ScoringOutput(math.nan)) for _ in pairs]
        if check_scores(self._engine, instruction):
            self._rank(pairs, instruction, results, raise_errors, use_tqdm)
        else:
            self._compare(pairs, results, raise_errors, use_tqdm)
        return results

    def _embed(self, prompts: List[Any], results: Sequence[PooledRequestOutput], put: Callable[[int, List[float]], None],
               how: Tuple[Optional[bool], int], raise_errors: bool, use_tqdm: UseTqdm) -> None:
        progress = Progress(use_tqdm, len(prompts))

        def take(i: int, r: Request) -> None:
            for _ in r.pieces():
                pass
            put(i, r.embedding())
            for name, value in r.facts().items():
                setattr(results[i], name, value)
            progress.add(results[i].n_prompt_tokens, 0)
            progress.done(i)

        def fail(i: int, e: n.RoseError) -> None:
            if raise_errors or not is_of_prompt(e):
                raise e
            self._probe(lambda: self._engine.submit_embed([0], *how, False))
            results[i].error = e
            progress.done(i)

        try:
            run_all(((i, partial(self._engine.submit_embed, p, *how, False)) for i, p in enumerate(prompts)), take, fail)
        finally:
            progress.close()

    def _compare(self, pairs: List[Tuple[str, str]], results: List[ScoringRequestOutput], raise_errors: bool,
                 use_tqdm: UseTqdm) -> None:
        """Each text is embedded once."""
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        vectors = dict(zip(texts, self.embed(texts, use_tqdm, normalize=False, raise_errors=raise_errors)))
        for result, pair in zip(results, pairs):
            left, right = (vectors[text] for text in pair)
            result.error = left.error or right.error
            if result.error is None:
                result.outputs.score = cosine(left.outputs.embedding, right.outputs.embedding)
                result.n_prompt_tokens = left.n_prompt_tokens + right.n_prompt_tokens

    def _rank(self, pairs: List[Tuple[str, str]], instruction: Optional[str], results: List[ScoringRequestOutput],
              raise_errors: bool, use_tqdm: UseTqdm) -> None:
        """Two requests for a pair: the second one finds the prompt in the prefix cache."""
        prompts: List[Tuple[Any, int]] = []
        for result, pair in zip(results, pairs):
            try:
                ids, answers = self._engine.tokenize_pair(instruction, *pair)
            except n.InvalidArgumentError as e:
                if raise_errors:
                    raise
                result.error, ids, answers = e, (), (0, 0)  # an empty prompt is refused
            prompts += [(ids, answers[0]), (ids, answers[1])]
        out = self._run([None] * len(prompts), [answer_params(answer) for _, answer in prompts],
                        lambda i, seed: self._engine.submit(prompts[i][0], answer_params(prompts[i][1]), seed, False, False),
                        raise_errors, use_tqdm)
        for i, result in enumerate(results):
            yes, no = out[2 * i], out[2 * i + 1]
            result.error = result.error or yes.error or no.error
            if result.error is not None:
                continue
            chances = [o.outputs[0].cumulative_logprob for o in (yes, no)]
            result.outputs.score = answer_score(*[math.nan if c is None else c for c in chances])
            result.n_prompt_tokens, result.prompt_token_ids = yes.n_prompt_tokens, yes.prompt_token_ids

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
             submit: Callable[[int, int], Request], raise_errors: bool, use_tqdm: UseTqdm) -> List[RequestOutput]:
        results = [RequestOutput(self._name(), text, []) for text in texts]
        sound: List[Optional[SamplingParams]] = []  # parameters that were found to be right
        for p in {id(p): p for p in params}.values():  # what is wrong in Python's eyes, before any work
            seeds_for(p)
            self._engine.native(p, 0, False, False)
        progress = Progress(use_tqdm, len(texts))

        def take(i: int, r: Request) -> None:
            output = CompletionOutput(len(results[i].outputs))
            for piece in r.pieces():
                output.add(piece)
            results[i].outputs.append(output)
            results[i].take(r.facts())
            progress.add(results[i].n_prompt_tokens if output.index == 0 else 0, len(output.token_ids))
            if len(results[i].outputs) == (params[i] or self._engine.default_params).n:
                progress.done(i)

        def fail(i: int, e: n.RoseError) -> None:
            if raise_errors or not is_of_prompt(e):
                raise e
            if not any(p is params[i] for p in sound):
                self._probe(lambda: self._engine.submit([0], params[i], 0, False, False))
                sound.append(params[i])
            results[i].error = results[i].error or e
            results[i].outputs = results[i].outputs or NoOutputs(e)
            progress.done(i)

        try:
            run_all(((i, partial(submit, i, seed)) for i, p in enumerate(params)
                     for seed in seeds_for(p, self._engine.fresh_seed)), take, fail)
        finally:
            progress.close()
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


def one_seed(p: Optional[SamplingParams], engine: Engine) -> int:
    if len(seeds_for(p)) > 1:
        raise n.InvalidArgumentError("n: a stream has one result; start a stream for each, or call generate")
    return seeds_for(p, engine.fresh_seed)[0]


def chat_options(tools: Any, documents: Any, kwargs: Any, add_generation_prompt: bool, continue_final: bool,
                 template: Optional[str]) -> Dict[str, Any]:
    return {"tools": tools, "documents": documents, "chat_template_kwargs": kwargs, "chat_template": template,
            "add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final}
