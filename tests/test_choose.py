"""Which kernel an option leads to: the decision table, and what the hosts ask besides."""

import pytest
import torch
from attention_reference import needs_sdpa

from lib_tiled.backends import choose
from lib_tiled.backends.choose import Decision, advice, backend_of, priority
from lib_tiled.device import pretend, trial
from lib_tiled.device import probe as probe_module
from lib_tiled.device.probe import probe
from lib_tiled.device.result import DIMS, DTYPES, FUSED, Probe, Support

pytestmark = needs_sdpa  # the table is for a torch that has it

NO_GFX906 = "gfx906 runs no fused kernel (xformers not installed; SDPA: math only)"
OFF_GFX906 = "gfx906 runs no fused kernel (xformers switched off by the WebUI; SDPA: math only)"
BAD_GFX906 = "gfx906 runs no fused kernel (xformers 0.0.35 found no operator; SDPA: math only)"
NO_GFX1030 = "gfx1030 runs no fused kernel (xformers not installed; SDPA: math only)"
NO_MEM_61 = "without memory-efficient attention sm_61 runs only math SDPA"

# xformers: "no" not installed, "off" switched off by the host, "yes" installed. On "this CPU" it is the real one,
# which imports and then finds no operator.
TABLE = f"""
| device   | xformers | option           | runs          | because
| gfx906   | no       | Automatic        | tiled         | {NO_GFX906}
| gfx906   | off      | Automatic        | tiled         | {OFF_GFX906}
| gfx906   | yes      | Automatic        | tiled         | {BAD_GFX906}
| gfx906   | no       | Tiled (no-flash) | tiled         |
| gfx906   | no       | xformers         | tiled         | xformers not installed
| gfx906   | off      | xformers         | tiled         | xformers switched off by the WebUI
| gfx906   | yes      | xformers         | tiled         | xformers 0.0.35 found no operator
| gfx906   | no       | sdp              | tiled         | {NO_GFX906}
| gfx906   | no       | sdp-no-mem       | tiled         | {NO_GFX906}
| gfx906   | no       | Doggettx         | Doggettx      |
| gfx906   | no       | sub-quadratic    | sub-quadratic |
| gfx906   | no       | InvokeAI         | InvokeAI      |
| gfx906   | no       | V1               | V1            |
| gfx906   | no       | None             | basic         |
| gfx1030  | no       | Automatic        | tiled         | {NO_GFX1030}
| gfx1030  | no       | sdp              | tiled         | {NO_GFX1030}
| gfx908   | no       | Automatic        | tiled         | {NO_GFX1030.replace("gfx1030", "gfx908")}
| gfx1200  | no       | Automatic        | tiled         | {NO_GFX1030.replace("gfx1030", "gfx1200")}
| gfx1201  | no       | Automatic        | host          |
| gfx1201  | no       | sdp              | sdp           |
| gfx1201  | yes      | xformers         | tiled         | xformers 0.0.35 found no operator
| gfx90a   | yes      | xformers         | xformers      |
| sm_61    | no       | Automatic        | host          |
| sm_61    | no       | sdp              | sdp           |
| sm_61    | no       | sdp-no-mem       | tiled         | {NO_MEM_61}
| sm_61    | yes      | xformers         | xformers      |
| sm_61    | no       | Doggettx         | Doggettx      |
| sm_86    | no       | Automatic        | host          |
| sm_86    | no       | sdp-no-mem       | sdp-no-mem    |
| sm_86    | no       | Tiled (no-flash) | tiled         |
| sm_86    | no       | xformers         | tiled         | xformers not installed
| this CPU | no       | Automatic        | host          |
| this CPU | no       | sdp              | sdp           |
| this CPU | no       | InvokeAI         | InvokeAI      |
| this CPU | no       | xformers         | tiled         | xformers not installed
| this CPU | off      | xformers         | tiled         | xformers switched off by the WebUI
| this CPU | yes      | xformers         | tiled         | xformers VERSION found no operator
| this CPU | yes      | Automatic        | host          |
"""
LINES = TABLE.strip().splitlines()[1:]
TITLES = {
    "sdp": "sdp - scaled dot product",
    "sdp-no-mem": "sdp-no-mem - scaled dot product without memory efficient attention",
    "V1": "V1 - original v1",
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(probe_module, "_cache", {})
    monkeypatch.delenv("TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL", raising=False)
    monkeypatch.delenv(pretend.VARIABLE, raising=False)


@pytest.fixture
def device(monkeypatch):
    """device("gfx906", xformers="no") -> Probe, in the way a user gets it: by the environment."""

    def make(name, xformers="no"):
        if name != "this CPU":
            monkeypatch.setenv(pretend.VARIABLE, name)
        elif xformers == "yes":
            pytest.importorskip("xformers", reason="xformers is not installed")
            return probe("cpu")
        missing = {"no": "not installed", "off": "switched off by the WebUI (start it with --xformers)", "yes": ""}
        monkeypatch.setattr(trial, "xformers_missing", lambda: missing[xformers])
        monkeypatch.setattr(trial, "xformers_version", lambda: "0.0.35" if xformers == "yes" else "")
        return probe("cpu")

    return make


def cells_of(line):
    return [cell.strip() for cell in line.split("|")[1:]]


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(cells_of(line)[:3]))
def test_decision_table(device, line):
    name, xformers, option, runs, because = cells_of(line)
    found = device(name, xformers)
    because = because.replace("VERSION", found.versions.get("xformers", ""))
    assert choose.choose(TITLES.get(option, option), found) == Decision(runs, because)


