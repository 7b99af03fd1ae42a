"""The progress bar of a batch: tqdm's where it is installed, else a line on standard error."""
from __future__ import annotations

import sys
import time
from typing import Any, Callable, Union

# True and False, or what makes a bar, as tqdm does. None: a bar for more than one prompt if standard error is a terminal.
UseTqdm = Union[None, bool, Callable[..., Any]]
EVERY_S = 0.1


class Line:
    """A bar without tqdm."""

    def __init__(self, total: int, desc: str) -> None:
        self.total, self.desc, self.n, self.postfix = total, desc, 0, ""
        self._began, self._shown = time.monotonic(), 0.0
        self._show()

    def _show(self) -> None:
        now = time.monotonic()
        self._shown, took = now, now - self._began
        left = f", {took / self.n * (self.total - self.n):.0f} s left" if 0 < self.n < self.total else ""
        text = f"{self.desc}: {self.n}/{self.total}, {took:.1f} s{left}{', ' + self.postfix if self.postfix else ''}"
        sys.stderr.write("\r" + text.ljust(79))
        sys.stderr.flush()

    def update(self, count: int = 1) -> None:
        self.n += count
        if time.monotonic() - self._shown >= EVERY_S:
            self._show()

    def close(self) -> None:
        self._show()
        sys.stderr.write("\n")
        sys.stderr.flush()


class Progress:
    """Counts prompts that are done, each once, and the tokens of all."""

    def __init__(self, use: UseTqdm, total: int) -> None:
        self._bar: Any = None
        self._done = set()  # type: ignore[var-annotated]
        self._read = self._written = 0
        self._began = time.monotonic()
        if use is None:
            use = total > 1 and sys.stderr is not None and sys.stderr.isatty()
        if use and total > 0:
            make: Callable[..., Any] = use if callable(use) else _default
            self._bar = make(total=total, desc="Processed prompts", dynamic_ncols=True, postfix=self._speed())

    def _speed(self) -> str:
        took = max(time.monotonic() - self._began, 1e-9)
        return f"est. speed input: {self._read / took:.2f} toks/s, output: {self._written / took:.2f} toks/s"

    def add(self, read: int, written: int) -> None:
        self._read += read
        self._written += written

    def done(self, i: int) -> None:
        if self._bar is not None and i not in self._done:
            self._done.add(i)
            self._bar.postfix = self._speed()
            self._bar.update(1)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _default(total: int, desc: str, **more: Any) -> Any:
    try:
        from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]  # pylint: disable=import-outside-toplevel
    except ImportError:
        return Line(total, desc)
    return tqdm(total=total, desc=desc, **more)
