"""Drawn cases against float64: shapes, masks, layouts, dtypes, tiles.

    TILED_FUZZ=10000 python -m pytest tests/test_kernel_random.py

draws that many cases instead of a few, and records seed, count and versions in bench/results/fuzz.json.
TILED_FUZZ_SEED repeats a run.
"""

from __future__ import annotations

import json
import math
import os
import platform
import random
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from attention_reference import error, mean_error, plain, reference, rounding
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from lib_tiled import tiled_attention
from lib_tiled.kernel import attention, options
from lib_tiled.kernel.plan import Tile

RECORDED = "TILED_FUZZ" in os.environ
CASES = int(os.environ.get("TILED_FUZZ", "200"))
SEED = int(os.environ.get("TILED_FUZZ_SEED", random.SystemRandom().randrange(1 << 32) if RECORDED else 1))
RECORD = Path(__file__).parents[1] / "bench" / "results" / "fuzz.json"
MASKS = ("none", "causal", "bool", "float", "float with -inf")
MANY = 500
LAYOUTS = ("plain", "heads last", "transposed", "cut", "strided", "expanded")


@dataclass
class Case:
    dims: int
    batch: int
    heads: int
    group: int
    queries: int
    keys: int
    dim: int
    dim_v: int
    dtype: str
    mask: str
    mask_dims: int
    mask_ones: tuple[bool, ...]
    layouts: tuple[str, str, str]
    scale: float | None
    size: float
    rows: int | None
    key_tile: tuple[int, int, int] | None
    any_bounded: bool  # try to skip the softmax maximum however few the keys
    seed: int


count = st.one_of(st.integers(1, 40), st.integers(1, 200))
cases = st.builds(
    Case,
    dims=st.integers(2, 5),
    batch=st.integers(1, 3),
    heads=st.integers(1, 4),
    group=st.sampled_from([1, 1, 1, 2, 3]),
    queries=st.one_of(count, st.just(0)),
    keys=st.one_of(count, st.integers(500, 1300), st.just(0)),
    dim=st.sampled_from([1, 3, 8, 16, 40, 64]),
    dim_v=st.sampled_from([1, 4, 8, 24, 64]),
    dtype=st.sampled_from(["float64", "float32", "float32", "float16", "bfloat16"]),
    mask=st.sampled_from(MASKS),
    mask_dims=st.integers(0, 5),
    mask_ones=st.tuples(*[st.booleans()] * 5),
    layouts=st.tuples(*[st.sampled_from(LAYOUTS)] * 3),
    scale=st.one_of(st.none(), st.floats(-2, 2)),
    size=st.sampled_from([1.0, 1.0, 0.01, 5.0]),
    rows=st.one_of(st.none(), st.integers(1, 70)),
    key_tile=st.one_of(st.none(), st.none(), st.tuples(st.integers(1, 3), st.integers(1, 50), st.integers(1, 300))),
    any_bounded=st.booleans(),
    seed=st.integers(0, 1 << 30),
)


