"""The report in a browser: it works from a file, on a phone, in the dark, and by keyboard."""

import json
import sys

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from examples import bounded_while
from jaxpr_opt.html import page
from jaxpr_opt.reports import observe
from jaxpr_opt.reports.diff import diff_graphs
from jaxpr_opt.reports.report import report
from tests.browser.chromium import missing
from tests.run.test_scripts import GAINS, finished

if reason := missing():
    pytest.skip(reason, allow_module_level=True)

WIDTHS = (390, 800, 1280, 1600)
SCHEMES = ("light", "dark")


def loop_free(x):
    return jax.grad(lambda x: jnp.sin(jnp.sin(x)).sum())(x)


def a_while(x):
    return lax.while_loop(lambda c: c.sum() < 9, lambda c: jnp.sin(c) @ c, x)


def bounded(*args):
    return bounded_while.gradient(*args)


def matrix(*shape):
    return jax.ShapeDtypeStruct(shape, "float32")


PROGRAMS = {
    "loop_free": (loop_free, (matrix(64),)),
    "a_while": (a_while, (matrix(8, 8),)),
    "bounded": (bounded, bounded_while.arguments(width=16, batch=64)),
}


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")

    def write(name):
        fun, args = PROGRAMS[name]
        before = observe.original(fun, args, {})
        after, journals = observe.optimized(fun, args, {})
        made = report(name, diff_graphs(before, after), journals)
        file = folder / f"{name}.html"
        file.write_text(page(made, before, after), encoding="utf-8")
        return file

    return {name: write(name) for name in PROGRAMS}


def run(browser, script, *args):
    return browser.execute_script(f"return {script}", *args)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_goes_wrong_and_nothing_is_wider_than_the_window(show, pages, name, width):
    browser = show(pages[name], width)
    assert browser.get_log("browser") == []
    wide, window = (
        run(browser, f"document.documentElement.{which}")
        for which in ("scrollWidth", "clientWidth")
    )
    assert wide == window


