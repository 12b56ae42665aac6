"""`python -m lib_tiled bench`: time and memory of each attention on this device, side by side in one run."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

import torch

from ..device.probe import cpu_name, default_device
from ..kernel import options
from . import measure as measuring
from . import predict, shapes
from .measure import Measurement
from .methods import METHODS, NOTES
from .progress import Progress
from .table import table

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
BASES = ("fused", "math", "noflash1", "noflash2", "mem-eff", "sliced")  # what tiled is compared with
LARGE = 1024  # keys from which a call is one that memory matters for


def device_name(device: torch.device) -> str:
    """The device as its maker calls it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return f"{cpu_name()}, {torch.get_num_threads()} threads"
    return device.type


# -- what the WebUI's tab calls ---------------------------------------------------------------------------------------


def backends(device: torch.device) -> list[str]:
    """Methods that have a kernel on this device, ours first."""
    call = shapes.Call(1, 2, 64, 64, 64)
    dtype = torch.float32 if device.type == "cpu" else torch.float16
    return [m.method for m in measuring.times(call, METHODS, device, dtype, rounds=1) if not m.error]


def measure(name: str, width: int, height: int, device: torch.device, dtype: torch.dtype) -> Measurement:
    """One method at the largest layer that SD 1.5 has at a picture size in pixels. Never raises for a method's own
    errors: they are in `error`."""
    call = shapes.model("sd15", width, height)[0]
    (found,) = measuring.times(call, [name], device, dtype, rounds=2)
    if not found.error:
        measuring.memory_here(found, device, dtype)
    return found


# -- the command ------------------------------------------------------------------------------------------------------


