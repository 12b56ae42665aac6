"""`bench`: shapes, methods, what it prints; figures are not judged here."""

from __future__ import annotations

import argparse
import io
import json
import math
import sys

import pytest
import torch
import torch.nn.functional as F
from attention_reference import reference, tensors

from lib_tiled.cli import bench, measure, methods, predict, shapes
from lib_tiled.cli.progress import Progress
from lib_tiled.cli.shapes import Call
from lib_tiled.cli.table import table

CPU = torch.device("cpu")
SMALL = ["1,2,70,50,8", "1,2,30,1030,8"]


def command(*arguments):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args(arguments))


def test_shapes():
    assert shapes.model("sd15", 512, 512)[:2] == [Call(2, 8, 4096, 4096, 40), Call(2, 8, 4096, 77, 40)]
    assert shapes.model("sdxl", 1024, 1024)[0] == Call(2, 10, 4096, 4096, 64)
    assert shapes.model("flux", 1024, 1024) == [Call(1, 24, 4352, 4352, 128)]
    assert shapes.model("vae", 1024, 768) == [Call(1, 1, 12288, 12288, 512)]
    assert shapes.parse("1,2,3,4,5 design 1,2,3,4,5", [])[0] == Call(1, 2, 3, 4, 5)
    every = shapes.parse("all", [(512, 512), (2048, 2048)])
    assert Call(1, 16, 9408, 9408, 64) in every and Call(2, 8, 65536, 65536, 40) in every
    assert len(every) == len(set(every))
    for wrong in ("1,2,3", "1,2,3,4,0", "1,2,3,4,x", "sd3"):
        with pytest.raises(ValueError, match=wrong):
            shapes.parse(wrong, [])
    assert shapes.size("1024") == (1024, 1024) and shapes.size("1024x768") == (1024, 768)


@pytest.mark.parametrize("name", methods.METHODS)
def test_each_method_is_attention(name):
    # 2048 queries: memory-efficient-attention is right only at multiples of its chunk of 1024.
    q, k, v = tensors((1,), 2, 2048, 96, 16)
    try:
        out = methods.METHODS[name]()(q, k, v)
    except methods.NotHere as reason:
        pytest.skip(f"{name}: {reason}")
    assert torch.allclose(out.double(), reference(q, k, v), atol=1e-5)


def test_the_peers_leave_sdpa_alone():
    before = getattr(F, "scaled_dot_product_attention", None)
    for build in (methods.noflash_tier_1, methods.memory_efficient):
        try:
            build()
        except methods.NotHere:
            continue
    assert getattr(F, "scaled_dot_product_attention", None) is before


@pytest.mark.parametrize("shape", [((2,), 4, 1500, 1400, 8), ((1,), 1, 3001, 5000, 8)], ids=["heads", "rows"])
def test_sliced_really_slices(monkeypatch, shape):
    sizes, softmax = [], torch.Tensor.softmax
    monkeypatch.setattr(torch.Tensor, "softmax", lambda t, dim: sizes.append(t.numel()) or softmax(t, dim))
    q, k, v = tensors(*shape)
    out = methods.sliced()(q, k, v)
    assert len(sizes) > 1 and sum(sizes) == q.shape[:-1].numel() * k.shape[-2]
    monkeypatch.undo()
    assert torch.allclose(out.double(), reference(q, k, v), atol=1e-5)


def test_failures_are_rows_of_the_table(monkeypatch):
    def broken(q, k, v):
        raise RuntimeError("out of memory")

    monkeypatch.setitem(methods.METHODS, "fused", lambda: broken)
    monkeypatch.setitem(methods.METHODS, "math", lambda: lambda q, k, v: q[:, :, :5])
    monkeypatch.setitem(methods.METHODS, "sliced", lambda: lambda q, k, v: q + 1)
    found = measure.times(Call(1, 2, 20, 20, 8), ["tiled", "fused", "math", "sliced"], CPU, torch.float32, rounds=1)
    assert [m.error for m in found] == ["", "out of memory", "wrong: 5 rows", "wrong"]
    assert found[0].seconds > 0 and math.isnan(found[1].seconds)


def test_what_does_not_fit_is_not_tried(monkeypatch):
    monkeypatch.setattr(measure, "free_memory", lambda device: 1000)
    (m,) = measure.times(Call(1, 2, 200, 200, 8), ["math"], CPU, torch.float32)
    assert m.error == "too large"


def test_times_take_turns(monkeypatch):
    monkeypatch.setattr(measure, "REPEAT_SECONDS", 0)
    steps = []
    measure.times(Call(1, 2, 20, 20, 8), ["tiled", "sliced"], CPU, torch.float32, rounds=2, step=steps.append)
    assert [step.split()[0] for step in steps] == ["tiled", "sliced"] * 3


def test_backward():
    found = measure.times(Call(1, 2, 40, 30, 8), ["tiled", "sliced"], CPU, torch.float32, rounds=1, backward=True)
    assert not any(m.error for m in found)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")
def test_memory_on_a_cpu():
    call = Call(1, 2, 1500, 1500, 64)
    found = [measure.Measurement(call, "tiled"), measure.Measurement(call, "sliced")]
    measure.memory(found, CPU, torch.float32, False, lambda what: None)
    scores = 2 * 1500 * 1500 * 4
    assert found[1].bytes > scores > 0 < found[0].bytes


