"""One number of a row is chosen, where it was padded."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.codegen.select_padded_numbers import SelectPaddedNumbers
from jaxpr_opt.testing import check_refuses, check_rewrite, run_alone
from tests.loops import alone

SELECT = SelectPaddedNumbers()


MODEL = CostModel().but(row=2, peels_ends=False)
"""Programs here are small, and about what is done where it helps."""


def added(*config, filler=0.0, combine=jnp.add):
    """A loop that pads rows, and adds them to others."""

    def step(c, row):
        x, y = row
        return c, combine(lax.pad(x, jnp.asarray(filler, x.dtype), config), y)

    return lambda xs, ys: lax.scan(step, 0, (xs, ys))[1]


def test_a_number():
    check_rewrite(
        SELECT,
        added((3, 1, 0)),
        "f32[2,1]",
        "f32[2,5]",
        diff="""
          fn (xs:f32[2,1], ys:f32[2,5]) {
            ys1:f32[2,5] = scan[2] xs(x=xs, x1=ys) {
        -     p:f32[5] = pad[padding_config=((3, 1, 0),)] x 0.0
        +     i:i32[5] = iota
        +     e:bool[5] = eq i 3
        +     b:f32[5] = broadcast_in_dim x
        +     b1:f32[5] = broadcast_in_dim 0.0
        +     s:f32[5] = select_n e b1 b
        -     a:f32[5] = add p x1
        +     a:f32[5] = add s x1
              yield ys(a)
            }
            return ys1
          }
        """,
    )


def test_a_column():
    """(1) Nothing is around it along other axes."""
    check_rewrite(
        SELECT,
        added((0, 0, 0), (1, 3, 2), filler=jnp.nan),
        "f32[2,6,1]",
        "f32[2,6,5]",
        diff="""
          fn (xs:f32[2,6,1], ys:f32[2,6,5]) {
            ys1:f32[2,6,5] = scan[2] xs(x=xs, x1=ys) {
        -     p:f32[6,5] = pad[padding_config=((0, 0, 0), (1, 3, 2))] x nan
        +     i:i32[6,5] = iota[dimension=1]
        +     e:bool[6,5] = eq i 1
        +     b:f32[6,5] = broadcast_in_dim x
        +     b1:f32[6,5] = broadcast_in_dim nan
        +     s:f32[6,5] = select_n e b1 b
        -     a:f32[6,5] = add p x1
        +     a:f32[6,5] = add s x1
              yield ys(a)
            }
            return ys1
          }
        """,
    )


def test_the_gradient_of_single_numbers():
    """A step that reads them from where it writes others."""

    def program(u):
        def step(u, _):
            return u.at[0].set(u[3] * u[1]), None

        return jnp.sum(jnp.sin(lax.scan(step, u, length=3)[0]))

    graph = alone(SELECT, jax.grad(program), "f32[8]", fires=True)
    assert sum(op.name == "select_n" for op in graph.walk()) == 2


@pytest.mark.parametrize("dtype", ["bool", "bfloat16", "int4", "complex64"])
def test_other_types(dtype):
    """(2) All numbers are chosen alike."""
    alone(
        SELECT,
        added((3, 1, 0), filler=1, combine=lambda x, y: jnp.where(y, x, x)),
        jnp.zeros((2, 1), dtype),
        jnp.ones((2, 5), bool),
        fires=True,
    )


def test_a_weak_type():
    """The choice has it, too."""

    def program(x):
        def step(c, _):
            return c, lax.pad(c, 0.0, [(3, 1, 0)]) * 2

        return lax.scan(step, lax.broadcast(x, (1,)), length=2)

    alone(SELECT, program, 2.0, fires=True)


@pytest.mark.parametrize("config", [(0, 5, 0), (5, 0, 0), (-1, 6, 0), (6, -1, 0)])
def test_a_number_at_an_end(config):
    """(1) One comparison tells where it is; or it is cut off."""
    n = 1 + sum(config)
    alone(SELECT, added(config), "f32[2,1]", f"f32[2,{n}]", fires=False)


@pytest.mark.parametrize("config", [(2, 1, 0), (-1, 0, 0), (0, 0, 1)])
def test_pads_along_two_axes(config):
    """(1) The other pad would be asked for each element, too."""
    low, high, inside = config
    rows = 3 + low + high + 2 * inside
    alone(SELECT, added(config, (3, 1, 0)), "f32[2,3,1]", f"f32[2,{rows},5]", fires=False)


def test_several_numbers():
    """(1) Each element loads another."""
    alone(SELECT, added((3, 1, 0)), "f32[2,2]", "f32[2,6]", fires=False)


def test_keys():
    """(2) JAX keeps what they are made of in an axis of its own."""

    def program(seeds):
        def step(key, seed):
            keys = lax.pad(jax.random.key(seed)[None], key, [(3, 1, 0)])
            return key, jax.random.key_data(jnp.where(seed > 0, keys, keys))

        return lax.scan(step, jax.random.key(0), seeds)[1]

    check_refuses(SELECT, program, "i32[2]", because="are no numbers")


def test_more_numbers_than_an_integer_counts():
    """(2) The place of an element has 32 bits."""
    n = 2**31
    program = added((3, n - 4, 0))
    check_refuses(
        SELECT,
        program,
        "f32[2,1]",
        f"f32[2,{n}]",
        because="2,147,483,648 numbers are too many for 32 bits",
    )


@pytest.mark.parametrize("axis", [None, "x"])
def test_rows_that_devices_hold_parts_of(axis):
    """(3) What is chosen would be divided in another way."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    parts = NamedSharding(mesh, PartitionSpec(None, axis))
    types = [jax.ShapeDtypeStruct((2, 4, n), "float32", sharding=parts) for n in (1, 5)]
    with jax.set_mesh(mesh):
        graph = import_jaxpr(jax.make_jaxpr(added((0, 0, 0), (3, 1, 0)))(*types), "final")
        fired = run_alone((SELECT,), graph).record(SELECT.name, SELECT.cleanup).rewrites
    assert bool(fired) == (axis is None)


@pytest.mark.parametrize(("n", "fires"), [(15, False), (16, True)])
def test_short_rows(n, fires):
    """The cost: XLA computes few together."""
    with using(CostModel()):
        alone(SELECT, added((3, n - 4, 0)), "f32[2,1]", f"f32[2,{n}]", fires=fires)


@pytest.mark.parametrize("config", [(1, 30, 0), (30, 1, 0), (2, 30, 0)])
@pytest.mark.parametrize("peels", [False, True])
def test_a_number_beside_an_end(config, peels):
    """The cost: JAX 0.12 computes the ends apart, and the rest together."""
    with using(CostModel().but(peels_ends=peels)):
        fires = min(config[:2]) > 1 or not peels
        alone(SELECT, added(config), "f32[2,1]", f"f32[2,{1 + sum(config)}]", fires=fires)


def test_what_is_no_term_of_a_sum():
    """The cost: it is made by itself, if no element-wise op reads it; outside of loops once."""
    alone(SELECT, added((3, 2, 0), combine=lambda x, y: (x, y)), "f32[2,1]", "f32[2]", fires=False)
    once = lambda x, y: lax.pad(x, 0.0, [(3, 2, 0)]) + y
    alone(SELECT, once, "f32[1]", "f32[6]", fires=False)
