"""The block that a user pastes into a bug report: device, versions, host, probe, settings, last line."""

from __future__ import annotations

import importlib
import platform
import re
import sys

from modules import shared

from .. import __version__
from ..device.probe import probe
from ..hosts.base import OPTION, Host
from ..report import line as text
from ..report.generation import history
from . import settings

# /home/name/file.py, ~/file, C:\Users\name\file: two parts at least, so that "cond/uncond" stays.
_PATH = re.compile(r"(?<![\w/.])(?:~?(?:/[^\s/:;,()'\"]+){2,}/?|[A-Za-z]:\\[^\s:;,()'\"]+)")


def without_paths(line: str) -> str:
    """The text with "(path)" for every file name in it: errors of the system name files."""
    return _PATH.sub("(path)", line)


def _version(package: str) -> str:
    module = sys.modules.get(package)
    return str(getattr(module, "__version__", "not loaded"))


def _host(host: Host | None) -> str:
    """ "AUTOMATIC1111 v1.10.1, commit 82a973c0": the host's own word for what it is."""
    name = host.name if host is not None else "unknown WebUI, extension not active"
    launcher = importlib.import_module("modules.launch_utils")
    tag, commit = (getattr(launcher, question)() for question in ("git_tag", "commit_hash"))
    return f"{name} {tag}, commit {commit}"


def _flags() -> str:
    """The switches of the command line that are on. Values stay out: they hold paths and passwords."""
    return " ".join(f"--{name.replace('_', '-')}" for name, value in vars(shared.cmd_opts).items() if value is True)


def block(host: Host | None) -> str:
    """The whole report as plain text. Raises nothing on its own account; a failed part says so."""
    parts = {
        "Tiled (no-flash)": lambda: __version__,
        "WebUI": lambda: _host(host),
        "System": lambda: f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "gradio": lambda: _version("gradio"),
        "Flags": _flags,
        "Attention setting": lambda: settings.get(OPTION),
        "Settings": lambda: ", ".join(f"{key}={value}" for key, value in settings.all_values().items()),
        "Last line": lambda: text.line(history.last()) if history.last() else "none yet",
        "Probe": lambda: "\n" + str(probe(shared.device)),
    }
    return "\n".join(f"{title}: {without_paths(_tried(part))}".rstrip() for title, part in parts.items())


def _tried(part) -> str:
    try:
        return str(part())
    except Exception as error:  # a report with a hole is better than none
        return f"failed ({type(error).__name__}: {error})"
