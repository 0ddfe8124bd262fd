"""What is made of zeros but for rows is computed from the rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.rows.compute_added_rows import ComputeAddedRows
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite, run_alone
from tests.graphs import scans
from tests.loops import alone

ADDED = ComputeAddedRows()
ROWS, SIZE = 64, 16


def looped(step):
    """The gradient of a loop whose step reads a part of what it computes."""

    def loss(c, w, ids):
        return jnp.sum(lax.scan(lambda c, i: (step(c, w, i), None), c, ids)[0] ** 2)

    return jax.grad(loss, (0, 1))


def row(x, i):
    """Without what JAX puts in for negative indices."""
    return lax.dynamic_slice(x, (i, 0), (1, x.shape[1]), allow_negative_indices=False)


def column(x, i):
    return lax.dynamic_slice(x, (0, i), (x.shape[0], 1), allow_negative_indices=False)


STEPS = {
    "a row": lambda c, w, i: c + row(jnp.tanh(c) @ w, i),
    "a row, as the second factor": lambda c, w, i: (
        c + column(lax.dot_general(w, jnp.tanh(c), (((0,), (1,)), ((), ()))), i).T
    ),
    "a column": lambda c, w, i: c + column(jnp.tanh(c) @ w, i),
    "rows of a batch": lambda c, w, i: (
        c
        + lax.dynamic_slice(
            jnp.einsum("bri,ij->brj", jnp.sin(c).reshape(4, -1, SIZE), w),
            (0, i, 0),
            (4, 1, SIZE),
            allow_negative_indices=False,
        ).sum(0)
    ),
    "of a batch of matrices": lambda c, w, i: (
        c
        + lax.dynamic_slice(
            jnp.einsum("bri,bij->brj", jnp.sin(c).reshape(16, -1, SIZE), jnp.stack([w] * 16)),
            (i, 0, 0),
            (1, 4, SIZE),
            allow_negative_indices=False,
        ).sum((0, 1))
    ),
}


def convolved(images, w):
    """Each row is an image of one line and one feature."""
    return lax.conv_general_dilated(images[:, None], w[:1, None, :5], (1,), "SAME")[:, 0]


STEPS |= {
    "an image": lambda c, w, i: c + row(convolved(jnp.tanh(c), w), i),
    "an image of two": lambda c, w, i: c + row(convolved(jnp.sin(convolved(c, w)), w.T), i),
}
TYPES = f"f32[{ROWS},{SIZE}]", f"f32[{SIZE},{SIZE}]", "i32[5]"


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_values(step):
    """(1, 2, 3) Wherever the window is: in range, or clamped."""
    alone(ADDED, looped(step), *TYPES, fires=True)


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_the_whole_pipeline(step):
    """Both orders give what JAX gives."""
    keys = jax.random.split(jax.random.key(0))
    given = (
        jax.random.normal(keys[0], (ROWS, SIZE)),
        jax.random.normal(keys[1], (SIZE, SIZE)) / SIZE,
        jnp.array([0, 3, -2, 99, 15]),
    )
    want = looped(step)(*given)
    assert_close(optimize(looped(step))(*given), want)


def test_images_of_a_convolution():
    """(1, 2) No whole convolution is left in the loop back, for the kernels, either."""
    graph = alone(ADDED, looped(STEPS["an image"]), *TYPES, fires=True)
    back = scans(graph)[-1]
    made = [op for op in back.walk() if op.name == "conv_general_dilated"]
    assert len(made) == 2
    assert all(ROWS not in (*v.shape, *op.result.shape) for op in made for v in op.operands)


def written(c, i):
    return lax.dynamic_update_slice(jnp.zeros_like(c), c[:1], (i, jnp.int32(0)))


def test_text():
    """(1, 2) The window is multiplied; where it is summed over, the other factor is read at it."""

    def loss(c, w, ids):
        step = lambda c, i: (row(c @ w, i) + c, None)
        return lax.scan(step, c, ids)[0]

    def back(c, w, ids, ct):
        return jax.vjp(lambda w: loss(c, w, ids), w)[1](ct)[0]

    check_rewrite(
        ADDED,
        back,
        *TYPES,
        TYPES[0],
        simplify=True,
        diff="""
          fn (c:f32[64,16], w:f32[16,16], ids:i32[5], ct:f32[64,16]) {
            c1:f32[64,16], ys:f32[5,64,16] = scan[5] carry(c=c) xs(x=ids) {
              d:f32[64,16] = dot_general c w
              d1:f32[1,16] = dynamic_slice d x 0
              a:f32[64,16] = add d1 c
              yield carry(a) ys(c)
            }
            b:f32[16,16] = broadcast_in_dim 0.0
            c2:f32[16,16], c3:f32[64,16] = scan[5, reverse] carry(c=b, c1=ct) xs(x=ys, x1=ids) {
              r:f32[16] = reduce_sum[axes=(0,)] c1
              r1:f32[1,16] = reshape r
        +     d3:f32[1,16] = dynamic_slice x x1 0
        +     d4:f32[16,16] = dot_general[contract=0x0] r1 d3
        +     t1:f32[16,16] = transpose d4
        +     a2:f32[16,16] = add_any c t1
        +     d5:f32[1,16] = dot_general[contract=1x1] r1 w
              b:f32[64,16] = broadcast_in_dim 0.0
        -     d:f32[64,16] = dynamic_update_slice b r1 x1 0
        +     d:f32[64,16] = dynamic_update_slice b d5 x1 0
        -     d1:f32[16,16] = dot_general[contract=0x0] d x
        -     t:f32[16,16] = transpose d1
        -     a:f32[16,16] = add_any c t
        -     d2:f32[64,16] = dot_general[contract=1x1] d w
        -     a1:f32[64,16] = add_any c1 d2
        +     a1:f32[64,16] = add_any c1 d
        -     yield carry(a, a1)
        +     yield carry(a2, a1)
            }
            return c2
          }
        """,
    )


@pytest.mark.parametrize(
    "program",
    [
        lambda c, w, i: c + written(c, i) @ w,
        lambda c, w, i: lax.dynamic_update_slice(c, c[:60], (i, 0)) @ w,
    ],
)
def test_products_of_the_forward_pass_are_left(program):
    """(1, 3) Zeros of a forward loop are multiplied: times infinity they are no zeros."""
    forward = lambda c, w, ids: lax.scan(lambda c, i: (program(c, w, i), None), c, ids)[0]
    alone(ADDED, forward, *TYPES, fires=False)


def test_a_row_that_is_overwritten():
    """(1) Its cotangent is zero, and that of all others is not."""

    def step(c, w, i):
        nothing = jnp.zeros((1, SIZE))
        return lax.dynamic_update_slice(
            jnp.tanh(c) @ w, nothing, (i, 0), allow_negative_indices=False
        )

    alone(ADDED, looped(step), *TYPES, fires=False)


LARGE = "f32[512,16]", "f32[16,16]"


def tables(read, *, length=4):
    """The gradient of a loop that reads rows of what is computed before it."""

    def loss(x, w, ids):
        t = jnp.tanh(x @ w)
        step = lambda c, i: (c + 0.5 * jnp.sum(read(t, i) * jnp.arange(16.0)), None)
        return lax.scan(step, 0.0, ids, length=length)[0]

    return jax.grad(loss, (0, 1))


def picked(t, ids):
    """Rows that a loop reads."""
    return lax.map(lambda i: row(t, i), ids)


def test_the_rows_of_all_steps():
    """(1, 2) A loop stacks them; the products are those of as many rows."""
    check_rewrite(
        ADDED,
        jax.grad(lambda w, x, ids: jnp.sum(picked(x.astype(float) @ w, ids))),
        "f32[16,16]",
        "i32[512,16]",
        "i32[4]",
        simplify=True,
        diff="""
          fn (w:f32[16,16], x:i32[512,16], ids:i32[4]) {
            c:f32[512,16] = convert_element_type x
        -   b:f32[4,1,16] = broadcast_in_dim 1.0
        -   b1:f32[512,16] = broadcast_in_dim 0.0
        -   c1:f32[512,16] = scan[4, reverse] carry(c=b1) xs(x=b, x1=ids) {
        +   ys:i32[4,1] = scan[4, reverse] xs(x1=ids) {
        -     b:f32[512,16] = broadcast_in_dim 0.0
        -     d:f32[512,16] = dynamic_update_slice b x x1 0
        -     a:f32[512,16] = add_any c d
        +     c2:i32[] = clamp 0 x1 511
        +     b2:i32[1] = broadcast_in_dim c2
        +     i:i32[1] = iota
        +     a1:i32[1] = add b2 i
        -     yield carry(a)
        +     yield ys(a1)
            }
        +   b2:f32[4,16] = broadcast_in_dim 1.0
        +   r:i32[4] = reshape ys
        +   b3:i32[4,1] = broadcast_in_dim[dims=(0,)] r
        +   g:f32[4,16] = gather[offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 16), mode=clip] c b3
        -   d:f32[16,16] = dot_general[contract=0x0] c1 c
        +   d:f32[16,16] = dot_general[contract=0x0] b2 g
            t:f32[16,16] = transpose d
            return t
          }
        """,  # noqa: E501
    )


READS = {
    "a row": row,
    "an element": lambda t, i: lax.dynamic_slice(t, (i, i), (1, 1), allow_negative_indices=False),
    "two rows": lambda t, i: row(t, i) * row(t, i + 7),
    "rows of a gather": lambda t, i: t[jnp.stack([i, 2 * i, 3 * i])].sum(0),
    "rows that may be filled": lambda t, i: t.at[jnp.stack([i, 700 * i])].get(mode="fill")[0],
    "rows of an inner loop": lambda t, i: lax.map(lambda j: row(t, i + j), jnp.arange(3)).sum(0),
    "a row of a part": lambda t, i: row(t[:40], i),
    "a row, or none": lambda t, i: lax.cond(i > 2, lambda: row(t, i), lambda: jnp.ones((1, 16))),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_gradients_of_reads(read):
    """(1) However often a row is read, in range or not."""
    keys = jax.random.split(jax.random.key(0))
    x, w = jax.random.normal(keys[0], (512, 16)), jax.random.normal(keys[1], (16, 16)) / 4
    ids = jnp.array([3, 600, 3, -2])
    want = tables(read)(x, w, ids)
    assert_close(optimize(tables(read))(x, w, ids), want)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32])
def test_places_of_other_types(dtype):
    """(1) Some are beyond what int32 holds."""
    x, w = jnp.cos(jnp.arange(512.0 * 16)).reshape(512, 16), jnp.eye(16)
    ids = jnp.asarray(np.array([3, -1, 3, 100]).astype(dtype))
    read = lambda t, i: lax.dynamic_slice(t, (i, dtype(0)), (1, 16), allow_negative_indices=False)
    assert_close(optimize(tables(read))(x, w, ids), tables(read)(x, w, ids))


@pytest.mark.parametrize("name", ["a row", "an element", "two rows", "rows of a gather"])
def test_no_whole_table_is_left(name):
    given = jnp.ones((512, 16)), jnp.ones((16, 16)), jnp.arange(4)
    text = str(jax.make_jaxpr(optimize(tables(READS[name])))(*given))
    assert "tanh" in text
    assert not any("f32[512,16] = tanh" in line for line in text.splitlines())


def backward(fun):
    """A program that computes a gradient by a rule of the user."""

    def back(rows, w, ids):
        rule = jax.custom_vjp(lambda rows: rows)
        rule.defvjp(lambda rows: (rows, None), lambda _, rows: (fun(rows, w, ids),))
        return jax.vjp(rule, rows)[1](rows)[0]

    return back


GIVEN = "f32[4,16]", "f32[16,512]", "i32[4]"
ADDED_BY = {
    "a scatter": (lambda rows, w, ids: jnp.zeros((512, 16)).at[ids].add(rows), True),
    "a scatter that keeps the last": (
        lambda rows, w, ids: jnp.zeros((512, 16)).at[ids].set(rows),
        False,
    ),
    "a scatter of elements": (
        lambda rows, w, ids: jnp.zeros((512, 16)).at[ids, ids].add(rows[:, 0]),
        True,
    ),
    "a scatter of a table of rows": (
        lambda rows, w, ids: jnp.zeros((512, 16)).at[ids.reshape(2, 2)].add(rows.reshape(2, 2, 16)),
        True,
    ),
    "a scatter of parts": (
        lambda rows, w, ids: jnp.zeros((512, 16)).at[ids, :8].add(rows[:, :8]),
        False,
    ),
    "a loop": (
        lambda rows, w, ids: lax.scan(
            lambda c, r: (c.at[r[1]].add(r[0]), ()), jnp.zeros((512, 16)), (rows, ids)
        )[0],
        True,
    ),
    "a loop that reads them": (
        lambda rows, w, ids: lax.scan(
            lambda c, r: (c.at[r[1]].add(r[0] * c[0]), ()), jnp.zeros((512, 16)), (rows, ids)
        )[0],
        False,
    ),
}


@pytest.mark.parametrize("case", ADDED_BY)
def test_by_what_rows_are_added(case):
    """(1)"""
    add, fires = ADDED_BY[case]
    alone(ADDED, backward(lambda *given: (given[1] @ add(*given))[:4]), *GIVEN, fires=fires)


def added_to_zeros(rows, w, ids):
    return (w @ jnp.zeros((w.shape[1], 16)).at[ids].add(rows))[:4]


def test_rows_without_elements():
    empty = lambda rows, w, ids: w[:4, :0] @ jnp.zeros((0, 16)).at[:0].add(rows[:0])
    alone(ADDED, backward(empty), *GIVEN, fires=False)


def test_rows_that_no_number_counts():
    """(1) The shape is symbolic."""
    (n,) = export.symbolic_shape("n")
    types = [jax.ShapeDtypeStruct(t, "float32") for t in ((4, 16), (16, n + 500))]
    ids = jax.ShapeDtypeStruct((4,), "int32")
    graph = import_jaxpr(jax.make_jaxpr(backward(added_to_zeros))(*types, ids))
    assert not run_alone((ADDED,), graph).record(ADDED.name, ADDED.cleanup).rewrites


@pytest.mark.parametrize("axis", [None, "x"])
def test_rows_on_devices(axis):
    """(2, 3) A type says on which device what else is read is."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    where = NamedSharding(mesh, PartitionSpec(axis))
    w = jax.device_put(np.ones((16, 512), np.float32), where)
    with jax.set_mesh(mesh):
        alone(
            ADDED,
            backward(lambda *given: jax.sharding.reshard(added_to_zeros(*given), PartitionSpec())),
            GIVEN[0],
            w,
            GIVEN[2],
            fires=axis is None,
        )


