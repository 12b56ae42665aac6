"""The probe: what it finds on this machine, what it says where something is missing, what it leaves alone."""

import importlib
import json
import subprocess
import sys
import threading
import time
import warnings

import pytest
import torch
from attention_reference import HAS_SDPA, needs_sdpa

import lib_tiled
from lib_tiled.device import architectures, pretend, reasons, trial
from lib_tiled.device import probe as probe_module
from lib_tiled.device.probe import probe
from lib_tiled.device.result import DIMS, DTYPES, FUSED, Probe, Support

CPU = torch.device("cpu")


def multiplied(dtype):
    """Whether this torch multiplies matrices of `dtype` on a CPU; torch 2.1 has no such fp16."""
    q = torch.ones(1, 2, 2, dtype=getattr(torch, dtype))
    try:
        return torch.bmm(q, q) is not None
    except RuntimeError:
        return False


COMPUTED = [dtype for dtype in DTYPES if multiplied(dtype)]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No answer of an earlier test, and no pretending unless the test asks for it."""
    monkeypatch.setattr(probe_module, "_cache", {})
    monkeypatch.delenv(pretend.VARIABLE, raising=False)
    monkeypatch.delenv(architectures.EXPERIMENTAL, raising=False)


@pytest.fixture
def no_xformers(monkeypatch):
    monkeypatch.setattr(trial, "xformers_missing", lambda: "not installed")
    monkeypatch.setattr(trial, "xformers_version", lambda: "")


@pytest.fixture
def xformers_installed(monkeypatch):
    """As far as pretended devices are concerned."""
    monkeypatch.setattr(trial, "xformers_missing", lambda: "")
    monkeypatch.setattr(trial, "xformers_version", lambda: "0.0.35")


def texts_of(found, kernel):
    return {support.reason for support in found.kernels[kernel].values()}


# -- this machine -----------------------------------------------------------------------------------------------------


def test_every_kernel_dtype_and_dimension_is_answered():
    found = lib_tiled.probe("cpu")
    assert set(found.kernels) == {"sdp:flash", "sdp:mem-efficient", "sdp:cudnn", "sdp:math", "xformers"}
    for kernel, table in found.kernels.items():
        assert set(table) == {(dtype, dim) for dtype in DTYPES for dim in DIMS}
        assert all(support.runs != bool(support.reason) for support in table.values()), kernel


@needs_sdpa
def test_the_cpu_runs_flash_and_math_and_says_why_not_the_others(no_xformers):
    found = probe("cpu")
    assert found.fused() == ("sdp:flash",)
    for kernel in ("sdp:flash", "sdp:math"):
        assert all(found.runs(kernel, dtype, dim) for dtype in COMPUTED for dim in DIMS)
    assert found.why_not("sdp:mem-efficient") == "torch has none for cpu"
    assert found.why_not("sdp:flash") == ""
    assert found.summary() == "this CPU runs sdp:flash"


@needs_sdpa
@pytest.mark.parametrize("dtype", COMPUTED)
@pytest.mark.parametrize("dim", DIMS)
def test_the_probe_agrees_with_what_torch_chooses(dtype, dim):
    q = torch.zeros(1, 2, 8, dim, dtype=getattr(torch, dtype))
    chosen = {0: "sdp:math", 1: "sdp:flash"}[int(torch._fused_sdp_choice(q, q, q))]
    assert probe("cpu").runs(chosen, dtype, dim)


def test_identity_of_this_machine():
    found = probe("cpu")
    assert (found.device, found.architecture, found.pretended, found.override) == ("cpu", "cpu", False, "")
    assert found.versions["torch"] == torch.__version__
    assert found.bf16_matmul.runs
    if sys.platform == "linux":
        assert found.memory_bytes > 1 << 30 and found.name


def test_it_is_cheap():
    """In processor time: other processes may be using the machine."""
    probe("cpu")  # loads xformers
    seconds = []
    for _ in range(3):
        probe_module._cache.clear()
        started = time.process_time()
        assert probe("cpu").seconds > 0
        seconds.append(time.process_time() - started)
    assert min(seconds) < 1


def test_once_per_device_also_from_several_threads(monkeypatch):
    calls = []
    original = trial.try_kernels
    monkeypatch.setattr(trial, "try_kernels", lambda *args: calls.append(args) or original(*args))
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(probe("cpu"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert len(answers) == 4 and all(answer is answers[0] for answer in answers)


def test_nothing_is_left_changed():
    def state():
        return (torch.get_rng_state().tolist(), torch.is_grad_enabled(), trial.switches(),
                torch.is_warn_always_enabled(), torch.get_num_threads(), list(warnings.filters))

    before = state()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        inside = list(warnings.filters)
        probe("cpu")
        assert list(warnings.filters) == inside
    assert state() == before
    assert [w for w in caught if "torch" in w.filename] == []


@needs_sdpa
def test_autocast_and_gradients_of_the_caller_do_not_matter(monkeypatch):
    seen = set()
    original = trial._run_sdpa

    def run(kernel, q, k, v):
        out = original(kernel, q, k, v)
        seen.add((q.dtype, out.dtype, torch.is_grad_enabled()))
        return out

    monkeypatch.setattr(trial, "_run_sdpa", run)
    with torch.enable_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        probe("cpu")
    assert seen == {(getattr(torch, dtype), getattr(torch, dtype), False) for dtype in COMPUTED}


@needs_sdpa
def test_a_patched_sdpa_is_not_asked(monkeypatch):
    def patched(*args, **kwargs):
        raise AssertionError("the probe must call torch itself")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", patched)
    assert probe("cpu").runs("sdp:flash")


@needs_sdpa
def test_switches_of_this_process_count_and_are_not_remembered():
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        off = probe("cpu")
    finally:
        torch.backends.cuda.enable_flash_sdp(True)
    assert off.why_not("sdp:flash") == "switched off in this process"
    assert off.fused() == ()
    assert probe("cpu").runs("sdp:flash")


# -- devices that fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "xpu", "mps", "meta", "privateuseone", "no such device"])
def test_a_device_that_cannot_be_used_is_described(device):
    kind = device.partition(":")[0]
    here = {"cuda": torch.cuda.is_available, "mps": lambda: torch.backends.mps.is_available(),
            "xpu": lambda: hasattr(torch, "xpu") and torch.xpu.is_available()}
    if here.get(kind, lambda: False)():
        pytest.skip(f"this machine has {kind}")
    found = probe(device)
    assert found.fused() == ()
    assert not found.runs("sdp:math")
    assert found.notes[0].startswith("the device cannot be used: ")
    assert "\n" not in found.notes[0]
    assert str(found) and json.dumps(found.to_dict())


def test_no_other_device_is_started(monkeypatch):
    """CPU asked for, GPU in the machine, xformers not loaded yet: importing it would start the GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(trial, "xformers_missing", lambda: "")
    monkeypatch.delitem(sys.modules, "xformers.ops", raising=False)
    assert trial.load_xformers(CPU).startswith("not tried (loading it would start the GPU")
    assert "xformers.ops" not in sys.modules


