"""The options of LLM and AsyncLLM: those of `roseinfer serve` with underscores, and vLLM's names for them.

The library has the table of an engine's options, which the command line reads as well, and checks the values. Here are
only the options that are none of the engine's, and what vLLM calls otherwise."""
from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import _native as n

# Members of rose_lib_options that hold a text.
TEXTS = ("chat_template", "generation_config", "pooling", "task")
# 0 is the default of these, as None is.
ZERO = ("max_num_seqs", "max_num_batched_tokens", "max_num_queued_reqs", "threads", "max_model_len", "num_kv_pages")
# Another name: the option.
ALIASES = {"pooling_type": "pooling", "pin_threads": "cpu_affinity", "enable_prefix_caching": "prefix_cache",
           "enable_chunked_prefill": "chunked_prefill", "kv_cache_memory_bytes": "kv_cache_memory",
           "num_gpu_blocks_override": "num_kv_pages", "async_scheduling": "overlap_schedule"}
# An option: values of vLLM, and what they are here. None: the default.
VALUES: Dict[str, Dict[Any, Any]] = {
    "dtype": {"half": "float16", "float": "float32"},
    "load_format": {"safetensors": "auto", "hf": "auto"},
    "max_model_len": {"auto": None, -1: None},
    "task": {"generate": "auto", "score": "auto", "embedding": "embed"},
    "quantization": {"None": "none"},
}

# Options of vLLM that change nothing here: the values that ask for what is so anyhow (None is always one of them; no
# list: any value), and what to say of others.
Row = Tuple[Optional[Tuple[Any, ...]], str]
ONE_GPU = "an engine runs on one device; open an engine for each GPU, with device=\"cuda:N\", in a process of its own"
ALREADY: Dict[str, Row] = {
    "tensor_parallel_size": ((1,), ONE_GPU),
    "pipeline_parallel_size": ((1,), ONE_GPU),
    "data_parallel_size": ((1,), ONE_GPU),
    "distributed_executor_backend": (("uni", "mp"), ONE_GPU),
    "worker_use_ray": ((False,), ONE_GPU),
    "disable_custom_all_reduce": (None, ""),
    "trust_remote_code": (None, ""),  # no code of a model is ever run
    "compilation_config": (None, ""),
    "served_model_name": (None, ""),
    "disable_log_requests": ((True,), "an LLM logs no requests; RequestOutput.metrics has their times"),
    "enable_log_requests": ((False,), "an LLM logs no requests; RequestOutput.metrics has their times"),
    "disable_log_stats": ((True,), "an LLM logs no statistics; RequestOutput.metrics has the times of a request"),
    "swap_space": (None, ""),  # a preempted request is computed again, with the same results
    "cpu_offload_gb": ((0,), "weights are either on the GPU or, with device=\"cpu\", in main memory"),
    "tokenizer_mode": (("auto",), "there is one tokenizer"),
    "skip_tokenizer_init": ((False,), "the tokenizer is always opened; prompts may still be ids"),
    "tokenizer_revision": ((), "the tokenizer comes with the model; revision is for both"),
    "kv_cache_dtype": (("auto",), "a KV cache of another type is not there yet"),
    "block_size": ((16,), "a page of the KV cache has 16 tokens"),
    "enable_lora": ((False,), "adapters are not there yet"),
    "runner": (("auto", "generate", "pooling"), "every model generates and embeds"),
    "convert": (("auto", "none", "embed"), "no model is converted; pooling and task say how it embeds and scores"),
    "pooler_config": ((), "pooling=\"last\" or \"mean\" says how to pool, and normalize of embed whether to normalise"),
    "override_pooler_config": ((), "pooling=\"last\" or \"mean\" says how to pool, and normalize of embed whether to normalise"),
    "hf_token": ((), "set the environment variable HF_TOKEN"),
    "hf_overrides": (({},), "change config.json of a copy of the model"),
    "download_dir": ((), "set the environment variable HF_HUB_CACHE"),
    "config_format": (("auto", "hf"), "the format is found out"),
    "max_logprobs": ((20,), "at most 20"),
    "scheduling_policy": (("fcfs", "priority"), "requests run by priority, and equal ones in order"),
    "logits_processors": (([],), "see bad_words, logit_bias, allowed_token_ids and structured_outputs of SamplingParams"),
    "allowed_local_media_path": (("",), "models of images and sound are not served"),
    "limit_mm_per_prompt": (({},), "models of images and sound are not served"),
    "mm_processor_kwargs": (({},), "models of images and sound are not served"),
    "disable_sliding_window": ((False,), "a model keeps its sliding windows"),
}