@pytest.fixture(scope="session")
def overview(tmp_path_factory):
    """The first page of a run, optimised."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "slow.py").write_text(GAINS)
    finished(
        [sys.executable, "-m", "jaxpr_opt", "run", "--optimize", "--html", "o.html", "slow.py"],
        folder,
    )
    return folder / "o.html"


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_of_the_overview_can_be_read(show, overview, width, scheme):
    """Figures stand in columns, or below the name, each with its title."""
    browser = show(overview, width, scheme)
    assert browser.get_log("browser") == []
    assert run(browser, CONTRAST) == []
    boxes = run(
        browser,
        "[...document.querySelectorAll('.programs td span')].map(e => e.getBoundingClientRect())",
    )
    assert len(boxes) == 6
    assert all(0 <= box["left"] <= box["right"] <= width for box in boxes)
    headed = run(browser, "document.querySelector('thead').checkVisibility()")
    titles = run(
        browser,
        "[...document.querySelectorAll('.programs td')]"
        ".map(e => getComputedStyle(e, '::before').content)",
    )
    assert headed == (width > 640) and ('"a call"' in titles) != headed


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_requested_but_the_page(show, pages, name):
    browser = show(pages[name])
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert set(requests) <= {pages[name].as_uri(), "data:,"}


@pytest.mark.parametrize(("name", "charts"), [("loop_free", 1), ("a_while", 1), ("bounded", 2)])
def test_charts_have_their_areas(show, pages, name, charts):
    browser = show(pages[name])
    sizes = run(
        browser,
        "[...document.querySelectorAll('.plot')].map(plot => [...plot.querySelectorAll('path')]"
        ".map(path => path.getBoundingClientRect()).map(box => box.width * box.height))",
    )
    assert len(sizes) == charts
    assert all(areas and min(areas) > 0 for areas in sizes)
    peaks = run(browser, "[...document.querySelectorAll('.peak')].map(e => e.textContent)")
    assert all(" in " in peak for peak in peaks) and len(peaks) == charts


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_can_be_read_in_both_colour_schemes(show, pages, scheme):
    browser = show(pages["bounded"], scheme=scheme)
    dark = run(browser, "matchMedia('(prefers-color-scheme: dark)').matches")
    assert dark == (scheme == "dark")
    poor = run(browser, CONTRAST)
    assert poor == []


def move_over(browser, share):
    run(
        browser,
        """(share => {
          const plot = document.querySelector(".plot"), box = plot.getBoundingClientRect();
          plot.dispatchEvent(new PointerEvent("pointermove", {
            clientX: box.left + share * box.width, clientY: box.top + 9, bubbles: true}));
        })(arguments[0])""",
        share,
    )


def tip(browser):
    return run(
        browser, "document.getElementById('tip').hidden || document.getElementById('tip').innerText"
    )


@pytest.mark.parametrize("width", [400, 1280])
def test_hovering_tells_the_op_the_line_and_what_is_live(show, pages, width):
    browser = show(pages["bounded"], width)
    assert tip(browser) is True
    move_over(browser, 0.3)
    text = tip(browser)
    assert " live" in text and "bounded_while.py:" in text and "step " in text
    box = run(browser, "document.getElementById('tip').getBoundingClientRect().toJSON()")
    assert box["left"] >= 0 and box["right"] <= width
    run(browser, "document.querySelector('.plot').dispatchEvent(new Event('pointerleave'))")
    assert tip(browser) is True


def test_the_keyboard_moves_through_the_program(show, pages):
    from selenium.webdriver.common.keys import Keys

    browser = show(pages["bounded"])
    plot = browser.find_element("css selector", ".plot")
    browser.execute_script("arguments[0].focus()", plot)
    plot.send_keys(Keys.HOME)
    first, words = tip(browser), plot.get_attribute("aria-valuetext")
    assert plot.get_attribute("aria-valuenow") == "0"
    assert words.startswith(first.partition("\n")[0])
    plot.send_keys(Keys.ARROW_RIGHT)
    assert plot.get_attribute("aria-valuenow") == "1"
    plot.send_keys(Keys.END)
    assert "return" in tip(browser)
    plot.send_keys(Keys.ESCAPE)
    assert tip(browser) is True


def test_a_line_lights_up_in_the_source_and_in_the_program(show, pages):
    browser = show(pages["bounded"])
    move_over(browser, 0.2)
    lit = run(
        browser, "[...new Set([...document.querySelectorAll('.hit')].map(e => e.dataset.at))]"
    )
    homes = run(
        browser,
        "[...document.querySelectorAll('.hit')].map(e => e.closest('section').id)",
    )
    assert len(lit) == 1 and {"source", "program"} <= set(homes)


def test_everything_is_unfolded_for_the_printer_and_fits_the_paper(show, pages):
    browser = show(pages["bounded"], width=720, media="print")
    wide, paper = (
        run(browser, f"document.documentElement.{size}") for size in ("scrollWidth", "clientWidth")
    )
    assert wide == paper
    assert run(browser, "document.querySelectorAll('details:not([open])').length") > 0
    run(browser, "dispatchEvent(new Event('beforeprint'))")
    assert run(browser, "document.querySelectorAll('details:not([open])').length") == 0


CONTRAST = """(() => {
  const parse = (color) => {
    const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], under) =>
    [r, g, b].map((channel, i) => channel * a + under[i] * (1 - a));
  const light = (rgb) => rgb.map(c => c / 255)
    .map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const ground = (element) => element === null ? [255, 255, 255]
    : over(parse(getComputedStyle(element).backgroundColor), ground(element.parentElement));
  const poor = new Set();
  for (const element of document.body.querySelectorAll("*")) {
    const own = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    if (!own || !element.checkVisibility() || element.localName === "script") continue;
    const text = light(parse(getComputedStyle(element).color).slice(0, 3));
    const under = light(ground(element));
    const ratio = (Math.max(text, under) + .05) / (Math.min(text, under) + .05);
    if (ratio < 4.5) poor.add(`${element.localName}.${element.className}: ${ratio.toFixed(2)}`);
  }
  return [...poor];
})()"""
"""Elements with text whose contrast with what is behind them is below what WCAG asks for (AA)."""
