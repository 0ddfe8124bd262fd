"""What is made of the rows of a table is computed once for each row, not each time it is read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import using
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.passes.rows.map_before_reading import MapBeforeReading
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone
from tests.prices import EAGER

PASS = MapBeforeReading()
TYPES = "f32[400,48]", "f32[48,48]", "i32[4000,1]"


def read(h, i, mode="clip", axis=0):
    """Rows of a table at places of any shape."""
    *lead, _ = i.shape
    others = [n for a, n in enumerate(h.shape) if a != axis]
    window = tuple(range(len(lead), len(lead) + len(others)))
    window = (
        window if axis == 0 else (*range(axis), *(a + len(lead) for a in range(axis, h.ndim - 1)))
    )
    sizes = [1 if a == axis else n for a, n in enumerate(h.shape)]
    numbers = lax.GatherDimensionNumbers(window, (axis,), (axis,))
    return lax.gather(h, i, numbers, sizes, mode=mode)


def jaxpr_as_fun_of_one(graph):
    program = jaxpr_as_fun(export(graph))
    return lambda *args: program(*args)[0]


def normal(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def norm(x):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def test_a_product():
    """(1, 2, 3) The rows of the table are multiplied, and read."""
    check_rewrite(
        PASS,
        lambda h, w, i: read(h, i) @ w,
        *TYPES,
        simplify=True,
        diff="""
          fn (h:f32[400,48], w:f32[48,48], i:i32[4000,1]) {
        +   r:i32[4000] = reshape i
        +   s:i32[1] = slice[:1] r
        +   s1:i32[] = squeeze s
        +   c:i32[] = clamp 0 s1 399
        +   d1:f32[1,48] = dynamic_slice h c 0
        +   b:bool[400] = broadcast_in_dim False
        +   b1:bool[4000] = broadcast_in_dim True
        +   s2:bool[400] = scatter[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=clip] b i b1
        +   b2:bool[400,48] = broadcast_in_dim[dims=(0,)] s2
        +   b3:f32[400,48] = broadcast_in_dim d1
        +   s3:f32[400,48] = select_n b2 b3 h
        +   d2:f32[400,48] = dot_general s3 w
        -   g:f32[4000,48] = gather[offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 48), mode=clip] h i
        +   g:f32[4000,48] = gather[offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 48), mode=clip] d2 i
        -   d:f32[4000,48] = dot_general g w
        -   return d
        +   return g
          }
        """,  # noqa: E501
    )


def test_what_is_filled():
    """(1) What is read out of range is one more row."""
    check_rewrite(
        PASS,
        lambda h, w, i: read(h, i, "fill") @ w,
        *TYPES,
        simplify=True,
        diff="""
          fn (h:f32[400,48], w:f32[48,48], i:i32[4000,1]) {
        +   g1:bool[4000,1] = ge i 0
        +   l:bool[4000,1] = lt i 400
        +   a:bool[4000,1] = and g1 l
        +   b:i32[4000,1] = broadcast_in_dim 400
        +   s:i32[4000,1] = select_n a b i
        +   i1:i32[401] = iota
        +   b1:i32[401,1] = broadcast_in_dim[dims=(0,)] i1
        +   g2:f32[401,48] = gather[offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 48), mode=fill_or_drop, fill_value=nan] h b1
        +   r:i32[4000] = reshape s
        +   s1:i32[1] = slice[:1] r
        +   s2:i32[] = squeeze s1
        +   c:i32[] = clamp 0 s2 400
        +   d1:f32[1,48] = dynamic_slice g2 c 0
        +   b2:bool[401] = broadcast_in_dim False
        +   b3:bool[4000] = broadcast_in_dim True
        +   s3:bool[401] = scatter[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=clip] b2 s b3
        +   b4:bool[401,48] = broadcast_in_dim[dims=(0,)] s3
        +   b5:f32[401,48] = broadcast_in_dim d1
        +   s4:f32[401,48] = select_n b4 b5 g2
        +   d2:f32[401,48] = dot_general s4 w
        -   g:f32[4000,48] = gather[offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 48), mode=fill_or_drop, fill_value=nan] h i
        +   g:f32[4000,48] = gather[offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,), slice_sizes=(1, 48), mode=clip] d2 s
        -   d:f32[4000,48] = dot_general g w
        -   return d
        +   return g
          }
        """,  # noqa: E501
    )


def several(h, k, w, i):
    return jnp.concatenate([read(h, i), read(k, i)], -1) @ w


def attended(h, w, i):
    """Both ends of an edge, and a number that all rows share."""
    s, r = i[:, :1], i[:, 1:]
    x = jnp.sum((read(h, s) @ w) * (read(h, r) @ w), -1)
    return jax.nn.softmax(x)


PROGRAMS = {
    "bytes": (
        lambda h, w, i: jax.nn.gelu(norm(read(h, i)) + w[0]) @ w, (64, 48), (48, 48), (4, 512),
    ),
    "filled": (lambda h, w, i: jnp.tanh(norm(read(h, i, "fill"))) @ w, (64, 48), (48, 48), (2048,)),
    "ones": (
        lambda h, w, i: jnp.sum(jnp.where(jnp.isnan(x := read(h, i, "fill")), 1.0, jnp.sin(x)) @ w),
        (64, 48), (48, 48), (2048,),
    ),
    "columns": (lambda h, w, i: w @ read(h, i, axis=1), (48, 64), (48, 48), (2048,)),
    "columns of places": (
        lambda h, w, i: jnp.einsum("kd,dbt->kbt", w, read(h, i, axis=1)),
        (48, 64), (48, 48), (4, 512),
    ),
    "in a loop, too": (
        lambda h, w, i: read(h, i) @ w + lax.fori_loop(
            0, 3, lambda _, c: c + read(h * c[0], i), h[i[:, 0] % 64]
        ),
        (64, 48), (48, 48), (2048,),
    ),
    "softmax": (lambda h, w, i: jax.nn.softmax(read(h, i) @ w), (64, 48), (48, 48), (2048,)),
    "integers": (lambda h, w, i: jnp.argmax(read(h, i) @ w, -1), (64, 48), (48, 48), (2048,)),
}  # fmt: skip


def arguments(name):
    f, *shapes, places = PROGRAMS[name]
    rng = np.random.default_rng(0)
    h, w = (rng.normal(size=n).astype(np.float32) for n in shapes)
    return f, h, w, rng.integers(-9, 80, (*places, 1)).astype(np.int32)


@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name):
    """Places out of range among them; values, gradients in both orders, and forward-mode."""
    f, *args = arguments(name)
    alone(PASS, f, *args, fires=True)
    assert_close(optimize(f)(*args), f(*args))

    def loss(h, w, i):
        return jnp.sum(jnp.where(jnp.isnan(x := f(h, w, i) * 1.0), 0.0, x) ** 2)

    expected = jax.jit(jax.grad(loss, (0, 1)))(*args)
    assert_close(optimize(jax.grad(loss, (0, 1)))(*args), expected)
    assert_close(jax.grad(optimize(loss), (0, 1))(*args), expected)
    of_w = lambda f: jax.jvp(lambda w: f(args[0], w, args[2]), (args[1],), (args[1],))
    if name != "integers":
        assert_close(of_w(optimize(f)), of_w(f))


@pytest.mark.parametrize("mode", ["clip", "fill"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64"])
def test_places_of_other_types(dtype, mode):
    """(1) Some cannot number all rows, some more than XLA tells apart."""
    is_short = not dtype.endswith("64")
    with jax.enable_x64(not is_short):
        info, rng = np.iinfo(dtype), np.random.default_rng(0)
        i = rng.integers(max(info.min, -9), min(info.max, 300), (2048, 1)).astype(dtype)
        i[:2] = [[info.min], [info.max]] if is_short else 0
        args = normal(200, 48), normal(48, 48), i
        f = lambda h, w, i: jnp.sum(jnp.nan_to_num(jnp.tanh(read(h, i, mode) @ w)), 0)
        alone(PASS, f, *args, fires=is_short)
        assert_close(f(*args), optimize(f)(*args))
        loss = lambda h, w, i: jnp.sum(f(h, w, i) * jnp.arange(48.0))
        gradient = jax.grad(loss, (0, 1))
        assert_close(gradient(*args), optimize(gradient)(*args))
        assert_close(gradient(*args), jax.grad(optimize(loss), (0, 1))(*args))


def test_several_tables():
    """(1) All are read at the same places."""
    alone(PASS, several, "f32[64,48]", "f32[64,48]", "f32[96,48]", "i32[2048,1]", fires=True)
    args = "f32[64,48]", "f32[65,48]", "f32[96,48]", "i32[2048,1]"
    alone(PASS, several, *args, fires=False)


def test_both_ends_of_edges():
    graph = alone(PASS, attended, "f32[64,48]", "f32[48,48]", "i32[2048,2]", fires=True)
    assert max(op.result.shape[0] for op in graph.walk() if op.name == "dot_general") == 64


@pytest.mark.parametrize(
    ("program", "types"),
    {
        "places in another order": (  # (2)
            lambda h, w, i: jnp.swapaxes(read(h, i), 0, 1) @ w,
            ["f32[64,48]", "f32[48,48]", "i32[32,64,1]"],
        ),
        "summed up over places": (  # (2)
            lambda h, w, i: lax.dot_general(read(h, i), w, (((0,), (0,)), ((), ()))),
            ["f32[64,48]", "f32[2048,48]", "i32[2048,1]"],
        ),
        "the rows of both factors": (  # (2)
            lambda h, w, i: read(h, i) @ read(w, i).T,
            ["f32[64,48]", "f32[64,48]", "i32[2048,1]"],
        ),
        "beside other rows": (  # (3)
            lambda h, w, i: jnp.tanh(read(h, i) + w),
            ["f32[64,48]", "f32[2048,48]", "i32[2048,1]"],
        ),
        "by other matrices": (  # (3)
            lambda h, w, i: jnp.einsum("ij,ijk->ik", read(h, i), w),
            ["f32[64,8]", "f32[2048,8,8]", "i32[2048,1]"],
        ),
        "filled and clamped": (  # (1)
            lambda h, w, i: jnp.tanh(read(h, i) * read(h, i, "fill")) @ w,
            ["f32[64,48]", "f32[48,48]", "i32[2048,1]"],
        ),
        "of a batch of one table": (  # (1)
            lambda h, w, i: jax.vmap(read)(h, i) @ w,
            ["f32[1,64,48]", "f32[48,48]", "i32[1,2048,1]"],
        ),
        "of a table for each row": (  # (1)
            lambda h, w, i: jax.vmap(read)(h, i) @ w,
            ["f32[512,64,48]", "f32[48,48]", "i32[512,128,1]"],
        ),
        "parts of rows": (  # (1)
            lambda h, w, i: lax.gather(
                h, i, lax.GatherDimensionNumbers((1,), (0,), (0,)), (1, 47), mode="clip"
            ) @ w,
            ["f32[64,48]", "f32[47,48]", "i32[2048,1]"],
        ),
        "more rows than places": (
            lambda h, w, i: read(h, i) @ w, ["f32[4096,48]", "f32[48,48]", "i32[2048,1]"],
        ),
        "at no place": (
            lambda h, w, i: read(h, i) @ w, ["f32[64,48]", "f32[48,48]", "i32[0,1]"],
        ),
        "arithmetic": (
            lambda h, w, i: read(h, i) * 2.0 + w, ["f32[64,48]", "f32[]", "i32[2048,1]"],
        ),
    }.values(),
)  # fmt: skip
def test_what_is_not_found(program, types):
    alone(PASS, program, *types, fires=False)


def test_what_is_read_as_a_whole_and_by_rows():
    """(3) The product is of all of it; what is made of its rows is no row of the table."""

    def program(h, w, i):
        same = jnp.broadcast_to(w, (128, 128))
        return (jnp.tanh(read(h, i)) @ same) * same

    with using(EAGER):
        graph = alone(PASS, program, "f32[64,128]", "f32[128]", "i32[128,1]", fires=True)
    assert sum(op.result.shape[0] == 64 for op in graph.walk() if op.name == "dot_general") == 1


def test_rows_that_the_pass_has_made():
    """One more is filled in: there are as many places as rows."""
    program = lambda h, w, i: read(h, i, "fill") @ w
    with using(EAGER):
        alone(PASS, program, "f32[64,48]", "f32[48,48]", "i32[65,1]", fires=False)


def test_a_loop_that_reads_at_the_same_places():
    """(1) Its table is another one in each step."""

    def program(h, w, i):
        def step(c, _):
            return jnp.tanh(read(c, i) @ w)[:64], None

        return jnp.tanh(read(h, i) @ w), lax.scan(step, h, None, length=2)[0]

    graph = alone(PASS, program, "f32[64,48]", "f32[48,48]", "i32[2048,1]", fires=True)
    products = [op.result.shape for op in graph.walk() if op.name == "dot_general"]
    assert products == [(64, 48)] * 2


def layers(h, w, i):
    """The second table is made of what is read of the first, at the same places."""
    for _ in range(2):
        x = jnp.tanh(read(h, i) @ w)
        h = h + jnp.zeros_like(h).at[i[:, 0] % 8].add(x, mode="drop")
    return h


@pytest.mark.parametrize("phase", ["differentiated", "final"])
def test_layers(phase):
    """(4) Which rows are read is asked only while JAX may differentiate the program."""
    types = "f32[64,48]", "f32[48,48]", "i32[2048,1]"
    graph = alone(PASS, layers, *types, fires=True, phase=phase)
    assert any(op.name == "scatter" for op in graph.walk()) == (phase != "final")


def test_rows_that_are_never_read():
    """(4) They are infinite, and no part of a gradient."""
    f = lambda w, h, i: jnp.sum(jnp.tanh(read(h, i) @ w))
    _, h, w, i = arguments("bytes")
    h = np.concatenate([h, np.full((8, 48), np.nan, np.float32)])
    i = np.clip(i, 0, 63)
    for gradient in (optimize(jax.grad(f)), jax.grad(optimize(f))):
        assert_close(jax.grad(f)(w, h, i), gradient(w, h, i))
    assert_close(f(w, h, i), optimize(f)(w, h, i))
    made = alone(PASS, f, w, h, i, fires=True)
    gradient = jax.grad(jaxpr_as_fun_of_one(made))
    assert_close(jax.grad(f)(w, h, i), gradient(w, h, i))


def test_cost():
    check_refuses(
        PASS,
        lambda h, w, i: read(h, i) @ w,
        "f32[400,8]",
        "f32[8,64]",
        "i32[500,1]",
        because="takes more memory",
    )
    check_refuses(
        PASS,
        lambda h, w, i: read(h, i) @ w,
        "f32[400,8]",
        "f32[8,8]",
        "i32[500,1]",
        because="takes no longer",
    )


@pytest.mark.parametrize("axis", [None, "x"])
def test_rows_on_devices(axis):
    """(1) A type says on which device the rows are."""
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    w = jax.device_put(
        np.ones((48, 48), np.float32), NamedSharding(mesh, PartitionSpec(None, axis))
    )
    with jax.set_mesh(mesh):
        alone(PASS, lambda h, w, i: read(h, i) @ w, TYPES[0], w, TYPES[2], fires=axis is None)
