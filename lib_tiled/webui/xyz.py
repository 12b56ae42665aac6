"""The axis "Attention" of the X/Y/Z plot: one column per optimization."""

from __future__ import annotations

from collections.abc import Callable

from modules import scripts

from ..hosts.base import OPTION

LABEL = "Attention"


def _plots() -> list:
    """The modules of the X/Y/Z plot scripts that this WebUI has loaded."""
    found = {id(data.module): data.module for data in scripts.scripts_data if data.path.endswith("xyz_grid.py")}
    return [module for module in found.values() if hasattr(module, "axis_options") and hasattr(module, "AxisOption")]


def apply(p, title: str, _titles) -> None:
    """Let the next cell run with this optimization."""
    p.override_settings[OPTION] = title


def add_axis(titles: Callable[[], list[str]]) -> None:
    """Add the axis once to every plot script. `titles`: what the option offers when the axis is chosen."""

    def confirm(_p, chosen: list[str]) -> None:
        unknown = [title for title in chosen if title not in titles()]
        if unknown:
            raise RuntimeError(f"Unknown attention: {', '.join(unknown)}. Known are: {', '.join(titles())}")

    for plot in _plots():
        if all(axis.label != LABEL for axis in plot.axis_options):
            plot.axis_options.append(plot.AxisOption(LABEL, str, apply, confirm=confirm, choices=titles))
