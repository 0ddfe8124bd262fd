"""The helpers that authors of passes test with: they must fail when the pass is wrong."""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.testing import (
    assert_close,
    assert_same,
    assert_same_bits,
    assert_same_derivatives,
    check_refuses,
    check_rewrite,
    evaluate_exactly,
    traced,
)


@dataclass(frozen=True)
class CancelNegations(Pass):
    """`neg (neg x)` is `x`; `wrong` says how to get it wrong."""

    name = "cancel-negations"
    wrong: str = ""

    def find(self, op: Op) -> Iterator[Match]:
        if op.name == "neg" and op.operands[0].op is not None and op.operands[0].op.name == "neg":
            yield Match(op, "" if self.wrong == "mute" else "cancels two negations")

    def refuse(self, match: Match) -> str | None:
        (inner,) = match.op.operands
        return "the inner negation is read elsewhere" if len(inner.uses) > 1 else None

    def rewrite(self, match: Match, rw: Rewriter) -> None:
        (inner,) = match.op.operands
        x = inner.op.operands[0]
        if self.wrong == "value":
            x = rw.insert(lambda a: a * 1.0000001, x, before=match.op)
        if self.wrong == "nan":
            x = rw.insert(lambda a: jnp.where(jnp.isnan(a), 0.0, a), x, before=match.op)
        if self.wrong == "out of range":
            x = rw.insert(lambda a: jnp.clip(a, 0, 3), x, before=match.op)
        if self.wrong == "at 11":
            x = rw.insert(lambda a: jnp.where(a == 11, 0, a), x, before=match.op)
        if self.wrong == "derivative":
            x = rw.insert(lax.stop_gradient, x, before=match.op)
        rw.replace(match.op.result, x)
        rw.erase(match.op)
        rw.erase(inner.op)
        if self.wrong == "graph":
            x.uses.clear()


DIFF = """
  fn (x:f32[3]) {
-   n:f32[3] = neg x
-   n1:f32[3] = neg n
-   e:f32[3] = exp n1
+   e:f32[3] = exp x
    return e
  }
"""
TARGET = (lambda x: jnp.exp(lax.neg(lax.neg(x)))), "f32[3]"


def test_a_right_rewrite_passes():
    found = check_rewrite(CancelNegations(), *TARGET, diff=DIFF)
    assert found.changed and found.after.equations == 1


def test_in_a_loop_with_given_arguments():
    def fun(x, xs):
        return lax.scan(lambda c, r: (lax.neg(lax.neg(r)) * c, jnp.sin(c)), x, xs)

    diff = """
      fn (x:f32[], xs:f32[4]) {
        c:f32[], ys:f32[4] = scan[4] carry(c=x) xs(x=xs) {
    -     n:f32[] = neg x
    -     n1:f32[] = neg n
    -     m:f32[] = mul n1 c
    +     m:f32[] = mul x c
          s:f32[] = sin c
          yield carry(m) ys(s)
        }
        return c, ys
      }
    """
    check_rewrite(CancelNegations(), fun, jnp.float32(2), jnp.arange(4.0), diff=diff, saves_bytes=0)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("value", "should be"),
        ("nan", "nan"),
        ("derivative", "derivatives"),
        ("graph", "every operand is listed as a use"),
        ("mute", "a rewrite without words"),
    ],
)
def test_a_wrong_rewrite_fails(wrong, complaint):
    with pytest.raises(Exception, match=complaint):
        check_rewrite(CancelNegations(wrong), *TARGET, diff=DIFF)


@pytest.mark.parametrize(
    ("wrong", "args"),
    [
        ("out of range", ("i32[3]", "f32[2]")),
        ("at 11", (jnp.array([3, -2, 11]), "f32[2]")),
        ("at 11", (11, "f32[2]")),
    ],
)
def test_integers_are_tried_out_of_range_and_as_given(wrong, args):
    with pytest.raises(AssertionError, match="should be"):
        check_rewrite(CancelNegations(wrong), lambda i, x: (lax.neg(lax.neg(i)), x), *args, diff="")


