"""`python -m lib_tiled doctor`: tables, JSON, exit codes, and the outputs in docs/doctor.md."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from attention_reference import needs_sdpa

from lib_tiled.__main__ import COMMANDS, main
from lib_tiled.backends import choose
from lib_tiled.cli import doctor
from lib_tiled.device import pretend, trial
from lib_tiled.device import probe as probe_module
from lib_tiled.device.probe import probe

ROOT = Path(__file__).resolve().parent.parent
DOC = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"\$ (TILED_PRETEND=\S+) python -m lib_tiled doctor\n(.*?)```", DOC, re.DOTALL))


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(probe_module, "_cache", {})
    monkeypatch.delenv(pretend.VARIABLE, raising=False)


def test_tables_of_this_machine(capsys):
    assert main(["doctor", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert str(probe("cpu")).splitlines() == lines[: lines.index(probe("cpu").summary()) - 1]
    rows = {line.split()[0]: line for line in lines[lines.index(probe("cpu").summary()) :] if line}
    for option in doctor.OPTIONS:
        decision = choose.choose(option, probe("cpu"))
        usual = "a fused kernel runs" if decision.backend == "host" else "as chosen"
        assert rows[option.split()[0]].endswith(decision.reason or usual)


def test_json_says_the_same(capsys):
    assert main(["doctor", "--json", "--device", "cpu"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["probe"] == json.loads(json.dumps(probe("cpu").to_dict()))
    assert list(answer["decisions"]) == list(doctor.OPTIONS)
    for option, decision in answer["decisions"].items():
        expected = choose.choose(option, probe("cpu"))
        assert decision == {"backend": expected.backend, "reason": expected.reason}


@needs_sdpa
def test_leave(monkeypatch, capsys):
    monkeypatch.setenv(pretend.VARIABLE, "gfx906")
    main(["doctor", "--json", "--leave"])
    decisions = json.loads(capsys.readouterr().out)["decisions"]
    assert decisions["sdp - scaled dot product"]["backend"] == "sdp"
    assert decisions["Automatic"]["backend"] == "tiled"


@pytest.mark.parametrize("arguments", [["doctor", "--device", "no such"], ["doctor", "--what"], ["dokter"], []])
def test_arguments_that_do_not_fit(capsys, arguments):
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    assert leaving.value.code == 2
    assert "usage: python -m lib_tiled" in capsys.readouterr().err


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as leaving:
        main(["--help"])
    assert leaving.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"    {name} " in shown for name in COMMANDS)


def test_a_device_that_cannot_be_used(capsys):
    assert main(["doctor", "--device", "meta"]) == 1
    shown = capsys.readouterr().out
    assert "the device cannot be used" in shown and "Automatic" not in shown
    assert main(["doctor", "--device", "meta", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["probe"]["usable"] is False


def test_as_a_user_runs_it():
    """A process of its own: nothing on stderr, whatever libraries log at their import."""
    command = [sys.executable, "-m", "lib_tiled", "doctor", "--json", "--device", "cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["probe"]["device"] == "cpu"


@needs_sdpa
@pytest.mark.parametrize("variable", ["TILED_PRETEND=gfx906", "TILED_PRETEND=gfx1030", "TILED_PRETEND=sm_61"])
def test_the_document_shows_what_it_prints(monkeypatch, capsys, variable):
    monkeypatch.setenv(*variable.split("="))
    monkeypatch.setattr(trial, "xformers_missing", lambda: "not installed")
    monkeypatch.setattr(probe_module, "_versions", lambda: {"torch": "2.13.0+cpu"})
    main(["doctor", "--device", "cpu"])
    assert BLOCKS[variable] == capsys.readouterr().out
