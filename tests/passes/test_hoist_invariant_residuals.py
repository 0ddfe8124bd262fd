"""What is the same at every step leaves the loop; what is not, stays."""

import sys
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import io_callback

from jaxpr_opt import optimize
from jaxpr_opt.analysis.values.constants import is_undefined
from jaxpr_opt.engine.pipeline import Pipeline
from jaxpr_opt.insight.journal import collect_journals
from jaxpr_opt.ir.graph import Cond, Scan
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes import CLEANUP, DEFAULT
from jaxpr_opt.passes.residuals.hoist_invariant_residuals import HoistInvariantResiduals
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite, run_alone, traced
from tests.graphs import scans
from tests.loops import alone
from tests.passes.dummies import anything

HOIST = HoistInvariantResiduals()


def test_invariant_residual_crosses_the_loop_boundary():
    """sin(w) is the same at every step: keep one value, not a stack of eight."""

    def program(w, xs, ct):
        def step(c, x):
            s = jnp.sin(w)
            return c + x * s, s

        h, r = lax.scan(step, jnp.zeros(3), xs)
        return h, lax.scan(lambda c, s: (c * s, None), ct, r, reverse=True)[0]

    check_rewrite(
        HOIST,
        program,
        "f32[3]",
        "f32[8,3]",
        "f32[3]",
        simplify=True,
        saves_bytes=96,
        diff="""
          fn (w:f32[3], xs:f32[8,3], ct:f32[3]) {
            b:f32[3] = broadcast_in_dim 0.0
        +   s:f32[3] = sin w
        -   c:f32[3], ys:f32[8,3] = scan[8] carry(c=b) xs(x=xs) {
        +   c:f32[3] = scan[8] carry(c=b) xs(x=xs) {
        -     s:f32[3] = sin w
              m:f32[3] = mul x s
              a:f32[3] = add c m
        -     yield carry(a) ys(s)
        +     yield carry(a)
            }
        -   c1:f32[3] = scan[8, reverse] carry(c=ct) xs(x=ys) {
        +   c1:f32[3] = scan[8, reverse] carry(c=ct) {
        -     m:f32[3] = mul c x
        +     m:f32[3] = mul c s
              yield carry(m)
            }
            return c, c1
          }
        """,
    )


def test_stack_of_an_outer_value_is_a_broadcast():
    """(1) Condition: the value is defined outside."""

    def program(w, xs):
        return lax.scan(lambda c, x: (c + x, w), w, xs)[1]

    check_rewrite(
        HOIST,
        program,
        "f32[3]",
        "f32[8,3]",
        simplify=True,
        diff="""
          fn (w:f32[3], xs:f32[8,3]) {
        -   ys:f32[8,3] = scan[8] {
        -     yield ys(w)
        -   }
        +   b:f32[8,3] = broadcast_in_dim w
        -   return ys
        +   return b
          }
        """,
    )


def test_stack_that_repeats_a_stream_is_the_stream():
    """(1) Also when the loop runs backwards: row i is row i."""

    def program(c, xs):
        return lax.scan(lambda c, x: (c * x, x * 1.0), c, xs, reverse=True)

    check_rewrite(
        HOIST,
        program,
        "f32[3]",
        "f32[8,3]",
        simplify=True,
        diff="""
          fn (c:f32[3], xs:f32[8,3]) {
        -   c1:f32[3], ys:f32[8,3] = scan[8, reverse] carry(c=c) xs(x=xs) {
        +   c1:f32[3] = scan[8, reverse] carry(c=c) xs(x=xs) {
              m:f32[3] = mul c x
        -     yield carry(m) ys(x)
        +     yield carry(m)
            }
        -   return c1, ys
        +   return c1, xs
          }
        """,
    )


