"""The attentions that `bench` compares. Each takes and returns (B, H, N, D)."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import math
import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..kernel import tiled_attention

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class NotHere(Exception):
    """A method cannot run here; the text is what the table says instead of a figure."""


def _sdpa() -> Attention:
    if not hasattr(F, "scaled_dot_product_attention"):
        raise NotHere("torch has none")
    return F.scaled_dot_product_attention


def math_sdpa() -> Attention:
    """torch's own attention without a fused kernel."""
    sdpa = _sdpa()

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        try:
            from torch.nn.attention import SDPBackend, sdpa_kernel
        except ImportError:  # torch < 2.3
            with torch.backends.cuda.sdp_kernel(enable_flash=False, enable_mem_efficient=False, enable_math=True):
                return sdpa(q, k, v)
        with sdpa_kernel(SDPBackend.MATH):
            return sdpa(q, k, v)

    return run


def fused_sdpa() -> Attention:
    """torch's fused kernel for this device (flash, memory-efficient or cudnn), where it has one for the call."""
    sdpa = _sdpa()

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if torch._fused_sdp_choice(q, k, v) == 0:
            raise NotHere("no kernel")
        return sdpa(q, k, v)

    return run


def _noflash():
    """noflash_attention, without its patch of F.scaled_dot_product_attention and its greeting."""
    before = getattr(F, "scaled_dot_product_attention", None)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return importlib.import_module("noflash_attention.patch")
    except ImportError:
        raise NotHere("not installed") from None
    except AttributeError:  # patches what torch 1.13 does not have
        raise NotHere("torch too old") from None
    finally:
        if before is not None:
            F.scaled_dot_product_attention = before


def noflash_tier_1() -> Attention:
    """noflash-attention's first choice: chunks of up to 1.5 GB."""
    patch = _noflash()

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = patch._auto_block_m(q.shape[0], k.shape[2], q.shape[1], q.dtype, budget_factor=2)
        return patch.chunked_sdpa(q, k, v, None, rows)

    return run


def noflash_tier_2() -> Attention:
    """noflash-attention's second choice where memory is short: keys in blocks, running maximum and sum."""
    patch = _noflash()

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows = patch._auto_block_m(q.shape[0], k.shape[2], q.shape[1], q.dtype, budget_factor=1)
        keys = patch._auto_block_n(q.shape[0], rows, q.shape[1], q.dtype)
        return patch.chunked_sdpa_online(q, k, v, None, rows, keys)

    return run


def memory_efficient() -> Attention:
    """memory-efficient-attention's torch version, in its own layout (B, N, H, D)."""
    name = "memory_efficient_attention"
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise NotHere("not installed")
    if name not in sys.modules:  # its __init__ would import jax, which the torch version does not need
        sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        module = importlib.import_module(f"{name}.attention_torch")
    except ImportError as error:
        raise NotHere(f"needs {error.name}") from None
    function = module.efficient_dot_product_attention
    return lambda q, k, v: function(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)


def sliced() -> Attention:
    """Plain slicing as AUTOMATIC1111's InvokeAI does it: slices of 32 MB of scores on a CPU, a third of the free
    memory on a GPU; over heads first, then over rows."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, heads, rows = q.shape[:3]
        q_, k_, v_ = (t.reshape(batch * heads, *t.shape[2:]) for t in (q, k, v))
        room = 32 * 2**20
        if q.device.type == "cuda":
            room = torch.cuda.mem_get_info(q.device)[0] // 3
        wanted = q_.shape[0] * rows * k.shape[2] * q.element_size()
        parts = 1 << max(math.ceil(math.log2(wanted / room)), 0) if wanted else 1
        step, row_step = max(q_.shape[0] // parts, 1), rows
        if parts > q_.shape[0]:
            row_step = max(rows * q_.shape[0] // parts, 1)
        out = torch.zeros(q_.shape[0], rows, v.shape[3], dtype=q.dtype, device=q.device)
        for h in range(0, q_.shape[0], step):
            for r in range(0, rows, row_step):
                scores = q_[h : h + step, r : r + row_step] @ k_[h : h + step].transpose(1, 2) * q.shape[3] ** -0.5
                out[h : h + step, r : r + row_step] = scores.softmax(-1) @ v_[h : h + step]
        return out.view(batch, heads, rows, -1)

    return run


METHODS: dict[str, Callable[[], Attention]] = {
    "tiled": lambda: tiled_attention,
    "fused": fused_sdpa,
    "math": math_sdpa,
    "noflash1": noflash_tier_1,
    "noflash2": noflash_tier_2,
    "mem-eff": memory_efficient,
    "sliced": sliced,
}

NOTES = {
    "tiled": "this extension",
    "fused": "torch's fused kernel for this device",
    "math": "torch's attention without a fused kernel",
    "noflash1": "noflash-attention, tier 1",
    "noflash2": "noflash-attention, tier 2",
    "mem-eff": "memory-efficient-attention",
    "sliced": "plain slicing, as InvokeAI's in AUTOMATIC1111",
}


def scores_bytes(name: str, batch: int, heads: int, queries: int, keys: int, element: int) -> int:
    """About how much memory a method takes that holds all scores at once; 0 for the others."""
    return int(2.2 * batch * heads * queries * keys * element) if name == "math" else 0
