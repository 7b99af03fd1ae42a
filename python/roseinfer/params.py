"""What goes into a request and what comes out; the names are vLLM's where vLLM has the same thing."""
from __future__ import annotations

import ctypes
import json
import os
from ctypes import c_char_p, c_float, c_uint32
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from operator import index
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from . import _native as n
from .options import Row, check_already, near

Schema = Union[str, Dict[str, Any], bool]
# A text, its token ids, or vLLM's form of either: {"prompt": ...}, {"prompt_token_ids": ...}.
Prompt = Union[str, Sequence[int], Dict[str, Any]]
Message = Dict[str, Any]


@dataclass
class StructuredOutputsParams:
    """What the text must obey; exactly one member is set.

    json: a JSON schema, as text or as a dict. json_object: any JSON object. regex: an expression that the whole text
    matches. choice: the text is one of these strings. grammar: GBNF, XGrammar's EBNF or Lark. structural_tag: XGrammar's, as
    text or as a dict. ordered: the members of objects come in the order of the schema."""

    json: Optional[Schema] = None
    json_object: bool = False
    regex: Optional[str] = None
    choice: Optional[Sequence[str]] = None
    grammar: Optional[str] = None
    structural_tag: Optional[Schema] = None
    ordered: bool = False

    def _native(self) -> Tuple[int, Optional[bytes]]:
        """The kind of rose_lib_structure and its text."""
        given: List[Tuple[int, Optional[bytes]]] = []
        if self.json is not None:
            given.append((n.JSON_SCHEMA, _as_json(self.json)))
        if self.json_object:
            given.append((n.JSON_OBJECT, None))
        if self.regex is not None:
            given.append((n.REGEX, _as_text(self.regex, "regex")))
        if self.choice is not None:
            given.append((n.CHOICE, json.dumps(list(self.choice)).encode()))
        if self.grammar is not None:
            given.append((n.GRAMMAR, _as_text(self.grammar, "grammar")))
        if self.structural_tag is not None:
            given.append((n.TAG, _as_json(self.structural_tag)))
        if len(given) != 1:
            raise n.InvalidArgumentError(f"StructuredOutputsParams: {len(given)} members are set; set exactly one of json, "
                                         "json_object, regex, choice, grammar, structural_tag")
        return given[0]


def _as_text(text: str, name: str) -> bytes:
    """A text that C can end with a NUL."""
    if not isinstance(text, str):
        raise n.InvalidArgumentError(f"{name}: a text is needed, not {type(text).__name__}")
    if "\0" in text:
        raise n.InvalidArgumentError(f"{name}: the text has a NUL character, which the C library cannot take here")
    with n.checked(name):
        return text.encode()


def _as_json(value: Schema) -> bytes:
    return _as_text(value if isinstance(value, str) else json.dumps(value), "json")


@dataclass
class SamplingParams:
    """How to generate. The defaults are vLLM's; a request without SamplingParams has those of the model's
    generation_config.json.

    n: results for each prompt. max_tokens: None is as much as the context holds. temperature: 0 is greedy. seed: None
    takes a random one; the same request with the same seed gives the same text, whatever runs at the same time. stop:
    strings that end the text. logprobs: None is none; k gives the log-probability of each token and of the k most
    probable ones. structured_outputs: a dict has the members of StructuredOutputsParams. bad_words: texts that are not generated, neither at the beginning of the output nor after a space.
    bad_token_ids: the ids of each sequence that is not generated. priority: lower runs sooner. cache_salt:
    only requests with the same salt share cached prompts."""

    n: int = 1
    max_tokens: Optional[int] = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: Optional[int] = None
    stop: Union[None, str, Sequence[str]] = None
    stop_token_ids: Optional[Sequence[int]] = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: Optional[int] = None
    logit_bias: Optional[Dict[int, float]] = None
    allowed_token_ids: Optional[Sequence[int]] = None
    bad_token_ids: Optional[Sequence[Sequence[int]]] = None
    structured_outputs: Union[None, StructuredOutputsParams, Dict[str, Any]] = None
    skip_special_tokens: bool = True
    priority: int = 0
    cache_salt: Optional[str] = None
    bad_words: Optional[Sequence[str]] = None

    def clone(self) -> SamplingParams:
        return deepcopy(self)


