"""The seeds and the threads: the report names the line at which it hurts, and why."""

import inspect
import re

import jax
import pytest

from jaxpr_opt import optimize
from jaxpr_opt.frames import name_of
from jaxpr_opt.lint.rule import named
from jaxpr_opt.lint.run import check, defaults, lint
from jaxpr_opt.lint.subject import subject
from tests.lint import threads

MARKER = re.compile(r"# finding: (JXO\d+)")


def marked(program):
    """The rules and lines that the comments in a program's source name."""
    function = inspect.unwrap(program)
    lines, first = inspect.getsourcelines(function)
    found = {(m[1], first + n) for n, line in enumerate(lines) if (m := MARKER.search(line))}
    assert found, f"{name_of(program)} marks no line"
    return found


def reported(findings):
    findings = list(findings)
    assert all(each.frame is not None and each.frame[0] == threads.__file__ for each in findings)
    return {(each.code, each.frame[1]) for each in findings}


PROGRAMS = [pytest.param(f, args, id=name_of(f)) for f, args in threads.PROGRAMS]


@pytest.mark.parametrize(("program", "args"), PROGRAMS)
def test_the_right_line_for_the_right_reason_and_nothing_else(program, args):
    assert reported(lint(program, *args)) == marked(program)


@pytest.mark.parametrize(("program", "args"), PROGRAMS)
def test_what_optimize_is_said_to_fix_is_fixed(program, args):
    fixed = reported(each for each in lint(program, *args) if each.fixed_by)
    left = lint(optimize(program), *args)
    assert reported(left).isdisjoint(fixed)
    assert not any(each.fixed_by for each in left)


def test_a_caller_who_gives_up_what_is_replaced_is_told_to_donate_it():
    about = subject(threads.convolutions, threads.f32(2**10, 32, 32, 1))
    assert check(about, defaults()) == ()
    about.mode = "train-step"
    assert reported(check(about, defaults())) == marked(threads.convolutions)


def test_small_ones_are_not_worth_a_finding():
    small = threads.f32(50)
    assert lint(jax.grad(lambda xs: threads.carried_slices(xs[:, None])), small) == ()


def test_many_scalars_are_reported_to_those_who_ask():
    program, args = jax.grad(threads.many_scalars), (threads.f32(1), threads.f32(100))
    about = subject(program, *args)
    assert reported(check(about, [named("many-scalar-carries")])) == marked(program)
    assert reported(lint(program, *args)) == set()
