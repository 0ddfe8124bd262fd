"""The page: complete, self-contained, well-formed, and small enough."""

import dataclasses
import json
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.frames import name_of
from jaxpr_opt.html import page
from jaxpr_opt.html.headline import verdict
from jaxpr_opt.html.places import anchor
from jaxpr_opt.html.program import tree
from jaxpr_opt.html.source import margin
from jaxpr_opt.lint import Finding
from jaxpr_opt.reports import observe
from jaxpr_opt.reports.diff import diff_graphs
from jaxpr_opt.reports.figures import Figure, number_text
from jaxpr_opt.reports.report import report
from jaxpr_opt.sizes import bytes_text

VOID = {"meta", "link", "input"}


def layers(x, steps):
    """Keeps more values a step than it must."""

    def loss(x):
        def step(c, _):
            return jax.nn.gelu(c * x), None  # one value is enough

        return lax.scan(step, x, None, length=16)[0].sum()

    return jax.grad(loss)(x) * steps


X = jax.ShapeDtypeStruct((1000,), "float32")
N = jax.ShapeDtypeStruct((), "float32")


def parts(fun, *args):
    before = observe.original(fun, args, {})
    after, journals = observe.optimized(fun, args, {})
    return report(name_of(fun), diff_graphs(before, after), journals), before, after


def page_of(fun, *args, findings=()):
    return page(*parts(fun, *args), findings)


class Reader(HTMLParser):
    """Elements and attributes, and whether what is opened is closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.seen = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, name):
        return [attributes for tag, attributes in self.seen if tag == name]


@pytest.fixture(scope="module")
def layers_page():
    return page_of(layers, X, N)


def test_every_element_is_closed_and_ids_are_unique(layers_page):
    reader = Reader(layers_page)
    assert not reader.open
    ids = [attributes["id"] for _, attributes in reader.seen if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_links_lead_somewhere(layers_page):
    reader = Reader(layers_page)
    ids = {attributes.get("id") for _, attributes in reader.seen}
    links = {attributes["href"] for attributes in reader.all("a")}
    assert links and {link.removeprefix("#") for link in links} <= ids


def test_nothing_is_loaded(layers_page):
    reader = Reader(layers_page)
    assert not re.search(r"https?://|@import|url\(", layers_page)
    assert not any("src" in attributes for _, attributes in reader.seen)
    assert [link["href"] for link in reader.all("link")] == ["data:,"]
    policy = next(m["content"] for m in reader.all("meta") if m.get("http-equiv"))
    assert policy.startswith("default-src 'none'")


def test_tables_have_headers(layers_page):
    headers = Reader(layers_page).all("th")
    assert headers and all(header["scope"] in {"col", "row"} for header in headers)


def test_both_programs_and_what_was_done_are_there(layers_page):
    text = unescape(re.sub("<[^>]*>", "", layers_page))
    made, *_ = parts(layers, X, N)
    assert made.changed
    for line in made.diff.lines:
        assert line.text in text
    for each in made.passes:
        assert each.cleanup or not each.done or each.name in text
    assert bytes_text(made.diff.before.peak_bytes) in text


def test_lines_tell_what_is_kept_of_them():
    _, before, after = parts(layers, X, N)
    known = margin(before, after, [])
    file = str(Path(__file__))
    code = Path(__file__).read_text().splitlines()
    (line,) = (n for n, text in enumerate(code, 1) if text.endswith("# one value is enough"))
    assert known.before[file, line] > known.after[file, line]


def test_findings_stand_below_their_line():
    line = layers.__code__.co_firstlineno
    finding = Finding(
        "JXO101", "stacked-thing", "warning", "layers", "`x` is <big>", "so it is", "do not",
        (__file__, line, "layers"),
    )  # fmt: skip
    nowhere = dataclasses.replace(finding, frame=None, says="it is nowhere")
    text = page_of(layers, X, N, findings=[finding, nowhere])
    row = text.partition(f'id="{anchor(__file__, line)}"')[2].partition("</tr>")[2]
    remarks = row.partition("</tr>")[0]
    assert "JXO101 stacked-thing" in remarks
    assert "<code>x</code> is &lt;big&gt;: so it is" in remarks
    assert "it is nowhere" in text and "it is nowhere" not in remarks
    assert "2 findings" in text


def test_a_program_with_nothing_to_improve_is_drawn_once():
    text = page_of(lambda x: jnp.sin(x * 2), X)
    assert "No pass found anything to improve." in text
    charts = (attributes.get("data-chart") for attributes in Reader(text).all("div"))
    assert list(filter(None, charts)) == ["as it is"]
    sections = [attributes["id"] for attributes in Reader(text).all("section")]
    assert sections == ["memory", "source", "program"]


def test_data_in_the_page_is_json_that_cannot_end_its_element():
    known = {"jnp": jnp}
    source = "def program(x):\n    return jnp.sin(x) * x"
    exec(compile(source, "</script><b>.py", "exec"), known)
    text = page_of(known["program"], X)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text).group(1)
    values = json.loads(data)["as it is"]["values"]
    assert "</script><b>.py:2" in [line for *_, line in values]
    assert not Reader(text).open


def test_a_large_program_is_a_small_page():
    def large(x):
        for _ in range(100):
            x = jnp.tanh(x * jnp.sin(x)) @ jnp.ones((64, 64))
        return x.sum()

    text = page_of(jax.grad(large), jax.ShapeDtypeStruct((64, 64), "float32"))
    assert len(text.encode()) < 1e6


def test_regions_of_the_diff_are_those_of_the_program():
    made, *_ = parts(layers, X, N)

    def flat(nodes, depth=0):
        for node in nodes:
            yield depth, node.line
            yield from flat(node.inside, depth + 1)

    assert [(line.depth, line) for line in made.diff.lines] == list(flat(tree(made.diff.lines)))


def figure(key, before, after):
    return Figure(key, key, before, after, number_text)


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ([("peak_bytes", 100, 10)], "10 × less memory."),
        ([("peak_bytes", 100, 99)], "the estimates stay about the same."),
        ([("peak_bytes", 10, 14)], "1.4 × more memory."),
        ([("flops", 10, 5)], "2.0 × fewer FLOPs."),
        ([("flops", 10, None)], "Loops that stop when they are done."),
        ([("residual_bytes", 10, 0)], "Nothing kept for the backward pass."),
        ([("peak_bytes", 9, 3), ("flops", 9, 3)], "3.0 × less memory and 3.0 × fewer FLOPs."),
    ],
)
def test_the_verdict_is_about_what_has_notably_changed(figures, expected):
    made, *_ = parts(layers, X, N)
    told = verdict(made, {key: figure(key, old, new) for key, old, new in figures})
    assert told.endswith(expected)
