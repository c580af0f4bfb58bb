"""The report in a real browser: sorted, filtered, read by mouse and by keyboard; nothing of it runs, nothing leaves.

Chromium is found on PATH, or named by VELOX_EVAL_BROWSER. Without one the tests are skipped, except in CI.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compare.stored import answer, stored
from velox_eval.compare import compare
from velox_eval.compare.page import write_page
from velox_eval.records.store import StoredRun

pytestmark = pytest.mark.browser
sync_api = pytest.importorskip("playwright.sync_api")

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 740}
EVIL = "</script><img src=x onerror=\"window.ran='yes'\"><svg onload=\"window.ran='yes'\"> & \u2028 {{data}} \ud800"
SAME = "The house stands on a hill. It has a red door. "
READY_SECONDS, SORT_SECONDS = 3.0, 0.5  # for 2,000 samples, on one slow core; a wait that nobody notices is below


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = os.environ.get("VELOX_EVAL_BROWSER") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(f"no browser found; install chromium or set VELOX_EVAL_BROWSER (looked for {BROWSERS})")
        pytest.skip("no browser found; install chromium or set VELOX_EVAL_BROWSER")
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with sync_api.sync_playwright() as play:
        yield play.chromium.launch(executable_path=path, args=["--no-sandbox"] if root else [])


Opened = Callable[..., Any]


@pytest.fixture
def opened(browser: Any) -> Iterator[Opened]:
    """Opens a report; at the end no request has left, nothing was logged as an error, and no markup has run."""
    contexts, asked, complaints = [], [], []

    def open_(path: Path, viewport: dict[str, int] = DESKTOP, **options: Any) -> Any:
        context = browser.new_context(viewport=viewport, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_
    for context in contexts:
        for page in context.pages:
            assert page.evaluate("window.ran") is None
        context.close()
    assert complaints == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert len(asked) == len(contexts)  # the page itself and nothing else


def write(path: Path, runs: list[StoredRun]) -> Path:
    write_page(path, compare(runs, resamples=200), {run.header.run_id: run for run in runs})
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods, eight samples: h2o differs from the full cache, tova does not, morphkv loops."""
    curves = {"accuracy_by_entry": [0.9, 0.8, 0.7]}

    def run(method: str, budget: int | None, text: Callable[[int], str], score: Callable[[int], float]) -> StoredRun:
        records = [answer(i, SAME + text(i), score(i), stratum="diary" if i % 2 else "menu") for i in range(8)]
        return stored(method, budget, records, curves=curves, command=["velox-eval", "run", "--set", "a b=$(rm x)"])

    runs = [
        run("full", None, lambda i: f"Room {i} is blue.", lambda i: 0.5),
        run("h2o:paper", 64, lambda i: f"Room {i} is \U0001f600 green.", lambda i: i / 8),
        run("tova", 64, lambda i: f"Room {i} is blue.", lambda i: 0.5),
        run("morphkv", 128, lambda i: SAME * 2, lambda i: 0.1),
    ]
    return write(tmp_path_factory.mktemp("page") / "report.html", runs)


def column(page: Any, index: int) -> list[str]:
    cells: list[str] = page.locator(f"#arms tbody tr > :nth-child({index})").all_inner_texts()
    return [cell.split("\n")[0] for cell in cells]


def test_the_table_sorts_and_says_so(opened: Opened, report: Path) -> None:
    page = opened(report)
    assert column(page, 1) == ["full", "h2o:paper@64", "tova@64", "morphkv@128"]
    head = page.locator("#arms thead th").nth(1)
    assert head.get_attribute("aria-sort") == "none"
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(page, 1)[0] == "morphkv@128"
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert column(page, 1)[-1] == "morphkv@128"
    assert page.locator("#arms th[aria-sort=descending]").count() == 1


def test_the_table_sorts_by_keyboard(opened: Opened, report: Path) -> None:
    page = opened(report)
    page.locator("#verdict").focus()
    page.keyboard.press("Tab")  # the box that scrolls
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('th').cellIndex") == 0
    page.keyboard.press("Enter")
    assert column(page, 1) == ["full", "h2o:paper@64", "morphkv@128", "tova@64"]
    page.keyboard.press("Space")
    assert column(page, 1) == ["tova@64", "morphkv@128", "h2o:paper@64", "full"]


def test_what_is_not_known_comes_last_either_way(opened: Opened, report: Path) -> None:
    page = opened(report)
    button = page.locator("#arms thead th").nth(2).get_by_role("button")
    for _ in range(2):
        button.click()
        assert column(page, 1)[-1] == "full"  # the baseline differs from nothing


