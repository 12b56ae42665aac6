"""A WebUI without attention for the tests of host-test: the answers and console lines of a host, and one fault at will.

    python launch.py --port N [--fault NAME]
"""

import base64
import io
import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from PIL import Image

TITLE = "Tiled (no-flash)"
CHOICES = ["Automatic", "sdp - scaled dot product", "InvokeAI", TITLE]
KERNELS = {TITLE: "tiled", "InvokeAI": "InvokeAI"}
HERE = Path(__file__).resolve().parent
fault = sys.argv[sys.argv.index("--fault") + 1] if "--fault" in sys.argv else ""
options = {"cross_attention_optimization": "Automatic"}
reloaded = False


def say(text):
    print(text, flush=True)


def picture(request, shade):
    side = int(request["width"] * (request["hr_scale"] if request.get("enable_hr") else 1))
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (shade, 100, 100)).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def generate(kind, request):
    title = options["cross_attention_optimization"]
    override = request.get("override_settings", {}).get("cross_attention_optimization")
    if override and fault != "ignores override":
        title = override
    if override and fault == "keeps override":
        options["cross_attention_optimization"] = override
    ours = title == TITLE
    if ours and fault == "answers 500":
        raise RuntimeError("no attention")
    if ours and fault == "dies":
        say("Segmentation fault")
        sys.stdout.flush()
        os._exit(139)
    kernel = KERNELS.get(title, "sdp:flash")
    if reloaded and fault == "forgets at reload":
        kernel = "sdp:flash"
    if reloaded and fault == "stays after reload":
        kernel = "tiled"
    unet = 30 if ours and fault == "fewer calls" else 32
    vae = "sdp:math" if ours and fault == "vae not tiled" else kernel
    size = f"{request['width']}x{request['height']}"
    kernels = f"unet: {kernel} x{unet} | vae: {vae} x1 | text: sdp:math x12"
    line = f"{kind} {size} {request['steps']} steps | {kernels} | {title}"
    if not (ours and fault == "no line"):
        sys.stdout.write(f"\r 50%|#####     | 1/2\r100%|##########| 2/2 [Tiled] {line}\n")
    if ours and fault == "two lines":
        say(f"[Tiled] {line}")
    if ours and fault == "logged twice":
        say(f"INFO:Tiled:{line}")
    if ours and fault == "traceback":
        say('Traceback (most recent call last):\n  File "/x/lib_tiled/hosts/a1111.py", line 1, in f')
    (HERE / "params.txt").write_text(line)
    (HERE / "outputs").mkdir(exist_ok=True)
    (HERE / "outputs" / "pid").write_text(str(os.getpid()))
    shade = 100 + (3 if ours and fault == "other picture" else 1 if ours else 0)
    count = request.get("batch_size", 1) - (1 if ours and fault == "a picture less" else 0)
    return {"images": [picture(request, shade)] * count}


class Handler(BaseHTTPRequestHandler):
    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/config":
            choices = [c for c in CHOICES if not (c == TITLE and fault == "not offered")]
            self.answer(200, {
                "components": [{"id": 7, "props": {"elem_id": "setting_cross_attention_optimization",
                                                   "choices": [[c, c] for c in choices]}},
                               {"id": 9, "props": {"elem_id": "settings_restart_gradio"}}, {"id": 10}],
                "dependencies": [{"targets": [[7, "change"]]}, {"targets": [[9, "click"]]}]})
        else:
            self.answer(200, options)

    def do_POST(self):
        global reloaded
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            if self.path == "/sdapi/v1/options":
                if fault != "option not kept":
                    options.update(request)
                (HERE / "config.json").write_text(json.dumps(options))
                self.answer(200, None)
            elif self.path == "/run/predict" and request["fn_index"] == 1:
                reloaded = True
                say("Startup time: 0.0s")
                self.answer(200, {})
            else:
                self.answer(200, generate(self.path.rsplit("/", 1)[1], request))
        except RuntimeError as error:
            self.answer(500, {"error": str(error)})

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    if fault == "does not start":
        sys.exit("Torch is not able to use GPU")
    say(f"[Tiled] found in {sorted(path.name for path in (HERE / 'extensions').iterdir())}")
    (HERE / "ui-config.json").write_text("{}")
    (HERE / "embeddings").mkdir(exist_ok=True)
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
    say("Startup time: 0.0s")
    server.serve_forever()
