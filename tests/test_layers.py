"""The floors of the house: who may import whom, and that importing does nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HOST_MODULES = {"modules", "modules_forge", "backend", "ldm_patched", "ldm", "sgm", "gradio", "fastapi"}
ABOVE = {
    "device": {"kernel", "backends", "report", "hosts", "webui", "cli"},
    "kernel": {"backends", "report", "hosts", "webui", "cli"},
    "backends": {"report", "hosts", "webui", "cli"},
    "report": {"hosts", "webui", "cli"},
    "hosts": {"webui", "cli"},
}
FILES = sorted((ROOT / "lib_tiled").rglob("*.py"))


def imports(path):
    """(first name, relative level, whole name) of every import statement in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], 0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            name = node.module or ""
            yield name.split(".")[0], node.level, name
            if not name:
                yield from ((alias.name, node.level, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_floor_knows_a_higher_one(path):
    parts = path.relative_to(ROOT / "lib_tiled").parts
    floor = parts[0] if len(parts) > 1 else ""
    for first, level, name in imports(path):
        if level == 0 and first in HOST_MODULES:
            assert floor in ("hosts", "webui"), f"{path.name} imports {name} of the host"
        if level == len(parts) or (level == 0 and name.startswith("lib_tiled.")):
            target = first if level else name.split(".")[1]
            assert target not in ABOVE.get(floor, ()), f"{floor}/{path.name} reaches up to {target}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_kernel_and_device_import_torch_and_the_standard_library_alone(path):
    parts = path.relative_to(ROOT / "lib_tiled").parts
    if parts[0] in ("kernel", "device"):
        allowed = sys.stdlib_module_names | {"torch"}
        outside = {first for first, level, _ in imports(path) if level == 0} - allowed
        assert outside <= {"xformers"} if parts[0] == "device" else not outside


def test_importing_prints_nothing_and_patches_nothing():
    code = (
        "import torch, torch.nn.functional as F; before = F.scaled_dot_product_attention; import lib_tiled, sys;"
        "assert F.scaled_dot_product_attention is before; assert not torch.cuda.is_initialized();"
        "assert 'xformers' not in sys.modules and 'gradio' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