def test_table_and_json(capsys, tmp_path):
    arguments = ("--device", "cpu", "--rounds", "1", "--no-memory", "--methods", "sliced", "--shapes")
    assert command(*arguments, SMALL[0], "--json") == 0
    first = capsys.readouterr().out
    assert command(*arguments, SMALL[1], "--json") == 0
    second = capsys.readouterr().out
    report = json.loads(first)
    assert [r["method"] for r in report["results"]] == ["tiled", "sliced"]
    assert report["torch"] == torch.__version__ and report["results"][0]["seconds"] > 0
    files = []
    for i, text in enumerate((first, second)):
        files.append(str(tmp_path / f"{i}.json"))
        (tmp_path / f"{i}.json").write_text(text)
    assert command("--from", *files) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in (*SMALL, "tiled", "sliced", "geometric mean"))
    other = {**report, "dtype": "float16"}
    (tmp_path / "other.json").write_text(json.dumps(other))
    assert command("--from", files[0], str(tmp_path / "other.json")) == 2
    assert "dtype" in capsys.readouterr().err
    incomplete = json.dumps({**report, "results": [{"seconds": 1}]})
    for wrong in ("{}", "[1]", "a table", incomplete):
        (tmp_path / "wrong.json").write_text(wrong)
        assert command("--from", str(tmp_path / "wrong.json")) == 2
        assert "wrong.json is not what bench --json prints" in capsys.readouterr().err
    assert command("--from", *files, "--plot", str(tmp_path / "nowhere" / "p.png")) == 2
    assert "nowhere" in capsys.readouterr().err


def result(method, seconds, keys=2000, error=""):
    return {"call": [1, 1, 10, keys, 8], "method": method, "seconds": seconds, "bytes": 2**20, "error": error}


def test_ratios():
    report = {"results": [result("tiled", 2.0), result("math", 8.0), result("tiled", 3.0, 77), result("math", 3.0, 77)]}
    assert bench.ratios(report, "math") == [0.25, 1.0]
    assert bench.ratios(report, "math", bench.LARGE) == [0.25]
    assert bench.geometric_mean([0.25, 1.0]) == 0.5
    assert bench.ratios(report, "fused") == []


def test_exit_codes(capsys, monkeypatch):
    for wrong in (["--rounds", "0"], ["--device", "nothing"], ["--methods", "best"], ["--size", "3"], ["--dtype", "x"]):
        with pytest.raises(SystemExit) as caught:
            command(*wrong)
        assert caught.value.code == 2
    assert command("--shapes", "1,2") == 2
    assert command("--from", "nowhere.json") == 2

    def broken(q, k, v):
        raise RuntimeError("no")

    monkeypatch.setitem(methods.METHODS, "tiled", lambda: broken)
    assert command("--device", "cpu", "--no-memory", "--methods", "tiled", "--shapes", SMALL[0]) == 1
    assert "RuntimeError" in capsys.readouterr().out


def test_predictions(capsys):
    assert command("--model", "gfx906") == 0
    shown = capsys.readouterr().out
    assert "predicted" in shown and "not measured" in shown and "1.5 GB" in shown
    assert command("--model", "gfx906", "--json", "--shapes", "2,8,4096,4096,40") == 0
    report = json.loads(capsys.readouterr().out)
    assert "not measured" in report["note"]
    (one,) = report["results"]
    assert one["chunk"] == "2x8x4096x4096" and one["seconds"] > 4 * 16 * 4096**2 * 40 / 26.5e12
    assert predict.chunk(Call(1, 24, 17000, 17000, 128), 2).rows == 512


def test_plot(tmp_path):
    pytest.importorskip("matplotlib", reason="--plot needs matplotlib")
    report = {"device": "x", "dtype": "float32", "pass": "forward", "results": [result("tiled", 2.0)]}
    bench.plot(report, str(tmp_path / "p.png"))
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_what_the_tab_calls():
    names = bench.backends(CPU)
    assert names[0] == "tiled" and "sliced" in names
    found = bench.measure("tiled", 128, 64, CPU, torch.float32)
    assert not found.error and found.seconds > 0 and found.call == Call(2, 8, 128, 128, 40)


def test_measuring_memory_leaves_the_time_alone():
    m = measure.Measurement(Call(1, 2, 70, 50, 8), "tiled", seconds=3.0, median=4.0)
    measure.memory_here(m, CPU, torch.float32)
    assert not m.error and (m.seconds, m.median) == (3.0, 4.0)


def test_text_table():
    shown = table(["a", "b"], [["x", "1"], ["long", "22"]])
    assert shown.splitlines() == ["a      b", "----  --", "x      1", "long  22"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_bar(monkeypatch):
    stream = Terminal()
    with Progress(2, stream) as progress:
        progress("quick")
    assert stream.getvalue() == "", "nothing within two seconds"
    with Progress(2, stream) as progress:
        progress.started -= 3
        progress("one")
        progress("two")
    assert " 50% two" in stream.getvalue() and stream.getvalue().endswith("\r")
    quiet = io.StringIO()
    with Progress(2, quiet) as progress:
        progress.started -= 3
        progress("one")
    assert quiet.getvalue() == "", "a file gets no bar"
