"""`python -m lib_tiled doctor | bench | tune`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

COMMANDS = {
    "doctor": "what this device can run, and why not the rest",
    "bench": "time and memory of each attention kernel on this device",
    "tune": "measure this device once and keep the best tile sizes",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; 0 on success, 1 on an error, 2 on arguments that do not fit."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m lib_tiled", description="Tiled (no-flash) attention")
    commands = parser.add_subparsers(dest="command", required=True, metavar="doctor | bench | tune")
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if name in arguments:  # only the command that is asked for is loaded
            module = importlib.import_module(f".cli.{name}", __package__)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    args = parser.parse_args(arguments)
    return args.run(args)


if __name__ == "__main__":
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader went away, as `head` does; the rest has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
