"""All hosts: the launcher's side, as far as an extension asks for it; it also runs the extensions' install.py."""

import importlib.util
import os
import subprocess
import sys

import devhost
from modules import errors
from modules.shared_cmd_options import cmd_opts as args  # noqa: F401

python = sys.executable


def git_tag():
    return {"a1111": "v1.10.1", "forge": "f2.0.1v1.10.1", "reforge": "v1.10.1-RC-devhost"}[devhost.face]


def commit_hash():
    return "devhost"


def is_installed(package):
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def run_pip(command, desc=None, live=False):
    raise RuntimeError("devhost installs nothing for extensions")


def run_extensions_installers():
    """install.py of each extension, as a process of its own in the WebUI's folder."""
    for folder in devhost.extensions:
        path = os.path.join(folder, "install.py")
        if not os.path.isfile(path):
            continue
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["", *sys.path, os.environ.get("PYTHONPATH", "")])}
        result = subprocess.run([python, path], cwd=devhost.data, env=environment, capture_output=True, text=True)
        print(result.stdout, end="")
        if result.returncode:
            errors.report(f"Error running install.py for extension {folder}.\nstderr: {result.stderr}")
