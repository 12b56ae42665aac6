#!/usr/bin/env python3
"""The commands of a developer. Standard library only; each makes the environment it needs by itself.

    python dev.py demo [--host a1111|forge|reforge] [--port N] [--once] [--pretend gfx906] [--optimization TITLE]
        A miniature WebUI with this extension on 127.0.0.1. --once draws one picture without a browser and leaves.
    python dev.py test [pytest arguments]
        The whole test suite.
    python dev.py host-test --webui DIR [--python PY] [--args "..."]
        The extension inside a real WebUI that is on this machine.

.venv holds gradio 3 (AUTOMATIC1111, reForge), .venv-gradio4 holds gradio 4 (Forge) and borrows the rest from .venv.
The versions are pinned in requirements-dev.txt. A torch that the running Python already has is used as it is.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PINS = ROOT / "requirements-dev.txt"
VENV = ROOT / ".venv"
VENV4 = ROOT / ".venv-gradio4"
OLDEST_PYTHON = (3, 10)
NO_NETWORK = ("Failed to establish a new connection", "NameResolutionError", "Temporary failure in name resolution",
              "ConnectTimeoutError", "ProxyError", "Network is unreachable", "ReadTimeoutError")


class SetupError(Exception):
    """The environment could not be made; the text is meant for the person at the keyboard."""


def say(text: str) -> None:
    print(f"[dev] {text}", flush=True)


# -- pins -------------------------------------------------------------------------------------------------------------

def read_pins() -> dict[str, list[str]]:
    """requirements-dev.txt by section: {"torch": ["torch==..."], "base": [...], ...}."""
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in PINS.read_text(encoding="utf-8").splitlines():
        head = re.match(r"# \[([\w-]+)\]", line)
        if head:
            lines = sections.setdefault(head.group(1), [])
        elif line.strip() and not line.startswith("#"):
            lines.append(line.strip())
    return sections


def version_of(package: str) -> str | None:
    """The version of a package that the running Python has, without importing it; None where it has none."""
    try:
        return importlib.metadata.version(package) if importlib.util.find_spec(package) else None
    except importlib.metadata.PackageNotFoundError:
        return None


def own_torch_folders() -> list[str]:
    """The package folders of the running Python if it has a torch, else nothing."""
    if version_of("torch") is None:
        return []
    return [p for p in sys.path if Path(p).name in ("site-packages", "dist-packages")]


# -- environments -----------------------------------------------------------------------------------------------------

def python_of(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def site_packages(venv: Path) -> Path:
    if os.name == "nt":
        return venv / "Lib" / "site-packages"
    return venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def make_venv(venv: Path, borrowed: list[str]) -> None:
    """An empty environment that also sees the package folders in `borrowed`, after its own."""
    say(f"making {venv.name} with Python {sys.version.split()[0]}")
    if venv.exists():
        shutil.rmtree(venv)
    result = subprocess.run([sys.executable, "-m", "venv", str(venv)], capture_output=True, text=True)
    if result.returncode != 0:
        raise SetupError(f"python -m venv failed. On Debian and Ubuntu: apt install python3-venv.\n{result.stdout}"
                         f"{result.stderr}")
    if borrowed:
        (site_packages(venv) / "_borrowed.pth").write_text("\n".join(borrowed) + "\n", encoding="utf-8")


def pip_install(venv: Path, what: str, pins: list[str], *options: str) -> None:
    """One `pip install`; prints what is downloaded, and the end of pip's output where it fails."""
    if not pins:
        return
    say(f"installing {what}: {', '.join(pins) if len(pins) < 3 else f'{len(pins)} packages'}")
    started = time.monotonic()
    command = [str(python_of(venv)), "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
               "--progress-bar", "off", *options, *pins]
    output: list[str] = []
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, encoding="utf-8", errors="replace") as pip:
        for line in pip.stdout or ():
            output.append(line.rstrip())
            if line.lstrip().startswith(("Downloading", "Building")):
                say(f"  {line.strip()}")
    if pip.returncode != 0:
        text = "\n".join(output)
        hint = "The package index cannot be reached: is there a network? " if any(
            mark in text for mark in NO_NETWORK) else ""
        raise SetupError(f"{hint}pip could not install the section [{what}]:\n" + "\n".join(output[-12:]))
    say(f"  {time.monotonic() - started:.0f} s")


