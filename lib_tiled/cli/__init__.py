"""The commands of `python -m lib_tiled`: each module has `add_arguments(parser)` and `run(args) -> exit code`."""
