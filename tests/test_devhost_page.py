"""devhost itself: its page in a real Chromium, with the element ids and JavaScript names extensions use."""

import pytest

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
    data = browser.execute_script("return {...document.body.dataset}")
    assert (data["probeLoaded"], data["probeUpdated"]) == ("yes", "yes")
    missing = browser.execute_script("return arguments[0].filter(id => !gradioApp().querySelector('#' + id))", IDS)
    assert missing == []
    button = browser.find_element(By.ID, "txt2img_generate")
    assert "1, 2, 3" in button.value_of_css_property("outline-color")

    host.mark()
    button.click()
    wait.until(lambda _: "Steps: 12" in browser.find_element(By.ID, "html_info_txt2img").text)
    assert browser.find_elements(By.CSS_SELECTOR, "#txt2img_gallery img")
    assert "Time taken" in browser.find_element(By.ID, "html_log_txt2img").text
    errors = [entry["message"] for entry in browser.get_log("browser") if "probe" in entry["message"]]
    assert errors == []
