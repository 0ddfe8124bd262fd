"""A select by where something was written is a write."""
# ruff: noqa: E501 - the parameters of a scatter

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.passes.masks.write_where_masked import WriteWhereMasked
from jaxpr_opt.testing import assert_close, check_rewrite
from tests.loops import alone, measured

WRITE = WriteWhereMasked()
N = 40
PLACES = "i32[5,3]"


def loop(step, init, xs):
    """Each row of xs is a step's."""
    return lax.scan(lambda c, x: (step(c, x), None), init, xs)[0]


def numbered(at, start=1, mode="fill"):
    """Numbers at some places of zeros, as JAX writes them."""
    ids = lax.iota("uint32", len(at)) + jnp.uint32(start)
    return jnp.zeros(N, "uint32").at[at].set(ids, mode=mode, wrap_negative_indices=False)


def masked(at, **options):
    return lax.eq(numbered(at, **options), jnp.zeros(N, "uint32"))


def cleared(mask=masked):
    """A carry of which the elements that a step numbers are cleared."""
    step = lambda c, at: lax.select_n(mask(at), jnp.zeros(N), c) * 0.5
    return lambda c, places: loop(step, c, places)


@pytest.mark.slow
def test_numbers_are_written():
    check_rewrite(
        WRITE,
        cleared(),
        "f32[40]",
        PLACES,
        simplify=True,
        diff="""
            fn (c:f32[40], places:i32[5,3]) {
              c1:f32[40] = scan[5] carry(c=c) xs(x=places) {
          -     i:u32[3] = iota
          -     a:u32[3] = add i 1
          -     b:u32[40] = broadcast_in_dim 0
                b1:i32[3,1] = broadcast_in_dim[dims=(0,)] x
          -     s:u32[40] = scatter[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=fill_or_drop] b b1 a
          -     e:bool[40] = eq s b
          -     b2:f32[40] = broadcast_in_dim 0.0
          -     s1:f32[40] = select_n e b2 c
          +     b3:f32[3] = broadcast_in_dim 0.0
          +     s2:f32[40] = scatter[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=fill_or_drop] c b1 b3
          -     m:f32[40] = mul s1 0.5
          +     m:f32[40] = mul s2 0.5
                yield carry(m)
              }
              return c1
            }
        """,
    )


def test_a_stacked_mask():
    """(4) Its indices are stacked."""

    def program(c, places):
        rows = lax.scan(lambda t, at: (t + 1, masked(at)), 0, places)[1]
        step = lambda c, row: (lax.select_n(row, jnp.zeros(N), c) * 0.5, None)
        return lax.scan(step, c, rows, reverse=True)[0]

    check_rewrite(
        WRITE,
        program,
        "f32[40]",
        PLACES,
        simplify=True,
        saves_bytes=5 * (N - 12),
        diff="""
            fn (c:f32[40], places:i32[5,3]) {
          -   ys:bool[5,40] = scan[5] xs(x=places) {
          +   ys1:i32[5,3,1] = scan[5] xs(x=places) {
          -     i:u32[3] = iota
          -     a:u32[3] = add i 1
          -     b:u32[40] = broadcast_in_dim 0
                b1:i32[3,1] = broadcast_in_dim[dims=(0,)] x
          -     s:u32[40] = scatter[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=fill_or_drop] b b1 a
          -     e:bool[40] = eq s b
          -     yield ys(e)
          +     yield ys(b1)
              }
          -   c1:f32[40] = scan[5, reverse] carry(c=c) xs(x=ys) {
          +   c1:f32[40] = scan[5, reverse] carry(c=c) xs(x1=ys1) {
          -     b:f32[40] = broadcast_in_dim 0.0
          -     s:f32[40] = select_n x b c
          +     b2:f32[3] = broadcast_in_dim 0.0
          +     s1:f32[40] = scatter[inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), mode=fill_or_drop] c x1 b2
          -     m:f32[40] = mul s 0.5
          +     m:f32[40] = mul s1 0.5
                yield carry(m)
              }
              return c1
            }
        """,
    )