# Fields of vLLM's SamplingParams that are not here: the values that ask for what is so anyhow, and what to take instead.
NOT_HERE: Dict[str, Row] = {
    "best_of": ((1,), "n is the number of results, and all of them are returned"),
    "use_beam_search": ((False,), "there is no beam search; n and temperature give several results"),
    "length_penalty": ((1.0,), "there is no beam search"),
    "early_stopping": ((False,), "there is no beam search"),
    "prompt_logprobs": ((), "not in Python yet; `roseinfer serve` has prompt_logprobs"),
    "truncate_prompt_tokens": ((), "give the last ids of the prompt, llm.tokenize(text)[-k:]"),
    "guided_decoding": ((), "use structured_outputs=StructuredOutputsParams(...)"),
    "logits_processors": (([],), "see bad_words, logit_bias, allowed_token_ids and structured_outputs"),
    "detokenize": ((True,), "results have both text and token_ids"),
    "spaces_between_special_tokens": ((True,), "special tokens are written as the tokenizer has them"),
    "flat_logprobs": ((False,), "logprobs are a dict for each token"),
    "extra_args": (({},), "there are no further parameters"),
}


def _takes_names_of_vllm(init: Callable[..., None]) -> Callable[..., None]:
    known = {f.name for f in fields(SamplingParams)}

    @wraps(init)
    def wrapper(self: SamplingParams, *args: Any, **given: Any) -> None:
        for name in [name for name in given if name not in known]:
            if name not in NOT_HERE:
                raise TypeError(f"SamplingParams has no field '{name}'{near(name, [*known, *NOT_HERE])}")
            check_already(name, given.pop(name), NOT_HERE[name])
        init(self, *args, **given)
    return wrapper


SamplingParams.__init__ = _takes_names_of_vllm(SamplingParams.__init__)  # type: ignore[method-assign]


@dataclass
class PoolingParams:
    """How embed and encode make a vector. dimensions: keep the first values only, where the model allows it. normalize: to
    length 1; None is as the model's files say."""

    dimensions: Optional[int] = None
    normalize: Optional[bool] = None


def choice_seed(seed: int, index: int) -> int:
    """The seed of choice `index` of a request with this seed, as in the server: SplitMix64."""
    mask = (1 << 64) - 1
    if index == 0:
        return seed & mask
    z = (seed + index * 0x9E3779B97F4A7C15) & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return z ^ (z >> 31)


def random_seed() -> int:
    return int.from_bytes(os.urandom(8), "little")


def _ids(values: Sequence[int], name: str) -> Any:
    with n.checked(name):
        ids = [index(v) for v in values]
    for v in ids:
        if not 0 <= v < 1 << 32:
            raise n.InvalidArgumentError(f"{name}: {v} is not a token id")
    return (c_uint32 * len(ids))(*ids)


def _unsigned(value: int, bits: int, name: str) -> int:
    """ctypes would cut a number that is too large without a word."""
    with n.checked(name):
        value = index(value)
    if not 0 <= value < 1 << bits:
        raise n.InvalidArgumentError(f"{name}: {value} is out of range; it is 0 to {(1 << bits) - 1}")
    return value


def _real(value: float, name: str) -> float:
    with n.checked(name):
        if isinstance(value, (str, bytes, bool)):
            raise TypeError(f"a number is needed, not {type(value).__name__}")
        return float(value)


def bad_words(p: SamplingParams) -> Tuple[str, ...]:
    if p.bad_words is None:
        return ()
    with n.checked("bad_words"):
        if isinstance(p.bad_words, str):
            raise TypeError("a list of texts is needed, not a text")
        words = tuple(p.bad_words)
    for word in words:
        if not isinstance(word, str) or not 1 <= len(word.encode("utf-8", "replace")) <= 4096:
            raise n.InvalidArgumentError(f"bad_words: {word!r:.80} is not a text of 1 to 4096 bytes")
    return words


def recommended(p: SamplingParams, before: n.Params, after: n.Params) -> SamplingParams:
    """p with the fields that the library has changed."""
    changed: Dict[str, Any] = {}
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "top_k", "max_tokens"):
        value = getattr(after, name)
        if value != getattr(before, name):
            changed[name] = float(f"{value:.7g}") if isinstance(value, float) else value
    return replace(p, **changed)


