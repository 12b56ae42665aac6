"""Fixtures: a devhost in a process of its own (`start_host`, `shared_host`) and a headless Chromium (`browser`).

    def test_something(shared_host):
        host = shared_host("a1111", "--opt-sdp-attention")      # one process for all tests that ask for the same
        host.post("/sdapi/v1/options", {"cross_attention_optimization": "Tiled (no-flash)"})
        pictures = host.txt2img(prompt="red circle", seed=1)    # 64x64, 2 steps unless told otherwise
        assert "[Tiled]" in host.console_since_mark()
"""

import base64
import contextlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 240


def host_python(face):
    """The Python with that host's gradio; skips where the environment has not been made."""
    name = ".venv-gradio4" if face == "forge" else ".venv"
    python = ROOT / name / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if python.exists():
        return str(python)
    pytest.importorskip("gradio", reason=f"{name} is missing: run python dev.py test")
    if face == "forge":
        pytest.skip(f"{name} is missing: run python dev.py test")
    return sys.executable


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class HostError(Exception):
    """The host answered with an error, or ended: status and text are in the message."""


class Host:
    """One running devhost. `console` is all it printed so far, standard output and error together."""

    def __init__(self, face, data, *arguments, extensions=(ROOT,), config=None, environment=None):
        self.face, self.data, self.port = face, Path(data), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.auth = None
        self.data.mkdir(parents=True, exist_ok=True)
        if config is not None:
            (self.data / "config.json").write_text(json.dumps(config))
        command = [host_python(face), "-u", "-m", "devhost", "--face", face, "--data", str(self.data), "--port",
                   str(self.port), "--api", "--test-hooks"]
        for extension in extensions:
            command += ["--extension", str(extension)]
        # a file and not a pipe: what the host printed before it answered a request is there when the answer is
        self._log, self._mark = self.data / "console.log", 0
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([*command, *arguments], cwd=ROOT, stdin=subprocess.PIPE, stdout=log,
                                            stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})})
        try:
            self.wait_for("is ready", START_SECONDS)
        except HostError:
            self.stop()
            raise

    # -- console

    @property
    def console(self):
        return self._console_from(0)

    def _console_from(self, start):
        return self._log.read_bytes()[start:].decode(errors="replace").replace("\r", "\n")

    def mark(self):
        """console_since_mark() begins here."""
        self._mark = self._log.stat().st_size

    def console_since_mark(self):
        return self._console_from(self._mark)

    def wait_for(self, text, seconds=60):
        """Waits until the console since the mark holds the text; raises HostError with the console's end if not."""
        deadline = time.monotonic() + seconds
        while text not in self.console_since_mark():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise HostError(f"no {text!r} within {seconds} s; the console ends with:\n{self.console[-4000:]}")
            time.sleep(0.05)

    # -- HTTP

    def _request(self, method, path, body=None):
        import requests

        answer = requests.request(method, self.url + path, json=body, auth=self.auth, timeout=300)
        if answer.status_code != 200:
            raise HostError(f"{answer.status_code} {answer.text[:2000]}")
        return answer.json() if "json" in answer.headers.get("content-type", "") else answer.text

    def get(self, path):
        return self._request("GET", path)

    def post(self, path, body=None):
        return self._request("POST", path, {} if body is None else body)

    def _pictures(self, path, request):
        from PIL import Image

        answer = self.post(path, {"prompt": "red circle on white", "seed": 1, "steps": 2, "width": 64, "height": 64,
                                  **request})
        self.info = json.loads(answer["info"])
        return [Image.open(io.BytesIO(base64.b64decode(text))) for text in answer["images"]]

    def txt2img(self, **request):
        """Marks the console, generates; returns the pictures. `info` then holds the answer's info."""
        self.mark()
        return self._pictures("/sdapi/v1/txt2img", request)

    def img2img(self, picture, **request):
        buffer = io.BytesIO()
        picture.save(buffer, format="PNG")
        self.mark()
        return self._pictures("/sdapi/v1/img2img", {"init_images": [base64.b64encode(buffer.getvalue()).decode()],
                                                    **request})

    def options(self, **values):
        """Sets options as the settings page does; without values, reads them."""
        return self.post("/sdapi/v1/options", values) if values else self.get("/sdapi/v1/options")

    # -- inside

    def run(self, code):
        """Executes code inside the host; returns what it assigned to `result` (anything JSON can hold)."""
        return self.post("/devhost/run", {"code": code})["result"]

    def reload_ui(self):
        self.mark()
        self.post("/devhost/reload")
        self.wait_for("is ready", START_SECONDS)

    def stop(self):
        self.process.kill()
        self.process.wait()

    @contextlib.contextmanager
    def failing_kernel(self, error):
        """Meanwhile the tiled kernel raises `error`, an expression such as "IndexError('a bug of ours')"."""
        self.run(f"""
from lib_tiled import kernel
kernel.working = kernel.attend
def broken(*args, **kwargs):
    raise {error}
kernel.attend = broken
""")
        try:
            yield
        finally:
            self.run("from lib_tiled import kernel\nkernel.attend = kernel.working")


@pytest.fixture
def heard():
    """The attention calls that the backends reported during the test."""
    from lib_tiled.backends import calls  # not at the top: most tests need no torch in this process

    told = []
    calls.listen(told.append)
    yield told
    calls.listen(None)


@pytest.fixture
def start_host(tmp_path):
    """start_host(face, *flags, extensions=..., config={...}, environment={...}) -> Host, stopped after the test."""
    hosts = []

    def start(face, *arguments, **settings):
        hosts.append(Host(face, tmp_path / f"{face}{len(hosts)}", *arguments, **settings))
        return hosts[-1]

    yield start
    for host in hosts:
        host.stop()


@pytest.fixture(scope="session")
def shared_host(tmp_path_factory):
    """As start_host, but hosts with the same arguments are one process for the whole run; marked at each request."""
    hosts = {}

    def start(face, *arguments, extensions=(ROOT,)):
        key = (face, *arguments, *extensions)
        if key not in hosts or hosts[key].process.poll() is not None:
            hosts[key] = Host(face, tmp_path_factory.mktemp(face), *arguments, extensions=extensions)
        hosts[key].mark()
        return hosts[key]

    yield start
    for host in hosts.values():
        host.stop()


@pytest.fixture
def browser():
    """A headless Chromium, 1280x900; skips where chromium or its driver is missing."""
    chromium, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
    if not chromium or not driver:
        pytest.skip("chromium and chromium-driver are not installed")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    quiet = ("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1280,900", *quiet):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    yield chrome
    chrome.quit()


def lines(host):
    """What the extension said on the console since the mark, each from "[Tiled]" on."""
    return [line[line.index("[Tiled]") :] for line in host.console_since_mark().splitlines() if "[Tiled]" in line]


def press(browser, element_id, happened, seconds=20):
    """Press a button until `happened()` is true: a click is lost while the page is still connecting."""
    from selenium.common.exceptions import TimeoutException
    from selenium.webdriver.support.ui import WebDriverWait

    for _ in range(6):
        browser.find_element("id", element_id).click()
        with contextlib.suppress(TimeoutException):
            return WebDriverWait(browser, seconds, 0.1).until(lambda _: happened())
    raise AssertionError(f"nothing happens after pressing {element_id}")
