"""The window that an op reads or writes is the window it is said to be, in every step."""

import os

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.bridge import compat
from jaxpr_opt.bridge.slicing import read_window, write_window
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.testing import traced
from tests.watch import watch

EXAMPLES = int(os.environ.get("TEST_EXAMPLES", "0"))
SLOW = list(hypothesis.HealthCheck)
I32 = np.int32


# ---------------------------------------------------------------- the windows as they are


def check_step(each, steps, look):
    """What is said of one access, when it happens."""
    array, value = np.asarray(look(each.array)), np.asarray(look(each.value))
    operands = [look(v) for v in each.op.operands]
    indices = [look(v) for v in each.indices]
    np.testing.assert_array_equal(each.from_window(each.to_window(value)), value)
    if each.kind != "read":
        old = each.read(array, *indices)
        assert (old.shape, old.dtype) == (value.shape, value.dtype)
    if not each.is_located:
        if each.kind == "write":  # what is written back is what was there
            (back,) = compat.bind(
                each.op.primitive,
                [old if v is each.value else x
                 for v, x in zip(each.op.operands, operands, strict=True)],
                each.op.params,
            )  # fmt: skip
            np.testing.assert_array_equal(back, array)
        return
    starts = [e.start.offset + sum(k * steps[s] for s, k in e.start.steps.items())
              for e in each.window]  # fmt: skip
    assert [int(start) for start in each.starts(*map(jnp.asarray, indices))] == starts
    for start, extent, n in zip(starts, each.window, array.shape, strict=True):
        assert 0 <= start <= n - extent.size
    window = tuple(slice(s, s + e.size) for s, e in zip(starts, each.window, strict=True))
    assert each.nbytes == array[window].nbytes
    if each.kind == "read":
        np.testing.assert_array_equal(value, each.from_window(array[window]))
        return
    np.testing.assert_array_equal(old, each.from_window(array[window]))
    wanted = array.copy()
    update = np.asarray(each.to_window(value))
    wanted[window] = update if each.kind == "write" else wanted[window] + update
    np.testing.assert_array_equal(look(each.op.result), wanted)


def check_all(graph, *args):
    """Every access of a program, in every step; the accesses."""
    found = {}

    def visit(region, steps, look):
        for op in region.ops:
            if op not in found:
                found[op] = access(op)
            if found[op] is not None:
                check_step(found[op], steps, look)

    watch(graph, args, visit)
    return [each for each in found.values() if each is not None]


def says(each):
    """`write [1 + 1 s, ?, 0:3]`: a start of None is `?`, and a size follows if it is not one."""

    def place(extent):
        if extent.start is None:
            return "?" if extent.size == 1 else f"?:{extent.size}"
        steps = "".join(f"{k:+}s" for k in extent.start.steps.values())
        start = f"{extent.start.offset}{steps}"
        return start if extent.size == 1 else f"{start}:{extent.size}"

    return f"{each.kind} [{', '.join(map(place, each.window))}]"


X = np.arange(60, dtype=np.float32).reshape(5, 4, 3)
U = -np.arange(60, dtype=np.float32).reshape(5, 4, 3) - 1
OUT_OF_RANGE = (-9, -1, 2, 5, 99)


def looped(step, x=X, length=3, batch=None):
    """What `step` of an array, a counter, an unknown index and an update gives, in a loop."""

    def program(x, n, u):
        each = step if batch is None else jax.vmap(step, batch)
        body = lambda i, _: (i + 1, each(x, i, n, u))
        return lax.scan(body, 0, None, length=length)[1]

    return program


def described(program, n=3, x=X, u=U):
    """What is said of the accesses of a program; it holds, wherever an unknown index is."""
    graph = import_jaxpr(traced(program, x, n, u))
    for k in OUT_OF_RANGE:
        found = check_all(graph, x, jnp.asarray(n - 3 + k), u)
    return [says(each) for each in found]


