"""host-test's results for people (a table) and for programs (JSON)."""

from __future__ import annotations

import argparse
import statistics

from devhost.host_test_checks import HostTest, Shot, Tried


def _table(rows: list[list[str]], left: tuple[int, ...]) -> list[str]:
    """Columns as wide as their widest cell, numbers to the right, the columns in `left` to the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) if i in left else cell.rjust(width)
                      for i, (cell, width) in enumerate(zip(row, widths))).rstrip() for row in rows]


def _kernels(shot: Shot | None) -> str:
    places = shot.kernels if shot else {}
    return ", ".join(f"{place} " + " + ".join(f"{kernel} x{n}" for kernel, n in kernels.items())
                     for place, kernels in places.items())


def _results(test: HostTest) -> list[str]:
    names = list(test.scenarios)
    rows = [["optimization", *(f"{name}, s" for name in names), "max difference", "kernels (txt2img)"]]
    for tried in test.tried:
        cells = [f"{tried.shots[name].seconds:.1f}" if name in tried.shots else "-" for name in names]
        differences = [d for d in tried.difference.values() if d is not None]
        rows.append([tried.title, *cells, f"{max(differences)}/255" if differences else "-",
                     tried.error[:60] or _kernels(tried.shots.get("txt2img"))])
    return _table(rows, (0, len(rows[0]) - 1))


def timing(tried: Tried, reference: Tried) -> dict[str, float]:
    """Minimum and median in seconds, and both over the reference's."""
    low, middle = min(tried.seconds), statistics.median(tried.seconds)
    return {"min": low, "median": middle, "min_ratio": low / min(reference.seconds),
            "median_ratio": middle / statistics.median(reference.seconds)}


def _timings(test: HostTest) -> list[str]:
    timed = [tried for tried in test.tried if tried.seconds]
    if not timed:
        return []
    rows = [["optimization", "min, s", "median, s", "min ratio", "median ratio"]]
    for tried in timed:
        t = timing(tried, timed[0])
        rows.append([tried.title, f"{t['min']:.2f}", f"{t['median']:.2f}", f"{t['min_ratio']:.2f}",
                     f"{t['median_ratio']:.2f}"])
    return ["", f"txt2img, {len(timed[0].seconds)} rounds in turn; ratios to {timed[0].title}", *_table(rows, (0,))]


def report(test: HostTest) -> str:
    """Table, timings, what else the extension said, every check."""
    out = [""]
    if test.tried:
        first = test.scenarios["txt2img"][1]
        out += [f"{first['width']}x{first['height']}, steps: {first['steps']}; difference to {test.tried[0].title}",
                *_results(test), *_timings(test), ""]
    out += [f"said besides: {line}" for line in test.remarks()]
    out += [f"{'passed' if check.passed else 'FAILED'}  {check.name}"
            + (f": {check.detail}" if check.detail and not check.passed else "") for check in test.checks]
    passed = sum(check.passed for check in test.checks)
    return "\n".join([*out, f"{passed} of {len(test.checks)} checks passed"])


def as_json(test: HostTest, options: argparse.Namespace) -> dict:
    def shot(name: str, tried: Tried) -> dict:
        made = tried.shots[name]
        return {"seconds": round(made.seconds, 3), "difference": tried.difference[name], "lines": made.lines,
                "kernels": made.kernels}

    timed = [tried for tried in test.tried if tried.seconds]
    return {
        "args": options.args, "size": options.size, "steps": options.steps, "tolerance": options.tolerance,
        "remarks": test.remarks(),
        "optimizations": [{
            "title": tried.title, "error": tried.error,
            "scenarios": {name: shot(name, tried) for name in tried.shots},
            **({"runs": tried.seconds, "timing": timing(tried, timed[0])} if tried.seconds else {}),
        } for tried in test.tried],
        "checks": [vars(check) for check in test.checks],
    }
