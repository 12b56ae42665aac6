"""The two call forms of Forge's and reForge's attention functions, and the tiled kernel in each."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..backends import calls, tiled


def mask_4d(mask: Tensor | None, per_picture: bool) -> Tensor | None:
    """A mask that broadcasts to (B, H, Nq, Nk): 3-D is (B, Nq, Nk) if `per_picture`, else torch's (H, Nq, Nk)."""
    return mask[:, None] if mask is not None and mask.dim() == 3 and per_picture else mask


def forced_fp32(management) -> Callable[[torch.dtype], bool]:
    """Whether --force-upcast-attention holds for a dtype. Forge answers with a dtype, the others with a dict."""

    def upcast(dtype: torch.dtype) -> bool:
        forced = getattr(management, "force_upcast_attention_dtype", lambda: None)()
        return (forced.get(dtype) if isinstance(forced, dict) else forced) == torch.float32

    return upcast


def tiled_heads(per_picture: bool, upcast: Callable[[torch.dtype], bool]) -> Callable:
    """The tiled kernel, called as the UNet's functions are.

    per_picture: how 3-D masks are read, see `mask_4d`. upcast: whether the host forces fp32 scores for a dtype.
    """

    def attention_tiled(
        q,
        k,
        v,
        heads,
        mask=None,
        attn_precision=None,
        skip_reshape=False,
        skip_output_reshape=False,
        *,
        scale=None,
        enable_gqa=False,
        **_,
    ):
        """q, k, v (B, N, H*D), or (B, H, N, D) with `skip_reshape`.

        Returns (B, N, H*D), or (B, H, N, D) with `skip_output_reshape`. Further arguments are hints for other kernels.
        """
        if not skip_reshape:
            q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
        precision = "safe" if attn_precision == torch.float32 or upcast(q.dtype) else None
        mask = mask_4d(mask, per_picture)
        out = tiled.run(q, k, v, mask, scale=scale, enable_gqa=enable_gqa, precision=precision)
        return out if skip_output_reshape else out.transpose(1, 2).flatten(2)

    return attention_tiled


def tiled_spatial(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The tiled kernel, called as the VAE's functions are: (B, C, H, W) or (B, C, T, H, W), one head with D = C."""
    tokens = (t.flatten(2).transpose(1, 2)[:, None] for t in (q, k, v))  # (B, 1, H*W, C)
    return tiled.run(*tokens)[:, 0].transpose(1, 2).reshape(q.shape)


@dataclass(frozen=True)
class Family:
    """A host's attention functions of one call form.

    tiled: ours. by_title: the dropdown's titles -> the host's functions. known: all of the host's functions of this
    form. tokens: number of queries in q.
    """

    tiled: Callable
    by_title: dict[str, Callable]
    known: tuple[Callable, ...]
    tokens: Callable[[Tensor], int]

    def knows(self, function) -> bool:
        return any(function is one for one in self.known)

    def label(self, function: Callable) -> str:
        """What to call the kernel of a host's function where no kernel inside speaks for itself."""
        titles = [title for title, one in self.by_title.items() if one is function]
        return titles[-1] if titles else calls.name_of(function).removeprefix("attention_")


def heads_family(by_title: dict, known: tuple, pytorch: Callable, management) -> Family:
    """pytorch: the host's function on SDPA, whose reading of masks is ours too. management: its module for devices."""
    # Those that can leave the output's heads apart read 3-D masks per picture; the older ones leave them to torch.
    per_picture = "skip_output_reshape" in inspect.signature(pytorch).parameters
    return Family(tiled_heads(per_picture, forced_fp32(management)), by_title, known, lambda q: q.shape[-2])


def spatial_family(by_title: dict, known: tuple) -> Family:
    return Family(tiled_spatial, by_title, known, lambda q: math.prod(q.shape[2:]))


def by_position(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """q, k and v by position, since the hosts' functions name them differently."""
    if len(args) >= 3:
        return args, kwargs
    kwargs = dict(kwargs)
    for short, long in (("q", "query"), ("k", "key"), ("v", "value"))[len(args) :]:
        args += (kwargs.pop(short) if short in kwargs else kwargs.pop(long),)
    return args, kwargs
