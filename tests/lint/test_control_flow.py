"""Loops and branches: what is said, and what is not worth saying."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cli.main import main
from jaxpr_opt.lint.rule import named
from jaxpr_opt.lint.run import check, defaults, lint
from jaxpr_opt.lint.subject import subject
from tests.lint import threads
from tests.lint.threads import WEIGHTS, f32, flags, i32

BOUNDED = WEIGHTS, f32(32, 256), i32()


def codes(program, *args):
    return [each.code for each in lint(program, *args)]


def of_rule(name, program, *args):
    return list(check(subject(program, *args), [named(name)]))


# ---------------------------------------------------------------- loop-could-stop-early


def test_what_is_said_of_a_loop_that_could_stop():
    (finding,) = of_rule("JXO301", jax.grad(threads.bounded_while, (0, 1)), *BOUNDED)
    assert finding.says == "all 1,024 steps run, though the loop may be done earlier"
    assert re.fullmatch(r"a step that does nothing still makes \d+(\.\d)? kB", finding.reason)
    assert finding.fix.startswith("`optimize` does it (exit-loop-early); or put `jax.checkpoint`")
    assert finding.bytes >= 1024 * 4 * 32 * 256  # jax 0.10 stores the weights too


def test_without_a_gradient_a_skipped_step_costs_nothing():
    assert list(check(subject(threads.bounded_while, *BOUNDED), defaults())) == []


def test_a_checkpoint_on_the_step_is_what_the_rule_asks_for():
    def loop(w, x, steps):
        @jax.checkpoint
        def step(carry, _):
            go = lambda c: (jnp.tanh(c[0] @ w), c[1] + 1)
            return lax.cond(carry[1] < steps, go, lambda c: c, carry), None

        return jnp.sum(lax.scan(step, (x, 0), None, length=64)[0][0])

    assert of_rule("JXO301", jax.grad(loop, (0, 1)), *BOUNDED) == []


def test_a_mask_that_is_known_beforehand_is_no_reason_to_stop():
    def masked(w, xs, lengths):
        def step(h, inputs):
            t, x = inputs
            return jnp.where((t < lengths)[:, None], jnp.tanh(x + h @ w), h), None

        h = jnp.zeros(xs.shape[1:])
        return jnp.sum(lax.scan(step, h, (jnp.arange(xs.shape[0]), xs))[0])

    assert codes(jax.grad(masked), WEIGHTS, f32(64, 32, 256), i32(32)) == []


def test_a_refusal_is_the_reason():
    def loop(w, x, steps):
        def step(carry, _):
            go = lambda c: (jnp.tanh(c[0] @ w), c[1] + 1)
            return lax.cond(carry[1] < steps, go, lambda c: c, carry), None

        return jnp.sum(lax.scan(step, (x, 0), None, length=64, unroll=True)[0][0])

    (finding,) = of_rule("JXO301", jax.grad(loop, (0, 1)), *BOUNDED)
    assert finding.fixed_by == ""
    assert finding.reason.endswith("`optimize` does not change it: it asks to be unrolled")
    assert finding.fix.startswith("put `jax.checkpoint`")


# ---------------------------------------------------------------- while loops and gradients


@pytest.mark.parametrize("around", [lambda f: f, jax.jit, jax.checkpoint])
def test_a_gradient_through_a_while_is_a_finding_and_no_traceback(around):
    (finding,) = lint(jax.grad(around(threads.newton)), f32())
    assert (finding.code, finding.severity, finding.bytes) == ("JXO302", "error", None)
    assert finding.frame[0] == threads.__file__
    assert finding.frame[1] == threads.newton.__code__.co_firstlineno + 7
    assert finding.fix.startswith("differentiate `jaxpr_opt.optimize` of the function")
    assert codes(jax.grad(around(optimize(threads.newton))), f32()) == []


def test_on_the_command_line_it_is_a_finding_too(capsys):
    target = f"{threads.__file__}:newton"
    assert main(["lint", target, "--grad", "--args", "f32[]"]) == 1
    out = capsys.readouterr().out
    assert "JXO302 while-loop-on-a-differentiated-path" in out
    assert "Traceback" not in out


def test_forward_mode_through_a_while_is_fine():
    assert codes(jax.jacfwd(threads.newton), f32()) == []
    assert codes(threads.newton, f32()) == []


def test_other_failures_are_the_callers():
    with pytest.raises(TypeError, match="incompatible shapes"):
        lint(lambda x, y: x + y, f32(2), f32(3))


def test_the_rule_must_run_to_be_heard():
    about = subject(jax.grad(threads.newton), f32())
    with pytest.raises(ValueError, match="Reverse-mode"):
        check(about, [named("JXO301")])


# ---------------------------------------------------------------- predicates under vmap


def test_what_is_said_of_a_vmapped_branch():
    args = WEIGHTS, f32(32, 256), flags(32, 64)
    (finding,) = of_rule("JXO303", threads.vmapped_branches, *args)
    assert finding.shape == "f32[32,256,256]"
    assert finding.formula == "64 x 8.39 MB"
    assert "for each row of the batch" in finding.says
    assert finding.fix.startswith("compute the branch for the whole batch")
    (finding,) = of_rule("JXO303", jax.grad(threads.vmapped_branches), *args)
    assert finding.fix.startswith("`optimize` does not store the copies; to avoid them, ")


def test_a_vmapped_branch_that_reads_its_own_row_only_is_a_select_like_any():
    def one(state, active):
        step = lambda s, a: (lax.cond(a, jnp.tanh, lambda s: s, s), None)
        return lax.scan(step, state, active)[0]

    assert codes(jax.vmap(one), f32(32, 256 * 256), flags(32, 64)) == []


def test_a_where_is_no_branch():
    def one(state, active, w):
        step = lambda s, a: (jnp.where(a, jnp.tanh(s @ w), s), None)
        return lax.scan(step, state, active)[0]

    program = jax.grad(lambda w, *rest: jnp.sum(jax.vmap(one, (0, 0, None))(*rest, w)))
    assert codes(program, WEIGHTS, f32(32, 256), flags(32, 64)) == []
