"""host-test finds the faults a host or the extension can have, and leaves the WebUI's folder as it was."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from devhost import host_test
from devhost.host_test_checks import difference, kernels_of
from devhost.host_test_restore import BACKUP, LINK, ROOT, CannotTest, Footprint, host_folders, linked
from devhost.host_test_webui import WebUI

FAKE = Path(__file__).with_name("fake_webui.py")
DEVHOST = f"""
import runpy, sys
from pathlib import Path

sys.path.insert(0, {str(ROOT)!r})
here = Path(__file__).resolve().parent
links = [part for link in (here / "extensions").iterdir() for part in ("--extension", str(link))]
sys.argv = ["devhost", "--face", "a1111", "--data", str(here), *links, *sys.argv[1:]]
runpy.run_module("devhost", run_name="__main__")
"""


def make_webui(folder, program):
    (folder / "extensions").mkdir(parents=True)
    (folder / "launch.py").write_text(program)
    (folder / "config.json").write_text('{"cross_attention_optimization": "Doggettx"}')
    return folder


def content(folder):
    """Every file and folder, with what the files hold."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts}


def command(webui, *arguments):
    return [sys.executable, "-m", "devhost.host_test", "--webui", str(webui), "--python", sys.executable, *arguments]


def run(webui, *arguments):
    return subprocess.run(command(webui, *arguments), check=False, cwd=ROOT, capture_output=True, text=True,
                          timeout=600)


def run_here(webui, *arguments):
    """As run(), without a new Python for host-test itself; the exit code."""
    return host_test.main(["--webui", str(webui), "--python", sys.executable, *arguments])


