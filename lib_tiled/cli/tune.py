"""`python -m lib_tiled tune`: measure this device once and keep the tile size that suits it.

Only this command measures; a generation never does. The result goes into the file that `kernel.tuned` documents and
changes how the planner cuts attention into tiles, and with that the last bits of a picture.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable

import torch

from ..device.facts import facts
from ..device.probe import default_device
from ..kernel import options, tiled_attention, tuned
from . import bench
from .measure import inputs, synchronize
from .progress import Progress
from .shapes import Call
from .table import table

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)  # MiB
GAIN = 0.97  # a tile size is kept only if it takes at most this share of the time of the planner's own
CALLS = [Call(2, 8, 4096, 4096, 40), Call(2, 10, 4096, 4096, 64), Call(2, 20, 1024, 1024, 64)]
GPU_CALLS = [*CALLS, Call(1, 24, 4352, 4352, 128), Call(1, 1, 16384, 16384, 512)]


def _seconds(tensors: list[torch.Tensor], device: torch.device, size: int) -> float:
    with options.using(scratch_mb=size, rows=None):
        synchronize(device)
        start = time.perf_counter()
        tiled_attention(*tensors)
        synchronize(device)
        return time.perf_counter() - start


def measure(device: torch.device, rounds: int, step: Callable[[float, str], None]) -> dict[int | None, list[float]]:
    """Least seconds of each call for each tile size in MiB, None being the planner's own. Sizes take turns."""
    dtype = torch.float32 if device.type == "cpu" else torch.float16
    calls = CALLS if device.type == "cpu" else GPU_CALLS
    own = facts(device).scratch_bytes >> 20  # the planner's limit, not that of an earlier run
    found: dict[int | None, list[float]] = {size: [] for size in (None, *SIZES)}
    total = len(calls) * (rounds + 1) * len(found)
    done = 0
    with torch.inference_mode():
        for call in calls:
            tensors = inputs(call, device, dtype)
            least = dict.fromkeys(found, math.inf)
            for turn in range(rounds + 1):
                for size in found:
                    step(done / total, f"{size or 'own'} MB at {call}")
                    seconds = _seconds(tensors, device, size or own)
                    least[size] = min(least[size], seconds) if turn else math.inf  # the first turn warms up
                    done += 1
            for size, seconds in least.items():
                found[size].append(seconds)
    return found


def choose(found: dict[int | None, list[float]]) -> int | None:
    """The size with the least geometric mean, None (the planner's own) unless another is clearly faster."""
    mean = {size: bench.geometric_mean(seconds) for size, seconds in found.items()}
    best = min(mean, key=mean.get)
    return best if mean[best] <= GAIN * mean[None] else None


def tune(device: torch.device, progress: Callable[[float, str], None], rounds: int = 2) -> str:
    """Measures, stores, and tells in words. `progress` gets a share from 0 to 1 and what is measured; what it raises
    ends the run with nothing stored."""
    found = measure(device, rounds, progress)
    size = choose(found)
    file = tuned.store(device, size)
    own = found[None]
    rows = [[f"{s} MB" if s else "planner's own", *(f"{x * 1e3:.1f}" for x in seconds),
             f"{bench.geometric_mean([a / b for a, b in zip(seconds, own)]):.2f}"] for s, seconds in found.items()]
    calls = CALLS if device.type == "cpu" else GPU_CALLS
    kept = f"a tile may fill {size} MB" if size else "the planner's own tiles"
    return (f"{tuned.key(device)}\n\n{table(['tile', *map(str, calls), 'mean'], rows)}\n\n"
            f"ms (least of {rounds}); kept: {kept}\n{file}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", type=bench.device, help="cpu, cuda:0, mps, ...; default: the first GPU or the CPU")
    parser.add_argument("--rounds", type=bench.positive, default=2, help="turns each tile size gets (default: 2)")
    parser.add_argument("--forget", action="store_true", help="measure nothing; forget what was kept for this device")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """0, or 1 where the result could not be kept."""
    device = args.device or default_device()
    try:
        if args.forget:
            tuned.forget(device)
            report = f"{tuned.key(device)}: forgotten"
        else:
            with Progress(1) as progress:
                report = tune(device, progress.share, args.rounds)
    except OSError as error:
        print(f"tune: the result could not be kept: {error}", file=sys.stderr)
        return 1
    result = {"device": tuned.key(device), "scratch_mb": tuned.scratch_mb(device), "file": str(tuned.path())}
    print(json.dumps(result, indent=2) if args.json else report)
    return 0
