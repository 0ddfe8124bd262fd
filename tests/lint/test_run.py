"""Running rules."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import jaxpr_opt
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.run import check
from jaxpr_opt.lint.subject import subject


def finding(severity="warning", nbytes=None, code="JXO101", says="s", frame=None):
    return Finding(code, "a-rule", severity, "t", says, "r", "f", frame, bytes=nbytes)


class Finds:
    def __init__(self, *findings):
        self.findings = findings

    def check(self, subject):
        return iter(self.findings)


def test_findings_come_worst_first_and_once():
    note, small = finding("note", 9, says="n"), finding(nbytes=1, says="small")
    big, error = finding(nbytes=5, says="big"), finding("error", says="e")
    about = subject(jnp.sin, 1.0)
    assert check(about, [Finds(note, small), Finds(big, error, big)]) == (error, big, small, note)


def test_linting_a_function_that_is_fine():
    assert jaxpr_opt.lint(jnp.sin, jax.ShapeDtypeStruct((3,), "float32")) == ()


def test_linting_what_is_no_function():
    with pytest.raises(TypeError, match="lint: fun must be callable, got 3"):
        jaxpr_opt.lint(3)
