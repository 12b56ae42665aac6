"""Runs each attention kernel once on tiny tensors of one device, and compares what comes out.

The kernels are called past every patch (torch's own builtin, xformers' own function), so that neither this
extension nor another one answers in their place. Nothing global is left changed, the random state included.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import logging
import sys
import warnings

import torch
from torch import Tensor

from . import reasons
from .result import DIMS, DTYPES, FUSED_SDP, Support

TOKENS, HEADS = 16, 2
TOLERANCE = 0.05  # outputs are about 0.2; bf16 stays within 0.01, a kernel built for another GPU does not

_BACKENDS = {  # name -> SDPBackend, its number in _fused_sdp_choice, the switch in torch.backends.cuda
    "sdp:flash": ("FLASH_ATTENTION", 1, "flash_sdp_enabled"),
    "sdp:mem-efficient": ("EFFICIENT_ATTENTION", 2, "mem_efficient_sdp_enabled"),
    "sdp:cudnn": ("CUDNN_ATTENTION", 3, "cudnn_sdp_enabled"),
    "sdp:overrideable": ("OVERRIDEABLE", 4, ""),
    "sdp:math": ("MATH", 0, "math_sdp_enabled"),
}


class NotHere(Exception):
    """A kernel cannot be tried; the text says why."""


def switches() -> tuple[bool, ...]:
    """torch's process-wide switches for the SDPA kernels. Reading them starts no device."""
    names = (switch for _, _, switch in _BACKENDS.values() if switch)
    return tuple(getattr(torch.backends.cuda, name, lambda: True)() for name in names)


def _short_version() -> str:
    return ".".join(torch.__version__.split("+")[0].split(".")[:2])


def _forced(kernel: str):
    """Context manager that lets SDPA use `kernel` alone. Raises NotHere where this torch does not know it."""
    backend, _, switch = _BACKENDS[kernel]
    if switch and not getattr(torch.backends.cuda, switch, lambda: True)():
        raise NotHere("switched off in this process")
    try:
        attention = importlib.import_module("torch.nn.attention")
    except ImportError:
        attention = None
    if hasattr(attention, "sdpa_kernel"):
        if not hasattr(attention.SDPBackend, backend):
            raise NotHere(f"not in torch {_short_version()}")
        return attention.sdpa_kernel(getattr(attention.SDPBackend, backend))
    if kernel not in ("sdp:flash", "sdp:mem-efficient", "sdp:math"):
        raise NotHere(f"not in torch {_short_version()}")
    return torch.backends.cuda.sdp_kernel(  # torch 2.0 to 2.2
        enable_flash=kernel == "sdp:flash",
        enable_mem_efficient=kernel == "sdp:mem-efficient",
        enable_math=kernel == "sdp:math",
    )


def _choice(q: Tensor, k: Tensor, v: Tensor) -> int:
    """The number of the kernel SDPA takes; math on devices for which torch has no other (MPS, DirectML)."""
    try:
        return int(torch._fused_sdp_choice(q, k, v))
    except NotImplementedError:
        return _BACKENDS["sdp:math"][1]


