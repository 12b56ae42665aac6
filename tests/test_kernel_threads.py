"""Large calls on a CPU: each of torch's threads takes heads or rows of its own."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from attention_reference import reference

from lib_tiled import tiled_attention
from lib_tiled.kernel import attention, threads
from lib_tiled.kernel.forward import ForwardTiles
from lib_tiled.kernel.memory import TiledOutOfMemoryError


@pytest.fixture(autouse=True)
def three_threads(monkeypatch):
    monkeypatch.setattr(attention, "THREADED_FROM", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def ran(monkeypatch):
    """Names of the threads that computed tiles."""
    names = []
    run = ForwardTiles.run

    def noted(self, *args):
        names.append(threading.current_thread().name)
        return run(self, *args)

    monkeypatch.setattr(ForwardTiles, "run", noted)
    return names


def qkv(*shape, keys, dim_v=None, dtype=torch.float32):
    g = torch.Generator().manual_seed(sum(shape))
    *lead, n, d = shape
    return (torch.randn(*lead, n, d, generator=g, dtype=dtype), torch.randn(*lead, keys, d, generator=g, dtype=dtype),
            torch.randn(*lead, keys, dim_v or d, generator=g, dtype=dtype))


@pytest.mark.parametrize("shape, keys", [((2, 8, 130, 16), 1024), ((1, 1, 1500, 64), 1100), ((7, 8), 1030),
                                         ((2, 5, 33, 8), 1024), ((3, 2, 2, 65, 16), 1025), ((1, 1, 1, 8), 2000)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_values_and_bits(shape, keys, is_causal, ran):
    q, k, v = qkv(*shape, keys=keys, dim_v=24)
    out = tiled_attention(q, k, v, is_causal=is_causal)
    assert ran and all(name.startswith("tiled-attention") for name in ran)
    assert (out - reference(q, k, v, is_causal=is_causal)).abs().max() < 1e-5
    assert torch.equal(out, tiled_attention(q, k, v, is_causal=is_causal))


def test_masks_and_grouped_heads(ran):
    q, k, v = qkv(2, 6, 200, 16, keys=1024)
    mask = torch.rand(2, 1, 200, 1024, generator=torch.Generator().manual_seed(1)) > 0.3
    mask[0, 0, 5] = False
    out = tiled_attention(q, k[:, :2], v[:, :2], mask, enable_gqa=True)
    assert (out - reference(q, k[:, :2], v[:, :2], mask, enable_gqa=True)).abs().max() < 1e-5
    assert (out[0, :, 5] == 0).all()
    assert len(ran) >= 2 * 6


def test_one_head_is_cut_into_rows(ran):
    q, k, v = qkv(1, 1, 8192, 64, keys=1024)
    tiled_attention(q, k, v)
    assert len(ran) >= 3


def test_gradients_and_inference_mode(ran):
    q, k, v = (t.requires_grad_() for t in qkv(1, 2, 64, 8, keys=1024))
    tiled_attention(q, k, v).sum().backward()
    expected = torch.autograd.grad(reference(q, k, v).sum(), (q, k, v))
    for t, grad in zip((q, k, v), expected):
        assert (t.grad - grad).abs().max() < 1e-5
    with torch.inference_mode():
        out = tiled_attention(*qkv(1, 2, 64, 8, keys=1024))
    assert out.is_inference() and torch.equal(out, tiled_attention(q, k, v))


def test_torchs_number_of_threads_stays_what_it_was(ran):
    found = []
    tiled_attention(*qkv(2, 8, 130, 16, keys=1024))
    assert torch.get_num_threads() == 3
    other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert found == [3]
    assert set(threads.workers(3).run(torch.get_num_threads)) == {1}


def test_from_another_thread(ran):
    q, k, v = qkv(2, 8, 130, 16, keys=1024)
    found = []
    other = threading.Thread(target=lambda: found.append(tiled_attention(q, k, v)))
    other.start()
    other.join()
    assert torch.equal(found[0], tiled_attention(q, k, v))


def test_an_error_in_a_thread_is_raised_and_the_next_call_works(monkeypatch):
    q, k, v = qkv(2, 8, 130, 16, keys=1024)
    with monkeypatch.context() as patch:
        def broken(self, *args):
            raise RuntimeError("broken on purpose")

        patch.setattr(ForwardTiles, "_one", broken)
        with pytest.raises(RuntimeError, match="broken on purpose"):
            tiled_attention(q, k, v)
    assert (tiled_attention(q, k, v) - reference(q, k, v)).abs().max() < 1e-5


def test_out_of_memory_halves_and_goes_on(monkeypatch):
    q, k, v = qkv(2, 8, 130, 16, keys=1024)
    one, failures = ForwardTiles._one, iter([True])

    def sometimes(self, *args):
        if next(failures, False):
            raise MemoryError
        return one(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(ForwardTiles, "_one", sometimes)
        out = tiled_attention(q, k, v)
    assert (out - reference(q, k, v)).abs().max() < 1e-5
    assert attention._reduced == {torch.device("cpu"): 1}
    attention.forget_reductions()

    def always(self, *args):
        raise MemoryError

    monkeypatch.setattr(ForwardTiles, "_one", always)
    with pytest.raises(TiledOutOfMemoryError):
        tiled_attention(q, k, v)
    attention.forget_reductions()


def test_calls_after_the_main_thread_has_ended():
    """Python starts no threads any more then; whoever still runs gets a result."""
    code = """
import threading, torch
from lib_tiled import tiled_attention
torch.set_num_threads(2)
q = torch.randn(1, 16, 1100, 16)
def late():
    threading.main_thread().join()
    print(tiled_attention(q, q, q).isfinite().all().item())
threading.Thread(target=late).start()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.stdout.strip() == "True", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_has_threads_of_its_own():
    code = """
import os, torch
from lib_tiled.kernel import threads
threads.workers(2)
pid = os.fork()
if pid == 0:
    print("mine" if not threads._kept else "the parent's", flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.stdout.strip() == "mine", done.stderr
