"""Around each generation: let the chosen attention hold, count what runs, print the line, put everything back."""

from __future__ import annotations

import contextlib
import functools
import sys

from ..backends import calls, sdpa, xformers
from ..backends.patches import Patch, Patches
from ..backends.policy import Policy
from ..hosts.base import OPTION, Host
from ..kernel import forget_reductions
from ..report import line as text
from ..report.generation import DONE, FAILED, INTERRUPTED, Generation, clock, history
from ..report.log import logger
from . import infotext, settings


class Session:
    """One per process. `wrap` goes around the host's `process_images_inner`, which may call itself (ADetailer)."""

    def __init__(self, host: Host):
        self.host = host
        self._running: list[Generation] = []
        self._policy = Policy()
        self._patches = Patches()

    def policy(self) -> Policy:
        """What may be replaced, as the settings stood when the running generation began."""
        return self._policy

    def wrap(self, patch: Patch):
        """A stand-in for `process_images_inner(p)`."""

        @functools.wraps(patch.original)
        def process_images_inner(p, *args, **kwargs):
            if not patch.active:
                return patch.original(p, *args, **kwargs)
            with self.generation(p):
                return patch.original(p, *args, **kwargs)

        return process_images_inner

    @contextlib.contextmanager
    def generation(self, p):
        """Everything that has to hold while `p` is drawn. What fails here is said and costs no picture."""
        generation = Generation(detailed=settings.log_level() == settings.DETAILED, nested=bool(self._running))
        with contextlib.ExitStack() as cleanup:
            try:
                self._enter(generation, p, cleanup)
            except Exception as error:
                logger().exception("could not prepare (%s); the WebUI's own attention runs", error)
            status = FAILED
            try:
                yield generation
                status = INTERRUPTED if settings.interrupted() else DONE
            finally:
                self._leave(generation, status)

    def _enter(self, generation: Generation, p, cleanup: contextlib.ExitStack) -> None:
        option = settings.get(OPTION)
        generation.what, generation.option = settings.describe(p), option
        cleanup.callback(self._pop, generation)
        self._running.append(generation)
        settings.apply_to_kernel()
        cleanup.callback(setattr, self, "_policy", self._policy)
        self._policy = settings.policy()
        overridden = OPTION in (getattr(p, "override_settings", None) or {})
        # The choice first: the host may put its functions in place, which are then wrapped.
        lasting = not getattr(p, "override_settings_restore_afterwards", True)
        chosen = cleanup.enter_context(self.host.choose(option, overridden, self._policy, lasting))
        generation.choice = chosen.text
        generation.note(chosen.reason)
        if not generation.nested:
            forget_reductions()
            cleanup.callback(self._patches.undo)
            sdpa.install(self._patches, self.policy)
            xformers.install(self._patches, self.policy)
            self.host.install(self._patches)
        self._listen()
        if settings.get("tiled_png_info"):
            cleanup.enter_context(infotext.written(p, generation))

    def _pop(self, generation: Generation) -> None:
        self._running.remove(generation)
        self._listen()

    def _listen(self) -> None:
        """Calls count for the innermost generation."""
        top = self._running[-1] if self._running else None
        calls.listen(top and top.record, clock if top and top.detailed else None)

    def _leave(self, generation: Generation, status: str) -> None:
        try:
            generation.finish(status)
            if not generation.calls:
                return
            history.add(generation)
            if settings.log_level() != settings.OFF:
                logger().info("%s", text.line(generation))
                for detail in text.details(generation):
                    logger().info("%s", detail)
        except Exception as error:
            logger().exception("could not report (%s)", error)


def install(session: Session, patches: Patches) -> None:
    """Put the session around the host's generations until `patches` are undone."""
    processing = sys.modules["modules.processing"]
    patches.replace(processing, "process_images_inner", session.wrap)
