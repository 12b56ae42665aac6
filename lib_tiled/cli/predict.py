"""What the planner's cost model says about a card that is not here: predicted, not measured."""

from __future__ import annotations

import json

import torch

from ..device.facts import GFX906
from ..kernel.plan import Shape, Tile, plan, predict_seconds
from .shapes import Call
from .table import table

DEVICES = {"gfx906": GFX906}
CHUNK_BYTES = 1.5 * 2**30


def chunk(call: Call, size: int) -> Tile:
    """The scores that a 1.5 GB chunk holds: all heads, and rows from 4096 down to 128, as noflash-attention picks
    them for two score-sized buffers."""
    one_row = 2 * call.batch * call.heads * call.keys * size
    rows = next((n for n in (4096, 2048, 1024, 512, 256) if n * one_row <= CHUNK_BYTES), 128)
    return Tile(call.heads, min(rows, call.queries), call.keys, call.batch)


def predictions(device: str, calls: list[Call], dtype: torch.dtype) -> list[dict]:
    facts = DEVICES[device]
    compute = dtype if dtype != torch.bfloat16 or facts.bf16_matmul else torch.float32
    found = []
    for call in calls:
        shape = Shape(*call, call.dim)
        tile = plan(shape, compute, facts)
        chunked = chunk(call, torch.finfo(compute).bits // 8)
        found.append({
            "call": call,
            "tile": str(tile),
            "seconds": predict_seconds(shape, tile, compute, facts),
            "chunk": str(chunked),
            "chunk_seconds": predict_seconds(shape, chunked, compute, facts),
        })
    return found


def text(device: str, calls: list[Call], dtype: torch.dtype, as_json: bool) -> str:
    found = predictions(device, calls, dtype)
    name = str(dtype).rpartition(".")[2]
    note = "predicted by the planner's cost model from the card's data sheet, not measured"
    if as_json:
        return json.dumps({"device": device, "dtype": name, "note": note, "results": found}, indent=2)
    rows = [[str(p["call"]), p["tile"], f"{p['seconds'] * 1e3:.2f}", p["chunk"], f"{p['chunk_seconds'] * 1e3:.2f}",
             f"{p['chunk_seconds'] / p['seconds']:.2f}"] for p in found]
    head = ["B,H,Nq,Nk,D", "our tile", "ms", "1.5 GB chunk", "ms", "chunk / ours"]
    return f"{device}, {name}: {note}\n\n{table(head, rows)}"
