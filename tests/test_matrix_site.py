"""The page "Find a recipe" in a real browser: it shows what the data says, to everybody, and asks nobody else."""

from __future__ import annotations

import functools
import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.wait import WebDriverWait

from kvproof import loading, site, site_data
from kvproof.export import FORMS, export
from kvproof.paths import EVIDENCE, RECIPES

pytestmark = pytest.mark.process

# As root, without a GPU, and without anything that a browser does on its own account.
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
          "--disable-background-networking", "--disable-component-update", "--window-size=1300,900")
_WAIT_S = 10
_PHONE = {"width": 360, "height": 780, "deviceScaleFactor": 2, "mobile": False}
_MARKUP = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
# Each element with text of its own: its contrast to the ground behind it, where it is below 4.5.
_CONTRASTS = """
const numbers = (color) => {
  const found = /^rgba?\\(([^)]+)\\)$/.exec(color);
  if (!found) throw new Error(`colour in another notation: ${color}`);
  const [r, g, b, a = 1] = found[1].split(/[ ,/]+/).map(Number);
  return [r, g, b, a];
};
const over = ([r, g, b, a], ground) => [r, g, b].map((part, place) => part * a + ground[place] * (1 - a));
const ground = (element) => {
  if (!element) return [255, 255, 255];
  const own = numbers(getComputedStyle(element).backgroundColor);
  return own[3] === 1 ? own.slice(0, 3) : over(own, ground(element.parentElement));
};
const light = (color) => color.map((part) => part / 255).map((part) =>
  part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
  .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
const contrast = (element) => {
  const style = getComputedStyle(element), behind = ground(element);
  const [a, b] = [light(over(numbers(element.closest("svg") ? style.fill : style.color), behind)), light(behind)];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
};
const own = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
const seen = [...document.querySelectorAll(arguments[0])].flatMap((root) => [root, ...root.querySelectorAll("*")])
  .filter((element) => own(element) && element.checkVisibility({ visibilityProperty: true, opacityProperty: true }));
return [seen.length, seen.filter((element) => contrast(element) < 4.5).map((element) =>
  `${contrast(element).toFixed(2)} ${element.tagName} ${element.className} ${element.textContent.slice(0, 40)}`)];
"""


class Server(http.server.ThreadingHTTPServer):
    """The site, with some of its files replaced."""

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))
        self.replaced: dict[str, str] = {}
        self.url = f"http://127.0.0.1:{self.server_port}/"