class Environment:
    """A folder like .venv, and pins.json in it that remembers which pins each section was installed from."""

    def __init__(self, folder: Path, borrowed: list[str]):
        self.folder, self.memory = folder, folder / "pins.json"
        base = [sys.version, *borrowed, str(version_of("torch"))]  # a change here makes a new environment
        self.installed = json.loads(self.memory.read_text()) if self.memory.is_file() else {}
        if self.installed.get("base") != base or not python_of(folder).exists():
            make_venv(folder, borrowed)
            self.installed = {"base": base}

    def install(self, section: str, pins: list[str], *options: str) -> None:
        """Installs a section unless these very pins are there."""
        if self.installed.get(section) == pins:
            return
        pip_install(self.folder, section, pins, *options)
        self.installed[section] = pins
        self.memory.write_text(json.dumps(self.installed, indent=1))


def ensure_environments(gradio4: bool) -> None:
    """Makes .venv, and .venv-gradio4 if asked, or brings them up to the pins."""
    if Path(sys.prefix).resolve() in (VENV, VENV4):
        raise SetupError("please run dev.py with a Python outside of .venv")
    pins = read_pins()
    borrowed = own_torch_folders()
    first = Environment(VENV, borrowed)
    if borrowed:
        # numpy and xformers go with a torch: where that is borrowed, so are they.
        here = {name for name in ("torch", "numpy", "xformers") if version_of(name)}
        pins = {section: [pin for pin in lines if pin.split("==")[0] not in here] for section, lines in pins.items()}
        say(f"using the torch {version_of('torch')} of this Python")
    if pins["torch"] and "torch" not in first.installed and sys.platform == "linux":
        say("on Linux pip takes torch with CUDA, some GB, unless it is configured for PyTorch's CPU index")
    first.install("torch", pins["torch"])
    for section in ("tools", "gradio3", "models"):
        first.install(section, pins[section], "--no-deps")
    if gradio4:
        second = Environment(VENV4, [str(site_packages(VENV)), *borrowed])
        second.install("gradio4", pins["gradio4"], "--no-deps", "--ignore-installed")


# -- commands ---------------------------------------------------------------------------------------------------------

def run(venv: Path, *arguments: str, **environment: str) -> int:
    """Runs the environment's Python in the repository's folder; Ctrl-C is left to the child."""
    with subprocess.Popen([str(python_of(venv)), *arguments], cwd=ROOT, env={**os.environ, **environment}) as child:
        while True:
            try:
                return child.wait()
            except KeyboardInterrupt:
                continue


def demo(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py demo", description="a miniature WebUI with this extension")
    parser.add_argument("--host", choices=("a1111", "forge", "reforge"), default="a1111",
                        help="which WebUI to behave like")
    parser.add_argument("--port", type=int, default=7861)
    parser.add_argument("--once", action="store_true", help="draw one picture without a browser, save it, leave")
    parser.add_argument("--out", default="demo.png", help="where --once saves the picture")
    parser.add_argument("--pretend", metavar="DEVICE", help="behave as if the device were this one, e.g. gfx906")
    parser.add_argument("--optimization", metavar="TITLE", help='cross attention optimization; default "Tiled '
                        '(no-flash)"', default="Tiled (no-flash)")
    options, rest = parser.parse_known_args(arguments)
    ensure_environments(gradio4=options.host == "forge")
    command = ["-m", "devhost", "--face", options.host, "--port", str(options.port), "--extension", str(ROOT),
               "--optimization", options.optimization, "--api"]
    if options.once:
        command += ["--once", "--out", options.out]
    return run(VENV4 if options.host == "forge" else VENV, *command, *rest,
               **({"TILED_PRETEND": options.pretend} if options.pretend else {}))


def test(arguments: list[str]) -> int:
    ensure_environments(gradio4=True)
    return run(VENV, "-m", "pytest", *arguments)


def host_test(arguments: list[str]) -> int:
    ensure_environments(gradio4=False)
    return run(VENV, "-m", "devhost.host_test", *arguments)


def main(arguments: list[str]) -> int:
    commands = {"demo": demo, "test": test, "host-test": host_test}
    if sys.version_info < OLDEST_PYTHON:
        print(f"This needs Python {'.'.join(map(str, OLDEST_PYTHON))} or newer; {sys.executable} is "
              f"{sys.version.split()[0]}.", file=sys.stderr)
        return 2
    if not arguments or arguments[0] not in commands:
        print(__doc__.strip())
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    try:
        return commands[arguments[0]](arguments[1:])
    except SetupError as error:
        print(f"[dev] {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
