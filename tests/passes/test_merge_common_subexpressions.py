"""What is computed twice is computed once; what only looks alike is not merged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

from jaxpr_opt.bridge import compat_types
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.verify import verify
from jaxpr_opt.passes.laws.merge_common_subexpressions import MergeCommonSubexpressions
from jaxpr_opt.testing import check_rewrite, run_alone, traced
from tests.loops import alone

CSE = MergeCommonSubexpressions()


def test_outer_value_serves_inside_a_loop():
    """(3) The value in the body is the one before the loop."""

    def program(x, xs):
        a = jnp.sin(x)
        return lax.scan(lambda c, y: (c * jnp.sin(x) + y, None), a, xs)[0]

    check_rewrite(
        CSE,
        program,
        "f32[3]",
        "f32[8,3]",
        diff="""
          fn (x:f32[3], xs:f32[8,3]) {
            s:f32[3] = sin x
            c:f32[3] = scan[8] carry(c=s) xs(x1=xs) {
        -     s:f32[3] = sin x
              m:f32[3] = mul c s
              a:f32[3] = add m x1
              yield carry(a)
            }
            return c
          }
        """,
    )


def test_what_another_region_computes_is_out_of_scope():
    """(3) Of two ops alike in a loop none is there for the next loop."""

    def program(x, xs):
        def loop(c):
            return lax.scan(lambda c, y: (c * (x * 2.0) + y * (x * 3.0), None), c, xs)[0]

        return loop(loop(x))

    graph = import_jaxpr(traced(program, "f32[3]", "f32[8,3]"))
    assert not run_alone((CSE,), graph).touched
    verify(graph)


def test_slots_that_hold_the_same():
    """(5) Streams of one operand, stacks of one value."""

    def program(c, xs):
        def step(c, row):
            x, y = row
            s = jnp.sin(x * c)
            t = jnp.sin(y * c)
            return c + s, (s, t)

        return lax.scan(step, c, (xs, xs))

    check_rewrite(
        CSE,
        program,
        "f32[3]",
        "f32[8,3]",
        diff="""
          fn (c:f32[3], xs:f32[8,3]) {
            c1:f32[3], ys:f32[8,3], ys1:f32[8,3] = scan[8] carry(c=c) xs(x=xs, x1=xs) {
              m:f32[3] = mul x c
              s:f32[3] = sin m
        -     m1:f32[3] = mul x1 c
        -     s1:f32[3] = sin m1
              a:f32[3] = add c s
        -     yield carry(a) ys(s, s1)
        +     yield carry(a) ys(s, s)
            }
        -   return c1, ys, ys1
        +   return c1, ys, ys
          }
        """,
    )


def test_carries_that_stay_equal():
    """(5) The same `init` and the same `next`."""

    def program(x, xs):
        def step(carry, y):
            a, b = carry
            n = a + b * y
            return (n, n), None

        return lax.scan(step, (x, x), xs)[0]

    check_rewrite(
        CSE,
        program,
        "f32[3]",
        "f32[8,3]",
        diff="""
          fn (x:f32[3], xs:f32[8,3]) {
            c:f32[3], c1:f32[3] = scan[8] carry(c=x, c1=x) xs(x=xs) {
        -     m:f32[3] = mul c1 x
        +     m:f32[3] = mul c x
              a:f32[3] = add c m
              yield carry(a, a)
            }
        -   return c, c1
        +   return c, c
          }
        """,
    )


def test_results_of_a_cond():
    """(5) The same value in every branch."""

    def program(i, x):
        def taken():
            s = jnp.sin(x)
            return s, s * 2.0, s

        return lax.switch(i, [taken, lambda: (x, x, x), lambda: (-x, x, -x)])

    check_rewrite(
        CSE,
        program,
        "i32[]",
        "f32[3]",
        diff="""
          fn (i:i32[], x:f32[3]) {
            c:i32[] = clamp 0 i 2
            r:f32[3], r1:f32[3], r2:f32[3] = switch c case 0 {
              s:f32[3] = sin x
              m:f32[3] = mul s 2.0
              yield s, m, s
            } case 1 {
              yield x, x, x
            } case 2 {
              n:f32[3] = neg x
        -     n1:f32[3] = neg x
        -     yield n, x, n1
        +     yield n, x, n
            }
        -   return r, r1, r2
        +   return r, r1, r
          }
        """,
    )


def test_branches_do_not_see_each_other():
    """(3) Condition: the first dominates the second."""

    def program(i, x):
        branches = [lambda: jnp.sin(x), lambda: jnp.sin(x) * 2.0, lambda: x]
        return lax.switch(i, branches)

    check_rewrite(
        CSE,
        program,
        "i32[]",
        "f32[3]",
        diff="""
        fn (i:i32[], x:f32[3]) {
          c:i32[] = clamp 0 i 2
          r:f32[3] = switch c case 0 {
            s:f32[3] = sin x
            yield s
          } case 1 {
            s:f32[3] = sin x
            m:f32[3] = mul s 2.0
            yield m
          } case 2 {
            yield x
          }
          return r
        }
        """,
    )


def test_remat_computes_again():
    """(3) That is what it is for."""

    def program(x):
        return jnp.sin(x), jax.checkpoint(lambda x: jnp.sin(x) * 2.0)(x)

    check_rewrite(
        CSE,
        program,
        "f32[3]",
        diff="""
        fn (x:f32[3]) {
          s:f32[3] = sin x
          r:f32[3] = remat {
            s:f32[3] = sin x
            m:f32[3] = mul s 2.0
            yield m
          }
          return s, r
        }
        """,
    )


def test_constants_are_compared_bit_by_bit():
    """(2) Infinities are equal, zeros of different sign and numbers of different type are not."""

    def program(x, i):
        nan = lax.mul(x, np.float32(np.nan)), lax.mul(x, np.float32(np.nan))
        zero = lax.div(x, np.float32(0.0)), lax.div(x, np.float32(-0.0))
        one = lax.add(i, np.int32(1)), lax.add(i, np.int32(1))
        return *nan, *zero, *one

    check_rewrite(
        CSE,
        program,
        "f32[]",
        "i32[]",
        grad=False,
        diff="""
          fn (x:f32[], i:i32[]) {
        -   m:f32[] = mul x nan
            m1:f32[] = mul x nan
            d:f32[] = div x 0.0
            d1:f32[] = div x -0.0
            a:i32[] = add i 1
        -   a1:i32[] = add i 1
        -   return m, m1, d, d1, a, a1
        +   return m1, m1, d, d1, a, a
          }
        """,
    )


def test_parameters_tell_ops_apart():
    """(1) The same primitive on the same operand, but not the same function."""

    def program(x):
        return jnp.cumsum(x, 0), jnp.cumsum(x, 1), lax.cumsum(x, 0, reverse=True)

    check_rewrite(
        CSE,
        program,
        "f32[3,3]",
        diff="""
        fn (x:f32[3,3]) {
          c:f32[3,3] = cumsum[axis=0] x
          c1:f32[3,3] = cumsum[axis=1] x
          c2:f32[3,3] = cumsum[axis=0, reverse] x
          return c, c1, c2
        }
        """,
    )


def test_contexts_tell_ops_apart():
    """(1) Ops that XLA is told different things about, in a row and in a loop; alike ones merge."""

    def program(x):
        def step(c, _):
            with set_xla_metadata(kind="a"):
                return c + jnp.sin(x), None

        with set_xla_metadata(kind="a"):
            a = jnp.sin(x)
        with set_xla_metadata(kind="b"):
            b = jnp.sin(x)
        return a, b, jnp.sin(x), lax.scan(step, x, length=2)[0]

    graph = alone(CSE, program, "f32[3]", fires=True)
    told = [op.source.ctx.xla_metadata for op in graph.walk() if op.name == "sin"]
    assert told == [{"kind": "a"}, {"kind": "b"}, None]


def test_broadcast_stays_where_it_is_read():
    """(4) Merged within its region, not carried into the loop."""

    def program(b, xs):
        wide = jnp.broadcast_to(b, (4, 3))
        again = jnp.broadcast_to(b, (4, 3))

        def step(c, x):
            return c + x * jnp.broadcast_to(b, (4, 3)), None

        return lax.scan(step, wide + again, xs)[0]

    check_rewrite(
        CSE,
        program,
        "f32[3]",
        "f32[8,4,3]",
        diff="""
          fn (b:f32[3], xs:f32[8,4,3]) {
        -   b1:f32[4,3] = broadcast_in_dim b
            b2:f32[4,3] = broadcast_in_dim b
        -   a:f32[4,3] = add b1 b2
        +   a:f32[4,3] = add b2 b2
            c:f32[4,3] = scan[8] carry(c=a) xs(x=xs) {
              b1:f32[4,3] = broadcast_in_dim b
              m:f32[4,3] = mul x b1
              a:f32[4,3] = add c m
              yield carry(a)
            }
            return c
          }
        """,
    )


def test_what_is_made_of_a_broadcast_is_there_already():
    """(4) It is compared as if the broadcasts were one value: they stay, and nobody reads them."""

    def program(w, b, xs):
        return lax.scan(lambda c, x: (c - x + w * b, None), w * b, xs)[0]

    check_rewrite(
        CSE,
        program,
        "f32[4,3]",
        "f32[3]",
        "f32[8]",
        diff="""
          fn (w:f32[4,3], b:f32[3], xs:f32[8]) {
            b1:f32[1,3] = broadcast_in_dim b
            m:f32[4,3] = mul w b1
            c:f32[4,3] = scan[8] carry(c=m) xs(x=xs) {
              s:f32[4,3] = sub c x
              b1:f32[1,3] = broadcast_in_dim b
        -     m:f32[4,3] = mul w b1
              a:f32[4,3] = add s m
              yield carry(a)
            }
            return c
          }
        """,
    )


def _masked(w, n):
    return jnp.where(jnp.arange(4)[:, None] + n < 3, jnp.exp(w), 0.0)


@pytest.mark.parametrize(
    "inside",
    [
        pytest.param(lambda f, c: lax.fori_loop(0, 3, lambda _, c: c + f(), c), id="a loop"),
        pytest.param(lambda f, c: lax.cond(c[0, 0] > 0, lambda: c + f(), lambda: c), id="a branch"),
        pytest.param(
            lambda f, c: lax.while_loop(
                lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + f()), (0, c)
            )[1],
            id="a while",
        ),
    ],
)
def test_what_is_masked_by_arithmetic_on_numbers(inside):
    """(4) The mask stays where it is read, the function is not computed again."""

    def program(w, n):
        return inside(lambda: _masked(w, n), _masked(w, n))

    graph = alone(CSE, program, "f32[4,3]", "i32[]", fires=True)
    ops = [op for op in graph.walk() if op.region is not graph.body]
    assert not any(op.name in {"exp", "select_n"} for op in ops)


@pytest.mark.parametrize(
    ("again", "merges"),
    [
        pytest.param(lambda w, b: w * b, True, id="the same"),
        pytest.param(lambda w, b: w * b[:, None], False, id="along another axis"),
        pytest.param(lambda w, b: w * (b + 1.0), False, id="of another value"),
        pytest.param(lambda w, b: w * jnp.broadcast_to(b[0], (3, 3)), False, id="of one element"),
    ],
)
def test_what_is_made_of_another_broadcast(again, merges):
    """(2) Other broadcasts are other values."""

    def program(w, b):
        return lax.fori_loop(0, 3, lambda _, c: c + again(w, b), w * b)

    graph = alone(CSE, program, "f32[3,3]", "f32[3]", fires=merges)
    ops = [op for op in graph.walk() if op.region is not graph.body]
    assert any(op.name == "mul" for op in ops) != merges


def test_arithmetic_on_broadcasts_stays_where_it_is_read():
    """(4) A mask is not carried into the loop."""

    def program(n, xs):
        mask = jnp.arange(4)[:, None] + 1 < jnp.arange(3)[None, :] * 2

        def step(c, x):
            mask = jnp.arange(4)[:, None] + 1 < jnp.arange(3)[None, :] * 2
            return jnp.where(mask, c * x, c), None

        return lax.scan(step, jnp.where(mask, n, 0.0), xs)[0]

    graph = alone(CSE, program, "f32[4,3]", "f32[8]", fires=False)
    (loop,) = (op for op in graph.walk() if op.name == "scan")
    assert any(op.name == "lt" for op in loop.body.ops)


def test_arithmetic_on_an_outer_broadcast_is_there_already():
    """(4) It stays for the sake of what is repeated in its region only."""

    def program(b, xs):
        wide = jnp.broadcast_to(b, (4, 3))
        return lax.scan(lambda c, x: (c * x + wide * 2.0, None), wide * 2.0, xs)[0]

    graph = alone(CSE, program, "f32[3]", "f32[8]", fires=True)
    (loop,) = (op for op in graph.walk() if op.name == "scan")
    assert [op.name for op in loop.body.ops] == ["mul", "add", "yield"]


def test_broadcasts_of_a_branch_are_merged_in_it():
    """(4) Where another region has the same, too."""

    def program(w, b, p):
        def branch():
            return jnp.broadcast_to(b, (4, 3)) * jnp.sin(w) + jnp.broadcast_to(b, (4, 3)) * w

        return lax.cond(p, branch, lambda: w) + jnp.broadcast_to(b, (4, 3))

    graph = alone(CSE, program, "f32[4,3]", "f32[3]", "bool[]", fires=True)
    (cond,) = (op for op in graph.walk() if op.name == "cond")
    branches = [[op.name for op in region.ops] for region in cond.regions]
    assert sum(names.count("broadcast_in_dim") for names in branches) == 1


def test_effects_are_not_merged():
    """(1) Two prints are two prints."""

    def program(x):
        jax.debug.callback(lambda _: None, x)
        jax.debug.callback(lambda _: None, x)
        return x

    check_rewrite(
        CSE,
        program,
        "f32[3]",
        grad=False,
        diff="""
        fn (x:f32[3]) {
          debug_callback[callback=_flat_callback, effect=Debug] x
          debug_callback[callback=_flat_callback, effect=Debug] x
          return x
        }
        """,
    )


def test_barriers_are_not_merged():
    """(1) They are there to keep things apart."""

    def program(x):
        return lax.optimization_barrier(x) * lax.optimization_barrier(x)

    check_rewrite(
        CSE,
        program,
        "f32[3]",
        grad=False,
        diff="""
        fn (x:f32[3]) {
          o:f32[3] = optimization_barrier x
          o1:f32[3] = optimization_barrier x
          m:f32[3] = mul o o1
          return m
        }
        """,
    )


def test_results_of_two_types_stay():
    """(5) They hold the same value in every branch, but one is weak."""
    program = lambda p, x: lax.cond(p, lambda: (x, x), lambda: (x * 2, x * 2))
    graph = import_jaxpr(traced(program, "bool[]", "f32[3]"))
    (cond,) = (op for op in graph.walk() if op.name == "cond")
    second = cond.results[1]
    second.aval = compat_types.with_weak_type(second.aval, True)
    run_alone((CSE,), graph)
    assert list(graph.outputs) == list(cond.results)
