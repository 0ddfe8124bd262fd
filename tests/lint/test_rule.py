"""What a rule must be, and how it is found."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from jaxpr_opt.lint import rule
from jaxpr_opt.lint.rule import Rule, documentation, named, passages, register, rules

DOC = """What: a sum of a sum.
And more about it.

Why: because
  of that.

Example::

    x + y
        + z

Instead::

    z

Thread: https://github.com/jax-ml/jax/issues/8239
"""


@pytest.fixture
def registry(monkeypatch):
    """An empty one, for this test only."""
    monkeypatch.setattr(rule, "_registered", {})


def make(code="JXO199", name="sum-of-sums", doc=DOC, severity="warning"):
    def check(self, subject):
        yield self.finding(
            subject, says="too big", reason="it is", fix="make it small", frame=None, bytes=3
        )

    body = {"__doc__": doc, "code": code, "name": name, "severity": severity, "check": check}
    return type("SumOfSums", (Rule,), body)


def test_a_rule_is_registered_once(registry):
    cls = register(make())
    assert isinstance(rule._registered["JXO199"], cls)
    with pytest.raises(ValueError, match="SumOfSums and SumOfSums have the same code or name"):
        register(make(name="another-name"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"code": "JXO1"}, "has the code 'JXO1': expected JXO and three digits"),
        ({"code": "JXO901"}, "has the code 'JXO901'"),
        ({"name": "Sums"}, "is called 'Sums': expected words-with-dashes"),
        ({"severity": "bad"}, "expected one of error, warning, note"),
        ({"doc": "What: nothing"}, "What, Why, Example, Instead, Thread, in this order"),
        ({"doc": DOC.replace("because\n  of that.", "")}, "needs the sections"),
        ({"doc": None}, "it has none"),
    ],
)
def test_a_malformed_rule_is_refused(registry, changed, message):
    with pytest.raises(ValueError, match=message):
        register(make(**changed))


def test_sections_of_a_docstring():
    sections = documentation(make())
    assert sections["What"] == "a sum of a sum.\nAnd more about it."
    assert sections["Example"] == "x + y\n    + z"
    assert sections["Thread"] == "https://github.com/jax-ml/jax/issues/8239"


def test_code_may_have_a_word_below_it():
    mixed = "    x = 1\n\n    y = 2\n\nThat is shorter,\nand faster.\n\nMuch."
    assert list(passages("Instead", mixed)) == [
        (True, "x = 1\n\ny = 2"),
        (False, "That is shorter,\nand faster.\n\nMuch."),
    ]
    assert list(passages("Instead", "if x:\n    y")) == [(True, "if x:\n    y")]
    assert list(passages("Why", "because")) == [(False, "because")]


def test_rules_are_in_order_of_codes_and_have_families():
    codes = list(rules())
    assert codes == sorted(codes)
    assert all(code[3] in rule.FAMILIES for code in codes)


def test_an_unknown_rule_says_so():
    with pytest.raises(ValueError, match="no rule 'nothing-like-it': `jaxpr-opt rule` lists them"):
        named("nothing-like-it")


def test_a_finding_is_of_its_rule_and_target():
    from jaxpr_opt.lint.subject import subject

    def total(x):
        return jnp.sum(x)

    about = subject(total, jax.ShapeDtypeStruct((3,), "float32"))
    (found,) = make()().check(about)
    assert found.to_dict() == {
        "code": "JXO199",
        "rule": "sum-of-sums",
        "severity": "warning",
        "target": "total",
        "says": "too big",
        "reason": "it is",
        "fix": "make it small",
        "file": None,
        "line": None,
        "function": None,
        "shape": "",
        "bytes": 3,
        "formula": "",
        "fixed_by": None,
    }