def test_the_filter_looks_at_words_and_verdicts(opened: Opened, report: Path) -> None:
    page = opened(report)
    page.locator("#filter").fill("@64 tova")
    assert column(page, 1) == ["tova@64"]
    assert page.locator("#shown").inner_text() == "1 of 4 rows"
    page.locator("#filter").fill("")
    page.locator("#verdict").select_option("same_answers")
    assert column(page, 1) == ["tova@64"]
    page.locator("#verdict").select_option("")
    assert len(column(page, 1)) == 4


def test_two_methods_and_a_sample_by_mouse(opened: Opened, report: Path) -> None:
    page = opened(report)
    page.get_by_role("button", name="h2o:paper@64: read its answers").click()
    assert page.locator("#left").evaluate("box => box.selectedOptions[0].text") == "full"
    assert page.locator("#right").evaluate("box => box.selectedOptions[0].text") == "h2o:paper@64"
    assert "better on 3, worse on 4, equal on 1" in page.locator("#pair").inner_text()
    page.locator("#samples [role=option]").nth(3).click()
    panes = page.locator("#sample .pane")
    assert page.locator("#sample h3").first.inner_text() == "s3"
    assert panes.nth(0).locator(".answer").inner_text() == f"{SAME}Room 3 is blue."
    assert panes.nth(1).locator(".answer").inner_text() == f"{SAME}Room 3 is \U0001f600 green."
    assert panes.locator("mark").all_inner_texts() == ["blue.", "\U0001f600"]
    same = panes.nth(1).locator(".same").all_inner_texts()
    assert "".join(same) == f"{SAME}Room 3 is "


def test_two_methods_and_a_sample_by_keyboard(opened: Opened, report: Path) -> None:
    page = opened(report)
    page.locator("#left").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("End")  # the last method of the list: morphkv
    assert page.locator("#right").evaluate("box => box.selectedOptions[0].text") == "morphkv@128"
    for _ in range(4):  # swap, order, find, the list
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "samples"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.locator("#sample h3").first.inner_text() == "s2"
    active = page.locator("#samples").get_attribute("aria-activedescendant")
    assert page.locator(f"#{active}").get_attribute("aria-selected") == "true"
    page.keyboard.press("End")
    assert page.locator("#sample h3").first.inner_text() == "s7"
    page.keyboard.press("Home")
    assert page.locator("#sample h3").first.inner_text() == "s0"


def test_repetition_and_identity_are_marked(opened: Opened, report: Path) -> None:
    page = opened(report)
    page.locator("#right").select_option(label="morphkv@128")
    pane = page.locator("#sample .pane").nth(1)
    assert "".join(pane.locator(".again").all_inner_texts()) == (SAME * 2).rstrip(". ")
    page.locator("#right").select_option(label="tova@64")
    assert "identical, byte for byte" in page.locator("#sample .key").inner_text()
    assert page.locator("#sample mark").count() == 0
    assert "byte-identical: 8" in page.locator("#pair").inner_text()


def test_samples_are_found_and_ordered(opened: Opened, report: Path) -> None:
    page = opened(report)
    page.locator("#right").select_option(label="h2o:paper@64")
    page.locator("#order").select_option(label="B gains most first")
    first = page.locator("#samples [role=option]").first
    assert first.inner_text().startswith("8. s7")
    page.locator("#order").select_option(label="B loses most first")
    assert first.inner_text().startswith("1. s0")
    page.locator("#find").fill("ROOM 5 is")
    assert page.locator("#samples [role=option]").count() == 1
    assert page.locator("#sample h3").first.inner_text() == "s5"
    page.locator("#find").fill("nowhere")
    assert "No sample matches" in page.locator("#sample").inner_text()


def test_the_command_of_each_run_is_quoted_for_a_shell(opened: Opened, report: Path) -> None:
    page = opened(report)
    page.locator("#run-list summary", has_text="morphkv@128").click()
    box = page.locator("#run-list details[open]")
    assert box.locator("code").inner_text() == "velox-eval run --set 'a b=$(rm x)'"
    assert "10" in box.inner_text()
    box.get_by_role("button", name="Copy").click()
    box.get_by_role("button", name="Copied").or_(box.get_by_role("button", name="Selected")).wait_for()