def device(text: str) -> torch.device:
    """A device that holds tensors, for argparse."""
    try:
        found = torch.device(text)
        torch.zeros(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise argparse.ArgumentTypeError(f"{text}: {str(error).splitlines()[0]}") from error
    return found


def _methods(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(METHODS)}")
    return ["tiled", *(name for name in METHODS if name in names and name != "tiled")]


def positive(text: str) -> int:
    """A count, for argparse."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", type=device, help="cpu, cuda:0, mps, ...; default: the first GPU, else the CPU")
    parser.add_argument("--dtype", choices=DTYPES, help="default: fp32 on a CPU, else fp16")
    parser.add_argument("--shapes", nargs="+", default=["design"], metavar="S",
                        help="B,H,Nq,Nk,D or design, sd15, sd2, sdxl, flux, vae, video, awkward, all (default: design)")
    parser.add_argument("--size", nargs="+", type=shapes.size, default=[(512, 512), (1024, 1024)], metavar="WxH",
                        help="picture sizes for the models' shapes (default: 512 1024)")
    parser.add_argument("--methods", type=_methods, default=list(METHODS), metavar="A,B",
                        help=f"of {', '.join(METHODS)} (default: all)")
    parser.add_argument("--rounds", type=positive, default=3, help="turns each method gets (default: 3)")
    parser.add_argument("--threads", type=positive, help="CPU threads (default: torch's own)")
    parser.add_argument("--backward", action="store_true", help="measure forward and backward together")
    parser.add_argument("--precision", choices=options.PRECISIONS, help="of the tiled kernel (default: auto)")
    parser.add_argument("--no-memory", action="store_true", help="leave out the memory")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--plot", metavar="FILE", help="draw the times into a picture (needs matplotlib)")
    parser.add_argument("--from", nargs="+", dest="saved", metavar="FILE",
                        help="measure nothing; show what --json printed into these files")
    parser.add_argument("--model", choices=predict.DEVICES, help="measure nothing; what the planner's cost model says")


def run(args: argparse.Namespace) -> int:
    """0, or 1 where the tiled kernel failed somewhere; 2 for arguments that do not fit."""
    try:
        calls = shapes.parse(" ".join(args.shapes), args.size)
        report = _load(args.saved) if args.saved else None
    except (ValueError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    if args.plot and not Path(args.plot).absolute().parent.is_dir():
        print(f"bench: {args.plot}: there is no such folder", file=sys.stderr)
        return 2
    if args.model:
        print(predict.text(args.model, calls, DTYPES[args.dtype or "fp16"], args.json))
        return 0
    report = report or _measure(args, calls)
    print(json.dumps(report, indent=2) if args.json else text(report))
    if args.plot:
        try:
            plot(report, args.plot)
        except ImportError:
            print("bench: --plot needs matplotlib", file=sys.stderr)
            return 2
        except (OSError, ValueError) as error:  # ValueError: no picture format of that name
            print(f"bench: {args.plot}: {error}", file=sys.stderr)
            return 2
    return 1 if any(r["method"] == "tiled" and r["error"] for r in report["results"]) else 0


def _measure(args: argparse.Namespace, calls: list[shapes.Call]) -> dict:
    if args.threads:
        torch.set_num_threads(args.threads)
    device = args.device or default_device()
    dtype = DTYPES[args.dtype or ("fp32" if device.type == "cpu" else "fp16")]
    found: list[Measurement] = []
    steps = len(calls) * len(args.methods) * (args.rounds + 1) + len(args.methods)
    with Progress(steps) as progress, options.using(precision=args.precision or "auto"):
        for call in calls:
            found += measuring.times(call, args.methods, device, dtype, args.rounds, args.backward, progress)
        if not args.no_memory:
            measuring.memory(found, device, dtype, args.backward, progress)
    return {
        "device": device_name(device),
        "dtype": str(dtype).rpartition(".")[2],
        "pass": "forward and backward" if args.backward else "forward",
        "rounds": args.rounds,
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "results": [m.to_dict() for m in found],
    }


def _report(file: str) -> dict:
    """What `bench --json` printed into a file. OSError, or ValueError where it holds something else."""
    try:
        report = json.loads(Path(file).read_text(encoding="utf-8"))
    except ValueError:
        report = None
    fits = isinstance(report, dict) and {"device", "dtype", "pass", "torch", "date", "results"} <= report.keys()
    if not fits or not all({"call", "method", "seconds", "bytes", "error"} <= set(row) for row in report["results"]):
        raise ValueError(f"{file} is not what bench --json prints")
    return report


def _load(files: list[str]) -> dict:
    """Several saved runs as one. Of the same call the first run's times, so that ratios never cross runs, and the
    most memory. ValueError where the runs were not made alike."""
    reports = [_report(file) for file in files]
    merged: dict[tuple, dict] = {}
    for report in reports:
        for name in ("device", "dtype", "pass", "torch"):
            if report[name] != reports[0][name]:
                raise ValueError(f"runs differ in {name}: {reports[0][name]} and {report[name]}")
        for result in report["results"]:
            known = merged.setdefault((*result["call"], result["method"]), dict(result))
            known["bytes"] = max(known["bytes"] or 0, result["bytes"] or 0) or None
    return {**reports[0], "results": list(merged.values())}


def ratios(report: dict, base: str, fewest_keys: int = 0) -> list[float]:
    """Time of tiled by that of `base`, for each call of at least so many keys that both were measured at."""
    known = {(tuple(r["call"]), r["method"]): r["seconds"] for r in report["results"] if r["seconds"]}
    calls = [call for call, method in known if method == base and call[3] >= fewest_keys]
    return [known[call, "tiled"] / known[call, base] for call in calls if (call, "tiled") in known]


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def _cell(result: dict) -> str:
    if result["error"]:
        return result["error"]
    milliseconds, size = result["seconds"] * 1e3, result["bytes"]
    time_ = f"{milliseconds:.0f}" if milliseconds >= 10 else f"{milliseconds:.2f}"
    return f"{time_} / {size / 2**20:.0f}" if size else time_


def text(report: dict) -> str:
    """The report as a table for people."""
    methods = list(dict.fromkeys(r["method"] for r in report["results"]))
    calls = list(dict.fromkeys(tuple(r["call"]) for r in report["results"]))
    cells = {(tuple(r["call"]), r["method"]): _cell(r) for r in report["results"]}
    rows = [[",".join(map(str, call)), *(cells.get((call, m), "") for m in methods)] for call in calls]
    lines = [f"{report['device']}, {report['dtype']}, {report['pass']}, torch {report['torch']}, {report['date']}",
             "", "ms (least of the rounds) / MB of extra memory at the peak, the result included", "",
             table(["B,H,Nq,Nk,D", *methods], rows), ""]
    summary = []
    for base in BASES:
        every, large = ratios(report, base), ratios(report, base, LARGE)
        if every:
            summary.append([base, f"{geometric_mean(every):.2f}", f"{geometric_mean(large):.2f}" if large else "-",
                            f"{min(every):.2f} to {max(every):.2f}", NOTES[base]])
    if summary:
        lines += ["Time of tiled by that of the others (geometric mean; below 1 is faster)", "",
                  table(["", "all", f"{LARGE}+ keys", "range", "which is"], summary)]
    return "\n".join(lines)


def plot(report: dict, file: str) -> None:
    """Times against the number of scores, one line for each method. ImportError without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for method in dict.fromkeys(r["method"] for r in report["results"]):
        points = sorted((math.prod(r["call"]), r["seconds"] * 1e3) for r in report["results"]
                        if r["method"] == method and r["seconds"])
        if points:
            axes.plot(*zip(*points), marker="o", label=NOTES[method])
    axes.set(xscale="log", yscale="log", xlabel="multiplications: B x H x Nq x Nk x D", ylabel="ms",
             title=f"{report['device']}, {report['dtype']}, {report['pass']}")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=120)