@pytest.mark.parametrize("line", LINES, ids=lambda line: " ".join(cells_of(line)[:3]))
def test_with_the_setting_to_leave_choices_alone(device, line):
    """Automatic is as before; an explicit choice stays, and where it has no kernel the reason says what to expect."""
    name, xformers, option, runs, because = cells_of(line)
    found = device(name, xformers)
    decision = choose.choose(TITLES.get(option, option), found, policy="leave")
    replaced = choose.choose(TITLES.get(option, option), found)
    if option == "Automatic":
        assert decision == replaced
    else:
        assert decision.backend == backend_of(option)
        if replaced.backend != decision.backend:
            expected = "generating will fail" if option == "xformers" else "memory for all scores at once"
            assert replaced.reason in decision.reason and expected in decision.reason
        else:
            assert decision.reason == ""


def test_the_flag_wins_over_automatic_and_over_nothing_else(device):
    found = device("sm_86")
    assert choose.choose("Automatic", found, forced=True) == Decision("tiled", "--opt-tiled-attention")
    assert choose.choose("Doggettx", found, forced=True) == Decision("Doggettx")


def test_automatic_whose_own_choice_has_no_kernel(device):
    """Forge takes xformers wherever it can be imported."""
    found = device("sm_86", "no")
    assert choose.choose("Automatic", found, host_default="attention_pytorch") == Decision("host")
    assert choose.choose("Automatic", found, host_default="attention_sub_quad") == Decision("host")
    assert choose.choose("Automatic", found, host_default="attention_xformers") == Decision(
        "tiled", "xformers not installed"
    )
    assert choose.choose("Automatic", found, "leave", host_default="xformers").backend == "xformers"


def test_xformers_that_runs_but_was_not_enabled(device):
    """gfx90a with xformers and SDPA; then a device that has xformers alone."""
    found = device("gfx90a", "yes")
    without = ("xformers",)
    assert choose.choose("Automatic", found, without=without) == Decision("host")
    assert choose.choose("xformers", found, without=without) == Decision(
        "tiled", "the WebUI was started without xformers"
    )
    alone = only("xformers")
    assert choose.choose("Automatic", alone).backend == "host" and priority(alone) < 70
    assert priority(alone, without) > 1000
    assert choose.choose("Automatic", alone, without=without) == Decision(
        "tiled", "gfx000 runs xformers alone, and the WebUI was started without it"
    )


def only(*kernels, runs_at=DIMS):
    """A device that runs math and `kernels`, at the head dimensions `runs_at`."""
    def table(kernel):
        at = runs_at if kernel in kernels else DIMS if kernel == "sdp:math" else ()
        return {(dtype, dim): Support(dim in at, "" if dim in at else "no") for dtype in DTYPES for dim in DIMS}

    return Probe("cuda:0", "card", "gfx000", {kernel: table(kernel) for kernel in (*FUSED, "sdp:math")}, {})


