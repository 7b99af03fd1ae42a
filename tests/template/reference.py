"""The two sides of the comparison: transformers' apply_chat_template, and build/tests/tools/template_pipe."""
import datetime
import json
import os
import subprocess

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

ROOT = os.environ.get("ROSE_ROOT", os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
NOW = 1790000000
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class FixedClock(datetime.datetime):
    """The clock of strftime_now: NOW, in UTC, as template_pipe has it."""

    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None)


class Reference:
    def __init__(self):
        chat_template_utils.datetime = FixedClock
        self.tok = PreTrainedTokenizerFast(tokenizer_file=os.path.join(ROOT, "models/rose-tiny/tokenizer.json"), **TOKENS)

    def render(self, case):
        """(text, None), or (None, the error)."""
        try:
            text = self.tok.apply_chat_template(
                case["messages"], tools=case.get("tools"), documents=case.get("documents"), tokenize=False,
                chat_template=case["template"], add_generation_prompt=case.get("add_generation_prompt", False),
                continue_final_message=case.get("continue_final_message", False), **case.get("kwargs", {}))
            text.encode()
            return text, None
        except Exception as e:  # whatever Python raises inside a template
            return None, f"{type(e).__name__}: {e}"


class Ours:
    def __init__(self, pipe):
        self.proc = subprocess.Popen([pipe], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def answer(self, case):
        q = {"tokens": TOKENS, "now": NOW, **{k: v for k, v in case.items() if v is not None}}
        self.proc.stdin.write(json.dumps(q).encode() + b"\n")
        self.proc.stdin.flush()
        line = self.proc.stdout.readline()
        if not line:
            raise SystemExit(f"template_pipe ended at {json.dumps(case)[:2000]}")
        return json.loads(line)

    def render(self, case):
        a = self.answer(case)
        return a.get("text"), a.get("error")


def differs(ours, theirs):
    """Both fail, or both give the same text."""
    return ours[0] != theirs[0]
