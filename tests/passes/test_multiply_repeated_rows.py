"""Rows that a factor repeats are multiplied once, and rows that are summed up are summed first."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.passes.batches.multiply_repeated_rows import MultiplyRepeatedRows
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone
from tests.passes.test_map_before_reading import read

ONCE = MultiplyRepeatedRows()
ROWS, POSITIONS, WIDE = 16, 64, 32
COLUMNS = (((0,), (1,)), ((), ()))


def joined(h, c, axis=2):
    """What is known of a row, for each position, with what is known of that."""
    each = lax.broadcast_in_dim(h, (ROWS, POSITIONS, WIDE), (0, 2))
    return jnp.concatenate([each, c], axis)


def test_a_joined_factor():
    """(1) A part is multiplied once for all positions."""
    check_rewrite(
        ONCE,
        lambda h, c, w: joined(h, c) @ w,
        "f32[16,32]",
        "f32[16,64,32]",
        "f32[64,32]",
        simplify=True,
        diff="""
          fn (h:f32[16,32], c:f32[16,64,32], w:f32[64,32]) {
        +   s:f32[32,32] = slice[:32, :] w
        +   d1:f32[16,32] = dot_general h s
        -   b:f32[16,64,32] = broadcast_in_dim[dims=(0, 2)] h
        +   b:f32[16,64,32] = broadcast_in_dim[dims=(0, 2)] d1
        -   c1:f32[16,64,64] = concatenate[dimension=2] b c
        +   s1:f32[32,32] = slice[32:, :] w
        -   d:f32[16,64,32] = dot_general c1 w
        +   d:f32[16,64,32] = dot_general c s1
        +   a:f32[16,64,32] = add b d
        -   return d
        +   return a
          }
        """,
    )


def test_a_gradient_of_weights():
    """(1) The cotangents of all positions are summed up, then multiplied."""
    check_rewrite(
        ONCE,
        lambda h, c, g: lax.dot_general(g, joined(h, c), (((0, 1), (0, 1)), ((), ()))),
        "f32[16,32]",
        "f32[16,64,32]",
        "f32[16,64,32]",
        simplify=True,
        diff="""
          fn (h:f32[16,32], c:f32[16,64,32], g:f32[16,64,32]) {
        -   b:f32[16,64,32] = broadcast_in_dim[dims=(0, 2)] h
        -   c1:f32[16,64,64] = concatenate[dimension=2] b c
        -   d:f32[32,64] = dot_general[contract=0.1x0.1] g c1
        +   r:f32[16,32] = reduce_sum[axes=(1,)] g
        +   d1:f32[32,32] = dot_general[contract=0x0] r h
        +   d2:f32[32,32] = dot_general[contract=0.1x0.1] g c
        +   c2:f32[32,64] = concatenate[dimension=1] d1 d2
        -   return d
        +   return c2
          }
        """,
    )


def test_a_gradient_of_what_is_repeated():
    """(3) What is summed up over all positions is multiplied once."""
    check_rewrite(
        ONCE,
        lambda g, w: ((x := g @ w)[..., :WIDE].sum(1), x[..., WIDE:]),
        "f32[16,64,32]",
        "f32[32,64]",
        simplify=True,
        diff="""
          fn (g:f32[16,64,32], w:f32[32,64]) {
        -   d:f32[16,64,64] = dot_general g w
        -   s:f32[16,64,32] = slice[:, :, :32] d
        -   r:f32[16,32] = reduce_sum[axes=(1,)] s
        +   r:f32[16,32] = reduce_sum[axes=(1,)] g
        -   s1:f32[16,64,32] = slice[:, :, 32:] d
        +   s2:f32[32,32] = slice[:, :32] w
        +   d1:f32[16,32] = dot_general r s2
        +   s3:f32[32,32] = slice[:, 32:] w
        +   d2:f32[16,64,32] = dot_general g s3
        -   return r, s1
        +   return d1, d2
          }
        """,
    )


def test_rows_that_are_merged():
    """(1) The axis is split where they repeat."""
    check_rewrite(
        ONCE,
        lambda h, w: jnp.repeat(h, POSITIONS, axis=0) @ w,
        "f32[16,32]",
        "f32[32,32]",
        simplify=True,
        diff="""
            fn (h:f32[16,32], w:f32[32,32]) {
          +   d1:f32[16,32] = dot_general h w
          -   b:f32[16,64,32] = broadcast_in_dim[dims=(0, 2)] h
          +   b:f32[16,64,32] = broadcast_in_dim[dims=(0, 2)] d1
              r:f32[1024,32] = reshape b
          -   d:f32[1024,32] = dot_general r w
          -   return d
          +   return r
            }
        """,
    )


def test_a_sum_of_rows_that_are_merged():
    """(3) The axis is split where they are summed up."""
    check_rewrite(
        ONCE,
        lambda g, w: (g @ w).reshape(ROWS, POSITIONS, 32).sum(1),
        "f32[1024,32]",
        "f32[32,32]",
        simplify=True,
        diff="""
            fn (g:f32[1024,32], w:f32[32,32]) {
          -   d:f32[1024,32] = dot_general g w
          -   r:f32[16,64,32] = reshape d
          +   r:f32[16,64,32] = reshape g
              r1:f32[16,32] = reduce_sum[axes=(1,)] r
          +   d1:f32[16,32] = dot_general r1 w
          -   return r1
          +   return d1
            }
        """,
    )


def rng(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def pairs(h, w):
    """As graph attention is written: the rows of both ends, in one row for each pair."""
    both = jnp.concatenate([jnp.repeat(h, POSITIONS, axis=0), jnp.tile(h, (POSITIONS, 1))], axis=1)
    return jnp.tanh(both.reshape(POSITIONS, POSITIONS, 2 * WIDE) @ w)


def flat_pairs(h, w):
    """The same, row below row."""
    both = jnp.concatenate([jnp.repeat(h, POSITIONS, axis=0), jnp.tile(h, (POSITIONS, 1))], axis=1)
    return jnp.tanh(both @ w).reshape(POSITIONS, POSITIONS, 8).sum(1)


def tiled(h, e, w):
    """A grid that all rows have, beside what each row has."""
    rows = jnp.broadcast_to(h[:, None], (ROWS, POSITIONS, WIDE)).reshape(-1, WIDE)
    return jnp.tanh(jnp.concatenate([rows, jnp.tile(e, (ROWS, 1))], axis=-1) @ w)


def nested(h, w):
    inner = jnp.concatenate([jnp.broadcast_to(h[:1], h.shape), h], 1)
    return jnp.tanh(jnp.concatenate([h, inner, jnp.broadcast_to(h[1], h.shape)], 1) @ w)


PROGRAMS = {
    "pairs": (pairs, rng(POSITIONS, WIDE), rng(2 * WIDE, 8)),
    "pairs below each other": (flat_pairs, rng(POSITIONS, WIDE), rng(2 * WIDE, 8)),
    "tiled": (tiled, rng(ROWS, WIDE), rng(POSITIONS, WIDE), rng(2 * WIDE, WIDE)),
    "merged, the matrix first": (
        lambda h, w: jnp.tanh(lax.dot_general(w, jnp.repeat(h, 64, axis=0), COLUMNS)),
        rng(16, WIDE),
        rng(WIDE, 256),
    ),
    "merged in a batch": (
        lambda h, w: jnp.tanh(jnp.einsum("bpk,bkn->bpn", jnp.repeat(h, 64, axis=1), w)),
        rng(3, 4, WIDE),
        rng(3, WIDE, 64),
    ),
    "the matrix first": (
        lambda h, w: jnp.tanh(lax.dot_general(w, jnp.broadcast_to(h, (256, WIDE)), COLUMNS)),
        rng(WIDE),
        rng(WIDE, 256),
    ),
    "joined of joined": (nested, rng(256, WIDE), rng(4 * WIDE, WIDE)),
    "summed along the parts": (
        lambda h, w: ((x := h @ w)[:, :WIDE].sum(1), x[:, WIDE:].sum(1)),
        rng(64, WIDE),
        rng(WIDE, 256),
    ),
    "a batch": (
        lambda h, w: jnp.tanh(
            jnp.einsum("bpk,bkn->bpn", jnp.broadcast_to(h[:, None], (3, 128, WIDE)), w)
        ),
        rng(3, WIDE),
        rng(3, WIDE, 64),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name):
    """Values and gradients, in both orders; no array of all rows is joined or multiplied."""
    f, *args = PROGRAMS[name]

    def loss(*args):
        return sum((x**2).sum() for x in jax.tree.leaves(f(*args)))

    expected = jax.value_and_grad(loss, (0, 1))(*args)
    alone(ONCE, f, *args, fires=True)
    alone(ONCE, jax.grad(loss, (0, 1)), *args, fires=True)
    assert_close(optimize(jax.value_and_grad(loss, (0, 1)))(*args), expected)
    assert_close(jax.value_and_grad(optimize(loss), (0, 1))(*args), expected)


def ends(h, e, w, i):
    """Edges of a graph, with the nodes at both ends."""
    return jnp.concatenate([read(h, i[:, :1]), read(h, i[:, 1:], "fill"), e], -1) @ w


def test_parts_that_are_read_of_tables():
    """(5) Each is multiplied by itself, so that the rows of the table can be."""
    rows = np.random.default_rng(0).integers(0, 200, (2048, 2)).astype(np.int32)
    args = rng(200, WIDE), rng(2048, 8), rng(2 * WIDE + 8, WIDE), rows
    graph = alone(ONCE, ends, *args, fires=True)
    assert sum(op.name == "dot_general" for op in graph.walk()) == 3
    loss = lambda h, e, w, i: jnp.sum(jnp.sin(ends(h, e, w, i)))
    expected = jax.value_and_grad(loss, (0, 1, 2))(*args)
    assert_close(expected, optimize(jax.value_and_grad(loss, (0, 1, 2)))(*args))
    assert_close(expected, jax.value_and_grad(optimize(loss), (0, 1, 2))(*args))


@pytest.mark.parametrize(
    ("program", "types"),
    {
        "joined for others": (
            lambda x, e, w: (y := jnp.concatenate([x, e], -1)) @ w + y[:, :1],
            (),
        ),
        "read elsewhere": (lambda x, e, w: jnp.concatenate([x, e], -1) @ w + x[:, :1], ()),
        "joined by rows": (lambda x, e, w: jnp.concatenate([x, x + 1.0], 0) @ w[:WIDE], ()),
        "by itself": (lambda x, e, w: (x @ w[:WIDE]) * e[:, :1], ()),
        "summed up over rows": (
            lambda x, e, w: lax.dot_general(
                jnp.concatenate([x, e], -1), e, (((0,), (0,)), ((), ()))
            ),
            (),
        ),
        "joined along the places": (
            lambda x, e, w: lax.dot_general(
                jnp.concatenate([x, w], 0),
                jnp.concatenate([e, w[:, :8]], 0),
                (((0,), (0,)), ((), ())),
            ),
            (),
        ),
        "narrow": (lambda x, e, w: jnp.concatenate([x, e], -1) @ w, (4,)),
    }.values(),
)
def test_parts_that_are_left_joined(program, types):
    """(5) It would take longer, or more memory."""
    (wide,) = types or (WIDE,)
    alone(
        ONCE,
        lambda h, e, w, i: program(read(h, i), e, w),
        f"f32[200,{wide}]",
        "f32[2048,8]",
        f"f32[{wide + 8},{WIDE}]",
        "i32[2048,1]",
        fires=False,
    )


def test_a_part_that_is_reshaped():
    """(5) What is read is not the part, so that the rows of the table would not be multiplied."""
    alone(
        ONCE,
        lambda h, e, w, i: jnp.concatenate([read(h, i), e], 1).reshape(2048, WIDE + 8) @ w,
        f"f32[200,{WIDE},1]",
        "f32[2048,8,1]",
        f"f32[{WIDE + 8},{WIDE}]",
        "i32[2048,1]",
        fires=False,
    )


@pytest.mark.parametrize(
    ("program", "shapes", "because"),
    {
        "rounded": (
            lambda h, c, w: joined(h, c) @ w,
            ["bf16[16,32]", "bf16[16,64,32]", "bf16[64,32]"],
            "bfloat16 would be rounded before they are added",  # (2)
        ),
        "sums rounded": (
            lambda h, w: lax.dot_general(
                jnp.broadcast_to(h, (4096, 32)), w, (((0,), (0,)), ((), ()))
            ),
            ["bf16[32]", "bf16[4096,32]"],
            "bfloat16 would be rounded before they are added",  # (2)
        ),
        "sums rounded after": (
            lambda g, w: lax.reduce_sum(g @ w, axes=(0,)),
            ["bf16[4096,32]", "bf16[32,32]"],
            "bfloat16 would be rounded before they are added",  # (2)
        ),
        "few": (
            lambda h, w: jnp.broadcast_to(h, (2, 4)) @ w,
            ["f32[4]", "f32[4,3]"],
            "multiplying all rows takes no longer",
        ),
        "few of several": (
            lambda h, w: jnp.repeat(h, 2, axis=0) @ w,
            ["f32[3,4]", "f32[4,3]"],
            "multiplying all rows takes no longer",
        ),
        "merged sums rounded": (
            lambda g, w: lax.reduce_sum((g @ w).reshape(64, 64, 32), axes=(1,)),
            ["bf16[4096,32]", "bf16[32,32]"],
            "bfloat16 would be rounded before they are added",  # (2)
        ),
    }.values(),
)
def test_what_is_refused(program, shapes, because):
    check_refuses(ONCE, program, *shapes, because=because, simplify=True)


@pytest.mark.parametrize(
    ("program", "shapes"),
    {
        "in pairs": (  # (1)
            lambda h, w: jnp.broadcast_to(h, (256, 64, 32)) @ w,
            ["f32[64,32]", "f32[256,32,64]"],
        ),
        "merged in another order": (  # (1)
            lambda h, w: lax.reshape(jnp.broadcast_to(h, (64, 16, 32)), (1024, 32), (1, 2, 0)) @ w,
            ["f32[16,32]", "f32[32,32]"],
        ),
        "merged with what is multiplied": (  # (1)
            lambda h, w: jnp.broadcast_to(h[:, None], (16, 64, 32)).reshape(16, -1) @ w,
            ["f32[16,32]", "f32[2048,32]"],
        ),
        "summed along a part of a batch": (  # (3)
            lambda g, w: jnp.einsum("bmk,bkn->bmn", g, w).reshape(2, 4, 64, 64).sum(1),
            ["f32[8,64,32]", "f32[8,32,64]"],
        ),
        "of both factors": (  # (3)
            lambda g, w: (g @ w).sum((0, 1)),
            ["f32[256,32]", "f32[32,256]"],
        ),
        "read as a whole, too": (  # (3)
            lambda g, w: ((x := g @ w).sum(0), x),
            ["f32[256,32]", "f32[32,64]"],
        ),
        "summed along a batch": (  # (3)
            lambda g, w: lax.dot_general(g, w, (((2,), (1,)), ((0,), (0,)))).sum(0),
            ["f32[8,64,32]", "f32[8,32,64]"],
        ),
    }.values(),
)
def test_what_is_not_found(program, shapes):
    alone(ONCE, program, *shapes, fires=False)


@pytest.mark.parametrize(("axis", "says"), [(None, False), (None, True), ("x", False)])
def test_rows_on_devices(axis, says):
    """(4) A product says where its result is, or a type where a factor is."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    where = NamedSharding(mesh, PartitionSpec(None, axis))
    w = jax.device_put(rng(WIDE, 64), where)

    def program(h, w):
        rows, numbers = jnp.broadcast_to(h, (256, WIDE)), (((1,), (0,)), ((), ()))
        return lax.dot_general(rows, w, numbers, out_sharding=where if says else None)

    with jax.set_mesh(mesh):
        alone(ONCE, program, f"f32[{WIDE}]", w, fires=axis is None and not says)