@pytest.mark.parametrize("divided", [False, True])
def test_stack_that_repeats_a_stream_that_may_be_divided(divided):
    """(1) XLA gathers the rows of each loop: those that are stacked have been."""
    program = lambda c, xs: lax.scan(lambda c, x: (c * x, x * 1.0), c, xs)
    graph = import_jaxpr(traced(program, "f32[3]", "f32[8,3]"))
    graph.divided = divided
    run_alone((*CLEANUP, HOIST), graph)
    (scan,) = scans(graph)
    assert bool(scan.stacks) is divided


def test_stream_of_a_broadcast_is_read_directly():
    """(2) A broadcast along the axis that is streamed."""

    def program(c, w):
        ws = jnp.broadcast_to(w[:, None], (8, 3, 2))
        return lax.scan(lambda c, x: (c * x, None), c, ws)[0]

    check_rewrite(
        HOIST,
        program,
        "f32[3,2]",
        "f32[3]",
        simplify=True,
        diff="""
          fn (c:f32[3,2], w:f32[3]) {
            b:f32[3,1] = broadcast_in_dim[dims=(0,)] w
        -   b1:f32[8,3,2] = broadcast_in_dim b
        +   b2:f32[3,2] = broadcast_in_dim b
        -   c1:f32[3,2] = scan[8] carry(c=c) xs(x=b1) {
        +   c1:f32[3,2] = scan[8] carry(c=c) {
        -     m:f32[3,2] = mul c x
        +     m:f32[3,2] = mul c b2
              yield carry(m)
            }
            return c1
          }
        """,
    )


def test_stream_of_a_broadcast_along_another_axis():
    """(2) Condition: the rows are the same."""

    def program(c, w):
        ws = jnp.broadcast_to(w[:, None], (8, 3))
        return lax.scan(lambda c, x: (c * x, None), c, ws)[0]

    check_rewrite(
        HOIST,
        program,
        "f32[3]",
        "f32[8]",
        simplify=True,
        diff="""
        fn (c:f32[3], w:f32[8]) {
          b:f32[8,1] = broadcast_in_dim[dims=(0,)] w
          b1:f32[8,3] = broadcast_in_dim b
          c1:f32[3] = scan[8] carry(c=c) xs(x=b1) {
            m:f32[3] = mul c x
            yield carry(m)
          }
          return c1
        }
        """,
    )


def test_stream_of_what_was_computed():
    """(2) Its rows differ."""
    program = lambda c, xs: lax.scan(lambda c, x: (c * x, None), c, jnp.sin(xs))[0]
    alone(HOIST, program, "f32[3]", "f32[8,3]", fires=False)


def test_stack_of_nothing_in_particular():
    """(1) It is unspecified as a whole."""
    program = lambda c: lax.scan(lambda c, _: (2.0 * c, anything(3)), c, None, length=8)
    graph = alone(HOIST, program, "f32[3]", fires=True)
    assert any(is_undefined(value) for value in graph.body.outputs)


def test_branch_that_reads_the_step():
    """(4) What an op with a body reads is in the body."""

    def program(p, c, xs):
        step = lambda c, x: (c + lax.cond(p, jnp.sin, jnp.cos, x), None)
        return lax.scan(step, c, xs)[0]

    graph = alone(HOIST, program, "bool[]", "f32[3]", "f32[8,3]", fires=True)
    (scan,) = (op for op in graph.body.ops if isinstance(op, Scan))
    assert any(isinstance(op, Cond) for op in scan.body.ops)


def test_carry_that_never_changes_is_an_outer_value():
    """(3) In every kind of loop, even one that takes no step."""

    def program(w, x, n):
        def go_on(c):
            return (c[0] < n) & (c[2][0] > -1.0)

        return lax.while_loop(go_on, lambda c: (c[0] + 1, c[1] * c[2], c[2]), (0, x, w))

    check_rewrite(
        HOIST,
        program,
        "f32[3]",
        "f32[3]",
        "i32[]",
        grad=False,
        simplify=True,
        diff="""
          fn (w:f32[3], x:f32[3], n:i32[]) {
        -   c:i32[], c1:f32[3], c2:f32[3] = while carry(c=0, c1=x, c2=w) {
        +   c:i32[], c1:f32[3] = while carry(c=0, c1=x) {
              c3:i32[] = convert_element_type c
              l:bool[] = lt c3 n
        -     s:f32[1] = slice[:1] c2
        +     s:f32[1] = slice[:1] w
              s1:f32[] = squeeze s
              g:bool[] = gt s1 -1.0
              a:bool[] = and l g
              yield a
            } do {
              a:i32[] = add c 1
        -     m:f32[3] = mul c1 c2
        +     m:f32[3] = mul c1 w
        -     yield carry(a, m, c2)
        +     yield carry(a, m)
            }
        -   return c, c1, c2
        +   return c, c1, w
          }
        """,
    )


