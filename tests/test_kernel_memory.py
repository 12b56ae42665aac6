"""Memory beyond inputs and output, measured as the resident high-water mark of a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lib_tiled.cli import peak

MEASURE = """
import json, sys
import torch
from lib_tiled import tiled_attention
from lib_tiled.cli.peak import extra_peak

torch.set_num_threads(2)
cpu = torch.device("cpu")
case = json.loads(sys.argv[1])
backward, dtype = case.pop("backward", False), getattr(torch, case.pop("dtype", "float32"))

grouped = case.pop("grouped", False)  # one key head for all query heads

def inputs(heads, queries, keys, dim):
    shapes = (heads, queries), (1 if grouped else heads, keys), (1 if grouped else heads, keys)
    return [torch.rand(1, h, n, dim).sub_(0.5).to(dtype).requires_grad_(backward) for h, n in shapes]

def tiled(q, k, v):
    return tiled_attention(q, k, v, enable_gqa=grouped)

def math(q, k, v):
    return ((q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5).softmax(-1) @ v

def run(function, tensors):
    out = function(*tensors)
    if backward:
        out.sum().backward()
        for t in tensors:
            t.grad = None
    return out

small = inputs(2, 300, 300, 40)
tensors = inputs(**case)
found = {}
for name, function in (("tiled", tiled), ("math", math)):
    run(function, small)  # libraries get their threads and buffers
    if name == "tiled" or backward and not grouped:
        found[name] = extra_peak(lambda: run(function, tensors), cpu)
print(json.dumps(found))
"""


def measure(**case):
    if not sys.platform.startswith("linux"):
        pytest.skip("resident memory is read from /proc")
    command = [sys.executable, "-c", MEASURE, json.dumps(case)]
    environment = {**peak.environment(), "OMP_WAIT_POLICY": "PASSIVE"}  # waiting threads leave a busy machine alone
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    return {name: size / 2**20 for name, size in json.loads(done.stdout).items()}


@pytest.mark.parametrize(
    "case",
    [
        {"heads": 2, "queries": 8_192, "keys": 16_384, "dim": 40},
        {"heads": 2, "queries": 256, "keys": 300_000, "dim": 40},
        {"heads": 8, "queries": 256, "keys": 65_536, "dim": 64},
        {"heads": 1, "queries": 1_024, "keys": 16_384, "dim": 512},
    ],
    ids=str,
)
def test_at_most_32_mib_beyond_the_output(case):
    output = case["heads"] * case["queries"] * case["dim"] * 4 / 2**20
    assert measure(**case)["tiled"] - output <= 32


def test_half_precision_keeps_no_more_than_one_head_in_fp32():
    case = {"heads": 8, "queries": 256, "keys": 65_536, "dim": 64}
    output, one_head = 8 * 256 * 64 * 2 / 2**20, 2 * 65_536 * 64 * 4 / 2**20
    assert measure(**case, dtype="bfloat16")["tiled"] - output <= 32 + one_head


@pytest.mark.parametrize("backward", [False, True])
def test_grouped_heads_are_never_repeated(backward):
    """A decode step: one query row, whose 64 heads share one key head. In fp32 k and v are 8 MiB, repeated 512."""
    case = {"heads": 64, "queries": 1, "keys": 16_384, "dim": 64, "grouped": True, "dtype": "bfloat16"}
    assert measure(**case, backward=backward)["tiled"] <= 48


def test_forward_and_backward_need_an_eighth_of_plain_attention():
    found = measure(heads=3, queries=4_096, keys=4_096, dim=40, backward=True)
    assert found["tiled"] <= found["math"] / 8
