"""`Attention: tiled` in the generation info, where the setting asks for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..report import place
from ..report.generation import Generation

KEY = "Attention"


def kernels(generation: Generation) -> str | None:
    """The kernels that ran in the UNet so far, the most frequent first; None before the first."""
    return ", ".join(generation.kernels().get(place.UNET, {})) or None


@contextlib.contextmanager
def written(p, generation: Generation) -> Iterator[None]:
    """While `p` is drawn, every info text names what ran up to the moment it is written.

    The hosts call functions in `extra_generation_params` each time they write one. Afterwards the text stays, for
    the grid's info and the JSON answer. Nested generations share the dictionary with the one around them.
    """
    params = p.extra_generation_params
    outer = params.get(KEY)
    params[KEY] = lambda **_: kernels(generation)
    try:
        yield
    finally:
        params[KEY] = outer if callable(outer) else kernels(generation)