@needs_sdpa
@pytest.mark.parametrize(
    "problem, reason",
    [
        (RuntimeError("HIP error: invalid device function\nCompile with TORCH_USE_HIP_DSA"),
         "its binary does not fit this GPU"),
        (RuntimeError("CUDA error: no kernel image is available for execution"), "its binary does not fit this GPU"),
        (RuntimeError("HIP out of memory. Tried to allocate 20.00 MiB"), "out of memory"),
        (OSError("the driver\nwent away"), "the driver"),
        (ZeroDivisionError(), "ZeroDivisionError"),
    ],
)
def test_what_a_kernel_raises_becomes_a_reason(monkeypatch, no_xformers, problem, reason):
    def run(kernel, q, k, v):
        raise problem

    monkeypatch.setattr(trial, "_run_sdpa", run)
    found = probe("cpu")
    assert texts_of(found, "sdp:flash") == {reason}
    assert (probe("cpu") is found) == (reason != "out of memory")  # a full card may be empty the next time


@pytest.mark.parametrize("value", [0.0, 3.0, float("nan"), float("inf")])
def test_a_kernel_with_wrong_numbers_does_not_run(monkeypatch, no_xformers, value):
    monkeypatch.setattr(trial, "_run_sdpa", lambda kernel, q, k, v: torch.full_like(q, value))
    found = probe("cpu")
    assert texts_of(found, "sdp:flash") == {"runs, but its numbers are wrong"}
    assert found.fused() == ()


