"""The documents: both READMEs say the same, what they name exists, and files stay readable in one sitting."""

import ast
import re
from pathlib import Path

import pytest
import torch

import lib_tiled
from lib_tiled.backends.policy import SMALL_CALL_SCORES
from lib_tiled.device.facts import GFX906, MIB, facts
from lib_tiled.kernel import plan
from lib_tiled.report.generation import Generation
from lib_tiled.report.line import line

ROOT = Path(__file__).resolve().parent.parent
ENGLISH, JAPANESE = "README.md", "README.ja.md"
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").rglob("*.md"))
)


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def code_blocks(text):
    return re.findall(r"^```.*?^```$", text, re.MULTILINE | re.DOTALL)


def prose(text):
    """The text without its code blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def headings(text):
    return re.findall(r"^(#+) (.+)$", prose(text), re.MULTILINE)


def links(text):
    """Targets of links and images, in order."""
    return re.findall(r"\]\(([^)\s]+)\)", prose(text)) + re.findall(r'(?:src|href)="([^"]+)"', prose(text))


def anchor(heading):
    """The fragment that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def figures(text):
    """What stands between the markers of the measured figures."""
    return re.search(r"<!-- figures -->\n(.*?)<!-- /figures -->", text, re.DOTALL)[1]


def numbers(text):
    return re.findall(r"\d+(?:[.,]\d+)*", text)


def settings():
    """The extension's settings: key -> (default, label, component, arguments). Read, as importing wants a WebUI."""
    constants = {}
    for node in ast.parse(read("lib_tiled/webui/settings.py")).body:
        if not isinstance(node, ast.Assign):
            continue
        target = node.targets[0]
        if isinstance(target, ast.Tuple):
            values = [ast.literal_eval(value) for value in node.value.elts]
            constants |= dict(zip((name.id for name in target.elts), values))
        elif target.id == "SECTION":
            constants["SECTION"] = ast.literal_eval(node.value)
        elif target.id == "_SETTINGS":
            constants["kernel_options"] = lib_tiled.kernel.options
            expression = ast.Expression(node.value)
            constants["_SETTINGS"] = eval(compile(expression, "settings.py", "eval"), constants)
    return constants["_SETTINGS"], constants["SECTION"]


# -- the two READMEs --------------------------------------------------------------------------------------------------


def test_headings_have_the_same_structure():
    assert [level for level, _ in headings(read(JAPANESE))] == [level for level, _ in headings(read(ENGLISH))]


def test_code_is_the_same():
    english, japanese = read(ENGLISH), read(JAPANESE)
    assert code_blocks(japanese) == code_blocks(english)
    spans = [set(re.findall(r"`[^`\n]+`", prose(text))) for text in (english, japanese)]
    assert not spans[0] - spans[1]


def test_links_and_pictures_are_the_same():
    def outside(name, other):
        return [target for target in links(read(name)) if not target.startswith("#") and target != other]

    assert outside(JAPANESE, ENGLISH) == outside(ENGLISH, JAPANESE)
    inside = [sum(target.startswith("#") for target in links(read(name))) for name in (ENGLISH, JAPANESE)]
    assert inside[0] == inside[1]
    assert ENGLISH in links(read(JAPANESE)) and JAPANESE in links(read(ENGLISH))


def test_measured_figures_are_the_same():
    english, japanese = figures(read(ENGLISH)), figures(read(JAPANESE))
    assert numbers(japanese) == numbers(english)
    shapes = [[row.count("|") for row in text.splitlines() if row.startswith("|")] for text in (english, japanese)]
    assert shapes[0] == shapes[1]


def test_other_figures_are_the_same():
    long = [{n for n in numbers(prose(read(name))) if len(n) > 1} for name in (ENGLISH, JAPANESE)]
    assert long[0] == long[1]


def test_tables_have_the_same_shape():
    rows = [[row.count("|") for row in read(name).splitlines() if row.startswith("|")] for name in (ENGLISH, JAPANESE)]
    assert rows[0] == rows[1]


