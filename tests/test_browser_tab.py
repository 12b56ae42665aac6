"""The tab "Attention" in a real browser, on gradio 3.41 (a1111) and 4.40 (forge)."""

import pytest
from conftest import press
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait


@pytest.fixture(params=["a1111", "forge"])
def host(request, shared_host):
    return shared_host(request.param)


def open_page(browser, host):
    browser.get(host.url)
    until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#tabs > .tab-nav > button"))


def open_tab(browser):
    buttons = browser.find_elements(By.CSS_SELECTOR, "#tabs > .tab-nav > button")
    next(button for button in buttons if button.text.strip() == "Attention").click()


def until(browser, condition, seconds=120):
    return WebDriverWait(browser, seconds, 0.1).until(lambda _: condition())


def text(browser, name):
    return browser.find_element(By.ID, f"tiled_attention_{name}").text


def test_it_fills_itself_when_it_is_opened_and_not_before(browser, start_host):
    host = start_host("a1111")
    probed = "from lib_tiled.device import probe\nresult = len(probe._cache)"
    before = host.run(probed)
    open_page(browser, host)
    assert host.run(probed) == before
    host.txt2img(steps=1)
    line = host.get("/tiled-attention/v1/last")["line"]
    open_tab(browser)
    until(browser, lambda: "Why not" in text(browser, "device"))
    assert "sdp:math" in text(browser, "device") and line in text(browser, "generations")


def test_copy_report(browser, host):
    browser.execute_cdp_cmd("Browser.grantPermissions", {
        "origin": host.url, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
    open_page(browser, host)
    open_tab(browser)
    field = browser.find_element(By.CSS_SELECTOR, "#tiled_attention_report textarea")
    press(browser, "tiled_attention_copy", lambda: "Probe:" in field.get_attribute("value"))
    read = "navigator.clipboard.readText().then(arguments[0], (error) => arguments[0](String(error)))"
    until(browser, lambda: browser.execute_async_script(read) == field.get_attribute("value"), 20)


def start_benchmark(browser, host):
    press(browser, "tiled_attention_benchmark", lambda: host.run("from lib_tiled.webui import tab_bench\nresult = not "
          "tab_bench._cancelled.is_set() and tab_bench.call_queue.queue_lock.locked()"))


def test_benchmark_draws_its_chart_and_can_be_cancelled(browser, host):
    host.run("""
import time, types
from lib_tiled.webui import tab_bench

def measure(backend, width, height, device, dtype):
    time.sleep(0.5)
    return types.SimpleNamespace(seconds=width / 1e6, bytes=width * height, error="")

names = ["tiled", "sdp:math", "sdp:flash"]
tab_bench._command = {"bench": types.SimpleNamespace(backends=lambda device: names, measure=measure)}.__getitem__
""")
    open_page(browser, host)
    open_tab(browser)
    start_benchmark(browser, host)
    until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, ".tiled-attention-charts svg"))
    assert "Cancelled" not in text(browser, "result") and "1024x1024" in text(browser, "result")
    for number, line in enumerate(browser.find_elements(By.CSS_SELECTOR, ".tiled-attention-charts svg polyline")):
        assert len(line.get_attribute("points").split()) >= 3, number
    start_benchmark(browser, host)
    browser.find_element(By.ID, "tiled_attention_cancel").click()
    until(browser, lambda: "Cancelled" in text(browser, "result"))


def test_a_failure_is_text_in_the_tab(browser, host):
    host.run("from lib_tiled.webui import tab_bench\ntab_bench._command = {}.__getitem__")
    open_page(browser, host)
    open_tab(browser)
    press(browser, "tiled_attention_tune", lambda: "This failed: KeyError" in text(browser, "result"))