# ---------------------------------------------------------------- by the ops that there are


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda x, i, n, u: lax.slice(x, (1, 0, 2), (4, 4, 3)), ["read [1:3, 0:4, 2]"]),
        (lambda x, i, n, u: lax.slice(x, (1, 0, 2), (4, 4, 3), (1, 1, 1)), ["read [1:3, 0:4, 2]"]),
        (lambda x, i, n, u: lax.slice(x, (1, 0, 2), (4, 4, 3), (2, 1, 1)), []),
        (lambda x, i, n, u: x[i], ["read [0+1s, 0:4, 0:3]"]),
        (lambda x, i, n, u: x[i, :, 2], ["read [0+1s, 0:4, 2]"]),
        (lambda x, i, n, u: x[i - 5, :, -1], ["read [0+1s, 0:4, 2]"]),
        (lambda x, i, n, u: x[4 - i, 3 - i, i], ["read [4-1s, 3-1s, 0+1s]"]),
        (lambda x, i, n, u: x[n, i], ["read [?, 0+1s, 0:3]"]),
        (lambda x, i, n, u: x[i + 3], ["read [?, 0:4, 0:3]"]),
        (lambda x, i, n, u: lax.dynamic_slice(x, (i, 1, n), (2, 3, 2)),
         ["read [0+1s:2, 1:3, ?:2]"]),
        (lambda x, i, n, u: lax.dynamic_slice(x, (i, 2, n), (4, 3, 3)), ["read [?:4, ?:3, ?:3]"]),
        (lambda x, i, n, u: lax.dynamic_update_slice(x, u[:2, :1], (i, 3, 0)),
         ["read [0:2, 0, 0:3]", "write [0+1s:2, 3, 0:3]"]),
        (lambda x, i, n, u: lax.dynamic_update_slice(x, x[0:1], (n, 0, 0)),
         ["read [0, 0:4, 0:3]", "write [?, 0:4, 0:3]"]),
        (lambda x, i, n, u: x.at[i].set(7), ["write [0+1s, 0:4, 0:3]"]),
        (lambda x, i, n, u: x.at[i, 1:3].set(7), ["write [0+1s, 1:2, 0:3]"]),
        (lambda x, i, n, u: x.at[i, :, 1].add(7), ["add [0+1s, 0:4, 1]"]),
        (lambda x, i, n, u: x.at[i + 3].set(7), ["write [?, 0:4, 0:3]"]),
        (lambda x, i, n, u: x.at[n, i].set(7), ["write [?, 0+1s, 0:3]"]),
        (lambda x, i, n, u: x.at[n, i].add(7), ["add [?, 0+1s, 0:3]"]),
        (lambda x, i, n, u: x.at[i].set(7, mode="clip"), ["write [0+1s, 0:4, 0:3]"]),
        (lambda x, i, n, u: x.at[i].set(7, mode="promise_in_bounds"), ["write [0+1s, 0:4, 0:3]"]),
        (lambda x, i, n, u: x.at[i].get(mode="fill"), ["read [0+1s, 0:4, 0:3]"]),
        (lambda x, i, n, u: x[jnp.stack([i])], ["read [0+1s, 0:4, 0:3]"]),
        (lambda x, i, n, u: x.at[jnp.stack([i]), 1].set(7), ["write [0+1s, 1, 0:3]"]),
        # Several windows, or none; other ways to write.
        (lambda x, i, n, u: x[jnp.stack([i, i + 1])], []),
        (lambda x, i, n, u: x.at[jnp.stack([i, i])].set(7), []),
        (lambda x, i, n, u: x[jnp.zeros(0, int)], []),
        (lambda x, i, n, u: x.at[i].mul(7), []),
        (lambda x, i, n, u: x.at[i].max(7), []),
        (lambda x, i, n, u: x.at[i].apply(jnp.sin), []),
        (lambda x, i, n, u: x * 2, []),
    ],
)  # fmt: skip
def test_ops(step, expected):
    assert described(looped(step)) == expected


