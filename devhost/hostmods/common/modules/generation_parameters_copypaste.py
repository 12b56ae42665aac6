"""All hosts: the older name of `modules.infotext_utils`."""

from modules.infotext_utils import *  # noqa: F401,F403