def test_carry_reset_to_its_first_value():
    """(3) Condition: `next` is `init` itself."""

    def program(w, xs):
        return lax.scan(lambda c, x: ((c[0] + c[1] * x, w), None), (w, w), xs)[0]

    check_rewrite(
        HOIST,
        program,
        "f32[3]",
        "f32[8,3]",
        simplify=True,
        diff="""
          fn (w:f32[3], xs:f32[8,3]) {
        -   c:f32[3], c1:f32[3] = scan[8] carry(c=w, c1=w) xs(x=xs) {
        +   c:f32[3] = scan[8] carry(c=w) xs(x=xs) {
        -     m:f32[3] = mul c1 x
        +     m:f32[3] = mul w x
              a:f32[3] = add c m
        -     yield carry(a, w)
        +     yield carry(a)
            }
        -   return c, c1
        +   return c, w
          }
        """,
    )


def test_spread_value_leaves_with_the_op_that_needs_it():
    """(4) A broadcast alone stays where it is read."""

    def program(b, xs):
        def step(c, x):
            wide = jnp.broadcast_to(b, (4, 3))
            return c + x * jnp.exp(wide) + lax.broadcast_in_dim(b[0], (4, 3), ()), None

        return lax.scan(step, jnp.zeros((4, 3)), xs)[0]

    check_rewrite(
        HOIST,
        program,
        "f32[3]",
        "f32[8,4,3]",
        simplify=True,
        diff="""
          fn (b:f32[3], xs:f32[8,4,3]) {
            b1:f32[4,3] = broadcast_in_dim 0.0
        +   b3:f32[4,3] = broadcast_in_dim b
        +   e:f32[4,3] = exp b3
            c:f32[4,3] = scan[8] carry(c=b1) xs(x=xs) {
        -     b1:f32[4,3] = broadcast_in_dim b
        -     e:f32[4,3] = exp b1
              m:f32[4,3] = mul x e
              a:f32[4,3] = add c m
              s:f32[1] = slice[:1] b
              s1:f32[] = squeeze s
              b2:f32[4,3] = broadcast_in_dim s1
              a1:f32[4,3] = add a b2
              yield carry(a1)
            }
            return c
          }
        """,
    )


def masked_step(mask, w, xs, product):
    """A mask as floats, and what it is multiplied with, or a product of it."""

    def step(c, x):
        m = 1.0 - mask.astype(jnp.float32)
        return (c @ m if product else c * m) + x * jnp.exp(w), None

    return lax.scan(step, jnp.ones((4, 4)), xs)[0]


@pytest.mark.parametrize("product", [False, True], ids=["elementwise", "product"])
def test_mask_is_read_as_truth_values_where_it_is_multiplied(product):
    """(4) Cost: as floats it would take four times the memory, as long as the loop runs."""
    step = partial(masked_step, product=product)
    graph = import_jaxpr(traced(step, "bool[4,4]", "f32[4,4]", "f32[8,4,4]"))
    run_alone([HOIST], graph)
    (scan,) = scans(graph)
    names = {op.name for op in scan.body.ops}
    assert "exp" not in names
    assert ("convert_element_type" in names) == (not product)