def banned(at):
    return jnp.zeros(N, bool).at[at].set(True)


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param(lambda at: masked(at, mode="clip"), id="clamped"),
        pytest.param(lambda at: masked(at[:1].repeat(3)), id="one place"),
        pytest.param(lambda at: lax.ne(banned(at), jnp.ones(N, bool)), id="a mask is compared"),
        pytest.param(
            lambda at: lax.dynamic_update_slice(
                jnp.ones(N, bool), jnp.zeros(3, bool), (at[0],), allow_negative_indices=False
            ),
            id="a window",
        ),
        pytest.param(
            lambda at: lax.eq(
                jnp.full(N, 7, at.dtype).at[at].set(lax.clamp(0, at, 3)), jnp.full(N, 7, at.dtype)
            ),
            id="other numbers",
        ),
    ],
)
def test_masks(mask):
    """At places out of range, too."""
    places = jnp.array([[0, 5, 39], [1, 1, 40], [-1, 2, 3], [99, -50, 7], [2, 2, 2]], jnp.int32)
    alone(WRITE, cleared(mask), jnp.linspace(1.0, 2.0, N), places, fires=True)


@pytest.mark.parametrize("dimensions", [(1,), (0,), (2,)])
@pytest.mark.parametrize("stacked", [False, True])
def test_the_same_for_all_rows_of_a_batch(dimensions, stacked):
    """(3) The select has axes that the mask has not."""
    shape = tuple(N if axis in dimensions else 2 + axis for axis in range(2 + (dimensions == (2,))))

    def chosen(c, mask):
        mask = lax.broadcast_in_dim(mask, shape, dimensions)
        return lax.select_n(mask, jnp.zeros(shape), c) * 0.5

    def program(c, places):
        if not stacked:
            return loop(lambda c, at: chosen(c, masked(at)), c, places)
        rows = lax.scan(lambda t, at: (t + 1, masked(at)), 0, places)[1]
        return loop(chosen, c, rows)

    places = jnp.array([[0, 5, 39], [1, 1, 40], [-1, 2, 3], [99, -50, 7]], jnp.int32)
    c = jnp.linspace(1.0, 2.0, int(np.prod(shape))).reshape(shape)
    graph = alone(WRITE, program, c, places, fires=True)
    assert not any(op.name == "select_n" and op.result.shape == shape for op in graph.walk())


