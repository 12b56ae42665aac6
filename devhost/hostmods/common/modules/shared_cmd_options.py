"""All hosts: the command line. preload.py of the extensions runs on the parser before it parses."""

import argparse

import devhost
from modules import script_loading

parser = argparse.ArgumentParser(prog="devhost")
parser.add_argument("--port", type=int, default=None)
parser.add_argument("--api", action="store_true")
parser.add_argument("--api-auth", default=None, help='"user:password" for every API call')
parser.add_argument("--api-server-stop", action="store_true")
parser.add_argument("--gradio-auth", default=None)
parser.add_argument("--loglevel", default=None)
parser.add_argument("--skip-install", action="store_true")
parser.add_argument("--xformers", action="store_true")
parser.add_argument("--force-enable-xformers", action="store_true")
for option in ("opt-split-attention", "opt-split-attention-invokeai", "opt-split-attention-v1",
               "opt-sub-quad-attention", "opt-sdp-attention", "opt-sdp-no-mem-attention",
               "disable-opt-split-attention"):
    parser.add_argument(f"--{option}", action="store_true")
forge_attention = parser.add_mutually_exclusive_group()
for option in ("attention-split", "attention-quad", "attention-pytorch"):
    forge_attention.add_argument(f"--{option}", action="store_true")
parser.add_argument("--disable-attention-upcast", action="store_true")
parser.add_argument("--force-upcast-attention", action="store_true")

script_loading.preload_extensions(devhost.extensions, parser)
cmd_opts = parser.parse_args()