def test_spread_value_that_leaves_is_made_again_for_what_stays():
    """(4) Cost: read from before the loop it would be an array, here in the loop inside, too."""

    def program(w, xs):
        def step(c, x):
            wide = jnp.broadcast_to(w[0], (4, 3))
            inside = lambda d, _: (jnp.sin(d) * wide, None)
            return lax.scan(inside, c + x * jnp.exp(wide), None, length=5)[0], None

        return lax.scan(step, jnp.zeros((4, 3)), xs)[0]

    check_rewrite(
        HOIST,
        program,
        "f32[3]",
        "f32[8,4,3]",
        simplify=True,
        diff="""
          fn (w:f32[3], xs:f32[8,4,3]) {
            b:f32[4,3] = broadcast_in_dim 0.0
        +   s:f32[1] = slice[:1] w
        +   s1:f32[] = squeeze s
        +   b1:f32[4,3] = broadcast_in_dim s1
        +   e:f32[4,3] = exp b1
            c:f32[4,3] = scan[8] carry(c=b) xs(x=xs) {
        -     s:f32[1] = slice[:1] w
        -     s1:f32[] = squeeze s
              b:f32[4,3] = broadcast_in_dim s1
        -     e:f32[4,3] = exp b
              m:f32[4,3] = mul x e
              a:f32[4,3] = add c m
              c1:f32[4,3] = scan[5] carry(c=a) {
                s:f32[4,3] = sin c
                m:f32[4,3] = mul s b
                yield carry(m)
              }
              yield carry(c1)
            }
            return c
          }
        """,
    )


def test_few_numbers_are_read_of_their_array_in_the_step():
    """(4) Cost: the step has one operand more, not one for each number."""

    def program(rule, x):
        def step(x, _):
            k = jax.nn.sigmoid(rule)
            return x * k[0] + k[1], None

        return lax.scan(step, x, None, length=8)[0]

    check_rewrite(
        HOIST,
        program,
        "f32[8]",
        "f32[16]",
        simplify=True,
        diff="""
          fn (rule:f32[8], x:f32[16]) {
        +   l:f32[8] = logistic rule
            c:f32[16] = scan[8] carry(c=x) {
        -     l:f32[8] = logistic rule
              s:f32[1] = slice[:1] l
              s1:f32[] = squeeze s
              m:f32[16] = mul c s1
              s2:f32[1] = slice[1:2] l
              s3:f32[] = squeeze s2
              a:f32[16] = add m s3
              yield carry(a)
            }
            return c
          }
        """,
    )


@pytest.mark.parametrize(
    ("move", "leaves"),
    [
        pytest.param(lambda w, b, i: b[0], False, id="a number"),
        pytest.param(lambda w, b, i: w[0], True, id="a row"),
        pytest.param(lambda w, b, i: w.T[1], True, id="a column"),
        pytest.param(lambda w, b, i: w[0, 0], True, id="a number of a large array"),
        pytest.param(lambda w, b, i: lax.dynamic_slice(b, (i,), (1,)), True, id="a computed place"),
        pytest.param(lambda w, b, i: jnp.exp(b[0]), True, id="what is computed of it"),
    ],
)
def test_what_leaves_of_small_views(move, leaves):
    """(4) Only few numbers of a small array stay: the gradient of others would be added to the
    whole array in every step.
    """

    def program(w, b, i, xs):
        return lax.scan(lambda c, x: (c + jnp.sum(x * move(w, b, i)), None), 0.0, xs)[0]

    graph = alone(HOIST, program, "f32[99,99]", "f32[8]", "i32[]", "f32[8]", fires=leaves)
    (loop,) = (op for op in graph.body.ops if isinstance(op, Scan))
    assert any(op.name in {"slice", "dynamic_slice"} for op in loop.body.ops) != leaves