def test_a_device_that_dies_is_left_alone():
    """The meta device computes nothing, so it looks dead after the first kernel."""
    found = trial.try_kernels(torch.device("meta"), "not installed")
    tried = [s.reason for table in found.values() for s in table.values()]
    assert set(tried[1:]) == {"not tried (the device stopped working at sdp:flash)"}
    assert tried[0] != tried[1]


# -- older versions of torch ------------------------------------------------------------------------------------------


def test_torch_without_sdpa(monkeypatch, no_xformers):
    if HAS_SDPA:
        monkeypatch.delattr(torch._C._nn, "scaled_dot_product_attention")
        monkeypatch.setattr(torch, "__version__", "1.13.1+rocm5.2")
    found = probe("cpu")
    assert found.summary() == "this CPU runs no fused kernel (xformers not installed; SDPA not in torch 1.13)"
    assert not found.runs("sdp:math")


@needs_sdpa
def test_torch_before_sdpa_kernel(monkeypatch, no_xformers):
    """torch 2.0 to 2.2 force a kernel by torch.backends.cuda.sdp_kernel."""
    modern = probe("cpu")
    probe_module._cache.clear()
    original = importlib.import_module

    def without(name, *args):
        if name == "torch.nn.attention":
            raise ImportError(name)
        return original(name, *args)

    monkeypatch.setattr(importlib, "import_module", without)
    monkeypatch.setattr(torch, "__version__", "2.1.2")
    before = trial.switches()
    old = probe("cpu")
    assert trial.switches() == before
    for kernel in ("sdp:flash", "sdp:math"):
        assert old.kernels[kernel] == modern.kernels[kernel]
    assert not old.runs("sdp:mem-efficient")
    assert old.why_not("sdp:cudnn") == "not in torch 2.1"


# -- xformers ---------------------------------------------------------------------------------------------------------


def test_real_xformers_that_is_installed_but_does_not_work():
    version = pytest.importorskip("xformers", reason="xformers is not installed").__version__
    if torch.cuda.is_available():
        pytest.skip("xformers may work on this machine")
    found = probe("cpu")
    why = found.why_not("xformers")
    assert why.startswith(f"{version} found no operator (")
    assert "not for cpu" in why and "\n" not in why
    assert found.short_reason("xformers") == f"{version} found no operator"
    assert found.versions["xformers"] == version


def test_xformers_switched_off_by_the_host(monkeypatch):
    monkeypatch.setitem(sys.modules, "xformers", None)
    found = probe("cpu")
    assert found.why_not("xformers") == "switched off by the WebUI (start it with --xformers)"
    assert "xformers" not in found.versions


def test_xformers_that_breaks_at_import(monkeypatch):
    def broken(name, *args):
        raise OSError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(trial, "xformers_missing", lambda: "")
    monkeypatch.setattr(trial, "xformers_version", lambda: "0.0.20")
    monkeypatch.setattr(importlib, "import_module", broken)
    assert trial.load_xformers(CPU) == "0.0.20 does not load (libcudart.so.12: cannot open shared object file)"


def test_xformers_that_works(monkeypatch):
    """In xformers' own layout (B, N, H, D), and judged by its numbers."""
    def attention(q, k, v):
        assert q.shape[1:3] == (trial.TOKENS, trial.HEADS)
        q, k, v = (t.float().transpose(1, 2) for t in (q, k, v))
        return (torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v).transpose(1, 2)

    monkeypatch.setattr(trial, "load_xformers", lambda device: attention)
    assert "xformers" in probe("cpu").fused()


# -- importing --------------------------------------------------------------------------------------------------------


def in_a_new_process(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)


