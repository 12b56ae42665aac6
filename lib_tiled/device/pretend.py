"""TILED_PRETEND: answer as a device would that is not here, for tests and for trying the fallback anywhere.

The answers follow the sources named in `architectures`, for the current builds of PyTorch and xformers. They are
not measurements. What is installed here stays true: no xformers here, none there.
"""

from __future__ import annotations

import os

import torch

from . import architectures, trial
from .architectures import AMD_CARDS, AOTRITON, AOTRITON_EXPERIMENTAL, NVIDIA_CARDS, XFORMERS_CK
from .result import DIMS, DTYPES, Probe, Support

VARIABLE = "TILED_PRETEND"
_HALF = ("float16", "bfloat16")


def known(value: str) -> str:
    """The architecture that a value of TILED_PRETEND names ("GFX906", "sm61", "sm_61"), "" if it names none."""
    name = value.strip().lower()
    if name.startswith("sm") and not name.startswith("sm_"):
        name = "sm_" + name[2:]
    return name if name in AMD_CARDS or architectures.capability(name) else ""


def wanted() -> str:
    """The architecture being pretended, "" for none."""
    return known(os.environ.get(VARIABLE, ""))


def unknown_value(value: str) -> str:
    return f"{VARIABLE}={value} names no device to pretend; known are sm_NN and {', '.join(AMD_CARDS)}."


def as_if(architecture: str, device: torch.device, versions: dict[str, str]) -> Probe:
    """The probe of `architecture`, standing in for the one of `device`."""
    sm = architectures.capability(architecture)
    limits = _nvidia(sm, architecture) if sm else _amd(architecture)
    missing = trial.xformers_missing()
    if missing:
        limits["xformers"] = missing
    elif isinstance(limits["xformers"], str):
        limits["xformers"] = f"{trial.xformers_version()} {limits['xformers']}"
    cards = NVIDIA_CARDS.get(sm, "NVIDIA GPU") if sm else AMD_CARDS[architecture]
    # A build of torch without SDPA has none anywhere.
    if not hasattr(torch._C._nn, "scaled_dot_product_attention"):
        limits |= {kernel: "not in torch 1.13" for kernel in limits if kernel.startswith("sdp:")}
    return Probe(
        device=str(device),
        name=cards,
        architecture=architecture,
        kernels={kernel: _table(limit) for kernel, limit in limits.items()},
        versions=versions,
        bf16_matmul=Support(True, "" if architectures.native_bf16(architecture) else "emulated"),
        pretended=True,
        notes=tuple(
            note for note in (f"{VARIABLE}={architecture}: none of this was run.", architectures.explain(architecture))
            if note
        ),
    )


def _table(limit) -> dict[tuple[str, int], Support]:
    """`limit`: why the kernel never runs, or (its dtypes, its largest head dimension)."""
    if isinstance(limit, str):
        return {(dtype, dim): Support(False, limit) for dtype in DTYPES for dim in DIMS}
    dtypes, largest = limit
    names = ", ".join({"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}[dtype] for dtype in dtypes)
    return {
        (dtype, dim): Support(False, f"takes only {names}")
        if dtype not in dtypes
        else Support(dim <= largest, "" if dim <= largest else f"takes head dimensions up to {largest}")
        for dtype in DTYPES
        for dim in DIMS
    }


def _nvidia(sm: tuple[int, int], architecture: str) -> dict:
    def needs(lowest: str) -> str:
        return f"needs sm_{lowest} to sm_121, this is {architecture}"

    modern = sm >= (8, 0)
    dtypes = DTYPES if modern else ("float16", "float32")
    return {
        "sdp:flash": (_HALF, 256) if modern else needs("80"),
        "sdp:mem-efficient": (dtypes, 512) if sm >= (5, 0) else needs("50"),
        "sdp:cudnn": (_HALF, 128) if modern else needs("80"),
        "sdp:math": (DTYPES, 512),
        "xformers": (dtypes, 512) if (5, 0) <= sm <= (9, 0) else (_HALF, 256) if modern else "found no operator",
    }


def _amd(architecture: str) -> dict:
    if architecture in AOTRITON_EXPERIMENTAL and os.environ.get(architectures.EXPERIMENTAL) != "1":
        sdpa = f"experimental on this GPU, needs {architectures.EXPERIMENTAL}=1"
    elif architecture in (*AOTRITON, *AOTRITON_EXPERIMENTAL):
        sdpa = ""
    else:
        sdpa = f"not built for {architecture}"
    unbuilt = f"found no operator (not built for {architecture})"
    return {
        "sdp:flash": sdpa or (_HALF, 512),
        "sdp:mem-efficient": sdpa or (DTYPES, 512),
        "sdp:cudnn": "torch was built without it",
        "sdp:math": (DTYPES, 512),
        "xformers": (_HALF, 512) if architecture in XFORMERS_CK else unbuilt,
    }