@pytest.mark.parametrize(
    "move",
    [
        lambda w: w[1:],
        lambda w: w.T[1:],
        lambda w: w[:0:-1],
        lambda w: lax.stop_gradient(jnp.broadcast_to(w[1], (31, 32))),
    ],
)
def test_large_moved_value_stays_where_it_is_read(move):
    """(4) XLA makes it there, in no memory of its own; what is computed of it leaves with it."""

    def program(leaves, w, xs):
        def step(c, x):
            return c + x * (jnp.exp(move(w)) if leaves else move(w)), None

        return lax.scan(step, jnp.zeros((31, 32)), xs)[0]

    stays = traced(partial(program, False), "f32[32,32]", "f32[8]")
    assert Pipeline(((HOIST,),)).run(stays).jaxpr is stays
    leaves = traced(partial(program, True), "f32[32,32]", "f32[8]")
    ops = import_jaxpr(Pipeline(((HOIST,),)).run(leaves).jaxpr).body.ops
    (loop,) = (op for op in ops if isinstance(op, Scan))
    assert [op.name for op in loop.body.ops] == ["mul", "add", "yield"]


def test_whole_loop_leaves():
    """(4) Also an op with a body, of which every value is read from outside."""

    def program(w, xs):
        def step(c, x):
            inner = lax.scan(lambda d, _: (jnp.sin(d * w), None), w, None, length=4)[0]
            return c + x * inner, None

        return lax.scan(step, jnp.zeros(3), xs)[0]

    check_rewrite(
        HOIST,
        program,
        "f32[3]",
        "f32[8,3]",
        simplify=True,
        diff="""
          fn (w:f32[3], xs:f32[8,3]) {
            b:f32[3] = broadcast_in_dim 0.0
        +   c1:f32[3] = scan[4] carry(c2=w) {
        +     m:f32[3] = mul c2 w
        +     s:f32[3] = sin m
        +     yield carry(s)
        +   }
            c:f32[3] = scan[8] carry(c=b) xs(x=xs) {
        -     c1:f32[3] = scan[4] carry(c=w) {
        -       m:f32[3] = mul c w
        -       s:f32[3] = sin m
        -       yield carry(s)
        -     }
              m:f32[3] = mul x c1
              a:f32[3] = add c m
              yield carry(a)
            }
            return c
          }
        """,
    )


def _with_residual(f):
    def program(w, c, xs):
        return lax.scan(lambda c, x: (c + x, f(w, c, x)), c, xs)

    return program


@pytest.mark.parametrize(
    ("f", "because"),
    [
        pytest.param(lambda w, c, x: jnp.sin(c) * w, "depends on the carry", id="carry"),
        pytest.param(lambda w, c, x: jnp.sin(x) * w, "depends on the stream", id="stream"),
        pytest.param(
            lambda w, c, x: lax.optimization_barrier(w),
            "optimization_barrier, which must run at every step",
            id="barrier",
        ),
    ],
)
def test_residual_that_differs_from_step_to_step_stays(f, because):
    check_refuses(HOIST, _with_residual(f), "f32[3]", "f32[3]", "f32[8,3]", because=because)


def test_effects_stay():
    """(4) The host is asked as often as it was."""

    def program(w, xs):
        def step(c, x):
            return c + x, io_callback(lambda w: w, w, w)

        return lax.scan(step, jnp.zeros(3), xs)

    check_refuses(HOIST, program, "f32[3]", "f32[8,3]", because="io_callback, which must run")


def test_collective_stays():
    """(4) Every device takes part in every step."""
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("i")

    def program(w, xs):
        def step(c, x):
            return c + x, lax.psum(w, "i")

        mapped = jax.shard_map(
            lambda w, xs: lax.scan(step, xs[0], xs),
            mesh=mesh,
            in_specs=(spec, spec),
            out_specs=(spec, jax.sharding.PartitionSpec()),
            check_vma=False,
        )
        return mapped(w, xs)

    check_refuses(HOIST, program, "f32[3]", "f32[8,3]", because="psum, which must run at every")


def test_loop_without_steps_computes_nothing():
    """(4) Condition: the loop takes at least one step."""

    def program(w, xs):
        return lax.scan(lambda c, x: (c + x, jnp.sin(w)), jnp.zeros(3), xs)

    check_refuses(HOIST, program, "f32[3]", "f32[0,3]", because="the loop takes 0 steps")


