"""What one generation did, in one line."""

import io
import logging
import sys
import threading
import types

import pytest
import torch

from lib_tiled.backends import calls
from lib_tiled.backends.calls import Call
from lib_tiled.report import line, log, place
from lib_tiled.report.generation import FAILED, INTERRUPTED, Generation, History


def in_module(name, body="return call()", argument="call"):
    """A function whose code belongs to a module called `name`."""
    module = types.ModuleType(name)
    exec(f"def f({argument}):\n    {body}", module.__dict__)
    return module.f


@pytest.mark.parametrize(
    "stack, expected",
    [
        (["ldm.modules.diffusionmodules.openaimodel", "ldm.modules.attention"], "unet"),
        (["ldm.modules.diffusionmodules.model"], "vae"),
        (["sgm.modules.diffusionmodules.model"], "vae"),
        (["backend.nn.unet"], "unet"),
        (["backend.nn.vae"], "vae"),
        (["backend.nn.t5"], "text"),
        (["modules.sd_hijack_clip", "transformers.models.clip.modeling_clip"], "text"),
        (["ldm.modules.encoders.modules", "open_clip.transformer"], "text"),
        (["transformers.models.clip.modeling_clip"], "text"),
        (["ldm_patched.ldm.flux.model"], "unet"),
        (["some.extension"], "other"),
    ],
)
def test_place_is_read_off_the_stack(stack, expected):
    def call():
        return place.place()

    for name in reversed(stack):
        call = (lambda f, inner: lambda: f(inner))(in_module(name), call)
    assert call() == expected


def test_an_image_encoder_is_no_text():
    class CLIPVisionTransformer:
        run = in_module("transformers.models.clip.modeling_clip", argument="self, call")

    assert CLIPVisionTransformer().run(lambda: place.place()) == "other"


def fill(generation, **counts):
    for key, n in counts.items():
        generation.counts[tuple(key.split("__"))] = n
        generation.calls += n
    return generation


def test_line_has_places_counts_choice_and_reasons():
    g = fill(Generation(what="txt2img 1024x1024 20 steps", choice="Automatic -> Tiled"), unet__tiled=640, vae__tiled=1)
    g.counts["text", "sdp:math"] = 24
    g.note("gfx906 runs no fused kernel")
    g.note("gfx906 runs no fused kernel")
    assert line.line(g) == (
        "txt2img 1024x1024 20 steps | unet: tiled x640 | vae: tiled x1 | text: sdp:math x24"
        " | Automatic -> Tiled: gfx906 runs no fused kernel"
    )
    assert line.short(g) == "tiled"


def test_a_reason_that_holds_for_several_kinds_of_calls_is_named_once():
    g = fill(Generation(what="txt2img", choice="xformers -> Tiled"), unet__tiled=4)
    g.note("switched off")
    for detail in ("D=40", "D=80", "D=40"):
        g.note("xformers found no operator for float16 on cuda", detail)
    why = "switched off; xformers found no operator for float16 on cuda (D=40, D=80)"
    assert line.line(g).endswith(f"| xformers -> Tiled: {why}") and "; ".join(g.to_dict()["reasons"]) == why


@pytest.mark.parametrize("status", [INTERRUPTED, FAILED])
def test_line_marks_nested_and_unfinished(status):
    g = fill(Generation(what="img2img 64x64 1 steps", option="xformers", nested=True), unet__Doggettx=2)
    g.finish(status)
    assert line.line(g) == f"(nested) img2img 64x64 1 steps ({status}) | unet: Doggettx x2 | xformers"


def test_non_finite_half_output_is_noticed_at_the_end():
    bad = torch.tensor([1.0, float("inf")], dtype=torch.float16)
    g = Generation()
    g.record(Call("tiled", out=torch.full((3,), 60000.0, dtype=torch.float16)))  # its sum passes fp16's range
    g.record(Call("tiled", out=torch.tensor([float("inf")])))  # fp32 is not watched
    g.finish()
    assert not g.reasons
    g = Generation()
    g.record(Call("tiled", out=bad))
    g.finish()
    assert len(g.reasons) == 1 and "Precision to safe" in g.reasons[0]