@pytest.mark.parametrize("kernel", FUSED)
def test_each_fused_kernel_is_enough_for_automatic(kernel):
    assert choose.choose("Automatic", only(kernel)) == Decision("host")
    assert choose.choose("Automatic", only()).backend == "tiled"


def test_a_kernel_that_runs_at_no_head_dimension_of_a_unet_is_none():
    """Flash for D = 128 alone helps no UNet."""
    assert choose.choose("Automatic", only("sdp:flash", runs_at=(128, 512))).backend == "tiled"
    assert choose.choose("sdp", only("sdp:flash", runs_at=(64,))).backend == "sdp"


@pytest.mark.parametrize(
    "option, backend",
    [
        ("Tiled (no-flash)", "tiled"),
        ("sdp - scaled dot product", "sdp"),
        ("sdp-no-mem - scaled dot product without memory efficient attention", "sdp-no-mem"),
        ("attention_pytorch", "sdp"),
        ("attention_sub_quad", "sub-quadratic"),
        ("attention_split", "split"),
        ("attention_basic", "basic"),
        ("V1 - original v1", "V1"),
        (" DOGGETTX ", "Doggettx"),
        ("Tiled VAE", ""),
        ("SageAttention", ""),
        ("", ""),
    ],
)
def test_names(option, backend):
    assert backend_of(option) == backend
    if not backend:  # somebody else's
        assert choose.choose(option, only()) == Decision("host")


def test_sdp_on_a_device_that_runs_xformers_alone():
    assert choose.choose("sdp", only("xformers")) == Decision("tiled", "SDPA on gfx000: math only")
    assert choose.choose("xformers", only("xformers")) == Decision("xformers")


def test_priority_in_a1111s_list(device):
    """Above InvokeAI and sub-quadratic (1000) where nothing fused runs, else under sdp (70) and over the rest (10)."""
    assert priority(device("gfx906")) > 1000
    assert priority(device("gfx906", "yes")) > 1000
    assert 10 < priority(device("sm_61")) < 70


def test_priority_on_this_cpu(device):
    assert 10 < priority(device("this CPU")) < 70
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        assert priority(device("this CPU")) > 1000  # a CPU without fused attention, against InvokeAI's 1000
    finally:
        torch.backends.cuda.enable_flash_sdp(True)


@pytest.mark.parametrize(
    "name, host, default, text",
    [
        ("this CPU", "AUTOMATIC1111", "InvokeAI", "Automatic takes InvokeAI, but this CPU runs sdp:flash: choose "
         '"sdp - scaled dot product" in Settings > Optimizations to use it.'),
        ("sm_86", "AUTOMATIC1111", "Doggettx", "Automatic takes Doggettx, but sm_86 runs sdp:flash: choose "
         '"sdp - scaled dot product" in Settings > Optimizations to use it.'),
        ("this CPU", "reForge", "sub-quadratic", "Automatic takes sub-quadratic, but this CPU runs sdp:flash: "
         'choose "sdp" in Settings > Optimizations to use it.'),
        ("sm_86", "AUTOMATIC1111", "sdp", None),
        ("sm_86", "AUTOMATIC1111", "xformers", None),
        ("sm_86", "AUTOMATIC1111", "Tiled (no-flash)", None),
        ("sm_86", "AUTOMATIC1111", "SageAttention", None),
        ("gfx906", "AUTOMATIC1111", "Doggettx", None),
    ],
)
def test_advice(device, name, host, default, text):
    assert advice(default, device(name), host) == text


def test_advice_where_xformers_alone_runs():
    text = advice("Doggettx", only("xformers"), "AUTOMATIC1111")
    assert text == "Automatic takes Doggettx, but gfx000 runs xformers: start the WebUI with --xformers."
    assert advice("Doggettx", only("xformers"), "AUTOMATIC1111", without=("xformers",)) is None


def test_a_device_that_could_not_be_probed_gets_tiled():
    """Whatever is wrong with it, nothing fused was seen to run, and nothing is raised."""
    decision = choose.choose("Automatic", probe("no such device"))
    assert decision.backend == "tiled" and decision.reason.startswith("no such device runs no fused kernel")