# -- what they name exists --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name):
    for target in links(read(name)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, fragment = target.partition("#")
        path = (ROOT / name).parent / file if file else ROOT / name
        assert path.exists(), f"{name} links to {target}"
        if fragment:
            there = {anchor(heading) for _, heading in headings(path.read_text(encoding="utf-8"))}
            assert fragment in there, f"{name} links to {target}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_document_names_a_folder_of_the_machine_it_was_written_on(name):
    assert not re.search(r"(?<![\w.])/(?:work|home|root|tmp)/", read(name))


@pytest.mark.parametrize("name", [ENGLISH, JAPANESE])
def test_the_two_commands(name):
    blocks = "\n".join(code_blocks(read(name)))
    for command in ("demo", "test"):
        assert f"python dev.py {command}\n" in blocks
        assert f'"{command}": {command}' in read("dev.py")


@pytest.mark.parametrize("name", [ENGLISH, JAPANESE])
def test_settings_are_those_of_the_settings_page(name):
    known, (_, title) = settings()
    text = read(name)
    assert f"**Settings > {title}**" in text
    rows = dict(re.findall(r"^\| `(tiled_\w+)` \| ([^|]+) \|", text, re.MULTILINE))
    assert list(rows) == list(known)
    assert set(re.findall(r"`(tiled_\w+)`", text)) - {"tiled_"} == set(known)
    for key, (default, _, _, arguments) in known.items():
        shown = {True: "on", False: "off"}.get(default, default) if isinstance(default, bool) else default
        assert f"**{shown}**" in rows[key], f"{key} has the default {shown}"
        for choice in (*arguments.get("choices", ()), *(arguments[k] for k in ("maximum",) if k in arguments)):
            assert str(choice) in rows[key], f"{key} can be {choice}"


def test_labels_are_those_of_the_page():
    text = read(ENGLISH)
    for label, source in {
        "Cross attention optimization": "lib_tiled/webui/settings.py",
        "Copy report": "lib_tiled/webui/tab.py",
        "Benchmark this GPU": "lib_tiled/webui/tab.py",
        "Tune": "lib_tiled/webui/tab.py",
        "Tiled (no-flash)": "lib_tiled/hosts/base.py",
        "--opt-tiled-attention": "preload.py",
    }.items():
        assert label in text and f'"{label}"' in read(source)
    assert "Copy report" in read(".github/ISSUE_TEMPLATE/bug_report.yml")


def test_messages_to_look_for_are_ones_the_code_gives():
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "lib_tiled").rglob("*.py"))
    sources += read("scripts/tiled_attention.py")
    for message in (
        "non-finite attention output in fp16",
        "the option was changed but not applied yet",
        "out of memory in tiled attention",
        "[Tiled] not loaded",
        "not active",
    ):
        assert message in read(ENGLISH) and message in sources


def test_routes_are_those_of_the_api():
    source = read("lib_tiled/webui/api.py")
    prefix = re.search(r'PREFIX = "([^"]+)"', source)[1]
    named = re.findall(r"`GET ([^`]+)`", read(ENGLISH))
    assert named
    for route in named:
        assert route.startswith(f"{prefix}/") and f'"{route.removeprefix(prefix + "/")}"' in source


def examples(name):
    """The lines of generations that a document shows, in blocks of code and in cells of tables."""
    text = read(name).replace("\\|", "|")
    return re.findall(r"(?:^|`)\[Tiled\] ((?:txt2img|img2img|inpaint) [^`\n]+)", text, re.MULTILINE)


def test_there_are_example_lines():
    assert len(examples("docs/log.md")) > 20 and len(examples(ENGLISH)) == len(examples(JAPANESE)) > 1


@pytest.mark.parametrize("name", DOCUMENTS)
def test_example_lines_are_ones_that_could_be_printed(name):
    """Each example, taken apart and put together by the code that prints lines."""
    for example in examples(name):
        what, *parts = example.split(" | ")
        generation = Generation(what=what)
        for part in parts:
            place, colon, kernels = part.partition(": ")
            if colon and place in ("unet", "vae", "text", "other"):
                for kernel, count in re.findall(r"(\S+) x(\d+)", kernels):
                    generation.counts[place, kernel] = int(count)
            else:
                generation.choice, _, reason = part.partition(": ")
                generation.note(reason)
        assert line(generation) == example


def test_limits_are_those_of_the_code():
    assert f"{SMALL_CALL_SCORES:,} scores" in read(ENGLISH)
    kernel = read("docs/kernel.md")
    cpu = facts(torch.device("cpu"))
    assert f"{cpu.scratch_bytes // MIB} MiB of scores on a CPU and {GFX906.scratch_bytes // MIB} MiB on a GPU" in kernel
    assert f"at least {plan.MIN_ROWS} rows" in kernel and f"from {plan.BOUNDED_FROM_KEYS} keys on" in kernel


def test_the_benchmark_page_names_every_method():
    from lib_tiled.cli.methods import METHODS

    rows = "".join(re.findall(r"^\| (`[^|]+) \|", read("docs/benchmark.md"), re.MULTILINE))
    assert re.findall(r"`([^`]+)`", rows) == list(METHODS)


def test_the_changelog_has_this_version():
    assert f"## [{lib_tiled.__version__}]" in read("CHANGELOG.md")


# -- files that can be read in one sitting ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern, most", [("scripts/*.py", 99), ("lib_tiled/kernel/*.py", 250), ("lib_tiled/hosts/*.py", 250)]
)
def test_files_are_short(pattern, most):
    files = sorted(ROOT.glob(pattern))
    assert files
    for path in files:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= most, f"{path.relative_to(ROOT)} has {lines} lines"


def test_the_design_names_every_floor():
    floors = {path.parent.name for path in (ROOT / "lib_tiled").glob("*/__init__.py")}
    assert floors == set(re.findall(r"^\| `(\w+)/` \|", read("docs/design.md"), re.MULTILINE))