def test_the_advice_is_given_only_where_it_helps():
    g = Generation(choice="sdp")
    g.record(Call("sdp:flash", out=torch.full((2,), float("nan"), dtype=torch.float16)))
    g.finish()
    assert g.reasons == ["non-finite attention output in fp16 of sdp:flash"]


def test_watching_for_nan_keeps_no_graph():
    g = Generation()
    g.record(Call("tiled", out=torch.ones(2, dtype=torch.float16, requires_grad=True) * 2))
    assert not g._finite["tiled"].requires_grad


def test_a_listener_that_fails_costs_no_picture(caplog):
    def broken(call):
        raise KeyError("a bug of ours")

    calls.listen(broken)
    try:
        calls.ran("tiled")
    finally:
        calls.listen(None)


def test_one_line_whatever_an_error_says():
    g = fill(Generation(what="txt2img", choice="sdp"), unet__tiled=1)
    for i in range(9):
        g.note("tiled attention failed,\nDoggettx took over", f"RuntimeError: shape\n {i}")
    text = line.line(g)
    assert "\n" not in text and text.endswith("RuntimeError: shape 2, RuntimeError: shape 3, ...)")


def test_another_thread_speaks_for_itself_alone():
    g = Generation()
    calls.listen(g.record)
    try:
        with calls.named("Doggettx"):
            thread = threading.Thread(target=calls.ran, args=("split",))
            thread.start()
            thread.join()
    finally:
        calls.listen(None)
    assert {kernel: n for (_, kernel), n in g.counts.items()} == {"split": 1, "Doggettx": 1}


def test_named_counts_only_what_did_not_speak_for_itself():
    g = Generation()
    calls.listen(g.record)
    try:
        with calls.named("Doggettx"):
            pass
        with calls.named("InvokeAI"):
            calls.ran("sdp:flash")
    finally:
        calls.listen(None)
    calls.ran("tiled")  # nobody listens
    assert {kernel: n for (_, kernel), n in g.counts.items()} == {"Doggettx": 1, "sdp:flash": 1}


def test_history_keeps_the_last_ones():
    history = History(2)
    for i in range(3):
        history.add(Generation(what=str(i)))
    assert [g.what for g in history.all()] == ["1", "2"] and history.last().what == "2"


def test_one_console_line_however_often_the_logger_is_asked_for(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stderr", stream)
    for _ in range(3):
        log.logger()
    log.logger().info("1024\u00d71024")  # a console that cannot encode it
    stream.seek(0)
    assert stream.read() == "[Tiled] 1024?1024\n"


def test_host_console_handlers_do_not_print_it_twice_and_files_get_it(monkeypatch, tmp_path):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    console, file = logging.StreamHandler(stream), logging.FileHandler(tmp_path / "log.txt")
    logging.root.addHandler(console)
    logging.root.addHandler(file)
    try:
        log.logger().info("hello")
    finally:
        logging.root.removeHandler(console)
        logging.root.removeHandler(file)
        log.logger().removeHandler(file)
        file.close()
    assert stream.getvalue() == "[Tiled] hello\n"
    assert (tmp_path / "log.txt").read_text() == "hello\n"


def test_details_tell_shape_tile_and_time():
    from lib_tiled.backends import tiled
    from lib_tiled.report.generation import clock

    g = Generation(detailed=True)
    calls.listen(g.record, clock)
    try:
        q = torch.randn(1, 2, 100, 8)
        for _ in range(3):
            tiled.run(q, q, q)
    finally:
        calls.listen(None)
    g.finish()
    (row,) = line.details(g)
    assert row.startswith("  other tiled x3: q 1x2x100x8, 100 keys, ") and "ms each, tile 2x100x100 (0.1 MB" in row


def test_a_fallback_shows_in_the_choice():
    g = fill(Generation(option="sdp", choice="sdp"), unet__tiled=2)
    g.finish()
    assert g.choice == "sdp -> Tiled"
    g = fill(Generation(option="Automatic", choice="Automatic -> xformers"), unet__tiled=2)
    g.finish()
    assert g.choice == "Automatic -> xformers -> Tiled"


def test_somebody_elses_tiled_call_is_no_fallback():
    g = fill(Generation(option="Doggettx", choice="Doggettx"), unet__Doggettx=64, unet__tiled=1)
    g.finish()
    assert g.choice == "Doggettx"