def test_rows_and_columns():
    """(2) A row of the sum is no row of both."""

    def back(rows, w, ids):
        zeros = jnp.zeros((512, 512)).at[ids].add(rows @ w)
        return jnp.broadcast_to(jnp.sum(zeros + zeros.T, 1)[:4, None], (4, 16))

    alone(ADDED, backward(back), *GIVEN, fires=False)


def test_what_else_reads_the_zeros():
    """(1) Then they are made."""

    def program(w, x, ids):
        back = jax.vjp(lambda t: jnp.sum(picked(t, ids)), x @ w)[1]
        (table,) = back(1.0)
        return table @ w.T, jnp.sin(table)

    alone(ADDED, program, LARGE[1], LARGE[0], "i32[4]", fires=False)


def test_what_needs_the_whole_of_a_result():
    """(2) A row of that depends on other rows; it gets an array with the rows."""

    def program(x, ids):
        read = lambda x: jnp.sum(picked(jnp.cumsum(jnp.sum(x, 2), 0), ids))
        return jax.grad(read)(x)

    graph = alone(ADDED, program, "f32[512,16,2]", "i32[4]", fires=False)
    assert any(op.name == "cumsum" for op in graph.walk())


@pytest.mark.parametrize("dtype", ["f32", "bf16", "c64", "f16"])
def test_numbers_of_other_types(dtype):
    """(3) The terms of a sum may overflow in float16, where the sum does not."""
    back = lambda w, x, ids, ct: jax.vjp(lambda w: picked(x @ w, ids), w)[1](ct)[0]
    types = f"{dtype}[16,16]", f"{dtype}[512,16]", "i32[4]", f"{dtype}[4,1,16]"
    alone(ADDED, back, *types, fires=dtype != "f16")


def test_many_rows_are_left_to_the_zeros():
    """They are not few, or take as long to be read one by one."""
    back = jax.grad(lambda w, x, ids: jnp.sum(picked(x @ w, ids)))
    types = LARGE[1], LARGE[0], "i32[200]"
    check_refuses(ADDED, back, *types, because="most rows of")
    back = jax.grad(lambda w, x, ids: jnp.sum(picked(x * w, ids)))
    types = "f32[4]", "f32[64,4]", "i32[15]"
    check_refuses(ADDED, back, *types, because="computing the rows takes as long")


def test_no_whole_product_is_left():
    """Forward and back, each step multiplies one row."""
    back = jax.make_jaxpr(optimize(looped(STEPS["a row"])))(
        jnp.ones((ROWS, SIZE)), jnp.ones((SIZE, SIZE)), jnp.arange(5)
    )
    assert "dot_general" in str(back)
    products = [line for line in str(back).splitlines() if "= dot_general" in line]
    assert products
    assert not any(f"f32[{ROWS},{SIZE}] = dot_general" in line for line in products)