@pytest.mark.parametrize(
    ("step", "batch", "expected"),
    [
        # One index for all rows: one window of all rows, which `vmap` moves to the first axis.
        (lambda x, i, n, u: x[i], (0, None, None, 0), ["read [0:5, 0+1s, 0:3]"]),
        (lambda x, i, n, u: x[1, i], (1, None, None, 1), ["read [0:4, 1, 0+1s]"]),
        (lambda x, i, n, u: x[:, i], (2, None, None, 2), ["read [0:3, 0:5, 0+1s]"]),
        (lambda x, i, n, u: x.at[i].set(7), (0, None, None, None), ["write [0:5, 0+1s, 0:3]"]),
        (lambda x, i, n, u: x.at[i].add(7), (0, None, None, None), ["add [0:5, 0+1s, 0:3]"]),
        (lambda x, i, n, u: lax.dynamic_update_slice(x, u, (i, 0)), (1, None, None, 1),
         ["write [0:4, 0+1s:2, 0:2]"]),
        (lambda x, i, n, u: lax.dynamic_slice(x, (i, 0), (2, 3)), (0, None, None, 0),
         ["read [0:5, 0+1s:2, 0:3]"]),
        # Each row has an index.
        (lambda x, i, n, u: x[n], (0, None, 0, 0), ["read [0:5, ?, 0:3]"]),
        (lambda x, i, n, u: x[n, i], (0, None, 0, 0), ["read [0:5, ?, 0+1s]"]),
        (lambda x, i, n, u: x.at[n].set(7), (0, None, 0, 0), ["write [0:5, ?, 0:3]"]),
        (lambda x, i, n, u: x.at[i, n].add(7), (0, None, 0, 0), ["add [0:5, 0+1s, ?]"]),
        (lambda x, i, n, u: lax.dynamic_update_slice(x, jnp.ones((1, 2)), (n, i)), (0, None, 0, 0),
         ["write [0:5, ?, ?:2]"]),
        # The rows of one array: as many windows as rows.
        (lambda x, i, n, u: x[n], (None, None, 0, None), []),
    ],
)  # fmt: skip
def test_batched_ops(step, batch, expected):
    rows = np.arange(5, dtype=I32) if batch[2] == 0 else 3
    update = U[:2, :, :2] if expected and expected[0].endswith("0+1s:2, 0:2]") else U
    assert described(looped(step, batch=batch), rows, u=update) == expected


@pytest.mark.parametrize("length", [0, 1])
def test_short_loops(length):
    step = lambda x, i, n, u: x.at[i + 4 * (length == 0)].set(x[i])
    graph = import_jaxpr(traced(looped(step, length=length), X, 3, U))
    check_all(graph, X, jnp.asarray(3), U)


@pytest.mark.parametrize("dtype", [bool, np.int8, np.complex64])
def test_other_types(dtype):
    x = (X % 3).astype(dtype)
    step = lambda x, i, n, u: (x[i], x.at[i].set(x[n]), x.at[n, i].set(x[i, n]))
    assert described(looped(step), x=x)


def test_windows_at_numbers_and_computed_starts():
    """In x64 mode a number is an int64, and JAX wants starts of one type."""

    def moved(x, i):
        window = read_window(x, [2, i], (1, 2))
        return write_window(x, window, [i, 0]), read_window(x, [1, 2], (2, 1))

    x = np.arange(12.0).reshape(3, 4)
    want = x.copy()
    want[1, :2] = x[2, 1:3]
    for x64 in (False, True):
        with jax.enable_x64(x64):
            written, corner = jax.jit(moved)(x, jnp.int32(1))
            np.testing.assert_array_equal(written, want)
            np.testing.assert_array_equal(corner, x[1:3, 2:3])


def test_index_vectors_that_are_residuals():
    """Stacked by one loop and read back by another that runs the other way."""

    def program(x, n, u):
        first = lambda i, _: (i + 1, jnp.stack([i, 3 - i]))
        numbers = lax.GatherDimensionNumbers((0,), (0, 1), (0, 1))
        vectors = lax.scan(first, 0, None, length=3)[1]
        read = lambda c, v: (c, lax.gather(x, v, numbers, (1, 1, 3)))
        return lax.scan(read, 0, vectors, reverse=True)[1]

    assert described(program) == ["read [0+1s, 3-1s, 0:3]"]


