"""A predicate of counters and carries that stays false is carried."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType

import jaxpr_opt
from jaxpr_opt.cost.model import CostModel
from jaxpr_opt.passes.steps.remember_the_end import RememberTheEnd
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone

END = RememberTheEnd()
TOL = 0.3


MODEL = CostModel().but(question=0.0)
"""Programs here are small, and questions cost nothing."""


def better(x):
    y = jnp.tanh(x) * 0.7
    return y, jnp.max(jnp.abs(y - x))


def ends(goes, *, begun=0.0, length=6, reverse=False):
    """A loop whose steps go on while `goes(t, error)`."""

    def program(x):
        def step(s, t):
            _x, e = s
            return lax.cond(goes(t, e), lambda s: better(s[0]), lambda s: s, s), None

        start = x, x[0] * 0 if begun is None else jnp.asarray(begun, x.dtype)
        return lax.scan(step, start, jnp.arange(length), reverse=reverse)[0]

    return program


def errors(read, write=lambda t: t, *, begun=jnp.zeros, length=6, first=1, rows=1):
    """The same with an array of errors."""

    def program(x):
        def step(t, s):
            x, errs = s
            y, e = better(x)
            p = (t < first) | (read(errs, t) > TOL)
            new = lax.dynamic_update_slice(errs, jnp.full(rows, e), (write(t),))
            return jnp.where(p, y, x), jnp.where(p, new, errs)

        return lax.fori_loop(0, length, step, (x, begun(length + 4)))[0]

    return program


def several(n):
    return jnp.arange(n) / n


def test_a_step_that_is_taken_always():
    check_rewrite(
        END,
        ends(lambda t, e: (t == 0) | (e > TOL)),
        "f32[3]",
        diff="""
          fn (x:f32[3]) {
            i:i32[6] = iota
        -   c:f32[3], c1:f32[] = scan[6] carry(c=x, c1=0.0) xs(x=i) {
        +   c:f32[3], c1:f32[], go:bool[] = scan[6] carry(c=x, c1=0.0, go=True) xs(x=i) {
              e:bool[] = eq x 0
              g:bool[] = gt c1 0.3
              o:bool[] = or e g
        +     a1:bool[] = and go o
        -     c2:i32[] = convert_element_type o
        +     c2:i32[] = convert_element_type a1
        -     r:f32[3], r1:f32[] = cond o {
        +     r:f32[3], r1:f32[] = cond a1 {
                t:f32[3] = tanh c
                m:f32[3] = mul t 0.7
                s:f32[3] = sub m c
                a:f32[3] = abs s
                r:f32[] = reduce_max[axes=(0,)] a
                yield m, r
              } else {
                yield c, c1
              }
        -     yield carry(r, r1)
        +     yield carry(r, r1, a1)
            }
            return c, c1
          }
        """,
    )


@pytest.mark.parametrize(
    "goes",
    [
        pytest.param(lambda t, e: (t < 3) | (e > TOL), id="at least three"),
        pytest.param(lambda t, e: jnp.greater(3, t) | (e > TOL), id="turned"),
        pytest.param(lambda t, e: ~((t >= 3) & (e <= TOL)), id="not"),
        pytest.param(lambda t, e: ~(jnp.less_equal(2, t) & (e <= TOL)), id="not, turned"),
        pytest.param(lambda t, e: (-t > -3) | (e > TOL), id="counted down"),
        pytest.param(lambda t, e: (t == 0) | ((e > TOL) & jnp.isfinite(e)), id="nested"),
    ],
)
def test_counters(goes):
    """(1) They move one way."""
    alone(END, ends(goes), "f32[3]", fires=True)


@pytest.mark.parametrize(
    "goes",
    [
        pytest.param(lambda t, e: (t > 3) | (e > TOL), id="from a step on"),
        pytest.param(lambda t, e: jnp.less(3, t) | (e > TOL), id="turned"),
        pytest.param(lambda t, e: (t == 3) | (e > TOL), id="one step"),
        pytest.param(lambda t, e: (t % 2 == 0) | (e > TOL), id="every other"),
        pytest.param(lambda t, e: (t < 3) ^ (e > TOL), id="either"),
        pytest.param(lambda t, e: e > 0.1 * (3 - t), id="a bound that moves"),
    ],
)
def test_counters_that_start_it_again(goes):
    """(1)"""
    check_refuses(END, ends(goes), "f32[3]", because="may do something")


def test_a_loop_in_reverse():
    """(1) Its first step is the last row."""
    program = ends(lambda t, e: (t == 0) | (e > TOL), reverse=True, begun=1.0)
    check_refuses(END, program, "f32[3]", because="may do something")


def test_data():
    """(1) A stream may say anything."""

    def program(x, mask):
        def step(s, m):
            _, e = s
            return lax.cond(m | (e > TOL), lambda s: better(s[0]), lambda s: s, s), None

        return lax.scan(step, (x, 1.0), mask)[0]

    check_refuses(END, program, "f32[3]", "bool[6]", because="may do something")


@pytest.mark.parametrize("begun", [jnp.zeros, lambda n: -jnp.ones(n)], ids=["zeros", "-1"])
def test_an_array_of_errors(begun):
    alone(END, errors(lambda errs, t: errs[t - 1], begun=begun), "f32[3]", fires=True)


def test_other_places():
    """Rows that are written and read in other places, or two at once."""
    alone(END, errors(lambda e, t: e[t], lambda t: t + 1), "f32[3]", fires=True)
    alone(END, errors(lambda e, t: e[0]), "f32[3]", fires=True)  # a skipped step keeps it
    program = errors(lambda e, t: e[2 * t - 2], lambda t: 2 * t, rows=2, length=3)
    alone(END, program, "f32[3]", fires=True)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(errors(lambda e, t: e[t - 2], first=2), id="an earlier row"),
        pytest.param(errors(lambda e, t: e[t - 1], lambda t: t + 1), id="a row of the step before"),
        pytest.param(errors(lambda e, t: e[t - 1], rows=2), id="windows that overlap"),
        pytest.param(errors(lambda e, t: e[t - 1], lambda t: 5 - t), id="downwards"),
        pytest.param(errors(lambda e, t: e[t - 1], lambda t: t * t), id="anywhere"),
        pytest.param(errors(lambda e, t: e[t - 1], begun=jnp.ones), id="a number that goes on"),
        pytest.param(
            errors(lambda e, t: e[t - 1], begun=lambda n: jnp.arange(n) / n), id="several numbers"
        ),
        pytest.param(errors(lambda e, t: e[t - 3]), id="counted from the end twice"),
    ],
)
def test_rows_that_may_be_written(program):
    """(1)"""
    check_refuses(END, program, "f32[3]", because="may do something")


def test_an_array_that_is_replaced():
    """(1) A step that is taken writes all of it."""

    def program(x):
        def step(t, s):
            x, errs = s
            y, e = better(x)
            p = (t < 1) | (errs[t - 1] > TOL)
            return jnp.where(p, y, x), jnp.where(p, errs + e, errs)

        return lax.fori_loop(0, 6, step, (x, jnp.zeros(6)))

    check_refuses(END, program, "f32[3]", because="may do something")


def test_places_out_of_range():
    """(1) A read that is clamped reads a row that was written."""

    def program(x):
        def step(t, s):
            x, errs = s
            y, e = better(x)
            p = (t < 1) | (lax.dynamic_slice(errs, (t + 3,), (1,))[0] > TOL)
            return jnp.where(p, y, x), jnp.where(p, errs.at[t].set(e), errs)

        return lax.fori_loop(0, 6, step, (x, jnp.zeros(6)))

    check_refuses(END, program, "f32[3]", because="may do something")


def test_what_skips_already():
    """A predicate of carries alone, or of counters."""
    alone(END, ends(lambda t, e: e <= TOL), "f32[3]", fires=False)
    alone(END, ends(lambda t, e: t < 3), "f32[3]", fires=False)
    alone(END, ends(lambda t, e: (t < 3) & (e <= TOL)), "f32[3]", fires=False)


def test_a_step_that_changes_something():
    """Whatever the predicate says."""

    def program(x):
        def step(s, t):
            x, e, k = s
            y, d = better(x)
            p = (t == 0) | (e > TOL)
            return (jnp.where(p, y, x), jnp.where(p, d, e), k * 2), None

        return lax.scan(step, (x, 0.0, 1.0), jnp.arange(6))[0]

    alone(END, program, "f32[3]", fires=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        ends(lambda t, e: (t < 2) | (e > TOL), length=40),
        errors(lambda e, t: e[t - 1], length=40),
        errors(lambda e, t: e[t - 1], begun=lambda n: -jnp.ones(n), length=40),
    ],
)
def test_it_ends_early(program):
    """Forward, in gradients, and in batches; with numbers that are none."""

    def loss(x):
        return sum(jnp.sum(each) for each in jax.tree.leaves(program(x)))

    rows = jnp.array([[1.0, 2.0, 0.1], [0.0, 0.0, 0.0], [jnp.nan, 1.0, 2.0], [jnp.inf, 0.0, 9.0]])
    for fun, x in ((loss, rows[0]), (jax.vmap(loss), rows), (jax.grad(loss), rows[0])):
        names = jaxpr_opt.explain(fun, x)
        assert "remember-the-end" in str(names)
        assert_close(jax.jit(fun)(x), jaxpr_opt.optimize(fun)(x))
    gradients = jax.vmap(jax.grad(loss))
    assert_close(jax.jit(gradients)(rows), jaxpr_opt.optimize(gradients)(rows))
    ours = jax.jit(jax.grad(jaxpr_opt.optimize(loss)))
    assert_close(jax.jit(jax.grad(loss))(rows[0]), ours(rows[0]))


def test_places_that_are_streamed():
    """The next step reads at the place in the next row; upwards (1) and downwards."""

    def program(down):
        def go(x):
            def step(s, at):
                x, errs = s
                y, e = better(x)
                p = (at[1] < 1) | (errs[at[0]] > TOL)
                return (jnp.where(p, y, x), jnp.where(p, errs.at[at[1]].set(e), errs)), None

            t = jnp.arange(6)
            rows = jnp.stack([9 - 2 * t if down else t - 1 + 1, t], 1)
            return lax.scan(step, (x, jnp.zeros(10)), rows)[0]

        return go

    check_refuses(END, program(down=True), "f32[3]", because="may do something")
    alone(END, program(down=False), "f32[3]", fires=True)


def test_several_devices():
    """Each would carry a truth value of its own."""
    mesh = jax.make_mesh((jax.device_count(),), ("i",), axis_types=(AxisType.Auto,))
    program = ends(lambda t, e: (t < 2) | (e > TOL), length=40, begun=None)
    spec = jax.P("i")
    each = jax.shard_map(lambda x: program(x)[0], mesh=mesh, in_specs=spec, out_specs=spec)
    x = jnp.array([1.0, 2.0, 0.1, 7.0])
    assert_close(jax.jit(each)(x), jaxpr_opt.optimize(each)(x))
