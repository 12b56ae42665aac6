"""torch's scaled dot product attention: which kernel it would take, and tiled where it has none but math."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from .. import kernel
from . import calls, tiled
from .patches import Patch, Patches, behind_ours
from .policy import Policy

_BUILTIN = getattr(torch._C._nn, "scaled_dot_product_attention", None)  # torch 1.13 has none
_CHOICES = {0: "math", 1: "flash", 2: "mem-efficient", 3: "cudnn", 4: "overrideable"}


@functools.cache
def _autocasts(device_type: str) -> bool:
    """Whether autocast casts what SDPA gets on this device; on CPUs it does not before torch 2.2 or so."""
    key = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA", "xpu": "AutocastXPU", "mps": "AutocastMPS"}.get(device_type)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    try:
        return key is not None and has_kernel("aten::scaled_dot_product_attention", key)
    except RuntimeError:  # this torch does not know the key
        return False


def kernel_of(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, is_causal: bool, enable_gqa: bool = False
) -> str:
    """The kernel torch takes for this call: flash, mem-efficient, cudnn, overrideable (XPU, plug-in devices) or math;
    "kernel N" for one that came after this was written.

    Asked of torch at every call: it costs a microsecond, and a remembered answer could be wrong after somebody
    turned one of torch's switches (`--opt-sdp-no-mem-attention` does so around each call).
    """
    ask = getattr(torch, "_fused_sdp_choice", None)
    if ask is None:
        return "math"
    try:
        choice = ask(q, k, v, mask, dropout, is_causal, **({"enable_gqa": True} if enable_gqa else {}))
    except (RuntimeError, TypeError, NotImplementedError):  # inputs that no fused kernel takes, or an old torch
        return "math"
    return _CHOICES.get(int(choice), f"kernel {int(choice)}")


def dispatch(
    original,
    policy: Policy,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    **extra,
) -> Tensor:
    """One SDPA call: a fused kernel where torch has one for it, else tiled where `policy` says so, else math."""
    # torch got `scale` in 2.1 and `enable_gqa` in 2.5; what was not asked for is not passed on.
    if scale is not None:
        extra["scale"] = scale
    if enable_gqa:
        extra["enable_gqa"] = True
    q, k, v, mask = query, key, value, attn_mask
    if _autocasts(q.device.type):  # inside SDPA; what it makes of the tensors is what the kernel is chosen for
        q, k, v, mask = (kernel.autocast(t) for t in (q, k, v, mask))
    name = kernel_of(q, k, v, mask, dropout_p, is_causal, enable_gqa)
    reason = detail = ""
    if policy.fallback and (name == "math" or policy.no_fused) and dropout_p == 0.0 and not q.is_nested:
        if q.dim() == k.dim() == v.dim() == 3 and not policy.no_fused and (mask is None or mask.dim() == 2):
            name_4d = kernel_of(q[:, None], k[:, None], v[:, None], mask, dropout_p, is_causal, enable_gqa)
            if name_4d != "math":
                started = calls.start(q)
                out = original(q[:, None], k[:, None], v[:, None], mask, dropout_p, is_causal, **extra)[:, 0]
                calls.ran(f"sdp:{name_4d}", q, k, out, started=started)
                return out
        if policy.takes(q, k, v):
            how = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
            try:
                return tiled.run(q, k, v, mask, reason=policy.no_fused or "SDPA has only math for it", **how)
            except Exception as error:
                if kernel.is_out_of_memory(error):
                    raise  # math would need more
                reason, detail = tiled.failed(error, f"sdp:{name}")
    started = calls.start(q)
    out = original(q, k, v, mask, dropout_p, is_causal, **extra)
    calls.ran(f"sdp:{name}", q, k, out, reason, detail, started=started)
    return out


def _make_replacement(patch: Patch, policy):
    """A stand-in for F.scaled_dot_product_attention; `policy()` is asked at every call."""

    @functools.wraps(patch.original)
    def scaled_dot_product_attention(*args, **kwargs):
        if not patch.active:
            return patch.original(*args, **kwargs)
        original = behind_ours(patch.original)  # decide and count once, however many patches
        if original is _BUILTIN:
            return dispatch(original, policy(), *args, **kwargs)
        return _foreign(original, *args, **kwargs)

    return scaled_dot_product_attention


def _foreign(function, *args, **kwargs) -> Tensor:
    """Somebody's own attention (SageAttention, a Triton kernel) in torch's place: it gets the call as it was made."""
    before = calls.told()
    out = function(*args, **kwargs)
    if calls.told() == before:  # it may end in a patch of ours after all
        name = calls.name_of(function)
        if not name.isidentifier():  # "<lambda>": whose?
            name = f"{function.__module__}.{name}"
        q, k = (args[i] if len(args) > i else kwargs.get(long) for i, long in enumerate(("query", "key")))
        calls.ran(f"sdp:{name}", q, k, out, "somebody's own attention stands in the place of PyTorch's")
    return out


def install(patches: Patches, policy) -> None:
    """Dispatch every F.scaled_dot_product_attention call while `patches` last. `policy()` is asked at every call."""
    if hasattr(torch.nn.functional, "scaled_dot_product_attention"):
        patches.replace(torch.nn.functional, "scaled_dot_product_attention", lambda p: _make_replacement(p, policy))


class SdpaPatch:
    """F.scaled_dot_product_attention replaced until `undo()` or the end of the `with` block."""

    def __init__(self, policy: Policy):
        if not hasattr(torch.nn.functional, "scaled_dot_product_attention"):
            raise RuntimeError(f"torch {torch.__version__} has no scaled_dot_product_attention to replace")
        self._patch = Patch(
            torch.nn.functional, "scaled_dot_product_attention", lambda p: _make_replacement(p, lambda: policy)
        )

    def undo(self) -> None:
        """Put back what stood there. Safe to call twice and in any order with other patches."""
        self._patch.undo()

    def __enter__(self) -> SdpaPatch:
        return self

    def __exit__(self, *exc) -> None:
        self.undo()


def patch_sdpa() -> SdpaPatch:
    """Let every F.scaled_dot_product_attention call run tiled where torch has only math for it.

    Returns a context manager with `.undo()`; may be nested and undone in any order, and never loses a patch
    that another library has put over it. RuntimeError on torch without that function.
    """
    return SdpaPatch(Policy())


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
) -> Tensor:
    """torch's function with torch's signature, by the best kernel for this device and call.

    A fused kernel where torch has one; else tiled, except for small calls and for dropout, which go to math.
    On torch 1.13, which has no such function, always tiled; before 2.5, which knows no `enable_gqa`, with that.

    Args:
        query: (..., H, Nq, D). key: (..., H, Nk, D). value: (..., H, Nk, Dv). attn_mask: boolean (True = attend) or
            float, broadcastable to (..., H, Nq, Nk). The rest as torch documents it.

    Returns:
        (..., H, Nq, Dv) in query's dtype.

    Raises:
        What torch raises; where tiled runs, ValueError and TypeError as `tiled_attention`. NotImplementedError on
        torch 1.13 with dropout.
    """
    original = getattr(torch.nn.functional, "scaled_dot_product_attention", None)
    builtin = behind_ours(original) is _BUILTIN
    if builtin and (_BUILTIN is None or (enable_gqa and "enable_gqa" not in (_BUILTIN.__doc__ or ""))):
        if dropout_p:
            raise NotImplementedError("tiled attention has no dropout, and this torch has no attention for the call")
        return tiled.run(query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)
    if original is not _BUILTIN:  # a patch of ours, which decides, or somebody's own attention
        more = {"scale": scale} if scale is not None else {}
        more |= {"enable_gqa": True} if enable_gqa else {}
        return original(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, **more)
    return dispatch(original, Policy(), query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
