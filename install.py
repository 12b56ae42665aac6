"""Run by the WebUI at start in a process of its own. Installs nothing: everything needed comes with the WebUI."""

import sys

OLDEST_PYTHON = (3, 10)
OLDEST_TORCH = (1, 13)


def complaint():
    """One sentence about what is too old or missing, None where all is well."""
    if sys.version_info < OLDEST_PYTHON:
        have = ".".join(map(str, sys.version_info[:2]))
        return "Tiled (no-flash) needs Python 3.10 or newer, this is {}.".format(have)
    from importlib.metadata import PackageNotFoundError, version

    try:
        torch_version = version("torch")
    except PackageNotFoundError:
        return "Tiled (no-flash) needs PyTorch 1.13 or newer, which is not installed."
    numbers = tuple(int("".join(filter(str.isdigit, part)) or 0) for part in torch_version.split("+")[0].split(".")[:2])
    if numbers < OLDEST_TORCH:
        return "Tiled (no-flash) needs PyTorch 1.13 or newer, this is {}.".format(torch_version)
    return None


if "--skip-install" not in sys.argv:
    text = complaint()
    if text:
        print("[Tiled] " + text)