def test_importing_does_nothing():
    done = in_a_new_process(
        "import sys, torch, lib_tiled\n"
        "assert callable(lib_tiled.probe)\n"
        "assert not torch.cuda.is_initialized()\n"
        "assert 'xformers' not in sys.modules\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_probing_prints_nothing():
    """Not even where xformers is installed for another torch, which it logs over five lines."""
    done = in_a_new_process("import lib_tiled; assert lib_tiled.probe('cpu').kernels")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# -- pretending -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["gfx906", "GFX906", " gfx906 "])
@pytest.mark.parametrize("device", [None, "cpu", "cuda:0"])
@needs_sdpa
def test_gfx906_pretended_everywhere(monkeypatch, no_xformers, value, device):
    monkeypatch.setenv(pretend.VARIABLE, value)
    found = probe(device)
    assert found.pretended and found.architecture == "gfx906" and pretend.wanted() == "gfx906"
    assert found.fused() == () and found.runs("sdp:math", "float16", 512)
    assert found.summary() == "gfx906 runs no fused kernel (xformers not installed; SDPA: math only)"
    assert "none of this was run" in found.notes[0]


PRETENDED = """
device  | fused without xformers      | fused with xformers
gfx900  |                             |
gfx906  |                             |
gfx908  |                             |
gfx90a  | sdp:flash sdp:mem-efficient | sdp:flash sdp:mem-efficient xformers
gfx1010 |                             |
gfx1030 |                             |
gfx1100 | sdp:flash sdp:mem-efficient | sdp:flash sdp:mem-efficient
gfx1200 |                             |
gfx1201 | sdp:flash sdp:mem-efficient | sdp:flash sdp:mem-efficient
sm_37   |                             |
sm_52   | sdp:mem-efficient           | sdp:mem-efficient xformers
sm_61   | sdp:mem-efficient           | sdp:mem-efficient xformers
sm61    | sdp:mem-efficient           | sdp:mem-efficient xformers
sm_75   | sdp:mem-efficient           | sdp:mem-efficient xformers
sm_86   | sdp:flash sdp:mem-efficient sdp:cudnn | sdp:flash sdp:mem-efficient sdp:cudnn xformers
sm_120  | sdp:flash sdp:mem-efficient sdp:cudnn | sdp:flash sdp:mem-efficient sdp:cudnn xformers
"""


@needs_sdpa
@pytest.mark.parametrize("line", PRETENDED.strip().splitlines()[1:])
def test_pretended_devices(monkeypatch, line):
    device, without, with_xformers = (cell.strip() for cell in line.split("|"))
    for missing, expected in (("not installed", without), ("", with_xformers)):
        monkeypatch.setattr(trial, "xformers_missing", lambda missing=missing: missing)
        monkeypatch.setattr(trial, "xformers_version", lambda: "0.0.35")
        found = pretend.as_if(pretend.known(device), CPU, {})
        assert found.fused() == tuple(expected.split())
        assert all(s.runs != bool(s.reason) for table in found.kernels.values() for s in table.values())


@needs_sdpa
def test_pretended_limits_of_dtype_and_dimension(xformers_installed):
    old, new = pretend.as_if("sm_61", CPU, {}), pretend.as_if("sm_86", CPU, {})
    assert old.fused(torch.bfloat16) == () and old.fused(torch.float16) == ("sdp:mem-efficient", "xformers")
    assert old.summary(torch.bfloat16) == (
        "sm_61 runs no fused kernel in bfloat16 (xformers takes only fp16, fp32; SDPA: math only)"
    )
    assert not new.runs("sdp:flash", "float32") and not new.runs("sdp:flash", dim=512)
    assert new.runs("sdp:mem-efficient", "float32", 512)


@needs_sdpa
def test_gfx1200_has_flash_only_with_the_variable(monkeypatch, no_xformers):
    monkeypatch.setenv(pretend.VARIABLE, "gfx1200")
    assert architectures.EXPERIMENTAL in probe("cpu").why_not("sdp:flash")
    probe_module._cache.clear()
    monkeypatch.setenv(architectures.EXPERIMENTAL, "1")
    assert probe("cpu").runs("sdp:flash")


@pytest.mark.parametrize("value", ["gfx", "geforce", "sm_", "sm_abc", "gfx906;gfx1030", "1"])
def test_an_unknown_pretence_shows_the_real_device_and_says_so(monkeypatch, value):
    monkeypatch.setenv(pretend.VARIABLE, value)
    found = probe("cpu")
    assert not found.pretended and found.architecture == "cpu" and pretend.wanted() == ""
    assert f"{pretend.VARIABLE}={value} names no device" in found.notes[0] and "gfx906" in found.notes[0]


# -- architectures explain, and decide nothing ------------------------------------------------------------------------


class _Properties:
    """What torch tells of a GPU."""

    name, total_memory, L2_cache_size, major, minor = "AMD Radeon VII", 16 << 30, 4 << 20, 9, 0
    gcnArchName = "gfx906:sramecc+:xnack-"


def on_a_gpu(monkeypatch, properties, flash, hip="6.2", environment=()):
    """The probe of a ROCm GPU whose kernels answer `flash`, from a real trial's place on."""
    table = {(dtype, dim): flash for dtype in DTYPES for dim in DIMS}
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch, "ones", lambda *args, device=None, **kwargs: torch.zeros(*args, **kwargs))
    monkeypatch.setattr(trial, "try_kernels", lambda device, xformers: {"sdp:flash": table})
    monkeypatch.setattr(trial, "try_bf16_matmul", lambda device: Support(True))
    for name, value in environment:
        monkeypatch.setenv(name, value)
    return probe("cuda:0")


