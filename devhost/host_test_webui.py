"""A WebUI that host-test runs: its process, its console, its HTTP API."""

from __future__ import annotations

import base64
import codecs
import contextlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
from PIL import Image

OPTION = "cross_attention_optimization"
_TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LINE_ENDS = re.compile(r"[\r\n]+")  # a progress bar ends its states with \r
# The extension's words on a generation, also where a second log handler repeats them under another heading.
_GENERATION = re.compile(r"(?:\(nested\) )?(?:txt2img|img2img|inpaint) \d+x\d+ .*\| .*")


def on_generation(line: str) -> bool:
    return _GENERATION.search(line) is not None


class WebUIError(Exception):
    """The WebUI answered with an error, gave no answer in time, or ended."""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def encode(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def decode(text: str) -> np.ndarray:
    """(H, W, 3), 0..255, signed so that differences can be taken."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text.split(",")[-1]))).convert("RGB")).astype(np.int16)


class WebUI:
    """`with WebUI(command, directory, ready="Startup time:") as webui: ...`: started, ready; afterwards ended, with all
    the processes it started."""

    line_seconds = 5  # how long after an answer the line on it may come

    def __init__(self, command: list[str], directory: Path, ready: str, start_seconds: float, answer_seconds: float):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [*command, "--port", str(self.port)]
        self.directory, self.ready = directory, ready
        self.start_seconds, self.answer_seconds = start_seconds, answer_seconds
        self._lines: list[str] = []
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback needs no proxy

    def __enter__(self):
        # A process group of its own: Ctrl-C at the terminal comes to host-test alone, which then ends them all.
        own_group = {"start_new_session": True} if os.name == "posix" else {}
        self.process = subprocess.Popen(
            self.command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8",
                                           "SD_WEBUI_RESTARTING": "1"}, **own_group)  # the last one: open no browser
        try:
            threading.Thread(target=self._read, daemon=True).start()
            self.wait_for(self.ready, 0, self.start_seconds)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.end()

    def end(self) -> None:
        if os.name != "posix":
            subprocess.run(["taskkill", "/T", "/F", "/PID", str(self.process.pid)], check=False,
                           capture_output=True)
            self.process.wait()
            return
        for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)

    # -- console

    def _read(self) -> None:
        rest, decoder = "", codecs.getincrementaldecoder("utf-8")("replace")
        for chunk in iter(lambda: self.process.stdout.read1(65536), b""):
            *lines, rest = _LINE_ENDS.split(rest + decoder.decode(chunk))
            self._lines += [_TERMINAL_CODES.sub("", line) for line in lines]
        self._lines.append(rest)

    def mark(self) -> int:
        """The place in the console that lines(mark) begins at."""
        return len(self._lines)

    def lines(self, mark: int = 0) -> list[str]:
        return self._lines[mark:]

    def end_of_console(self, count: int = 30) -> str:
        return "\n".join(self._lines[-count:])

    def wait_for(self, text: str, mark: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not any(text in line for line in self.lines(mark)):
            if self.process.poll() is not None:
                raise WebUIError(f"the WebUI ended with code {self.process.returncode}:\n{self.end_of_console()}")
            if time.monotonic() > deadline:
                raise WebUIError(f"no {text!r} in the console within {seconds:.0f} s:\n{self.end_of_console()}")
            time.sleep(0.1)

    def generation_lines(self, mark: int) -> list[str]:
        """The lines on generations since the mark; waits for the first one, then a little for one too many."""
        deadline = time.monotonic() + self.line_seconds
        while time.monotonic() < deadline:
            if any(on_generation(line) for line in self.lines(mark)):
                break
            time.sleep(0.05)
        time.sleep(0.2)
        return [line for line in self.lines(mark) if on_generation(line)]

    # -- HTTP

    def request(self, path: str, body: dict | None = None):
        """GET, or POST where there is a body; the answer's JSON. WebUIError for any other status than 200."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with self._opener.open(request, timeout=self.answer_seconds) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            text = error.read().decode("utf-8", "replace")
            raise WebUIError(f"{path}: {error.code} {text[:600]}") from error
        except (OSError, ValueError) as error:
            raise WebUIError(f"{path}: {error}") from error

    def _components(self, config: dict, elem_id: str) -> list[dict]:
        return [c for c in config["components"] if (c.get("props") or {}).get("elem_id") == elem_id]

    def choices(self) -> list[str]:
        """The optimizations in the settings page's dropdown; none where the page has no such dropdown."""
        found = self._components(self.request("/config"), f"setting_{OPTION}")
        choices = found[0]["props"].get("choices") or [] if found else []
        return [choice if isinstance(choice, str) else choice[-1] for choice in choices]  # gradio 4: (name, value)

    def get_option(self):
        """The option's value; None where this host's API leaves it out."""
        return self.request("/sdapi/v1/options").get(OPTION)

    def set_option(self, value: str) -> None:
        self.request("/sdapi/v1/options", {OPTION: value})

    def reload_ui(self) -> None:
        """Presses the button "Reload UI" and waits until the WebUI is ready again."""
        config = self.request("/config")
        buttons = {component["id"] for component in self._components(config, "settings_restart_gradio")}
        for index, event in enumerate(config["dependencies"]):
            targets = {target[0] if isinstance(target, list) else target for target in event.get("targets", ())}
            if targets & buttons and event.get("backend_fn", True):
                mark = self.mark()
                self.request("/run/predict", {"fn_index": event.get("id", index), "data": [], "session_hash": "test"})
                self.wait_for(self.ready, mark, self.start_seconds)
                return
        raise WebUIError("the page has no button Reload UI")
