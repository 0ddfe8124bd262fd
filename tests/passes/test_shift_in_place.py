"""A shift register of which a step reads a few rows becomes a ring."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.carried.shift_in_place import ShiftInPlace
from jaxpr_opt.testing import check_refuses, check_rewrite, run_alone
from tests.loops import alone

SHIFT = ShiftInPlace()


class AtAnyPrice(CostModel):
    """Nothing is small, and fewer bytes are always worth it."""

    __slots__ = ()

    def is_hidden(self, nbytes):
        return False

    def is_hidden_in(self, loop, nbytes):
        return False

    def is_sparse(self, windows, array):
        return True

    def is_longer(self, few, many):
        return True


MODEL = AtAnyPrice()


def last(b, x):
    return jnp.concatenate([b[1:], x[None]])


def first(b, x):
    return jnp.concatenate([x[None], b[:-1]])


def loop(push, *, read=lambda b: b[1], after=False, reverse=False, keep=True):
    """A loop that reads a row of a register, and pushes one that it makes of it."""

    def program(b, xs):
        def step(b, x):
            y = x + read(b)
            n = push(b, -y)
            return n, read(n) if after else y

        b, ys = lax.scan(step, b, xs, reverse=reverse)
        return (b, ys) if keep else ys

    return program


def test_a_delay_line():
    """The row that is dropped makes room for the one that enters."""
    check_rewrite(
        SHIFT,
        lambda b, xs: lax.scan(lambda b, x: (last(b, x + b[0]), b[2]), b, xs),
        "f32[5]",
        "f32[7]",
        simplify=True,
        diff="""
          fn (b:f32[5], xs:f32[7]) {
        +   i:i32[7] = iota
        -   c:f32[5], ys:f32[7] = scan[7] carry(c=b) xs(x=xs) {
        +   c:f32[5], ys:f32[7] = scan[7] carry(c=b) xs(x=xs, step=i) {
        -     s:f32[1] = slice[:1] c
        +     r:i32[] = rem step 5
        +     d:f32[1] = dynamic_slice c r
        -     s1:f32[] = squeeze s
        +     s1:f32[] = squeeze d
              a:f32[] = add x s1
        -     s2:f32[4] = slice[1:] c
              b:f32[1] = broadcast_in_dim a
        -     c1:f32[5] = concatenate[dimension=0] s2 b
        -     s3:f32[1] = slice[2:3] c
        +     d1:f32[5] = dynamic_update_slice c b r
        +     a1:i32[] = add step 2
        +     r1:i32[] = rem a1 5
        +     d2:f32[1] = dynamic_slice c r1
        -     s4:f32[] = squeeze s3
        +     s4:f32[] = squeeze d2
        -     yield carry(c1) ys(s4)
        +     yield carry(d1) ys(s4)
            }
        +   s5:f32[3] = slice[2:] c
        +   s6:f32[2] = slice[:2] c
        +   c2:f32[5] = concatenate[dimension=0] s5 s6
        -   return c, ys
        +   return c2, ys
          }
        """,
    )


def test_the_transposed_loop():
    """(3) Zeros enter at the other end, and rows are added."""

    def program(ct, xs):
        def step(ct, x):
            dropped = ct[4:]
            shifted = lax.pad(ct[:4], 0.0, [(1, 0, 0)])
            row = lax.pad(dropped * x, 0.0, [(2, 2, 0)])
            return shifted + row, dropped[0]

        return lax.scan(step, ct, xs, reverse=True)

    check_rewrite(
        SHIFT,
        program,
        "f32[5]",
        "f32[7]",
        simplify=True,
        diff="""
          fn (ct:f32[5], xs:f32[7]) {
        +   i:i32[7] = iota
        -   c:f32[5], ys:f32[7] = scan[7, reverse] carry(c=ct) xs(x=xs) {
        +   c:f32[5], ys:f32[7] = scan[7, reverse] carry(c=ct) xs(x=xs, step=i) {
        -     s:f32[1] = slice[4:] c
        -     s1:f32[4] = slice[:4] c
        -     p:f32[5] = pad[padding_config=((1, 0, 0),)] s1 0.0
        +     a1:i32[] = add step 8
        +     r:i32[] = rem a1 5
        +     d:f32[1] = dynamic_slice c r
        -     m:f32[1] = mul s x
        +     m:f32[1] = mul d x
        -     p1:f32[5] = pad[padding_config=((2, 2, 0),)] m 0.0
        -     a:f32[5] = add p p1
        +     a2:i32[] = add step 5
        +     r1:i32[] = rem a2 5
        +     d1:f32[1] = dynamic_slice c r1
        +     a3:f32[1] = add d1 m
        +     b:f32[1] = broadcast_in_dim 0.0
        +     d2:f32[5] = dynamic_update_slice c b r
        +     d3:f32[5] = dynamic_update_slice d2 a3 r1
        -     s2:f32[] = squeeze s
        +     s2:f32[] = squeeze d
        -     yield carry(a) ys(s2)
        +     yield carry(d3) ys(s2)
            }
        +   s3:f32[2] = slice[3:] c
        +   s4:f32[3] = slice[:3] c
        +   c1:f32[5] = concatenate[dimension=0] s3 s4
        -   return c, ys
        +   return c1, ys
          }
        """,
    )


WAYS = {
    "last": last,
    "first": first,
    "roll, last": lambda b, x: jnp.roll(b, -1, 0).at[-1].set(x),
    "roll, first": lambda b, x: jnp.roll(b, 1, 0).at[0].set(x),
    "write all but one": lambda b, x: b.at[1:].set(b[:-1]).at[0].set(x),
    "stack": lambda b, x: jnp.stack([x, *(b[i] for i in range(4))]),
    "pad": lambda b, x: lax.pad(b[1:], jnp.zeros((), b.dtype), [(0, 1, 0), (0, 0, 0)]).at[4].set(x),
    "pad with less than none": lambda b, x: lax.pad(b, x[0], [(1, -1, 0), (0, 0, 0)]),
    "two at a time": lambda b, x: jnp.concatenate([b[2:], jnp.stack([x, -x])]),
    "with a row that was there": lambda b, x: jnp.concatenate([b[2:], b[1:2], x[None]]),
    "and a row that moved": lambda b, x: jnp.concatenate([x[None], b[2:], -x[None]]),
    "around": lambda b, x: jnp.roll(b, 1, 0),
    "around by two": lambda b, x: jnp.roll(b, -2, 0),
    "a row from the data": lambda b, x: last(b, x).at[jnp.abs(x[0]).astype(int) % 7].set(x),
    "added to from the data": lambda b, x: (
        last(b, x).at[jnp.abs(x[0]).astype(int) % 7, 1].add(x[1])
    ),
    "the greater": lambda b, x: last(b, x).at[jnp.abs(x[0]).astype(int) % 7].max(x),
    "twice": lambda b, x: first(first(b, x), -x),
    "there and further back": lambda b, x: first(last(last(b, x), -x), x),
}


@pytest.mark.parametrize("push", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("reverse", [False, True])
def test_ways_to_shift(push, reverse):
    """(1, 2) The register before a step, and after it."""
    program = loop(push, after=True, reverse=reverse)
    alone(SHIFT, program, "f32[5,6]", "f32[7,6]", fires=True)


COLUMNS = {
    "concatenate": lambda b, x: jnp.concatenate([b[:, 1:], x[:, None]], 1),
    "roll": lambda b, x: jnp.roll(b, 1, 1).at[:, 0].set(x),
    "two at a time": lambda b, x: jnp.concatenate([b[:, 2:], b[:, :2] * x[0]], 1),
}


@pytest.mark.parametrize("push", COLUMNS.values(), ids=COLUMNS)
def test_columns(push):
    """(1) The register may be along any axis."""
    program = loop(push, read=lambda b: b[:, 2] + b[0, 1], after=True)
    alone(SHIFT, program, "f32[6,5]", "f32[7,6]", fires=True)


@pytest.mark.parametrize("push", [last, first, WAYS["two at a time"]])
@pytest.mark.parametrize("length", [0, 1, 4, 5, 12])
def test_as_often_around_as_it_takes(push, length):
    """Fewer rows may enter than the register holds, or none, or all of them twice."""
    alone(SHIFT, loop(push), "f32[5,2]", f"f32[{length},2]", fires=True)


READS = {
    "a row": lambda b, i: b[3],
    "the last": lambda b, i: b[-1],
    "two rows": lambda b, i: b[3] + b[0],
    "rows one after the other": lambda b, i: jnp.sum(b[1:4], 0),
    "a part of a row": lambda b, i: b[3, 1:2] * jnp.ones(3),
    "from the data": lambda b, i: b[i],
    "a part of a row from the data": lambda b, i: lax.dynamic_slice(b, (i, i), (1, 2))[0, 1] + b[0],
    "several": lambda b, i: jnp.sum(b[jnp.stack([i, i + 1, -i])], 0),
    "elements": lambda b, i: b[jnp.stack([i, i, i + 2]), jnp.arange(3)],
    "elements the other way": lambda b, i: b.at[i, :2].get(mode="clip")[1] + b[0],
    "clamped": lambda b, i: b.at[i - 4].get(mode="clip"),
    "filled": lambda b, i: b.at[jnp.stack([i, i + 4])].get(mode="fill", fill_value=7)[1],
    "as promised": lambda b, i: b.at[jnp.clip(i, 0, 4)].get(mode="promise_in_bounds"),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("push", [last, first])
def test_ways_to_read(push, read):
    """(2) In range and out of it."""

    def program(b, xs, at):
        def step(b, here):
            x, i = here
            y = read(b, i) + x
            return push(b, y), (y, read(b, i - 3))

        return lax.scan(step, b, (xs, at))

    at = jnp.array([0, 1, 4, 5, 9, -1, -5, -6, 2**30, -(2**30)])
    xs = jnp.arange(30.0).reshape(10, 3)
    alone(SHIFT, program, xs[:5] * 7, xs, at, fires=True)


WRITES = {
    "dropped": lambda b, i, x: b.at[jnp.stack([i, i + 9])].set(x, mode="drop"),
    "clamped": lambda b, i, x: b.at[i].add(x, mode="clip"),
    "sorted": lambda b, i, x: b.at[jnp.stack([i % 4, 4])].set(x, indices_are_sorted=True),
    "unique": lambda b, i, x: b.at[jnp.stack([i % 2, 4])].add(x, unique_indices=True),
    "elements": lambda b, i, x: b.at[jnp.stack([i, i, i]), jnp.arange(3)].multiply(x),
    "a row of it": lambda b, i, x: b.at[i].set(b[0]),
    "rows of it": lambda b, i, x: lax.dynamic_update_slice(b, b[3:4], (i, 0)),
    "a row that it chooses": lambda b, i, x: b.at[b[1, 0].astype(int) % 5].set(
        b[b[3, 1].astype(int) % 5]
    ),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_ways_to_write(write):
    """(2) In range and out of it."""

    def program(b, xs, at):
        step = lambda b, here: (write(last(b, here[0]), here[1], here[0]), b[2])
        return lax.scan(step, b, (xs, at))

    at = jnp.array([0, 1, 4, 5, 9, -1, -5, -6, 2**30, -(2**30)])
    xs = jnp.arange(30.0).reshape(10, 3)
    alone(SHIFT, program, xs[:5] * 7, xs, at, fires=True)


@pytest.mark.parametrize("dtype", ["i8", "bool", "c64", "bf16"])
def test_of_any_type(dtype):
    program = lambda b, xs: lax.scan(lambda b, x: (last(b, x), b[1]), b, xs)
    alone(SHIFT, program, f"{dtype}[5,3]", f"{dtype}[7,3]", fires=True)


def test_of_a_weak_type():
    def program(x):
        b = lax.broadcast_in_dim(2.0, (5, 1), ())
        return lax.scan(lambda b, _: (jnp.roll(b, 1, 0), b[1]), b, length=9)[1] + x

    alone(SHIFT, program, "f32[]", fires=True)


def test_in_a_loop():
    """The rows are put into their order for the next of the outer steps."""

    def program(b, xs):
        inner = lambda b, xs: (loop(first)(b, xs)[0], b[0])
        return lax.scan(inner, b, xs)

    alone(SHIFT, program, "f32[5,2]", "f32[3,7,2]", fires=True)


def _examples():
    rng = np.random.default_rng(0)
    b, xs = (jnp.asarray(rng.normal(size=(n, 3)), jnp.float32) for n in (5, 12))
    return b, xs, jnp.asarray(rng.integers(0, 5, 12), jnp.int32)


def _delays(b, xs, at):
    """Reads at a fixed place and at one from the data, of the register before a step and after."""

    def step(b, here):
        x, i = here
        n = last(b, jnp.tanh(x + b[0] * b[i]))
        return n, n[3] + b[2]

    b, ys = lax.scan(step, b, (xs, at))
    return jnp.sum(ys**2) + jnp.sum(jnp.sin(b))


ORDERS = {
    "optimize(grad)": lambda f: (optimize(jax.grad(f, (0, 1))), jax.grad(f, (0, 1))),
    "grad(optimize)": lambda f: (jax.grad(optimize(f), (0, 1)), jax.grad(f, (0, 1))),
    "second": lambda f: (
        optimize(jax.grad(lambda *a: jnp.sum(jax.grad(optimize(f))(*a) ** 2))),
        jax.grad(lambda *a: jnp.sum(jax.grad(f)(*a) ** 2)),
    ),
    "jvp": lambda f: tuple(
        lambda b, xs, at, f=f: jax.jvp(lambda b, xs: f(b, xs, at), (b, xs), (xs[:5], xs * 2))
        for f in (optimize(f), f)
    ),
    "vmap": lambda f: tuple(
        lambda b, xs, at, g=g: jax.vmap(g, (0, None, None))(jnp.stack([b, -b]), xs, at)
        for g in (optimize(jax.grad(f)), jax.grad(f))
    ),
    "optimize(vmap)": lambda f: tuple(
        lambda b, xs, at, g=g: g(jax.vmap(f, (0, None, 0)))(
            jnp.stack([b, -b]), xs, jnp.stack([at, at[::-1]])
        )
        for g in (optimize, lambda f: f)
    ),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_derivatives(order):
    """The whole pipeline."""
    ours, plain = order(_delays)
    pairs = zip(*(jax.tree.leaves(jax.jit(f)(*_examples())) for f in (ours, plain)), strict=True)
    for got, want in pairs:
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)


def _shifts(fun, *args):
    """How many ops of a compiled step read all of a register."""
    text = str(jax.make_jaxpr(fun)(*args))
    return text.count("concatenate") + text.count("pad[")


def test_the_gradient_has_no_shifts():
    """One concatenation is left for each result that is kept, after the loop."""
    loss = lambda b, xs: jnp.sum(loop(last, keep=False)(jnp.sin(b), xs) ** 2)
    args = jnp.ones((5, 3)), jnp.ones((7, 3))
    plain = _shifts(jax.grad(loss), *args)
    assert plain > _shifts(optimize(jax.grad(loss)), *args) <= 1


WHOLE = {
    "a sum": lambda b, x: (last(b, x), jnp.sum(b)),
    "kept": lambda b, x: (last(b, x), b),
    "of a version": lambda b, x: (jnp.tanh(last(b, x)), b[0]),
    "columns": lambda b, x: (last(b, x), b[:, 1]),
    "in an inner loop": lambda b, x: (
        last(b, x), lax.fori_loop(0, 3, lambda i, s: s + b[i, 0], 0.0),
    ),
    "swapped halves": lambda b, x: (jnp.concatenate([b[4:6], b[2:4], b[:2]]), b[0]),
}  # fmt: skip


@pytest.mark.parametrize("step", WHOLE.values(), ids=WHOLE)
def test_whole_registers(step):
    """(1, 2)"""
    program = lambda b, xs: lax.scan(step, b, xs)
    alone(SHIFT, program, "f32[6,3]", "f32[7,3]", fires=False)


def test_reasons():
    """(2, 5)"""
    program = lambda step: lambda b, xs: lax.scan(step, b, xs)
    given = "f32[6,3]", "f32[7,3]"
    check_refuses(SHIFT, program(WHOLE["a sum"]), *given, because="reduce_sum reads all of")
    check_refuses(SHIFT, program(WHOLE["kept"]), *given, because="leaves a step whole")


def test_sums_that_overlap():
    """(3) acc + (u + v) is not (acc + u) + v, but of integers."""

    def program(b, xs):
        def step(b, x):
            rows = jnp.zeros_like(b).at[jnp.array([1, 1])].add(x)
            return last(b, x) + rows, b[0]

        return lax.scan(step, b, xs)

    alone(SHIFT, program, "f32[5,3]", "f32[7,3]", fires=False)
    alone(SHIFT, program, "i32[5,3]", "i32[7,3]", fires=True)


def test_places_that_are_told_apart_by_their_column():
    """(3) Of ``[rows, arange(n)]`` no two are the same element."""

    def program(b, xs, at):
        def step(b, x):
            rows = jnp.zeros_like(b).at[at, jnp.arange(3)].add(x)
            return last(b, x) + rows, b[0]

        return lax.scan(step, b, xs)

    at = jnp.array([1, 1, 4])
    alone(SHIFT, program, jnp.ones((5, 3)), jnp.arange(21.0).reshape(7, 3), at, fires=True)


def test_an_index_that_cannot_number_the_rows():
    """(5)"""

    def program(b, xs, at):
        step = lambda b, here: (last(b, here[0]), lax.dynamic_slice(b, (here[1],), (1,)))
        return lax.scan(step, b, (xs, at))

    at = jnp.zeros(7, jnp.int8)
    alone(SHIFT, program, jnp.ones(127), jnp.ones(7), at, fires=True)
    alone(SHIFT, program, jnp.ones(128), jnp.ones(7), at, fires=False)


def test_a_loop_too_long_to_number_its_places():
    """(5)"""
    program = lambda b: lax.scan(lambda b, _: (jnp.roll(b, 2), b[0]), b, length=2**30)[0]
    check_refuses(SHIFT, program, "f32[5]", because="the type of the index cannot number all rows")


def test_symbolic_shapes():
    """(4)"""
    (n,) = export.symbolic_shape("n")
    program = optimize(loop(last))
    args = [jax.ShapeDtypeStruct((n + 2, 3), "float32"), jax.ShapeDtypeStruct((7, 3), "float32")]
    made = export.export(jax.jit(program))(*args)
    b, xs = jnp.ones((5, 3)), jnp.arange(21.0).reshape(7, 3)
    np.testing.assert_array_equal(made.call(b, xs)[1], loop(last)(b, xs)[1])


def _rewrites(*types):
    """What the pass does to a delay line of such types."""
    graph = import_jaxpr(jax.make_jaxpr(loop(last))(*types))
    return run_alone((SHIFT,), graph).record(SHIFT.name, SHIFT.cleanup).rewrites


def test_registers_whose_rows_no_number_counts():
    """(4) The shape is symbolic, or devices hold parts of the rows."""
    (n,) = export.symbolic_shape("n")
    xs = jax.ShapeDtypeStruct((7, 4), "float32")
    assert not _rewrites(jax.ShapeDtypeStruct((n + 2, 4), "float32"), xs)
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        parts = NamedSharding(mesh, PartitionSpec(None, "x"))
        types = [jax.ShapeDtypeStruct((k, 4), "float32", sharding=parts) for k in (5, 7)]
        assert not _rewrites(*types)
    assert _rewrites(jax.ShapeDtypeStruct((5, 4), "float32"), xs)


def test_what_does_not_pay():
    """No firing without gain."""
    with using(CostModel()):
        check_refuses(SHIFT, loop(last), "f32[5,3]", "f32[7,3]", because="it is small")
        most = loop(last, read=lambda b: jnp.sum(b[:4000], 0))
        check_refuses(
            SHIFT, most, "f32[8000,3]", "f32[99,3]", because="a good part of the register"
        )
        check_refuses(
            SHIFT, loop(last), "f32[8000,3]", "f32[1,3]", because="the loop has few steps"
        )
        alone(SHIFT, loop(last), "f32[8000,3]", "f32[99,3]", fires=True)


MOVES = (
    lambda b, x, i, y: last(b, x),
    lambda b, x, i, y: first(b, y),
    lambda b, x, i, y: jnp.roll(b, 2, 0),
    lambda b, x, i, y: jnp.concatenate([b[2:], b[1:2] * 2, x[None]]),
    lambda b, x, i, y: lax.pad(b, jnp.zeros((), b.dtype), [(1, -1, 0), (0, 0, 0)]),
    lambda b, x, i, y: b.at[i].set(y),
    lambda b, x, i, y: b.at[2].add(x),
    lambda b, x, i, y: b.at[i].max(b[0]),
    lambda b, x, i, y: b + lax.pad(y[None], jnp.zeros((), b.dtype), [(1, 4, 0), (0, 0, 0)]),
    lambda b, x, i, y: b + jnp.zeros_like(b).at[i].add(b[3]),
    lambda b, x, i, y: lax.dynamic_update_slice(b, b[3:5], (2, 0)),
)
LOOKS = (
    lambda b, i: b[0] - b[5],
    lambda b, i: b[i],
    lambda b, i: jnp.sum(b[2:4], 0),
    lambda b, i: b[jnp.stack([i, 1]), jnp.arange(2)],
    lambda b, i: lax.dynamic_slice(b, (i, 0), (1, 2))[0],
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_steps_at_random(seed):
    """Versions made one of another, some of earlier ones, and read in all ways."""
    rng = np.random.default_rng(seed)
    pick = lambda of: of[rng.integers(len(of))]
    made = [(pick(MOVES), rng.integers(k + 1)) for k in range(rng.integers(1, 5))]
    made.append((pick(MOVES[:5]), len(made)))
    looks = [(pick(LOOKS), rng.integers(len(made) + 1)) for _ in range(3)]

    def program(b, xs, at):
        def step(b, here):
            (x, i), versions = here, [b]
            y = pick_of(looks[:1], versions, i) * 2 - x
            for move, source in made:
                versions.append(move(versions[source], x, i, y))
            return versions[-1], pick_of(looks, versions, i)

        return lax.scan(step, b, (xs, at), reverse=bool(seed % 2))

    def pick_of(looks, versions, i):
        return sum(look(versions[k % len(versions)], i) for look, k in looks)

    jaxpr = jax.make_jaxpr(program)(jnp.ones((6, 2), int), jnp.ones((9, 2), int), jnp.arange(9))
    graph = import_jaxpr(jaxpr, SHIFT.phase)
    fired = bool(run_alone((SHIFT,), graph).record(SHIFT.name, False).rewrites)
    assert fired or seed == 3  # whose steps read all of a version
    alone(SHIFT, program, "i32[6,2]", "i32[9,2]", jnp.asarray(rng.integers(-7, 8, 9)), fires=fired)


@pytest.mark.parametrize("whole", [True, False])
def test_how_small_is_small(whole):
    """A step of a loop that is one function hides less."""
    with using(CostModel().but(starts_each=not whole)):
        alone(SHIFT, loop(last), "f32[64,8]", "f32[7,8]", fires=whole)


def test_several_rows_at_their_places():
    """They are gathered one by one: that takes longer than a short step."""

    program = loop(last, read=lambda b: b[jnp.array([0, 3])].sum())
    with using(CostModel().but(starts_each=False)):
        alone(SHIFT, program, "f32[64,8]", "f32[7,8]", fires=False)
        alone(SHIFT, program, "f32[640,8]", "f32[7,8]", fires=True)
