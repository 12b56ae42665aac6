"""The HTML of the tab "Attention": tables, and charts as SVG in the theme's colours. No gradio, no WebUI."""

from __future__ import annotations

import math
import time
from html import escape

DTYPES = (("float16", "fp16"), ("bfloat16", "bf16"), ("float32", "fp32"))
COLOURS = ("#2563eb", "#ea580c", "#16a34a", "#9333ea", "#dc2626", "#0891b2", "#ca8a04", "#64748b")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 460, 260, 58, 16, 30, 34  # of a chart, in its own units


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table; head and cells are HTML already."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="tiled-attention-table"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def failed(error: Exception) -> str:
    return f"<p>This failed: {escape(f'{type(error).__name__}: {error}')}</p>"


def device(probe: dict) -> str:
    """`Probe.to_dict()` as a table: each kernel, the dtypes it runs in, and why not."""
    memory = probe["memory_bytes"]
    facts = [probe["name"], probe["architecture"], f"{memory / 2**30:.3g} GB" if memory else ""]
    facts += [f"{name} {version}" for name, version in probe["versions"].items()]
    rows = [["Tiled (no-flash)", *["<span class='yes'>yes</span>"] * len(DTYPES), "runs on every device"]]
    rows += [_kernel(name, found) for name, found in probe["kernels"].items()]
    notes = "".join(f"<p>{escape(note)}</p>" for note in probe["notes"])
    return (
        f"<p><b>{escape(probe['summary'])}</b></p><p>{escape(', '.join(filter(None, facts)))}</p>"
        + table(["Kernel", *(short for _, short in DTYPES), "Why not"], rows)
        + notes
    )


def _kernel(name: str, found: dict) -> list[str]:
    cells, reasons = [], []
    for dtype, _ in DTYPES:
        dims = found.get(dtype, {})
        good = [dim for dim, support in dims.items() if support["runs"]]
        reasons += [support["reason"] for support in dims.values() if support["reason"] and not support["runs"]]
        word = "no" if not good else "yes" if len(good) == len(dims) else f"head size {', '.join(good)}"
        cells.append(f'<span class="{"yes" if good else "no"}">{word}</span>')
    return [escape(name), *cells, escape("; ".join(dict.fromkeys(reasons)))]


def generations(found: list[dict]) -> str:
    """The API's list of generations as a table."""
    if not found:
        return "<p>No generation yet.</p>"
    rows = [
        [time.strftime("%H:%M:%S", time.localtime(item["started"])), f"{item['seconds']:.1f} s", escape(item["line"])]
        for item in found
    ]
    return table(["Time", "Took", "Attention"], rows)


def chart(title: str, unit: str, labels: list[str], series: dict[str, list[float | None]]) -> str:
    """Lines over equally spaced `labels` on a logarithmic scale; None and 0 leave a gap.

    series: name -> one value per label.
    """
    values = [value for line in series.values() for value in line if value]
    if not values:
        return ""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high += high == low

    def x(index: int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (index + 0.5) / len(labels)

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(value)) / (high - low)

    parts = [f'<text x="{LEFT}" y="16" font-weight="600">{escape(title)} ({escape(unit)})</text>']
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts += [
            f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="currentColor" opacity="0.2"/>',
            f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g}</text>',
        ]
    for index, label in enumerate(labels):
        parts.append(f'<text x="{x(index):.1f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(label)}</text>')
    for number, line in enumerate(series.values()):
        colour = COLOURS[number % len(COLOURS)]
        points = [(x(index), y(value)) for index, value in enumerate(line) if value]
        joined = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in points]
    picture = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" fill="currentColor">{picture}</svg>'


def legend(names: list[str]) -> str:
    entries = (
        f'<span style="color: {COLOURS[number % len(COLOURS)]}">&#9632;</span> {escape(name)}'
        for number, name in enumerate(names)
    )
    return f"<p>{' &nbsp; '.join(entries)}</p>"