def run_until_first_round(webui):
    """(host-test, the process id of its WebUI), somewhere in endless timing runs."""
    process = subprocess.Popen(command(webui, "--size", "64", "--quick", "--only", "sdp", "--time", "100000"),
                               cwd=ROOT, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("[host-test] round 1 "):
            return process, int((webui / "outputs" / "pid").read_text())
    raise AssertionError(f"host-test ended with {process.wait()}")


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def webui(tmp_path):
    return make_webui(tmp_path / "webui", FAKE.read_text())


# -- whole runs against a WebUI that only pretends --------------------------------------------------------------------

def test_sound_webui_passes_and_is_left_as_it_was(webui, tmp_path):
    before, results = content(webui), tmp_path / "results.json"
    done = run(webui, "--size", "64", "--time", "2", "--json", str(results), "--log", str(tmp_path / "console"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"said besides: [Tiled] found in ['{LINK}']" in done.stdout
    assert "FAILED" not in done.stdout
    stored = json.loads(results.read_text())
    assert [o["title"] for o in stored["optimizations"]] == [
        "sdp - scaled dot product", "Automatic", "InvokeAI", "Tiled (no-flash)"]
    ours = stored["optimizations"][-1]["scenarios"]
    assert {name: shot["difference"] for name, shot in ours.items()} == {
        "txt2img": 1, "img2img": 1, "hires fix": 1, "batch of 2": 1}
    assert ours["txt2img"]["kernels"] == {"unet": {"tiled": 32}, "vae": {"tiled": 1}, "text": {"sdp:math": 12}}
    assert [len(o["runs"]) for o in stored["optimizations"]] == [2, 2, 2, 2]
    assert stored["optimizations"][0]["timing"]["min_ratio"] == 1
    assert "Startup time" in (tmp_path / "console").read_text()
    assert content(webui) == before


@pytest.mark.parametrize("fault, failed", [
    ("not offered", "the settings page offers Tiled (no-flash)"),
    ("no line", "Tiled (no-flash): one [Tiled] line for each generation"),
    ("two lines", "Tiled (no-flash): one [Tiled] line for each generation"),
    ("logged twice", "Tiled (no-flash): one [Tiled] line for each generation"),
    ("other picture", "Tiled (no-flash): pictures within 2/255 of sdp - scaled dot product"),
    ("a picture less", "Tiled (no-flash): pictures within 2/255 of sdp - scaled dot product"),
    ("vae not tiled", "Tiled (no-flash): unet and vae run tiled and nothing else"),
    ("fewer calls", "Tiled (no-flash): as many attention calls as sdp - scaled dot product"),
    ("option not kept", "Tiled (no-flash): can be chosen and generates"),
    ("answers 500", "Tiled (no-flash): can be chosen and generates"),
    ("dies", "Tiled (no-flash): can be chosen and generates"),
    ("ignores override", "override_settings: this request runs tiled"),
    ("keeps override", "override_settings: the next one runs what it ran before"),
    ("forgets at reload", "Reload UI: tiled goes on"),
    ("stays after reload", "Reload UI: the reference comes back"),
    ("traceback", "console: no error of the extension"),
])
def test_fault_is_found(webui, capsys, monkeypatch, fault, failed):
    monkeypatch.setattr(WebUI, "line_seconds", 0.5)
    before = content(webui)
    assert run_here(webui, "--size", "64", "--quick", "--only", "sdp", "--args", f"--fault '{fault}'") == 1
    assert f"FAILED  {failed}" in capsys.readouterr().out
    assert content(webui) == before


def test_selection_of_scenarios_and_titles(webui, tmp_path):
    results = tmp_path / "results.json"
    assert run_here(webui, "--size", "64", "--only", "invoke", "--scenarios", "hires fix", "--json", str(results)) == 0
    made = {o["title"]: list(o["scenarios"]) for o in json.loads(results.read_text())["optimizations"]}
    assert made == dict.fromkeys(["sdp - scaled dot product", "InvokeAI", "Tiled (no-flash)"], ["txt2img", "hires fix"])


def test_webui_that_does_not_start(webui, capsys):
    before = content(webui)
    assert run_here(webui, "--args", "--fault 'does not start'") == 1
    said = capsys.readouterr().out
    assert "the WebUI ended with code 1" in said and "Torch is not able to use GPU" in said
    assert content(webui) == before


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_webui_and_puts_everything_back(webui, number):
    before = content(webui)
    process, pid = run_until_first_round(webui)
    assert is_running(pid) and (webui / "extensions" / LINK).is_symlink() and content(webui) != before
    process.send_signal(number)
    rest = process.stdout.read()
    assert process.wait(60) == 130
    assert "everything is put back" in rest
    assert content(webui) == before and not is_running(pid)


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_next_run_mends_what_a_killed_one_left(webui, capsys):
    before = content(webui)
    process, pid = run_until_first_round(webui)
    process.kill()
    process.wait()
    os.kill(pid, signal.SIGKILL)
    assert content(webui) != before
    assert run_here(webui, "--size", "64", "--quick", "--only", "sdp") == 0
    assert "putting back what a killed run left" in capsys.readouterr().out
    assert content(webui) == before


def test_devhost_passes(tmp_path):
    """The extension in devhost, all checks: lines, pictures, override_settings, Reload UI."""
    from conftest import host_python

    webui = make_webui(tmp_path / "webui", DEVHOST)
    (webui / "config.json").unlink()
    before = content(webui)
    done = run(webui, "--python", host_python("a1111"), "--ready", "is ready", "--size", "64", "--steps", "1",
               "--prompt", "red circle on white", "--quick", "--args=--skip-install")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "unet tiled x" in done.stdout
    assert content(webui) == before


# -- nothing to test --------------------------------------------------------------------------------------------------

def test_without_a_webui_it_says_what_it_needs(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("")
    for arguments in ([], ["--webui", str(tmp_path / "missing")], ["--webui", str(file)], ["--webui", str(tmp_path)]):
        assert host_test.main(arguments) == 2
        assert "host-test needs a WebUI" in capsys.readouterr().err


def test_unknown_scenario_is_refused(webui, capsys):
    with pytest.raises(SystemExit) as stopped:
        run_here(webui, "--scenarios", "hires fix, inpaint")
    assert stopped.value.code == 2 and "no such scenario: inpaint" in capsys.readouterr().err


def test_without_a_python_it_says_so(webui, capsys):
    assert host_test.main(["--webui", str(webui)]) == 2
    assert "--python" in capsys.readouterr().err


def test_second_copy_is_refused(webui, capsys):
    copy = webui / "extensions" / "tiled"
    (copy / "lib_tiled").mkdir(parents=True)
    (copy / "scripts").mkdir()
    (copy / "scripts" / "tiled_attention.py").write_text("")
    before = content(webui)
    assert run_here(webui) == 2
    assert f"{copy} is a copy of this extension" in capsys.readouterr().err
    assert content(webui) == before


def test_link_that_is_there_already_serves_and_stays(webui):
    (webui / "extensions" / "mine").symlink_to(ROOT)
    with linked(webui / "extensions"):
        assert [path.name for path in (webui / "extensions").iterdir()] == ["mine"]
    assert (webui / "extensions" / "mine").resolve() == ROOT


def test_foreign_file_under_the_links_name_stays(webui):
    (webui / "extensions" / LINK).mkdir()
    with pytest.raises(CannotTest, match="not a link"), linked(webui / "extensions"):
        pass
    assert (webui / "extensions" / LINK).is_dir()


# -- parts ------------------------------------------------------------------------------------------------------------

def test_settings_are_where_the_arguments_say(tmp_path):
    data, settings = host_folders(tmp_path, ["--use-cpu", "all", "--data-dir", "data", "--ui-settings-file=my.json"])
    assert data == (tmp_path / "data").resolve()
    assert settings[:2] == [tmp_path / "my.json", data / "config.json"]


def test_new_files_of_others_stay_and_are_named(webui):
    with Footprint(webui, [webui / "config.json"]) as footprint:
        (webui / "config.json").write_text("{}")
        (webui / "notes.txt").write_text("mine")
        (webui / "extensions" / "another").mkdir()
        (webui / "extensions" / "another" / "file").write_text("mine")
        (webui / "models" / "new").mkdir(parents=True)
        (webui / "log").mkdir()
        (webui / "log" / "file").write_text("the host's")
    assert footprint.left == ["extensions/another", "notes.txt"]
    assert (webui / "notes.txt").read_text() == "mine"
    assert "Doggettx" in (webui / "config.json").read_text()
    assert sorted(path.name for path in webui.iterdir()) == ["config.json", "extensions", "launch.py", "notes.txt"]


def test_half_made_backup_is_not_put_back(webui):
    (webui / BACKUP).mkdir()
    (webui / BACKUP / "0").write_text("half")
    with Footprint(webui, [webui / "config.json"]):
        pass
    assert "Doggettx" in (webui / "config.json").read_text()


def test_kernels_are_read_from_the_line():
    line = ("100%|###| [Tiled] txt2img 64x64 2 steps, hires 96x96 | unet: tiled x64, xformers:fa2F@v2.5.7-pt x2 | "
            "vae: sdp:math x1 | Automatic -> Tiled: gfx906 runs no fused kernel (SDPA: math only)")
    assert kernels_of(line) == {"unet": {"tiled": 64, "xformers:fa2F@v2.5.7-pt": 2}, "vae": {"sdp:math": 1}}


def test_difference_is_the_largest_of_any_pixel():
    a = np.zeros((2, 2, 3), np.int16)
    b = a.copy()
    b[1, 0, 2] = 255
    assert difference([a, a], [a, b]) == 255
    assert difference([a], [a]) == 0
    assert difference([a], [a, a]) is None
    assert difference([a], [a[:1]]) is None
