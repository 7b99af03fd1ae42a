"""The C library by ctypes: its structs, its functions, and its errors as exceptions.

The structs repeat include/roseinfer.h member by member; tests/python/test_layout.py compares them with the header."""
from __future__ import annotations

import ctypes
import os
from contextlib import contextmanager
from ctypes import (POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_size_t, c_uint32, c_uint64, c_void_p)
from typing import Any, Iterator, Optional

API_MAJOR = 1
ERR_BYTES = 512

# rose_lib_structure
FREE, JSON_OBJECT, JSON_SCHEMA, REGEX, CHOICE, GRAMMAR, TAG = range(7)
# rose_lib_finish
RUNNING, STOP, LENGTH, CANCELLED, FAILED = range(5)
# rose_lib_scoring
SCORE_COSINE, SCORE_ANSWERS, SCORE_NONE = range(3)
# rose_lib_stop
STOP_NONE, STOP_EOS, STOP_ID, STOP_STRING = range(4)


class RoseError(Exception):
    """An error of the library. `str()` is the library's line: what was wrong, where, what to do."""


class InvalidArgumentError(RoseError, ValueError):
    """An argument, an option or a field of SamplingParams is out of range."""


class OutOfMemoryError(RoseError, MemoryError):
    """There was not enough memory; nothing was changed."""


class ModelError(RoseError):
    """The model cannot be used: it is missing, malformed or not supported."""


class QueueFullError(RoseError):
    """The waiting queue of the engine is full; try again later."""


class EngineFailedError(RoseError):
    """The engine has failed and must be closed."""


class InternalError(RoseError):
    """A bug in roseinfer."""


class RequestFailedError(RoseError):
    """A request ended without a result, for example because its structure left no token."""


class ClosedError(RoseError):
    """The engine, or the request, was closed before or during the call."""


_ERRORS = {-1: InvalidArgumentError, -2: OutOfMemoryError, -3: ModelError, -4: QueueFullError, -5: EngineFailedError,
           -6: InternalError}


@contextmanager
def checked(what: str) -> Iterator[None]:
    """Errors that Python raises for a value of the wrong kind become an InvalidArgumentError that names it."""
    try:
        yield
    except RoseError:
        raise
    except (TypeError, ValueError, OverflowError, AttributeError, KeyError, RecursionError, ctypes.ArgumentError) as e:
        raise InvalidArgumentError(f"{what}: {e}") from e


class Options(Structure):
    _fields_ = [("size", c_size_t), ("dtype", c_char_p), ("isa", c_char_p), ("threads", c_uint32),
                ("max_num_seqs", c_uint32), ("max_batched_tokens", c_uint32), ("max_model_len", c_uint32),
                ("kv_pages", c_uint32), ("max_queued", c_uint32), ("pin_threads", c_int), ("device", c_char_p),
                ("quantization", c_char_p), ("chat_template", c_char_p), ("generation_config", c_char_p),
                ("load_format", c_char_p), ("no_prefix_cache", c_int), ("pooling", c_char_p), ("task", c_char_p),
                ("more", POINTER(c_char_p)), ("n_more", c_size_t)]


class Params(Structure):
    _fields_ = [("size", c_size_t), ("max_tokens", c_uint32), ("temperature", c_float), ("top_p", c_float),
                ("min_p", c_float), ("top_k", c_uint32), ("seed", c_uint64), ("ignore_eos", c_int),
                ("repetition_penalty", c_float), ("presence_penalty", c_float), ("frequency_penalty", c_float),
                ("min_tokens", c_uint32), ("logprobs", c_int), ("top_logprobs", c_uint32), ("stop", POINTER(c_char_p)),
                ("n_stop", c_size_t), ("include_stop", c_int), ("stop_ids", POINTER(c_uint32)),
                ("n_stop_ids", c_size_t), ("bias_ids", POINTER(c_uint32)), ("bias", POINTER(c_float)),
                ("n_bias", c_size_t), ("allowed_ids", POINTER(c_uint32)), ("n_allowed", c_size_t),
                ("bad_ids", POINTER(c_uint32)), ("bad_lens", POINTER(c_uint32)), ("n_bad", c_size_t),
                ("structure", c_int), ("structure_text", c_char_p), ("structure_ordered", c_int),
                ("skip_special", c_int), ("add_special", c_int), ("priority", c_int32), ("cache_salt", c_char_p),
                ("wakeup", c_int), ("user", c_void_p)]


class LogprobStruct(Structure):
    _fields_ = [("id", c_uint32), ("rank", c_uint32), ("logprob", c_float)]


class PieceStruct(Structure):
    # text is a pointer, because it does not end with a NUL
    _fields_ = [("size", c_size_t), ("has_token", c_int), ("id", c_uint32), ("text", c_void_p),
                ("text_len", c_size_t), ("finish", c_int), ("t_ns", c_uint64), ("stop", c_int),
                ("stop_index", c_uint32), ("logprobs", POINTER(LogprobStruct)), ("n_logprobs", c_size_t)]


class EmbedParams(Structure):
    _fields_ = [("size", c_size_t), ("normalize", c_int), ("dimensions", c_uint32), ("add_special", c_int),
                ("priority", c_int32), ("cache_salt", c_char_p), ("wakeup", c_int), ("user", c_void_p)]


