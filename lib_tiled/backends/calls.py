"""Tells a listener which kernel ran, at the moment it ran. What nobody listens to is not recorded."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass
class Call:
    """One attention call that has run: kernel name, queries, keys, output, and why this kernel if not as chosen.

    detail: what tells apart calls of one reason ("D=40"); the line names the reason once with all of them.
    """

    kernel: str  # "tiled", "sdp:flash", "xformers:ckF", "Doggettx" ...; "" for a reason alone
    q: Tensor | None = None
    k: Tensor | None = None
    out: Tensor | None = None
    reason: str = ""
    detail: str = ""
    tile: object | None = None  # the score tile that the tiled kernel used
    started: object | None = None  # what the listener's clock said before the call


_listener: Callable[[Call], None] | None = None
_clock: Callable[[Tensor], object] | None = None
_told = threading.local()  # .calls told so far in this thread; lets `named` see whether a kernel spoke for itself


def listen(listener: Callable[[Call], None] | None, clock: Callable[[Tensor], object] | None = None) -> None:
    """Make `listener` the one that is told of calls; None for nobody. `clock(q)` is read before each call."""
    global _listener, _clock
    _listener, _clock = listener, clock


def start(q: Tensor):
    """To be handed to `ran` afterwards: when the call on `q` began, None where nobody measures."""
    return None if _clock is None else _clock(q)


def ran(kernel: str, q=None, k=None, out=None, reason: str = "", detail: str = "", tile=None, started=None) -> None:
    """Say that `kernel` has just computed one attention call."""
    _told.calls = told() + 1
    _tell(kernel, q, k, out, reason, detail, tile, started)


def note(reason: str, detail: str = "") -> None:
    """Say why the next call runs where it was not meant to. Counts as no call."""
    _tell("", reason=reason, detail=detail)


def _tell(*call, **more) -> None:
    if _listener is None:
        return
    try:
        _listener(Call(*call, **more))
    except Exception:  # counting must cost no picture
        logging.getLogger("Tiled").warning("an attention call could not be counted", exc_info=True)


def name_of(function) -> str:
    """What to call a function, or an object that can be called, in the line."""
    return getattr(function, "__name__", type(function).__name__)


def told() -> int:
    """How many calls were told of in this thread so far: the same before and after a function that told nothing."""
    return getattr(_told, "calls", 0)


@contextlib.contextmanager
def named(kernel: str):
    """Around a host's attention function: if nothing inside said what ran, it was `kernel`."""
    before = told()
    yield
    if told() == before:
        ran(kernel)