class Settings(NamedTuple):
    texts: Dict[str, str]  # members of rose_lib_options
    more: List[str]  # NAME=VALUE
    seed: Optional[int]  # of requests without one
    revision: Optional[str]


def engine_names() -> List[str]:
    """The options of an engine that the library knows."""
    names: List[str] = []
    while True:
        name = n.library().option_name(len(names))
        if name is None:
            return names
        names.append(name.decode().replace("-", "_"))


def near(name: str, names: Any) -> str:
    """A part of a message: the name that was probably meant."""
    found = difflib.get_close_matches(name, list(names), 1, 0.7)
    return f"; did you mean '{found[0]}'?" if found else ""


def check_already(name: str, value: Any, row: Row) -> None:
    values, why = row
    if value is not None and values is not None and not any(value == v and isinstance(value, bool) == isinstance(v, bool)
                                                            for v in values):
        raise n.InvalidArgumentError(f"{name}={value!r}: {why}. Leave it out")


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, dict):
        return json.dumps(value)
    if not isinstance(value, (str, int, float)):
        raise n.InvalidArgumentError(f"{name}: a text, a number or a bool is needed, not {type(value).__name__}")
    return str(value)


def _seed(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise n.InvalidArgumentError(f"seed: {value!r} is not a whole number from 0 to 2^64 - 1")
    return value


def read_options(model: str, options: Dict[str, Any]) -> Settings:
    """Sorts the options of LLM. None means that an option is not given."""
    names = engine_names()
    out = Settings({}, [], None, None)
    for given, value in options.items():
        name = ALIASES.get(given, given)
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value in VALUES.get(name, {}):
            value = VALUES[name][value]
        if given == "enforce_eager":
            name, value = "cuda_graph", None if value is None else not value
        if given in ALREADY:
            check_already(given, value, ALREADY[given])
        elif given == "tokenizer":
            if value is not None and os.fspath(value) != os.fspath(model):
                raise n.InvalidArgumentError(f"tokenizer={value!r}: a model is used with its own tokenizer, which is "
                                             "in its folder; copy the model's files and this tokenizer into one folder")
        elif given in ("seed", "revision"):
            if value is not None:
                out = out._replace(seed=_seed(value)) if given == "seed" else out._replace(revision=_value(given, value))
        elif name in TEXTS:
            if value is not None:
                out.texts[name] = value
        elif name not in names:
            raise TypeError(f"LLM has no option '{given}'{near(given, [*names, *ALIASES, *TEXTS, *ALREADY])} "
                            "(`roseinfer serve --help-all` lists those of an engine)")
        elif value is not None and not (value == 0 and name in ZERO):
            out.more.append(f"{name}={_value(given, value)}")
    return out


# ---- models by name ----

def _program() -> str:
    """The program of the same package, else that of the system."""
    own = os.path.join(sysconfig.get_path("scripts"), "roseinfer")
    found = os.environ.get("ROSE_PROGRAM") or (own if os.path.exists(own) else shutil.which("roseinfer"))
    if found is None:
        raise n.ModelError("models of the hub are fetched by the program roseinfer, which is not there: install the "
                           "wheel, or set ROSE_PROGRAM to its path")
    return found


def is_hub_name(model: str) -> bool:
    """Whether a model is ORG/NAME or ORG/NAME:QUANT, and no path of this machine. So is it for `serve`: a path comes
    first, also one whose first folder is there."""
    return (re.fullmatch(r"\w[\w.-]*/[\w-][\w.-]*(:[\w.-]+)?", model, re.ASCII) is not None
            and not os.path.lexists(model) and not os.path.exists(model.split("/", 1)[0]))


def find_model(path: str, revision: Optional[str]) -> str:
    """The path of a model; one of the hub is fetched if it is not in the cache. The program does it, as for `serve`: Ctrl-C
    ends it, and its progress goes to standard error."""
    if not is_hub_name(path):
        if revision is not None:
            raise n.InvalidArgumentError(f"revision={revision!r}: {path} is a path, and no model of the hub")
        return path
    at = ["--revision", revision] if revision is not None else []
    with subprocess.Popen([_program(), "pull", "--no-refresh", *at, path], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as p:
        assert p.stdout is not None and p.stderr is not None
        line = ""
        for raw in p.stderr:
            line = raw.decode("utf-8", "replace")
            if not line.startswith("roseinfer: "):
                print(line, end="", file=sys.stderr, flush=True)
        found = p.stdout.read().rstrip(b"\n")
    if p.returncode != 0:
        raise n.ModelError(line.strip().replace("roseinfer: ", "", 1) or f"roseinfer pull {path} failed")
    return os.fsdecode(found)
