"""One way to replace something that belongs to somebody else, and to put it back.

A patch remembers what it replaced and restores that only while the value is still ours; where another library has
patched over it in the meantime, it switches itself off instead, so that nobody's patch is lost and ours is inert.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Patch:
    """`owner.name` replaced by what `make(self)` returns; `original` is what stood there before.

    The replacement must behave like `original` while `active` is False.
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Patch], Any]):
        self.owner, self.name, self.active = owner, name, True
        # A class's own attribute, not the one bound through its descriptors. Switched-off patches are left out, also
        # behind one that is on, so that overlapping ones make no chain.
        self.original = skip_inactive(vars(owner)[name] if isinstance(owner, type) else getattr(owner, name))
        below = patch_of(self.original)
        if below is not None:
            below.original = skip_inactive(below.original)
        self.replacement = make(self)
        self.replacement._tiled_patch = self
        setattr(owner, name, self.replacement)

    def undo(self) -> None:
        if not self.active:
            return
        self.active = False
        if vars(self.owner).get(self.name) is self.replacement:
            setattr(self.owner, self.name, skip_inactive(self.original))


def patch_of(value: Any) -> Patch | None:
    """The patch whose replacement `value` is, None for anything else."""
    patch = getattr(value, "__dict__", {}).get("_tiled_patch")
    # functools.wraps copies attributes: somebody's wrapper around ours carries the mark too.
    return patch if patch is not None and patch.replacement is value else None


def behind_ours(value: Any) -> Any:
    """`value`, or what stands behind all the patches of ours that it is."""
    while (patch := patch_of(value)) is not None:
        value = patch.original
    return value


def skip_inactive(value: Any) -> Any:
    """`value`, or what stands behind it where `value` is a patch that was switched off."""
    while (patch := patch_of(value)) is not None and not patch.active:
        value = patch.original
    return value


class Patches:
    """Several patches that come and go together; undone in reverse order, also after an exception."""

    def __init__(self):
        self._patches: list[Patch] = []

    def replace(self, owner: Any, name: str, make: Callable[[Patch], Any]) -> Patch:
        patch = Patch(owner, name, make)
        self._patches.append(patch)
        return patch

    def undo(self) -> None:
        while self._patches:
            self._patches.pop().undo()

    def __enter__(self) -> Patches:
        return self

    def __exit__(self, *exc) -> None:
        self.undo()
