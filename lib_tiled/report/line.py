"""The words of the one line per generation."""

from __future__ import annotations

from .generation import DONE, Generation


def line(generation: Generation) -> str:
    """`txt2img 512x512 20 steps | unet: tiled x640 | vae: tiled x1 | Automatic -> Tiled: reason`."""
    parts = [generation.what or "generation"]
    if generation.nested:
        parts[0] = f"(nested) {parts[0]}"
    if generation.status != DONE:
        parts[0] += f" ({generation.status})"
    for where, kernels in generation.kernels().items():
        parts.append(f"{where}: " + ", ".join(f"{kernel} x{n}" for kernel, n in kernels.items()))
    choice = generation.choice or generation.option
    reasons = "; ".join(generation.reasons)
    parts.append(f"{choice}: {reasons}" if choice and reasons else choice or reasons)
    return " | ".join(part for part in parts if part)


def short(generation: Generation) -> str:
    """The kernels of the UNet, or of whatever ran, for the badge and the infotext: "tiled", "sdp:flash, tiled"."""
    kernels = generation.kernels()
    first = next(iter(kernels.values()), {})
    return ", ".join(first)


def details(generation: Generation) -> list[str]:
    """One line per kind of call, for the detailed log level: shapes, time, score tile and its size."""
    rows = []
    for kind in sorted(generation.shapes.values(), key=lambda kind: -kind.calls):
        row = f"  {kind.where} {kind.kernel} x{kind.calls}: q {'x'.join(map(str, kind.shape))}, {kind.keys} keys"
        if kind.times:
            row += f", {kind.seconds() * 1000 / kind.calls:.2f} ms each"
        if kind.tile is not None:
            row += f", tile {kind.tile} ({kind.scratch / 2**20:.1f} MB at most)"
        rows.append(row)
    return rows
