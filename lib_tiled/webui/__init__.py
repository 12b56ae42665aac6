"""The extension inside a WebUI: what `scripts/tiled_attention.py` hands the host's callbacks to."""

from __future__ import annotations

from ..backends.patches import Patches
from ..hosts import detect
from ..hosts.base import Host
from ..report.log import logger, set_level
from . import api, session, settings, tab, xyz

_patches = Patches()
_session: session.Session | None = None
_advised = False  # in this process, however often the scripts are reloaded


def start() -> None:
    """Find out the host and put the session around its generations. Never raises: says what is wrong instead."""
    global _session
    stop()
    try:
        set_level(settings.command_line("loglevel"))
        host = detect()
        if host is None:
            logger().warning("this WebUI offers nothing that the extension knows; it runs its own attention")
            return
        _session = session.Session(host)
        session.install(_session, _patches)
    except Exception as error:
        stop()
        logger().warning("not active (%s: %s); the WebUI runs its own attention", type(error).__name__, error)


def stop() -> None:
    """Take the session off again. A callback for `on_script_unloaded`."""
    global _session
    _patches.undo()
    _session = None


def list_optimizers(optimizers: list) -> None:
    """A callback for `on_list_optimizers` (AUTOMATIC1111)."""
    if _session is not None and hasattr(_session.host, "optimizer"):
        optimizers.append(_session.host.optimizer())


def settings_page() -> None:
    """A callback for `on_ui_settings`."""
    settings.register(_host())


def before_page() -> None:
    """A callback for `on_before_ui`: all scripts are loaded, nothing is drawn yet."""
    xyz.add_axis(lambda: settings.titles(_host()))


def tabs() -> list:
    """A callback for `on_ui_tabs`."""
    return [(tab.create(_host()), tab.TITLE, tab.NAME)]


def started(_page, app) -> None:
    """A callback for `on_app_started`."""
    if not settings.registered():  # --nowebui draws no settings page, and asks nobody for settings
        settings_page()
    api.register(app)
    advise()


def advise(*_) -> None:
    """One line, once, where the host's own choice is a slow one. A callback for `on_model_loaded`.

    AUTOMATIC1111 makes its choice only when the model has loaded, Forge and reForge load it when it is needed.
    """
    global _advised
    try:
        advice = None if _advised or _session is None else _session.host.advice()
        if advice:
            _advised = True
            logger().info("%s", advice)
    except Exception as error:
        logger().debug("no advice: %s", error)


def _host() -> Host | None:
    return _session.host if _session is not None else None


def callbacks() -> dict:
    """The host's registration functions (those it has) and what to register with them."""
    return {
        "on_list_optimizers": list_optimizers,
        "on_ui_settings": settings_page,
        "on_before_ui": before_page,
        "on_ui_tabs": tabs,
        "on_app_started": started,
        "on_model_loaded": advise,
        "on_script_unloaded": stop,
    }