class _Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        text = self.server.replaced.get(urlsplit(self.path).path.removeprefix("/"))
        if text is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript; charset=utf-8")
        self.end_headers()
        self.wfile.write(text.encode())

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")  # what is replaced must be asked for
        super().end_headers()

    def log_message(self, *_args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return site.build(tmp_path_factory.mktemp("site") / "site")


@pytest.fixture(scope="module")
def server(built: Path) -> Iterator[Server]:
    with Server(built) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    return site_data.data()


@pytest.fixture(scope="module")
def started() -> Iterator[list[WebDriver]]:
    """The module's one browser, once it was started."""
    drivers: list[WebDriver] = []
    yield drivers
    for driver in drivers:
        driver.quit()


@pytest.fixture
def browser(require_tool: Callable[[str], str], started: list[WebDriver], server: Server,
            tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebDriver]:
    """A browser as it is after its start, with an empty log."""
    chromium, driver = require_tool("chromium"), require_tool("chromedriver")
    if not started:
        options = Options()
        options.binary_location = chromium
        for flag in (*_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        started.append(webdriver.Chrome(options=options, service=Service(driver)))
    browser = started[0]
    for log in ("browser", "performance"):
        browser.get_log(log)
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    browser.get("about:blank")
    server.replaced.clear()


class Page:
    """What a reader does on the page, and sees of it."""

    def __init__(self, browser: WebDriver, url: str, **view: str | list[str]):
        self.browser = browser
        browser.get("about:blank")  # else another view of the same page would not be loaded anew
        browser.get(f"{url}matrix.html" + (f"#{urlencode(view, doseq=True)}" if view else ""))

    def find(self, selector: str) -> Any:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[Any]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def script(self, text: str, *arguments: Any) -> Any:
        return self.browser.execute_script(text, *arguments)

    def wait(self, until: Callable[[], Any]) -> Any:
        return WebDriverWait(self.browser, _WAIT_S).until(lambda _: until())

    def press(self, *keys: str) -> None:
        ActionChains(self.browser).send_keys(*keys).perform()

    @property
    def rows(self) -> list[str]:
        return [row.get_attribute("data-recipe") for row in self.all(".kvm-table tbody tr") if row.is_displayed()]

    @property
    def address(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.browser.current_url).fragment)

    @property
    def active(self) -> Any:
        return self.browser.switch_to.active_element

    @property
    def status(self) -> str:
        return self.find(".kvm-status").text

    def tick(self, facet: str, name: str) -> None:
        box = self.find(f'input[data-facet="{facet}"][value="{name}"]')
        if not box.is_displayed():
            self.find(f'details[data-facet="{facet}"] > summary').click()
        box.click()

    def open(self, recipe: str) -> None:
        self.find(f'tr[data-recipe="{recipe}"] .kvm-open').click()
        assert self.find(".kvm-dialog").is_displayed()

    def run_it(self) -> None:
        self.find("#kvm-tab-run").click()
        self.wait(lambda: self.all(".kvm-choice"))

    def pick(self, key: str, value: str) -> None:
        self.find(f'input[name="kvm-{key}"][value="{value}"]').click()

    def text(self, kind: str) -> str:
        return self.find(f".kvm-{kind} code").get_property("textContent")


@pytest.fixture
def page(browser: WebDriver, server: Server) -> Callable[..., Page]:
    """`page(feature="mtp")`: the page at a view."""
    return functools.partial(Page, browser, server.url)


def of(data: dict[str, Any], **chosen: list[str]) -> list[str]:
    """Recipes that match, in the order of the data."""
    return [cell["recipe"] for cell in data["cells"] if all(cell[key] in names for key, names in chosen.items())]


def with_evidence(data: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in data["cells"] if cell["evidence"]]


# --- the data -----------------------------------------------------------------------------------------------------


def test_the_data_is_the_same_each_time() -> None:
    made = site_data.scripts()
    assert made == site_data.scripts()
    assert site_data.as_script() == made[site_data.CELLS]
    assert set(made) == {site_data.CELLS, *(f"recipe-{name}.js" for name in loading.recipe_paths())}


def test_a_script_can_stand_anywhere_and_means_what_it_was_made_of() -> None:
    content = {"text": "</script><!-- \u2028 é", "number": 0.1, "nothing": None}
    text = site_data.as_script(content)
    assert text.isascii()
    assert "<" not in text
    assert json.loads(text.partition(" = ")[2].removesuffix(";\n")) == content


def test_numbers_of_gpus_begin_with_the_recipes_own() -> None:
    recipe = loading.load_recipe(RECIPES / "gemma4-31b.yaml")
    assert site_data.gpu_counts(recipe) == [2, 4, 8]
    three = recipe.model_copy(update={"hardware": recipe.hardware.model_copy(update={"gpus": 3})})
    assert site_data.gpu_counts(three) == [3]
    assert site_data.gpu_counts(loading.load_recipe(RECIPES / "gemma4-tiny.yaml")) == [0]


def test_a_form_that_cannot_be_had_says_why(tmp_path: Path) -> None:
    recipe = loading.load_recipe(RECIPES / "gemma4-31b-sglang.yaml")
    (tmp_path / "lock.toml").write_text("")
    made = site_data.commands(recipe, tmp_path)["forms"]["docker"]["2"]
    assert made["command"] == "./inv export gemma4-31b-sglang --to docker"
    assert "text" not in made
    assert made["error"]


def test_every_cell_has_the_checks_of_its_evidence(data: dict[str, Any]) -> None:
    assert with_evidence(data)
    for cell in data["cells"]:
        record = json.loads((EVIDENCE.parent / cell["evidence"]).read_text()) if cell["evidence"] else {"checks": []}
        assert [(c["name"], c["verdict"], len(c["measurements"])) for c in cell["checks"]] == \
            [(c["name"], c["verdict"], len(c["measurements"])) for c in record["checks"]]


# --- filters ------------------------------------------------------------------------------------------------------


def test_without_a_filter_every_recipe_is_there(page: Callable[..., Page], data: dict[str, Any]) -> None:
    shown = page()
    assert shown.rows == of(data)
    assert shown.status == f"{len(shown.rows)} recipes"
    assert shown.address == {}


@pytest.mark.parametrize("facet", ["feature", "standing", "model", "engine", "connector", "weights"])
def test_a_filter_changes_the_rows_as_the_data_says(page: Callable[..., Page], data: dict[str, Any], facet: str
                                                    ) -> None:
    shown = page()
    names = [value["name"] for value in next(f for f in data["facets"] if f["key"] == facet)["values"]]
    name = next(name for name in names if of(data, **{facet: [name]}))
    for label in shown.all(f"label:has(input[data-facet={facet}])"):
        value = label.find_element(By.TAG_NAME, "input").get_attribute("value")
        count = label.find_element(By.CLASS_NAME, "kvm-count").get_property("textContent")
        assert count == str(len(of(data, **{facet: [value]})))
    shown.tick(facet, name)
    expected = of(data, **{facet: [name]})
    assert shown.rows == expected
    assert shown.status == f"{len(expected)} of {len(data['cells'])} recipes"
    assert shown.address == {facet: [name]}
    assert page(**{facet: name}).rows == expected
    shown.find(".kvm-clear").click()
    assert shown.rows == of(data)
    assert shown.address == {}


def test_filters_add_up(page: Callable[..., Page], data: dict[str, Any]) -> None:
    shown = page()
    for standing in ("proven", "claimed"):
        shown.tick("standing", standing)
    shown.tick("feature", "mtp")
    expected = of(data, standing=["proven", "claimed"], feature=["mtp"])
    assert expected
    assert shown.rows == expected
    # A number says what its option would show beside the others that are chosen.
    count = shown.find('label:has(input[data-facet="feature"][value="base"]) .kvm-count')
    assert count.get_property("textContent") == str(len(of(data, standing=["proven", "claimed"], feature=["base"])))
    assert shown.address == {"standing": ["proven", "claimed"], "feature": ["mtp"]}
    shown.browser.refresh()
    assert shown.rows == expected


def test_nothing_matches_and_the_page_says_what_to_drop(page: Callable[..., Page], data: dict[str, Any]) -> None:
    engine = next(c["engine"] for c in data["cells"] if not of(data, engine=[c["engine"]], standing=["proven"]))
    shown = page(standing="proven", engine=engine)
    assert shown.rows == []
    text = shown.find(".kvm-nothing").text
    assert f"Drop standing proven leaves {len(of(data, engine=[engine]))} recipe" in text
    assert f"Drop engine {engine} leaves {len(of(data, standing=['proven']))} recipe" in text
    shown.find('.kvm-nothing button[data-facet="engine"]').click()
    assert shown.rows == of(data, standing=["proven"])
    assert shown.active.get_attribute("class") == "kvm-status"


def test_a_shared_filter_that_no_recipe_has_any_more_is_still_one(page: Callable[..., Page]) -> None:
    shown = page(feature="gone", standing="proven")
    assert shown.rows == []
    assert "Drop feature gone" in shown.find(".kvm-nothing").text


def test_a_headings_address_is_no_view(page: Callable[..., Page], data: dict[str, Any]) -> None:
    shown = page(feature="mtp")
    shown.script("location.hash = '#find-a-recipe'")
    assert shown.rows == of(data, feature=["mtp"])
    shown.script("location.hash = '#feature=base'")
    shown.wait(lambda: shown.rows == of(data, feature=["base"]))


# --- evidence -----------------------------------------------------------------------------------------------------


def test_a_cell_shows_the_numbers_of_its_evidence(page: Callable[..., Page], data: dict[str, Any], built: Path) -> None:
    shown = page()
    for cell in with_evidence(data):
        record = json.loads((EVIDENCE.parent / cell["evidence"]).read_text())
        units = {m["name"]: m["unit"] for check in record["checks"] for m in check["measurements"]}
        shown.open(cell["recipe"])
        seen = {dd.get_attribute("data-number"): dd.text for dd in shown.all(".kvm-numbers dd")}
        assert list(seen) == list(record["header"]["highlights"])
        for name, value in record["header"]["highlights"].items():
            number, _, unit = seen[name].partition(" ")
            assert float(number.replace(",", "")) == pytest.approx(value, rel=6e-4), name
            assert unit == units[name]
        words = shown.find(".kvm-body").text
        for known in (record["header"]["run_id"], record["header"]["engine_version"],
                      record["header"]["connector_version"], record["header"]["hardware"]["cpu"]):
            assert known in words
        assert [check.text.split("\n")[:2] for check in shown.all(".kvm-check > summary")] == \
            [[check["verdict"], check["name"]] for check in record["checks"]]
        for link in shown.all(".kvm-links a"):
            assert (built / urlsplit(link.get_attribute("href")).path.removeprefix("/")).is_file()
        assert shown.address == {"recipe": [cell["recipe"]]}
        shown.press(Keys.ESCAPE)


def test_a_check_opens_its_measurements_with_limits(page: Callable[..., Page], data: dict[str, Any]) -> None:
    cell = with_evidence(data)[0]
    shown = page(recipe=cell["recipe"])
    for check, block in zip(cell["checks"], shown.all(".kvm-check"), strict=True):
        block.find_element(By.TAG_NAME, "summary").click()
        rows = [[td.text for td in row.find_elements(By.TAG_NAME, "td")]
                for row in block.find_elements(By.CSS_SELECTOR, "tbody tr")]
        assert [(row[0], row[3]) for row in rows] == [(m["name"], m["source"]) for m in check["measurements"]]
        for row, measured in zip(rows, check["measurements"], strict=True):
            assert bool(row[2]) == (measured["limit"] is not None)
            assert row[1].endswith(measured["unit"]) or measured["unit"] in ("count", "text", "yes")


def test_the_plot_has_both_times_of_every_length(page: Callable[..., Page], data: dict[str, Any]) -> None:
    cell = next(cell for cell in data["cells"] if cell["ttft"])
    shown = page(recipe=cell["recipe"])
    plot = shown.find(".kvm-plot svg")
    for point in cell["ttft"]:
        assert f"{point['tokens']} tokens: cold {point['cold_s']:.4g} s, warm {point['warm_s']:.4g} s" in \
            plot.get_attribute("aria-label")
    widths = [bar.rect["width"] for bar in plot.find_elements(By.TAG_NAME, "rect")]
    times = [point[key] for point in cell["ttft"] for key in ("cold_s", "warm_s")]
    assert [width / max(widths) for width in widths] == pytest.approx([t / max(times) for t in times], abs=0.02)
    right = shown.find(".kvm-plot").rect["x"] + shown.find(".kvm-plot").rect["width"]
    assert all(text.rect["x"] + text.rect["width"] <= right for text in plot.find_elements(By.TAG_NAME, "text"))


def test_claims_stand_beside_what_was_measured(page: Callable[..., Page], data: dict[str, Any]) -> None:
    cell = next(cell for cell in data["cells"] if any(claim["numbers"] for claim in cell["claims"]))
    shown = page(recipe=cell["recipe"])
    text = shown.find(".kvm-claim").text
    assert f"Upstream says {cell['claims'][0]['says']}: {cell['claims'][0]['text']}" in text
    rows = {row.find_element(By.TAG_NAME, "code").text: row.text for row in shown.all(".kvm-claims tbody tr")}
    assert list(rows) == list(cell["claims"][0]["numbers"])
    for name, number in cell["claims"][0]["numbers"].items():
        assert f"{number:g} not run" in rows[name] or cell["evidence"]
    for other in cell["stand_ins"]:
        shown.find(".kvm-notices .kvm-link").click()
        assert shown.find("#kvm-dialog-title").text == other["recipe"]


def test_every_standing_is_a_word_and_a_shape(page: Callable[..., Page], server: Server, data: dict[str, Any]) -> None:
    names = [value["name"] for value in data["facets"][0]["values"]]
    assert len(names) == 6
    cells = [data["cells"][0] | {"recipe": f"r{n}", "standing": name, "reason": f"because {n}",
                                 "contradictions": ["one", "two"] if n == 1 else []} for n, name in enumerate(names)]
    server.replaced[f"{site_data.FOLDER}/{site_data.CELLS}"] = site_data.as_script(data | {"cells": cells})
    shown = page()
    shapes = {shown.script("return arguments[0].querySelector('svg').innerHTML", badge): badge.text
              for badge in shown.all(".kvm-table .kvm-badge")}
    assert list(shapes.values()) == names
    assert [flag.text for flag in shown.all(".kvm-flag")] == ["2 contradictions"]
    shown.open("r1")
    assert [line.text for line in shown.all(".kvm-notices li")][:3] == \
        ["Contradiction: one", "Contradiction: two", f"Why {names[1]}: because 1"]


# --- commands -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gemma4-nano-31b-mtp", "gemma4-31b"])
def test_the_builder_shows_exactly_what_export_prints(page: Callable[..., Page], name: str) -> None:
    recipe = loading.load_recipe(loading.find_recipe(name))
    shown = page()
    shown.open(name)
    shown.run_it()
    counts = [box.get_attribute("value") for box in shown.all('input[name="kvm-gpus"]')]
    assert counts == [str(count) for count in site_data.gpu_counts(recipe)]
    assert [box.get_attribute("value") for box in shown.all('input[name="kvm-form"]')] == list(FORMS)
    for count in counts:
        shown.pick("gpus", count)
        own = count == counts[0]
        for form in FORMS:
            shown.pick("form", form)
            assert shown.text("text").rstrip("\n") == \
                export(recipe, form, gpus=None if own else int(count)).rstrip("\n")
            assert shown.text("command") == f"./inv export {name} --to {form}" + ("" if own else f" --gpus {count}")
    assert shown.address == {"recipe": [name], "tab": ["run"], "form": [FORMS[-1]], "gpus": [counts[-1]]}
    text = shown.text("text")
    shown.browser.refresh()
    shown.wait(lambda: shown.all(".kvm-text"))
    assert shown.text("text") == text


def test_every_recipe_has_its_commands(data: dict[str, Any], built: Path) -> None:
    for cell in data["cells"]:
        script = (built / site_data.FOLDER / f"recipe-{cell['recipe']}.js").read_text()
        made = json.loads(script.partition(" = ")[2].removesuffix(";\n"))
        assert list(made["forms"]) == list(FORMS)
        for form, by_count in made["forms"].items():
            assert list(by_count) == [str(count) for count in made["gpus"]]
            for command in by_count.values():
                assert command["command"].startswith(f"./inv export {cell['recipe']} --to {form}")
                assert command.get("text") or command.get("error")


def test_copy_without_permission_selects_the_text(page: Callable[..., Page]) -> None:
    shown = page(recipe="gemma4-tiny", tab="run", form="compose")
    shown.wait(lambda: shown.all(".kvm-text"))
    shown.script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    shown.find(".kvm-command button").click()
    assert shown.script("return getSelection().toString()") == "./inv export gemma4-tiny --to compose"
    assert "Selected" in shown.find(".kvm-command [role=status]").text


def test_copy_with_permission_copies_the_text(page: Callable[..., Page]) -> None:
    shown = page(recipe="gemma4-tiny", tab="run", form="k8s")
    shown.wait(lambda: shown.all(".kvm-text"))
    shown.script("Object.defineProperty(navigator, 'clipboard', "
                 "{value: {writeText: async (text) => { window.copied = text; }}})")
    shown.find(".kvm-text button").click()
    shown.wait(lambda: shown.find(".kvm-text [role=status]").text == "Copied.")
    assert shown.script("return window.copied") == shown.text("text")


def test_what_cannot_be_had_or_loaded_is_said(page: Callable[..., Page], server: Server) -> None:
    script = f"{site_data.FOLDER}/recipe-gemma4-tiny.js"
    server.replaced[script] = "// nothing"
    shown = page(recipe="gemma4-tiny", tab="run")
    shown.wait(lambda: "./inv export gemma4-tiny --to shell" in shown.find("#kvm-panel-run").text)
    refused = {"command": "c", "error": "no digest", "tip": "lock it"}
    server.replaced[script] = site_data.as_script(
        {"gpus": [0], "forms": {form: {"0": refused} for form in FORMS}}, "recipe-gemma4-tiny")
    shown = page(recipe="gemma4-tiny", tab="run")
    shown.wait(lambda: "Not to be had in this form: no digest Next: lock it" in shown.find("#kvm-panel-run").text)
    server.replaced[f"{site_data.FOLDER}/{site_data.CELLS}"] = "// nothing"
    shown = page()
    assert "could not be loaded" in shown.find("#kvproof-matrix").text
    assert shown.find("#kvproof-matrix a").get_attribute("href") == f"{server.url}support-matrix.html"


# --- for everybody ------------------------------------------------------------------------------------------------


def test_by_keyboard_alone(page: Callable[..., Page], data: dict[str, Any]) -> None:
    shown = page()

    def tab_to(selector: str, limit: int = 60) -> Any:
        for _ in range(limit):
            shown.press(Keys.TAB)
            if shown.script("return document.activeElement.matches(arguments[0])", selector):
                return shown.active
        return pytest.fail(f"{selector} was not reached by Tab")

    tab_to('input[data-facet="standing"][value="proven"]')
    shown.press(Keys.SPACE)
    assert shown.rows == of(data, standing=["proven"])
    menu = tab_to('details[data-facet="feature"] > summary')
    shown.press(Keys.ENTER)
    tab_to('input[data-facet="feature"][value="mtp"]')
    shown.press(Keys.SPACE)
    assert shown.rows == of(data, standing=["proven"], feature=["mtp"])
    shown.press(Keys.ESCAPE)
    assert shown.active == menu
    assert menu.find_element(By.XPATH, "..").get_attribute("open") is None

    for key in (Keys.ENTER, Keys.SPACE):
        button = tab_to(".kvm-open")
        assert button.get_attribute("aria-haspopup") == "dialog"
        assert button.get_attribute("aria-expanded") == "false"
        shown.press(key)
        dialog = shown.find("dialog.kvm-dialog[open]")
        assert button.get_attribute("aria-expanded") == "true"
        assert shown.active.get_attribute("id") == dialog.get_attribute("aria-labelledby") == "kvm-dialog-title"
        for _ in range(40):
            shown.press(Keys.TAB)
            assert shown.script("return document.activeElement === document.body || "
                                "arguments[0].contains(document.activeElement)", dialog)
        tab_to("#kvm-tab-evidence")
        shown.press(Keys.ARROW_RIGHT)
        assert shown.active.get_attribute("aria-selected") == "true"
        shown.wait(lambda: shown.all(".kvm-choice"))
        tab_to('input[name="kvm-form"]')
        shown.press(Keys.ARROW_RIGHT)
        assert shown.text("command").endswith(f"--to {shown.active.get_attribute('value')}")
        shown.press("n", "p", "s", "/")  # the theme's own keys
        assert dialog.is_displayed()
        shown.press(Keys.ESCAPE)
        assert not dialog.is_displayed()
        assert shown.active == button
        assert "recipe" not in shown.address
        shown.script("document.activeElement.blur(); document.querySelector('.kvm-clear').focus()")


def test_no_name_is_missing_and_no_id_is_there_twice(page: Callable[..., Page], data: dict[str, Any]) -> None:
    def require_names(selector: str) -> None:
        seen = [e for e in shown.all(f"{selector} :is(button, input, summary)") if e.is_displayed()]
        assert seen
        assert [e.get_attribute("outerHTML") for e in seen if not e.accessible_name] == []

    shown = page()
    for menu in shown.all(".kvm-menu > summary"):
        menu.click()
        require_names("#kvproof-matrix")
    name = with_evidence(data)[0]["recipe"]
    shown.open(name)
    require_names(".kvm-dialog")
    shown.run_it()
    require_names(".kvm-dialog")
    assert shown.find(".kvm-dialog").accessible_name == name
    ids = shown.script("return [...document.querySelectorAll('#kvproof-matrix [id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))
    for tab in shown.all("[role=tab]"):
        assert shown.find(f"#{tab.get_attribute('aria-controls')}").get_attribute("role") == "tabpanel"


def test_a_phone_shows_it_without_scrolling_sideways(page: Callable[..., Page], browser: WebDriver, data: dict[str, Any]
                                                     ) -> None:
    def overflow() -> list[int]:
        assert shown.script("return innerWidth") == _PHONE["width"]
        return shown.script("return [document.documentElement, document.querySelector('.kvm-body')]"
                            ".map((e) => e ? e.scrollWidth - e.clientWidth : 0)")

    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", _PHONE)
    shown = page()
    assert shown.script("return document.documentElement.scrollWidth") <= _PHONE["width"]
    for menu in shown.all(".kvm-menu > summary"):
        menu.click()
        assert overflow()[0] == 0
    for cell in (with_evidence(data)[0], *(cell for cell in data["cells"] if not cell["evidence"])):
        shown = page(recipe=cell["recipe"])
        shown.script("document.querySelectorAll('.kvm-check').forEach((check) => { check.open = true; })")
        assert overflow() == [0, 0], cell["recipe"]
    shown.run_it()
    assert overflow() == [0, 0]
    box = shown.find(".kvm-text pre")
    assert box.rect["width"] <= _PHONE["width"]
    assert shown.script("return arguments[0].scrollWidth > arguments[0].clientWidth", box)


@pytest.mark.parametrize(("preferred", "scheme"), [("light", "default"), ("dark", "slate")])
def test_all_text_stands_out(page: Callable[..., Page], browser: WebDriver, server: Server, data: dict[str, Any],
                             preferred: str, scheme: str) -> None:
    def faint(selector: str, at_least: int) -> list[str]:
        seen, found = shown.script(_CONTRASTS, selector)
        assert seen >= at_least
        return found

    browser.execute_cdp_cmd("Emulation.setEmulatedMedia",
                            {"features": [{"name": "prefers-color-scheme", "value": preferred}]})
    some = with_evidence(data)[0] | {"contradictions": ["c"], "notes": ["n"], "reason": "r"}
    verdicts = ("pass", "fail", "error", "unsupported", "not_measured")
    some["checks"] = [check | {"verdict": verdict, "reason": "why", "link": "https://example.org"}
                      for check, verdict in zip(some["checks"], verdicts, strict=False)]
    standings = [value["name"] for value in data["facets"][0]["values"]]
    cells = [*data["cells"], *(some | {"recipe": f"r{n}", "standing": name} for n, name in enumerate(standings))]
    server.replaced[f"{site_data.FOLDER}/{site_data.CELLS}"] = site_data.as_script(data | {"cells": cells})
    shown = page()
    shown.wait(lambda: shown.find("body").get_attribute("data-md-color-scheme") == scheme)
    assert faint(".kvm-filters, .kvm-bar, .kvm-table", 100) == []
    shown.find('details[data-facet="model"] > summary').click()
    assert faint('details[data-facet="model"]', 5) == []
    shown = page(engine="sglang", standing="proven")
    assert faint(".kvm-nothing", 3) == []
    for recipe in ("r1", next(cell["recipe"] for cell in cells if cell["claims"])):
        shown = page(recipe=recipe)
        shown.script("document.querySelectorAll('.kvm-check').forEach((check) => { check.open = true; })")
        assert faint(".kvm-dialog", 20) == []
    shown.run_it()
    assert faint(".kvm-dialog", 10) == []
    assert faint(".kvm-code", 4) == []


def test_the_measure_of_contrast_can_turn_red(page: Callable[..., Page]) -> None:
    shown = page()
    shown.script("document.querySelector('.kvm-status').style.color = '#888'")
    seen, found = shown.script(_CONTRASTS, ".kvm-status")
    assert seen == 1
    assert found[0].startswith("3.5")


@contextmanager
def quiet(browser: WebDriver) -> Iterator[list[str]]:
    """Inside, nothing may be complained of in the console; the addresses that were asked for come out."""
    asked: list[str] = []
    yield asked
    assert [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.append(message["params"]["request"]["url"])


def test_nothing_is_asked_of_another_host_and_nothing_complains(page: Callable[..., Page], browser: WebDriver,
                                                                server: Server, data: dict[str, Any]) -> None:
    with quiet(browser) as asked:
        shown = page()
        shown.open(data["cells"][0]["recipe"])
        shown.run_it()
        shown.press(Keys.ESCAPE)
        shown.tick("feature", "mtp")
        entries = shown.script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert f"{server.url}{site_data.FOLDER}/{site_data.CELLS}" in asked
    assert f"{server.url}{site_data.FOLDER}/recipe-{data['cells'][0]['recipe']}.js" in asked
    assert [url for url in {*asked, *entries} if not url.startswith((server.url, "about:", "data:", "blob:"))] == []


def test_from_a_disk_too(browser: WebDriver, built: Path, data: dict[str, Any]) -> None:
    shown = Page(browser, f"{built.as_uri()}/", feature="mtp")
    assert shown.rows == of(data, feature=["mtp"])
    shown.open(shown.rows[0])
    shown.run_it()
    assert shown.text("text").startswith("#!")
    shown.press(Keys.ESCAPE)
    shown.find(".kvm-clear").click()
    assert shown.rows == of(data)
    assert not [entry for entry in browser.get_log("browser") if "matrix" in entry["message"]]


def test_texts_of_others_stay_text(page: Callable[..., Page], server: Server, data: dict[str, Any]) -> None:
    def spoilt(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spoilt(item) for key, item in value.items()}
        if isinstance(value, list):
            return [spoilt(item) for item in value]
        return _MARKUP if isinstance(value, str) else value

    cell = next(cell for cell in data["cells"] if cell["checks"] and cell["caveats"])
    kept = ("recipe", "standing", "ttft", "stand_ins", "contradictions")
    bad = spoilt(cell) | {key: cell[key] for key in kept} | {"contradictions": [_MARKUP]}
    bad["claims"] = [{"says": _MARKUP, "text": _MARKUP, "source": "javascript:window.hacked=1", "date": _MARKUP,
                      "numbers": {_MARKUP: 1}}]
    server.replaced[f"{site_data.FOLDER}/{site_data.CELLS}"] = site_data.as_script(
        data | {"cells": [bad], "facets": spoilt(data["facets"][1:2]) + data["facets"][1:]})
    server.replaced[f"{site_data.FOLDER}/recipe-{cell['recipe']}.js"] = site_data.as_script(
        {"gpus": [0], "forms": {form: {"0": {"command": _MARKUP, "text": _MARKUP}} for form in FORMS}},
        f"recipe-{cell['recipe']}")
    shown = page()
    assert shown.find(f'tr[data-recipe="{cell["recipe"]}"] td:nth-child(2) .kvm-small').text == _MARKUP
    shown.open(cell["recipe"])
    assert shown.find(".kvm-dialog header p").text == _MARKUP
    assert "javascript:window.hacked=1" in shown.find(".kvm-claim").text
    shown.run_it()
    assert shown.text("text") == shown.text("command") == _MARKUP
    assert shown.all("#kvproof-matrix img, #kvproof-matrix script, #kvproof-matrix a[href^='javascript']") == []
    assert shown.script("return window.hacked") is None


def test_without_scripts_the_page_leads_to_the_support_matrix(built: Path) -> None:
    text = (built / "matrix.html").read_text()
    assert re.search(r'<noscript>.*?<a href="support-matrix.html">.*?</noscript>', text, re.DOTALL)
    assert "innerHTML" not in (built / "assets" / "matrix.js").read_text()
