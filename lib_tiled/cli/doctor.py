"""`python -m lib_tiled doctor`: what this device runs, why not the rest, and what each option leads to."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

import torch

from ..backends import choose
from ..device.probe import probe

OPTIONS = (
    "Automatic",
    "Tiled (no-flash)",
    "xformers",
    "sdp - scaled dot product",
    "sdp-no-mem - scaled dot product without memory efficient attention",
    "sub-quadratic",
    "Doggettx",
    "InvokeAI",
    "V1 - original v1",
    "None",
)


def _device(text: str) -> torch.device:
    try:
        return torch.device(text)
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"{text} is not a device; examples: cpu, cuda:0, mps, xpu") from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", type=_device, help="cpu, cuda:0, mps, ...; default: the one a WebUI would take")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--leave", action="store_true", help="decide as with the setting to leave choices alone")


def run(args: argparse.Namespace) -> int:
    """0, or 1 where the device cannot be used."""
    found = probe(args.device)
    policy = "leave" if args.leave else "tiled"
    decisions = {option: choose.choose(option, found, policy) for option in OPTIONS}
    if args.json:
        report = {"probe": found.to_dict(), "decisions": {option: asdict(d) for option, d in decisions.items()}}
        print(json.dumps(report, indent=2))
        return 0 if found.usable else 1
    print(found)
    if not found.usable:
        return 1
    print(f"\n{found.summary()}\n")
    print(f"{'option':<19}{'runs':<19}because")
    for option, decision in decisions.items():
        runs, why = decision.backend, decision.reason or "as chosen"
        if runs == "host":
            runs, why = "the WebUI's own", "a fused kernel runs"
        print(f"{option.partition(' - ')[0]:<19}{runs:<19}{why}")
    return 0
