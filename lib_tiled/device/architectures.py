"""What is publicly known of GPU architectures. It explains and pretends; on a real device it decides nothing.

Sources, read in 2026: PyTorch `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp` (which GPUs, dtypes and head
dimensions each SDPA kernel takes); AOTriton `v3src/util.cc` of 0.11 to 0.13, the library behind SDPA on ROCm;
xformers `ops/fmha/*.py` (limits of its operators) and ROCm/xformers issue 83 (CDNA only); pytorch issue 141958
(gfx908); unslothai/unsloth pull request 8821 (gfx1200 measured with and without the variable); PyTorch's notice 3432 on
dev-discuss (CUDA 12.6 builds, the last for sm_50 to sm_70, end with 2.14).
"""

from __future__ import annotations

import re

import torch

EXPERIMENTAL = "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL"

#: Architecture -> the cards users know it by. Every name here can be pretended, and any sm_NN.
AMD_CARDS = {
    "gfx803": "RX 470 to RX 590",
    "gfx900": "Vega 56, Vega 64, MI25",
    "gfx906": "Radeon VII, MI50, MI60",
    "gfx908": "MI100",
    "gfx90a": "MI210, MI250",
    "gfx942": "MI300",
    "gfx950": "MI350",
    "gfx1010": "RX 5600, RX 5700",
    "gfx1012": "RX 5500",
    "gfx1030": "RX 6800, RX 6900",
    "gfx1031": "RX 6700",
    "gfx1032": "RX 6600",
    "gfx1034": "RX 6400, RX 6500",
    "gfx1100": "RX 7900",
    "gfx1101": "RX 7700, RX 7800",
    "gfx1102": "RX 7600",
    "gfx1103": "Radeon 780M",
    "gfx1150": "Radeon 890M",
    "gfx1151": "Radeon 8060S",
    "gfx1200": "RX 9060",
    "gfx1201": "RX 9070",
}
NVIDIA_CARDS = {
    (5, 0): "GTX 750",
    (5, 2): "GTX 900",
    (6, 0): "P100",
    (6, 1): "GTX 10, P40",
    (7, 0): "V100",
    (7, 5): "RTX 20, GTX 16, T4",
    (8, 0): "A100",
    (8, 6): "RTX 30",
    (8, 9): "RTX 40",
    (9, 0): "H100",
    (12, 0): "RTX 50",
}
AOTRITON = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1151", "gfx1201")
AOTRITON_EXPERIMENTAL = ("gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1200")
XFORMERS_CK = ("gfx90a", "gfx942", "gfx950")
BF16_MATRIX = ("gfx908", "gfx90a", "gfx942", "gfx950", "gfx11", "gfx12")


def of_gpu(properties) -> str:
    """ "gfx906" or "sm_61" from what torch says of a CUDA or ROCm device."""
    if torch.version.hip:  # torch before 2.1 does not name it; the first two digits of gfx906 are all it gives
        return getattr(properties, "gcnArchName", f"gfx{properties.major}{properties.minor}xx").partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def capability(architecture: str) -> tuple[int, int] | None:
    """(major, minor) of an NVIDIA name such as sm_61 or sm_120, None for any other name."""
    match = re.fullmatch(r"sm_(\d{1,2})(\d)", architecture)
    return (int(match[1]), int(match[2])) if match else None


def native_bf16(architecture: str) -> bool:
    """Whether the GPU multiplies bf16 itself; where it does not, torch's answer is right but emulated."""
    sm = capability(architecture)
    return sm >= (8, 0) if sm else architecture.startswith(BF16_MATRIX)


def explain(architecture: str) -> str:
    """One sentence on what to expect of an architecture, "" where nothing needs saying."""
    sm = capability(architecture)
    if sm and sm < (8, 0):
        old = " PyTorch 2.14 with CUDA 12.6 is the last one built for it." if sm < (7, 5) else ""
        return f"PyTorch's flash and cuDNN attention need sm_80; memory-efficient attention takes sm_50 on.{old}"
    if architecture in AOTRITON_EXPERIMENTAL:
        return f"Fused SDPA on {architecture} is experimental: it needs {EXPERIMENTAL}=1 set before the start."
    if architecture == "gfx908":
        return "PyTorch's fused SDPA (AOTriton up to 0.13) is not built for gfx908."
    if architecture == "gfx906":
        return (
            "PyTorch's fused SDPA (AOTriton) and xformers are not built for gfx906; "
            "a build of your own, such as triton-gfx906, may bring one."
        )
    if architecture in AMD_CARDS and architecture not in AOTRITON:
        return f"PyTorch's fused SDPA (AOTriton) and xformers are not built for {architecture}."
    return ""
