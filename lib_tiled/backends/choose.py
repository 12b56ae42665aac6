"""Which backend an option leads to on a device, and why. Pure functions of a probe; no WebUI is imported here."""

from __future__ import annotations

from dataclasses import dataclass

from ..device.result import FUSED_SDP, Probe

#: What a title is before " - " or " (", or what a host's function is called -> the backend it means.
_NAMES = {
    "tiled": "tiled",
    "xformers": "xformers",
    "sdp-no-mem": "sdp-no-mem",
    "sdp": "sdp",
    "pytorch": "sdp",
    "sub-quadratic": "sub-quadratic",
    "sub_quad": "sub-quadratic",
    "split": "split",
    "basic": "basic",
    "none": "basic",
    "doggettx": "Doggettx",
    "invokeai": "InvokeAI",
    "v1": "V1",
}
#: The kernels that make a backend worth choosing. Backends not named here never were fused.
_KERNELS = {
    "xformers": ("xformers",),
    "sdp": FUSED_SDP,
    "sdp-no-mem": ("sdp:flash", "sdp:cudnn"),
}
FLAG = "--opt-tiled-attention"


@dataclass(frozen=True)
class Decision:
    """backend: "tiled", "xformers", "sdp", "sdp-no-mem", "sub-quadratic", "split", "basic", "Doggettx", "InvokeAI",
    "V1", or "host": leave what the host has set up. reason: words for the user, "" where it is simply as chosen.
    """

    backend: str
    reason: str = ""


def backend_of(option: str) -> str:
    """The backend a title ("sdp - scaled dot product") or function name ("attention_pytorch") means, else ""."""
    name = option.strip().lower().removeprefix("attention_")
    return _NAMES.get(name.partition(" - ")[0].partition(" (")[0], "")


def choose(
    option: str,
    probe: Probe,
    policy: str = "tiled",
    host_default: str = "",
    forced: bool = False,
    without: tuple[str, ...] = (),
) -> Decision:
    """What `option` leads to on the device of `probe`.

    policy: "tiled" to replace an explicit choice that has no working kernel, "leave" to let it be.
    host_default: what the host's own Automatic takes, where that is known. forced: --opt-tiled-attention was given.
    without: kernels the host was started without ("xformers").
    Fused means: in one dtype at least. Which dtype a model runs in is known only at its calls, where a kernel that
    lacks it is replaced one call at a time.
    An option that is not known here belongs to somebody else and is left to the host.
    """
    if option.strip().lower() == "automatic":
        return _automatic(probe, policy, backend_of(host_default), forced, without)
    backend = backend_of(option)
    if not backend:
        return Decision("host")
    if not _missing(backend, probe, without):
        return Decision(backend)
    return _without_kernel(backend, probe, policy, without)


def _automatic(probe: Probe, policy: str, default: str, forced: bool, without: tuple[str, ...]) -> Decision:
    if forced:
        return Decision("tiled", FLAG)
    if not _fused(probe, without):
        return Decision("tiled", _nothing_fused(probe, without))
    if _missing(default, probe, without):
        return _without_kernel(default, probe, policy, without)
    return Decision("host")


def _fused(probe: Probe, without: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(kernel for kernel in probe.fused() if kernel not in without)


def _missing(backend: str, probe: Probe, without: tuple[str, ...]) -> bool:
    """Whether `backend` stands and falls with fused kernels of which none runs."""
    wanted = _KERNELS.get(backend, ())
    return bool(wanted) and not set(wanted) & set(_fused(probe, without))


def _nothing_fused(probe: Probe, without: tuple[str, ...]) -> str:
    if "xformers" in without and probe.fused():
        return f"{probe.label} runs xformers alone, and the WebUI was started without it"
    return probe.summary()


def _without_kernel(backend: str, probe: Probe, policy: str, without: tuple[str, ...]) -> Decision:
    if backend == "xformers":
        why = f"xformers {probe.short_reason('xformers')}"
        if backend in without and probe.runs_unet(backend):
            why = "the WebUI was started without xformers"
        left = "; generating will fail"
    elif backend == "sdp-no-mem" and "sdp:mem-efficient" in probe.fused():
        why = f"without memory-efficient attention {probe.label} runs only math SDPA"
        left = ", which needs memory for all scores at once"
    else:
        why = probe.summary() if not _fused(probe, without) else f"SDPA on {probe.label}: math only"
        left = ", which needs memory for all scores at once"
    return Decision(backend, why + left) if policy == "leave" else Decision("tiled", why)


def priority(probe: Probe, without: tuple[str, ...] = (), forced: bool = False) -> int:
    """Where "Tiled (no-flash)" stands in AUTOMATIC1111's Automatic.

    Above all of its own (the highest are at 1000) where nothing fused runs or --opt-tiled-attention is given, also
    beside other such flags; else below those that may be fused (xformers 100, sdp 70) and above the rest (10).
    """
    return 60 if _fused(probe, without) and not forced else 1100


def advice(host_default: str, probe: Probe, host: str = "", without: tuple[str, ...] = ()) -> str | None:
    """One line for the start where the host's Automatic takes `host_default` although something fused runs.

    host: "AUTOMATIC1111", "Forge" or "reForge". None where there is nothing to say.
    """
    default = backend_of(host_default)
    if not default or default in ("tiled", *_KERNELS):
        return None
    fused = _fused(probe, without)
    sdpa = [kernel for kernel in fused if kernel in FUSED_SDP]
    if sdpa:
        title = "sdp" if "forge" in host.lower() else "sdp - scaled dot product"
        how = f'choose "{title}" in Settings > Optimizations to use it.'
        return f"Automatic takes {host_default}, but {probe.label} runs {sdpa[0]}: {how}"
    if "xformers" in fused:
        return f"Automatic takes {host_default}, but {probe.label} runs xformers: start the WebUI with --xformers."
    return None