def test_another_diff_fails_and_prints_what_it_is():
    with pytest.raises(AssertionError) as error:
        check_rewrite(CancelNegations(), *TARGET, diff=DIFF.replace("exp x", "exp n"))
    assert "+   e:f32[3] = exp x" in str(error.value)


def test_other_savings_fail():
    with pytest.raises(AssertionError, match="saves 0 bytes of residuals, not 4"):
        check_rewrite(CancelNegations(), *TARGET, diff=DIFF, saves_bytes=4)


def read_elsewhere(x):
    n = -x
    return n, -n


def test_refusals():
    check_refuses(CancelNegations(), read_elsewhere, "f32[3]", because="is read elsewhere")
    with pytest.raises(AssertionError, match="did not refuse: cancels two negations"):
        check_refuses(CancelNegations(), *TARGET, because="")
    with pytest.raises(AssertionError, match="found nothing to refuse"):
        check_refuses(CancelNegations(), jnp.sin, "f32[3]", because="")
    with pytest.raises(AssertionError, match="the inner negation is read elsewhere"):
        check_refuses(CancelNegations(), read_elsewhere, "f32[3]", because="another reason")


def test_bits():
    nan, one = jnp.float32(jnp.nan), jnp.float32(1)
    assert_same_bits((nan, jnp.float32(0.0)), (-nan, jnp.float32(-0.0)))
    assert_same_bits(jax.random.key(1), jax.random.key(1))
    with pytest.raises(AssertionError, match=r"values\[1\] should be"):
        assert_same_bits((one, one), (one, jnp.nextafter(one, 2 * one)))
    with pytest.raises(AssertionError, match=r"i32\[\]"):
        assert_same_bits(jnp.float32(1), jnp.int32(1))
    with pytest.raises(AssertionError, match="another structure"):
        assert_same_bits([one], (one,))


def test_rounding_beside_what_is_infinite():
    """Of a complex number, each part may be."""
    assert_close(jnp.array([complex(jnp.inf, 3.0)]), jnp.array([complex(jnp.inf, 3.000001)]))
    for other in (complex(jnp.inf, 4.0), complex(-jnp.inf, 3.0), complex(2.0, 3.0)):
        with pytest.raises(AssertionError):
            assert_close(jnp.array([complex(jnp.inf, 3.0)]), jnp.array([other]))


def test_rounding():
    one = jnp.float32(1)
    assert_close(one, jnp.nextafter(one, 2 * one))
    with pytest.raises(AssertionError, match="values should be"):
        assert_close(one, one + 1e-3)
    with pytest.raises(AssertionError, match="values should be"):
        assert_close(jnp.int32(1), jnp.int32(2))


def test_functions():
    x = {"a": jnp.linspace(0.1, 1.0, 4), "n": jnp.arange(4)}
    assert_same(lambda t: t["a"] ** 2 + t["n"], lambda t: t["n"] + t["a"] * t["a"], (x,))
    with pytest.raises(AssertionError, match="forward derivatives"):
        assert_same(lambda t: t["a"], lambda t: lax.stop_gradient(t["a"]), (x,))
    with pytest.raises(AssertionError, match="values"):
        assert_same(lambda t: t["a"], lambda t: t["a"] + 1, (x,))


def test_what_cannot_be_differentiated_need_not_be():
    def loop(x):
        return lax.while_loop(lambda c: c < 10, lambda c: c * 2 + 1, x)

    assert_same_derivatives(loop, loop, 1.0)
    with pytest.raises(AssertionError, match="forward derivatives"):
        assert_same_derivatives(loop, lambda x: loop(lax.stop_gradient(x)), 1.0)


def test_an_endless_loop_is_noticed():
    jaxpr = traced(lambda x: lax.while_loop(lambda c: c >= 0, lambda c: c, x), 1.0)
    with pytest.raises(RuntimeError, match="did not end"):
        evaluate_exactly(jaxpr, jnp.float32(1))


def test_numbers_that_are_equal_and_not_the_same_are_other_equations():
    filled = lambda number: lambda x: x.at[jnp.array([3])].get(mode="fill", fill_value=number)
    for number in (0.0, -0.0):
        (found,) = evaluate_exactly(traced(filled(number), "f32[3]"), jnp.ones(3))
        assert jnp.signbit(found) == jnp.signbit(number)