# The structs by their names in C.
STRUCTS = {"rose_lib_options": Options, "rose_lib_params": Params, "rose_lib_logprob": LogprobStruct,
           "rose_lib_piece": PieceStruct, "rose_lib_embed_params": EmbedParams}

_IDS = POINTER(c_uint32)
_OUT = POINTER(c_void_p)
# name: (result, arguments)
_FUNCTIONS = {
    "api_version": (c_uint32, []),
    "version": (c_char_p, []),
    "open": (c_int, [_OUT, c_char_p, POINTER(Options), c_char_p]),
    "close": (None, [c_void_p]),
    "vocab_size": (c_uint32, [c_void_p]),
    "max_model_len": (c_uint32, [c_void_p]),
    "has_chat_template": (c_int, [c_void_p]),
    "embedding_size": (c_uint32, [c_void_p]),
    "eos_ids": (c_size_t, [c_void_p, POINTER(_IDS)]),
    "option_name": (c_char_p, [c_size_t]),
    "scores_by": (c_int, [c_void_p]),
    "params_recommend": (c_int, [c_void_p, POINTER(Params), c_char_p]),
    "params_init": (None, [POINTER(Params), c_size_t, c_void_p]),
    "submit_ids": (c_int, [c_void_p, _IDS, c_size_t, POINTER(Params), _OUT, c_char_p]),
    "submit_text": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(Params), _OUT, c_char_p]),
    "submit_chat": (c_int, [c_void_p, c_char_p, c_size_t, c_char_p, POINTER(Params), _OUT, c_char_p]),
    "next": (c_int, [c_void_p, POINTER(PieceStruct), c_int]),
    "cancel": (None, [c_void_p]),
    "release": (None, [c_void_p]),
    "prompt_tokens": (c_uint32, [c_void_p]),
    "cached_tokens": (c_uint32, [c_void_p]),
    "admitted_ns": (c_uint64, [c_void_p]),
    "prompt_ids": (_IDS, [c_void_p]),
    "request_error": (c_char_p, [c_void_p]),
    "wakeup_fd": (c_int, [c_void_p]),
    "ready": (c_size_t, [c_void_p, _OUT, c_size_t]),
    "embed_params_init": (None, [POINTER(EmbedParams), c_size_t]),
    "submit_embed_ids": (c_int, [c_void_p, _IDS, c_size_t, POINTER(EmbedParams), _OUT, c_char_p]),
    "submit_embed_text": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(EmbedParams), _OUT, c_char_p]),
    "embedding": (POINTER(c_float), [c_void_p, POINTER(c_size_t)]),
    "tokenize": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(_IDS), POINTER(c_size_t), c_char_p]),
    "tokenize_chat": (c_int, [c_void_p, c_char_p, c_size_t, c_char_p, POINTER(_IDS), POINTER(c_size_t), c_char_p]),
    "detokenize": (c_int, [c_void_p, _IDS, c_size_t, _OUT, POINTER(c_size_t), c_char_p]),
    "tokenize_special": (c_int, [c_void_p, c_char_p, c_size_t, POINTER(_IDS), POINTER(c_size_t), c_char_p]),
    "tokenize_pair": (c_int, [c_void_p, c_char_p, c_char_p, c_size_t, c_char_p, c_size_t, _IDS, POINTER(_IDS),
                              POINTER(c_size_t), c_char_p]),
    "detokenize_plain": (c_int, [c_void_p, _IDS, c_size_t, _OUT, POINTER(c_size_t), c_char_p]),
    "chat_text": (c_int, [c_void_p, c_char_p, c_size_t, c_char_p, _OUT, POINTER(c_size_t), c_char_p]),
    "chat_template": (c_void_p, [c_void_p, POINTER(c_size_t)]),
    "special_token": (c_char_p, [c_void_p, c_char_p, _IDS]),
    "free": (None, [c_void_p]),
}


class _Library:
    """Its attributes are the functions above. Calls release the GIL."""

    def __init__(self, path: str) -> None:
        dll = ctypes.CDLL(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            f = getattr(dll, "rose_lib_" + name)
            f.restype, f.argtypes = result, arguments
            setattr(self, name, f)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the table of functions has no rose_lib_{name}")


_loaded: Optional[_Library] = None


def library() -> _Library:
    """The library: the file of $ROSE_LIBRARY, else the one next to this module, else that of the system."""
    global _loaded
    if _loaded is None:
        own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libroseinfer.so")
        path = os.environ.get("ROSE_LIBRARY") or (own if os.path.exists(own) else f"libroseinfer.so.{API_MAJOR}")
        try:
            lib = _Library(path)
        except (OSError, AttributeError) as e:
            raise ImportError(f"cannot use the C library of roseinfer: {e}; install the wheel, or set "
                              "ROSE_LIBRARY to the path of a libroseinfer.so of this version") from e
        if lib.api_version() // 1000 != API_MAJOR:
            raise ImportError(f"{path} has version {lib.api_version() / 1000:.3f} of the C API, and this module needs "
                              f"version {API_MAJOR}")
        _loaded = lib
    return _loaded


def check(rc: int, err: Any) -> None:
    """Raises what a negative result stands for. err: the buffer with the library's line."""
    if rc < 0:
        raise _ERRORS.get(rc, InternalError)(err.value.decode("utf-8", "replace") or f"the library returned {rc}")
