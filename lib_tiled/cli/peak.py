"""How much memory a call needs at its peak, beyond what was there before it."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch

#: Environment of a process that measures with `extra_peak`: glibc then gives freed blocks back at once, so that a
#: call cannot live on what an earlier one left over.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "2"}


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def extra_peak(call: Callable[[], object], device: torch.device) -> int | None:
    """Bytes that `call` needs at its peak beyond what was in use before, its result included.

    CUDA and ROCm: what torch's allocator counts. CPU on Linux: the kernel's high-water mark of resident memory, which
    is set back before the call; it sees the buffers inside matmul libraries too. None where neither is at hand.
    Other calls of the process must rest meanwhile.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = call()
        torch.cuda.synchronize(device)
        del result
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu" or not sys.platform.startswith("linux"):
        return None
    try:
        Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM back to VmRSS
        before = _resident("VmRSS:")
        result = call()
        del result
        return max(_resident("VmHWM:") - before, 0)
    except OSError:
        return None


def environment() -> dict[str, str]:
    """This process' environment with `ENVIRONMENT` added."""
    return {**os.environ, **ENVIRONMENT}
