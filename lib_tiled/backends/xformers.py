"""xformers: which of its operators ran, and tiled where it finds none or its kernel does not start."""

from __future__ import annotations

import functools
import sys

from torch import Tensor

from .. import kernel
from . import calls, tiled
from .patches import Patch, Patches

# What a kernel that was not built for this device says when it starts.
_LAUNCH_ERRORS = ("no kernel image", "invalid device function", "cuda error", "hip error", "hiperror", "not compiled")

_failed: dict[tuple, str] = {}  # kind of call -> why xformers cannot do it, for the life of the process


def _cannot_run(error: Exception) -> bool:
    """Whether xformers could not run this call at all, as opposed to a mistake in the arguments."""
    if isinstance(error, NotImplementedError):
        return True
    if kernel.is_out_of_memory(error):  # "CUDA error: out of memory" is none of its kernel's faults
        return False
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _LAUNCH_ERRORS)


def _reason(error: Exception, q: Tensor) -> str:
    what = "found no operator" if isinstance(error, NotImplementedError) else "failed to start its kernel"
    return f"xformers {what} for {str(q.dtype).rpartition('.')[2]} on {q.device.type}"


def _tiled(q: Tensor, k: Tensor, v: Tensor, bias, scale: float | None, reason: str, output_dtype=None) -> Tensor:
    """(B, N, D), (B, N, H, D) or (B, N, G, H, D) through the tiled kernel, in xformers' layout."""
    how = {"is_causal": type(bias).__name__ == "LowerTriangularMask", "scale": scale}
    mask = bias if isinstance(bias, Tensor) else None
    heads_first = (t.movedim(1, -2) for t in (q, k, v))
    out = tiled.run(*heads_first, mask, reason=reason, detail=f"D={q.shape[-1]}", **how).movedim(-2, 1)
    return out if output_dtype is None else out.to(output_dtype)


def _convertible(bias) -> bool:
    return bias is None or isinstance(bias, Tensor) or type(bias).__name__ == "LowerTriangularMask"


def _make_attention(patch: Patch, policy):
    @functools.wraps(patch.original)
    def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, **kwargs):
        def original():
            return patch.original(query, key, value, attn_bias, p, scale, **kwargs)

        if not patch.active:
            return original()
        kind = (query.device, query.dtype, query.shape[-1], query.dim(), type(attn_bias), p > 0)
        can_tile = policy().fallback and p == 0.0 and _convertible(attn_bias)
        if kind not in _failed or not can_tile:
            try:
                return original()
            except Exception as error:
                if not (_cannot_run(error) and can_tile):
                    raise
                _failed[kind] = _reason(error, query)
        return _tiled(query, key, value, attn_bias, scale, _failed[kind], kwargs.get("output_dtype"))

    return memory_efficient_attention


def _make_apply(patch: Patch):
    """An operator's `apply` that says its name; every xformers version runs the chosen operator through it."""
    call = patch.original.__func__

    def apply(cls, inp, *args, **kwargs):
        started = calls.start(inp.query)
        out = call(cls, inp, *args, **kwargs)
        if patch.active:
            first = out[0] if isinstance(out, tuple) else out
            out_ = first if isinstance(first, Tensor) else None
            calls.ran(f"xformers:{cls.NAME}", inp.query, inp.key, out_, started=started)
        return out

    return _ClassMethod(apply)


class _ClassMethod(classmethod):
    """classmethod objects take no attributes; this one does, so that a patch can mark it."""


def install(patches: Patches, policy) -> None:
    """Guard xformers while `patches` last, if it is loaded. `policy()` is asked at every call."""
    ops = sys.modules.get("xformers.ops")
    if ops is None:
        return
    patches.replace(ops, "memory_efficient_attention", lambda p: _make_attention(p, policy))
    for op in getattr(getattr(ops, "fmha", None), "ALL_FW_OPS", ()):
        if isinstance(vars(op).get("apply"), classmethod):
            patches.replace(op, "apply", _make_apply)
