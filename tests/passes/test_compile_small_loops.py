"""Loops of small ops are compiled as one function, and only if XLA can."""

import functools
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpr_opt
from bench.limits import is_larger, temporary_bytes
from jaxpr_opt.bridge import compat_devices
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.ir.text import to_text
from jaxpr_opt.passes.codegen.compile_small_loops import CompileSmallLoops
from jaxpr_opt.testing import assert_close, assert_same_bits, check_refuses, check_rewrite
from tests.loops import alone

PASS = CompileSmallLoops()
ONE_BY_ONE = CostModel().but(makes_functions=True)


lowers = pytest.mark.skipif(
    not compat_devices.SAYS_WHAT_IS_MAIN, reason="since JAX 0.11 it is not known what main is"
)


@pytest.fixture(autouse=True)
def ops_are_started_one_by_one():
    """As on JAX 0.10."""
    with using(ONE_BY_ONE):
        yield


def compiled(program, *args):
    """How XLA compiles a program without other passes."""
    alone = jaxpr_opt.optimize(partial(program), passes=[PASS])
    return jax.jit(alone).lower(*args).compile()


def is_one_function(program, *args):
    """Whether a loop of a program is compiled as one function, because we ask for it."""
    lowered = jax.jit(jaxpr_opt.optimize(partial(program), passes=[PASS])).lower(*args)
    return "xla_cpu_small_call" in lowered.as_text()


def decays(state, row):
    """A step of a few small ops."""
    state = jnp.sin(state * row) + jnp.sum(state)
    return state, state[0]


def test_a_loop_becomes_one_function():
    """It computes the same."""

    def program(x, w):
        return lax.scan(lambda c, i: (jnp.sin(c * w), jnp.sum(c) * i), x, jnp.arange(4.0))

    check_rewrite(
        PASS,
        program,
        "f32[200]",
        "f32[200]",
        grad=False,
        diff="""
          fn (x:f32[200], w:f32[200]) {
            i:f32[4] = iota
        -   c:f32[200], ys:f32[4] = scan[4] carry(c=x) xs(x=i) {
        +   c:f32[200], ys:f32[4] = scan[4, one_function] carry(c=x) xs(x=i) {
              m:f32[200] = mul c w
              s:f32[200] = sin m
              r:f32[] = reduce_sum[axes=(0,)] c
              m1:f32[] = mul r x
              yield carry(s) ys(m1)
            }
            return c, ys
          }
        """,
    )


@lowers
def test_steps_that_write_in_place():
    """Arrays may be large, if windows are read and written."""

    def program(x, w):
        def step(c, i):
            c = c.at[i].set(c[i - 1] * w[i % 3]).at[i % 7].add(1.0)
            return lax.dynamic_update_slice(c, c[:2] * 0.5, (i,)), c[0]

        return lax.scan(step, x, jnp.arange(60))

    x, w = jnp.sin(jnp.arange(40000.0)).reshape(2, 20000)
    alone(PASS, program, x, w, fires=True)
    assert is_one_function(program, x, w)
    assert_close(compiled(program, x, w)(x, w), jax.jit(program)(x, w))


def sorts(c):
    return jnp.sort(c)


def multiplies(c):
    return (jnp.outer(c, c) @ jnp.ones((50, 50)))[0]


def applies(c):
    return c.at[jnp.arange(5)].apply(jnp.sin)


def turns(c):
    return jnp.real((c + 1j).at[jnp.array([1, 2])].multiply(1j))


def numbers_few(c):
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    return lax.scatter_add(c, jnp.arange(5, dtype=jnp.int8)[:, None], c[:5], numbers)


def spreads(c):
    return c + jnp.sum(jnp.broadcast_to(c, (100, 50)))


def transforms(c):
    return jnp.fft.irfft(jnp.fft.rfft(c), 50)


def asks_the_host(c):
    return c * jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), "float32"), c[0])


def factors(c):
    return jnp.linalg.cholesky(jnp.eye(20) + jnp.outer(c[:20], c[:20]))[0, 0] + c


def chooses_rows(c):
    return lax.top_k(c, 3)[0][0] + c


def draws(c):
    key = jax.random.wrap_key_data(lax.bitcast_convert_type(c[:4], jnp.uint32), impl="rbg")
    return c + jax.random.uniform(key, c.shape)


def rounds(c):
    return c.astype(jnp.float8_e4m3fn).astype(jnp.float32) * 0.5


