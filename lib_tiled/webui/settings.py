"""The extension's settings in the WebUI, and what they mean to the floors below."""

from __future__ import annotations

import html

from modules import shared

from ..backends.policy import Policy
from ..device import pretend
from ..device.probe import probe
from ..hosts.base import AUTOMATIC, OPTION, Host
from ..kernel import options as kernel_options
from ..report.log import logger

SECTION = ("tiled_attention", "Tiled attention")
CATEGORY = "sd"  # the hosts' group "Stable Diffusion"
OFF, ONE_LINE, DETAILED = "off", "one line", "detailed"
USE_TILED, LEAVE_ALONE = "use Tiled and say so", "leave it alone"

# key -> (default, one sentence, component, component's arguments)
_SETTINGS = {
    "tiled_fallback": (
        USE_TILED,
        "When the chosen optimization has no kernel on this GPU",
        "Radio",
        {"choices": [USE_TILED, LEAVE_ALONE]},
    ),
    "tiled_precision": (
        "auto",
        "Precision of the attention scores: safe computes them in fp32, which is slower and cures black pictures.",
        "Radio",
        {"choices": list(kernel_options.PRECISIONS)},
    ),
    "tiled_log_level": (
        ONE_LINE,
        "What the console says after each generation.",
        "Radio",
        {"choices": [OFF, ONE_LINE, DETAILED]},
    ),
    "tiled_badge": (True, "Show by the generation info which attention ran.", "Checkbox", {}),
    "tiled_png_info": (False, "Write the attention that ran into the generation info of each picture.", "Checkbox", {}),
    "tiled_min_tokens": (
        0,
        "Attention over fewer tokens than this stays with the WebUI (0 = the shape decides).",
        "Slider",
        {"minimum": 0, "maximum": 16384, "step": 64},
    ),
    "tiled_scratch_mb": (
        0,
        "Most memory in MB that the scores of one tile may take (0 = what suits the device).",
        "Slider",
        {"minimum": 0, "maximum": 1024, "step": 1},
    ),
    "tiled_rows": (
        0,
        "Rows of one tile, for measuring only (0 = chosen from shape and device).",
        "Slider",
        {"minimum": 0, "maximum": 4096, "step": 16},
    ),
}

_told: set[tuple[str, str]] = set()  # values that do not fit and were named once


def register(host: Host | None = None) -> None:
    """Add the section to the settings page, and the option itself where the host leaves its list to us."""
    import gradio

    for key, (default, label, component, arguments) in _SETTINGS.items():
        info = shared.OptionInfo(default, label, getattr(gradio, component), arguments, section=SECTION)
        info.category_id = CATEGORY
        shared.opts.add_option(key, info)
    if host is not None and host.choices():
        _register_option(host, gradio)


def _register_option(host: Host, gradio) -> None:
    """The option keeps its place where the host has it (Forge), else it is added where AUTOMATIC1111 has it."""

    def arguments():
        # A value from elsewhere stays in the list: Gradio refuses the whole page over one that is not.
        offered, saved = titles(host), get(OPTION)
        return {"choices": [*offered, saved] if saved not in offered else offered}

    if OPTION not in shared.opts.data_labels:
        section = ("optimizations", "Optimizations")
        info = shared.OptionInfo(AUTOMATIC, "Cross attention optimization", section=section)
        shared.opts.add_option(OPTION, info)
    info = shared.opts.data_labels[OPTION]
    info.component, info.component_args = gradio.Dropdown, arguments
    missing = [f"{choice.title}: {choice.reason}" for choice in host.choices() if not choice.available]
    notes = html.escape("; ".join(["takes effect with the next generation", *missing]))
    info.comment_after = f"<span class='info'>({notes})</span>"


def titles(host: Host | None) -> list[str]:
    """What the option can be set to on this host and device."""
    offered = [choice.title for choice in host.choices() if choice.available] if host is not None else []
    if offered:
        return offered
    from modules import shared_items

    own = getattr(shared_items, "cross_attention_optimizations", None)  # absent on reForge
    return list(own()) if own is not None else [AUTOMATIC]


def registered() -> bool:
    return all(key in shared.opts.data_labels for key in _SETTINGS)


def all_values() -> dict:
    """The extension's settings as they hold now."""
    return {key: get(key) for key in _SETTINGS}


def get(key: str):
    """A setting's value as it holds now; the default where the host does not know it yet or the value does not fit.

    The values come from a file and from API requests, which hold what people write there.
    """
    default, _, component, arguments = _SETTINGS.get(key, (AUTOMATIC, "", "Dropdown", {}))
    value = getattr(shared.opts, key, default)
    try:
        if component == "Slider":
            fits = (value := int(value)) >= arguments["minimum"]
        elif component == "Radio":
            fits = value in arguments["choices"]
        else:
            fits = isinstance(value, type(default))
    except (TypeError, ValueError, OverflowError):
        fits = False
    if fits:
        return value
    if (key, repr(value)) not in _told:
        _told.add((key, repr(value)))
        logger().warning("the setting %s is %r, which does not fit; %r is used", key, value, default)
    return default


def command_line(name: str):
    """The value of a command-line argument, None where the host has no such argument."""
    return getattr(shared.cmd_opts, name, None)


def log_level() -> str:
    return get("tiled_log_level")


def apply_to_kernel() -> None:
    """Hand the kernel its settings."""
    kernel_options.configure(
        precision=get("tiled_precision"),
        scratch_mb=get("tiled_scratch_mb") or None,
        rows=get("tiled_rows") or None,
    )


def policy() -> Policy:
    """What the backends may replace, by the settings as they are now."""
    no_fused = ""
    if pretend.wanted():
        found = probe(shared.device)
        if not any(kernel.startswith("sdp:") for kernel in found.fused()):
            no_fused = found.summary()
    return Policy(get("tiled_fallback") == USE_TILED, get("tiled_min_tokens"), no_fused)


def interrupted() -> bool:
    state = shared.state
    return bool(state.interrupted or getattr(state, "stopping_generation", False))


def _hires_size(p) -> tuple[int, int]:
    """Width and height of the second pass, as the hosts compute them: one side of 0 follows the other."""
    width, height = getattr(p, "hr_resize_x", 0), getattr(p, "hr_resize_y", 0)
    if not width and not height:
        return int(p.width * p.hr_scale), int(p.height * p.hr_scale)
    return width or height * p.width // p.height, height or width * p.height // p.width


def describe(p) -> str:
    """What `p` makes: "txt2img 512x512 20 steps, hires 1024x1024, 2 x 4 pictures"."""
    kind = "img2img" if getattr(p, "init_images", None) else "txt2img"
    if kind == "img2img" and getattr(p, "image_mask", None) is not None:
        kind = "inpaint"
    parts = [f"{kind} {p.width}x{p.height} {p.steps} steps"]
    if kind == "txt2img" and getattr(p, "enable_hr", False):
        parts.append("hires {}x{}".format(*_hires_size(p)))
    if p.n_iter > 1 or p.batch_size > 1:
        parts.append(f"{p.n_iter} x {p.batch_size} pictures" if p.n_iter > 1 else f"batch of {p.batch_size}")
    return ", ".join(parts)