def lay_out(t: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "heads last" and t.dim() > 2:
        return t.transpose(-2, -3).contiguous().transpose(-2, -3)
    if layout == "transposed":
        return t.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "cut":
        return torch.nn.functional.pad(t, (1, 2, 3, 1), value=math.nan)[..., 3 : t.shape[-2] + 3, 1:-2]
    if layout == "strided":
        return t.repeat_interleave(2, -1)[..., ::2]
    if layout == "expanded":
        return t[..., :1].expand(t.shape)
    return t


def build(case: Case) -> tuple[tuple, dict]:
    """Arguments for an attention function; the group counts only where there is a dimension of heads."""
    generator = torch.Generator().manual_seed(case.seed)
    dtype = getattr(torch, case.dtype)
    lead = (case.batch, 2, case.heads)[3 - (case.dims - 2) :] if case.dims > 2 else ()
    group = case.group if lead else 1

    def make(heads: int, n: int, d: int, layout: str) -> torch.Tensor:
        shape = (*lead[:-1], lead[-1] * heads, n, d) if lead else (n, d)
        return lay_out((torch.randn(shape, generator=generator) * case.size).to(dtype), layout)

    q = make(group, case.queries, case.dim, case.layouts[0])
    k = make(1, case.keys, case.dim, case.layouts[1])
    v = make(1, case.keys, case.dim_v, case.layouts[2])
    kwargs = {"scale": case.scale, "enable_gqa": group > 1, "is_causal": case.mask == "causal"}
    if case.mask in ("none", "causal"):
        return (q, k, v, None), kwargs
    full = (*q.shape[:-1], case.keys)
    shape = [1 if one else n for n, one in zip(full, case.mask_ones)][max(len(full) - case.mask_dims, 0) :]
    mask = torch.rand(shape, generator=generator) > 0.3
    if case.mask != "bool":
        bias = torch.randn(shape, generator=generator)
        mask = bias.masked_fill(~mask, -math.inf) if case.mask.endswith("-inf") else bias
    return (q, k, v, mask), kwargs


def compute(case: Case, arguments: tuple, kwargs: dict) -> torch.Tensor:
    planner, from_keys = attention.choose_tile, attention.BOUNDED_FROM_KEYS
    if case.any_bounded:
        attention.BOUNDED_FROM_KEYS = 1
    if case.key_tile is not None:
        attention.choose_tile = lambda *args, **kwargs: Tile(*case.key_tile)
    try:
        with options.using(rows=case.rows):
            return tiled_attention(*arguments, **kwargs)
    finally:
        attention.choose_tile, attention.BOUNDED_FROM_KEYS = planner, from_keys


cases_seen: list[float | None] = []  # the mean error over that of plain attention; None: too few values to compare


@seed(SEED)
@settings(max_examples=CASES, deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(cases)
def draw(case: Case) -> None:
    arguments, kwargs = build(case)
    copies = [t.clone() for t in arguments if t is not None]
    out = compute(case, arguments, kwargs)
    expected = reference(*arguments, **kwargs)
    assert out.dtype == arguments[0].dtype
    assert all(torch.equal(t, c) for t, c in zip(arguments, copies)), "an input was written to"
    assert torch.equal(out, compute(case, arguments, kwargs)), "the same inputs gave other bits"
    # Plain attention in the same dtype, in fp32 where the CPU has no such matmul.
    try:
        usual = plain(*arguments, **kwargs)
    except RuntimeError:
        usual = plain(*(t.float() for t in arguments[:3]), arguments[3], **kwargs).to(out.dtype)
    # At most twice its error, or what rounding alone does where plain attention was lucky; in float64 it is the
    # reference itself, so there is only the rounding, of both.
    floor = rounding(*arguments, **kwargs) * (4 if out.dtype == torch.float64 else 1)
    mean, usual_mean = mean_error(out, expected), mean_error(usual, expected)
    assert mean <= 2 * (usual_mean + mean_error(floor, torch.zeros_like(floor)))
    assert error(out, expected) <= 2 * (error(usual, expected) + error(floor, torch.zeros_like(floor)))
    cases_seen.append(mean / usual_mean if out.numel() >= MANY and usual_mean else None)


def test_drawn_cases():
    started = time.time()
    draw()
    ratios = sorted(ratio for ratio in cases_seen if ratio is not None)
    assert len(cases_seen) >= CASES and len(ratios) > CASES / 10
    assert statistics.median(ratios) <= 1.1, "the kernel rounds more than plain attention does"
    if RECORDED:
        record = {
            "seed": SEED,
            "cases": len(cases_seen),
            "failures": 0,
            f"cases of {MANY} values and more, not float64": len(ratios),
            "their mean error over that of plain attention: median": round(statistics.median(ratios), 3),
            "99 of 100 at most": round(ratios[len(ratios) * 99 // 100], 3),
            "seconds": round(time.time() - started),
            "date": time.strftime("%Y-%m-%d"),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
        }
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        RECORD.write_text(json.dumps(record, indent=2) + "\n")


def test_every_kind_of_case_is_drawn_from():
    # What the strategy may draw is what the module's first line promises.
    sizes = (5, 2, 2, 3, 5, 7, 8, 4)
    example = Case(*sizes, "float32", "bool", 5, (False,) * 5, LAYOUTS[:3], None, 1.0, 3, (1, 2, 3), True, 0)
    for mask in MASKS:
        for layout in LAYOUTS:
            for dims in range(2, 6):
                case = Case(**{**asdict(example), "mask": mask, "layouts": (layout,) * 3, "dims": dims})
                (q, k, v, bias), kwargs = build(case)
                assert q.dim() == dims and (bias is None) == (mask in ("none", "causal"))
                assert error(compute(case, (q, k, v, bias), kwargs), reference(q, k, v, bias, **kwargs)) < 1e-5