@pytest.mark.parametrize(
    ("op", "name"),
    [
        (sorts, "sort"),
        (multiplies, "dot_general"),
        (applies, "scatter"),
        (turns, "scatter-mul"),
        (numbers_few, "scatter-add"),
        (spreads, "broadcast_in_dim"),
        (transforms, "fft"),
        (asks_the_host, "pure_callback"),
        (factors, "cholesky"),
        (chooses_rows, "top_k"),
        (draws, "random_wrap"),
        (rounds, "convert_element_type"),
    ],
)
def test_what_xla_has_no_code_for(op, name):
    """(1) Each would fail to compile, or is not known to work."""

    def program(x):
        def step(c, t):
            c = op(jnp.sin(c) + jnp.sum(c))
            return jnp.sum(c) * jnp.cos(c) + t, c[0]

        return lax.scan(step, x, jnp.arange(3.0))

    with using(ONE_BY_ONE.but(kernel=1.0, kernel_in_a_row=1.0, multiplied_inside=0.0)):
        check_refuses(PASS, program, "f32[50]", because=f"XLA cannot compile {name} ")
        x = jnp.linspace(0.0, 1.0, 50)
        assert not is_one_function(program, x)


@pytest.mark.parametrize("donated", [(), (0,), (1,), (0, 1)])
def test_arrays_of_no_elements(donated):
    """(1) XLA would end the process where one is donated."""

    def program(x, none):
        step = lambda c, t: ((jnp.sin(c[0]) + c[0].sum(), c[1] * t), None)
        return lax.scan(step, (x, none), jnp.arange(5.0))[0]

    check_refuses(PASS, program, "f32[200]", "f32[2,0,3]", because="XLA cannot compile scan ")
    x, none = jnp.linspace(0.0, 1.0, 200), jnp.zeros((2, 0, 3))
    wanted = jax.jit(program)(x, none)
    ours = jax.jit(jaxpr_opt.optimize(program, passes=[PASS]), donate_argnums=donated)
    assert_close(ours(x, none), wanted)


def test_windows_of_a_batch_are_written_one_by_one():
    """(1) In their order, as XLA does."""

    def program(x, at):
        def step(c, i):
            new = jnp.sin(jnp.sum(c))
            return c.at[i].set(new, mode="promise_in_bounds", wrap_negative_indices=False), None

        return lax.scan(step, x, at)[0]

    promised = "indices_are_sorted, unique_indices, mode=promise_in_bounds"
    check_rewrite(
        PASS,
        jax.vmap(program, (0, 1)),
        "f32[3,400]",
        "i32[5,3]",
        grad=False,
        simplify=True,
        diff="""
          fn (x:f32[3,400], at:i32[5,3]) {
        -   c:f32[3,400] = scan[5] carry(c=x) xs(x=at) {
        +   c:f32[3,400] = scan[5, one_function] carry(c=x) xs(x=at) {
              r:f32[3] = reduce_sum[axes=(1,)] c
              s:f32[3] = sin r
              b:i32[3,1] = broadcast_in_dim[dims=(0,)] x
        -     s1:f32[3,400] = scatter[inserted_window_dims=(1,), OF_THE_BATCH] c b s
        +     c1:i32[], c2:f32[3,400] = scan[3] carry(c1=0, c2=c) {
        +       a:i32[] = add c1 1
        +       c3:i32[] = convert_element_type c1
        +       r1:i32[] = rem c3 3
        +       r2:i32[1] = reshape r1
        +       d:i32[1,1] = dynamic_slice b c3 0
        +       s2:i32[1] = squeeze d
        +       c4:i32[2] = concatenate[dimension=0] s2 r2
        +       d1:f32[1] = dynamic_slice s c3
        +       s3:f32[] = squeeze d1
        +       s4:f32[3,400] = scatter[inserted_window_dims=(0, 1), AS_IT_WAS] c2 c4 s3
        +       yield carry(a, s4)
        +     }
        -     yield carry(s1)
        +     yield carry(c2)
            }
            return c
          }
        """.replace(
            "OF_THE_BATCH",
            "scatter_dims_to_operand_dims=(1,), operand_batching_dims=(0,), "
            f"scatter_indices_batching_dims=(0,), {promised}",
        ).replace("AS_IT_WAS", f"scatter_dims_to_operand_dims=(1, 0), {promised}"),
    )


def rows(c, at, x):
    return jax.vmap(lambda c, i, x: c.at[i].set(x[:4]))(c, at[:3], x[:3])


def columns(c, at, x):
    return jax.vmap(lambda c, i, x: c.at[i].add(x[0]), (1, 0, 0), 1)(c, at[:4], x[:4])


