"""`GET /tiled-attention/v1/last` and `/history`."""

import json

import pytest
import requests
from conftest import HostError

LAST, HISTORY = "/tiled-attention/v1/last", "/tiled-attention/v1/history"
PROMPT = "green square on a very secret background"


@pytest.fixture(params=["a1111", "reforge", "forge"])
def host(request, shared_host):
    return shared_host(request.param)


def test_last_is_the_generation_that_just_ended(host):
    host.txt2img(prompt=PROMPT, width=64, height=128, steps=1)
    found = host.get(LAST)
    assert found["what"].startswith("txt2img 64x128 1 steps")
    assert found["line"] in host.console_since_mark()
    assert found["attention"] in found["line"]
    assert found["status"] == "done" and found["nested"] is False
    assert found["kernels"]["unet"] and all(n > 0 for n in found["kernels"]["unet"].values())
    assert found["seconds"] > 0


def test_history_is_newest_first_and_holds_twenty(host):
    host.run("from lib_tiled.report.generation import Generation, history\n"
             "for n in range(25): history.add(Generation(what=f'number {n}'))")
    host.txt2img(prompt=PROMPT, steps=1)
    found = host.get(HISTORY)
    assert len(found) == 20
    assert found[0] == host.get(LAST)
    assert [item["what"] for item in found[1:4]] == ["number 24", "number 23", "number 22"]


def test_neither_prompt_nor_path(host):
    host.txt2img(prompt=PROMPT, steps=1)
    host.run("from lib_tiled.report.generation import history\n"
             "history.last().note(\"tiled attention failed, cond/uncond ran\", \"OSError: '/home/someone/x.pt'\")")
    text = json.dumps([host.get(LAST), host.get(HISTORY)])
    assert "secret" not in text and "someone" not in text and "x.pt" not in text
    assert "(path)" in text and "cond/uncond" in text


def test_read_only(host):
    for method in ("post", "put", "delete"):
        assert requests.request(method, host.url + LAST, json={}).status_code == 405


def test_works_after_reload_ui(start_host):
    host = start_host("a1111")
    host.txt2img(steps=1)
    before = host.get(LAST)
    host.reload_ui()
    assert host.get(LAST) == before


@pytest.mark.parametrize("face", ["a1111", "forge"])
def test_null_before_the_first_and_behind_api_auth(start_host, face):
    host = start_host(face, "--api-auth", "anna:first,bert:second")
    for credentials in (None, ("anna", "second"), ("carl", ""), ("", "")):
        host.auth = credentials
        for path in (LAST, HISTORY):
            with pytest.raises(HostError, match="^401"):
                host.get(path)
    for credentials in (("anna", "first"), ("bert", "second")):
        host.auth = credentials
        assert host.get(LAST) is None
        assert host.get(HISTORY) == []
    # A person who opens the address is asked for a name; the page, which asks in the background, is not.
    assert requests.get(host.url + LAST).headers["WWW-Authenticate"] == "Basic"
    asked = requests.get(host.url + LAST, headers={"X-Requested-With": "fetch"})
    assert asked.status_code == 401 and "WWW-Authenticate" not in asked.headers