@pytest.mark.parametrize("runs", [True, False])
def test_a_known_name_explains_but_the_trial_decides(monkeypatch, runs):
    found = on_a_gpu(monkeypatch, _Properties, Support(runs, "" if runs else "not built for gfx906"))
    assert found.architecture == "gfx906" and found.memory_bytes == 16 << 30 and found.cache_bytes == 4 << 20
    assert found.fused() == (("sdp:flash",) if runs else ())
    assert "triton-gfx906" in found.notes[0]
    assert found.bf16_matmul == Support(True, "emulated")


def test_an_override_is_reported(monkeypatch):
    found = on_a_gpu(monkeypatch, _Properties, Support(True), environment=[("HSA_OVERRIDE_GFX_VERSION", "9.0.6")])
    assert found.override == "9.0.6"
    assert any("its word, not the card's" in note for note in found.notes)
    assert "by HSA_OVERRIDE_GFX_VERSION=9.0.6" in str(found)


def test_nvidia_is_named_by_its_compute_capability(monkeypatch):
    class Pascal(_Properties):
        name, major, minor = "NVIDIA GeForce GTX 1080", 6, 1

    assert on_a_gpu(monkeypatch, Pascal, Support(True), hip=None).architecture == "sm_61"


# -- torch's and xformers' own words ----------------------------------------------------------------------------------

AMD = "on architecture gfx906:sramecc+:xnack- (Triggered internally at sdp_utils.cpp:252.)"
EFFICIENT, FLASH, CUDNN = (
    f"{name} kernel not used because: (Triggered internally at sdp_utils.cpp:779.)"
    for name in ("Memory efficient", "Flash attention", "cuDNN attention")
)


@pytest.mark.parametrize(
    "kernel, warning, reason",
    [
        ("sdp:flash", "Torch was not compiled with flash attention.", "torch was built without it"),
        ("sdp:mem-efficient", "1Torch was not compiled with memory efficient attention.", "torch was built without it"),
        ("sdp:flash", f"Flash attention was not compiled for current AMD GPU architecture. Attempting to run {AMD}",
         "not built for gfx906"),
        ("sdp:mem-efficient", f"Mem Efficient attention was not compiled for current AMD GPU architecture. "
                              f"Attempting to run {AMD}", "not built for gfx906"),
        ("sdp:flash", "Flash Efficient attention on Current AMD GPU is still experimental. Enable it with "
                      "TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1.",
         "experimental on this GPU, needs TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1"),
        ("sdp:flash", "Flash attention only supports gpu architectures in the range [sm80, sm121]. Attempting to run "
                      "on a sm 6.1 gpu.", "needs sm_80 to sm_121, this is sm_61"),
        ("sdp:flash", "Flash attention requires q,k,v to have the same last dimension and to be less than or equal to "
                      "256. Got Query.size(-1): 512, Key.size(-1): 512, Value.size(-1): 512 instead.",
         "takes head dimensions up to 256"),
        ("sdp:flash", "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query dtype: float",
         "takes only fp16, bf16"),
        ("sdp:cudnn", "head_dim should be no more than 128", "takes head dimensions up to 128"),
        ("sdp:cudnn", "SDPA fprop requires cudnn 8.9.3 or higher", "cuDNN is too old"),
        ("sdp:flash", "Something new. (Triggered internally at x.cpp:1.)", "Something new."),
    ],
)
def test_torchs_warnings_in_plain_words(kernel, warning, reason):
    """torch explains all kernels; only the section of the one that was asked for counts."""
    section = {"sdp:mem-efficient": EFFICIENT, "sdp:flash": FLASH, "sdp:cudnn": CUDNN}
    texts = []
    for name, header in section.items():
        texts += [header, warning if name == kernel else "Flash attention has been runtime disabled."]
    error = RuntimeError("No available kernel. Aborting execution.")
    assert reasons.of_sdpa(kernel, error, texts, "cuda") == reason


