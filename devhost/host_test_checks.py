"""What host-test generates, and what has to hold of it."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from devhost.host_test_webui import OPTION, WebUI, WebUIError, decode, encode, on_generation
from devhost.pictures import largest_difference

TITLE = "Tiled (no-flash)"
AUTOMATIC = "Automatic"
PLACES = ("unet", "vae", "text", "other")
DRAWING = ("unet", "vae")
_COUNT = re.compile(r"(.+) x(\d+)$")


@dataclass
class Shot:
    """One generation: its pictures (H, W, 3), its seconds from request to answer, what the console said of it."""

    pictures: list[np.ndarray]
    seconds: float
    lines: list[str]

    @property
    def kernels(self) -> dict[str, dict[str, int]]:
        """place -> kernel -> calls, from the line."""
        return kernels_of(self.lines[0]) if self.lines else {}

    @property
    def drawing(self) -> dict[str, dict[str, int]]:
        """`kernels` of what draws; the prompt's encoding is left out, which hosts keep for the next request."""
        return {place: self.kernels.get(place, {}) for place in DRAWING}

    def calls(self, place: str) -> int:
        return sum(self.kernels.get(place, {}).values())


@dataclass
class Tried:
    """One optimization: its generations by scenario, the largest difference by scenario, timing runs in seconds."""

    title: str
    shots: dict[str, Shot] = field(default_factory=dict)
    difference: dict[str, int | None] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    error: str = ""


@dataclass
class Check:
    name: str
    passed: bool
    detail: str = ""


def kernels_of(line: str) -> dict[str, dict[str, int]]:
    """"… | unet: tiled x64, sdp:math x2 | vae: tiled x1 | …" -> {"unet": {"tiled": 64, "sdp:math": 2}, "vae": …}."""
    found: dict[str, dict[str, int]] = {}
    for part in line.split(" | "):
        place, _, counts = part.partition(": ")
        matches = [_COUNT.match(count.strip()) for count in counts.split(", ")]
        if place in PLACES and all(matches):
            found[place] = {match[1]: int(match[2]) for match in matches}
    return found


def difference(a: list[np.ndarray], b: list[np.ndarray]) -> int | None:
    """The largest difference of any pixel in 1/255; None where number or sizes of the pictures differ."""
    if [x.shape for x in a] != [x.shape for x in b]:
        return None
    return max((largest_difference(x, y) for x, y in zip(a, b)), default=None)


def scenarios(size: int, steps: int, prompt: str) -> dict[str, tuple[str, dict]]:
    """name -> (path, request). The picture img2img begins with is a colour gradient, the same for all."""
    base = {"prompt": prompt, "seed": 1, "steps": steps, "width": size, "height": size, "cfg_scale": 7,
            "sampler_name": "Euler"}
    ramp = np.linspace(0, 255, size)
    start = np.stack(np.broadcast_arrays(ramp[None], ramp[:, None], 128.0), -1).round().astype(np.uint8)
    hires = {"enable_hr": True, "hr_scale": 1.5, "hr_upscaler": "Latent", "hr_second_pass_steps": steps,
             "denoising_strength": 0.7, "hr_additional_modules": ["Use same choices"]}  # Forge fails without the last
    return {
        "txt2img": ("txt2img", base),
        "img2img": ("img2img", {**base, "init_images": [encode(Image.fromarray(start))], "denoising_strength": 0.6}),
        "hires fix": ("txt2img", {**base, **hires}),
        "batch of 2": ("txt2img", {**base, "batch_size": 2}),
    }


def say(text: str) -> None:
    print(f"[host-test] {text}", flush=True)


