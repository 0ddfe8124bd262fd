"""An inner loop carries the rows that it touches."""

import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt.passes.narrow_carried_arrays import NarrowCarriedArrays
from jaxpr_opt.testing import check_refuses, check_rewrite
from tests.loops import alone

NARROW = NarrowCarriedArrays()


def nested(step, array, *, rows=None, columns=None, first=0):
    """Two scans of ``array = step(array, i, j)``."""
    n = array.shape[0] if rows is None else rows
    m = array.shape[1] if columns is None else columns

    def outer(array, i):
        return lax.scan(lambda a, j: (step(a, i, j), None), array, jnp.arange(m))[0], None

    return lax.scan(outer, array, first + jnp.arange(n))[0]


def put(array, x, i, j):
    return lax.dynamic_update_slice(
        array, jnp.reshape(x, (1, 1)), (i, j), allow_negative_indices=False
    )


def get(array, i, j):
    window = lax.dynamic_slice(array, (i, j), (1, 1), allow_negative_indices=False)
    return jnp.reshape(window, ())


def pair(array, i, j):
    return lax.dynamic_slice(array, (i, j), (2, 1)) * 2


def numbered(array, numbers):
    """Two scans that write elements of the rows with these numbers."""

    def outer(array, i):
        return lax.scan(lambda a, j: (put(a, get(a, i[0], j) * 2, i[0], j), None), array,
                        jnp.arange(4))[0], None  # fmt: skip

    return lax.scan(outer, array, numbers)[0]


def test_one_row():
    """Each element is read and written in its turn."""

    def program(a):
        return nested(lambda a, i, j: put(a, get(a, i, j) * 2, i, j), a)

    check_rewrite(
        NARROW,
        program,
        "f32[8,4]",
        simplify=True,
        diff="""
          fn (a:f32[8,4]) {
            i:i32[8] = iota
            c:f32[8,4] = scan[8] carry(c=a) xs(x=i) {
              i:i32[4] = iota
        +     d2:f32[1,4] = dynamic_slice c x 0
        -     c1:f32[8,4] = scan[4] carry(c=c) xs(x1=i) {
        +     c2:f32[1,4] = scan[4] carry(c2=d2) xs(x1=i) {
        -       d:f32[1,1] = dynamic_slice c x x1
        +       d:f32[1,1] = dynamic_slice c2 0 x1
                r:f32[] = reshape d
                m:f32[] = mul r 2.0
                r1:f32[1,1] = reshape m
        -       d1:f32[8,4] = dynamic_update_slice c r1 x x1
        +       d2:f32[1,4] = dynamic_update_slice c2 r1 0 x1
        -       yield carry(d1)
        +       yield carry(d2)
              }
        +     d3:f32[8,4] = dynamic_update_slice c c2 x 0
        -     yield carry(c1)
        +     yield carry(d3)
            }
            return c
          }
        """,
    )


VARIANTS = {
    "the row before": lambda a: nested(
        lambda a, i, j: put(a, get(a, i - 1, j) + get(a, i, j), i, j), a, rows=7, first=1
    ),
    "a table": lambda a: nested(
        lambda a, i, j: put(a, get(a, i - 1, j) * get(a, i, j - 1), i, j), a, rows=7, first=1
    ),
    "a data-dependent column": lambda a: nested(
        lambda a, i, j: put(a, get(a, i, (j * j) % 3) + 1, i, j), a
    ),
    "columns": lambda a: nested(
        lambda a, i, j: put(a, get(a, j, i) + 1, j, i), a, rows=4, columns=8
    ),
    "set, with the index checked": lambda a: nested(lambda a, i, j: a.at[i, j].set(a[i, j] + 1), a),
    "added to": lambda a: nested(lambda a, i, j: a.at[i, j].add(1.0), a),
    "windows of two rows": lambda a: nested(
        lambda a, i, j: lax.dynamic_update_slice(a, pair(a, i, j), (i + 1, j)), a, rows=6
    ),
    "rows numbered by an array of one column": lambda a: numbered(
        a, lax.broadcasted_iota(jnp.int32, (8, 1), 0)
    ),
    "read whole after the loop": lambda a: jnp.sum(
        nested(lambda a, i, j: put(a, get(a, i, j) * 2, i, j), a) * a
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant):
    """(1, 2) The same bits; the inner loop carries no array of the outer one's size."""
    graph = alone(NARROW, VARIANTS[variant], "f32[8,4]", fires=True)
    inner = [op for op in graph.walk() if op.name == "scan" and op.parent is not None]
    assert all(carry.param.shape != (8, 4) for op in inner for carry in op.carries)


def test_the_inner_loop_takes_no_step():
    alone(
        NARROW,
        lambda a: nested(lambda a, i, j: put(a, get(a, i, j) * 2, i, j), a, columns=0),
        "f32[8,4]",
        fires=False,
    )


STAY = {
    "read whole": lambda a: nested(lambda a, i, j: put(a, jnp.sum(a), i, j), a),
    "moves along both": lambda a: nested(
        lambda a, i, j: put(a, get(a, j, j) + 1, i, j), a, columns=4
    ),
    "out of range": lambda a: nested(lambda a, i, j: put(a, get(a, i + 1, j) + 1, i, j), a),
    "most of the rows": lambda a: nested(
        lambda a, i, j: put(a, get(a, i + 4, j) + 1, i, j), a, rows=4
    ),
    "rows that part": lambda a: nested(
        lambda a, i, j: put(a, get(a, 2 * i, j) + 1, i, j), a, rows=4
    ),
    "always the same row": lambda a: nested(lambda a, i, j: put(a, get(a, 3, j) + 1, 3, j), a),
    "data-dependent": lambda a: nested(lambda a, i, j: put(a, get(a, i * i % 7, j) + 1, i, j), a),
}


@pytest.mark.parametrize("case", STAY)
def test_others_stay(case):
    """(1, 2) What is no window of few rows."""
    alone(NARROW, STAY[case], "f32[8,4]", fires=False)


def test_long_rows_stay():
    """Cost: a row of a hundred elements, two of which are touched."""
    check_refuses(
        NARROW,
        lambda a: nested(lambda a, i, j: put(a, get(a, i, j) * 2, i, j), a, columns=2),
        "f32[8,100]",
        because="much larger than what the loop reads and writes",
    )
