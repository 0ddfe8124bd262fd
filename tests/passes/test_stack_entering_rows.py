"""Of a shift register, what enters is stored, and the transposed loop reads windows of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from jaxpr_opt import optimize
from jaxpr_opt.analysis.carried.shift_registers import shifting
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.residuals.stack_entering_rows import StackEnteringRows
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.graphs import scans
from tests.loops import alone, measured, memory

ENTERING = StackEnteringRows()


class AtAnyPrice(CostModel):
    """Nothing is small, and fewer bytes are always worth it."""

    __slots__ = ()

    def is_quick(self, nbytes):
        return False

    def is_longer(self, few, many):
        return True


MODEL = AtAnyPrice()


def last(b, x):
    return jnp.concatenate([b[1:], x[None]])


def first(b, x):
    return jnp.concatenate([x[None], b[:-1]])


WAYS = {
    "concatenate, last": last,
    "concatenate, first": first,
    "append": lambda b, x: jnp.append(b[1:], x[None], 0),
    "roll, last": lambda b, x: jnp.roll(b, -1, 0).at[-1].set(x),
    "roll, first": lambda b, x: jnp.roll(b, 1, 0).at[0].set(x),
    "write all but one": lambda b, x: b.at[1:].set(b[:-1]).at[0].set(x),
    "write all but one, last": lambda b, x: b.at[:-1].set(b[1:]).at[-1].set(x),
    "update": lambda b, x: lax.dynamic_update_slice(jnp.roll(b, 1, 0), x[None], (0, 0)),
    "stack": lambda b, x: jnp.stack([x, *(b[i] for i in range(4))]),
    "split": lambda b, x: jnp.concatenate([*jnp.split(b, [1])[1:], x[None]]),
    "two at a time": lambda b, x: jnp.concatenate([b[2:], jnp.stack([x, -x])]),
    "two at a time, first": lambda b, x: jnp.concatenate([x[None], -x[None], b[:-2]]),
    "with rows that were there": lambda b, x: jnp.concatenate([b[2:], b[1:2], x[None]]),
    "around": lambda b, x: jnp.roll(b, 1, 0),
    "around by two": lambda b, x: jnp.roll(b, -2, 0),
    "other axis": lambda b, x: jnp.concatenate([b[:, 1:], jnp.tile(x[0], (5, 1))], 1),
    "other axis, first": lambda b, x: jnp.roll(b, 1, 1).at[:, 0].set(x[0]),
    "other axis, two at a time": lambda b, x: jnp.concatenate([b[:, 2:], b[:, :2] * x[0]], 1),
    "update of another shape": lambda b, x: jnp.roll(b, 1, 1).at[:, 0].set(b[:, 1] * x[0]),
}


def forward(push, x, *, rows=5, after=False, reverse=False):
    """A loop that pushes what it is given, changed, into a register, and stacks that."""

    def step(b, x):
        n = push(b, ~x if x.dtype == bool else -x)
        return n, n if after else b

    init = jnp.arange(rows * x.shape[1]).reshape(rows, -1).astype(x.dtype)
    return lax.scan(step, init, x, reverse=reverse)[1]


def back(stack, *, reverse=True):
    """A loop that reads the stack."""

    def step(d, row):
        weights = jnp.arange(1.0, 1 + row.size).reshape(row.shape)
        return jnp.sin(d) + jnp.sum(row.astype(float) * weights), None

    return lax.scan(step, 0.0, stack, reverse=reverse)[0]


def test_what_enters_is_stacked():
    """The rows that the register starts with, and those that enter, are one array; the loop reads a
    window of it in each step.
    """

    def program(b, xs):
        _, stack = lax.scan(lambda b, x: (last(b, jnp.sin(x)), b), b, xs)
        return lax.scan(lambda d, row: (d * row[0], None), jnp.ones(3), stack, reverse=True)[0]

    check_rewrite(
        ENTERING,
        program,
        "f32[8,3]",
        "f32[40,3]",
        simplify=True,
        saves_bytes=40 * 8 * 3 * 4,
        diff="""
          fn (b:f32[8,3], xs:f32[40,3]) {
        -   c:f32[8,3], ys:f32[40,8,3] = scan[40] carry(c=b) xs(x=xs) {
        +   ys1:f32[40,3] = scan[40] xs(x=xs) {
              s:f32[3] = sin x
        -     s1:f32[7,3] = slice[1:, :] c
        -     b:f32[1,3] = broadcast_in_dim s
        -     c1:f32[8,3] = concatenate[dimension=0] s1 b
        -     yield carry(c1) ys(c)
        +     yield ys(s)
            }
            b1:f32[3] = broadcast_in_dim 1.0
        +   c2:f32[48,3] = concatenate[dimension=0] b ys1
        +   i:i32[40] = iota
        -   c1:f32[3] = scan[40, reverse] carry(c=b1) xs(x=ys) {
        +   c1:f32[3] = scan[40, reverse] carry(c=b1) xs(step=i) {
        +     d:f32[8,3] = dynamic_slice c2 step 0
        -     s:f32[1,3] = slice[:1, :] x
        +     s:f32[1,3] = slice[:1, :] d
              s1:f32[3] = squeeze s
              m:f32[3] = mul c s1
              yield carry(m)
            }
            return c1
          }
        """,
    )


def test_what_enters_is_streamed():
    """Nothing is stored, then; rows that enter at the start are in the order of the register."""

    def program(b, xs):
        _, stack = lax.scan(lambda b, x: (first(b, x), b), b, xs)
        return lax.scan(lambda d, row: (d * row[0] + row[4], None), 1.0, stack, reverse=True)[0]

    check_rewrite(
        ENTERING,
        program,
        "f32[8]",
        "f32[100]",
        simplify=True,
        saves_bytes=100 * 8 * 4,
        diff="""
          fn (b:f32[8], xs:f32[100]) {
        -   c:f32[8], ys:f32[100,8] = scan[100] carry(c=b) xs(x=xs) {
        -     b:f32[1] = broadcast_in_dim x
        -     s:f32[7] = slice[:7] c
        -     c1:f32[8] = concatenate[dimension=0] b s
        -     yield carry(c1) ys(c)
        -   }
        +   r:f32[100] = rev[dimensions=(0,)] xs
        +   c2:f32[108] = concatenate[dimension=0] r b
        +   i:i32[100] = iota
        -   c1:f32[] = scan[100, reverse] carry(c=1.0) xs(x=ys) {
        +   c1:f32[] = scan[100, reverse] carry(c=1.0) xs(step=i) {
        +     m1:i32[] = mul step -1
        +     a1:i32[] = add m1 100
        +     d:f32[8] = dynamic_slice c2 a1
        -     s:f32[1] = slice[:1] x
        +     s:f32[1] = slice[:1] d
              s1:f32[] = squeeze s
              c1:f32[] = convert_element_type c
              m:f32[] = mul c1 s1
        -     s2:f32[1] = slice[4:5] x
        +     s2:f32[1] = slice[4:5] d
              s3:f32[] = squeeze s2
              a:f32[] = add m s3
              yield carry(a)
            }
            return c1
          }
        """,
    )


@pytest.mark.parametrize("push", WAYS.values(), ids=WAYS)
def test_ways_to_shift(push):
    """(1)"""
    alone(ENTERING, lambda x: back(forward(push, x)), "f32[4,5]", fires=True)


@pytest.mark.parametrize("push", [last, first])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("reading", [False, True])
def test_either_way(push, after, reverse, reading):
    """(2) Both loops may run in either order."""

    def program(x):
        return back(forward(push, x, after=after, reverse=reverse), reverse=reading)

    alone(ENTERING, program, "f32[4,3]", fires=True)


@pytest.mark.parametrize("length", [0, 1, 3])
def test_short_loops(length):
    """Fewer rows may enter than the register holds, or none."""
    program = lambda x: back(forward(last, x))
    alone(ENTERING, program, f"f32[{length},2]", fires=True)


@pytest.mark.parametrize("dtype", ["i8", "bool", "c64", "bf16"])
def test_of_any_type(dtype):
    def program(x):
        read = lambda d, row: (row[0], (d, row[4]))
        return lax.scan(read, x[0], forward(first, x), reverse=True)

    alone(ENTERING, program, f"{dtype}[4,3]", fires=True)


def test_of_random_keys():
    def program(keys):
        _, stack = lax.scan(lambda b, key: (last(b, key), b), keys[:5], keys)
        read = lambda d, row: (d + jax.random.normal(row[0]) - jax.random.uniform(row[4]), None)
        return lax.scan(read, 0.0, stack, reverse=True)[0]

    alone(ENTERING, program, jax.random.split(jax.random.key(0), 8), fires=True)


def test_of_a_weak_type():
    def program(x):
        b = jnp.asarray(2.0) * jnp.ones((5, 1), bool)
        b = lax.broadcast_in_dim(2.0, (5, 1), ())
        stack = lax.scan(lambda b, _: (jnp.roll(b, 1, 0), b), b, length=9)[1]
        assert stack.weak_type
        return back(stack) + x

    alone(ENTERING, program, "f32[]", fires=True)


def test_not_a_number():
    x = jnp.array([np.nan, np.inf, -0.0, 1.0] * 30, jnp.float32)[:, None]
    stack = lambda x: forward(last, x)
    program = lambda x: lax.scan(lambda d, row: (row[0], row), x[0], stack(x), reverse=True)
    np.testing.assert_array_equal(*(jax.jit(f)(x)[1] for f in (program, optimize(program))))


def test_both_as_it_is_before_a_step_and_after():
    """Both are windows of the same rows."""

    def program(x):
        def step(b, x):
            n = last(b, jnp.sin(x))
            return n, (b, n)

        _, (before, later) = lax.scan(step, jnp.zeros((5, 3)), x)
        read = lambda d, rows: (d + rows[0][0, 0] * jnp.sum(rows[1]), None)
        return lax.scan(read, 0.0, (before, later), reverse=True)[0]

    graph = alone(ENTERING, program, "f32[4,3]", fires=True)
    assert sum(op.name == "concatenate" and len(op.result.shape) == 2 for op in graph.body.ops)
    assert not any(v.shape == (4, 5, 3) for op in graph.walk() for v in op.results)


IMAGES = {
    "negated": lambda b: -b,
    "several ops": lambda b: jnp.where(b > 0, jnp.sin(b) * 2, b * b),
    "truth": lambda b: b > 0.5,
    "weights of columns": lambda b: b * np.arange(8, dtype=np.float32),
    "the same number": lambda b: b - np.full((8, 8), 3, np.float32),
}


def stack_of(image, push, x, *, after, reverse=False, rows=8):
    """A loop that stacks what is made of a register."""
    init = jnp.arange(rows * x.shape[1], dtype=x.dtype).reshape(rows, -1)

    def step(b, x):
        n = push(b, jnp.sin(x))
        return n, image(n if after else b)

    return lax.scan(step, init, x, reverse=reverse)[1]


@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
@pytest.mark.parametrize("after", [False, True])
def test_what_is_made_of_a_register(image, after):
    """(5)"""
    program = lambda x: back(stack_of(image, last, x, after=after))
    alone(ENTERING, program, "f32[4,8]", fires=True)


@pytest.mark.parametrize("push", [last, first, WAYS["two at a time"], WAYS["other axis, first"]])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 4])
def test_what_is_made_of_a_register_either_way(push, after, reverse, length):
    """(5) The newest rows that a step finds have entered in the step before."""
    options = {"after": after, "reverse": reverse, "rows": 5}
    program = lambda x: back(stack_of(lambda b: -b, push, x, **options))
    alone(ENTERING, program, f"f32[{length},5]", fires=True)


def test_what_is_made_of_a_register_in_a_nest():
    """(2, 5)"""

    def program(xs):
        def outer(c, xs):
            step = lambda b, x: (last(b, x), jnp.sin(b) * 2)
            return c * 2, lax.scan(step, jnp.full((8, 3), c), xs)[1]

        _, stacks = lax.scan(outer, 1.0, xs)
        return lax.scan(lambda d, stack: (d + back(stack), None), 0.0, stacks, reverse=True)[0]

    alone(ENTERING, program, "f32[2,4,3]", fires=True)


NO_IMAGES = {
    "weights of rows": lambda b, x: b * np.arange(8, dtype=np.float32)[:, None],
    "weights of all": lambda b, x: b * np.arange(64, dtype=np.float32).reshape(8, 8),
    "of the step": lambda b, x: b * x,
    "a number of the step": lambda b, x: b * x[0],
    "a function that is rounded by place": lambda b, x: jnp.arctan(b),
    "of rows and others": lambda b, x: b + jnp.roll(b, 1, 0),
    "a sum": lambda b, x: jnp.cumsum(b, 0),
    "a comparison of what is computed": lambda b, x: b + 1 > b,
    "a product that is added to": lambda b, x: b * 2 + 1,
}


@pytest.mark.parametrize("image", NO_IMAGES.values(), ids=NO_IMAGES)
def test_what_differs_by_row(image):
    """(5) Or by step."""

    def program(x):
        step = lambda b, x: (last(b, x), image(b, x))
        return back(lax.scan(step, jnp.zeros((8, 8)), x)[1])

    alone(ENTERING, program, "f32[4,8]", fires=False)


NOT_FIXED = {
    "at the step's number": lambda b, t, x: jnp.roll(b, 1, 0).at[t].set(x),
    "from the data": lambda b, t, x: lax.dynamic_update_slice(
        jnp.roll(b, 1, 0), x[None], (jnp.int32(x[0]), 0)
    ),
}


@pytest.mark.parametrize("push", NOT_FIXED.values(), ids=NOT_FIXED)
def test_what_is_written_at_no_fixed_place(push):
    """(1)"""

    def program(x):
        step = lambda b, here: (push(b, *here), b)
        return back(lax.scan(step, jnp.zeros((8, 8)), (jnp.arange(4), x))[1])

    alone(ENTERING, program, "f32[4,8]", fires=False)


def test_a_function_with_a_remainder():
    """(5) XLA rounds the last elements otherwise if they are not a multiple of eight."""
    program = lambda x: back(stack_of(jnp.sin, last, x, after=False, rows=5))
    alone(ENTERING, program, "f32[4,3]", fires=False)


def test_as_it_is_before_a_step_and_after_together():
    """(5)"""

    def program(x):
        def step(b, x):
            n = last(b, x)
            return n, n - b

        return back(lax.scan(step, jnp.zeros((8, 8)), x)[1])

    alone(ENTERING, program, "f32[4,8]", fires=False)


def test_of_two_registers():
    """(5)"""

    def program(x):
        def step(c, x):
            b, d = c
            return (last(b, x), first(d, x)), b * d

        return back(lax.scan(step, (jnp.ones((8, 8)), jnp.zeros((8, 8))), x)[1])

    alone(ENTERING, program, "f32[4,8]", fires=False)


def nest(init, *, push=last, rows=lambda r: r):
    """Loops of loops; the outer ones are given what the register starts with."""

    def program(xs):
        def outer(c, xs):
            stack = lax.scan(lambda b, x: (push(b, jnp.sin(x)), b), init(c, xs), xs)[1]
            return c + jnp.sin(stack[-1, -1, -1]) if rows is None else c * 2, stack

        _, stacks = lax.scan(outer, 1.0, xs)
        inner = lambda d, stack: (d + back(stack), None)
        return lax.scan(inner, 0.0, stacks, reverse=True)[0]

    return program


STARTS = {
    "the same": lambda c, xs: jnp.ones((5, 3)),
    "carried": lambda c, xs: jnp.full((5, 3), c),
    "streamed": lambda c, xs: xs[:5],
}


@pytest.mark.parametrize("init", STARTS.values(), ids=STARTS)
@pytest.mark.parametrize("push", [last, first])
def test_in_a_nest(init, push):
    """(2) The outer loop stacks what enters, and what the register starts with, if that differs."""
    graph = alone(ENTERING, nest(init, push=push), "f32[2,6,3]", fires=True)
    assert not any(v.shape == (2, 6, 5, 3) for op in graph.walk() for v in op.results)


def test_in_a_nest_of_three():
    """(2) What the register starts with is known in the middle, or what enters is known outside."""

    def program(xs, ys):
        def outermost(c, xs):
            def outer(c, ys):
                b = jnp.outer(xs[:5], jnp.ones(3))
                stack = lax.scan(lambda b, x: (last(b, x), b), b, ys)[1]
                return c * 2, stack

            return lax.scan(outer, c, jnp.stack([ys, ys + 1]))

        _, stacks = lax.scan(outermost, 1.0, xs)
        third = lambda d, stack: (d + back(stack), None)
        second = lambda d, stacks: lax.scan(third, d, stacks)
        return lax.scan(second, 0.0, stacks, reverse=True)[0]

    alone(ENTERING, program, "f32[4,9]", "f32[4,3]", fires=True)


def test_read_in_an_inner_loop():
    """(2) All rows are put together before the loop that does not stack them."""

    def program(x):
        stack = forward(last, x)
        return lax.scan(lambda d, _: (jnp.sin(d) + back(stack), None), 0.0, length=3)[0]

    graph = alone(ENTERING, program, "f32[4,3]", fires=True)
    assert any(op.name == "concatenate" and op.result.shape == (9, 3) for op in graph.body.ops)


def test_needed_whole():
    """(2)"""

    def program(x):
        stack = forward(last, x)
        return back(stack), stack

    check_refuses(ENTERING, program, "f32[4,3]", because="is needed whole")


def test_read_by_a_nest_of_loops():
    """(2)"""

    def program(x):
        rows = forward(last, x).reshape(2, 2, 5, 3)
        return lax.scan(lambda d, rows: (d + back(rows), None), 0.0, rows)[0]

    check_refuses(ENTERING, program, "f32[4,3]", because="is split before its rows are read")


def test_too_many_rows():
    """(3)"""
    program = lambda x: back(forward(last, x, rows=(1 << 31) - 2000))
    check_refuses(ENTERING, program, "i8[2000,1]", because="more rows than an index can number")


def test_symbolic_shapes():
    """(4)"""
    (n,) = export.symbolic_shape("n")

    def loss(b, x):
        step = lambda b, x: (last(b, jnp.sin(x)), jnp.sum(b**3))
        return jnp.sum(lax.scan(step, b, x)[1])

    grad = jax.grad(loss, (0, 1))
    types = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((n, 3), (40, 3))]
    graph = import_jaxpr(jax.make_jaxpr(grad)(*types))
    assert not any([*shifting(op)] for op in scans(graph))
    exported = export.export(jax.jit(optimize(grad)))(*types)
    b, x = jnp.ones((5, 3)), jnp.ones((40, 3))
    assert_close(exported.call(b, x), grad(b, x))


OTHERS = {
    "a row left out": lambda b, x: jnp.concatenate([b[2:4], x[None], b[4:], x[None]]),
    "rows in another order": lambda b, x: jnp.concatenate([b[:0:-1], x[None]]),
    "rows of another carry": lambda b, x: jnp.concatenate([jnp.sin(b)[1:], x[None]]),
    "part of a row": lambda b, x: jnp.roll(b, 1, 0).at[0].set(x).at[3:, 1].set(0),
    "a place from the data": lambda b, x: lax.dynamic_update_slice(
        jnp.roll(b, 1, 0), x[None], (jnp.argmax(x), 0)
    ),
    "an addition": lambda b, x: jnp.roll(b, 1, 0).at[4].add(x),
    "another axis": lambda b, x: jnp.roll(b, 1, 0).T,
    "nothing stays": lambda b, x: jnp.tile(x, (5, 1)),
    "all stays": lambda b, x: b,
}


@pytest.mark.parametrize("push", OTHERS.values(), ids=OTHERS)
def test_what_is_no_register(push):
    """(1)"""
    alone(ENTERING, lambda x: back(forward(push, x)), "f32[4,5]", fires=False)


def test_small():
    """Where nothing is known but shapes, the prices are those of a CPU."""
    program = lambda x: back(forward(last, x))
    with using(CostModel()):
        check_refuses(ENTERING, program, "f32[8,1]", because="it is small")


def test_few_rows():
    """Most of them enter in a step."""
    push = lambda b, x: jnp.concatenate([b[3:], x[None], x[None], x[None]])
    program = lambda x: back(forward(push, x))
    with using(CostModel()):
        check_refuses(
            ENTERING, program, "f32[100,3]", because="the rows that enter are a good part of it"
        )


def autoregressive(push, read=jnp.ravel):
    def loss(w, x):
        def step(b, x):
            y = jnp.tanh(read(b) @ w + x)
            return push(b, y), y

        return jnp.sum(lax.scan(step, jnp.zeros((16, 4)), x)[1] ** 2)

    return loss


@pytest.mark.slow
@pytest.mark.parametrize("push", [last, first])
@pytest.mark.parametrize("outside", [False, True])
def test_gradients(push, outside):
    """In either order, with less memory, also in a batch and differentiated twice."""
    loss = autoregressive(push)
    rng = np.random.default_rng(0)
    w, x = (jnp.asarray(rng.normal(size=s) / 8, jnp.float32) for s in ((64, 4), (300, 4)))
    plain = jax.grad(loss, (0, 1))
    ours = optimize(plain) if outside else jax.grad(optimize(loss), (0, 1))
    (given, used), (wanted, usual) = (measured(f, w, x) for f in (ours, plain))
    assert_close(given, wanted)
    assert used < 0.35 * usual
    batched = [jax.jit(jax.vmap(f, (0, None)))(jnp.stack([w, -w]), x) for f in (ours, plain)]
    assert_close(*batched)
    twice = [jax.jit(jax.grad(lambda w, f=f: jnp.sum(f(w, x)[0] ** 2)))(w) for f in (ours, plain)]
    assert_close(*twice)
    forward = [jax.jvp(f, (w, x), (w, x)) for f in (ours, plain)]
    assert_close(*forward)


def test_a_register_is_stored_instead_of_what_is_made_of_it():
    """`narrow-residuals` knows what it costs."""
    loss = autoregressive(last, lambda b: (b * b * 2 + b).ravel())
    grad = jax.grad(loss)
    w, x = jnp.ones((64, 4)) / 64, jnp.ones((300, 4))
    assert_close(optimize(grad)(w, x), grad(w, x))
    assert memory(optimize(grad), w, x) < 0.35 * memory(grad, w, x)