def test_text_of_models_is_text(opened: Opened, tmp_path: Path) -> None:
    """Markup in answers, prompts' absence, names, ids, strata, errors and commands shows as it is and runs nothing."""
    records = [answer(0, EVIL, 1, sample_id=EVIL, stratum=EVIL), answer(1, f"x {EVIL}", 0, details={"a": EVIL})]
    failed = answer(2, "", 0, status="error", error=EVIL, response=None)
    full = stored("full", None, [*records, failed], command=[EVIL])
    other = stored(f"h2o:{EVIL}", 64, [answer(0, EVIL + "y", 1, sample_id=EVIL, stratum=EVIL), *records[1:], failed])
    page = opened(write(tmp_path / "report.html", [full, other]))
    shown = EVIL.replace("\ud800", "\ufffd")
    text = page.locator("#sample .answer").first.evaluate("box => box.textContent")
    assert text.encode("utf-16-le", "surrogatepass") == EVIL.encode("utf-16-le", "surrogatepass")
    assert page.locator("img").count() == 0
    page.locator("#samples").focus()
    page.keyboard.press("End")
    assert page.locator("#sample .answer").first.inner_text().startswith("</script><img src=x")
    page.locator("#run-list summary").first.click()
    assert page.locator("#run-list code").first.inner_text().startswith("'</script><img src=x")
    names = page.locator("#arms tbody th").all_inner_texts()
    assert any("</script><img src=x onerror" in name for name in names)
    assert "<script>" not in page.locator("#plots").inner_html()
    assert shown[:10] in page.locator("#plots").inner_text()


@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_is_wider_than_the_screen(opened: Opened, report: Path, viewport: dict[str, int]) -> None:
    page = opened(report, viewport)
    for details in page.locator("details > summary").all():
        if details.is_visible():
            details.click()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= viewport["width"]
    beyond = page.evaluate(
        """() => [...document.querySelectorAll("main *, header *")].filter((node) => {
             const box = node.getBoundingClientRect();
             return box.width && box.right > innerWidth + 1 && !node.closest(".scroll, .plot, .boxed, .skip");
           }).map((node) => node.outerHTML.slice(0, 80))"""
    )
    assert beyond == []
    for selector in ("#filter", "#samples", "#left", "#arms"):
        assert page.locator(selector).is_visible()


def test_every_control_has_a_name(opened: Opened, report: Path) -> None:
    page = opened(report)
    nameless = page.evaluate(
        """() => {
          const controls = "button, input, select, [role=listbox], [role=region], [role=img]";
          const named = (node) => node.labels?.length || node.ariaLabel || node.hasAttribute("aria-labelledby");
          return [...document.querySelectorAll(controls)].filter((node) => !named(node) && !node.textContent.trim())
            .map((node) => node.outerHTML.slice(0, 80));
        }"""
    )
    assert nameless == []
    repeated = page.evaluate(
        "() => { const ids = [...document.querySelectorAll('[id]')].map((n) => n.id);"
        " return ids.filter((id, index) => ids.indexOf(id) !== index); }"
    )
    assert repeated == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_the_page(opened: Opened, report: Path, scheme: str) -> None:
    """Contrast of at least 4.5 (WCAG AA) for text, in the page and in the plots."""
    page = opened(report, color_scheme=scheme)
    ratios = page.evaluate(
        CONTRAST, ["h2", ".about", ".hint", "td", "td small", ".link", ".plot text", ".same", "mark"]
    )
    assert min(ratios.values()) >= 4.5, ratios


CONTRAST = """(selectors) => {
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => linear(Number(v) / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const ratio = (node) => {
    const style = getComputedStyle(node);
    const pair = [light(node.tagName === "text" ? style.fill : style.color), light(behind(node))];
    return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  };
  const least = (selector) => Math.min(...[...document.querySelectorAll(selector)].slice(0, 40).map(ratio));
  return Object.fromEntries(selectors.map((selector) => [selector, least(selector)]));
}"""


def test_two_thousand_samples_open_and_sort_without_a_wait(opened: Opened, tmp_path: Path) -> None:
    words = " ".join(f"word{i} of the long answer" for i in range(40))
    runs = []
    for method, budget in (("full", None), ("h2o", 64), ("tova", 64)):
        records = [answer(i, f"{words} {i} {method}", (i * 7 % 11) / 11) for i in range(2000)]
        runs.append(stored(method, budget, records))
    page = opened(write(tmp_path / "report.html", runs))
    ready = float(page.locator("html").get_attribute("data-ready")) / 1000
    assert ready < READY_SECONDS
    assert page.locator("#samples [role=option]").count() < 40
    spent = page.evaluate(
        """() => {
          const start = performance.now();
          for (const value of ["1", "3", "0"]) {
            document.getElementById("order").value = value;
            document.getElementById("order").dispatchEvent(new Event("change"));
          }
          return (performance.now() - start) / 3000;
        }"""
    )
    assert spent < SORT_SECONDS
    page.locator("#samples").focus()
    page.keyboard.press("End")
    assert page.locator("#sample h3").first.inner_text() == "s1999"
    page.locator("#samples").evaluate("box => { box.scrollTop = 1000 * 46; }")
    page.locator("#samples [role=option]", has_text="1001. s1000").wait_for()
    page.locator("#right").select_option("2")
    assert "2000 samples" in page.locator("#pair").inner_text()
