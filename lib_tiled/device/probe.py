"""`probe(device)`: what a device was seen to run, found out once per device and process."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from pathlib import Path

import torch

from . import architectures, pretend, reasons, trial
from .facts import cpu_cache_bytes
from .result import DIMS, DTYPES, Probe, Support

KERNELS = ("sdp:flash", "sdp:mem-efficient", "sdp:cudnn", "sdp:math", "xformers")

_cache: dict[tuple, Probe] = {}
_lock = threading.Lock()


def default_device() -> torch.device:
    """The device a WebUI would take by itself. Starts none."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_initialized() else 0)
    if getattr(torch, "xpu", None) is not None and torch.xpu.is_available():
        return torch.device("xpu", 0)
    mps = getattr(torch.backends, "mps", None)
    return torch.device("mps" if mps is not None and mps.is_available() else "cpu")


def probe(device: torch.device | str | None = None) -> Probe:
    """What `device` can run: every attention kernel once, on tiny tensors, with the reason where it does not.

    None means the device a WebUI would take by itself. Once per device and process; never raises, a device that
    cannot be used gives a Probe that says so. With TILED_PRETEND=gfx906 the answer is that device's.
    """
    try:
        device = default_device() if device is None else torch.device(device)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_initialized() else 0)
        wanted = os.environ.get(pretend.VARIABLE, "").strip()
        with _lock:  # the trial moves torch's switches, so they are read in here too
            key = (str(device), wanted, sys.modules.get("xformers", "") is None, trial.switches())
            found = _cache.get(key)
            if found is None:
                found = _probe(device, wanted)
                if not _short_of_memory(found):
                    _cache[key] = found
        return found
    except Exception as error:  # whatever a driver or a plug-in comes up with must not stop a generation
        return _unusable(str(device), error)


def _probe(device: torch.device, wanted: str) -> Probe:
    architecture = pretend.known(wanted)
    if architecture:
        return pretend.as_if(architecture, device, _versions())
    torch.ones(1, device=device).cpu()  # a device that cannot do this cannot be used at all
    xformers = trial.load_xformers(device)
    started = time.perf_counter()
    kernels = trial.try_kernels(device, xformers)
    bf16 = trial.try_bf16_matmul(device)
    name, architecture, memory, cache = _identity(device)
    override = os.environ.get("HSA_OVERRIDE_GFX_VERSION", "") if torch.version.hip else ""
    notes = [pretend.unknown_value(wanted)] if wanted else []
    notes += [architectures.explain(architecture)]
    if override:
        notes += [f"HSA_OVERRIDE_GFX_VERSION={override} is set: {architecture} is its word, not the card's."]
    if bf16.runs and device.type == "cuda" and not architectures.native_bf16(architecture):
        bf16 = Support(True, "emulated")
    return Probe(
        device=str(device),
        name=name,
        architecture=architecture,
        kernels=kernels,
        versions=_versions(),
        bf16_matmul=bf16,
        memory_bytes=memory,
        cache_bytes=cache,
        override=override,
        notes=tuple(note for note in notes if note),
        seconds=round(time.perf_counter() - started, 3),
    )


def _short_of_memory(found: Probe) -> bool:
    return any("out of memory" in s.reason.lower() for table in found.kernels.values() for s in table.values())


def _unusable(device: str, error: Exception) -> Probe:
    reason = f"the device cannot be used: {reasons.first_line(error)}"
    table = {(dtype, dim): Support(False, "not tried") for dtype in DTYPES for dim in DIMS}
    return Probe(
        device=device,
        name="unknown",
        architecture=device.partition(":")[0],
        kernels={kernel: dict(table) for kernel in KERNELS},
        versions=_versions(),
        usable=False,
        notes=(reason,),
    )


def _versions() -> dict[str, str]:
    versions = {"torch": torch.__version__}
    if torch.version.hip:
        versions["ROCm"] = torch.version.hip
    if torch.version.cuda:
        versions["CUDA"] = torch.version.cuda
    if trial.xformers_version():
        versions["xformers"] = trial.xformers_version()
    return versions


def _identity(device: torch.device) -> tuple[str, str, int | None, int | None]:
    """Name, architecture, memory and cache in bytes (None where unknown) of a device that is in use already."""
    if device.type == "cpu":
        return cpu_name(), "cpu", _cpu_memory(), cpu_cache_bytes(default=0) or None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return properties.name, architectures.of_gpu(properties), properties.total_memory, _l2_cache(properties)
    if device.type == "xpu":
        properties = torch.xpu.get_device_properties(device)
        return properties.name, "xpu", getattr(properties, "total_memory", None), None
    if device.type == "privateuseone" and "torch_directml" in sys.modules:
        return sys.modules["torch_directml"].device_name(device.index or 0), "directml", None, None
    return platform.processor() or device.type, device.type, None, None


def _l2_cache(properties) -> int | None:
    return getattr(properties, "L2_cache_size", 0) or None


def cpu_name() -> str:
    """The CPU as its maker calls it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine() or "CPU"


def _cpu_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # Windows
        return None
