"""devhost itself: its page in a real Chromium, with the element ids and JavaScript names extensions use."""

import pytest
from conftest import press

SCRIPT = """
onUiLoaded(() => document.body.dataset.probeLoaded = gradioApp().querySelector('#txt2img_prompt') ? 'yes' : 'no');
onOptionsAvailable(() => document.body.dataset.probeOption = opts.cross_attention_optimization);
onAfterUiUpdate(() => document.body.dataset.probeUpdated = 'yes');
"""
IDS = ("txt2img_prompt", "txt2img_neg_prompt", "txt2img_generate", "txt2img_gallery", "html_info_txt2img",
       "html_log_txt2img", "tabs", "tab_txt2img", "tab_img2img", "img2img_generate", "tab_settings", "settings",
       "setting_cross_attention_optimization", "settings_submit", "settings_restart_gradio")


@pytest.fixture(scope="session")
def probe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("extensions") / "page_probe"
    (folder / "javascript").mkdir(parents=True)
    (folder / "javascript" / "probe.js").write_text(SCRIPT)
    (folder / "style.css").write_text("#txt2img_generate { outline: 3px solid rgb(1, 2, 3); }")
    return folder


@pytest.mark.parametrize("face", ["a1111", "forge"])  # gradio 3 and gradio 4
def test_page_generates_and_runs_the_extensions_files(shared_host, probe, browser, face):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    host = shared_host(face, extensions=(probe,))
    wait = WebDriverWait(browser, 120)
    browser.get(host.url)
    wait.until(lambda _: browser.find_elements(By.ID, "txt2img_generate"))

    wait.until(lambda _: browser.execute_script("return document.body.dataset.probeOption") == "Automatic")
    assert browser.execute_script("return document.body.dataset.probeLoaded") == "yes"
    wait.until(lambda _: browser.execute_script("return document.body.dataset.probeUpdated") == "yes")
    missing = browser.execute_script("return arguments[0].filter(id => !gradioApp().querySelector('#' + id))", IDS)
    assert missing == []
    button = browser.find_element(By.ID, "txt2img_generate")
    assert "1, 2, 3" in button.value_of_css_property("outline-color")

    host.mark()
    press(browser, "txt2img_generate",
          lambda: "Steps: 12" in browser.find_element(By.ID, "html_info_txt2img").text)
    assert browser.find_elements(By.CSS_SELECTOR, "#txt2img_gallery img")
    assert "Time taken" in browser.find_element(By.ID, "html_log_txt2img").text
    errors = [entry["message"] for entry in browser.get_log("browser") if "probe" in entry["message"]]
    assert errors == []


@pytest.mark.parametrize("face", ["a1111", "forge"])
def test_compare_draws_one_picture_under_every_optimization(shared_host, browser, face):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    host = shared_host(face)
    titles = host.run("""
from modules import shared
arguments = shared.opts.data_labels["cross_attention_optimization"].component_args
result = (arguments() if callable(arguments) else arguments)["choices"]
""")
    titles = [title for title in titles if title not in ("Automatic", "None")]
    wait = WebDriverWait(browser, 120)
    browser.get(host.url)
    wait.until(lambda _: browser.find_elements(By.ID, "compare_start"))
    next(tab for tab in browser.find_elements(By.TAG_NAME, "button") if tab.text == "Compare").click()
    for name, value in (("size", 64), ("steps", 2)):
        field = browser.find_element(By.CSS_SELECTOR, f"#compare_{name} input[type=number]")
        wait.until(lambda _, field=field: field.is_displayed())
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(str(value), Keys.TAB)
    host.mark()
    press(browser, "compare_start", lambda: "[Tiled]" in host.console_since_mark(), 60)

    def rows():
        return browser.execute_script("""return [...document.querySelectorAll('#compare_table tbody tr')].map(
            row => [...row.cells].map(cell => cell.textContent))""")

    wait.until(lambda _: len(rows()) == len(titles))
    printed = [line for line in host.console_since_mark().splitlines() if line.startswith("[Tiled]")]
    for title, (name, seconds, memory, difference, line), said in zip(titles, rows(), printed[1:]):  # one warms up
        assert name == title and line == said and "64x64 2 steps" in line
        assert float(seconds) > 0 and int(memory) >= 0 and int(difference) <= 2
    wait.until(lambda _: len(browser.find_elements(By.CSS_SELECTOR, "#compare_gallery img")) >= len(titles))
