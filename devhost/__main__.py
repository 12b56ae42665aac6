"""Starts devhost: reads its own arguments, wears a face, then goes through the hosts' order of start-up.

    python -m devhost --face a1111 --port 7861 --api [host flags, extension flags]
    python -m devhost --face forge --once --out demo.png --prompt "red circle on white"
"""

import argparse
import os
import sys
import threading
import time
from pathlib import Path

import devhost
from devhost import HERE


def own_arguments():
    """devhost's own arguments; all others stay in sys.argv for the host's parser and the extensions'."""
    parser = argparse.ArgumentParser(prog="python -m devhost", allow_abbrev=False)
    parser.add_argument("--face", choices=("a1111", "forge", "reforge"), default="a1111", help="the host to stand for")
    parser.add_argument("--extension", type=Path, action="append", default=[], help="folder of an extension")
    parser.add_argument("--data", type=Path, default=None, help="folder for config.json and pictures")
    parser.add_argument("--once", action="store_true", help="draw one picture without a server, then leave")
    parser.add_argument("--out", type=Path, default=Path("demo.png"), help="where --once puts the picture")
    parser.add_argument("--prompt", default="red circle on white")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=128, help="side of --once's picture in pixels")
    parser.add_argument("--optimization", default=None, help="value of the setting cross_attention_optimization")
    parser.add_argument("--test-hooks", action="store_true", help="POST /devhost/run executes code: for tests only")
    arguments, rest = parser.parse_known_args()
    sys.argv = [sys.argv[0], *rest]
    return arguments


def wear_face(arguments):
    """Makes the face's modules importable. The folder devhost was started from leaves sys.path: extensions must not
    find their own packages by it."""
    devhost.face = arguments.face
    devhost.data = (arguments.data or Path(".devhost") / arguments.face).resolve()
    devhost.data.mkdir(parents=True, exist_ok=True)
    devhost.extensions = [path.resolve() for path in arguments.extension]
    started_from = str(HERE.parent)
    sys.path[:] = [str(HERE / "hostmods" / arguments.face), str(HERE / "hostmods" / "common"),
                   *(p for p in sys.path if p and str(Path(p).resolve()) != started_from)]
    if arguments.face != "forge" and "--xformers" not in sys.argv:
        sys.modules["xformers"] = None  # the hosts' import hook
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")


def initialize_rest():
    """At start and at each Reload UI."""
    import devhost_face

    from modules import extensions, scripts, shared

    extensions.list_extensions()
    scripts.load_scripts()
    devhost_face.scripts_loaded()

    def load_model():
        shared.sd_model  # noqa: B018  reading it loads it
        devhost_face.model_ready()

    if not devhost_face.loads_model_at_start:
        return None
    thread = threading.Thread(target=load_model, name="load_model")
    thread.start()
    return thread


def draw_once(arguments, model_thread):
    """One txt2img without a server; the extension's scripts run as in any generation."""
    from devhost import page
    from modules import images, processing, scripts, shared

    page.create()
    if model_thread is not None:
        model_thread.join()
    p = processing.StableDiffusionProcessingTxt2Img(prompt=arguments.prompt, seed=arguments.seed, width=arguments.size,
                                                    height=arguments.size, do_not_save_samples=True)
    p.scripts, p.script_args = scripts.scripts_txt2img, scripts.scripts_txt2img.default_args()
    shared.state.begin(job="once")
    processed = processing.process_images(p)
    shared.state.end()
    images.save_png(processed.images[0], arguments.out)
    print(f"Saved {arguments.out}: {arguments.prompt}, {arguments.size}x{arguments.size}, {p.steps} steps")


def serve(arguments):
    """The page and the API, again and again after each Reload UI, until the process is stopped."""
    from devhost import api, page
    from modules import script_callbacks, shared
    from modules.shared_cmd_options import cmd_opts

    while True:
        script_callbacks.before_ui_callback()
        shared.demo = page.create()
        app = page.launch(shared.demo, cmd_opts.port)
        if cmd_opts.api:
            api.add_routes(app)
        if arguments.test_hooks:
            api.add_test_hooks(app)
        script_callbacks.app_started_callback(shared.demo, app)
        print(f"devhost ({devhost.face}) is ready: http://127.0.0.1:{shared.demo.server_port}", flush=True)
        try:
            while shared.state.wait_for_server_command(timeout=5) != "restart":
                pass
        except KeyboardInterrupt:
            shared.demo.close()
            return
        print("Restarting UI...", flush=True)
        shared.demo.close()
        time.sleep(0.5)
        script_callbacks.app_reload_callback()
        script_callbacks.script_unloaded_callback()
        initialize_rest()


def leave_with_parent():
    """Ends the process when the tests that started it are gone: they hold the other end of standard input."""
    sys.stdin.read()
    os._exit(1)


def main():
    arguments = own_arguments()
    wear_face(arguments)
    if arguments.test_hooks:
        threading.Thread(target=leave_with_parent, daemon=True).start()
    sys.stdout.reconfigure(line_buffering=True)

    from modules import shared  # preload.py of the extensions runs here
    from modules.shared_cmd_options import cmd_opts

    if not cmd_opts.skip_install:
        from modules import launch_utils

        launch_utils.run_extensions_installers()
    import devhost_face

    from modules import processing  # noqa: F401  as in the hosts, before any thread starts

    if arguments.optimization is not None:
        shared.opts.data["cross_attention_optimization"] = arguments.optimization
    devhost_face.start()
    model_thread = initialize_rest()
    if arguments.once:
        draw_once(arguments, model_thread)
    else:
        serve(arguments)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # gradio's threads would keep the process