def _structure(given: Any) -> StructuredOutputsParams:
    if isinstance(given, StructuredOutputsParams):
        return given
    known = [f.name for f in fields(StructuredOutputsParams)]
    if not isinstance(given, dict):
        raise n.InvalidArgumentError(f"structured_outputs: StructuredOutputsParams or a dict is needed, not {type(given).__name__}")
    for name in given:
        if name not in known:
            raise n.InvalidArgumentError(f"structured_outputs: there is no member '{name}'{near(str(name), known)}")
    return StructuredOutputsParams(**given)


def native_params(p: SamplingParams, seed: int, add_special: bool, wakeup: bool, banned: List[List[int]]) -> n.Params:
    """The C struct. It refers to arrays that ctypes keeps as long as the struct. banned: sequences of ids beside
    bad_token_ids."""
    with n.checked("SamplingParams"):
        return _native_params(p, seed, add_special, wakeup, banned)


def _native_params(p: SamplingParams, seed: int, add_special: bool, wakeup: bool, banned: List[List[int]]) -> n.Params:
    c = n.Params()
    n.library().params_init(c, ctypes.sizeof(n.Params), None)
    c.seed, c.wakeup, c.add_special = seed, wakeup, add_special
    c.max_tokens = (1 << 31) - 1 if p.max_tokens is None else _unsigned(p.max_tokens, 32, "max_tokens")
    c.temperature, c.top_p = _real(p.temperature, "temperature"), _real(p.top_p, "top_p")
    c.min_p = _real(p.min_p, "min_p")
    c.top_k = 0 if p.top_k == -1 else _unsigned(p.top_k, 32, "top_k")
    c.ignore_eos, c.include_stop = bool(p.ignore_eos), bool(p.include_stop_str_in_output)
    c.skip_special = bool(p.skip_special_tokens)
    c.min_tokens = _unsigned(p.min_tokens, 32, "min_tokens")
    c.presence_penalty = _real(p.presence_penalty, "presence_penalty")
    c.frequency_penalty = _real(p.frequency_penalty, "frequency_penalty")
    c.repetition_penalty = _real(p.repetition_penalty, "repetition_penalty")
    with n.checked("priority"):
        c.priority = index(p.priority)
    if c.priority != p.priority:
        raise n.InvalidArgumentError(f"priority: {p.priority} is out of range")
    if p.logprobs is not None:
        c.logprobs, c.top_logprobs = 1, _unsigned(p.logprobs, 32, "logprobs")
    if p.cache_salt is not None:
        c.cache_salt = _as_text(p.cache_salt, "cache_salt")
    stop = [p.stop] if isinstance(p.stop, str) else list(p.stop or ())
    if stop:
        c.stop, c.n_stop = (c_char_p * len(stop))(*[_as_text(s, "stop") for s in stop]), len(stop)
    if p.stop_token_ids:
        c.stop_ids, c.n_stop_ids = _ids(p.stop_token_ids, "stop_token_ids"), len(p.stop_token_ids)
    if p.allowed_token_ids:
        c.allowed_ids, c.n_allowed = _ids(p.allowed_token_ids, "allowed_token_ids"), len(p.allowed_token_ids)
    if p.logit_bias:
        c.bias_ids = _ids(list(p.logit_bias), "logit_bias")
        c.bias, c.n_bias = (c_float * len(p.logit_bias))(*p.logit_bias.values()), len(p.logit_bias)
    if p.bad_token_ids or banned:
        every = [*(p.bad_token_ids or ()), *banned]
        c.bad_ids = _ids([i for s in every for i in s], "bad_token_ids")
        c.bad_lens, c.n_bad = _ids([len(s) for s in every], "bad_token_ids"), len(every)
    if p.structured_outputs is not None:
        structure = _structure(p.structured_outputs)
        c.structure, c.structure_text = structure._native()
        c.structure_ordered = structure.ordered
    return c


@dataclass
class Logprob:
    """The natural logarithm of a token's probability under the model alone, and its rank; 1 is the most probable."""

    logprob: float
    rank: int


@dataclass
class StreamPiece:
    """One token of a stream, and the text that it completed; the text is often empty. token_id is None if the request
    ended without a further token. finish_reason: None while more is to come, else "stop", "length" or "abort"."""

    text: str
    token_id: Optional[int]
    finish_reason: Optional[str] = None
    stop_reason: Union[None, int, str] = None
    logprobs: Optional[Dict[int, Logprob]] = None


