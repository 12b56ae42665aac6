"""Forge and reForge: attention functions that many modules hold by name, all reached for one generation.

Each holder gets a stand-in that looks up at every call which backend is chosen now, so that nested generations may
choose another. Outside a generation a stand-in is the host's own function, for whoever still has it.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass

import torch
from modules import shared

from .. import kernel
from ..backends import calls, tiled
from ..backends import choose as decisions
from ..backends.patches import Patch, Patches
from ..backends.policy import Policy
from ..device.probe import probe
from .base import AUTOMATIC, OPTION, TITLE, Choice, Chosen, Host
from .call_forms import Family, by_position
from .names import attributes, modules

# Extensions for both hosts import either host's function under the other's name.
HEADS_NAMES = ("attention_function", "optimized_attention", "optimized_attention_masked")
SPATIAL_NAMES = ("attention_function_single_head_spatial", "attention_function_vae")
# The dropdown's entries; all but ours are what `backends.choose` calls them.
BACKENDS = ("xformers", "sdp", TITLE, "sub-quadratic", "split", "basic")


def _title(backend: str) -> str:
    """The dropdown's word for what `backends.choose` calls a backend."""
    return {"tiled": TITLE, "host": AUTOMATIC, "sdp-no-mem": "sdp"}.get(backend, backend)


@dataclass(frozen=True)
class Running:
    """What holds now: a backend's title, or AUTOMATIC for what the host bound itself.

    efficient: whether it takes O(N) memory; None where the host's own answer stands.
    """

    title: str
    policy: Policy
    efficient: bool | None = None


