"""Of an array that is stacked for windows to be read, the windows are stacked."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import explain, optimize
from jaxpr_opt.passes.residuals.stack_read_windows import StackReadWindows
from jaxpr_opt.testing import check_refuses, check_rewrite
from jaxpr_opt.testing.agreement import assert_close
from tests.loops import alone, memory

WINDOWS = StackReadWindows()
TYPES = "f32[16]", "f32[6]", "i32[6]"


def window(b, i, size=2):
    return lax.dynamic_slice(b, (i,), (size,), allow_negative_indices=False)


def forth_and_back(read, step=lambda b, x, i: b.at[i].set(x), **options):
    """A loop that stacks each version of a buffer, and one back that reads of the versions."""

    def program(b, xs, at):
        def forth(b, inputs):
            return step(b, *inputs), (b, 2 * inputs[1])

        b, (versions, doubled) = lax.scan(forth, b, (xs, at), **options)

        def back(total, inputs):
            version, x, i, twice = inputs
            return total * 0.5 + jnp.sum(read(version, x, i, twice)), total

        reverse = not options.get("reverse", False)
        return b, lax.scan(back, 0.0, (versions, xs, at, doubled), reverse=reverse)

    return program


def test_a_window_at_a_streamed_place():
    """(2) Both loops stream it."""
    check_rewrite(
        WINDOWS,
        forth_and_back(lambda v, x, i, twice: window(v, i)),
        *TYPES,
        diff="""
            fn (b:f32[16], xs:f32[6], at:i32[6]) {
          -   c:f32[16], ys:f32[6,16], ys1:i32[6] = scan[6] carry(c=b) xs(x=xs, x1=at) {
          +   c:f32[16], ys1:i32[6], ys3:f32[6,2] = scan[6] carry(c=b) xs(x=xs, x1=at) {
                l:bool[] = lt x1 0
                a:i32[] = add x1 16
                s:i32[] = select_n l x1 a
                b:i32[1] = broadcast_in_dim s
                s1:f32[16] = scatter[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] c b x
                m:i32[] = mul 2 x1
          +     d1:f32[2] = dynamic_slice c x1
          -     yield carry(s1) ys(c, m)
          +     yield carry(s1) ys(m, d1)
              }
          -   c1:f32[], ys2:f32[6] = scan[6, reverse] carry(c=0.0) xs(x=ys, x1=xs, x2=at, x3=ys1) {
          +   c1:f32[], ys2:f32[6] = scan[6, reverse] carry(c=0.0) xs(x4=ys3) {
                m:f32[] = mul c 0.5
          -     d:f32[2] = dynamic_slice x x2
          -     r:f32[] = reduce_sum[axes=(0,)] d
          +     r:f32[] = reduce_sum[axes=(0,)] x4
                c1:f32[] = convert_element_type m
                a:f32[] = add c1 r
                yield carry(a) ys(c)
              }
              return c, c1, ys2
            }
        """,  # noqa: E501
    )


READS = {
    "a stacked place": lambda v, x, i, twice: window(v, twice),
    "a computed place": lambda v, x, i, twice: window(v, jnp.where(i > 3, twice - i, i + 1)),
    "a place made of a number": lambda v, x, i, twice: window(v, (8 * x).astype(jnp.int32)),
    "two places": lambda v, x, i, twice: window(v, i) * window(v, twice),
    "an element": lambda v, x, i, twice: v[i],
    "an element or NaN": lambda v, x, i, twice: v.at[i].get(mode="fill"),
    "in a branch": lambda v, x, i, twice: lax.cond(
        x > 0, lambda: window(v, i), lambda: jnp.ones(2)
    ),
    "one known place": lambda v, x, i, twice: window(v, 3),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("reverse", [False, True])
def test_places(read, reverse):
    """(2) They are computed in the loop that stacks; whichever way it runs."""
    alone(WINDOWS, forth_and_back(read, reverse=reverse), *TYPES, fires=True)


def test_a_place_from_outside():
    """(2) It is there before both loops."""

    def program(b, xs, at):
        last = at[5] % 3
        return forth_and_back(lambda v, x, i, twice: window(v, last + i))(b, xs, at)

    alone(WINDOWS, program, *TYPES, fires=True)


@pytest.mark.parametrize("dtype", ["bool", "i8", "bf16", "c64"])
def test_dtypes(dtype):
    program = forth_and_back(lambda v, x, i, twice: window(v, i).real.astype(jnp.float32))
    alone(WINDOWS, program, f"{dtype}[16]", f"{dtype}[6]", "i32[6]", fires=True)


def test_64_bits():
    with jax.enable_x64(True):
        program = forth_and_back(lambda v, x, i, twice: window(v, i).astype(jnp.float32))
        alone(WINDOWS, program, "f64[16]", "f64[6]", "i64[6]", fires=True)


@pytest.mark.parametrize("length", [0, 1])
def test_short_loops(length):
    program = forth_and_back(lambda v, x, i, twice: window(v, i))
    alone(WINDOWS, program, "f32[16]", f"f32[{length}]", f"i32[{length}]", fires=True)


def test_nan():
    """What is not read is not looked at."""
    b = jnp.full(16, jnp.nan).at[jnp.arange(5)].set(jnp.inf)
    at = jnp.array([3, 0, 15, -2, 99, 3])
    alone(WINDOWS, forth_and_back(READS["an element"]), b, jnp.ones(6), at, fires=True)


def nested(read, outer=lambda x: x):
    """A loop in a loop, and a loop back in a loop back."""

    def program(b, xs, at):
        def inner(b, inputs):
            x, i = inputs
            return b.at[i].set(x), b

        def rows(b, row):
            xs, _ = row
            b, versions = lax.scan(inner, b, (xs, at))
            return b, (versions, jnp.int32(b[0]) % 3)

        ks = jnp.arange(3)
        b, (versions, lasts) = lax.scan(rows, b, (xs, ks))

        def back(total, inputs):
            versions, xs, k, last = inputs
            step = lambda total, row: (total + jnp.sum(read(*row, k, last)), None)
            return lax.scan(step, total, (versions, xs, at), reverse=True)

        return b, lax.scan(back, 0.0, (versions, outer(xs), ks, lasts), reverse=True)[0]

    return program


NESTED = "f32[16]", "f32[3,6]", "i32[6]"


@pytest.mark.parametrize(
    ("read", "fires"),
    [
        pytest.param(lambda v, x, i, k, last: window(v, i), True, id="streamed by the inner loop"),
        pytest.param(lambda v, x, i, k, last: window(v, k), True, id="by the outer one"),
        pytest.param(lambda v, x, i, k, last: window(v, jnp.int32(x)), True, id="by both"),
        pytest.param(
            lambda v, x, i, k, last: window(v, last), False, id="known after the inner loop"
        ),
    ],
)
def test_nests(read, fires):
    """(1), (2) Through both loops; what an outer step computes later is not known in the inner."""
    alone(WINDOWS, nested(read), *NESTED, fires=fires)


def test_other_rows():
    """(2) Of the same array turned round."""
    program = nested(lambda v, x, i, k, last: window(v, jnp.int32(x)), outer=lambda xs: xs[::-1])
    alone(WINDOWS, program, *NESTED, fires=False)


def counted(b, xs, at):
    """Where it is read the loop back counts."""
    b, versions = lax.scan(lambda b, x: (b.at[x[1]].set(x[0]), b), b, (xs, at))
    back = lambda k, v: (k + 1, window(v, k))
    return b, lax.scan(back, 0, versions, reverse=True)


def computed_after(b, xs, at):
    """The place is of an array that is made of what the first loop gives."""
    b, versions = lax.scan(lambda b, x: (b.at[x[1]].set(x[0]), b), b, (xs, at))
    later = at + jnp.int32(b[0])
    return b, lax.scan(lambda n, x: (n, window(*x)), 0, (versions, later), reverse=True)


def captured_after(b, xs, at):
    """The same for all steps."""
    b, versions = lax.scan(lambda b, x: (b.at[x[1]].set(x[0]), b), b, (xs, at))
    later = jnp.int32(b[0])
    return b, lax.scan(lambda n, v: (n, window(v, later)), 0, versions, reverse=True)


@pytest.mark.parametrize(
    ("program", "because"),
    [
        pytest.param(counted, "does not know where it is read", id="2 counted"),
        pytest.param(computed_after, "does not know where it is read", id="2 computed after"),
        pytest.param(captured_after, "does not know where it is read", id="2 captured after"),
        *(
            pytest.param(
                forth_and_back(lambda v, x, i, twice, at=at: window(v, at(i))),
                "does not know where it is read",
                id=f"2 {what}",
            )
            for what, at in [
                ("by a callback", lambda i: jax.pure_callback(lambda i: i, i, i)),
                ("in a branch", lambda i: lax.cond(i > 0, lambda: i, lambda: -i)),
                ("in a loop", lambda i: lax.while_loop(lambda k: k < 0, lambda k: k + 16, i)),
            ]
        ),
        pytest.param(
            forth_and_back(lambda v, x, i, twice: window(v, i, 9)),
            "the windows are most of the array",
            id="cost: most of it",
        ),
    ],
)
def test_refusals(program, because):
    check_refuses(WINDOWS, program, *TYPES, because=because)


def in_another_order(b, xs, at):
    """A square is transposed before its windows are read."""
    b, versions = lax.scan(lambda b, x: (b.at[0, x[1]].set(x[0]), b), b.reshape(4, 4), (xs, at))
    turned = lax.reshape(versions, (6, 4, 4), (0, 2, 1))
    read = lambda n, x: (n, lax.dynamic_slice(x[0], (x[1], 0), (1, 1)))
    return b, lax.scan(read, 0, (turned, at), reverse=True)[1]


def carried(b, xs, at):
    """All versions are where a loop starts from."""
    b, versions = lax.scan(lambda b, x: (b.at[x[1]].set(x[0]), b), b, (xs, at))
    inner = lambda n, x: (n, window(*x))
    step = lambda all_, _: (jnp.zeros((6, 16)), lax.scan(inner, 0, (all_, at), reverse=True)[1])
    return b, lax.scan(step, versions, None, length=2)[1]


def first_row(b, xs, at):
    b, versions = lax.scan(lambda b, x: (b.at[x[1]].set(x[0]), b), b, (xs, at))
    read = lax.scan(lambda n, x: (n, window(*x)), 0, (versions, at), reverse=True)[1]
    return b, versions[0], read


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(forth_and_back(lambda v, x, i, twice: v), id="1 whole"),
        pytest.param(forth_and_back(lambda v, x, i, twice: window(v, i) + v[::8]), id="1 strided"),
        pytest.param(first_row, id="1 not row by row"),
        pytest.param(in_another_order, id="1 transposed"),
        pytest.param(carried, id="1 carried"),
    ],
)
def test_other_stacks(program):
    alone(WINDOWS, program, *TYPES, fires=False)


def scaled(b, xs, at):
    """Elements multiplied in place, in rows of steps."""

    def row(b, x):
        return lax.scan(lambda b, i: (b.at[i].multiply(1 + x * b[0]), None), b, at)[0], None

    return jnp.sum(jnp.sin(lax.scan(row, b, xs)[0]))


@pytest.mark.slow
def test_the_gradient_of_products_in_nested_loops():
    """It takes memory for windows, below `jax.grad` and above."""
    keys = jax.random.split(jax.random.key(0), 3)
    b, xs = jax.random.normal(keys[0], (256,)), 0.1 * jax.random.normal(keys[1], (8,))
    args = b, xs, jax.random.randint(keys[2], (16,), 0, 256)
    grad = jax.grad(scaled, (0, 1))
    for optimized in (optimize(grad), jax.grad(optimize(scaled), (0, 1))):
        assert_close(optimized(*args), grad(*args))
        assert memory(optimized, *args) < 16 * b.nbytes < memory(grad, *args) / 4


def arranged(there, back, both=None):
    """A loop that stacks `there` of its carry, and one back that reads `back` of the rows."""

    def program(x):
        def forth(c, _):
            c = jnp.sin(c)
            return c, there(c)

        c, rows = lax.scan(forth, x, None, length=3)
        read = lambda t, row: (t + back(row) + (0 if both is None else both(row)), t)
        return c, lax.scan(read, jnp.zeros(back(there(x)).shape), rows, reverse=True)

    return program


def test_a_transposition_that_the_reader_takes_back():
    """(3)"""
    check_rewrite(
        WINDOWS,
        arranged(jnp.transpose, jnp.transpose),
        "f32[2,4]",
        diff="""
            fn (x:f32[2,4]) {
          -   c:f32[2,4], ys:f32[3,4,2] = scan[3] carry(c=x) {
          +   c:f32[2,4], ys2:f32[3,2,4] = scan[3] carry(c=x) {
                s:f32[2,4] = sin c
                t:f32[4,2] = transpose s
          -     yield carry(s) ys(t)
          +     yield carry(s) ys(s)
              }
              t:f32[4,2] = transpose x
              t1:f32[2,4] = transpose t
              b:f32[2,4] = broadcast_in_dim 0.0
          -   c1:f32[2,4], ys1:f32[3,2,4] = scan[3, reverse] carry(c=b) xs(x=ys) {
          +   c1:f32[2,4], ys1:f32[3,2,4] = scan[3, reverse] carry(c=b) xs(x1=ys2) {
          -     t:f32[2,4] = transpose x
          -     a:f32[2,4] = add c t
          +     a:f32[2,4] = add c x1
                a1:f32[2,4] = add a 0.0
                yield carry(a1) ys(c)
              }
              return c, c1, ys1
            }
        """,
    )


ROLLED = lambda v: jnp.transpose(v, (1, 2, 0))
BACK = lambda v: jnp.transpose(v, (2, 0, 1))


@pytest.mark.parametrize(
    ("program", "type_", "fires"),
    [
        pytest.param(arranged(ROLLED, BACK), "f32[2,3,4]", True, id="three axes"),
        pytest.param(arranged(ROLLED, ROLLED), "f32[2,2,2]", False, id="3 another permutation"),
        pytest.param(
            arranged(jnp.ravel, lambda v: v.reshape(2, 4)), "f32[2,4]", True, id="reshape"
        ),
        pytest.param(
            arranged(jnp.ravel, lambda v: v.reshape(4, 2)), "f32[2,4]", False, id="3 another shape"
        ),
        pytest.param(
            arranged(jnp.transpose, jnp.transpose, both=jnp.sum),
            "f32[2,4]",
            False,
            id="3 one reader of two",
        ),
        pytest.param(
            arranged(jnp.transpose, lambda v: v.reshape(2, 4)), "f32[2,4]", False, id="3 reshaped"
        ),
    ],
)
def test_arrangements(program, type_, fires):
    """(3) Each reader takes back what the step does last."""
    alone(WINDOWS, program, type_, fires=fires)


def inner_loop(w, x):
    """A loop in each step of a loop."""

    def outer(s, x):
        s, _ = lax.scan(lambda s, _: (jnp.tanh(s @ w + x), None), s, None, length=8)
        return s, s

    return jnp.sum(lax.scan(outer, jnp.zeros_like(x[0]), x)[1])


def triple_loop(w, x):
    def outer(s, _):
        return s + inner_loop(w, x * s), None

    return lax.scan(outer, 1.0, None, length=4)[0]


@pytest.mark.slow
@pytest.mark.parametrize("loss", [inner_loop, triple_loop])
@pytest.mark.parametrize("levels", [1, 2])
def test_a_batch_of_gradients_stores_what_a_gradient_stores(loss, levels):
    """(3) `vmap` moves its axis to the front between the loops."""
    w, x = 0.3 * jnp.cos(jnp.arange(256.0)).reshape(16, 16), jnp.sin(jnp.arange(10.0 * 512))
    xs = x.reshape(*(2,) * levels, 10, -1, 16)
    gradients = jax.grad(loss)
    for _ in range(levels):
        gradients = jax.vmap(gradients, (None, 0))
    assert_close(jax.jit(gradients)(w, xs), optimize(gradients)(w, xs))
    report = str(explain(gradients, w, xs))
    assert "stack-read-windows" in report
    assert "narrow-residuals" in report