def twice(c, at, x):
    return c.at[at].set(x[:, :4], mode="promise_in_bounds")


def numbers(c, at, x):
    return c.at[0, at].add(x[:, 0]).at[at, at % 3].multiply(x[:, 1], mode="clip")


def least(c, at, x):
    return c.at[at[:, None], at % 4].min(x[:, :5].T[:5, :5] + jnp.zeros((5, 5), x.dtype))


def most(c, at, x):
    return c.at[at].max(x[:, :4], mode="drop").at[at].subtract(x[:, 1:])


def blocks(c, at, x):
    return jax.vmap(lambda c, i, x: lax.dynamic_update_slice(c, x[:2, None], (i, i)))(
        jnp.stack([c, c + c]), at[:2], x[:2]
    )[1]


@lowers
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "int8"])
@pytest.mark.parametrize("write", [rows, columns, twice, numbers, least, most, blocks])
def test_scatters_of_several_windows(write, dtype):
    """(1) At places that are negative, out of range, or there twice."""
    shape = (3, 3, 4) if write is rows else (3, 4)

    def program(c, at, x):
        def step(c, row):
            i, y = row
            return write(c, i, y.astype(dtype)), c

        return lax.scan(step, c, (at, x))

    rng = np.random.default_rng(0)
    c = jnp.asarray(rng.normal(size=shape) * 3, dtype)
    at = jnp.asarray(rng.integers(-5, 5, (20, 5)), jnp.int32)
    at = at % 3 if write is twice else at
    x = jnp.asarray(rng.normal(size=(20, 5, 5)), jnp.float32)
    with using(ONE_BY_ONE.but(kernel=1.0, kernel_in_a_row=1.0, few_bytes=0)):
        assert is_one_function(program, c, at, x)
        ours, wanted = compiled(program, c, at, x)(c, at, x), jax.jit(program)(c, at, x)
    assert_same_bits(ours, wanted)


def test_large_arrays_of_bfloat16():
    """Cost: XLA would convert all of the array for each window."""

    def program(c, at, x):
        return lax.scan(lambda c, ix: (c.at[ix[0]].add(ix[1]), None), c, (at, x))[0]

    types = "i32[20,4]", "bf16[20,4]"
    with using(ONE_BY_ONE):
        check_refuses(PASS, program, "bf16[4000]", *types, because="convert an array of bfloat16")
        alone(PASS, program, "bf16[40]", *types, fires=True)
        alone(PASS, program, "f32[4000]", types[0], "f32[20,4]", fires=True)