def _run_sdpa(kernel: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q, k, v (1, H, N, D) -> (1, H, N, D) through `kernel` alone."""
    builtin = getattr(torch._C._nn, "scaled_dot_product_attention", None)
    if builtin is None:
        raise NotHere(f"not in torch {_short_version()}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with _forced(kernel):
                out = builtin(q, k, v)
                chosen = _choice(q, k, v)
        except RuntimeError as error:
            texts = [str(warning.message) for warning in caught]
            raise NotHere(reasons.of_sdpa(kernel, error, texts, q.device.type)) from error
    if chosen != _BACKENDS[kernel][1]:
        raise NotHere(f"torch has none for {q.device.type}")
    return out


@contextlib.contextmanager
def _quiet_xformers():
    """xformers logs a five-line warning when its extensions do not load; the probe says it in its own words."""
    logger = logging.getLogger("xformers")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def xformers_version() -> str:
    """Version of xformers, "" where it is not installed or switched off. Imports nothing."""
    if "xformers" in sys.modules and sys.modules["xformers"] is None:
        return ""
    try:
        return importlib.metadata.version("xformers")
    except importlib.metadata.PackageNotFoundError:
        return getattr(sys.modules.get("xformers"), "__version__", "")


def xformers_missing() -> str:
    """Why xformers cannot be tried at all, "" where it is installed and not switched off."""
    if "xformers" in sys.modules and sys.modules["xformers"] is None:  # as reForge leaves it without --xformers
        return "switched off by the WebUI (start it with --xformers)"
    if not xformers_version():
        return "not installed"
    return ""


def load_xformers(device: torch.device):
    """xformers' own attention function, or a text that says why there is none. Takes seconds the first time."""
    missing = xformers_missing()
    if missing:
        return missing
    if "xformers.ops" not in sys.modules and device.type != "cuda" and torch.cuda.is_available():
        return "not tried (loading it would start the GPU, which was not asked about)"
    try:
        with _quiet_xformers():
            ops = importlib.import_module("xformers.ops")
        return getattr(ops, "fmha", ops).memory_efficient_attention
    except Exception as error:  # broken installations raise OSError, AttributeError, ...
        return f"{xformers_version()} does not load ({reasons.first_line(error)})"


def _run_xformers(attention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`attention` is what `load_xformers` returned; q, k, v and the result are (1, H, N, D)."""
    if isinstance(attention, str):
        raise NotHere(attention)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return attention(*(t.transpose(1, 2).contiguous() for t in (q, k, v))).transpose(1, 2)
    except Exception as error:
        raise NotHere(f"{xformers_version()} {reasons.of_xformers(error)}".strip()) from error


@functools.cache
def _example(dtype: str, dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v (1, H, N, D) on the CPU in `dtype`, and their attention in fp32. Leaves the random state alone."""
    generator = torch.Generator().manual_seed(dim)
    q, k, v = (torch.randn(1, HEADS, TOKENS, dim, generator=generator).to(getattr(torch, dtype)) for _ in range(3))
    expected = torch.softmax(q.float() @ k.float().transpose(-1, -2) * dim**-0.5, -1) @ v.float()
    return q, k, v, expected


def _try(run, device: torch.device, dtype: str, dim: int) -> Support:
    """`run(q, k, v)` on `device`, judged by the numbers it gives."""
    q, k, v, expected = _example(dtype, dim)
    try:
        out = run(*(t.to(device) for t in (q, k, v)))
        error = (out.float().cpu() - expected).abs().max().item()  # waits for the device, and for its errors
    except NotHere as reason:
        return Support(False, str(reason))
    except Exception as problem:  # drivers and plug-ins raise what they like; a probe reports it
        return Support(False, reasons.of_error(problem))
    return Support(True) if error < TOLERANCE else Support(False, "runs, but its numbers are wrong")


def _alive(device: torch.device) -> bool:
    """Whether the device still computes; a kernel built for another GPU can take the whole context down."""
    try:
        return (torch.ones(2, device=device) + 1).sum().item() == 4
    except Exception:  # any error is the answer
        return False


@contextlib.contextmanager
def _plain_torch(device: torch.device):
    """Autocast and gradients off, this device current, and one-time warnings given every time."""
    before = torch.is_warn_always_enabled()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if device.type in ("cpu", "cuda", "xpu"):
            stack.enter_context(torch.autocast(device.type, enabled=False))
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
        torch.set_warn_always(True)
        try:
            yield
        finally:
            torch.set_warn_always(before)


def try_kernels(device: torch.device, xformers) -> dict[str, dict[tuple[str, int], Support]]:
    """Every kernel at every dtype and head dimension. `xformers` is what `load_xformers` returned."""
    names = [name for name in FUSED_SDP if name != "sdp:overrideable" or device.type not in ("cpu", "cuda", "mps")]
    runs = {kernel: functools.partial(_run_sdpa, kernel) for kernel in (*names, "sdp:math")}
    runs["xformers"] = functools.partial(_run_xformers, xformers)
    found: dict[str, dict[tuple[str, int], Support]] = {}
    broken = ""
    with _plain_torch(device):
        for kernel, run in runs.items():
            table = found[kernel] = {}
            for dtype in DTYPES:
                for dim in DIMS:
                    if broken:
                        table[dtype, dim] = Support(False, f"not tried ({broken})")
                        continue
                    table[dtype, dim] = _try(run, device, dtype, dim)
                    if not table[dtype, dim].runs and device.type != "cpu" and not _alive(device):
                        broken = f"the device stopped working at {kernel}"
    return found


def try_bf16_matmul(device: torch.device) -> Support:
    """Whether the device multiplies bf16 matrices and gets it right."""
    try:
        with _plain_torch(device):
            ones = torch.ones(16, 16, dtype=torch.bfloat16).to(device)
            return Support(True) if (ones @ ones).float().sum().item() == 16**3 else Support(False, "wrong numbers")
    except Exception as error:  # as in _try
        return Support(False, reasons.of_error(error))
