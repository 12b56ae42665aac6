"""devhost itself: it loads an extension as the hosts do. The extension here is a small probe, not this project's."""

import pytest

PRELOAD = """
def preload(parser):
    parser.add_argument("--probe-flag", action="store_true")
"""
HELPER = """
calls = []
"""
SCRIPT = """
import sys
import probe_helper
from modules import script_callbacks, scripts, shared
from modules.options import OptionInfo, options_section

probe_helper.calls.append("load")
shared.probe_seen = {
    "name": __name__, "in_modules": __name__ in sys.modules, "flag": shared.cmd_opts.probe_flag,
    "path": sys.path[0], "basedir": scripts.basedir(),
    "list_optimizers": hasattr(script_callbacks, "on_list_optimizers"),
    "cross_attention_option": "cross_attention_optimization" in shared.opts.data_labels}
shared.probe_calls = probe_helper.calls


def settings():
    shared.opts.add_option("probe_value", options_section(("probe", "Probe"), {
        "probe_value": OptionInfo(1, "Probe value", onchange=lambda: probe_helper.calls.append("onchange"))},
    )["probe_value"])


def started(demo, app):
    probe_helper.calls.append("app_started")
    app.add_api_route("/probe", lambda: {"calls": probe_helper.calls})


script_callbacks.on_ui_settings(settings)
script_callbacks.on_before_ui(lambda: probe_helper.calls.append("before_ui"))
script_callbacks.on_app_started(started)
script_callbacks.on_model_loaded(lambda model: probe_helper.calls.append("model_loaded"))
script_callbacks.on_script_unloaded(lambda: probe_helper.calls.append("unloaded"))
script_callbacks.on_before_ui(lambda: 1 / 0)


class Probe(scripts.Script):
    def title(self):
        return "Probe"

    def show(self, is_img2img):
        return scripts.AlwaysVisible

    def before_process(self, p, *args):
        probe_helper.calls.append("before_process")

    def process(self, p, *args):
        p.extra_generation_params["Probe"] = shared.opts.probe_value
        probe_helper.calls.append("process")

    def process_batch(self, p, *args, batch_number, prompts, seeds, subseeds):
        probe_helper.calls.append(f"process_batch {batch_number} {seeds}")

    def postprocess_batch(self, p, *args, images, batch_number):
        probe_helper.calls.append(f"postprocess_batch {tuple(images.shape)}")

    def postprocess_image(self, p, pp, *args):
        probe_helper.calls.append("postprocess_image")

    def postprocess(self, p, processed, *args):
        probe_helper.calls.append(f"postprocess {len(processed.images)}")
"""


@pytest.fixture(scope="session")
def probe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extensions") / "probe"
    (folder / "scripts").mkdir(parents=True)
    (folder / "preload.py").write_text(PRELOAD)
    (folder / "probe_helper.py").write_text(HELPER)
    (folder / "scripts" / "probe.py").write_text(SCRIPT)
    (folder / "install.py").write_text("print('probe installs nothing')\n")
    return folder


@pytest.fixture(params=["a1111", "reforge", "forge"])
def host(request, shared_host, probe):
    return shared_host(request.param, "--probe-flag", extensions=(probe,))


def calls_after(host, action):
    """What the probe noted while action() ran, and its result."""
    before = len(host.get("/probe")["calls"])
    result = action()
    return host.get("/probe")["calls"][before:], result


def test_script_sees_what_the_hosts_show_it(host, probe):
    seen = host.run("from modules import shared; result = shared.probe_seen")
    assert seen == {"name": "probe.py", "in_modules": False, "flag": True, "path": str(probe), "basedir": str(probe),
                    "list_optimizers": host.face != "reforge", "cross_attention_option": host.face != "reforge"}
    assert "probe installs nothing" in host.console


def test_extension_folder_is_importable_only_while_scripts_load(host, probe):
    paths = host.run("import sys\nfrom modules import scripts\n"
                     f"result = [{str(probe)!r} in sys.path, scripts.basedir()]")
    assert paths == [False, str(host.data)]


def test_failing_callback_is_reported_and_harms_nobody(host):
    assert "ZeroDivisionError" in host.console


def test_generation_calls_the_scripts_in_order(host):
    calls, pictures = calls_after(host, lambda: host.txt2img(n_iter=2, batch_size=2, seed=5))
    assert [call for call in calls if call != "model_loaded"] == [
        "before_process", "process", "process_batch 0 [5, 6]", "postprocess_batch (2, 3, 64, 64)",
        "postprocess_image", "postprocess_image", "process_batch 1 [7, 8]", "postprocess_batch (2, 3, 64, 64)",
        "postprocess_image", "postprocess_image", "postprocess 4"]
    assert [picture.size for picture in pictures] == 4 * [(64, 64)]
    assert "Seed: 8, Size: 64x64, Model: demo, Probe: 1" in pictures[3].info["parameters"]
    assert host.info["all_seeds"] == [5, 6, 7, 8]


def test_override_settings_hold_for_one_request(host):
    picture, = host.txt2img(override_settings={"probe_value": 7})
    assert "Probe: 7" in picture.info["parameters"]
    assert host.run("from modules import shared; result = shared.opts.probe_value") == 1


def test_option_is_set_saved_and_announced(host):
    calls, _ = calls_after(host, lambda: host.options(probe_value=3))
    assert calls == ["onchange"]
    assert '"probe_value": 3' in (host.data / "config.json").read_text()
    assert ("probe_value" in host.options()) == (host.face != "forge")  # Forge answers with its own options alone
    host.options(probe_value=1)


def test_reload_ui_executes_scripts_again_and_keeps_the_model(host):
    host.txt2img()
    host.run("from modules import shared; shared.probe_model = shared.sd_model")
    calls, _ = calls_after(host, host.reload_ui)
    assert calls == ["unloaded", "load", "before_ui", "app_started"]
    assert host.run("from modules import shared; result = shared.probe_model is shared.sd_model")


def test_api_errors_come_as_the_hosts_send_them(host):
    with pytest.raises(Exception, match='500.*"error":"KeyError"'):
        host.txt2img(override_settings={"no_such_option": 1})
    with pytest.raises(Exception, match="422"):
        host.txt2img(alwayson_scripts={"no such script": {"args": []}})


def test_api_auth_guards_the_api(start_host, probe):
    host = start_host("a1111", "--api-auth", "user:secret", extensions=(probe,))
    with pytest.raises(Exception, match="401"):
        host.get("/sdapi/v1/options")
    host.auth = ("user", "secret")
    assert host.options()["probe_value"] == 1


def test_xyz_plot_generates_every_cell(host):
    seed, steps = 1, 2  # indices of the axes
    calls, pictures = calls_after(host, lambda: host.txt2img(
        script_name="X/Y/Z plot", script_args=[seed, "3, 4", steps, "1, 2"]))
    assert calls.count("before_process") == 4
    assert [text.split("\n")[1].split(", CFG")[0] for text in host.info["infotexts"]] == [
        "Steps: 1, Sampler: Euler", "Steps: 1, Sampler: Euler", "Steps: 2, Sampler: Euler", "Steps: 2, Sampler: Euler"]
    assert len(pictures) == 4
