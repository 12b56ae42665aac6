"""The extension inside a real WebUI on this machine.

    python dev.py host-test --webui DIR [--python PY] [--args "--use-cpu all --no-half"]

Links the extension into DIR/extensions, starts the WebUI on a free loopback port, generates the same seeds under every
optimization it offers, compares pictures, lines and kernels, prints a table, and puts everything back.
Exit code: 0 all checks passed, 1 some failed, 2 nothing to test, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
from pathlib import Path

from devhost.host_test_checks import TITLE, HostTest, say, scenarios
from devhost.host_test_report import as_json, report
from devhost.host_test_restore import CannotTest, Footprint, host_folders, linked
from devhost.host_test_webui import WebUI, WebUIError

NEEDS = """host-test needs a WebUI (AUTOMATIC1111, Forge or reForge) that is installed on this machine and has a model:
  --webui DIR     its folder, the one with launch.py and extensions/
  --python PY     the Python it runs with, unless that is DIR/venv
  --args "..."    its command line, e.g. "--skip-install --use-cpu all --no-half" (--api and --port are added)
"""


def words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dev.py host-test", description=__doc__.split("\n\n")[0])
    parser.add_argument("--webui", type=Path, metavar="DIR", help="folder of the WebUI")
    parser.add_argument("--python", metavar="PY", help="Python of the WebUI; default: DIR/venv or DIR/.venv")
    parser.add_argument("--args", default="", help="command line of the WebUI, in one string")
    parser.add_argument("--entry", default="launch.py", help="what that Python is to run; default launch.py")
    parser.add_argument("--cwd", type=Path, help="working directory of the WebUI; default DIR")
    parser.add_argument("--ready", default="Startup time:", help="console text that says it is ready")
    parser.add_argument("--size", type=int, default=256, help="side of the pictures in pixels, a multiple of 64")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--prompt", default="a cat")
    parser.add_argument("--tolerance", type=int, default=2, help="allowed difference of a pixel in 1/255; default 2")
    parser.add_argument("--reference", default="sdp", help="optimization to compare with; default sdp")
    parser.add_argument("--only", default="", help="try only titles that contain one of these words, by commas; ours "
                        "and the reference are always tried")
    parser.add_argument("--scenarios", default="", help="of img2img, hires fix, batch of 2 make only these, by commas; "
                        "txt2img is always made")
    parser.add_argument("--quick", action="store_true", help="the others make one txt2img each")
    parser.add_argument("--time", type=int, default=0, metavar="N", help="then N rounds of txt2img for times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="store the results")
    parser.add_argument("--log", type=Path, metavar="FILE", help="store the WebUI's console")
    parser.add_argument("--start-timeout", type=float, default=900, metavar="SECONDS")
    parser.add_argument("--timeout", type=float, default=900, metavar="SECONDS", help="for one generation")
    options = parser.parse_args(argv)
    unknown = set(words(options.scenarios)) - set(scenarios(64, 1, ""))
    if unknown:
        parser.error(f"--scenarios: no such scenario: {', '.join(sorted(unknown))}")
    return options


def python_of(options: argparse.Namespace) -> str:
    if options.python:
        return options.python
    for name in ("venv", ".venv"):
        for python in (options.webui / name / "bin/python", options.webui / name / "Scripts/python.exe"):
            if python.is_file():
                return str(python)
    raise CannotTest(f"{options.webui} has no venv: say with --python which Python it runs with.")


def prepare(options: argparse.Namespace) -> tuple[list[str], Path, list[Path]]:
    """(command, folder with extensions/, files with settings). CannotTest where something is missing."""
    if options.webui is None:
        raise CannotTest("no --webui given.")
    options.webui = options.webui.expanduser().resolve()
    if not options.webui.is_dir():
        raise CannotTest(f"{options.webui} is not a folder.")
    entry, flags = shlex.split(options.entry), shlex.split(options.args)
    if not entry[0].startswith("-") and not (options.webui / entry[0]).is_file():
        raise CannotTest(f"{options.webui} has no {entry[0]}: not the folder of a WebUI.")
    data, settings = host_folders(options.webui, flags)
    if not (data / "extensions").is_dir():
        raise CannotTest(f"{data} has no folder extensions: start the WebUI once by itself.")
    return [python_of(options), *entry, *flags, "--api"], data, settings


def all_steps(test: HostTest, options: argparse.Namespace) -> None:
    """All steps. WebUIError where the WebUI fails outside of what the checks expect."""
    reference, titles = test.choose_titles(options.reference, words(options.only))
    if not titles:
        return
    say("first generation, not counted: it loads the model")
    test.generate("txt2img")
    test.try_all(titles, options.quick)
    working = [tried.title for tried in test.tried if not tried.error]
    if TITLE in working:
        if reference in working:
            test.override_settings(reference)
        test.reload_ui(reference if reference in working else None)
    test.time_all(working, options.time)


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    try:
        command, data, settings = prepare(options)
        with Footprint(data, settings) as footprint, linked(data / "extensions"):
            code = try_webui(command, options)
    except CannotTest as problem:
        print(f"host-test: {problem}\n\n{NEEDS}", file=sys.stderr, end="")
        return 2
    if footprint.left:
        say(f"new in the WebUI's folder and left there: {', '.join(footprint.left)}")
    return code


def try_webui(command: list[str], options: argparse.Namespace) -> int:
    webui = WebUI(command, options.cwd or options.webui, options.ready, options.start_timeout, options.timeout)
    say(f"starting {shlex.join(webui.command)}")
    test = None
    try:
        with webui:
            test = HostTest(webui, options.size, options.steps, options.prompt, options.tolerance,
                            words(options.scenarios))
            try:
                all_steps(test, options)
            except WebUIError as error:
                test.check("the WebUI answers", False, str(error))
            test.console()
    except WebUIError as error:
        say(f"FAILED: {error}")
        return 1
    finally:
        if options.log:
            options.log.write_text("\n".join(webui.lines()) + "\n", encoding="utf-8")
        if test is not None:
            print(report(test))
            if options.json:
                options.json.write_text(json.dumps(as_json(test, options), indent=1) + "\n", encoding="utf-8")
    return 0 if all(check.passed for check in test.checks) else 1


def stop(*_):
    """SIGTERM and a closed terminal end the run as Ctrl-C does; a second one does not disturb the putting back."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), stop)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("stopped; everything is put back")
        sys.exit(130)
