"""A gather or scatter of one window at a known place is a slice."""
# ruff: noqa: E501 - the parameters of a scatter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun

import jaxpr_opt
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.passes.windows.slice_known_windows import SliceKnownWindows
from jaxpr_opt.testing import check_refuses, check_rewrite, run_alone, traced
from tests.loops import alone

SLICE = SliceKnownWindows()


def test_set_in_a_loop():
    """(1, 2) ``ys.at[i].set(x)``, where `i` is the loop's counter."""

    def program(ys, xs):
        return lax.scan(lambda c, x: ((c[0] + 1, c[1].at[c[0]].set(x)), None), (0, ys), xs)[0][1]

    check_rewrite(
        SLICE,
        program,
        "f32[8,3]",
        "f32[8,3]",
        diff="""
          fn (ys:f32[8,3], xs:f32[8,3]) {
            c:i32[], c1:f32[8,3] = scan[8] carry(c=0, c1=ys) xs(x=xs) {
              a:i32[] = add c 1
              l:bool[] = lt c 0
              a1:i32[] = add c 8
              s:i32[] = select_n l c a1
              c2:i32[] = convert_element_type s
              b:i32[1] = broadcast_in_dim c2
        -     s1:f32[8,3] = scatter[update_window_dims=(0,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), indices_are_sorted, unique_indices, mode=fill_or_drop] c1 b x
        +     s2:i32[1] = slice[:] b
        +     r:i32[] = reshape s2
        +     r1:f32[1,3] = reshape x
        +     d:f32[8,3] = dynamic_update_slice c1 r1 r 0
        -     yield carry(a, s1)
        +     yield carry(a, d)
            }
            return c1
          }
        """,
    )


def test_read_of_a_batch():
    """(1) The same index in all rows: a window of all rows."""

    def program(xs):
        def step(i, total):
            return total + jax.vmap(lambda row: row.at[i].get(mode="clip"))(xs)

        return lax.fori_loop(0, 5, step, jnp.zeros(4))

    check_rewrite(
        SLICE,
        program,
        "f32[4,5]",
        diff="""
          fn (xs:f32[4,5]) {
            b:f32[4] = broadcast_in_dim 0.0
            c:i32[], c1:f32[4] = scan[5] carry(c=0, c1=b) {
              a:i32[] = add c 1
              l:bool[] = lt c 0
              c2:i32[] = convert_element_type c
              a1:i32[] = add c2 5
              s:i32[] = select_n l c a1
              b:i32[1] = broadcast_in_dim s
        -     g:f32[4,1] = gather[offset_dims=(0, 1), start_index_map=(1,), slice_sizes=(4, 1), unique_indices, indices_are_sorted, mode=clip] xs b
        +     s2:i32[1] = slice[:] b
        +     r:i32[] = reshape s2
        +     d:f32[4,1] = dynamic_slice xs 0 r
        -     s1:f32[4] = squeeze g
        +     s1:f32[4] = squeeze d
              a2:f32[4] = add c1 s1
              yield carry(a, a2)
            }
            return c1
          }
        """,
    )


def test_constant_place():
    check_rewrite(
        SLICE,
        lambda x: x.at[2, 1].add(3),
        "i32[4,5]",
        diff="""
          fn (x:i32[4,5]) {
            b:i32[1] = broadcast_in_dim 2
            b1:i32[1] = broadcast_in_dim 1
            c:i32[2] = concatenate[dimension=0] b b1
        -   s:i32[4,5] = scatter-add[inserted_window_dims=(0, 1), scatter_dims_to_operand_dims=(0, 1), indices_are_sorted, unique_indices, mode=fill_or_drop] x c 3
        +   s1:i32[1,1] = slice[2:3, 1:2] x
        +   r:i32[1,1] = reshape 3
        +   a:i32[1,1] = add s1 r
        +   d:i32[4,5] = dynamic_update_slice x a 2 1
        -   return s
        +   return d
          }
        """,
    )