def test_nothing_leaves_a_branch():
    """What runs in some steps only is not computed before the loop."""

    def program(w, ps):
        def step(c, p):
            s = lax.cond(p, lambda: jnp.sin(w), lambda: jnp.zeros(3))
            return c + s, s

        return lax.scan(step, jnp.zeros(3), ps)

    check_refuses(HOIST, program, "f32[3]", "bool[8]", because="depends on the stream")


@pytest.mark.parametrize(
    ("shared", "touched"),
    [
        pytest.param(lambda w, b: b * 2.0 + 1.0, False, id="a number"),
        pytest.param(lambda w, b: w[0] * b, False, id="a row"),
        pytest.param(lambda w, b: jnp.stack([w[0, 0], b])[1], False, id="a few numbers"),
        pytest.param(lambda w, b: w * b, True, id="a matrix"),
        pytest.param(lambda w, b: w[0] @ w[1], True, id="a product"),
        pytest.param(lambda w, b: jnp.sin(b), True, id="a sine"),
    ],
)
def test_a_little_arithmetic_alone_is_no_reason_to_touch_a_program(shared, touched):
    """Cost: XLA takes it out as well."""

    def program(w, b):
        step = lambda c, _: (jnp.tanh(c) + shared(w, b), None)
        return lax.scan(step, w, None, length=5)[0]

    jaxpr = traced(program, "f32[40,40]", "f32[]")
    result = Pipeline(DEFAULT).run(jaxpr)
    assert result.changed == touched
    assert (result.jaxpr is jaxpr) != touched


def test_a_key_is_no_reason_to_touch_a_program():
    """Cost: the two numbers of a key are a key at no cost."""

    def program(key, x):
        def step(x, t):
            return x + jax.random.uniform(jax.random.fold_in(key, t), x.shape), None

        return lax.scan(step, x, jnp.arange(5))[0]

    jaxpr = traced(program, "u32[2]", "f32[40]")
    assert Pipeline(DEFAULT).run(jaxpr).jaxpr is jaxpr


def test_the_bound_of_a_while_is_no_reason_to_touch_a_program():
    """Cost: nobody stacks what a `while` carries, and a number is carried at no cost."""

    def program(x, n):
        return lax.fori_loop(0, n, lambda i, x: jnp.sin(x) + i, x)

    jaxpr = traced(program, "f32[40]", "i32[]")
    assert Pipeline(DEFAULT).run(jaxpr).jaxpr is jaxpr


@pytest.mark.parametrize(
    ("chosen", "touched"),
    [
        pytest.param(lambda n, b: n[:, None] + 1 < n[None, :], False, id="a mask"),
        pytest.param(lambda n, b: (n * b)[:, None] < n[None, :], True, id="a mask of numbers"),
    ],
)
def test_integers_are_no_reason_to_touch_a_program(chosen, touched):
    """Cost: nothing is summed up for them, however large they are."""

    def program(w, b):
        step = lambda c, _: (jnp.where(chosen(jnp.arange(99), b), jnp.tanh(c), c), None)
        return lax.scan(step, w, None, length=5)[0]

    jaxpr = traced(program, "f32[99,99]", "f32[]")
    assert Pipeline(DEFAULT).run(jaxpr).changed == touched


def test_what_is_made_of_constants_stays_beside_what_leaves():
    """(4) Before the loop an identity matrix would take memory as long as it runs."""

    def program(w, xs):
        step = lambda c, x: (c * jnp.sin(w) + x * jnp.eye(3), None)
        return lax.scan(step, jnp.zeros((3, 3)), xs)[0]

    check_rewrite(
        HOIST,
        program,
        "f32[3,3]",
        "f32[8,3,3]",
        simplify=True,
        diff="""
          fn (w:f32[3,3], xs:f32[8,3,3]) {
            b:f32[3,3] = broadcast_in_dim 0.0
        +   s:f32[3,3] = sin w
            c:f32[3,3] = scan[8] carry(c=b) xs(x=xs) {
        -     s:f32[3,3] = sin w
              m:f32[3,3] = mul c s
              i:i32[3] = iota
              b:i32[3,3] = broadcast_in_dim[dims=(0,)] i
              b1:i32[3,3] = broadcast_in_dim i
              e:bool[3,3] = eq b b1
              c1:f32[3,3] = convert_element_type e
              m1:f32[3,3] = mul x c1
              a:f32[3,3] = add m m1
              yield carry(a)
            }
            return c
          }
        """,
    )


