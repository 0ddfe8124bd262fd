"""Budgets, and what a program cost before."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from jaxpr_opt.lint.options import Limit, Options, Spec
from jaxpr_opt.lint.parts import Earlier, parts
from jaxpr_opt.lint.rule import named
from jaxpr_opt.lint.target import Target
from tests.lint import programs
from tests.lint.programs import KEPT

INPUTS = (8 * 8 + 64 * 8) * 4


def subject(**options):
    spec = Spec(mode="gradient")
    target = Target(name="t", function=programs.loss, given=programs.arguments, spec=spec)
    return target.subject(Options(**options))


def found(rule, **options):
    return list(named(rule).check(subject(**options)))


def test_the_program_costs_what_the_budgets_are_for():
    about = subject()
    assert (about.input_bytes, about.residual_bytes) == (INPUTS, KEPT)
    assert about.peak_bytes > INPUTS + KEPT


def test_without_a_budget_nothing_is_over_it():
    assert found("residual-budget") == []
    assert found("peak-budget") == []
    assert found("more-than-before") == []


@pytest.mark.parametrize(
    ("limit", "severity"),
    [
        (Limit(fail=KEPT), None),
        (Limit(fail=KEPT - 1), "error"),
        (Limit(warn=KEPT - 1), "note"),
        (Limit(warn=KEPT - 1, fail=KEPT), "note"),
        (Limit(warn=1, fail=2), "error"),
    ],
)
def test_residuals_over_budget(limit, severity):
    severities = [f.severity for f in found("residual-budget", max_residual_bytes=limit)]
    assert severities == ([] if severity is None else [severity])


def test_the_finding_names_the_largest_residuals():
    (finding,) = found("residual-budget", max_residual_bytes=Limit(fail=2000))
    assert finding.says == "the gradient keeps 4.1 kB, over the budget of 2 kB"
    assert finding.reason.count("f32[64,8], 2.05 kB") == 2
    assert "in step" in finding.reason
    assert (finding.bytes, finding.shape) == (KEPT, "f32[64,8]")
    file, line, function = finding.frame
    assert (Path(file).name, function) == ("programs.py", "loss.<locals>.step")
    assert "sin" in Path(file).read_text().splitlines()[line - 1]


def test_residuals_in_units_of_the_inputs():
    ratio = KEPT / INPUTS
    assert found("residual-budget", max_residual_ratio=Limit(fail=ratio)) == []
    limits = {"max_residual_ratio": Limit(fail=1.5), "max_residual_bytes": Limit(warn=2000)}
    (finding,) = found("residual-budget", **limits)
    assert finding.severity == "error"
    assert finding.says == (
        "the gradient keeps 4.1 kB, over the budget of 2 kB;"
        " 1.78 times its inputs, over the budget of 1.5"
    )


def test_the_peak_over_budget():
    (finding,) = found("peak-budget", max_peak_bytes=Limit(fail=5000))
    assert "over the budget of 5 kB" in finding.says
    assert finding.frame[2] == "loss"
    assert found("peak-budget", max_peak_bytes=Limit(math.inf, 10**6)) == []


def test_growth_since_the_baseline():
    rule, about = named("more-than-before"), subject()
    about.before = {"residual_bytes": KEPT, "peak_bytes": about.peak_bytes}
    assert list(rule.check(about)) == []
    about.before = {"residual_bytes": int(KEPT / 1.005)}
    assert list(rule.check(about)) == []  # half a percent
    about.before = {"residual_bytes": KEPT // 2, "peak_bytes": 0}
    says = [finding.says for finding in rule.check(about)]
    assert says[0] == "residuals have grown from 2.05 kB to 4.1 kB"
    assert says[1].startswith("the estimated peak has grown from 0 B to")


def test_growth_is_told_at_the_value_and_line_that_grew():
    rule, about = named("more-than-before"), subject()
    now = parts(about.graph)["residual_bytes"]
    (cosine,) = (part for part in now if part.value == "cos")
    then = {part.name(Path()): part.bytes for part in now}
    then[cosine.name(Path())] //= 4
    about.before = {"residual_bytes": sum(then.values())}
    about.earlier = Earlier("lint.json", Path(), {"residual_bytes": then})
    (finding,) = rule.check(about)
    assert finding.says == (
        "residuals have grown from 2.56 kB to 4.1 kB, most of it in `cos`: 1.54 kB more"
    )
    assert finding.reason == "was 2.56 kB in lint.json"
    assert (finding.frame, finding.shape) == (cosine.frame, "f32[8]")
