"""What a step computes of an array into which it has written a window takes no test per number."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.bridge import compat_devices
from jaxpr_opt.bridge.parameters import unique, unsorted
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.passes.in_place.write_apart import WriteApart
from jaxpr_opt.testing import assert_same_bits, check_refuses, check_rewrite, traced
from tests.loops import alone

PASS = WriteApart()


FEW = "f32[9]", "i32[9]"


def put(c, x, *at):
    """`x` is written where it is in range."""
    window = jnp.broadcast_to(x, (1,) * c.ndim if len(at) == c.ndim else (1, *c.shape[1:]))
    return lax.dynamic_update_slice(c, window, (*at, *(0 for _ in c.shape[len(at) :])))


def scanned(step):
    """A loop of ``c, y = step(c, x, i)``."""
    return lambda c, xs, at: lax.scan(lambda c, t: step(c, *t), c, (xs, at))


def forgets(c, x, i):
    return put(c, x, i) * 0.9, None


def test_a_memory_that_forgets(barriers):
    check_rewrite(
        PASS,
        lambda c, xs, at: scanned(forgets)(c, xs, at)[0],
        "f32[400]",
        *FEW,
        diff="""
          fn (c:f32[400], xs:f32[9], at:i32[9]) {
            c1:f32[400] = scan[9] carry(c=c) xs(x=xs, x1=at) {
              b:f32[1] = broadcast_in_dim x
              l:bool[] = lt x1 0
              a:i32[] = add x1 400
              s:i32[] = select_n l x1 a
        -     d:f32[400] = dynamic_update_slice c b s
        +     d:f32[400] = dynamic_update_slice[apart] c b s
              m:f32[400] = mul d 0.9
              yield carry(m)
            }
            return c1
          }
        """,
    )


def sums_up(c, x, i):
    d = put(c, x, i)
    return jnp.sin(d), jnp.sum(d)


def sums_up_what_it_keeps(c, x, i):
    d = put(c, x, i)
    return d, jnp.sum(d)


def of_a_batch(c, x, i):
    return c.at[jnp.stack([i, i + 3])].set(x) * 0.9, None


SERVED = {
    "an addition": lambda c, x, i: (c.at[i].add(x) * 0.9, None),
    "dropped if out of range": lambda c, x, i: (c.at[i].set(x, mode="drop") * 0.9, None),
    "two readers": sums_up,
    "a computed array": lambda c, x, i: (jnp.sin(put(c * 0.9, x, i)), c[0]),
    "a branch": lambda c, x, i: (lax.cond(x > 0, lambda c: put(c, x, i) * 0.9, jnp.cos, c), None),
    "two writes": lambda c, x, i: (put(put(c, x, i), x + 1, i - 1) * 0.9, None),
}


@pytest.mark.parametrize("step", SERVED.values(), ids=SERVED)
def test_other_shapes(step):
    alone(PASS, scanned(step), "f32[4000]", *FEW, fires=True)


@pytest.mark.parametrize("rows", [2, 30])
def test_rows(rows):
    """(3) Where they start along the axis that they fill may be data."""

    def sliced(c, x, i):
        window = jnp.broadcast_to(x, (1, 20))
        return lax.dynamic_update_slice(c, window, (i, i * 2)) * 0.9, None

    def scattered(c, x, i):
        return c.at[0, i].set(x) * 0.9, None

    for step, shape in ((sliced, (30, 20)), (scattered, (rows, 600 // rows))):
        program, given = scanned(step), (jnp.ones(shape), jnp.arange(9.0), jnp.arange(9) - 4)
        alone(PASS, program, *given, fires=True)
        assert_same_bits(jax.jit(program)(*given), optimize(program)(*given))


@pytest.mark.parametrize("at", [0, 5, -1, 398, 399, 400, 10**6])
def test_compiled(at):
    """(3) All arguments of the function are read, whatever XLA knows of them."""

    def program(c, xs, at):
        zeros = lax.fori_loop(0, 9, lambda i, c: put(c, 2.0, i) * 0.9, jnp.zeros(400))
        return scanned(forgets)(c, xs, at), zeros

    given = jnp.ones(400), jnp.arange(9.0), jnp.full(9, at)
    assert_same_bits(jax.jit(program)(*given), optimize(program)(*given))


@pytest.mark.skipif(
    not compat_devices.SAYS_WHAT_IS_MAIN, reason="since JAX 0.11 no loop is made one function"
)
def test_a_function_in_a_function():
    program, given = scanned(forgets), (jnp.ones(400), jnp.arange(9.0), jnp.arange(9))
    both = optimize(program, passes=[PASS, "compile-small-loops"])
    assert jax.jit(both).lower(*given).as_text().count("xla_cpu_small_call") == 2
    assert_same_bits(jax.jit(program)(*given), both(*given))


def test_optimised_twice():
    given = jnp.ones(400), jnp.arange(9.0), jnp.arange(9)
    program = scanned(forgets)
    assert_same_bits(jax.jit(program)(*given), optimize(optimize(program))(*given))
    batch = jnp.ones((2, 400)), *given[1:]
    over = lambda f: jax.vmap(jax.grad(lambda c, *t: jnp.sum(f(c, *t)[0] ** 2)), (0, None, None))
    assert_same_bits(over(program)(*batch), over(optimize(program))(*batch))


LEFT = {
    "read afterwards": (lambda c, x, i: (put(c, x, i) * 0.9 + c, None), "in place"),
    "read by another name": (
        lambda c, x, i: (jnp.where(x > 0, put(lax.convert_element_type(c, float), x, i), c), None),
        "in place",
    ),
    "given": (lambda c, x, i: (c + put(jnp.zeros(400), x, i) * 0.9, None), "in place"),
    "a known place": (lambda c, x, i: (put(c, x, 7) * i, None), "is known"),
    "several windows": (of_a_batch, "a function of its own"),
    "all of it": (
        lambda c, x, i: (lax.dynamic_update_slice(c, jnp.full(400, x), (i,)) * 0.9, None),
        "a function of its own",
    ),
}


@pytest.mark.parametrize(("step", "because"), LEFT.values(), ids=LEFT)
def test_what_stays(step, because):
    """(2, 3) It would be copied, or XLA does better by itself."""
    check_refuses(PASS, scanned(step), "f32[400]", *FEW, because=because)


def test_a_type_without_code():
    """(3) XLA has code for such numbers outside of functions of our own only."""
    program = scanned(lambda c, x, i: (put(c, x, i) * x, None))
    given = jnp.ones(4000, "int4"), jnp.ones(9, "int4"), "i32[9]"
    check_refuses(PASS, program, *given, because="a function of its own")


def test_a_transposed_array():
    """Cost: its readers compute the numbers one by one in any case."""
    across = lambda c, xs, at, w: scanned(lambda c, x, i: (put(c, x, i, i) - w.T, None))(c, xs, at)
    check_refuses(
        PASS,
        across,
        "f32[20,20]",
        *FEW,
        "f32[20,20]",
        because="its readers compute numbers one by one, as they read another array across",
    )


def test_bfloat16_that_a_step_computes(dividing):
    """Cost: XLA converts all of it before JAX 0.11, to write to it apart."""

    def step(c, x, i):
        return put(c.astype("bfloat16"), x.astype("bfloat16"), i).astype("float32") * 0.9, None

    check_refuses(PASS, scanned(step), "f32[40000]", *FEW, because="convert all of the array")


def test_a_small_array():
    """Cost: to start an op takes as long."""
    check_refuses(PASS, scanned(forgets), "f32[40]", *FEW, because="takes as long")


@pytest.mark.parametrize(
    "step",
    [
        lambda c, x, i: (put(c, x, i), x),
        sums_up_what_it_keeps,
        lambda c, x, i: (c * 0.9, lax.dynamic_slice(put(c, x, i), (i,), (2,))),
    ],
    ids=["not read", "handed on, too", "read by a window"],
)
def test_what_is_written_in_place_as_it_is(step):
    """(1) Something reads it that XLA does not fuse with it."""
    alone(PASS, scanned(step), "f32[400]", *FEW, fires=False)


def test_outside_of_loops():
    """(1) XLA would copy what is given."""
    alone(PASS, lambda c, x, i: put(c, x, i) * 0.9, "f32[400]", 1.0, 3, fires=False)


def test_a_write_that_is_bound_again():
    """As `compile-small-loops` does: JAX does not know the mark."""
    jaxpr = traced(lambda c, i, x: c.at[i].add(x), "f32[9]", "i32[1]", "f32[1]")
    graph = import_jaxpr(jaxpr, "final")
    (scatter,) = (op for op in graph.body.ops if op.name == "scatter-add")
    Rewriter(graph).set_alone(scatter)
    for changed in (unique, unsorted):
        given = [jnp.ones(v.shape, v.dtype) for v in scatter.operands]
        assert scatter.primitive.bind(*given, **changed(scatter)).shape == (9,)