@pytest.mark.parametrize(("given", "stays"), [(False, True), (True, False)])
def test_a_mask_of_places_stays(given, stays):
    """(4) Cost: what is made of row numbers is made where it is read, also if these are numbered
    before the loop. A mask of what is given leaves.
    """

    def program(w, lengths, xs):
        places = jnp.arange(16)
        ends = (lengths if given else places) * 3 % 7

        def step(c, x):
            here = places[:, None] * 3 % 5 >= ends[None, :] * 3 % 5
            return jnp.where(here, c * jnp.sin(w), x), None

        return lax.scan(step, jnp.zeros((16, 16)), xs)[0]

    args = jnp.ones((16, 16)), jnp.arange(16), jnp.ones((8, 16, 16))
    graph = alone(HOIST, program, *args, fires=True)
    (loop,) = scans(graph)
    names = {op.name for op in loop.body.ops}
    assert ("ge" in names) == stays
    assert "sin" not in names


def test_a_little_arithmetic_on_what_is_repeated_stays_beside_what_leaves():
    """(4) Cost: XLA makes it where it is read; hoisted, it would be an array."""

    def program(w, a, xs):
        def step(c, x):
            rows, columns = (lax.broadcast_in_dim(a, (16, 16), (axis,)) for axis in (0, 1))
            return c * jnp.sin(w) + x * (rows * 0.5 + columns), None

        return lax.scan(step, w, xs)[0]

    check_rewrite(
        HOIST,
        program,
        "f32[16,16]",
        "f32[16]",
        "f32[8,16,16]",
        diff="""
          fn (w:f32[16,16], a:f32[16], xs:f32[8,16,16]) {
        +   s:f32[16,16] = sin w
            c:f32[16,16] = scan[8] carry(c=w) xs(x=xs) {
              b:f32[16,16] = broadcast_in_dim[dims=(0,)] a
              b1:f32[16,16] = broadcast_in_dim a
        -     s:f32[16,16] = sin w
              m:f32[16,16] = mul c s
              m1:f32[16,16] = mul b 0.5
              a1:f32[16,16] = add m1 b1
              m2:f32[16,16] = mul x a1
              a2:f32[16,16] = add m m2
              yield carry(a2)
            }
            return c
          }
        """,
    )


def test_a_reshape_stays():
    """(4) It moves nothing; before the loop it would be one more operand of every step."""

    def program(bias, w, xs):
        def step(c, x):
            return c + x @ jnp.sin(w) + jnp.reshape(bias, (1, 40)), ()

        return lax.scan(step, jnp.zeros((2, 40)), xs)[0]

    graph = alone(HOIST, program, "f32[40]", "f32[3,40]", "f32[8,2,3]", fires=True)
    (loop,) = scans(graph)
    assert "reshape" in {op.name for op in loop.walk()}


def test_more_arithmetic_on_what_is_repeated_leaves():
    """(4) Each step would take longer to make it than to read it."""

    def program(w, a, xs):
        def step(c, x):
            spread = jnp.broadcast_to(a, (16, 16))
            for k in range(1, 9):
                spread = spread * float(k) + 1.0
            return c * jnp.sin(w) + x * spread, None

        return lax.scan(step, w, xs)[0]

    graph = alone(HOIST, program, "f32[16,16]", "f32[16]", "f32[8,16,16]", fires=True)
    (loop,) = (op for op in graph.body.ops if isinstance(op, Scan))
    assert [op.name for op in loop.body.ops] == ["mul", "mul", "add", "yield"]


