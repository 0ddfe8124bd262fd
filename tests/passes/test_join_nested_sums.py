"""An inner loop goes on with the sum of the outer one."""

import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.passes.reassociating.join_nested_sums import JoinNestedSums
from jaxpr_opt.testing import check_refuses, check_rewrite
from tests.loops import alone

JOIN = JoinNestedSums()


def inner(start, x):
    return lax.scan(lambda s, y: (s + jnp.sin(y), ()), start, x)[0]


def nested(step):
    def program(xs):
        return lax.scan(lambda c, x: (step(c, x), ()), jnp.ones(4), xs)[0]

    return program


def test_a_sum_of_sums():
    """(1, 2)"""
    check_rewrite(
        JOIN,
        nested(lambda c, x: c + inner(jnp.zeros(4), x)),
        "f32[3,5,4]",
        diff="""
              fn (xs:f32[3,5,4]) {
                b:f32[4] = broadcast_in_dim 1.0
                c:f32[4] = scan[3] carry(c=b) xs(x=xs) {
                  b:f32[4] = broadcast_in_dim 0.0
            -     c1:f32[4] = scan[5] carry(c=b) xs(x=x) {
            +     c1:f32[4] = scan[5] carry(c=c) xs(x=x) {
                    s:f32[4] = sin x
                    a:f32[4] = add c s
                    yield carry(a)
                  }
            -     a:f32[4] = add c c1
            -     yield carry(a)
            +     yield carry(c1)
                }
                return c
              }
        """,
    )


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (lambda c, x: (s := inner(jnp.zeros(4), x), c + s * s.sum())[1], None),
        (lambda c, x: (s := inner(jnp.zeros(4), x), (c + s) * s)[1], "read elsewhere"),  # (1)
        (lambda c, x: c + inner(jnp.ones(4), x), None),  # (1) it does not start at zero
        (lambda c, x: (s := inner(jnp.zeros(4), x), c * x[0] + s)[1], "computed after"),  # (2)
        (lambda c, x: (c + inner(jnp.zeros(4), x)) * jnp.cos(c), "read afterwards"),
    ],
)
def test_other_sums_are_left(step, reason):
    program = nested(step)
    if reason is None:
        alone(JOIN, program, "f32[3,5,4]", fires=False)
    else:
        check_refuses(JOIN, program, "f32[3,5,4]", because=reason)


def test_another_type_is_refused():
    """(2) A number of Python has a weak type."""

    def program(xs):
        def step(c, x):
            weak = jnp.where(x[0] > 0, 1.0, 2.0)
            s, _ = lax.scan(lambda s, y: (s + y, ()), jnp.float32(0), x)
            return lax.add(weak, s), c

        return lax.scan(step, jnp.float32(0), xs)

    check_refuses(JOIN, program, "f32[3,5]", because="is a ~f32[]")


def test_another_sum_of_the_loop_is_left():
    """(1) Only what the sum reads goes on with it."""

    def program(xs):
        def step(c, x):
            start = (jnp.zeros(4), jnp.zeros(4))
            (s, t), _ = lax.scan(lambda s, y: ((s[0] + y, s[1] + y * y), ()), start, x)
            return c + t, s

        return lax.scan(step, jnp.ones(4), xs)

    alone(JOIN, program, "f32[3,5,4]", fires=True)


def test_a_loop_that_does_more_than_add_is_left():
    """(1)"""

    def program(xs):
        def step(c, x):
            s, _ = lax.scan(lambda s, y: (0.5 * s + y, ()), jnp.zeros(4), x)
            return c + s, ()

        return lax.scan(step, jnp.ones(4), xs)[0]

    alone(JOIN, program, "f32[3,5,4]", fires=False)
