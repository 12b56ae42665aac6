"""torch's and xformers' own explanations, condensed to a few plain words."""

from __future__ import annotations

import re

_DTYPES = {"Half": "fp16", "BFloat16": "bf16", "Float": "fp32", "Double": "fp64"}


def _dtypes(match: re.Match) -> str:
    return "takes only " + ", ".join(_DTYPES.get(name.strip(), name.strip()) for name in match[1].split(","))


def _architecture(match: re.Match) -> str:
    return f"not built for {match[1].partition(':')[0].rstrip('.')}"


# What a warning or error says -> what the user reads. The first that matches counts; the order is from what the
# build lacks over what the GPU lacks to what the call lacks.
_SDPA = (
    (r"not compiled with", "torch was built without it"),
    (r"not compiled for current AMD GPU.*?on architecture (\S+)", _architecture),
    (r"ENABLE_EXPERIMENTAL", "experimental on this GPU, needs TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1"),
    (r"range \[(?:sm_?)(\d+), (?:sm_?)(\d+)\].*? sm (\d+)\.(\d+)", r"needs sm_\1 to sm_\2, this is sm_\3\4"),
    (r"all be of dtype: \{([^}]*)\}", _dtypes),
    (r"(?:less than or equal to|less or equal than|no more than) (\d+)", r"takes head dimensions up to \1"),
    (r"last dimension.*divisible by (\d+)", r"takes head dimensions divisible by \1"),
    (r"(?:cudnn.*or higher|cuDNN version too old)", "cuDNN is too old"),
    (r"runtime disabled", "switched off in this process"),
)
_ERRORS = (
    (r"no kernel image|invalid device function|device kernel image is invalid", "its binary does not fit this GPU"),
    (r"out of memory", "out of memory"),
    (r"not implemented for '(\w+)'", lambda match: f"not implemented for {_DTYPES.get(match[1], match[1])}"),
)
_HEADER = re.compile(r"(Memory efficient|Flash attention|cuDNN attention) kernel not used because")
_SECTIONS = {"sdp:mem-efficient": "Memory efficient", "sdp:flash": "Flash attention", "sdp:cudnn": "cuDNN attention"}


def _first_match(table, text: str) -> str | None:
    for pattern, words in table:
        match = re.search(pattern, text, re.IGNORECASE | re.DOTALL)
        if match:
            return words(match) if callable(words) else match.expand(words)
    return None


def first_line(error: BaseException | str, limit: int = 120) -> str:
    """The first line of an error, at most `limit` characters."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text if len(text) <= limit else text[: limit - 3].rstrip() + "..."


def of_error(error: BaseException) -> str:
    """An error that a kernel or a device raised, in a few words."""
    return _first_match(_ERRORS, str(error)) or first_line(error)


def of_sdpa(kernel: str, error: BaseException, warnings: list[str], device_type: str) -> str:
    """Why SDPA refused `kernel`, from the warnings it gave and the error it raised.

    torch explains the three fused kernels one after the other, each under its header; those that were not asked
    for are "runtime disabled".
    """
    own, section = [], None
    for text in warnings:
        header = _HEADER.search(text)
        if header:
            section = header[1]
        elif section is None or section == _SECTIONS.get(kernel):
            own.append(text)
    for text in own:
        words = _first_match(_SDPA, text)
        if words:
            return words
    if own:
        return first_line(own[0].partition(" (Triggered internally")[0])
    if re.search(r"No (viable backend|available kernel)", str(error)):
        return f"torch has none for {device_type}"
    return of_error(error)


_XFORMERS = (
    (r"operator wasn't built", "not built"),
    (r"device=(\w+) \(supported", r"not for \1"),
    (r"dtype=torch\.(\w+) \(supported", r"not for \1"),
    (r"capability >=? \((\d+), (\d+)\)", r"needs sm_\1\2"),
    (r"capability <=? \((\d+), (\d+)\)", r"not for GPUs newer than sm_\1\2"),
    (r"max\(query.shape\[-1\].*> (\d+)", r"head dimensions up to \1"),
)


def of_xformers(error: BaseException) -> str:
    """xformers' refusal in one line: "found no operator (ckF: not for cpu, not built)"."""
    if "No operator found" not in str(error):
        return of_error(error)
    operators: dict[str, list[str]] = {}  # what is the matter -> the operators that say so
    for name, text in re.findall(r"`([^`\n]+)` is not supported because:\n((?:    .*(?:\n|$))+)", str(error)):
        lines = [line.strip() for line in text.splitlines()]
        words = dict.fromkeys(_first_match(_XFORMERS, line) or first_line(line, 60) for line in lines)
        operators.setdefault(", ".join(words), []).append(name)
    found = "; ".join(f"{', '.join(names)}: {words}" for words, names in operators.items())
    return f"found no operator ({found})" if found else "found no operator"
