"""The buttons "Benchmark this GPU" and "Tune": one at a time, never beside a generation, to be cancelled."""

from __future__ import annotations

import contextlib
import importlib
import re
import threading
from collections.abc import Callable, Iterator

from modules import call_queue, devices, shared

from ..report.generation import history
from . import tab_view

SIZES = ["512x512", "768x768", "1024x1024", "1536x1536", "2048x2048"]
REFERENCE = "tiled"
BUSY = "<p>A generation is running. Try again when it is done.</p>"
NOTHING = "<p>Nothing was measured.</p>"

CANCELLED = "<p>Cancelled; nothing was kept.</p>"

Progress = Callable[[float, str], None]
_cancelled = threading.Event()


def _command(name: str):
    """lib_tiled.cli.bench or .tune, imported when first used."""
    return importlib.import_module(f"..cli.{name}", __package__)


class _Cancelled(Exception):
    pass


def cancel() -> None:
    """Stop what runs after the call it is measuring."""
    _cancelled.set()


@contextlib.contextmanager
def _idle() -> Iterator[bool]:
    """Whether nothing is being generated; if so, generations wait until the block ends."""
    free = call_queue.queue_lock.acquire(blocking=False)
    try:
        yield free
    finally:
        if free:
            call_queue.queue_lock.release()


def own_sizes() -> list[str]:
    """The sizes of the last generations, hires passes too: "512x512"."""
    found = (size for generation in reversed(history.all()) for size in re.findall(r"\d+x\d+", generation.what))
    return list(dict.fromkeys(found))


def benchmark(sizes: list[str], progress: Progress) -> str:
    """Measure every backend at the sizes chosen and at the user's own; returns HTML. progress(share, what)."""
    with _idle() as idle:
        if not idle:
            return BUSY
        _cancelled.clear()
        return _view(_measure(_sorted({*sizes, *own_sizes()}), progress))


def _sorted(sizes: set[str]) -> list[str]:
    def pixels(size: str) -> int:
        width, height = map(int, size.split("x"))
        return width * height

    return sorted(sizes, key=pixels)


def _measure(sizes: list[str], progress: Progress) -> dict[tuple[str, str], object]:
    """(size, backend) -> measurement, as far as it came before it was cancelled."""
    bench = _command("bench")
    names = bench.backends(shared.device)
    wanted = [(size, name) for size in sizes for name in names]
    found = {}
    for done, (size, name) in enumerate(wanted):
        if _cancelled.is_set():
            break
        progress(done / len(wanted), f"{name} at {size}")
        width, height = map(int, size.split("x"))
        found[size, name] = bench.measure(name, width, height, shared.device, devices.dtype)
    devices.torch_gc()
    return found


def _view(found: dict) -> str:
    """Charts, and a table that compares with Tiled; the user's own sizes are marked."""
    if not found:
        return NOTHING
    sizes, names = (list(dict.fromkeys(column)) for column in zip(*found, strict=True))
    mine = own_sizes()

    def lines(value: Callable) -> dict[str, list[float | None]]:
        usable = {key: value(result) for key, result in found.items() if not result.error}
        return {name: [usable.get((size, name)) for size in sizes] for name in names}

    charts = tab_view.chart("Time of one call", "ms", sizes, lines(lambda result: result.seconds * 1e3))
    charts += tab_view.chart("Extra memory", "MB", sizes, lines(lambda result: result.bytes / 2**20))
    rows = []
    for (size, name), result in found.items():
        marked = f"<b>{size}</b> (yours)" if size in mine else size
        rows.append([marked, name, *_row(result, found.get((size, REFERENCE)))])
    stopped = "<p>Cancelled; this is what was measured until then.</p>" if _cancelled.is_set() else ""
    head = ["Size", "Attention", "ms", "MB", "Against Tiled"]
    charts = f'<div class="tiled-attention-charts">{charts}</div>'
    return stopped + tab_view.legend(names) + charts + tab_view.table(head, rows)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _row(result, reference) -> list[str]:
    """Time, memory (0: not known) and how many times those of Tiled they are."""
    if result.error:
        return ["", "", tab_view.escape(result.error)]
    cells = [_number(result.seconds * 1e3), _number(result.bytes / 2**20) if result.bytes else ""]
    if reference is None or reference is result or reference.error:
        return [*cells, ""]
    ratios = [f"{_number(result.seconds / reference.seconds)} times the time"]
    if reference.bytes and result.bytes:
        ratios.append(f"{_number(result.bytes / reference.bytes)} times the memory")
    return [*cells, ", ".join(ratios)]


def tuned(progress: Progress) -> str:
    """Measure this device once and keep what suits it; returns HTML."""

    def step(share: float, what: str) -> None:
        if _cancelled.is_set():
            raise _Cancelled
        progress(share, what)

    with _idle() as idle:
        if not idle:
            return BUSY
        _cancelled.clear()
        try:
            return f"<pre>{tab_view.escape(_command('tune').tune(shared.device, step))}</pre>"
        except _Cancelled:
            return CANCELLED
