"""What host-test changes in a WebUI's folder, and how it puts that back: the link to this extension, the settings.

The copies of the settings lie in the WebUI's folder itself until they are put back, so that a run that was killed
outright is mended by the next one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = "tiled-attention-host-test"
BACKUP = "tiled-attention-host-test-backup"
# Folders that a WebUI makes by itself at its first start or first generation. New ones are removed with their content.
MADE_BY_HOST = ("cache", "config_states", "log", "outputs", "output", "tmp")
NOT_LISTED = (".git", "venv", ".venv", "repositories", "__pycache__", BACKUP)


class CannotTest(Exception):
    """There is nothing here that could be tested; the text says what is needed."""


def host_folders(directory: Path, arguments: list[str]) -> tuple[Path, list[Path]]:
    """(the folder with extensions/, the files with settings), by the WebUI's arguments as its own parser reads them."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--data-dir", default=str(directory))
    parser.add_argument("--ui-settings-file")
    parser.add_argument("--ui-config-file")
    known, _ = parser.parse_known_args(arguments)
    data = (directory / known.data_dir).resolve()
    settings = [directory / name for name in (known.ui_settings_file, known.ui_config_file) if name]
    return data, [*settings, *(data / name for name in ("config.json", "ui-config.json", "params.txt", "cache.json"))]


@contextlib.contextmanager
def linked(extensions: Path):
    """This extension as a link in extensions/. CannotTest where another copy of it is there."""
    link = extensions / LINK
    if link.is_symlink() and link.resolve() == ROOT:
        link.unlink()  # left by a run that was killed
    entries = sorted(extensions.iterdir())
    ours = [entry for entry in entries if entry.resolve() == ROOT]
    for entry in entries:
        is_copy = (entry / "lib_tiled").is_dir() and (entry / "scripts/tiled_attention.py").is_file()
        if is_copy and entry not in ours:
            raise CannotTest(f"{entry} is a copy of this extension already. Move it out of extensions/ for the test: "
                             "two copies in one WebUI would not tell which of them was tested.")
    if ours:
        yield
        return
    if os.path.lexists(link):
        raise CannotTest(f"{link} exists and is not a link to {ROOT}. Remove it.")
    try:
        try:
            link.symlink_to(ROOT, target_is_directory=True)
        except OSError as error:
            raise CannotTest(f"cannot make the link {link} ({error}).") from error
        yield
    finally:
        if link.is_symlink():
            link.unlink()


def _names(data: Path) -> set[str]:
    """Files and folders of the first two levels."""
    found = set()
    for first in data.iterdir():
        if first.name in NOT_LISTED:
            continue
        found.add(first.name)
        if first.is_dir() and not first.is_symlink():
            found.update(f"{first.name}/{second.name}" for second in first.iterdir() if second.name not in NOT_LISTED)
    return found


class Footprint:
    """The WebUI's folder as it was: `with Footprint(data, settings) as footprint: ...`; afterwards `left` names what is
    new there and was not removed, because it might be somebody's."""

    def __init__(self, data: Path, settings: list[Path]):
        self.data, self.settings, self.backup = data, settings, data / BACKUP
        self.manifest = self.backup / "manifest.json"
        self.left: list[str] = []

    def __enter__(self):
        if self.manifest.is_file():
            print(f"[host-test] putting back what a killed run left in {self.data}", flush=True)
            self._put_back()
        shutil.rmtree(self.backup, ignore_errors=True)
        self.backup.mkdir()
        for number, path in enumerate(self.settings):
            if path.is_file():
                shutil.copy2(path, self.backup / str(number))
        # Last, in one step: with the manifest there, the copies are whole.
        draft = self.backup / "draft"
        draft.write_text(json.dumps({"settings": [str(path) for path in self.settings],
                                     "names": sorted(_names(self.data))}))
        draft.replace(self.manifest)
        return self

    def __exit__(self, *_):
        self._put_back()

    def _put_back(self) -> None:
        manifest = json.loads(self.manifest.read_text())
        for number, path in enumerate(map(Path, manifest["settings"])):
            kept = self.backup / str(number)
            if not kept.is_file():
                path.unlink(missing_ok=True)
            elif not path.is_file() or path.read_bytes() != kept.read_bytes():
                shutil.copy2(kept, path)
        for name in sorted(_names(self.data) - set(manifest["names"]) - {f"extensions/{LINK}"}):
            path = self.data / name
            if name in MADE_BY_HOST or _holds_no_file(path):
                shutil.rmtree(path, ignore_errors=True)
            elif path.exists():
                self.left.append(name)
        shutil.rmtree(self.backup)


def _holds_no_file(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(files for _, _, files in os.walk(path))
