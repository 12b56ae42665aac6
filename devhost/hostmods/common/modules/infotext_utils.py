"""All hosts: the text under a picture, "prompt / Negative prompt: ... / Steps: 12, Seed: 1, ...", and its reading."""

import json
import re

_parameter = re.compile(r'\s*(\w[\w \-/]+):\s*("(?:\\.|[^\\"])+"|[^,]*)(?:,|$)')


def quote(text):
    return json.dumps(str(text), ensure_ascii=False) if re.search(r'[,\n:]', str(text)) else text


def unquote(text):
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def parse_generation_parameters(text):
    """The text's parameters as {"Prompt": ..., "Negative prompt": ..., "Steps": "12", ...}."""
    *lines, last = text.strip().split("\n")
    if len(_parameter.findall(last)) < 3:
        lines, last = [*lines, last], ""
    prompt, _, negative = "\n".join(lines).partition("Negative prompt:")
    found = {key: unquote(value) for key, value in _parameter.findall(last)}
    if re.fullmatch(r"\d+x\d+", found.get("Size", "")):
        found["Size-1"], found["Size-2"] = found["Size"].split("x")
    return {"Prompt": prompt.strip(), "Negative prompt": negative.strip(), **found}
