"""Comments that suppress findings, and those that do not."""

from __future__ import annotations

import pytest

from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.suppress import comments

SOURCE = """\
import jax

def f(x):
    a = x + 1  # jaxpr-opt: ignore[stacked-sum]
    b = (
        a
        * 2  # jaxpr-opt: ignore[JXO199, other-rule] because it is small
    )
    # jaxpr-opt: ignore[stacked_sum]
    c = b + (
        a
    )
    text = "# jaxpr-opt: ignore[stacked-sum]"
    if c:  # jaxpr-opt: ignore[stacked-sum]
        d = c
    e = d  # jaxpr-opt: ignore
    return e
"""


def finding(line, file, rule="stacked-sum", code="JXO199"):
    return Finding(code, rule, "warning", "t", "s", "r", "f", (file, line, "f"))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(SOURCE)
    return str(path)


def covered(file, **rule):
    lines = range(1, SOURCE.count("\n") + 1)
    found = comments(file)
    return [n for n in lines if any(c.covers(finding(n, file, **rule)) for c in found)]


def test_a_comment_goes_for_its_statement_or_the_next(file):
    assert covered(file) == [4, 5, 6, 7, 8, 10, 11, 12, 14]
    assert covered(file, rule="other-rule", code="JXO198") == [5, 6, 7, 8]
    assert covered(file, rule="third-rule", code="JXO197") == []


def test_a_comment_without_rules_covers_nothing_but_is_there(file):
    assert [comment.rules for comment in comments(file)][-1] == ()


def test_a_comment_is_for_its_own_file(file):
    assert not any(c.covers(finding(4, "/other.py")) for c in comments(file))


@pytest.mark.parametrize("text", ["def f(:  # jaxpr-opt: ignore[x]\n", "\0 jaxpr-opt: \n"])
def test_what_is_no_python_has_no_comments(tmp_path, text):
    path = tmp_path / "broken.py"
    path.write_text(text)
    assert comments(str(path)) == ()
    assert comments(str(tmp_path / "not there.py")) == ()