def test_nested_loops():
    def program(x, n, u):
        inner = lambda i: lax.scan(lambda j, _: (j + 1, x[i + j, j]), 0, None, length=3)[1]
        return lax.scan(lambda i, _: (i + 1, inner(i)), 0, None, length=3)[1]

    assert described(program) == ["read [0+1s+1s, 0+1s, 0:3]"]


# ---------------------------------------------------------------- any gather, any scatter

MODES = ["clip", "fill", "promise_in_bounds"]


@st.composite
def placements(draw):
    """Dimension numbers, what each component of the index is, and the sizes that go with them."""
    rank = draw(st.integers(1, 4))
    shape = [draw(st.integers(1, 5)) for _ in range(rank)]
    roles = [draw(st.sampled_from(["batch", "collapsed", "indexed", "rest"])) for _ in shape]
    batching = [a for a in range(rank) if roles[a] == "batch"][:2]
    roles = ["rest" if r == "batch" and a not in batching else r for a, r in enumerate(roles)]
    collapsed = [a for a in range(rank) if roles[a] == "collapsed"]
    window = [a for a in range(rank) if roles[a] in {"indexed", "rest"}]
    sizes = [1 if a not in window else draw(st.integers(1, shape[a])) for a in range(rank)]
    # The index: an axis for each batch axis, in any order, and others of size one.
    others = [draw(st.sampled_from([1, 1, 1, 2])) for _ in range(draw(st.integers(0, 1)))]
    lead = draw(st.permutations([*((shape[a], a) for a in batching), *((n, None) for n in others)]))
    order = draw(st.permutations([a for a in range(rank) if roles[a] in {"collapsed", "indexed"}]))
    value_rank = len(lead) + len(window)
    offsets = sorted(draw(st.permutations(range(value_rank)))[: len(window)])
    places = [a for _, a in lead]
    return {
        "shape": shape,
        "sizes": sizes,
        "lead": tuple(n for n, _ in lead),
        "offsets": tuple(offsets),
        "collapsed": tuple(collapsed),
        "indexed": tuple(order),
        "batching": tuple(batching),
        "index_batching": tuple(places.index(a) for a in batching),
        "components": [draw(components(shape[a], sizes[a])) for a in order],
    }


def components(n, size):
    """Offset and step of a start, often in range; and what is added in each row, or `unknown`."""
    steps = st.sampled_from([0, 1, -1, 2])
    rows = st.sampled_from([0, 0, 0, 1, "unknown"])
    return st.tuples(st.integers(-1, max(n - size, 0) + 1), steps, rows)


def index_vector(where, i, n):
    def start(offset, step, rows):
        at = jnp.broadcast_to(offset + step * i, where["lead"])
        if rows == "unknown":
            return at + n
        return at + rows * lax.broadcasted_iota(I32, where["lead"], 0) if where["lead"] else at

    made = [start(*c)[..., None].astype(I32) for c in where["components"]]
    return jnp.concatenate(made, -1) if made else jnp.zeros((*where["lead"], 0), I32)


def accesses(where, mode, flags):
    """A loop that gathers, scatters and adds."""

    def program(x, n):
        gathered = lax.GatherDimensionNumbers(
            where["offsets"], where["collapsed"], where["indexed"], where["batching"],
            where["index_batching"],
        )  # fmt: skip
        scattered = lax.ScatterDimensionNumbers(
            where["offsets"], where["collapsed"], where["indexed"], where["batching"],
            where["index_batching"],
        )  # fmt: skip

        def body(i, _):
            at = index_vector(where, i, n)
            value = lax.gather(x, at, gathered, where["sizes"], mode=mode, fill_value=5)
            update = lax.iota(x.dtype, max(value.size, 1))[: value.size].reshape(value.shape)
            options = {"mode": mode, **flags}
            written = lax.scatter(x, at, -1 - update, scattered, **options)
            added = lax.scatter_add(x, at, -1 - update, scattered, **options)
            return i + 1, (value, written, added)

        return lax.scan(body, 0, None, length=3)[1]

    return program


