"""`tune`: what is kept, where, and that only the plan reads it."""

from __future__ import annotations

import argparse
import json
import logging
import math

import pytest
import torch
from attention_reference import assert_close, reference, tensors

from lib_tiled import tiled_attention
from lib_tiled.cli import tune
from lib_tiled.kernel import attention, options, tuned

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty cache folder; what another test read is forgotten before and after."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tuned._entries.cache_clear()
    yield tmp_path / "tiled-attention" / "tune.json"
    tuned._entries.cache_clear()


def planned(keys=4096):
    q, k, v = (torch.empty(2, 8, n, 40) for n in (4096, keys, keys))
    return attention.choose_tile(q, k, v, torch.float32)


def test_the_file_is_in_the_users_cache(cache, monkeypatch, tmp_path):
    assert tuned.path() == cache
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert tuned.path() == tmp_path / "home" / ".cache" / "tiled-attention" / "tune.json"


def test_the_plan_follows_what_was_kept(cache):
    before = planned()
    assert tuned.scratch_mb(CPU) is None
    tuned.store(CPU, 1)
    assert planned().elements * 4 <= 2**20 < before.elements * 4
    with options.using(scratch_mb=8):  # the setting stands above it
        assert planned().elements * 4 > 2**20
    q, k, v = tensors((1,), 2, 300, 400, 8)
    assert_close(tiled_attention(q, k, v), reference(q, k, v))
    tuned.forget(CPU)
    assert planned() == before
    assert tuned.key(CPU) not in json.loads(cache.read_text())


def test_entries_hold_for_one_device_and_one_torch(cache):
    tuned.store(CPU, 2)
    (name,) = json.loads(cache.read_text())
    assert torch.__version__ in name and "CPU" in name
    cache.write_text(json.dumps({name.replace(torch.__version__, "1.0"): {"scratch_mb": 1}}))
    tuned._entries.cache_clear()
    assert tuned.scratch_mb(CPU) is None
    tuned.store(CPU, 4)
    assert len(json.loads(cache.read_text())) == 2, "other entries stay"


CORRUPT = ["", "{", "[]", "7", '{"x": 3}', '{"x": {"scratch_mb": "2"}}', '{"x": {"scratch_mb": 0}}']


@pytest.mark.parametrize("content", CORRUPT)
def test_a_corrupt_file_is_ignored_with_one_line(content, cache, caplog):
    before = planned()
    cache.parent.mkdir()
    cache.write_text(content)
    tuned._entries.cache_clear()
    with caplog.at_level(logging.WARNING, "Tiled"):
        logging.getLogger("Tiled").propagate = True
        assert planned() == planned() == before
    assert len(caplog.records) == 1 and "tune" in caplog.text
    tuned.store(CPU, 2)
    assert tuned.scratch_mb(CPU) == 2


def test_the_file_is_read_once_per_process(cache, monkeypatch):
    tuned.store(CPU, 2)
    planned()
    cache.write_text("{")
    planned()
    assert tuned.scratch_mb(CPU) == 2


def test_choose():
    own = [2.0, 4.0]
    assert tune.choose({None: own, 4: [1.0, 3.0], 8: [1.5, 3.0]}) == 4
    assert tune.choose({None: own, 4: [1.99, 3.99]}) is None, "no gain worth another tile"
    assert tune.choose({None: own, 4: [3.0, 5.0]}) is None


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(tune, "CALLS", [tune.Call(1, 2, 64, 64, 8), tune.Call(1, 1, 100, 50, 8)])


def test_tune_measures_and_keeps(small, cache):
    shares = []
    text = tune.tune(CPU, lambda share, what: shares.append(share), rounds=1)
    assert str(cache) in text and "planner's own" in text and "1,2,64,64,8" in text
    assert shares == sorted(shares) and 0 <= shares[0] and shares[-1] < 1
    entry = json.loads(cache.read_text())[tuned.key(CPU)]
    assert entry["scratch_mb"] is None or entry["scratch_mb"] in tune.SIZES
    assert options.current() == options.KernelOptions()


def test_a_cancelled_run_keeps_nothing(small, cache):
    tuned.store(CPU, 2)

    def cancel(share, what):
        if share > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune.tune(CPU, cancel, rounds=1)
    assert tuned.scratch_mb(CPU) == 2
    assert options.current() == options.KernelOptions()


def test_every_size_takes_part(small):
    found = tune.measure(CPU, 1, lambda share, what: None)
    assert list(found) == [None, *tune.SIZES]
    assert all(len(seconds) == 2 and all(0 < x < math.inf for x in seconds) for seconds in found.values())


def command(*arguments):
    parser = argparse.ArgumentParser()
    tune.add_arguments(parser)
    return tune.run(parser.parse_args(arguments))


def test_command(small, cache, capsys):
    assert command("--device", "cpu", "--rounds", "1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["file"] == str(cache)
    assert command("--device", "cpu", "--forget") == 0
    assert "forgotten" in capsys.readouterr().out
    cache.unlink()
    cache.parent.rmdir()
    cache.parent.write_text("in the way")
    tuned._entries.cache_clear()
    assert command("--device", "cpu", "--rounds", "1") == 1
    assert "could not be kept" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        command("--rounds", "0")
    assert caught.value.code == 2
