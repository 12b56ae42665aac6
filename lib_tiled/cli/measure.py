"""Time and memory of attention methods on one device.

Time: the methods take turns, round by round, so that a neighbour who wakes up hits all of them alike; the minimum
tells what a method can do, the median how quiet the machine was. Memory: on CUDA and ROCm what torch's allocator
counts; on a CPU a process of its own for each method reads its resident high-water mark (`peak.extra_peak`). The
first result of each method is compared with ours.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..kernel import is_out_of_memory
from . import peak
from .methods import METHODS, NotHere, scores_bytes
from .shapes import Call

REPEAT_SECONDS = 0.05  # a round repeats short calls for about this long
LONG_SECONDS = 1.0  # from here on a first call counts
Step = Callable[[str], None]


@dataclass
class Measurement:
    """One method at one call: seconds (minimum and median), bytes of extra memory at the peak, or why there is none."""

    call: Call
    method: str
    seconds: float = math.nan
    median: float = math.nan
    bytes: int = 0  # 0: not known
    error: str = ""

    def to_dict(self) -> dict:
        known = {name: None if value != value else value for name, value in asdict(self).items()}
        return {**known, "bytes": self.bytes or None}


def synchronize(device: torch.device) -> None:
    """Wait until `device` has done what it was given."""
    if device.type in ("cuda", "xpu"):
        getattr(torch, device.type).synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def free_memory(device: torch.device) -> float:
    """Bytes that can still be taken, infinite where nobody knows."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return math.inf
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), math.inf)


def inputs(call: Call, device: torch.device, dtype: torch.dtype, backward: bool = False) -> list[Tensor]:
    """Seeded q, k, v as models hold them: (B, H, N, D) views of (B, N, H, D)."""
    generator = torch.Generator().manual_seed(0)
    tensors = []
    for n in (call.queries, call.keys, call.keys):
        t = torch.randn(call.batch, n, call.heads, call.dim, generator=generator).to(device, dtype)
        tensors.append(t.transpose(1, 2).requires_grad_(backward))
    return tensors


def runner(method: str, tensors: list[Tensor], backward: bool) -> Callable[[], Tensor]:
    """One call of a method, with its backward pass if asked for. Raises NotHere."""
    attention = METHODS[method]()
    if not backward:
        return lambda: attention(*tensors)

    def run() -> Tensor:
        out = attention(*tensors)
        torch.autograd.grad(out.sum(), tensors)
        return out.detach()

    return run


def _reason(error: Exception) -> str:
    if isinstance(error, NotHere):
        return str(error)
    if is_out_of_memory(error):
        return "out of memory"
    return f"{type(error).__name__}"


def _first(measurement: Measurement, tensors: list[Tensor], backward: bool, expected: Tensor | None):
    """The method's runner, its first result and the seconds that took; (None, None, nan) and an error noted where it
    cannot run or is wrong."""
    call, device = measurement.call, tensors[0].device
    wanted = scores_bytes(measurement.method, *call[:4], tensors[0].element_size()) * (2 if backward else 1)
    if wanted > 0.9 * free_memory(device):
        measurement.error = "too large"
        return None, None, math.nan
    try:
        run = runner(measurement.method, tensors, backward)
        start = time.perf_counter()
        out = run()
        synchronize(device)
        seconds = time.perf_counter() - start
    except Exception as error:  # a peer that fails is a row of the table, not the end of it
        measurement.error = _reason(error)
        return None, None, math.nan
    if expected is not None and out.shape != expected.shape:
        measurement.error = f"wrong: {out.shape[-2]} rows"
    elif expected is not None and not torch.allclose(out.float(), expected.float(), atol=0.02, rtol=0.02):
        measurement.error = "wrong"
    return (None, None, math.nan) if measurement.error else (run, out, seconds)


def times(
    call: Call,
    methods: Iterable[str],
    device: torch.device,
    dtype: torch.dtype,
    rounds: int = 3,
    backward: bool = False,
    step: Step = lambda what: None,
) -> list[Measurement]:
    """Time of each method at one call. `step` is told before every round of every method; what it raises ends all."""
    found = [Measurement(call, method) for method in methods]
    with torch.inference_mode(not backward), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the peers' own
        tensors = inputs(call, device, dtype, backward)
        runners, samples, expected = [], [], None
        for m in found:
            step(f"{m.method} {call}")
            run, out, seconds = _first(m, tensors, backward, expected)
            runners.append(run)
            samples.append([seconds] if seconds > LONG_SECONDS else [])  # it warms up; where it is long, it counts
            expected = out if expected is None else expected
            del out
        for _ in range(rounds):
            for m, run, sample in zip(found, runners, samples):
                step(f"{m.method} {call}")
                stop = time.perf_counter() + REPEAT_SECONDS
                while run:
                    synchronize(device)
                    start = time.perf_counter()
                    run()
                    synchronize(device)
                    sample.append(time.perf_counter() - start)
                    if time.perf_counter() > stop:
                        break
        for m, run, sample in zip(found, runners, samples):
            if run:
                m.seconds, m.median = min(sample), statistics.median(sample)
    return found


def memory_here(m: Measurement, device: torch.device, dtype: torch.dtype, backward: bool = False) -> None:
    """Notes the method's extra memory at the peak, measured in this process."""
    with torch.inference_mode(not backward):
        run, *_ = _first(m, inputs(Call(1, 2, 64, 64, m.call.dim), device, dtype, backward), backward, None)
        if run is None:
            return
        wanted = scores_bytes(m.method, *m.call[:4], torch.finfo(dtype).bits // 8) * (2 if backward else 1)
        if wanted > 0.9 * free_memory(device):
            m.error = "too large"
            return
        try:
            run = runner(m.method, inputs(m.call, device, dtype, backward), backward)
            m.bytes = peak.extra_peak(run, device) or 0
        except Exception as error:
            m.error = _reason(error)


def memory(found: list[Measurement], device: torch.device, dtype: torch.dtype, backward: bool, step: Step) -> None:
    """Notes the extra memory of measurements that have a time: here on a GPU, on a CPU in a process for each method."""
    for method in dict.fromkeys(m.method for m in found):
        mine = [m for m in found if m.method == method and not m.error]
        if device.type != "cpu":
            for m in mine:
                step(f"memory of {method}")
                memory_here(m, device, dtype, backward)
            continue
        task = {"method": method, "calls": [m.call for m in mine], "dtype": str(dtype).rpartition(".")[2],
                "backward": backward, "threads": torch.get_num_threads()}
        step(f"memory of {method}")
        command = [sys.executable, "-m", __name__, json.dumps(task)]
        root = Path(__file__).resolve().parents[2]
        done = subprocess.run(command, capture_output=True, text=True, env=peak.environment(), cwd=root)
        answers = done.stdout.splitlines()[-1:] if done.returncode == 0 else []
        for m, size in zip(mine, json.loads(answers[0]) if answers else []):
            m.bytes = size


def _worker(task: dict) -> list[int]:
    torch.set_num_threads(task["threads"])
    found = [Measurement(Call(*call), task["method"]) for call in task["calls"]]
    for m in found:
        memory_here(m, torch.device("cpu"), getattr(torch, task["dtype"]), task["backward"])
    return [m.bytes for m in found]


if __name__ == "__main__":
    print(json.dumps(_worker(json.loads(sys.argv[1]))))
