"""What the tile planner needs to know of a device: how fast, how much cache, what a launch costs.

Only facts that stay the same from call to call. Free memory is none of them: a plan that follows it would
draw another picture from the same seed, and some AMD systems report it wrong.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path

import torch

from . import architectures

MIB = 1 << 20


@dataclass(frozen=True)
class DeviceFacts:
    """One device as the cost model of ``kernel.plan`` sees it.

    Rates are order-of-magnitude figures; the plan depends on their ratios, not on their last digit.
    """

    name: str
    cache_bytes: int  # what a score tile may fill and still be found in the cache by the next operation
    scratch_bytes: int  # upper limit for a score tile
    units: int  # compute units, SMs or CPU threads
    matmul_flops: dict = field(hash=False)  # dtype name -> FLOP/s of a large matmul
    memory_bandwidth: float  # bytes/s
    cache_bandwidth: float  # bytes/s
    softmax_rate: float  # elements/s of a softmax that finds its input in the cache
    launch_seconds: float  # cost of starting one operation
    half_rate_rows: int  # rows at which a matmul reaches half of its rate
    bf16_matmul: bool = True

    def rate(self, dtype: torch.dtype) -> float:
        name = str(dtype).rpartition(".")[2]
        return self.matmul_flops.get(name, self.matmul_flops["float32"])


def cpu_cache_bytes(default: int = 32 * MIB) -> int:
    """Size of the last-level cache of CPU 0 in bytes (Linux), else `default`."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            text = path.read_text().strip()
            sizes.append(int(text[:-1]) * {"K": 1 << 10, "M": MIB}[text[-1]])
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return max(sizes, default=default)


def _cpu_facts() -> DeviceFacts:
    threads = torch.get_num_threads()
    # An eighth of the last-level cache: the rest holds K, V, the output and what other cores keep there.
    cache = min(max(cpu_cache_bytes() // 8, 1 * MIB), 16 * MIB)
    return DeviceFacts(
        name="cpu",
        cache_bytes=cache,
        scratch_bytes=24 * MIB,
        units=threads,
        matmul_flops={"float32": 70e9 * threads, "float64": 35e9 * threads},
        memory_bandwidth=10e9 * min(threads, 8),
        cache_bandwidth=40e9 * threads,
        softmax_rate=0.75e9 * threads,
        launch_seconds=5e-6 * (1 + threads) if threads > 1 else 5e-6,  # the threads meet after each operation
        half_rate_rows=12,
    )


# For accelerators that say nothing of themselves (MPS, XPU, DirectML): in the order of a mid-range card.
_GPU_DEFAULT = dict(
    matmul_flops={"float16": 20e12, "bfloat16": 20e12, "float32": 10e12, "float64": 0.5e12},
    memory_bandwidth=0.5e12,
    cache_bandwidth=1.5e12,
    softmax_rate=0.1e12,
    launch_seconds=8e-6,
    half_rate_rows=32,
)

#: gfx906 as its data sheet gives it (60 CUs, 4 MB L2, 1 TB/s, 26.5 TFLOP/s fp16, 13.3 fp32). Not measured.
GFX906 = DeviceFacts(
    name="gfx906",
    cache_bytes=4 * MIB,
    scratch_bytes=64 * MIB,
    units=60,
    matmul_flops={"float16": 26.5e12, "bfloat16": 13.3e12, "float32": 13.3e12, "float64": 6.6e12},
    memory_bandwidth=1.0e12,
    cache_bandwidth=2.0e12,
    softmax_rate=0.25e12,
    launch_seconds=8e-6,
    half_rate_rows=32,
    bf16_matmul=False,
)


def _cuda_facts(index: int) -> DeviceFacts:
    properties = torch.cuda.get_device_properties(index)
    units = properties.multi_processor_count
    architecture = architectures.of_gpu(properties)
    nvidia = architectures.capability(architecture)
    per_unit = 0.15e12 if nvidia and nvidia < (7, 0) else 0.45e12
    return DeviceFacts(
        name=architecture,
        cache_bytes=getattr(properties, "L2_cache_size", 0) or 4 * MIB,
        scratch_bytes=64 * MIB,
        units=units,
        matmul_flops={
            "float16": per_unit * units,
            "bfloat16": per_unit * units,
            "float32": 0.2e12 * units,
            "float64": 0.01e12 * units,
        },
        memory_bandwidth=0.01e12 * units,
        cache_bandwidth=0.03e12 * units,
        softmax_rate=0.004e12 * units,
        launch_seconds=8e-6,
        half_rate_rows=32,
        bf16_matmul=architectures.native_bf16(architecture),  # not where ROCm emulates it
    )


@functools.cache
def _facts(kind: str, index: int, threads: int) -> DeviceFacts:  # `threads` is there for the cache: _cpu_facts reads it
    if kind == "cpu":
        return _cpu_facts()
    if kind == "cuda":
        return _cuda_facts(index)
    return DeviceFacts(
        name=kind,
        cache_bytes=8 * MIB,
        scratch_bytes=64 * MIB,
        units=32,
        bf16_matmul=kind == "xpu",
        **_GPU_DEFAULT,
    )


def facts(device: torch.device) -> DeviceFacts:
    """The facts of `device`, read once per process and number of CPU threads. Never raises for a device that holds
    tensors."""
    index = device.index
    if index is None:
        index = torch.cuda.current_device() if device.type == "cuda" else 0
    return _facts(device.type, index, torch.get_num_threads())