@pytest.mark.parametrize(
    ("components", "expected"),
    [
        ([(0, 1, 0), (1, 1, 0)], "[1+1s, 0:4, 0+1s]"),
        ([(2, -1, 0), (0, 0, 0)], "[0, 0:4, 2-1s]"),
        ([(0, 1, 0), (0, 0, 1)], "[?, 0:4, 0+1s]"),  # another window in each row
        ([(0, 1, 0), (0, 0, "unknown")], "[?, 0:4, 0+1s]"),
        ([(1, 1, 0), (3, 1, 0)], "[?, 0:4, ?]"),  # not in range in the last step
        ([(-1, 1, 0), (0, -1, 0)], "[?, 0:4, ?]"),  # nor in the first
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_axes_in_another_order(components, expected, mode):
    """The batch is the second axis of the array and the last of the value, and the components of
    the index are for the third axis and the first.
    """
    where = {
        "shape": X.shape,
        "sizes": [1, 1, 1],
        "lead": (4,),
        "offsets": (0,),
        "collapsed": (0,),
        "indexed": (2, 0),
        "batching": (1,),
        "index_batching": (0,),
        "components": components,
    }
    found = check_all(import_jaxpr(traced(accesses(where, mode, {}), X, 2)), X, jnp.asarray(2))
    assert [says(each) for each in found] == [f"{k} {expected}" for k in ("read", "write", "add")]


def test_what_is_read_of_a_window_out_of_range():
    """Zeros, if the write is dropped."""
    step = lambda x, i, n, u: x.at[n].set(7, mode="drop")
    graph = import_jaxpr(traced(looped(step), X, 3, U))
    (write,) = (a for op in graph.walk() if (a := access(op)) is not None)
    index = jnp.array([99], I32)
    np.testing.assert_array_equal(write.read(jnp.asarray(X), index), np.zeros((4, 3)))


def test_any_gather_and_scatter():
    located = []

    @hypothesis.settings(max_examples=EXAMPLES or 20, suppress_health_check=SLOW)
    @given(placements(), st.sampled_from(MODES), st.booleans(), st.integers(-2, 5))
    def search(where, mode, flag, n):
        one = all(size == 1 for size in where["lead"])
        flags = {"unique_indices": flag and one, "indices_are_sorted": flag and one}
        x = np.arange(np.prod(where["shape"]), dtype=np.float32).reshape(where["shape"])
        program = accesses(where, mode, flags)
        found = check_all(import_jaxpr(traced(program, x, n)), x, jnp.asarray(n))
        located.append(sum(each.is_located for each in found if each.kind == "write"))

    search()
    assert sum(located) > len(located) // 8, located


def test_windows_at_any_place():
    """`dynamic_slice` and `dynamic_update_slice`, batched along any axis."""
    located = []
    index = st.tuples(st.integers(-3, 4), st.sampled_from([0, 0, 1, -1]), st.booleans())
    axis = st.sampled_from([None, 0, 1, 2])

    @hypothesis.settings(max_examples=EXAMPLES or 10, suppress_health_check=SLOW)
    @given(st.tuples(index, index), axis, st.booleans(), st.integers(-2, 5), st.data())
    def search(places, axis, shared, n, data):
        sizes = [data.draw(st.integers(1, size)) for size in (3, 4)]
        x = np.arange(36, dtype=np.float32).reshape(3, 4, 3)
        rows = n if shared or axis is None else n + np.arange(x.shape[axis])

        def one(x, i, n):
            array = x if axis is not None else x[:, :, 1]
            at = [a + k * i + (n if unknown else 0) for a, k, unknown in places]
            fits = [min(a, b) for a, b in zip(sizes, array.shape, strict=True)]
            value = lax.dynamic_slice(array, at, fits)
            return value, lax.dynamic_update_slice(array, -1 - value, at[::-1])

        def program(x, n):
            how = (axis, None, None if np.ndim(n) == 0 else 0)
            each = one if axis is None else jax.vmap(one, how)
            return lax.scan(lambda i, _: (i + 1, each(x, i, n)), 0, None, length=3)[1]

        found = check_all(import_jaxpr(traced(program, x, rows)), x, jnp.asarray(rows))
        located.append(sum(each.is_located for each in found if each.kind == "write"))

    search()
    assert any(located)
