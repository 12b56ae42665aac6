"""All hosts: how an exception is shown. `report` is what an extension's failing callback ends in."""

import sys
import textwrap
import traceback


def report(message, *, exc_info=False):
    for line in str(message).splitlines():
        print("***", line, file=sys.stderr)
    if exc_info:
        print(textwrap.indent(traceback.format_exc(), "    "), file=sys.stderr)
        print("---", file=sys.stderr)


def display(e, task, *, full_traceback=False):
    print(f"{task or 'error'}: {type(e).__name__}", file=sys.stderr)
    print("".join(traceback.format_exception(type(e), e, e.__traceback__)), file=sys.stderr)
