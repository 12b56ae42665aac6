"""Patches come off in any order and never take somebody else's with them."""

import types

import pytest

from lib_tiled.backends.patches import Patch, Patches, patch_of


def greet():
    return "host"


def adds(word):
    """A patch that adds a word to what stood there, and nothing once it is switched off."""

    def make(patch):
        def replacement():
            return f"{word} {patch.original()}" if patch.active else patch.original()

        return replacement

    return make


@pytest.fixture
def owner():
    return types.SimpleNamespace(greet=greet)


def test_restores_the_very_function(owner):
    patch = Patch(owner, "greet", adds("ours"))
    assert owner.greet() == "ours host"
    patch.undo()
    patch.undo()
    assert owner.greet is greet


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1), (2, 0, 1), (1, 2, 0)])
def test_undone_in_any_order(owner, order):
    patches = [Patch(owner, "greet", adds(word)) for word in "abc"]
    assert owner.greet() == "c b a host"
    left = dict(enumerate("abc"))
    for i in order:
        patches[i].undo()
        del left[i]
        assert owner.greet() == " ".join([*reversed(left.values()), "host"])
    assert owner.greet is greet


def test_keeps_a_patch_that_came_later(owner):
    patch = Patch(owner, "greet", adds("ours"))
    behind = owner.greet
    owner.greet = lambda: "theirs " + behind()
    theirs = owner.greet
    patch.undo()
    assert owner.greet is theirs
    assert owner.greet() == "theirs host"


def test_a_class_attribute_stays_in_the_class():
    class Base:
        def forward(self):
            return "base"

    class Child(Base):
        def forward(self):
            return "child"

    original = vars(Child)["forward"]
    patch = Patch(Child, "forward", lambda p: lambda self: "ours " + p.original(self))
    assert Child().forward() == "ours child" and Base().forward() == "base"
    patch.undo()
    assert vars(Child)["forward"] is original


def test_several_come_off_after_an_exception(owner):
    other = types.SimpleNamespace(greet=greet)
    with pytest.raises(ZeroDivisionError), Patches() as patches:
        patches.replace(owner, "greet", adds("a"))
        patches.replace(other, "greet", adds("b"))
        assert patch_of(owner.greet).active
        raise ZeroDivisionError
    assert owner.greet is greet and other.greet is greet


def test_overlapping_patches_make_no_chain(owner):
    """Each new one stands over one that is undone right after."""
    patch = Patch(owner, "greet", adds("ours"))
    for _ in range(1200):
        newer = Patch(owner, "greet", adds("ours"))
        patch.undo()
        patch = newer
    assert owner.greet() == "ours host"
    patch.undo()
    assert owner.greet is greet