def test_no_explanation_at_all():
    error = RuntimeError("No viable backend for scaled_dot_product_attention was found. This is likely due to ...")
    assert reasons.of_sdpa("sdp:cudnn", error, [], "cpu") == "torch has none for cpu"


OLD_XFORMERS = """No operator found for `memory_efficient_attention_forward` with inputs:
     query       : shape=(1, 64, 2, 512) (torch.float32)
     p           : 0.0
`decoderF` is not supported because:
    max(query.shape[-1] != value.shape[-1]) > 128
    attn_bias type is <class 'NoneType'>
`flshattF@v2.3.6` is not supported because:
    max(query.shape[-1], value.shape[-1]) > 256
    dtype=torch.float32 (supported: {torch.float16, torch.bfloat16})
    requires device with capability > (8, 0) but your GPU has capability (6, 1) (too old)
`tritonflashattF` is not supported because:
    operator wasn't built - see `python -m xformers.info` for more info
`cutlassF` is not supported because:
    operator wasn't built - see `python -m xformers.info` for more info
"""


def test_xformers_refusal_in_one_line():
    text = reasons.of_xformers(NotImplementedError(OLD_XFORMERS))
    assert text.startswith("found no operator (decoderF: ")
    assert "flshattF@v2.3.6: head dimensions up to 256, not for float32, needs sm_80" in text
    assert "tritonflashattF, cutlassF: not built" in text
    assert "\n" not in text


def test_xformers_other_errors():
    assert reasons.of_xformers(RuntimeError("CUDA error: no kernel image is available")) == (
        "its binary does not fit this GPU"
    )
    assert reasons.of_xformers(NotImplementedError("No operator found for it")) == "found no operator"


# -- showing ----------------------------------------------------------------------------------------------------------


def test_json_holds_everything():
    found = probe("cpu")
    again = json.loads(json.dumps(found.to_dict()))
    assert set(again) == set(Probe.__dataclass_fields__) | {"fused", "summary"}
    assert again["fused"] == list(found.fused()) and again["summary"] == found.summary()
    for kernel, table in found.kernels.items():
        for (dtype, dim), support in table.items():
            assert again["kernels"][kernel][dtype][str(dim)] == {"runs": support.runs, "reason": support.reason}


@needs_sdpa
def test_the_table_for_people(xformers_installed):
    lines = str(pretend.as_if("sm_86", CPU, {"torch": "2.13.0"})).splitlines()
    rows = {line.split()[0]: line.split() for line in lines if line}
    assert lines[0] == "device        RTX 30 (cpu), pretended"
    assert rows["sdp:flash"][1:8] == ["40", "64", "128", "40", "64", "128", "no"]
    assert rows["sdp:mem-efficient"] == ["sdp:mem-efficient", "yes", "yes", "yes"]
    assert "Numbers are the head dimensions at which the kernel runs; tried: 40, 64, 128, 512." in lines


def test_every_fused_kernel_can_be_reported():
    """A new device type must not lose its kernel between trial and report."""
    table = {(dtype, dim): Support(True) for dtype in DTYPES for dim in DIMS}
    found = Probe("xpu:0", "Arc", "xpu", {kernel: table for kernel in FUSED}, {})
    assert found.fused() == FUSED
    assert set(trial._BACKENDS) == {*FUSED, "sdp:math"} - {"xformers"}