FOUND = {
    "last, counted from the end": lambda x, i: x.at[-1].set(2.0),
    "a row": lambda x, i: x.at[i].set(jnp.arange(5.0)),
    "a column": lambda x, i: x.at[:, i].set(jnp.arange(5.0)),
    "part of a row": lambda x, i: x.at[i, 1:3].set(jnp.arange(2.0)),
    "an element": lambda x, i: x.at[i, 4 - i].set(7.0),
    "dropped if out of range": lambda x, i: x.at[i].set(2.0, mode="drop"),
    "filled if out of range": lambda x, i: x + x.at[i].get(mode="fill", fill_value=3.0),
    "filled with NaN": lambda x, i: x + x.at[i, 0].get(mode="fill"),
    "a batch": lambda x, i: jax.vmap(lambda row: row.at[i].set(row[0]))(x),
    "a batch of columns": lambda x, i: jax.vmap(lambda c: c.at[i].set(c[0]), 1, 1)(x),
    "a batch, indices repeated": lambda x, i: jax.vmap(lambda row, j: row.at[j].set(1.0))(
        x, jnp.broadcast_to(i, (5,))
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_same_bits(case):
    """(1, 2) However the window is written down."""

    def program(x):
        return lax.fori_loop(0, 5, lambda i, x: FOUND[case](x, i), x)

    graph = alone(SLICE, program, "f32[5,5]", fires=True)
    left = {op.name for op in graph.walk()} & {"gather", "scatter", "scatter-add"}
    assert not left


def added(x):
    return lax.fori_loop(0, 5, lambda i, x: x.at[i, 4 - i].add(x[0, 0]), x)


def test_an_addition_that_may_be_differentiated():
    """Cost: its transpose is a read; a read and a write are cleared and added to as well."""
    check_refuses(SLICE, added, "f32[5,5]", because="also clears the window")


@pytest.mark.parametrize("program", [added, jax.grad(lambda x: added(x).sum())])
def test_an_addition_that_will_not_be_differentiated(program):
    """When it is compiled, or in a program that computes cotangents."""
    phase = "final" if program is added else "differentiable"
    graph = import_jaxpr(traced(program, "f32[5,5]"), phase)
    run_alone((SLICE,), graph)
    assert not {op.name for op in graph.walk()} & {"scatter", "scatter-add"}


def test_what_vmap_makes_of_an_optimised_program():
    """JAX batches slices with one index into gathers and scatters; they are slices again."""

    @jaxpr_opt.optimize
    def program(xs):
        def step(i, ys):
            return ys.at[i].set(jnp.sin(ys[i - 1] * xs[i]))

        return lax.fori_loop(1, 6, step, xs).sum()

    batch = jax.make_jaxpr(jax.vmap(jax.grad(program)))(jnp.ones((3, 6)))
    assert "scatter[" not in str(batch)


KINDS = "i32[5]", "bool[5]", "c64[5]", "bf16[5]", "u8[5,2]"


@pytest.mark.parametrize("kind", KINDS)
def test_types(kind):
    alone(SLICE, lambda x: x.at[1].set(x[3]), kind, fires=True)


def test_weak_types_stay():
    alone(
        SLICE,
        lambda x: lax.full_like(x, 2.0, shape=(6,)).at[1].set(3),
        jnp.asarray(1.0),
        fires=True,
    )


UNKNOWN = {
    "data-dependent": lambda x, n: x.at[n].set(1.0),
    "out of range in the last step": lambda x, n: lax.fori_loop(
        0, 6, lambda i, x: x.at[i].set(1.0), x
    ),
    "negative in the first step": lambda x, n: lax.fori_loop(
        0, 5, lambda i, x: x.at[i - 1].set(1.0, mode="drop", wrap_negative_indices=False), x
    ),
    "clamped": lambda x, n: lax.fori_loop(
        0, 5, lambda i, x: x + jax.vmap(lambda row: row.at[i + 1].get(mode="clip"))(x), x
    ),
    "each row its own": lambda x, n: jax.vmap(lambda row, i: row.at[i].set(1.0))(x, jnp.arange(5)),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_places_stay(case):
    """(1, 2) Where the window starts, or that it is in range, is not known."""
    check_refuses(
        SLICE, UNKNOWN[case], "f32[5,5]", "i32[]", because="is unknown, or may be out of range"
    )


@pytest.mark.parametrize("index", [jnp.array([1, 3]), jnp.array([[0], [2]]), jnp.array([2, 2])])
def test_several_windows_stay(index):
    """(1) One window."""
    alone(SLICE, lambda x: x.at[index].set(1.0), "f32[5,5]", fires=False)


def test_one_window_that_is_read_several_times():
    """(1) Each time at the same place."""

    def program(x):
        step = lambda i, x: (
            x
            + lax.gather(
                x,
                jnp.broadcast_to(i, (5, 1)),
                lax.GatherDimensionNumbers((1,), (0,), (0,)),
                (1, 5),
                mode="promise_in_bounds",
            )
        )
        return lax.fori_loop(0, 5, step, x)

    alone(SLICE, program, "f32[5,5]", fires=False)


def test_what_is_no_set_stays():
    """A scatter that multiplies or applies a function."""
    alone(SLICE, lambda x: x.at[1].multiply(2.0), "f32[5]", fires=False)
    alone(SLICE, lambda x: x.at[1].apply(jnp.sin), "f32[5]", fires=False)


def test_rows_of_doubles():
    """The index is an int32, which JAX makes of it; the column is a number."""
    with jax.enable_x64(True):

        def program(ys, xs):
            step = lambda i, ys: ys.at[i].set(xs[i] + ys[i])
            return lax.fori_loop(0, 4, step, ys)

        alone(SLICE, program, "f64[4,3]", "f64[4,3]", fires=True)


COMPUTED = {
    "functions of what was": jnp.tanh,
    "rolled": lambda x: x + 0.1 * jnp.roll(x, 1, 1),
    "choices": lambda x: jnp.where(x > 0, x, 0.5 * x),
    "computed, then moved": lambda x: (x * 0.9).T,
}


@pytest.mark.parametrize("case", COMPUTED)
@pytest.mark.parametrize("kind", ["set", "add"])
def test_write_into_what_the_step_computes(case, kind):
    """Cost: XLA:CPU would compute the array element by element, to write the window on the way."""

    def program(x):
        step = lambda i, x: getattr(COMPUTED[case](x).at[:, i], kind)(x[0])
        return lax.fori_loop(0, 5, step, x)

    graph = import_jaxpr(traced(program, "f32[5,5]"), "final")
    run_alone((SLICE,), graph)
    assert [op.name for op in graph.walk() if op.name.startswith("scatter")]
    with using(CostModel.of_backend("gpu")):
        run_alone((SLICE,), graph)
    assert not [op.name for op in graph.walk() if op.name.startswith("scatter")]


@pytest.mark.parametrize(
    "program",
    [
        lambda i, x: jnp.tanh(x).at[0].set(1.0),
        lambda i, x: x + jnp.zeros((5, 5)).at[i].set(x[0]),
        lambda i, x: (x @ x).at[i].set(1.0),
        lambda i, x: x.T.at[i].set(1.0).T,
    ],
    ids=["at a known place", "into zeros", "into a product", "into what moved"],
)
def test_write_that_xla_does_in_place(program):
    """Cost: these it does not make element by element, or not with a jump for each."""
    graph = alone(SLICE, lambda x: lax.fori_loop(0, 5, program, x), "f32[5,5]", fires=True)
    assert not [op.name for op in graph.walk() if op.name.startswith("scatter")]


@pytest.mark.parametrize("kind", ["set", "add"])
def test_a_number_that_is_written_into_an_array_on_a_mesh(kind):
    """JAX wants both on one mesh: a scatter takes the number as it is, a slice does not."""
    explicit = (jax.sharding.AxisType.Explicit,)
    with jax.set_mesh(jax.make_mesh((1,), ("i",), axis_types=explicit)):
        jaxpr = jax.make_jaxpr(lambda x, u: getattr(x.at[2], kind)(u))(jnp.zeros(8), jnp.ones(()))
        graph = import_jaxpr(jaxpr, "final")
        (op,) = (op for op in graph.walk() if op.name.startswith("scatter"))
        rw = Rewriter(graph)
        rw.set_operand(op, 2, rw.scalar(7, np.float32))
        run_alone((SLICE,), graph)
        assert [op.name for op in graph.walk()].count("dynamic_update_slice") == 1
        assert jax.jit(jaxpr_as_fun(export(graph)))(jnp.zeros(8), jnp.ones(()))[0][2] == 7
