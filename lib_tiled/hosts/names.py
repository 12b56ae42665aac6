"""Where a host's functions are held by name."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator


def modules() -> Iterator[types.ModuleType]:
    """Every module, and the WebUI's script files, which are not in sys.modules."""
    loading = sys.modules.get("modules.script_loading")
    for module in [*sys.modules.values(), *getattr(loading, "loaded_scripts", {}).values()]:
        if isinstance(module, types.ModuleType):
            yield module


@contextlib.contextmanager
def attributes(owner, **values):
    """Those of `values` that `owner` has as attributes hold for a block."""
    before = {name: vars(owner)[name] for name in values if name in vars(owner)}
    vars(owner).update({name: values[name] for name in before})
    try:
        yield
    finally:
        vars(owner).update(before)
