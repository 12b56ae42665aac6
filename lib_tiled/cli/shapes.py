"""The attention calls that are worth measuring: B, H, Nq, Nk, D."""

from __future__ import annotations

import argparse
from typing import NamedTuple

TEXT = 77  # tokens of a prompt


class Call(NamedTuple):
    """q (B, H, Nq, D) against k and v (B, H, Nk, D)."""

    batch: int
    heads: int
    queries: int
    keys: int
    dim: int

    def __str__(self) -> str:
        return ",".join(map(str, self))


DESIGN = [
    Call(2, 8, 4096, 4096, 40),
    Call(2, 8, 1024, 1024, 80),
    Call(2, 8, 4096, 77, 40),
    Call(2, 10, 4096, 4096, 64),
    Call(1, 24, 4352, 4352, 128),
    Call(1, 16, 8192, 8192, 64),
    Call(1, 1, 16384, 16384, 512),
]
VIDEO = [Call(1, 16, 9408, 9408, 64)]
# Sizes whose factors are awkward for a tiler, each beside a round neighbour.
AWKWARD = [Call(1, 1, n, n, 40) for n in (15625, 15616, 23188, 23168, 24130, 24128, 52020, 52032)]


def unet(levels: dict[int, tuple[int, int]], width: int, height: int) -> list[Call]:
    """Self and cross attention of a UNet; `levels`: pixels per token and side -> (heads, D). Batch 2: cond, uncond."""
    calls = []
    for side, (heads, dim) in levels.items():
        tokens = (width // side) * (height // side)
        calls += [Call(2, heads, tokens, keys, dim) for keys in (tokens, TEXT)]
    return calls


def model(name: str, width: int, height: int) -> list[Call]:
    """The layers of one model at a picture size in pixels. KeyError for an unknown name."""
    tokens = (width // 8) * (height // 8)
    return {
        "sd15": lambda: unet({8: (8, 40), 16: (8, 80), 32: (8, 160), 64: (8, 160)}, width, height),
        "sd2": lambda: unet({8: (5, 64), 16: (10, 64), 32: (20, 64), 64: (20, 64)}, width, height),
        "sdxl": lambda: unet({16: (10, 64), 32: (20, 64)}, width, height),
        "flux": lambda: [Call(1, 24, tokens // 4 + 256, tokens // 4 + 256, 128)],
        "vae": lambda: [Call(1, 1, tokens, tokens, 512)],
    }[name]()


MODELS = ("sd15", "sd2", "sdxl", "flux", "vae")
FIXED = {"design": DESIGN, "video": VIDEO, "awkward": AWKWARD}


def size(text: str) -> tuple[int, int]:
    """'1024' or '1024x768' in pixels, for argparse."""
    width, _, height = text.partition("x")
    if not width.isdigit() or (height and not height.isdigit()) or min(int(width), int(height or width)) < 64:
        raise argparse.ArgumentTypeError(f"{text!r} is no picture size; examples: 1024, 1024x768; at least 64")
    return int(width), int(height or width)


def parse(text: str, sizes: list[tuple[int, int]]) -> list[Call]:
    """Names and B,H,Nq,Nk,D lists, separated by blanks, as calls without repeats. ValueError says what is wrong."""
    calls: list[Call] = []
    words = text.split()
    if "all" in words:
        words = ["design", *MODELS, "video"]
    for word in words:
        if word in FIXED:
            calls += FIXED[word]
        elif word in MODELS:
            calls += [call for width, height in sizes for call in model(word, width, height)]
        else:
            numbers = word.split(",")
            if len(numbers) != 5 or not all(n.isdigit() and int(n) for n in numbers):
                names = ", ".join((*FIXED, *MODELS, "all"))
                raise ValueError(f"{word!r} is neither B,H,Nq,Nk,D nor one of {names}")
            calls.append(Call(*map(int, numbers)))
    return list(dict.fromkeys(calls))
