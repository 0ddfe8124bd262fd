"""What a branch writes is written after it, if that is all the branch does to the array."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.devices import GPU
from jaxpr_opt.cost.model import CostModel, using
from jaxpr_opt.engine.pipeline import Pipeline
from jaxpr_opt.insight.journal import Journal
from jaxpr_opt.ir.devices import copies_for_branches, fence
from jaxpr_opt.ir.graph import Cond, Scan, While
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes import CLEANUP, DEFAULT
from jaxpr_opt.passes.drop_dummy_residuals import DropDummyResiduals
from jaxpr_opt.passes.laws.simplify import Simplify
from jaxpr_opt.passes.windows.slice_known_windows import SliceKnownWindows
from jaxpr_opt.passes.writes.write_after_branches import WriteAfterBranches
from jaxpr_opt.testing import (
    assert_close,
    assert_same_bits,
    check_refuses,
    check_rewrite,
    evaluate_exactly,
    run_alone,
    traced,
)
from tests.graphs import scans
from tests.loops import alone, measured, unspecified
from tests.prices import EAGER

AFTER = WriteAfterBranches()
N = 8


def update(b, u, i):
    """Without what JAX puts in for negative indices."""
    return lax.dynamic_update_slice(b, lax.reshape(u, (1,)), (i,), allow_negative_indices=False)


def loop(step):
    """Eight steps that carry an array and read a row."""
    return lambda b, xs: lax.scan(
        lambda b, ix: (step(b, *ix), None), b, (lax.iota("int32", N), xs)
    )[0]


def reading(step):
    """The same, which read another row for themselves: XLA copies the array."""
    return lambda b, xs: lax.scan(lambda b, ix: (step(b, *ix), b[2]), b, (lax.iota("int32", N), xs))


def test_a_write_in_one_branch():
    """(1) The other hands on what there was; the index is computed in the branch."""
    program = loop(lambda b, i, x: lax.cond(x > 0, lambda: update(b, jnp.sin(x), 7 - i), lambda: b))
    check_rewrite(
        AFTER,
        program,
        "f32[8]",
        "f32[8]",
        diff="""
            fn (b:f32[8], xs:f32[8]) {
              i:i32[8] = iota
              c:f32[8] = scan[8] carry(c=b) xs(x=i, x1=xs) {
                g:bool[] = gt x1 0.0
                c1:i32[] = convert_element_type g
          +     s2:i32[] = sub 7 x
          +     d1:f32[1] = dynamic_slice c s2
          -     r:f32[8] = cond g {
          +     r1:f32[1] = cond g {
                  s:f32[] = sin x1
                  s1:i32[] = sub 7 x
                  r:f32[1] = reshape s
          -       d:f32[8] = dynamic_update_slice c r s1
          -       yield d
          +       yield r
                } else {
          -       yield c
          +       yield d1
                }
          +     d2:f32[8] = dynamic_update_slice c r1 s2
          -     yield carry(r)
          +     yield carry(d2)
              }
              return c
            }
        """,
    )


def test_a_write_in_one_of_three_branches():
    """(1) And another result beside it."""
    program = loop(
        lambda b, i, x: lax.switch(
            i, [lambda: (b, x), lambda: (update(b, x, i), -x), lambda: (b, x)]
        )[0]
    )
    check_rewrite(
        AFTER,
        program,
        "f32[8]",
        "f32[8]",
        diff="""
            fn (b:f32[8], xs:f32[8]) {
              i:i32[8] = iota
              c:f32[8] = scan[8] carry(c=b) xs(x=i, x1=xs) {
                c1:i32[] = clamp 0 x 2
          +     d1:f32[1] = dynamic_slice c x
          -     r:f32[8], r1:f32[] = switch c1 case 0 {
          +     r2:f32[1], r1:f32[] = switch c1 case 0 {
          -       yield c, x1
          +       yield d1, x1
                } case 1 {
                  r:f32[1] = reshape x1
          -       d:f32[8] = dynamic_update_slice c r x
                  n:f32[] = neg x1
          -       yield d, n
          +       yield r, n
                } case 2 {
          -       yield c, x1
          +       yield d1, x1
                }
          +     d2:f32[8] = dynamic_update_slice c r2 x
          -     yield carry(r)
          +     yield carry(d2)
              }
              return c
            }
        """,
    )


IN_SEVERAL = {
    "in both": lambda b, i, x: lax.cond(
        x > 0, lambda: update(b, x + b[1], i), lambda: update(b, -x, 7 - i)
    ),
    "at constants": lambda b, i, x: lax.switch(
        i // 2, [lambda k=k: update(b, x * b[k], k) for k in range(3)]
    ),
    "or in none": lambda b, i, x: lax.switch(
        i, [lambda: update(b, x, i), lambda: b, lambda: update(b, -b[i], 0), lambda: b]
    ),
    "at one place": lambda b, i, x: lax.cond(
        x > 0, lambda: update(b, x, i), lambda: update(b, x * b[0], i)
    ),
    "at a place that is looked up": lambda b, i, x: lax.cond(
        x > 0,
        lambda: update(b, x, jnp.argmax(b[:3])),
        lambda: update(b, -x, jnp.argmin(b[:3])),
    ),
    "by index": lambda b, i, x: lax.cond(x > 0, lambda: b.at[i].set(x), lambda: b.at[3].set(-b[2])),
}


@pytest.mark.parametrize("case", IN_SEVERAL)
def test_writes_in_several_branches(case):
    """(1, 2) Each says where; no branch yields the array."""
    graph = alone(AFTER, reading(IN_SEVERAL[case]), "f32[8]", "f32[8]", fires=True, phase="final")
    conds = [op for op in graph.walk() if isinstance(op, Cond)]
    assert conds and all(v.shape != (8,) for cond in conds for v in cond.results)


def in_branches_of_branches(b, i, x):
    place = x.astype("int32")
    inner = lambda: lax.cond(x > 1, lambda: update(b, b[i - 1] * x, place), lambda: b)
    return lax.cond(x > 0, inner, lambda: update(b, x, i))


@pytest.mark.parametrize("step", [*IN_SEVERAL.values(), in_branches_of_branches])
def test_branches_that_read_what_they_write_to(step):
    """Cost: XLA copies it before JAX 0.11, if several branches write."""
    fires = copies_for_branches()
    alone(AFTER, loop(step), "f32[8]", "f32[8]", fires=fires, phase="final")


OUT_OF_RANGE = {
    "clamped": lambda b, i, x: update(b, b[0] + x, i * 3 - 4),
    "dropped": lambda b, i, x: b.at[i * 3].set(b[0] + x, mode="drop"),
    "clipped": lambda b, i, x: b.at[i * 3].set(b[0] + x, mode="clip"),
    "from the data": lambda b, i, x: update(b, b[0] + x, x.astype("int32")),
    "negative": lambda b, i, x: b.at[i - 12].set(b[0] + x),
    "counted in rows of three": lambda b, i, x: b.at[i // 3].set(b[0] + x),
}


@pytest.mark.parametrize("case", OUT_OF_RANGE)
def test_places_out_of_range(case):
    """(2) What is there is handed on, also where it is that of another place, or of none."""
    write = OUT_OF_RANGE[case]
    program = reading(lambda b, i, x: lax.cond(x > 0, lambda: write(b, i, x), lambda: b))
    b, xs = jnp.linspace(-1.0, 1.0, N), jnp.array([2.0, -1.0, 9.0, 3.0, -20.0, -3.0, 0.0, 5.0])
    alone(AFTER, program, b, xs, fires=True, phase="final")


def test_a_promise_to_be_in_range_is_kept():
    """(2) Where the branch is not taken, nothing was promised."""
    write = lambda b, i, x: b.at[i * 3].set(x, mode="promise_in_bounds")
    program = loop(lambda b, i, x: lax.cond(i < 3, lambda: write(b, i, x), lambda: b))
    check_refuses(AFTER, program, "f32[8]", "f32[8]", because="may be out of range")


def promised(b, i, x):
    """A write at a place that the data say."""
    return b.at[x.astype("int32")].set(b[0] + x, mode="promise_in_bounds")


PROMISES = {
    "in range": lambda b, i, x: lax.cond(
        x > 0, lambda: b.at[i].set(b[0] + x, mode="promise_in_bounds"), lambda: b
    ),
    "in both": lambda b, i, x: lax.cond(
        x > 0, lambda: promised(b, i, x), lambda: promised(b, i, -x)
    ),
}


@pytest.mark.parametrize("case", PROMISES)
def test_promises_that_hold(case):
    """(2) It is in range anyway, or whichever branch is taken promises it."""
    xs = jnp.array([2.0, -1.0, 7.0, 3.0, -6.0, -3.0, 0.0, 5.0])
    alone(AFTER, reading(PROMISES[case]), jnp.linspace(-1.0, 1.0, N), xs, fires=True, phase="final")


def large(around=False, inside=False):
    """A large window, of an array that the step, or the branch, reads, too."""

    def step(b, i, x):
        rows = lax.dynamic_slice(b, (i * 7, 0), (2, 5000)) if inside else jnp.zeros((2, 5000))
        return lax.dynamic_update_slice(b, jnp.sin(rows) + x, (i * 7, 0))

    steps = reading if around else loop
    return steps(lambda b, i, x: lax.cond(x > 0, lambda: step(b, i, x), lambda: b))


def test_what_xla_writes_in_place_stays():
    """Cost: each step would move the window."""
    types = "f32[40,5000]", "f32[8]"
    check_refuses(AFTER, large(), *types, because="XLA already writes it in place")
    alone(AFTER, large(inside=True), *types, fires=False, phase="final")
    alone(AFTER, large(around=True), *types, fires=True, phase="final")
    with using(CostModel(GPU)):  # the window would be a kernel
        graph = import_jaxpr(traced(large(around=True), *types), "final")
        record = run_alone([AFTER], graph).record(AFTER.name, AFTER.cleanup)
    assert [each.reason for each in record.refusals] == [
        "a copy takes no longer than the window by itself"
    ]


@pytest.mark.parametrize(("rows", "fires"), [(500, False), (9000, True)])
def test_small_arrays_beside_products(rows, fires):
    """Cost: XLA starts the few ops of such a step one by one; a small copy is made sooner than two
    more are started.
    """

    def program(b, xs, w):
        def step(b, i, x):
            place = x.astype("int32")
            made = lambda: b.at[place].set(b[0] + jnp.sum(jnp.full(64, x) @ w))
            return lax.cond(b[place] < 0.5, made, lambda: b)

        return reading(step)(b, xs)

    args = f"f32[{rows}]", "f32[8]", "f32[64,64]"
    alone(AFTER, program, *args, fires=fires, phase="final")


def test_what_may_be_differentiated():
    """Cost: the cotangent of what a branch reads would be made of zeros, and added as a whole."""
    step = loop(IN_SEVERAL["in both"])
    check_refuses(AFTER, step, "f32[8]", "f32[8]", because="JAX would add windows to zeros")
    given = lambda b, i, x: lax.cond(x > 0, lambda: update(b, x, i), lambda: update(b, -x, 7 - i))
    gradient = jax.grad(lambda b, xs: jnp.sum(jnp.sin(loop(given)(b, xs))), argnums=1)
    alone(AFTER, gradient, "f32[8]", "f32[8]", fires=True)


@pytest.mark.parametrize("stored", ["before", "after", None])
def test_versions_that_the_loop_stores(stored):
    """Cost: undoing the write, of which a branch would hide the window, stores less."""

    def program(b, xs):
        def step(b, ix):
            i, x = ix
            write = lambda: lax.dynamic_update_slice(b, jnp.full((2, 5000), x), (i * 7, 0))
            new = lax.cond(x > 0, write, lambda: b)
            return new, {"before": b, "after": new}.get(stored, x)

        return lax.scan(step, b, (lax.iota("int32", N), xs))

    alone(AFTER, program, "f32[40,5000]", "f32[8]", fires=stored is not None)


def basis(v, a):
    """Lanczos vectors, the last of which a cond drops."""

    def step(b, j):
        w = a @ b[j]
        w = jnp.sin(w - b.T @ (b @ w))
        return lax.cond(j + 1 < 12, lambda: b.at[j + 1].set(w), lambda: b), w @ b[j]

    b, alphas = lax.scan(step, jnp.zeros((12, 40)).at[0].set(v), jnp.arange(12))
    return jnp.sum(jnp.cos(b)) + jnp.sum(alphas**2)


def table(v, a):
    """Rows that are kept if they are large, and read by all later ones."""

    def step(c, j):
        b, n = c
        w = jnp.tanh(a @ v + b.T @ (b @ v) / 40 + j)
        new = lax.cond(w[0] > 0, lambda: (b.at[n].set(w), n + 1), lambda: (b, n))
        return new, jnp.sum(b @ w)

    return jnp.sum(lax.scan(step, (jnp.zeros((12, 40)), 0), jnp.arange(-6.0, 6.0))[1] ** 2)


@pytest.mark.slow
@pytest.mark.parametrize("above", [False, True])
@pytest.mark.parametrize("loss", [basis, table])
def test_a_loop_back_undoes_what_a_cond_wrote(loss, above):
    """It stores one version and the rows, not twelve versions."""
    ours = optimize(jax.grad(loss, 1)) if above else jax.grad(optimize(loss), 1)
    args = jnp.full(40, 0.1), jnp.sin(jnp.arange(1600.0)).reshape(40, 40) / 40
    (given, used), (wanted, usual) = (measured(f, *args) for f in (ours, jax.grad(loss, 1)))
    assert_close(given, wanted)
    assert used < usual / 2


@pytest.mark.parametrize("above", [False, True])
def test_snapshots(above):
    """Of every third state; the transpose reads each and clears it, outside of the branch."""

    def loss(x):
        def step(c, i):
            x, b = c
            x = jnp.tanh(x * 1.1)
            return (x, lax.cond(i % 3 == 0, lambda: b.at[i // 3].set(x), lambda: b)), None

        (_, b), _ = lax.scan(step, (x, jnp.zeros((5, 64))), jnp.arange(13))
        return jnp.sum(jnp.sin(b))

    ours = optimize(jax.grad(loss)) if above else jax.grad(optimize(loss))
    x = jnp.linspace(-1.0, 1.0, 64)
    assert_close(ours(x), jax.grad(loss)(x))
    final = Pipeline(DEFAULT).run(jax.make_jaxpr(ours)(x), "final").jaxpr
    graph = import_jaxpr(final, "final")
    (back,) = [op for op in scans(graph) if op.reverse]
    conds = [op for op in back.body.walk() if isinstance(op, Cond)]
    assert conds and all(v.shape != (5, 64) for cond in conds for v in cond.results)


def chosen(x, new, old):
    return lax.cond(x > 0, lambda: new, lambda: old)


REFUSED = [
    pytest.param(
        lambda b, i, x: chosen(x, update(b, x, i), b),
        None,
        id="written before",
    ),
    pytest.param(
        lambda b, i, x: lax.cond(x > 0, lambda: -update(-b, x, i), lambda: b),
        None,
        id="not a write",
    ),
    pytest.param(
        lambda b, i, x: lax.cond(x > 0, lambda: update(b, x, i), lambda: 2 * b), None, id="changed"
    ),
    pytest.param(
        lambda b, i, x: lax.switch(i, [lambda: update(b, x, i), lambda: b, lambda: 2 * b]),
        None,
        id="changed in a third",
    ),
    pytest.param(
        lambda b, i, x: lax.cond(x > 0, lambda: b.at[i].add(x), lambda: b), None, id="added to"
    ),
    pytest.param(
        lambda b, i, x: lax.cond(x > 0, lambda: update(b, x, i), lambda: b.at[:2].set(x)),
        "windows of different sizes",
        id="windows of two sizes",
    ),
    pytest.param(
        lambda b, i, x: lax.cond(x > 0, lambda: update(b, x, i), lambda: update(2 * b, x, 0)),
        None,
        id="of two arrays",
    ),
    pytest.param(
        lambda b, i, x: sum(lax.cond(x > 0, lambda: [update(b, x, i)] * 2, lambda: [b, b])),
        "is read in the branch, too",
        id="yielded twice",
    ),
    pytest.param(
        lambda b, i, x: sum(
            lax.cond(x > 0, lambda: [(c := update(b, x, i)), c * 2], lambda: [b, b])
        ),
        "is read in the branch, too",
        id="read after it was written",
    ),
    pytest.param(
        lambda b, i, x: lax.cond(
            x > 0, lambda: update(b, x, lax.dynamic_slice(jnp.arange(N), (i,), (1,))[0]), lambda: b
        ),
        "computed by more than arithmetic",
        id="at a place that is looked up",
    ),
    pytest.param(
        lambda b, i, x: lax.cond(
            x > 0, lambda: lax.dynamic_update_slice(b, b[:5] * x, (i // 8,)), lambda: b
        ),
        None,
        id="most of the array",
    ),
]


@pytest.mark.parametrize(("step", "because"), REFUSED)
def test_refused(step, because):
    """(1, 2) By the reason that it gives, or not looked at."""
    if because is not None:
        check_refuses(AFTER, loop(step), "f32[8]", "f32[8]", because=because)
    graph = import_jaxpr(traced(loop(step), "f32[8]", "f32[8]"))
    assert not run_alone((AFTER,), graph).record(AFTER.name, False).rewrites


def test_nothing_is_written():
    """(1) By no branch, once one of them is simplified."""
    program = loop(lambda b, i, x: update(lax.cond(x > 0, lambda: b * 1.0, lambda: b), x, i))
    graph = import_jaxpr(traced(program, "f32[8]", "f32[8]"))
    assert not run_alone((Simplify(), AFTER), graph).record(AFTER.name, False).rewrites


def stored(step):
    """A loop that stores each version of an array for a loop back."""

    def program(b, xs):
        def forward(b, ix):
            b, y = step(b, *ix)
            return b, (b, y)

        def back(a, row):
            return a + jnp.sum(row[0]) * row[1], None

        b, rows = lax.scan(forward, b, (lax.iota("int32", N), xs))
        return b, lax.scan(back, 0.0, rows, reverse=True)[0]

    return program


def test_what_is_read_after_it_was_written():
    """(3) Is read in a second cond."""

    def step(b, i, x):
        def write():
            c = update(b, x, i)
            return c, jnp.sum(c)

        return lax.cond(x > 0, write, lambda: (b, x))

    check_rewrite(
        AFTER,
        stored(step),
        "f32[8]",
        "f32[8]",
        diff="""
            fn (b:f32[8], xs:f32[8]) {
              i:i32[8] = iota
              c:f32[8], ys:f32[8,8], ys1:f32[8] = scan[8] carry(c=b) xs(x=i, x1=xs) {
                g:bool[] = gt x1 0.0
                c1:i32[] = convert_element_type g
          +     d1:f32[1] = dynamic_slice c x
          -     r:f32[8], r1:f32[] = cond g {
          +     r2:f32[1] = cond g {
                  r:f32[1] = reshape x1
          -       d:f32[8] = dynamic_update_slice c r x
          -       r1:f32[] = reduce_sum[axes=(0,)] d
          -       yield d, r1
          +       yield r
                } else {
          -       yield c, x1
          +       yield d1
                }
          +     d2:f32[8] = dynamic_update_slice c r2 x
          +     r3:f32[] = cond g {
          +       r2:f32[] = reduce_sum[axes=(0,)] d2
          +       yield r2
          +     } else {
          +       yield x1
          +     }
          -     yield carry(r) ys(r, r1)
          +     yield carry(d2) ys(d2, r3)
              }
              c1:f32[] = scan[8, reverse] carry(c=0.0) xs(x=ys, x1=ys1) {
                r:f32[] = reduce_sum[axes=(0,)] x
                m:f32[] = mul r x1
                c1:f32[] = convert_element_type c
                a:f32[] = add c1 m
                yield carry(a)
              }
              return c, c1
            }
        """,
    )


READ = {
    "in each branch": lambda b, i, x: lax.cond(
        x > 0,
        lambda: ((c := update(b, x, i)), jnp.sum(c)),
        lambda: ((c := update(b, -x, 7 - i)), jnp.max(c) * b[0]),
    ),
    "and written again": lambda b, i, x: lax.cond(
        x > 0,
        lambda: ((c := update(update(b, x, i), b[0], 7 - i)), jnp.sum(c)),
        lambda: (b, x),
    ),
    "in one of three": lambda b, i, x: lax.switch(
        i, [lambda: (b, x), lambda: ((c := update(b, x, i)), jnp.sum(c) * x), lambda: (b, -x)]
    ),
    "with what was there before": lambda b, i, x: lax.cond(
        x > 0, lambda: ((c := update(b, x, i)), jnp.sum(c * b)), lambda: (b, x)
    ),
    "in a branch of the branch": lambda b, i, x: lax.cond(
        x > 0,
        lambda: (
            (c := update(b, x, i)),
            lax.cond(c[0] > 0, lambda: jnp.sum(c) + x, lambda: x),
        ),
        lambda: (b, x),
    ),
}


@pytest.mark.parametrize("case", READ)
def test_reads_of_what_was_written(case):
    """(3) No branch makes the array then."""
    xs = jnp.array([2.0, -1.0, 7.0, 3.0, -6.0, -3.0, 0.0, 5.0])
    graph = alone(AFTER, stored(READ[case]), jnp.linspace(-1.0, 1.0, N), xs, fires=True)
    conds = [op for op in graph.walk() if isinstance(op, Cond)]
    assert len(conds) > 1 and all(v.shape != (8,) for cond in conds for v in cond.results)


def place_read(b, i, x):
    """A branch reads where it writes next of what it has written."""

    def yes():
        c = update(b, x, i)
        return update(c, b[0], (c[3] * 4).astype("int32"))

    return lax.cond(x > 0, lambda: (c := yes(), jnp.sum(c)), lambda: (b, x))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("step", [*READ.values(), place_read], ids=[*READ, "place read"])
def test_gradients_where_branches_read_what_they_have_written(step, batch):
    """(2) Where the next window is, is one number in the steps that do not write it."""
    program = stored(step)

    def loss(b, xs):
        return sum(jnp.sum(jnp.sin(v)) for v in jax.tree.leaves(program(b, xs)))

    over = (lambda f: jax.vmap(f, (0, None))) if batch else lambda f: f
    xs = jnp.array([0.3, -1.0, 0.7, 0.2, -0.6, -0.3, 0.0, 0.5])
    b = jnp.linspace(-1.0, 1.0, 2 * N).reshape(2, N) if batch else jnp.linspace(-1.0, 1.0, N)
    plain = over(jax.grad(loss, (0, 1)))
    graph = import_jaxpr(jax.make_jaxpr(plain)(b, xs))
    with using(EAGER):
        Pipeline(DEFAULT).apply(graph, Journal(graph.phase))
    assert_close(jax.tree.leaves(jax.jit(plain)(b, xs)), evaluate_exactly(graph, b, xs))


@pytest.mark.parametrize("streamed", [False, True])
def test_an_index_that_is_unspecified_where_nothing_is_written(streamed):
    """(2) Other passes may take another number for it at each place."""

    def index(p, i):
        return lax.cond(p, lambda: 7 - i, lambda: unspecified(i))

    def step(b, row):
        p, i, x = row
        i = i if streamed else index(p, i)
        return lax.cond(p, lambda: update(b, x, i), lambda: b), None

    def program(b, masks, xs):
        i = lax.iota("int32", N)
        rows = lax.scan(lambda c, row: (c, index(*row)), 0, (masks, i))[1] if streamed else i
        return lax.scan(step, b, (masks, rows, xs))[0]

    because = "unspecified where nothing is written"
    check_refuses(AFTER, program, "f32[8]", "bool[8]", "f32[8]", because=because)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_a_place_in_zeros_that_is_unspecified_where_nothing_is_written(streamed, both):
    """(2) Zeros are written at place zero: the transpose of what a branch reads."""

    def index(p, i):
        return lax.cond(p, lambda: 7 - i, lambda: unspecified(i))

    def step(b, row):
        p, i, x = row
        i = i if streamed else index(p > 0, i)
        write = lambda x: lambda: update(jnp.zeros(N), x, i)
        other = write(2 * x) if both else lambda: jnp.zeros(N)
        return b + lax.switch(p, [lambda: jnp.zeros(N), write(x), other]), None

    def program(b, ps, xs):
        i = lax.iota("int32", N)
        each = lambda c, row: (c, index(row[0] > 0, row[1]))
        rows = lax.scan(each, 0, (ps, i))[1] if streamed else i
        return lax.scan(step, b, (ps, rows, xs))[0]

    args = jnp.arange(8.0), jnp.array([0, 1, 2, 1, 0, 2, 0, 1]), jnp.linspace(-1.0, 1.0, N)
    graph = alone(AFTER, program, *args, fires=True)
    (cond,) = (op for op in graph.walk() if isinstance(op, Cond) and op.selector.dtype != bool)
    assert all(v.shape != (N,) for v in cond.results)


def test_places_of_a_scatter_that_are_unspecified():
    """(2) They may be several, and promise to differ."""

    def step(b, row):
        p, i, x = row
        write = lambda: jnp.zeros(N).at[i].set(x, wrap_negative_indices=False)
        return b + lax.cond(p, write, lambda: jnp.zeros(N)), None

    def program(b, ps, xs):
        each = lambda c, row: (c, lax.cond(row[0], lambda: row[1], lambda: unspecified(row[1])))
        rows = lax.scan(each, 0, (ps, lax.iota("int32", N)))[1]
        return lax.scan(step, b, (ps, rows, xs))[0]

    because = "unspecified where nothing is written"
    check_refuses(AFTER, program, "f32[8]", "bool[8]", "f32[8]", because=because)


def test_branches_with_indices_of_two_types():
    """(1) The cond could not yield them."""
    step = lambda b, i, x: lax.cond(
        x > 0, lambda: update(b, x, i), lambda: update(b, -x, (7 - i).astype("int8"))
    )
    check_refuses(AFTER, loop(step), "f32[8]", "f32[8]", because="types of indices")


def test_a_branch_that_prints_is_not_divided():
    """(3) It would print in another order."""

    def step(b, i, x):
        def write():
            c = update(b, x, i)
            jax.debug.print("{}", x)
            return c, jnp.sum(c)

        return lax.cond(x > 0, write, lambda: (b, x))

    check_refuses(AFTER, stored(step), "f32[8]", "f32[8]", because="is read in the branch, too")


@pytest.mark.slow
@pytest.mark.parametrize("above", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_cache_that_a_branch_attends_to(above, layers):
    """(3) Its gradient stores the rows, not the versions of the cache."""
    length = 12

    def loss(w, x):
        def live(c):
            i, x, keys = c
            for layer in range(layers):
                keys = keys.at[layer, i].set(jnp.tanh(x * w))
                scores = jax.nn.softmax(keys[layer] @ x)
                x = jnp.sin(scores @ keys[layer]) + x
            return i + 1, x, keys

        def step(c, _):
            c = lax.cond(c[0] < 9, live, lambda c: c, c)
            return c, jnp.sum(c[1])

        return jnp.sum(lax.scan(step, (0, x, jnp.zeros((layers, 16, 4))), None, length=length)[1])

    w, x = jnp.linspace(0.5, 1.5, 4), jnp.linspace(-1.0, 1.0, 4)
    ours = optimize(jax.grad(loss)) if above else jax.grad(optimize(loss))
    assert_close(jax.jit(ours)(w, x), jax.jit(jax.grad(loss))(w, x))
    final = Pipeline(DEFAULT).run(jax.make_jaxpr(ours)(w, x), "final").jaxpr
    loops = [op for op in import_jaxpr(final, "final").walk() if isinstance(op, Scan | While)]
    versions = [v for op in loops for v in op.results if v.size >= length * layers * 16 * 4]
    assert loops and not versions


@pytest.mark.parametrize("both", [False, True])
def test_zeros(both):
    """(1) With a window in them, of one branch or of both: the transpose of what they read."""

    def step(b, i, x):
        one = lambda: update(jnp.zeros(N), x, i)
        other = lambda: update(jnp.zeros(N), 2 * x, i - 3)
        return b + lax.cond(x > 0, one, other if both else lambda: jnp.zeros(N))

    graph = alone(AFTER, loop(step), "f32[8]", "f32[8]", fires=True)
    (cond,) = (op for op in graph.walk() if isinstance(op, Cond))
    assert all(v.shape != (N,) for v in cond.results)


def test_a_branch_of_a_branch():
    """Both are in a step of the loop, which each write leaves."""
    program = reading(in_branches_of_branches)
    jaxpr = traced(program, "f32[8]", "f32[8]")
    graph = import_jaxpr(jaxpr, "final")
    run_alone((*CLEANUP, AFTER), graph)
    conds = [op for op in graph.walk() if isinstance(op, Cond)]
    assert len(conds) == 2
    assert all(v.shape != (N,) for cond in conds for v in cond.results)
    for xs in (jnp.linspace(-1.0, 3.0, N), -jnp.ones(N), jnp.full(N, 0.5)):
        args = jnp.arange(8.0) + 0.1, xs
        assert_same_bits(evaluate_exactly(jaxpr, *args), evaluate_exactly(graph, *args))


def test_outside_of_loops():
    """XLA writes in place through a branch."""
    program = lambda b, x: lax.cond(x > 0, lambda: update(b, x, 3), lambda: b)
    graph = import_jaxpr(traced(program, "f32[8]", "f32[]"))
    assert not run_alone((AFTER,), graph).record(AFTER.name, False).rewrites


def test_zeros_outside_of_loops():
    """(1) Others may make something of the window alone; by itself it is no reason to do so."""

    def program(x, p, i):
        row = lambda: lax.dynamic_update_slice(jnp.zeros((64, 4)), x, (i, 0))
        return lax.cond(p, row, lambda: jnp.zeros((64, 4)))

    graph = import_jaxpr(traced(program, "f32[1,4]", "bool[]", "i32[]"))
    (rewrite,) = run_alone((AFTER,), graph).record(AFTER.name, False).rewrites
    assert rewrite.is_cleanup
    assert any(op.name == "dynamic_update_slice" for op in graph.body.ops)
    args = jnp.ones((1, 4)), True, 70
    assert_same_bits(evaluate_exactly(graph, *args), [program(*args)])


def test_the_transpose():
    """What the branch that writes clears, and reads, of a cotangent."""
    step = lambda b, i, x: lax.cond(x > 0, lambda: update(b, jnp.sin(x), i), lambda: b)
    gradient = jax.grad(lambda b, xs: (loop(step)(b, xs) ** 2).sum(), (0, 1))
    args = jnp.arange(8.0), jnp.array([1.0, -1.0, 2.0, 0.0, jnp.nan, 3.0, -2.0, 0.5])
    before, after = (import_jaxpr(traced(gradient, *args)) for _ in range(2))
    passes = (AFTER, DropDummyResiduals(), SliceKnownWindows(), *CLEANUP)
    assert len(run_alone(passes, after).record(AFTER.name, False).rewrites) == 2
    assert_same_bits(evaluate_exactly(before, *args), evaluate_exactly(after, *args))


READ_ELSEWHERE = {
    "for the cond and others": lambda b, i, x: (b[i] > x, b[i]),
    "at another place": lambda b, i, x: (x > 0, b[7 - i]),
    "by an inner loop": lambda b, i, x: (x > 0, lax.fori_loop(0, 3, lambda j, s: s + b[j], x)),
}
LOOPS = {
    "scan": lambda step: (
        lambda b, xs: lax.scan(lambda b, x: (step(b, x.astype("int32"), x), None), b, xs)[0]
    ),
    "while": lambda step: (
        lambda b, xs: lax.while_loop(
            lambda c: (c[1] < N) & (c[0][0] < 9),
            lambda c: (step(c[0], (c[1] * 3) % N, xs[c[1]]), c[1] + 1),
            (b, 0),
        )[0]
    ),
}


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("case", READ_ELSEWHERE)
def test_what_xla_copies(case, kind):
    """Cost: it does so if the step reads of the array elsewhere, too: memo tables, hash tables."""

    def step(b, i, x):
        p, u = READ_ELSEWHERE[case](b, i, x)
        new = lax.cond(p, lambda: b.at[i].set(x), lambda: b)
        return new.at[0].add(u)

    program = LOOPS[kind](step)
    alone(AFTER, program, "f32[8]", "f32[8]", fires=True, phase="final")
    check_refuses(AFTER, program, "f32[8]", "f32[8]", because="XLA already writes it in place")


COPIED = {
    "for false": lambda p, b, i, x: lax.cond(p, lambda: b, lambda: b.at[i].set(x)),
    "of three": lambda p, b, i, x: lax.switch(
        i, [lambda: b, lambda: b.at[i].set(x), lambda: b.at[i].set(2 * x)]
    ),
}
IN_PLACE = {
    "for true": lambda p, b, i, x: lax.cond(p, lambda: b.at[i].set(x), lambda: b),
    "for both": lambda p, b, i, x: lax.cond(p, lambda: b.at[i].set(x), lambda: b.at[0].set(x)),
}


@pytest.mark.parametrize("kind", LOOPS)
@pytest.mark.parametrize("case", COPIED | IN_PLACE)
def test_what_xla_copies_before_jax_0_11(case, kind):
    """Cost: it does so for three branches, and for the first of two."""
    which = (COPIED | IN_PLACE)[case]
    step = lambda b, i, x: which(jnp.sin(b[i]) < x, b, i, x)
    fires = case in COPIED and fence() == "division"
    alone(AFTER, LOOPS[kind](step), "f32[8]", "f32[8]", fires=fires, phase="final")
