"""Running rules."""

from __future__ import annotations

import gc
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxpr_opt
from jaxpr_opt import settings
from jaxpr_opt.lint.config import Config
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.findings import Findings
from jaxpr_opt.lint.options import Spec
from jaxpr_opt.lint.run import Run, check
from jaxpr_opt.lint.subject import subject
from jaxpr_opt.lint.target import Target


def finding(severity="warning", nbytes=None, code="JXO101", says="s", frame=None):
    return Finding(code, "a-rule", severity, "t", says, "r", "f", frame, bytes=nbytes)


class Finds:
    def __init__(self, *findings, subsumes=()):
        self.findings, self.code, self.subsumes = findings, findings[0].code, subsumes

    def check(self, subject):
        return iter(self.findings)


def test_findings_come_worst_first_and_once():
    note, small = finding("note", 9, says="n"), finding(nbytes=1, says="small")
    big, error = finding(nbytes=5, says="big"), finding("error", says="e")
    about = subject(jnp.sin, 1.0)
    assert check(about, [Finds(note, small), Finds(big, error, big)]) == (error, big, small, note)


def test_one_problem_is_one_finding_of_the_rule_that_says_most():
    here, there = ("m.py", 3, "f"), ("m.py", 4, "f")
    exact = finding(code="JXO202", frame=here)
    same, other = finding(frame=here), finding(frame=there)
    found = check(subject(jnp.sin, 1.0), [Finds(same, other), Finds(exact, subsumes={"JXO101"})])
    assert found == (other, exact)


def test_linting_a_function_that_is_fine():
    assert jaxpr_opt.lint(jnp.sin, jax.ShapeDtypeStruct((3,), "float32")) == ()


def test_findings_can_be_printed():
    text = str(Findings((finding(nbytes=4_200_000, says="it is too big", frame=("m.py", 3, "f")),)))
    assert text.splitlines()[:4] == [
        "m.py:3 in f",
        "  warning JXO101 a-rule",
        "  it is too big",
        "  costs: 4.2 MB",
    ]
    assert str(Findings()) == "No findings."


def test_lint_makes_no_arrays_and_compiles_nothing():
    """Weights of 4 TB, in a loop of 10,000 steps that keeps more than that."""
    compiled = []

    def listen(event, *_, **__):
        if "compile" in event:
            compiled.append(event)

    def arguments():
        return jnp.ones((2**20, 2**20)), jnp.zeros((10_000, 2**20))

    def loss(w, xs):
        return lax.scan(lambda c, x: (jnp.tanh(w @ c + x), None), xs[0], xs)[0].sum()

    target = Target(name="t", function=loss, given=arguments, spec=Spec(mode="gradient"))
    before = {id(array) for array in jax.live_arrays()}
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        checked = run(target).targets[0]
    finally:
        jax.monitoring.clear_event_listeners()
    assert checked.error == ""
    assert checked.figures["residual_bytes"] > 2 * 10_000 * 2**20 * 4 - 1
    assert not any("backend_compile" in event for event in compiled)
    assert not [array.shape for array in jax.live_arrays() if id(array) not in before]


def run(*targets, rules=None):
    config = Config(root=Path.cwd())
    return Run(config, config.chosen(None, ()) if rules is None else rules).result(targets)


def test_a_rule_that_breaks_is_named():
    class Breaks:
        code, name = "JXO199", "breaks-always"

        def check(self, subject):
            raise ZeroDivisionError("at last")

    target = Target(name="t", function=jnp.sin, given=("f32[3]",))
    with settings.override(strict=False):
        checked = run(target, rules=(Breaks(),)).targets[0]
    assert checked.error.startswith(
        "t: the rule breaks-always failed: ZeroDivisionError: at last (tests/lint/test_run.py:"
    )
    with pytest.raises(ZeroDivisionError):
        run(target, rules=(Breaks(),))


@pytest.mark.parametrize("is_enabled", [True, False])
def test_garbage_is_collected_as_before(is_enabled):
    """A target that cannot be traced changes nothing about that."""
    seen = []

    def program(x):
        seen.append(gc.isenabled())
        raise ValueError

    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        checked = run(Target(name="raises", function=program, given=("f32[]",)), rules=())
        assert "raised while tracing" in checked.targets[0].error
        assert (seen, gc.isenabled()) == ([False], is_enabled)
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_linting_what_is_no_function():
    with pytest.raises(TypeError, match="lint: fun must be callable, got 3"):
        jaxpr_opt.lint(3)