@dataclass
class CompletionOutput:
    """A result. stop_reason: the stop string, or the id of stop_token_ids, that ended the text, else None. logprobs: for
    each token the log-probabilities by id."""

    index: int
    text: str = ""
    token_ids: List[int] = field(default_factory=list)
    cumulative_logprob: Optional[float] = None
    logprobs: Optional[List[Dict[int, Logprob]]] = None
    finish_reason: Optional[str] = None
    stop_reason: Union[None, int, str] = None

    def add(self, piece: StreamPiece) -> None:
        self.text += piece.text
        self.finish_reason, self.stop_reason = piece.finish_reason, piece.stop_reason
        if piece.token_id is None:
            return
        self.token_ids.append(piece.token_id)
        if piece.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs.append(piece.logprobs)
            self.cumulative_logprob = (self.cumulative_logprob or 0.0) + piece.logprobs[piece.token_id].logprob


@dataclass
class RequestMetrics:
    """The times of a request, in seconds since 1970, as time.time() has them; None: that did not happen. arrival_time: it
    was given to the engine. first_scheduled_time: the engine took it out of its queue. first_token_time, last_token_time:
    the token was ready. time_in_queue: seconds from arrival to first_scheduled_time. For several results the first
    result's times, but last_token_time and finished_time of the last."""

    arrival_time: float
    first_scheduled_time: Optional[float] = None
    first_token_time: Optional[float] = None
    last_token_time: Optional[float] = None
    finished_time: Optional[float] = None
    time_in_queue: Optional[float] = None

    def extend(self, other: RequestMetrics) -> None:
        """other: of a further result of the same prompt."""
        self.last_token_time = max(filter(None, (self.last_token_time, other.last_token_time)), default=None)
        self.finished_time = max(filter(None, (self.finished_time, other.finished_time)), default=None)


class NoOutputs(List[CompletionOutput]):
    """The results of a prompt that failed: the first one raises why, for code that does not look at `error`."""

    def __init__(self, error: n.RoseError) -> None:
        super().__init__()
        self._error = error

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return super().__getitem__(i)
        raise self._error

    def __reduce__(self) -> Any:
        return NoOutputs, (self._error,)


@dataclass
class RequestOutput:
    """The results of a prompt. prompt: its text, None if it came as ids or as messages. n_prompt_tokens: with those that
    the tokenizer and the chat template add; prompt_token_ids are these. num_cached_tokens: how many of them were in the
    prefix cache. error: why the prompt has no result, or not all of its results, else None; outputs[0] raises it if
    there is no result. metrics: its times."""

    request_id: str
    prompt: Optional[str]
    outputs: List[CompletionOutput]
    n_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    finished: bool = True
    error: Optional[n.RoseError] = None
    prompt_token_ids: Optional[List[int]] = None
    metrics: Optional[RequestMetrics] = None

    def take(self, facts: Dict[str, Any]) -> None:
        """facts: of the request of one of its results."""
        if self.metrics is not None:
            self.metrics.extend(facts["metrics"])
            return
        for name, value in facts.items():
            setattr(self, name, value)


@dataclass
class PooledRequestOutput:
    """What the outputs below share. prompt_token_ids: None if the prompt failed. error: why there is no result, else
    None."""

    request_id: str
    outputs: Any
    n_prompt_tokens: int = 0
    finished: bool = True
    error: Optional[n.RoseError] = None
    prompt_token_ids: Optional[List[int]] = None
    num_cached_tokens: int = 0
    metrics: Optional[RequestMetrics] = None


@dataclass
class EmbeddingOutput:
    embedding: List[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass
class EmbeddingRequestOutput(PooledRequestOutput):
    """The vector of a text: `outputs.embedding`, empty if there is an error."""

    outputs: EmbeddingOutput


@dataclass
class PoolingOutput:
    data: List[float]


@dataclass
class PoolingRequestOutput(PooledRequestOutput):
    """The vector of a text: `outputs.data`, empty if there is an error."""

    outputs: PoolingOutput


@dataclass
class ScoringOutput:
    score: float


@dataclass
class ScoringRequestOutput(PooledRequestOutput):
    """The score of a pair of texts: `outputs.score`, NaN if there is an error. n_prompt_tokens: of both texts."""

    outputs: ScoringOutput