@pytest.mark.parametrize(
    ("size", "dtype", "worth"),
    [(128, "bf16", False), (1024, "bf16", False), (128, "f32", True), (1024, "f32", True)],
)
def test_writes_to_arrays_of_bfloat16(size, dtype, worth):
    """Cost: XLA converts all numbers one by one, for one window."""

    def program(c, at):
        return lax.scan(lambda c, i: (c.at[i].add(0.5).at[i // 2].max(0.25), None), c, at)[0]

    with using(ONE_BY_ONE):
        alone(PASS, program, f"{dtype}[{size}]", "i32[20]", fires=worth)


@lowers
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("width", [None, 3])
def test_sums_of_scatters_of_one_window(width, dtype):
    """(1) XLA would join two into one of two windows, for which it has no code."""
    shape = (40,) if width is None else (40, width)

    def program(c, at, x):
        def step(c, row):
            i, y = row
            zeros = jnp.zeros_like(c)
            first, last, rest = (zeros.at[i[n]].add(y[n]) for n in (slice(1), slice(1, 2), ...))
            return c + ((first + last) + rest), jnp.sum(y)

        return lax.scan(step, c, (at, x))

    rng = np.random.default_rng(0)
    c = jnp.asarray(rng.normal(size=shape) * 3, dtype)
    at = jnp.asarray(rng.integers(-45, 45, (20, 5)), jnp.int32)
    x = jnp.asarray(rng.normal(size=(20, 5, *shape[1:])) * 4, dtype)
    with using(ONE_BY_ONE.but(kernel=1.0, kernel_in_a_row=1.0, few_bytes=0)):
        assert is_one_function(program, c, at, x)
        ours, wanted = compiled(program, c, at, x)(c, at, x), jax.jit(program)(c, at, x)
    assert_close(ours, wanted)


def of_few_ops(c, x):
    return jnp.sin(c * 0.9 + x), c


def of_a_loop(c, x):
    return lax.scan(lambda z, _: (jnp.sin(z) * x, z), c, None, length=6)


def of_a_product(c, x):
    return jnp.sin(jnp.outer(c, x) @ x), c


def of_a_hash(c, x):
    key = jax.random.wrap_key_data(lax.bitcast_convert_type(c, jnp.uint32))
    return lax.bitcast_convert_type(jax.random.key_data(jax.random.fold_in(key, 1)), c.dtype), x


def of_draws(c, x):
    key = jax.random.wrap_key_data(lax.bitcast_convert_type(c, jnp.uint32))
    return c + jax.random.uniform(jax.random.fold_in(key, 1), c.shape), c


@lowers
@pytest.mark.parametrize(
    ("step", "size", "fires"),
    [
        (of_few_ops, 8, False),
        (of_few_ops, 80, True),
        (of_a_loop, 8, True),
        (of_a_product, 6, True),
        (of_a_hash, 2, False),
        (of_draws, 2, True),
    ],
)
def test_loops_of_few_bytes(step, size, fires):
    """XLA makes a function of the first by itself: it counts more where products, or loops, are,
    and random numbers are drawn in loops.
    """
    given = jnp.ones(size), jnp.ones((20, size))
    program = lambda c, xs: lax.scan(step, c, xs)
    assert "call(" in jax.jit(program).lower(*given).compile().as_text() or fires
    assert is_one_function(program, *given) == fires


@lowers
def test_what_is_transposed_for_two_loops():
    """The second reads what the first hands back: XLA would transpose it for each of them."""

    def loss(xs):
        def step(c, x):
            d = x @ c * 0.1
            return d / jnp.sqrt(d @ d + 1.0), d

        return jnp.sum(lax.scan(step, jnp.ones(10), xs)[1] ** 2)

    program, given = jax.vmap(jax.grad(loss)), jnp.ones((8, 20, 10, 10))
    ours = jaxpr_opt.optimize(program)
    assert is_one_function(program, given)
    assert not is_larger(temporary_bytes(ours, given), temporary_bytes(program, given))
    assert_close(ours(given), program(given))


@lowers
def test_products_of_vectors_and_of_tiny_matrices():
    """(1) XLA leaves them to no library."""

    def program(a, b, v):
        def step(c, t):
            a, v = c
            return (jnp.sin(a @ b + a) * 0.5, jnp.sin(v @ jnp.outer(v, v)) * a[0, 0]), v @ v + t

        return lax.scan(step, (a, v), jnp.arange(5.0))

    a, b, v = jnp.eye(7) * 0.5, jnp.ones((7, 7)) * 0.1, jnp.linspace(0.0, 1.0, 40)
    assert is_one_function(program, a, b, v)
    assert_close(compiled(program, a, b, v)(a, b, v), jax.jit(program)(a, b, v))


@lowers
def test_what_is_handed_back():
    """(3) All that the function reads, but for what each step reads and overwrites."""

    def program(x, n, w):
        def step(c, t):
            x, n, _ = c
            return (jnp.sin(x * w) + t, n + 1, jnp.cos(x)), n

        return lax.scan(step, (x, n, x * 2), jnp.arange(4.0))

    optimized = jaxpr_opt.optimize(program, passes=[PASS])
    text = jax.jit(optimized).lower(jnp.ones(200), jnp.int32(0), jnp.ones(200)).as_text()
    (call,) = re.findall(r"call @small_loop\((.*?)\).* -> \((.*)\)\n", text)
    results = ["200xf32", "i32", "200xf32", "4xi32", "4xf32", "200xf32", "200xf32"]
    assert re.findall(r"tensor<(.*?)>", call[1])[:4] == results[:4]
    assert sorted(re.findall(r"tensor<(.*?)>", call[1])) == sorted(results)


@pytest.mark.parametrize("steps", [{"length": 1}, {"length": 6, "unroll": 6}])
def test_no_loop_is_left(steps):
    """(3) XLA may find that what the first step reads is not read."""

    def program(x, w):
        return lax.scan(lambda c, _: (jnp.sin(w) * jnp.sum(w), c[0]), x, None, **steps)

    check_refuses(PASS, program, "f32[200]", "f32[200]", because="XLA may leave no loop")


def one(n):
    return n * 0 + 1


def counts_to(end, x, n):
    """To what is carried, computed in the predicate, or a constant, `end` of an argument."""
    same, step, known = end(n), lambda i, x: jnp.where(i == 0, 3.0, jnp.sin(x)), end(np.int32(1))

    def count(asks, *begin):
        return lax.while_loop(asks, lambda c: (c[0] + 1, step(*c[:2]), *c[2:]), begin)[1]

    return (
        count(lambda c: c[0] < c[2], 0, x, same),
        count(lambda c: c[0] < end(c[2]), 0, x, n),
        count(lambda c: c[0] < known, 0, x),
        count(lambda c: c[0] < c[2], same * 0, x, lax.sub(np.int32(3), np.int32(2))),
    )


@lowers
@pytest.mark.parametrize("end", [one, lambda n: n * 0, lambda n: n])
def test_xla_does_not_know_that_a_loop_takes_one_step(end):
    """(3) The first would not read what is carried."""
    program = partial(counts_to, end)
    x, n = jnp.linspace(0.0, 1.0, 200), np.int32(1)
    assert is_one_function(program, x, n)
    assert_close(compiled(program, x, n)(x, n), jax.jit(program)(x, n))


@pytest.mark.parametrize(("size", "fires"), [(200, False), (1, True)])
def test_many_arrays(size, fires):
    """(6) XLA would compile sixty arrays for minutes; numbers take no longer than in plain JAX."""

    def program(x):
        def step(c, _):
            return [jnp.sin(a + b) for a, b in zip(c, c[1:] + c[:1], strict=True)], None

        return lax.scan(step, [x * i for i in range(60)], None, length=4)[0]

    if fires:
        with using(ONE_BY_ONE.but(few_bytes=0)):
            alone(PASS, program, f"f32[{size}]", fires=True)
    else:
        check_refuses(PASS, program, f"f32[{size}]", because="long to compile")


def test_many_reductions():
    """(6) The same."""

    def program(c):
        def step(c, _):
            for each in range(40):
                c = jnp.sin(c + each * c.sum())
            return c, None

        return lax.scan(step, c, None, length=4)[0]

    check_refuses(PASS, program, "f32[200]", because="long to compile")


def test_only_the_outermost_loop():
    """(2) A function is not inside of another; where the outer loop cannot be one, the inner is."""

    def nested(through, x):
        def row(c, t):
            return lax.fori_loop(0, 5, lambda _, c: decays(c, t)[0], through(c)), c[0]

        return lax.scan(row, x, jnp.arange(3.0))

    text = to_text(alone(PASS, partial(nested, lambda c: c), "f32[200]", fires=True))
    assert text.count("one_function") == 1
    assert "scan[3, one_function]" in text
    text = to_text(alone(PASS, partial(nested, jnp.sort), "f32[200]", fires=True))
    assert text.count("one_function") == 1
    assert text.index("one_function") > text.index("sort")


def test_what_is_still_differentiated():
    """(3) A gradient is that of the loop, and only then compiled as one function."""

    def program(x, w):
        return jnp.sum(lax.scan(decays, x, w)[0])

    x, w = jnp.linspace(0.0, 1.0, 200), jnp.ones((4, 200)) * 0.1
    ours = jaxpr_opt.optimize(program, passes=[PASS])
    assert "small_loop" not in str(jax.make_jaxpr(jax.grad(ours))(x, w))
    wanted = jax.jit(jax.grad(program))(x, w)
    assert_close(jax.jit(jax.grad(ours))(x, w), wanted)
    assert_close(jax.jit(jaxpr_opt.optimize(jax.grad(program), passes=[PASS]))(x, w), wanted)
    assert_close(jax.jit(jax.vmap(ours))(x[None], w[None])[0], jax.jit(program)(x, w))
    assert_close(
        jax.jit(lambda x: jax.jvp(lambda x: ours(x, w), (x,), (x,)))(x),
        jax.jit(lambda x: jax.jvp(lambda x: program(x, w), (x,), (x,)))(x),
    )


TABLE = np.linspace(0.0, 0.1, 50 * 300, dtype=np.float32).reshape(50, 300)
"""Numbers that XLA would end the process for, if they were an operand of the call."""


def reads_a_table(x, table):
    return lax.scan(decays, x, table)[0]


def chosen(x):
    return reads_a_table(x, jnp.where(jnp.array(True), TABLE, x))


def cut(x):
    return reads_a_table(x, jnp.concatenate([TABLE, TABLE * x])[:50])


def called(x):
    return reads_a_table(*jax.jit(lambda x: (x * 2, jnp.asarray(TABLE)))(x))


def handed_on(x):
    return reads_a_table(*jax.jit(lambda x, t: (x * 2, t))(x, TABLE))


def branched(x):
    return reads_a_table(x, lax.cond(x[0] > 0, lambda: TABLE, lambda: TABLE * 0.5))


def looped(x):
    return lax.scan(lambda x, t: (reads_a_table(x, t), None), x, TABLE[None])[0]


def written_into(x):
    return reads_a_table(x, jnp.zeros((50, 300)).at[0].set(0.25))


def counted(x):
    return reads_a_table(x, jnp.zeros((50, 300)).at[:, 0].set(jnp.arange(50.0)))


def chosen_of_one(x):
    return reads_a_table(x, jnp.asarray(TABLE[None])[x[0].astype(int)])


def cut_whole(x):
    return reads_a_table(x, lax.dynamic_slice(TABLE, (x[0].astype(int), 0), TABLE.shape))


def multiplied_by_zero(x):
    return reads_a_table(x, TABLE + x[0].astype(int) * 0)


def inside(x):
    return jax.jit(reads_a_table)(x, TABLE)


PLACES = np.arange(1500, dtype=np.int32).reshape(500, 3) % 300


def captured(x):
    def step(c, at):
        return jnp.sin(c).at[at[0]].add(c[at[1]]) + c.sum() * 0.01, jnp.where(at[2] > 3, c[at], 0)

    return lax.scan(step, x, PLACES)


def captured_inside(x):
    step = lambda i, c: jnp.sin(c + jnp.asarray(PLACES)[i, 0]) + c.sum() * 0.01
    return lax.fori_loop(0, 9, lambda _, c: lax.cond(c[0] > 0, step, lambda _, c: -c, 5, c), x)


@pytest.mark.parametrize(
    "program",
    [
        chosen,
        cut,
        called,
        written_into,
        counted,
        handed_on,
        branched,
        looped,
        chosen_of_one,
        cut_whole,
        multiplied_by_zero,
        inside,
        captured,
        captured_inside,
        partial(reads_a_table, table=TABLE),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_operands_that_are_constants(program, whole, monkeypatch):
    """XLA does not find that they are."""
    x = jnp.linspace(0.0, 1.0, 300)
    wanted = jax.jit(program)(x)
    optimized = jaxpr_opt.optimize(reads_a_table, passes=[PASS])
    if whole:
        ours = jaxpr_opt.optimize(partial(program), passes=[PASS])
    elif isinstance(program, partial):
        ours = partial(optimized, table=TABLE)
    else:
        monkeypatch.setitem(program.__globals__, "reads_a_table", optimized)
        ours = partial(program)
    assert_close(jax.jit(ours)(x), wanted)


@lowers
@pytest.mark.parametrize("program", [captured, captured_inside])
def test_what_is_captured_is_handed_in(program):
    """(2) XLA finds no constant."""
    text = jax.jit(jaxpr_opt.optimize(program, passes=[PASS])).lower(jnp.ones(300)).as_text()
    (called,) = re.findall(r"call @small_loop\(.*?: \((.*?)\) ->", text)
    assert "tensor<500x3xi32>" in called


def test_an_op_makes_a_large_constant():
    """(2) XLA would find it inside of the function."""

    def program(x):
        step = lambda c, t: (c * jnp.pad(jnp.arange(1000.0) ** 2, (0, 200))[t] + c.sum(), None)
        return lax.scan(step, x, jnp.arange(9))[0]

    check_refuses(PASS, program, "f32[200]", because="a large constant")


@lowers
def test_an_operand_that_is_made_in_many_ways():
    """What an operand is made of is looked at once, however many ways lead there."""

    def program(x):
        for _ in range(60):
            x = jnp.outer(x, x)[0] * 0.5 + x
        return lax.scan(decays, x, jnp.broadcast_to(x, (5, *x.shape)))[0]

    assert is_one_function(program, jnp.linspace(0.0, 0.1, 300))


@lowers
def test_devices_of_another_kind():
    """What is exported for several platforms is as it was."""
    x, w = jnp.linspace(0.0, 1.0, 200), jnp.ones((4, 200))
    ours = jax.jit(jaxpr_opt.optimize(lambda x, w: lax.scan(decays, x, w), passes=[PASS]))
    for platforms, expected in ((["cpu"], True), (["cpu", "tpu"], False), (["cuda"], False)):
        text = jax.export.export(ours, platforms=platforms)(x, w).mlir_module()
        assert ("xla_cpu_small_call" in text) == expected, platforms


@pytest.mark.parametrize(
    ("size", "figures", "worth"),
    [
        (200, {}, True),
        (200, {"makes_functions": False}, False),
        (4000, {}, False),
        (8, {}, False),
    ],
)
def test_what_is_worth_it(size, figures, worth):
    """Small arrays, of which XLA would not make one function by itself."""
    with using(ONE_BY_ONE.but(**figures)):
        alone(
            PASS,
            lambda x: lax.fori_loop(0, 9, lambda _, c: jnp.sin(c) + c[0], x),
            f"f32[{size}]",
            fires=worth,
        )


@pytest.mark.parametrize(
    ("function", "arrays", "dtype", "worth"),
    [
        (jnp.exp, 1, "f32", True),
        (jnp.exp, 1, "bf16", False),
        (jnp.tanh, 1, "f32", False),
        (jnp.tanh, 12, "f32", True),
        (lambda c: c / jnp.sqrt(jnp.sum(c)), 1, "f32", False),
        (lambda c: c + jnp.argmax(c), 1, "f32", False),
    ],
)
def test_numbers_that_are_computed_one_by_one(function, arrays, dtype, worth):
    """XLA computes several at once elsewhere; but starting many ops takes longer than that."""

    def program(*given):
        step = lambda _, c: [function(x) * 0.5 for x in c]
        return lax.fori_loop(0, 9, step, list(given))

    alone(PASS, program, *[f"{dtype}[{100 + i}]" for i in range(arrays)], fires=worth)


@pytest.mark.parametrize(
    ("read", "worth"),
    {
        "a row": (lambda x, i: x[i], True),
        "two rows": (lambda x, i: x[i] + x[i + 1], False),
        "the mean of some": (
            lambda x, i: jnp.mean(lax.dynamic_slice(x, (i, 0), (4, 32)), 0),
            False,
        ),
        "of any": (lambda x, i: jnp.mean(x[(i + jnp.arange(5) * 7) % 99], 0), False),
    }.values(),
)
def test_what_is_read_for_such_numbers(read, worth):
    """It is read one by one, too; not so for `exp`."""

    def program(x, w, c, at, function):
        step = lambda c, i: ((d := function(w @ c + read(x, i))), jnp.sum(d * d))
        return lax.scan(step, c, at)

    types = "f32[99,32]", "f32[32,32]", "f32[32]", "i32[9]"
    with using(ONE_BY_ONE.but(multiplied_inside=0.0)):
        for function, fires in ((jnp.tanh, worth), (jnp.exp, True)):
            alone(PASS, functools.partial(program, function=function), *types, fires=fires)


@pytest.mark.parametrize(
    ("rows", "length", "divisions", "worth"),
    [(16, 32, 0, False), (16, 64, 2, True), (32, 64, 2, True), (8, 256, 0, False)],
)
def test_products_with_vectors(rows, length, divisions, worth):
    """They take longer there: where few other ops are started, that is more than it spares."""

    def program(x, w, xs):
        def step(c, row):
            c = jnp.tanh(w @ jnp.concatenate([c, row]))
            for _ in range(divisions):
                c = c / (1 + jnp.max(jnp.abs(c)))
            return c, c

        return lax.scan(step, x, xs)

    types = f"f32[{rows}]", f"f32[{rows},{length}]", f"f32[9,{length - rows}]"
    alone(PASS, program, *types, fires=worth)


def writes_half(x, at):
    return lax.scan(lambda c, i: (c.at[i].set(c[i - 1] * 0.5), None), x, at)[0]


def sums_up(x, at):
    return lax.scan(lambda c, i: (c.at[i].set(jnp.sum(c)), None), x, at)[0]


@pytest.mark.parametrize(("batch", "worth"), [(3, True), (200, False)])
def test_windows_that_are_worth_it(batch, worth):
    """XLA writes many windows faster than a loop inside of a function."""
    alone(PASS, jax.vmap(writes_half), f"f32[{batch},400]", f"i32[{batch},9]", fires=worth)


@pytest.mark.parametrize(("count", "worth"), [(5, True), (300, False)])
def test_windows_that_are_read_at_rows_and_columns(count, worth):
    """XLA puts their places together once, and in one function again and again."""

    def program(x, at, w):
        def step(c, i):
            return jnp.sin(c * w[i, i - 1]), None

        return lax.scan(step, x, at)[0]

    alone(PASS, program, f"f32[{count}]", f"i32[9,{count}]", "f32[20,20]", fires=worth)


@pytest.mark.parametrize(
    ("rows", "count", "worth"), [(1, 300, True), (3, 300, False), (3, 5, True)]
)
def test_windows_that_are_read_in_rows_of_a_batch(rows, count, worth):
    """A binary search in each row of a batch: 512 places took 1.7 times as long in one function."""
    search = jax.vmap(jnp.searchsorted) if rows > 1 else jnp.searchsorted
    batch = f"{rows}," * (rows > 1)
    alone(PASS, search, f"f32[{batch}400]", f"f32[{batch}{count}]", fires=worth)


@pytest.mark.parametrize(
    ("count", "numbers", "worth"), [(1, 1000, True), (2, 1000, False), (2, 40, True)]
)
def test_sums_of_scatters(count, numbers, worth):
    """XLA joins them where it calls ops one by one; in one function each has an array to fill."""

    def program(c, us, at):
        def step(c, given):
            u, i = given
            first, *others = (jnp.zeros_like(c).at[i].add(u * n) for n in range(count))
            return c + sum(others, first), jnp.sum(u)

        return lax.scan(step, c, (us, at))

    alone(PASS, program, f"f32[{numbers}]", "f32[9,4]", "i32[9,4]", fires=worth)


@pytest.mark.parametrize("makes", [True, False])
@pytest.mark.parametrize(
    ("windows", "width", "sums", "numbers", "worth"),
    [
        (8, 1, 1, 40, (True, True)),
        (80, 1, 1, 400, (False, False)),
        (8, 64, 1, 40, (False, False)),
        (80, 1, 3, 400, (True, False)),
        (80, 1, 3, 60000, (True, True)),
    ],
)
def test_windows_that_few_ops_write(windows, width, sums, numbers, worth, makes):
    """Few ops are started in a row, and since JAX 0.12 all of a loop over few bytes: 12 ns each.
    80 windows, written one by one, took 1.3 times as long; 0.6 where ops wait for a thread.
    """

    def program(table, v, at, x):
        def step(c, row):
            table, v = c
            for _ in range(sums):
                v = jnp.tanh(v - jnp.sum(v * v))
            return (table.at[row[0]].add(row[1] * v[0]), v), None

        return lax.scan(step, (table, v), (at, x))[0]

    rows = f"{numbers},{width}", f"4,{windows},{width}"
    args = f"f32[{rows[0]}]", "f32[16]", f"i32[4,{windows}]", f"f32[{rows[1]}]"
    with using(CostModel().but(makes_functions=makes, starts_each=makes)):
        alone(PASS, program, *args, fires=worth[0 if makes else 1])


BY_ITSELF = CostModel().but(
    makes_functions=False, starts_each=False, kernel=1e-3, kernel_in_a_row=1e-3
)


@pytest.mark.parametrize(
    ("program", "touches", "fires"),
    [
        (writes_half, 400, True),
        (writes_half, 40000, True),
        (sums_up, 400, True),
        (sums_up, 40000, False),
    ],
)
def test_where_xla_makes_functions_by_itself(program, touches, fires):
    """Since JAX 0.12, of loops that touch few bytes: windows are written one by one, no more."""
    with using(BY_ITSELF):
        graph = alone(PASS, jax.vmap(program), f"f32[3,{touches}]", "i32[3,9]", fires=fires)
    text = to_text(graph)
    assert "one_function" not in text
    assert ("scan[3]" in text) == fires


def reads_a_square(x, at):
    squares = lambda i: jnp.pad(jnp.arange(1000.0) ** 2, (0, 200))[i]
    return lax.scan(lambda c, i: (c.at[i].set(c[i - 1] * squares(i)), None), x, at)[0]


@pytest.mark.parametrize(
    ("program", "steps", "because"),
    [
        (reads_a_square, 9, "XLA cannot compile a large constant in one function with a loop"),
        (writes_half, 1, "XLA may leave no loop, as it takes one step, or runs unrolled"),
    ],
)
def test_what_xla_leaves_out_of_its_own_functions(program, steps, because):
    """(2, 3) What a function of ours must not have, XLA does not put into its own."""
    with using(BY_ITSELF):
        alone(PASS, jax.vmap(program), "f32[3,400]", f"i32[3,{steps}]", fires=True)
    with using(ONE_BY_ONE.but(kernel=1.0, kernel_in_a_row=1.0)):
        check_refuses(PASS, jax.vmap(program), "f32[3,400]", f"i32[3,{steps}]", because=because)


def test_where_xla_makes_no_function():
    """(1) Then windows are written at once."""

    def program(x, at):
        return lax.scan(lambda c, i: (c.at[i].set(jnp.sort(c)[i]), None), x, at)[0]

    with using(BY_ITSELF):
        check_refuses(
            PASS,
            jax.vmap(program),
            "f32[3,40]",
            "i32[3,9]",
            because="XLA cannot compile sort in one function",
        )
