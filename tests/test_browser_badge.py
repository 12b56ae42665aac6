"""The badge by the generation info in a real browser, on gradio 3.41 (a1111, reforge) and 4.40 (forge)."""

import time

import pytest
from conftest import press
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

FACES = ["a1111", "reforge", "forge"]
COUNT_FETCHES = """
const plain = window.fetch;
window.asked = 0;
window.fetch = (...args) => { window.asked += String(args[0]).includes('tiled-attention'); return plain(...args); };
"""


class Page:
    """The page of one host in the browser."""

    def __init__(self, browser, host, query=""):
        self.browser, self.host = browser, host
        browser.get(f"{host.url}/{query}")
        self.until(lambda: self.all("#txt2img_generate") and self.script("return Object.keys(opts).length > 0"))

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def script(self, text, *args):
        return self.browser.execute_script(text, *args)

    def until(self, condition, seconds=120):
        return WebDriverWait(self.browser, seconds, 0.1).until(lambda _: condition())

    def row(self, tab="txt2img"):
        """The badge's row once it is there and takes its place."""
        return self.until(lambda: self.all(f"#{tab}_results .tiled-attention-row:not([hidden])"))[0]

    def steps(self, number):
        """A quick generation: few steps on txt2img."""
        field = self.all("#txt2img_steps input[type=number]")[0]
        self.script("""
            arguments[0].value = arguments[1];
            for (const kind of ['input', 'blur']) arguments[0].dispatchEvent(new Event(kind, {bubbles: true}));
        """, field, number)

    def generate(self):
        """Returns the badge when it shows the generation that was asked for here."""
        self.host.mark()
        press(self.browser, "txt2img_generate", lambda: "[Tiled] txt2img" in self.host.console_since_mark(), 60)
        line = self.host.console_since_mark().split("[Tiled] ")[1].splitlines()[0].strip()
        badge = self.all("#txt2img_results .tiled-attention-badge")[0]
        self.until(lambda: badge.get_attribute("title") == line)
        return badge

    def errors(self):
        """What the console of the browser says against this extension."""
        return [entry["message"] for entry in self.browser.get_log("browser")
                if "tiled" in entry["message"].lower() and entry["level"] == "SEVERE"]


@pytest.fixture(params=FACES)
def host(request, shared_host):
    host = shared_host(request.param)
    host.options(cross_attention_optimization="Tiled (no-flash)", tiled_badge=True)
    yield host
    host.options(cross_attention_optimization="Automatic", tiled_badge=True)


def test_it_shows_what_ran_and_nothing_moves(browser, host):
    page = Page(browser, host)
    row = page.row()
    assert len(page.all(".tiled-attention-row")) == 2  # txt2img and img2img
    assert row.size["height"] == 28 and not row.find_element(By.TAG_NAME, "button").is_displayed()
    page.steps(1)
    badge = page.generate()
    assert badge.text == "Attention: tiled" and badge.is_displayed()
    assert row.size["height"] == 28
    assert not page.all("#img2img_results .filled")
    # In the panel of the results, right before the info text.
    assert page.script("return arguments[0].nextElementSibling.id", row) == "html_info_txt2img"
    assert page.errors() == []


def test_the_server_is_asked_once_per_generation_and_never_in_between(browser, host):
    page = Page(browser, host)
    page.row()
    page.steps(2)
    page.generate()
    time.sleep(1)
    page.script(COUNT_FETCHES)
    page.generate()
    time.sleep(2)
    asked = page.script("return window.asked")
    assert 1 <= asked <= 3  # gradio may redraw the results in more than one go
    time.sleep(3)
    assert page.script("return window.asked") == asked


def test_a_click_lists_the_last_generations(browser, host):
    page = Page(browser, host)
    page.row()
    page.steps(1)
    badge = page.generate()
    host.run("from lib_tiled.report.generation import Generation, history\n"
             "history.add(Generation(what='<img src=x onerror=\"window.injected = 1\">'))")
    badge.click()
    items = page.until(lambda: page.all(".tiled-attention-history li"))
    history = host.get("/tiled-attention/v1/history")
    assert len(items) == len(history)
    for item, generation in zip(items, history, strict=True):
        assert item.text.endswith(generation["line"])
    assert page.script("return window.injected === undefined")
    browser.find_element(By.CSS_SELECTOR, ".tiled-attention-history button").click()
    page.until(lambda: not page.all(".tiled-attention-history"))


def test_dark_theme(browser, host):
    """Text and background come from the theme and differ enough to be read."""
    def contrast(element):
        colours = page.script("""
            const style = getComputedStyle(arguments[0]);
            return [style.color, style.backgroundColor].map((text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number));
        """, element)

        def luminance(rgb):
            linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in rgb)]
            return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

        bright, dark = sorted(map(luminance, colours), reverse=True)
        return (bright + 0.05) / (dark + 0.05), luminance(colours[1])

    backgrounds = []
    for theme in ("light", "dark"):
        page = Page(browser, host, f"?__theme={theme}")
        page.row()
        page.steps(1)
        badge = page.generate()
        badge.click()
        time.sleep(1)
        for element in (badge, page.all(".tiled-attention-history")[0]):
            ratio, background = contrast(element)
            assert ratio > 4.5, (theme, ratio)
        backgrounds.append(background)
    assert backgrounds[0] > 0.7 and backgrounds[1] < 0.1


def displayed(page):
    """For the row of txt2img and that of img2img, whether it takes its place on its tab."""
    return page.script("return [...document.querySelectorAll('.tiled-attention-row')]"
                       ".map((row) => getComputedStyle(row).display !== 'none')")


def test_the_setting_hides_it_at_once(browser, host):
    page = Page(browser, host)
    page.row()
    assert displayed(page) == [True, True]
    page.script("document.querySelector('#setting_tiled_badge input').click()")
    page.script("document.querySelector('#settings_submit').click()")
    page.until(lambda: displayed(page) == [False, False], 30)
    assert host.run("from modules import shared\nresult = shared.opts.tiled_badge") is False


def test_it_stays_hidden_where_the_api_wants_a_password(browser, start_host):
    host = start_host("a1111", "--api-auth", "anna:secret")
    host.auth = ("anna", "secret")
    page = Page(browser, host)
    time.sleep(1)
    assert displayed(page) == [False, False]