@pytest.mark.parametrize(
    "reduced",
    [
        pytest.param(lambda eye: jnp.sum(eye, axis=1), id="rows"),
        pytest.param(jnp.sum, id="all of it"),
        pytest.param(lambda eye: jnp.max(eye, axis=0), id="the greatest"),
    ],
)
def test_what_is_made_of_constants_stays_beside_its_sum(reduced):
    """(4) Cost: the sum is a number that XLA knows, and the array would leave with it."""

    def program(w, xs):
        eye = lambda: 2.0 * jnp.pad(jnp.eye(8), ((0, 0), (1, 0)))
        step = lambda c, x: (jnp.tanh(c) * jnp.sum(reduced(eye())) + x @ eye(), None)
        return lax.scan(step, w, xs)[0]

    jaxpr = traced(program, "f32[9]", "f32[5,8]")
    assert not Pipeline(DEFAULT).run(jaxpr).changed


@pytest.mark.parametrize(
    ("read", "leaves"),
    [
        pytest.param(lambda c, w: w.T @ c, False, id="one product"),
        pytest.param(lambda c, w: w.T @ (w @ c) + c @ w.T, False, id="two products"),
        pytest.param(lambda c, w: (t := w.T) @ c + t[0], True, id="a product and a sum"),
        pytest.param(lambda c, w: c * jnp.sum(w.T * c), True, id="no product"),
    ],
)
def test_a_transpose_that_only_products_read_stays(read, leaves):
    """(4) Cost: a product reads the matrix itself, and its transpose would take memory."""

    def program(w, c):
        step = lambda c, _: (jnp.tanh(read(c, w)) + jnp.sum(jnp.sin(w)), None)
        return lax.scan(step, c, None, length=9)[0]

    graph = alone(HOIST, program, "f32[16,16]", "f32[16]", fires=True)
    (loop,) = (op for op in graph.body.ops if isinstance(op, Scan))
    assert any(op.name == "transpose" for op in loop.body.ops) != leaves


def test_why_a_residual_varies_is_found_out_for_those_who_are_reported(monkeypatch):
    asked = []
    module = sys.modules[HoistInvariantResiduals.__module__]
    monkeypatch.setattr(module, "why_varying", lambda value, _: asked.append(value) or "it does")

    def program(xs):
        rows = lax.scan(lambda c, x: (c + x, jnp.sin(x)), 0.0, xs)[1]
        return lax.scan(lambda c, x: (c + x, None), 0.0, rows)[0]

    pipeline, jaxpr = Pipeline(((HOIST,),)), traced(program, "f32[8]")
    pipeline.run(jaxpr)
    assert not asked
    with collect_journals() as journals:
        pipeline.run(jaxpr)
    assert asked
    assert [r.reason for r in journals[0].records[HOIST.name].refusals] == ["it does"]


def rounded_weights(loss):
    """A step that multiplies by weights of few digits."""

    def program(w, xs):
        def step(h, x):
            y = lax.convert_element_type(w, "bfloat16") @ h.astype("bfloat16")
            h = jnp.tanh(y.astype("float32") + x)
            return h, jnp.sum(h)

        return loss(lax.scan(step, jnp.zeros(4), xs)[1])

    return program


def test_what_has_fewer_digits():
    """(5) It leaves the loop only if nothing adds up its cotangents any more."""
    program, types = rounded_weights(lambda rows: rows), ("f32[4,4]", "f32[8,4]")
    alone(HOIST, program, *types, fires=False)
    alone(HOIST, program, *types, fires=True, phase="final")


def test_cotangents_of_what_has_fewer_digits():
    """(5) They are added up as in the step."""
    loss = rounded_weights(jnp.sum)
    xs = jnp.sin(jnp.arange(4000.0)).reshape(1000, 4)
    want = jax.grad(loss)(0.3 * jnp.eye(4), xs)
    for found in (jax.grad(optimize(loss)), optimize(jax.grad(loss))):
        assert_close([found(0.3 * jnp.eye(4), xs)], [want])
