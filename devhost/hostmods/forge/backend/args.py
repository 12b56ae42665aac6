"""Forge: its own view of the command line."""

from modules.shared_cmd_options import cmd_opts as args  # noqa: F401
