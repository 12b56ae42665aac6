"""What the extension asks of a host; one adapter file per host answers."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from ..backends.patches import Patches
from ..backends.policy import Policy

TITLE = "Tiled (no-flash)"
OPTION = "cross_attention_optimization"
AUTOMATIC = "Automatic"


@dataclass(frozen=True)
class Choice:
    """An entry of the dropdown: its title, whether this host and device can run it, and why not."""

    title: str
    available: bool = True
    reason: str = ""


@dataclass(frozen=True)
class Chosen:
    """What holds for a generation: the option, what became of it in words, and why."""

    option: str
    text: str
    reason: str = ""


class Host:
    """One WebUI."""

    name = "WebUI"

    def choices(self) -> list[Choice]:
        """The dropdown's entries, where the extension has to provide it; empty where the host does."""
        return []

    def install(self, patches: Patches) -> None:
        """Patch what this host's attention runs through, until `patches` are undone. Not re-entrant."""

    def choose(
        self, option: str, overridden: bool, policy: Policy, lasting: bool = False
    ) -> contextlib.AbstractContextManager[Chosen]:
        """Let `option` hold for a block.

        overridden: this generation asked for it itself. lasting: and for those after it as well. policy: its settings.
        """
        return contextlib.nullcontext(Chosen(option, option))

    def advice(self) -> str | None:
        """One line for the console at start where the host's own choice is a slow one, else None."""
        return None
