"""The tile size that `python -m lib_tiled tune` found best for a device, kept in a small file.

The file is `tiled-attention/tune.json` in $XDG_CACHE_HOME, or in ~/.cache without it: a JSON object whose keys are
`<device>, torch <version>` and whose values are `{"scratch_mb": N}`, the MiB that a score tile may fill (null: the
planner's own limit was best). It is read once per process. Only the plan depends on it: as long as the file stays,
the same call gets the same tile.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import platform
import tempfile
from pathlib import Path

import torch


def path() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "tiled-attention" / "tune.json"


def key(device: torch.device) -> str:
    """The device's name, on a CPU with its threads, and torch's version: what a measurement holds for."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    elif device.type == "cpu":
        name = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    else:
        name = device.type
    return f"{name}, torch {torch.__version__}"


def _checked(entries: object) -> dict[str, int | None]:
    """key -> MiB; ValueError where the file holds something else."""
    if not isinstance(entries, dict):
        raise ValueError("not a JSON object")
    found = {}
    for name, entry in entries.items():
        size = entry.get("scratch_mb", 0) if isinstance(entry, dict) else 0
        if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise ValueError(f"no tile size for {name}")
        found[name] = size
    return found


@functools.cache
def _entries() -> dict[str, int | None]:
    try:
        return _checked(json.loads(path().read_text(encoding="utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: no home directory
        logging.getLogger("Tiled").warning("ignoring the tile sizes of tune: %s", error)
        return {}


def scratch_mb(device: torch.device) -> int | None:
    """MiB that `tune` found best for a score tile on this device; None where it was not run or changed nothing."""
    entries = _entries()
    return entries.get(key(device)) if entries else None


def store(device: torch.device, size: int | None) -> Path:
    """Keeps `size` for this device beside what the file holds for others; returns the file. Raises OSError."""
    return _write({**_entries(), key(device): size})


def forget(device: torch.device) -> None:
    """Takes this device out of the file. Raises OSError."""
    if key(device) in _entries():
        _write({name: size for name, size in _entries().items() if name != key(device)})


def _write(entries: dict[str, int | None]) -> Path:
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=file.parent, suffix=".json")
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        json.dump({name: {"scratch_mb": size} for name, size in entries.items()}, out, indent=2)
    os.replace(temporary, file)  # a reader sees the old file or the new one
    _entries.cache_clear()
    return file
