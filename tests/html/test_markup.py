"""Nothing that comes from a program is taken for markup."""

import re
from html import unescape

import pytest

from jaxpr_opt.html.excerpt import spans
from jaxpr_opt.html.highlight import highlighted
from jaxpr_opt.html.markup import Markup, element, together
from jaxpr_opt.html.prose import product, prose


def test_text_is_escaped_and_markup_is_not():
    assert element("p", "a < b", element("b", "&")) == "<p>a &lt; b<b>&amp;</b></p>"


def test_attributes_are_escaped():
    assert element("a", href='"><script>') == '<a href="&quot;&gt;&lt;script&gt;"></a>'


def test_attributes_are_named_as_in_python():
    made = element("td", class_="x", data_at="f:1", hidden=True, open=False, title=None, colspan=2)
    assert made == '<td class="x" data-at="f:1" hidden colspan="2"></td>'


def test_void_elements_are_not_closed():
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'


def test_contents_may_be_nested_and_missing():
    assert together(["a", None, [Markup("<br>"), "<"]]) == "a<br>&lt;"


def test_what_a_sentence_quotes_is_code():
    assert prose("`f` is < `g`") == "<code>f</code> is &lt; <code>g</code>"


@pytest.mark.parametrize(
    ("factors", "expected"),
    [((), ""), ((1000,), "1,000"), ((24, 3), "24 × 3"), ((2,) * 8, "256 in 8 loops")],
)
def test_many_lengths_are_multiplied(factors, expected):
    assert product(factors) == expected


SOURCE = '''\
def f(x, text="<b>"):  # a comment & more
    """Two
    lines."""
    return {x: f"{x!r} < {1.5e3}"} if x else None
'''


def plain(lines):
    return [unescape(re.sub("<[^>]*>", "", line)) for line in lines]


@pytest.mark.parametrize("source", [SOURCE, "not ( python <", "", "x = '\\\n'", "\tx = 1\n\n"])
def test_highlighted_source_reads_the_same(source):
    assert plain(highlighted(source)) == source.splitlines()


def test_what_is_highlighted():
    first, second, *_ = highlighted(SOURCE)
    assert first.startswith('<span class="keyword">def</span> f(x')
    assert '<span class="comment"># a comment &amp; more</span>' in first
    assert second.strip() == '<span class="string">"""Two</span>' or "    <span" in second


PROGRAM = """\
import a

@decorated
def one(
    x,
):
    def inner():
        return 1
    return inner

VALUE = 1

class C:
    def method(self):
        return 2

    def other(self):
        return 3
"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([8], [(3, 9)]),
        ([5, 8], [(3, 9)]),
        ([15], [(14, 15)]),
        ([15, 18], [(14, 18)]),
        ([3, 18], [(3, 9), (17, 18)]),
        ([1], [(1, 4)]),
        ([99], []),
    ],
)
def test_functions_are_shown_whole(lines, expected):
    assert spans(PROGRAM, lines) == expected


def test_a_file_that_is_no_python_is_shown_around_the_line():
    assert spans("(\n" * 20, [10]) == [(7, 13)]