def test_a_mask_that_is_stretched():
    """(3) One element of it is for a whole axis."""

    def step(c, at):
        few = jnp.zeros((1, N), bool).at[0, at].set(True)
        mask = lax.broadcast_in_dim(few, (3, N), (0, 1))
        return lax.select_n(mask, c, jnp.zeros((3, N)))

    alone(WRITE, lambda c, p: loop(step, c, p), "f32[3,40]", PLACES, fires=False)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(
            lambda c, at: lax.select_n(banned(at), c, jnp.full(N, -jnp.inf)) + 1.0, id="banned"
        ),
        pytest.param(
            lambda c, at: lax.select_n(
                lax.ne(numbered(at), jnp.zeros(N, "uint32")), c, jnp.zeros(N)
            ),
            id="unequal",
        ),
    ],
)
def test_selects(step):
    places = jnp.array([[0, 5, 39], [1, 1, 40], [99, -50, 7]], jnp.int32)
    alone(WRITE, lambda c, p: loop(step, c, p), jnp.linspace(1.0, 2.0, N), places, fires=True)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(
            lambda c, at: lax.select_n(masked(at, start=0), jnp.zeros(N), c),
            id="(2) a number is what is around it",
        ),
        pytest.param(
            lambda c, at: lax.select_n(
                lax.eq(jnp.zeros(N, "int32").at[at].set(at), jnp.zeros(N, "int32")),
                jnp.zeros(N),
                c,
            ),
            id="(2) a number may be what is around it",
        ),
        pytest.param(
            lambda c, at: lax.select_n(
                lax.eq(jnp.zeros(N, "int32").at[at].set(at), jnp.zeros(N, "int32")),
                c,
                jnp.zeros(N),
            ),
            id="(2) a number may be what is around it, and clears",
        ),
        pytest.param(
            lambda c, at: lax.select_n(jnp.zeros(N, bool).at[at].set(c[at] > 1), c, jnp.zeros(N)),
            id="(2) truth values of the step",
        ),
        pytest.param(
            lambda c, at: lax.select_n(c > 1, c, jnp.zeros(N)), id="(1) nothing is written"
        ),
        pytest.param(
            lambda c, at: lax.select_n(lax.eq(at[0] * jnp.arange(N), 0), jnp.zeros(N), c),
            id="(1) nothing is written, numbers are compared",
        ),
        pytest.param(
            lambda c, at: lax.select_n(
                lax.eq(numbered(at), jnp.full(N, 9, "uint32")), jnp.zeros(N), c
            ),
            id="(2) the mask is false everywhere",
        ),
        pytest.param(
            lambda c, at: lax.select_n(
                lax.eq(numbered(at), jnp.full(N, 2, "uint32")), jnp.zeros(N), c
            ),
            id="(2) one of the numbers",
        ),
        pytest.param(
            lambda c, at: lax.select_n(lax.eq(numbered(at), jnp.uint32(c)), jnp.zeros(N), c),
            id="(1) compared with numbers of the step",
        ),
        pytest.param(
            lambda c, at: lax.select_n(
                lax.eq(jnp.zeros(N).at[at].set(1.0), jnp.zeros(N)), jnp.zeros(N), c
            ),
            id="(1) other numbers than integers",
        ),
        pytest.param(
            lambda c, at: lax.select_n(
                lax.eq(jnp.zeros(N, "int32").at[at].add(1), jnp.zeros(N, "int32")),
                jnp.zeros(N),
                c,
            ),
            id="(1) added to",
        ),
        pytest.param(
            lambda c, at: lax.select_n(
                lax.eq(jnp.ones(N, "int32").at[at].apply(lambda x: 2 * x - 1), 1), jnp.zeros(N), c
            ),
            id="(1) a function of what is there",
        ),
        pytest.param(
            lambda c, at: lax.select_n(lax.eq(jnp.int32(c).at[at].set(1), 0), jnp.zeros(N), c),
            id="(1) an array of the step",
        ),
        pytest.param(
            lambda c, at: lax.select_n(masked(at), jnp.sin(c), c),
            id="(3) an array is taken where something was written",
        ),
        pytest.param(
            lambda c, at: lax.select_n(masked(at), c, jnp.zeros(N)), id="(3) nothing is kept"
        ),
        pytest.param(
            lambda c, at: lax.select_n(masked(jnp.repeat(at, 12)), jnp.zeros(N), c),
            id="most of the array",
        ),
    ],
)
def test_refusals(step):
    places = jnp.array([[0, 5, 39], [1, 1, 40], [99, -50, 7]], jnp.int32)
    alone(WRITE, lambda c, p: loop(step, c, p), jnp.linspace(1.0, 2.0, N), places, fires=False)


def test_a_carried_mask():
    """(1) Nothing in the step writes it, as it is or compared."""
    step = lambda c, _: (lax.select_n(c[1], c[0], jnp.zeros(N)), c[1])
    count = lambda c, _: (lax.select_n(lax.eq(c[1], 0), c[0], jnp.zeros(N)), c[1])
    for each, kind in ((step, "bool[40]"), (count, "i32[40]")):
        program = lambda c, m, xs, each=each: loop(each, (c, m), xs)
        alone(WRITE, program, "f32[40]", kind, "f32[5]", fires=False)


@pytest.mark.parametrize("shown", [False, True])
def test_a_stack_that_is_read_otherwise(shown):
    """(4) The mask is a result, too; or a row chooses an array."""

    def program(c, places):
        rows = lax.scan(lambda t, at: (t + 1, masked(at)), 0, places)[1]
        other = (lambda c: jnp.zeros(N)) if shown else jnp.sin
        step = lambda c, row: (lax.select_n(row, other(c), c) * 0.5, None)
        return lax.scan(step, c, rows, reverse=True)[0], rows if shown else 0

    alone(WRITE, program, "f32[40]", PLACES, fires=False)


