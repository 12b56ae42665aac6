"""Command-line arguments of the extension. Run by the WebUI before any script."""


def preload(parser):
    parser.add_argument(
        "--opt-tiled-attention",
        action="store_true",
        help="prefer Tiled (no-flash) when the cross attention optimization is Automatic",
    )
