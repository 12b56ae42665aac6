"""What one generation did: every attention call counted where it ran."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field

import torch

from ..backends.calls import Call
from ..backends.choose import backend_of
from . import place

MOST_DETAILS = 4  # of one reason in the line: SD 1.5 has four head dimensions
DONE, INTERRUPTED, FAILED = "done", "interrupted", "failed"


def clock(q: torch.Tensor):
    """What `calls.start` reads before a call in detailed reports: an event on a GPU, seconds elsewhere."""
    if q.device.type == "cuda":
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
    return time.perf_counter()


@dataclass
class Kind:
    """Calls of one kernel on one shape, for the detailed report."""

    where: str
    kernel: str
    shape: tuple
    keys: int
    calls: int = 0
    tile: object | None = None
    scratch: int = 0  # bytes of the largest score tile
    times: list[tuple] = field(default_factory=list)  # (clock before, clock after)

    def seconds(self) -> float:
        """Time in these calls. Waits for a GPU to finish them."""
        total = 0.0
        for start, end in self.times:
            if isinstance(start, float):
                total += end - start
            else:
                end.synchronize()
                total += start.elapsed_time(end) / 1000
        return total


@dataclass
class Generation:
    """One `process_images_inner` call.

    what: what was made, e.g. "txt2img 512x512 20 steps"; option: the option chosen; choice: what became of it,
    e.g. "Automatic -> Tiled".
    """

    what: str = ""
    option: str = ""
    choice: str = ""
    nested: bool = False
    detailed: bool = False
    status: str = DONE
    counts: Counter = field(default_factory=Counter)  # (place, kernel) -> calls
    shapes: dict[tuple, Kind] = field(default_factory=dict)  # detailed only
    _why: dict[str, list[str]] = field(default_factory=dict)  # reason -> its details
    started: float = field(default_factory=time.time)
    seconds: float = 0.0
    calls: int = 0
    _finite: dict[str, torch.Tensor] = field(default_factory=dict, repr=False)  # kernel -> NaN, or 0

    def record(self, call: Call) -> None:
        """Count one call. A listener for `backends.calls`; a few microseconds, no synchronisation."""
        self.note(call.reason, call.detail)
        if not call.kernel:
            return
        where = place.place(skip=4)
        self.calls += 1
        self.counts[where, call.kernel] += 1
        if self.detailed and call.q is not None and not call.q.is_nested:
            self._detail(where, call)
        out = call.out
        if out is not None and out.dtype == torch.float16 and not out.is_nested:
            # 0 * sum is NaN where anything was not finite; added up on the device, read once at the end.
            probe = out.detach().sum(dtype=torch.float32) * 0
            before = self._finite.get(call.kernel)
            self._finite[call.kernel] = probe if before is None else before + probe.to(before.device)

    def _detail(self, where: str, call: Call) -> None:
        # xformers' layout is (B, N, H, D), all others' (..., N, D).
        keys = call.k.shape[1 if call.kernel.startswith("xformers") else -2]
        key = (where, call.kernel, tuple(call.q.shape), keys)
        kind = self.shapes.setdefault(key, Kind(*key))
        kind.calls += 1
        if call.tile is not None:
            kind.tile = call.tile
            kind.scratch = max(kind.scratch, call.tile.elements * max(call.q.element_size(), 4))
        if call.started is not None:
            kind.times.append((call.started, clock(call.q)))

    def note(self, reason: str, detail: str = "") -> None:
        if not reason:
            return
        reason, detail = " ".join(reason.split()), " ".join(detail.split())  # torch's own messages have line breaks
        details = self._why.setdefault(reason, [])
        if detail and detail not in details:
            details.append(detail)

    @property
    def reasons(self) -> list[str]:
        """Why, in words, each reason once: "xformers found no operator for float16 on cuda (D=40, D=512)"."""
        found = []
        for reason, details in self._why.items():
            more = ", ..." if len(details) > MOST_DETAILS else ""
            found.append(f"{reason} ({', '.join(details[:MOST_DETAILS])}{more})" if details else reason)
        return found

    def finish(self, status: str = DONE) -> None:
        self.status = status
        self.seconds = time.time() - self.started
        bad = [kernel for kernel, probe in self._finite.items() if status != FAILED and bool(probe.isnan())]
        if bad:
            cure = ": set Precision to safe in Settings > Tiled attention" if "tiled" in bad else ""
            self.note(f"non-finite attention output in fp16 of {', '.join(bad)}{cure}")
        self._finite.clear()
        # Only these fall back; beside another choice tiled is somebody else's call.
        running = backend_of((self.choice or self.option).rpartition(" -> ")[2])
        if self.counts[place.UNET, "tiled"] and running in ("sdp", "sdp-no-mem", "xformers"):
            self.choice = f"{self.choice or self.option} -> Tiled"

    def kernels(self) -> dict[str, dict[str, int]]:
        """place -> kernel -> calls, the UNet first, the most frequent kernel first."""
        order = (place.UNET, place.VAE, place.TEXT, place.OTHER)
        return {
            where: {kernel: n for (p, kernel), n in self.counts.most_common() if p == where}
            for where in order
            if any(p == where for p, _ in self.counts)
        }

    def to_dict(self) -> dict:
        """For the API and the page: no prompts, no paths."""
        return {
            "what": self.what,
            "option": self.option,
            "choice": self.choice,
            "kernels": self.kernels(),
            "reasons": self.reasons,
            "status": self.status,
            "nested": self.nested,
            "started": round(self.started, 3),
            "seconds": round(self.seconds, 3),
        }


class History:
    """The last generations, newest last."""

    def __init__(self, size: int = 20):
        self._items: deque[Generation] = deque(maxlen=size)

    def add(self, generation: Generation) -> None:
        self._items.append(generation)

    def last(self) -> Generation | None:
        return self._items[-1] if self._items else None

    def all(self) -> list[Generation]:
        return list(self._items)


history = History()