class HostTest:
    """One run over a ready WebUI. `checks` and `tried` hold what came out, also of a run that ended early."""

    def __init__(self, webui: WebUI, size: int, steps: int, prompt: str, tolerance: int, only: list[str]):
        self.webui, self.tolerance = webui, tolerance
        self.scenarios = {name: scenario for name, scenario in scenarios(size, steps, prompt).items()
                          if not only or name in ("txt2img", *only)}
        self.checks: list[Check] = []
        self.tried: list[Tried] = []

    def check(self, name: str, passed: bool, detail: str = "") -> bool:
        self.checks.append(Check(name, bool(passed), detail))
        if not passed:
            say(f"FAILED: {name}{': ' if detail else ''}{detail}")
        return bool(passed)

    # -- steps

    def generate(self, scenario: str, **request) -> Shot:
        path, body = self.scenarios[scenario]
        mark, started = self.webui.mark(), time.monotonic()
        answer = self.webui.request(f"/sdapi/v1/{path}", {**body, **request})
        seconds = time.monotonic() - started
        return Shot([decode(text) for text in answer["images"]], seconds, self.webui.generation_lines(mark))

    def select(self, title: str) -> None:
        self.webui.set_option(title)
        value = self.webui.get_option()
        if value != title and value is not None:
            raise WebUIError(f"the option was set to {title!r} and reads {value!r}")

    def choose_titles(self, reference: str, only: list[str]) -> tuple[str | None, list[str]]:
        """(the reference, the titles to try: the reference first, ours last)."""
        offered = self.webui.choices()
        say(f"offered: {', '.join(offered) or 'nothing'}")
        self.check(f"the settings page offers {TITLE}", TITLE in offered, ", ".join(offered) or "no such dropdown")
        exact = [t for t in offered if reference.lower() in (t.lower(), t.lower().split(" - ")[0])]
        own = [t for t in offered if t not in (TITLE, AUTOMATIC)]
        first = (exact or own or [None])[0]
        rest = [t for t in offered if t not in (first, TITLE)
                and (not only or any(word.lower() in t.lower() for word in only))]
        return first, [t for t in (first, *rest, TITLE) if t in offered]

    def try_all(self, titles: list[str], quick: bool) -> None:
        for title in titles:
            names = list(self.scenarios)
            if quick and title not in (titles[0], TITLE):
                names = names[:1]
            self.tried.append(self.try_one(title, names))

    def try_one(self, title: str, names: list[str]) -> Tried:
        tried = Tried(title)
        reference = self.tried[0] if self.tried else tried
        try:
            self.select(title)
            for name in names:
                shot = tried.shots[name] = self.generate(name)
                expected = reference.shots.get(name)
                tried.difference[name] = difference(shot.pictures, expected.pictures) if expected else None
                say(f"{title}: {name} {shot.seconds:.1f} s, difference {tried.difference[name]}")
        except WebUIError as error:
            tried.error = str(error)
        self.judge(tried, reference)
        return tried

    # -- what has to hold

    def judge(self, tried: Tried, reference: Tried) -> None:
        title, shots = tried.title, tried.shots
        if not self.check(f"{title}: can be chosen and generates", not tried.error, tried.error):
            return
        wrong = {name: shot.lines for name, shot in shots.items()
                 if len(shot.lines) != 1 or "[Tiled] " not in shot.lines[0]}
        self.check(f"{title}: one [Tiled] line for each generation", not wrong, self._lines_text(wrong))
        if tried is not reference:
            far = {name: d for name, d in tried.difference.items() if d is None or d > self.tolerance}
            self.check(f"{title}: pictures within {self.tolerance}/255 of {reference.title}", not far,
                       ", ".join(f"{name} {'not comparable' if d is None else d}" for name, d in far.items()))
        if title == TITLE:
            self.judge_ours(tried, reference)

    def judge_ours(self, tried: Tried, reference: Tried) -> None:
        other = {name: shot.kernels for name, shot in tried.shots.items()
                 if any(set(kernels) != {"tiled"} for kernels in shot.drawing.values())}
        self.check(f"{TITLE}: unet and vae run tiled and nothing else", not other, str(other))
        if reference is tried:
            return
        counts = {name: {place: (shot.calls(place), reference.shots[name].calls(place)) for place in DRAWING}
                  for name, shot in tried.shots.items() if name in reference.shots}
        unequal = {name: pairs for name, pairs in counts.items() if any(a != b for a, b in pairs.values())}
        self.check(f"{TITLE}: as many attention calls as {reference.title}", not unequal, str(unequal))

    def override_settings(self, reference: str) -> None:
        """One request asks for ours while the option says the reference."""
        before = self._tried(reference)
        self.select(reference)
        during = self.generate("txt2img", override_settings={OPTION: TITLE})
        after = self.generate("txt2img")
        self.check("override_settings: this request runs tiled", set(during.kernels.get("unet", ())) == {"tiled"},
                   self._lines_text({"txt2img": during.lines}))
        self.check("override_settings: the next one runs what it ran before",
                   after.drawing == before.shots["txt2img"].drawing, self._lines_text({"txt2img": after.lines}))
        self.check("override_settings: the option is as it was", self.webui.get_option() in (reference, None))

    def reload_ui(self, reference: str | None) -> None:
        """Ours goes on after Reload UI, once; the reference then comes back whole."""
        before = self._tried(TITLE).shots["txt2img"]
        self.select(TITLE)
        self.webui.reload_ui()
        for name, title in (("Reload UI: tiled goes on", TITLE), ("Reload UI: the reference comes back", reference)):
            if title is None:
                continue
            expected = self._tried(title).shots["txt2img"]
            if title != TITLE:
                self.select(title)
            shot = self.generate("txt2img")
            far = difference(shot.pictures, before.pictures)
            self.check(name, shot.drawing == expected.drawing and len(shot.lines) == 1
                       and far is not None and far <= self.tolerance,
                       f"difference {far}; {self._lines_text({'txt2img': shot.lines})}")
        self.check("Reload UI: the dropdown still offers ours", TITLE in self.webui.choices())

    def time_all(self, titles: list[str], rounds: int) -> None:
        """txt2img, round robin, so that a busy machine is busy for all alike."""
        for number in range(rounds):
            for title in titles:
                self.select(title)
                seconds = self.generate("txt2img").seconds
                self._tried(title).seconds.append(seconds)
                say(f"round {number + 1} of {rounds}: {title} {seconds:.1f} s")

    def console(self) -> None:
        """No traceback through the extension, no word that it could not start."""
        bad = [line for line in self.webui.lines() if re.search(r'File ".*lib_tiled', line)
               or "[Tiled] not " in line]
        self.check("console: no error of the extension", not bad, " / ".join(bad[:3]))

    def remarks(self) -> list[str]:
        """What the extension said that is not on a generation, each once."""
        found = (line[line.index("[Tiled]"):] for line in self.webui.lines() if "[Tiled]" in line)
        return list(dict.fromkeys(line for line in found if not on_generation(line)))

    def _tried(self, title: str) -> Tried:
        return next(tried for tried in self.tried if tried.title == title)

    @staticmethod
    def _lines_text(lines: dict[str, list[str]]) -> str:
        return "; ".join(f"{name}: {len(found)} lines {found}" for name, found in lines.items())
