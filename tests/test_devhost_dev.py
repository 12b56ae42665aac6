"""dev.py: pins, and what it says when something is missing. It makes no environment here."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def dev():
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_pin_is_exact_and_in_a_section(dev):
    pins = dev.read_pins()
    assert list(pins) == ["torch", "tools", "gradio3", "models", "gradio4"]
    assert pins["torch"] == ["torch==2.13.0"]
    assert all("==" in pin.split(";")[0] for lines in pins.values() for pin in lines)


def test_old_python_is_named(dev, capsys, monkeypatch):
    monkeypatch.setattr(dev.sys, "version_info", (3, 9, 1))
    assert dev.main(["test"]) == 2
    assert "needs Python 3.10 or newer" in capsys.readouterr().err


def test_unknown_command_prints_the_commands():
    result = subprocess.run([sys.executable, str(ROOT / "dev.py"), "tset"], capture_output=True, text=True)
    assert result.returncode == 2 and "python dev.py demo" in result.stdout


def fake_pip(dev, folder, output):
    """Makes `folder` an environment whose python prints `output` and fails."""
    python = dev.python_of(folder)
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho '{output}'\nexit 1\n")
    python.chmod(0o755)


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for pip is a shell script")
@pytest.mark.parametrize("output, text", [
    ("Retrying: Temporary failure in name resolution", "is there a network?"),
    ("No matching distribution found for gradio==3.41.2", "No matching distribution"),
])
def test_failing_pip_is_explained(dev, tmp_path, output, text):
    fake_pip(dev, tmp_path / "venv", output)
    with pytest.raises(dev.SetupError, match=text):
        dev.pip_install(tmp_path / "venv", "tools", ["pytest==9.0.3"])


def test_unchanged_sections_are_not_installed_again(dev, tmp_path, monkeypatch):
    made, installed = [], []
    monkeypatch.setattr(dev, "make_venv", lambda folder, borrowed: (made.append(folder), folder.mkdir()))
    monkeypatch.setattr(dev, "pip_install", lambda folder, section, pins, *options: installed.append(section))
    monkeypatch.setattr(dev, "python_of", lambda folder: folder)
    for pins in (["a==1"], ["a==1"], ["a==2"]):
        dev.Environment(tmp_path / "venv", []).install("tools", pins)
    assert made == [tmp_path / "venv"] and installed == ["tools", "tools"]