def test_outside_of_loops():
    """An array is made once in any case."""
    program = lambda c, at: lax.select_n(masked(at), jnp.zeros(N), c)
    alone(WRITE, program, "f32[40]", "i32[3]", fires=False)


def test_a_batch():
    """Each row has places of its own."""
    program = jax.vmap(cleared())
    alone(WRITE, program, "f32[4,40]", "i32[4,5,3]", fires=True)


def test_sweeps():
    """Loops in loops stack the masks again."""

    def program(c, places):
        rows = lambda t, p: lax.scan(lambda t, at: (t + 1, masked(at)), t, p)
        _, rows = lax.scan(rows, 0, places)
        step = lambda c, row: (lax.select_n(row, jnp.zeros(N), c) * 0.5, None)
        sweep = lambda c, rows: (lax.scan(step, c, rows, reverse=True)[0], None)
        return lax.scan(sweep, c, rows, reverse=True)[0]

    alone(WRITE, program, "f32[40]", "i32[2,5,3]", fires=True)


def pairs(params, memory, places):
    """Two nodes meet, and both remember."""

    def step(memory, at):
        new = jnp.tanh(memory[at] @ params + memory[at[::-1]])
        return memory.at[at].set(new), jnp.sum(new**2)

    return jnp.sum(lax.scan(step, memory, places)[1])


def ragged(params, memory, places):
    """Each row of a batch decodes at a place of its own."""
    rows = jnp.arange(2)

    def step(c, at):
        cache, x = c
        cache = cache.at[rows, at].set(x @ params)
        return (cache, jnp.tanh(cache[rows, at - 1] + x)), None

    cache = jnp.stack([memory, memory])
    return jnp.sum(lax.scan(step, (cache, memory[:2]), places)[0][1])


@pytest.mark.slow
@pytest.mark.parametrize("program", [pairs, ragged])
@pytest.mark.parametrize("batch", [False, True])
def test_gradients_in_little_memory(program, batch):
    """No mask of the whole memory is stored, also where a place is written twice."""
    rng = np.random.default_rng(0)
    params = jnp.asarray(rng.normal(size=(4, 4)), jnp.float32)
    memory = jnp.asarray(rng.normal(size=(300, 4)), jnp.float32)
    places = jnp.asarray(rng.integers(0, 300, (80, 2)), jnp.int32).at[7].set(5)
    over = (lambda f: jax.vmap(f, (None, None, 0))) if batch else lambda f: f
    places = jnp.stack([places, places[::-1]]) if batch else places
    plain = over(jax.grad(program, (0, 1)))
    wanted, usual = measured(plain, params, memory, places)
    for gradient in (optimize(plain), over(jax.grad(optimize(program), (0, 1)))):
        given, used = measured(gradient, params, memory, places)
        assert_close(wanted, given)
        assert used < usual / 2


def kept(f):
    """Its gradient, where a policy says what is stored, so that JAX splits the forward mode."""
    saved = jax.checkpoint(f, policy=jax.checkpoint_policies.everything_saveable)
    return jax.grad(lambda c, places: jnp.sum(jnp.sin(saved(c, places))))


def transposed(f):
    return lambda c, places: jax.linear_transpose(lambda c: f(c, places), c)(c)


def clears(c, places):
    return loop(lambda c, at: (c * 2).at[at].set(0.0) + c, c, places)


@pytest.mark.parametrize(
    ("how", "program"),
    [(kept, clears), (kept, cleared()), (transposed, cleared())],
)
def test_what_is_transposed(how, program):
    """JAX cannot transpose a write to places of which some may meet."""
    c = jnp.linspace(0.1, 2.0, N)
    places = jnp.array([[0, 5, 39], [1, 1, 40], [-1, 2, 3], [99, -50, 7], [2, 2, 2]], jnp.int32)
    ours, plain = jax.jit(how(optimize(partial(program)))), jax.jit(how(program))
    assert_close(ours(c, places), plain(c, places))
