"""The tab "Attention" behind its buttons: report, tables, benchmark."""

import pytest

MEASURE = """
import types
from modules.call_queue import queue_lock
from lib_tiled.webui import tab_bench
from lib_tiled.report.generation import Generation, history

def measure(backend, width, height, device, dtype):
    seen.append((backend, width, height, queue_lock.acquire(blocking=False)))
    if backend == "sdp:math" and width >= 1024:
        return types.SimpleNamespace(seconds=0.0, bytes=0, error="out of memory")
    factor = 4 if backend == "sdp:math" else 1
    return types.SimpleNamespace(seconds=factor * width / 1e6, bytes=factor * width * height, error="")

def tune(device, progress):
    progress(0.5, "4096 tokens")
    kept.append("512 rows")
    return "4096 tokens: <512 rows>"

seen, steps, kept = [], [], []
commands = {
    "bench": types.SimpleNamespace(backends=lambda device: ["tiled", "sdp:math"], measure=measure),
    "tune": types.SimpleNamespace(tune=tune),
}
real, tab_bench._command = tab_bench._command, commands.__getitem__
"""
END = "\ntab_bench._command = real\n"


@pytest.fixture(params=["a1111", "forge"])
def host(request, shared_host):
    return shared_host(request.param)


def test_the_report_says_what_an_issue_needs_and_nothing_private(start_host):
    host = start_host("a1111", "--api-auth", "anna:hunter2", environment={"USER": "someuser"})
    host.auth = ("anna", "hunter2")
    host.txt2img(prompt="my private prompt", steps=1)
    block = host.run("""
from lib_tiled import webui
from lib_tiled.webui import report
from lib_tiled.report.generation import history
history.last().note("tiled attention failed (OSError: [Errno 2] '/home/someuser/models/secret.pt')")
result = report.block(webui._host())
""")
    for part in ("Tiled (no-flash): 0.", "WebUI: AUTOMATIC1111 v1.10.1, commit ", "Python 3.", "gradio: 3.41.2",
                 "--api", "Attention setting: Automatic", "tiled_precision=auto", "Probe:",
                 "Last line: txt2img 64x64 1 steps | unet: ", "sdp:math", "architecture"):
        assert part in block
    for private in ("my private prompt", "hunter2", "anna", "someuser", "secret.pt", str(host.data)):
        assert private not in block


def test_a_part_of_the_report_that_fails_leaves_the_others(host):
    block = host.run("""
from lib_tiled.webui import report
probe = report.probe
report.probe = lambda device: 1 / 0
result = report.block(None)
report.probe = probe
""")
    assert "Probe: failed (ZeroDivisionError" in block
    assert "unknown WebUI, extension not active" in block and "Settings: tiled_fallback=" in block


@pytest.mark.parametrize(("text", "expected"), [
    ("No such file: '/home/a/b.pt' (x)", "No such file: '(path)' (x)"),
    ("C:\\Users\\a\\b.pt; next", "(path); next"),
    ("~/models/x.pt", "(path)"),
    ("cond/uncond | unet: tiled x2 | 2.14.1+cu130, a / b", "cond/uncond | unet: tiled x2 | 2.14.1+cu130, a / b"),
])
def test_paths_leave_every_text(shared_host, text, expected):
    found = shared_host("a1111").run(f"from lib_tiled.webui import report\nresult = report.without_paths({text!r})")
    assert found == expected


def test_tables_escape_and_failures_become_text(host):
    device, generations, broken = host.run("""
from lib_tiled.webui import tab
from lib_tiled.report.generation import Generation, history
history.add(Generation(what="<script>1</script>"))
result = [*tab.refresh()]
probe = tab.probe
tab.probe = lambda device: 1 / 0
result.append(tab.refresh()[0])
tab.probe = probe
""")
    assert "Tiled (no-flash)" in device and "sdp:math" in device and "Why not" in device
    assert "&lt;script&gt;" in generations and "<script>" not in generations
    assert "This failed: ZeroDivisionError" in broken


def test_the_benchmark_waits_for_no_generation_and_none_runs_beside_it(host):
    found, seen, free = host.run(MEASURE + """
with queue_lock:
    busy = [tab_bench.benchmark(["512x512"], lambda *_: None), tab_bench.tuned(lambda *_: None)]
assert busy == [tab_bench.BUSY] * 2 and not seen
history._items.clear()
history.add(Generation(what="txt2img 640x448 20 steps, hires 1280x896"))
found = tab_bench.benchmark(["1024x1024", "512x512"], lambda share, what: steps.append((share, what)))
free = queue_lock.acquire(blocking=False)
queue_lock.release()
assert steps[0] == (0, "tiled at 512x512") and steps[-1][0] < 1
result = [found, seen, free]
""" + END)
    sizes = {(width, height) for _, width, height, _ in seen}
    assert {(512, 512), (1024, 1024), (640, 448), (1280, 896)} <= sizes
    assert not any(taken for *_, taken in seen) and free  # the lock is held while measuring, and free afterwards
    assert "<b>640x448</b> (yours)" in found and "512x512" in found
    assert "out of memory" in found and "4 times the time, 4 times the memory" in found
    assert found.count("<svg") == 2


def test_cancel_ends_it_after_the_running_call(host):
    found, calls = host.run(MEASURE + """
history._items.clear()
found = tab_bench.benchmark(["512x512", "768x768"], lambda share, what: share and tab_bench.cancel())
result = [found, len(seen)]
""" + END)
    assert calls == 2 and "Cancelled" in found
    again = host.run(MEASURE + "result = tab_bench.benchmark(['512x512'], lambda *_: None)" + END)
    assert "Cancelled" not in again


def test_tune_shows_its_words_and_a_cancelled_one_keeps_nothing(host):
    words, kept = host.run(MEASURE + "result = [tab_bench.tuned(lambda *_: None), kept]" + END)
    assert words == "<pre>4096 tokens: &lt;512 rows&gt;</pre>" and kept == ["512 rows"]
    words, kept = host.run(MEASURE + """
def cancelled(device, progress):
    tab_bench.cancel()
    return tune(device, progress)

commands["tune"].tune = cancelled
result = [tab_bench.tuned(lambda *_: None), kept]
""" + END)
    assert "nothing was kept" in words and kept == []
