"""What is added to an array is a window in zeros, where a one-hot array says where it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.nn import one_hot

from jaxpr_opt import optimize
from jaxpr_opt.engine.registry import resolve
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.masks.add_one_hot_rows import AddOneHotRows
from jaxpr_opt.testing import check_refuses, check_rewrite, run_alone, traced
from tests.loops import alone, memory

ADD = AddOneHotRows()
N, M = 40, 4
TYPES = "f32[40,4]", "i32[3]", "i32[3]", "f32[3]"


def learning(step):
    """A loop that carries a table; each step has a state, an action and a number."""

    def program(q, states, actions, numbers):
        return lax.scan(lambda q, x: step(q, *x), q, (states, actions, numbers))

    return program


def both(s, a):
    return one_hot(s, N)[:, None] * one_hot(a, M)


def test_one_number():
    """(1, 2)"""
    check_rewrite(
        ADD,
        lambda q, states, rs: lax.scan(
            lambda q, x: (q + x[1] * one_hot(x[0], 40), q[0]), q, (states, rs)
        ),
        "f32[40]",
        "i32[3]",
        "f32[3]",
        diff="""
            fn (q:f32[40], states:i32[3], rs:f32[3]) {
              c:f32[40], ys:f32[3] = scan[3] carry(c=q) xs(x=states, x1=rs) {
                b:i32[1] = broadcast_in_dim x
                i:i32[40] = iota
                e:bool[40] = eq b i
                c1:f32[40] = convert_element_type e
                m:f32[40] = mul x1 c1
          +     b1:f32[40] = broadcast_in_dim 0.0
          +     s2:i32[1] = stack[axis=0] x
          +     s3:f32[40] = scatter-add[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] b1 s2 1.0
          +     b2:f32[40] = broadcast_in_dim x1
          +     m1:f32[40] = mul s3 b2
          -     a:f32[40] = add c m
          +     a:f32[40] = add c m1
                s:f32[1] = slice[:1] c
                s1:f32[] = squeeze s
                yield carry(a) ys(s1)
              }
              return c, ys
            }
        """,  # noqa: E501
    )


ZERO = np.float32(0)
STEPS = {
    "a table": lambda q, s, a, r: q + 0.1 * (r - q[s, a]) * both(s, a),
    "subtracted": lambda q, s, a, r: q - r * both(s, a),
    "a product first": lambda q, s, a, r: q + (r * one_hot(s, N))[:, None] * one_hot(a, M),
    "an outer product": lambda q, s, a, r: q + r * jnp.outer(one_hot(s, N), one_hot(a, M)),
    "a sum of products": lambda q, s, a, r: q + jnp.einsum("s,a->sa", one_hot(s, N), one_hot(a, M)),
    "a row": lambda q, s, a, r: q + r * one_hot(s, N)[:, None] * jnp.sin(jnp.arange(4.0) + r),
    "a row of the table": lambda q, s, a, r: (
        q + jnp.where((jnp.arange(N) == s)[:, None], q * r, ZERO)
    ),
    "masks": lambda q, s, a, r: (
        q + jnp.where((jnp.arange(N) == s)[:, None] & (jnp.arange(M) == a), r, ZERO)
    ),
    "a quotient": lambda q, s, a, r: q + both(s, a) * (1 / r),
}
STATES = jnp.array([7, -1, 7]), jnp.array([1, 2, 99])


@pytest.mark.parametrize("number", [0.5, 0.0, np.inf, np.nan])
@pytest.mark.parametrize("name", STEPS)
def test_what_is_added(name, number):
    """(1, 2) At places in range and out of it; NaN elsewhere if the number is not finite."""
    program = learning(lambda q, s, a, r: (STEPS[name](q, s, a, r), r))
    table, numbers = jnp.arange(4.0 * N).reshape(N, M), jnp.array([1.0, 2.0, number])
    alone(ADD, program, table, *STATES, numbers, fires=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
@pytest.mark.parametrize("axes", [(0, 0, 0, 0), (0, None, None, 0), (0, 0, None, None)])
def test_a_batch_of_tables(dtype, axes):
    """(1) Each with a place of its own, or with the same."""

    def step(q, s, a, r):
        return q + r * one_hot(s, N, dtype=dtype)[:, None] * one_hot(a, M, dtype=dtype), r

    given = jnp.ones((N, M)), *STATES, jnp.array([1.0, 2.0, 3.0])
    given = [x.astype(dtype) if x.dtype == np.float32 else x for x in given]
    batched = [
        x if axis is None else jnp.stack([x, x + 1]) for x, axis in zip(given, axes, strict=True)
    ]
    alone(ADD, jax.vmap(learning(step), axes), *batched, fires=True)
    turned = [jnp.moveaxis(batched[0], 0, 1), *batched[1:]]
    alone(ADD, jax.vmap(learning(step), (1, *axes[1:]), (1, 0)), *turned, fires=True)


REFUSED = {
    "is not a product at one place": lambda q, s, a, r: (
        q + jnp.broadcast_to(one_hot(jnp.stack([s, s + 1]), N).sum(0)[:, None], q.shape)
    ),
    "are not all the same": lambda q, s, a, r: q + one_hot(s, N)[:, None] * (q * r),
    "is read afterwards": lambda q, s, a, r: (q + r * both(s, a)) * q,
}


@pytest.mark.parametrize("because", REFUSED)
def test_refused(because):
    """(1, 2)"""
    step = REFUSED[because]
    check_refuses(ADD, learning(lambda q, s, a, r: (step(q, s, a, r), r)), *TYPES, because=because)


def test_what_is_not_zero_elsewhere():
    """(1)"""

    def step(q, s, a, r):
        return q + jnp.where((jnp.arange(N) == s)[:, None], q * r, np.float32(1)), r

    alone(ADD, learning(step), *TYPES, fires=False)


def test_complex_numbers():
    """(1) Which number a product of them has is not known."""
    step = lambda q, s, a, r: (q + r * both(s, a), r)
    types = "c64[40,4]", "i32[3]", "i32[3]", "c64[3]"
    alone(ADD, learning(step), *types, fires=False)


def test_a_symbolic_shape():
    """(1)"""
    (n,) = export.symbolic_shape("n")
    step = lambda q, s, a, r: (q + r * one_hot(s, N)[:, None] * jnp.ones(n), r)
    types = [((N, n), "float32"), ((3,), "int32"), ((3,), "int32"), ((3,), "float32")]
    given = [jax.ShapeDtypeStruct(*each) for each in types]
    graph = import_jaxpr(jax.make_jaxpr(learning(step))(*given), ADD.phase)
    assert not run_alone((ADD,), graph).record(ADD.name, ADD.cleanup).rewrites


def test_what_is_no_carry():
    """There is nothing to update."""
    for step in (
        lambda q, s, a, r: (q, jnp.ones((N, M)) + r * both(s, a)),
        lambda q, s, a, r: (q * 0.9 + r * both(s, a), r),
    ):
        alone(ADD, learning(step), *TYPES, fires=False)
    alone(ADD, lambda q, s, r: q + r * one_hot(s, N), "f32[40]", "i32[]", "f32[]", fires=False)


def test_while_it_may_be_differentiated():
    """(3)"""
    step = lambda q, s, a, r: (q + r * both(s, a), r)
    alone(ADD, learning(step), *TYPES, fires=False, phase="differentiable")
    alone(ADD, learning(step), *TYPES, fires=True, phase="differentiated")
    journal = resolve([ADD]).run(traced(learning(step), *TYPES), "differentiated").journal
    assert not journal.record(ADD.name, ADD.cleanup).rewrites  # JAX is about to do so again


def test_the_table_is_updated_in_place():
    """What it is for."""

    def step(q, s, a, r):
        return q + 0.1 * (r - q[s, a]) * one_hot(s, 4000)[:, None] * one_hot(a, M), q[s].sum()

    given = jnp.ones((4000, M)), *STATES, jnp.ones(3)
    for program, args in (
        (learning(step), given),
        (jax.vmap(learning(step)), jax.tree.map(lambda x: jnp.stack([x, x]), given)),
    ):
        assert memory(optimize(program), *args) < given[0].nbytes / 4