class FunctionsHost(Host):
    """What both hosts do. `home` holds the attention functions, `management` knows devices and memory."""

    def __init__(self, home: types.ModuleType, management: types.ModuleType, heads: Family, spatial: Family):
        self.home, self.management, self.heads, self.spatial = home, management, heads, spatial
        self._stack: list[Running] = []
        self._bound: dict[str, Callable] = {}  # name -> what the host itself chose
        self._read_bound()
        self._stand_ins: dict[tuple, tuple[Callable, Callable]] = {}  # kept for good, as holders may keep theirs

    def model_class(self) -> type:
        """The class whose memory_required decides what is unloaded and whether cond and uncond share a batch."""
        raise NotImplementedError

    @property
    def busy(self) -> bool:
        """Whether a generation is under way."""
        return bool(self._stack)

    # -- what can be chosen

    def choices(self) -> list[Choice]:
        return [Choice(AUTOMATIC), *(Choice(title, not why, why) for title, why in self._why_not().items())]

    def _why_not(self) -> dict[str, str]:
        """Backend's title -> why it cannot be chosen here, "" where it can."""
        reasons = {
            title: "" if title == TITLE or title in self.heads.by_title else "this WebUI has no such function"
            for title in BACKENDS
        }
        if not hasattr(torch.nn.functional, "scaled_dot_product_attention"):
            reasons["sdp"] = f"torch {torch.__version__} has none"
        # The probe's word first: it tells what is missing, the host only that it is off.
        missing = self._probe().why_not("xformers")
        reasons["xformers"] = missing or ("the WebUI was started without it" if self._without() else "")
        return reasons

    def _probe(self):
        return probe(self.management.get_torch_device())

    def _without(self) -> tuple[str, ...]:
        """Kernels that the host was started without: it has not imported them."""
        return () if self.management.xformers_enabled() else ("xformers",)

    def _own(self) -> str:
        """The host's own choice, in the dropdown's words where it has some."""
        return self.heads.label(self._first_bound())

    def _decide(self, option: str, policy: Policy) -> tuple[Running, Chosen]:
        own, forced = self._own(), getattr(shared.cmd_opts, "opt_tiled_attention", False)
        asked, notes = _title(decisions.backend_of(option)), []
        if option != AUTOMATIC and asked not in (TITLE, *self.heads.by_title):  # from another WebUI's config.json
            notes.append(f"{option} is not an optimization of this WebUI")
            option, asked = AUTOMATIC, ""
        if option == AUTOMATIC and own not in self.heads.by_title and not forced:
            decision = decisions.Decision("host")  # sage or flash-attn, asked for on the command line
        else:
            how = "tiled" if policy.fallback else "leave"
            decision = decisions.choose(option, self._probe(), how, own, forced=forced, without=self._without())
        title, reason = _title(decision.backend), decision.reason
        if title in self._without():  # left alone, as the settings say; it would not run
            title, reason = AUTOMATIC, f"the WebUI was started without {title}"
        efficient = title == TITLE or (title in ("sdp", "xformers") and not reason)
        what = {AUTOMATIC: own, TITLE: "Tiled"}.get(title, title)
        text = option if title == asked else f"{option} -> {what}"
        running = Running(title, policy, None if title == AUTOMATIC else efficient)
        return running, Chosen(option, text, "; ".join(filter(None, (*notes, reason))))

    # -- one call

    def stand_in(self, family: Family, original: Callable, follows: bool = True) -> Callable:
        """What takes the place of `original`; if not `follows` (the host holds it on purpose), for Tiled alone."""

        def make():
            @functools.wraps(original)
            def attention(*args, **kwargs):
                if not self._stack:
                    return original(*args, **kwargs)
                return self._call(family, original, follows, *by_position(args, kwargs))

            return attention

        return self.remember(original, follows, make)

    def remember(self, original: Callable, key, make: Callable[[], Callable]) -> Callable:
        """One stand-in per original and key, known to `_give_back`."""
        if (original, key) not in self._stand_ins:
            self._stand_ins[original, key] = (make(), original)
        return self._stand_ins[original, key][0]

    def _call(self, family: Family, original: Callable, follows: bool, args: tuple, kwargs: dict):
        running = self._stack[-1]
        if running.title == TITLE and family.tokens(args[0]) >= running.policy.min_tokens:
            try:
                return family.tiled(*args, **kwargs)
            except kernel.TiledOutOfMemoryError as error:
                # The hosts answer torch's own error with smaller VAE tiles.
                raise torch.cuda.OutOfMemoryError(str(error)) from error
            except Exception as error:
                if kernel.is_out_of_memory(error):
                    raise
                calls.note(*tiled.failed(error, family.label(original)))
        function = family.by_title.get(running.title, original) if follows else original
        with calls.named(family.label(function)):
            return function(*args, **kwargs)

    # -- one generation

    @contextlib.contextmanager
    def choose(self, option: str, overridden: bool, policy: Policy, lasting: bool = False):
        if not self._stack:
            self._read_bound()
        running, chosen = self._decide(option, policy)
        self._stack.append(running)
        try:
            yield chosen
        finally:
            self._stack.pop()
            if not self._stack:
                self._give_back()

    def install(self, patches: Patches) -> None:
        for module in modules():
            for family, names in ((self.heads, HEADS_NAMES), (self.spatial, SPATIAL_NAMES)):
                for name in names:
                    held = vars(module).get(name)
                    if held is not None and family.knows(held):
                        # T5 holds attention_pytorch whatever was chosen: the others cannot take its bias.
                        follows = family is self.spatial or any(held is one for one in self._bound.values())
                        stand_in = self.stand_in(family, held, follows)
                        patches.replace(module, name, lambda _, stand_in=stand_in: stand_in)
                    elif callable(held) and module.__name__.startswith(self.home.__name__.partition(".")[0]):
                        patches.replace(module, name, lambda patch, family=family: self._foreign(family, patch))
        patches.replace(self.model_class(), "memory_required", self._honest_estimate)

    def _foreign(self, family: Family, patch: Patch):
        """Another extension's function in place of the host's: it runs as it is, and is counted."""

        @functools.wraps(patch.original)
        def attention(*args, **kwargs):
            if not (patch.active and self._stack):
                return patch.original(*args, **kwargs)
            if self._stack[-1].title != AUTOMATIC:
                calls.note(f"another extension's attention is in place of {patch.owner.__name__}'s")
            with calls.named(family.label(patch.original)):
                return patch.original(*args, **kwargs)

        return attention

    def _read_bound(self) -> None:
        """Note what the host chose. Where another extension's function is in its place, what was there before stays."""
        for name in HEADS_NAMES:
            now = vars(self.home).get(name)
            if now is not None and (self.heads.knows(now) or name not in self._bound):
                self._bound[name] = now

    def _first_bound(self) -> Callable:
        return next(iter(self._bound.values()))

    def _give_back(self) -> None:
        """Modules that loaded meanwhile took what was bound then: put the host's own there."""
        originals = {id(stand_in): original for stand_in, original in self._stand_ins.values()}
        for module in modules():
            held = dict(vars(module))
            if originals.keys().isdisjoint(map(id, held.values())):
                continue
            for name, value in held.items():
                if id(value) in originals:
                    setattr(module, name, originals[id(value)])

    def _honest_estimate(self, patch: Patch):
        @functools.wraps(patch.original)
        def memory_required(model, *args, **kwargs):
            with self._estimating() if self._stack else contextlib.nullcontext():
                return patch.original(model, *args, **kwargs)

        return memory_required

    @contextlib.contextmanager
    def _estimating(self):
        """The host's formula sees what it looks at: the bound function (Forge), which kinds are on (the others)."""
        efficient = self._stack[-1].efficient
        if efficient is None:
            function, kinds = self._first_bound(), {}
        else:
            function = self.heads.by_title["sdp" if efficient else "basic"]
            kinds = {"xformers_enabled": lambda: False, "pytorch_attention_flash_attention": lambda: efficient}
        with attributes(self.home, **{name: function for name in HEADS_NAMES}), attributes(self.management, **kinds):
            yield

    def advice(self) -> str | None:
        if getattr(shared.opts, OPTION, AUTOMATIC) != AUTOMATIC:
            return None
        return decisions.advice(self._own(), self._probe(), self.name, self._without())
