"""Steps of which nothing is used become branches, in both halves of a gradient."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import using
from jaxpr_opt.insight.journal import collect_journals
from jaxpr_opt.ir.graph import Cond, Scan, While
from jaxpr_opt.ir.traits import SUMS
from jaxpr_opt.passes.steps import isolate_dropped_steps
from jaxpr_opt.passes.steps.isolate_dropped_steps import IsolateDroppedSteps
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import assert_close, check_refuses, check_rewrite
from tests.loops import alone, paths
from tests.prices import EAGER

DROPPED = IsolateDroppedSteps()
ARGS = ("f32[3]", "f32[6,3]", "i32[]", "f32[]")
X = jnp.asarray(np.random.default_rng(0).normal(size=(48, 3)), jnp.float32)


@pytest.fixture
def joint(monkeypatch):
    """Programs are taken for two that are compiled apart; they are small, and asking is free."""
    apart = lambda op: SimpleNamespace(cotangents=(op,))
    monkeypatch.setattr(isolate_dropped_steps, "program_of", apart)
    with using(EAGER):
        yield


def first(t, h, n):
    return t < n


def loss(w, xs, n, *, counts=first, also=lambda h: 0.0, of=jnp.sum, **options):
    """What is summed up of a step's state, which a mask drops in some steps."""

    def step(h, row):
        t, x = row
        h = jnp.sin(h * w) + x
        return h, jnp.where(counts(t, h, n), (h * h).sum(), 0.0)

    rows = jnp.arange(len(xs), dtype=jnp.int32), xs
    h, losses = lax.scan(step, jnp.zeros(3), rows, **options)
    return of(losses) + also(h)


def until(w, xs, n):
    """The same, with a state that says whether it has ended."""

    def step(carry, x):
        h, done = carry
        h = jnp.sin(h * w) + x
        return (h, done | (h[0] > n)), jnp.where(done, 0.0, (h * h).sum())

    return lax.scan(step, (jnp.zeros(3), jnp.bool_(False)), xs)[1].sum()


def rollout(w, xs, n, bound=0.6):
    """The same; an ended step keeps the state, but not the factor of its loss."""

    def step(carry, x):
        h, done, scale = carry
        new = jnp.sin(jnp.tanh(h * w)) + x
        reward = jnp.where(done, 0.0, scale * (h * h).sum())
        return (jnp.where(done, h, new), done | (new[0] > bound * n), scale * 0.9), reward

    return lax.scan(step, (jnp.zeros(3), jnp.bool_(False), 1.0), xs)[1].sum()


def landing(w, xs, n):
    """A part of the state is set to zero when it has ended, and read."""

    def step(carry, row):
        (h, v), (t, x) = carry, row
        v = jnp.where(t < n, v + jnp.tanh(h * w) + x, 0.0)
        return (jnp.where(t < n, jnp.sin(h) + v, h), v), None

    rows = jnp.arange(len(xs), dtype=jnp.int32), xs
    h, v = lax.scan(step, (jnp.zeros(3), jnp.zeros(3)), rows)[0]
    return (h * h).sum() + v.sum()


def batch_landing(w, xs, n):
    """Rows of which a part is set to zero when they have ended."""
    return jax.vmap(landing, (None, 0, 0))(w, jnp.stack([xs, -xs]), jnp.stack([n, n - 1])).sum()


def batch_of_outputs(w, xs, n):
    """A state that is kept, read after the loop, and outputs of which a function is masked."""

    def one(xs, n):
        def step(h, row):
            t, x = row
            h = jnp.where(t < n, jnp.sin(jnp.tanh(h * w)) + x, h)
            return h, h

        numbers = jnp.arange(len(xs), dtype=jnp.int32)
        h, hs = lax.scan(step, jnp.zeros(3), (numbers, xs))
        return h.sum() + jnp.where((numbers < n)[:, None], jnp.tanh(hs), 0.0).sum()

    return jax.vmap(one)(jnp.stack([xs, -xs]), jnp.stack([n, n - 1])).sum()


def batch(w, xs, n):
    """Rows that end one after the other."""
    lengths = n + jnp.arange(2, dtype=jnp.int32)
    return jax.vmap(loss, (None, None, 0))(w, xs, lengths).sum()


def batch_until(w, xs, n):
    """Rows that each say whether they have ended."""
    return jax.vmap(until, (None, 0, None))(w, jnp.stack([xs, -xs]), n).sum()


def batch_rollout(w, xs, n):
    """Rows that keep their states when they have ended."""
    return jax.vmap(rollout, (None, 0, None))(w, jnp.stack([xs, -xs]), n).sum()


LOSSES = [
    loss, until, rollout, batch, batch_until, batch_rollout, landing, batch_landing,
    batch_of_outputs,
]  # fmt: skip


def both(f=loss, **options):
    """What a loss and its gradient are."""

    def program(w, xs, n, ct):
        value, back = jax.vjp(lambda w: f(w, xs, n, **options), w)
        return value, back(ct)

    return program


def by_hand(**options):
    """A loop, and one that multiplies by its rows no more often than they count."""

    def program(w, xs, n, ct):
        def step(h, row):
            t, x = row
            h = jnp.sin(h * w) + x
            return h, (h, jnp.where(t < n, h[0], 0.0))

        numbers = jnp.arange(len(xs), dtype=jnp.int32)
        _, (hs, losses) = lax.scan(step, jnp.zeros(3), (numbers, xs))
        back = lambda c, row: (jnp.where(row[0] < n, c * row[1], c), None)
        return losses, lax.scan(back, ct * w, (numbers, hs), **options)[0]

    return program


def test_both_halves(joint):
    check_rewrite(
        DROPPED,
        by_hand(reverse=True),
        *ARGS,
        simplify=True,
        diff="""
          fn (w:f32[3], xs:f32[6,3], n:i32[], ct:f32[]) {
            i:i32[6] = iota
            b:f32[3] = broadcast_in_dim 0.0
        +   c2:i32[] = clamp 0 n 6
            c:f32[3], ys:f32[6,3], ys1:f32[6] = scan[6] carry(c=b) xs(x=i, x1=xs) {
        -     m:f32[3] = mul c w
        -     s:f32[3] = sin m
        -     a:f32[3] = add s x1
              l:bool[] = lt x n
        -     s1:f32[1] = slice[:1] a
        -     s2:f32[] = squeeze s1
        -     s3:f32[] = select_n l 0.0 s2
        +     r:f32[3], r1:f32[] = cond l {
        +       m:f32[3] = mul c w
        +       s:f32[3] = sin m
        +       a:f32[3] = add s x1
        +       s1:f32[1] = slice[:1] a
        +       s2:f32[] = squeeze s1
        +       yield a, s2
        +     } else {
        +       yield c, 0.0
        +     }
        +     u:f32[3] = undefined
        +     s4:f32[3] = select_n l u r
        -     yield carry(a) ys(a, s3)
        +     yield carry(r) ys(s4, r1)
            }
            m:f32[3] = mul ct w
            c1:f32[3] = scan[6, reverse] carry(c=m) xs(x=i, x1=ys) {
              l:bool[] = lt x n
        -     m:f32[3] = mul c x1
        -     s:f32[3] = select_n l c m
        +     l1:bool[] = lt x c2
        +     r:f32[3] = cond l1 {
        +       m:f32[3] = mul c x1
        +       s:f32[3] = select_n l c m
        +       yield s
        +     } else {
        +       yield c
        +     }
        -     yield carry(s)
        +     yield carry(r)
            }
            return ys1, c1
          }
        """,
    )


scattered = lambda t, h, n: (t % 3 == 1) & (t < n)


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        both(until),
        both(rollout),
        both(batch),
        both(batch_until),
        both(batch_rollout),
        both(counts=scattered),
        both(counts=lambda t, h, n: t > n),
    ],
)
def test_which_steps_count(program, joint):
    """They are known before the loop, or a step decides that for all after it."""
    graph = alone(DROPPED, program, *ARGS, fires=True)
    assert sum(isinstance(op, Cond) for op in graph.walk()) == 2


def test_rows_that_a_skipped_step_could_compute(joint):
    """Only steps that are taken compute what only the loop back reads."""
    graph = alone(DROPPED, both(rollout), *ARGS, fires=True)
    forward = next(op for op in graph.walk() if isinstance(op, Cond))
    assert not any(op.name == "tanh" for op in forward.branches[0].walk())


def test_rows_that_are_results_are_computed_in_skipped_steps(joint):
    """(2) Something else reads them, too."""

    def program(w, xs, n):
        def step(carry, x):
            h, done, scale = carry
            t = jnp.tanh(h * w)
            kept = jnp.where(done, h, jnp.sin(t) + x)
            carry = kept, done | (h[0] > n), scale * 0.9
            return carry, (t, jnp.cos(t), scale, done)

        begin = jnp.zeros(3), jnp.bool_(False), 1.0
        _, (ts, cs, scales, ends) = lax.scan(step, begin, xs)

        def back(g, row):
            t, c, scale, done = row
            return jnp.where(done, g, g * c + scale * t), None

        return ts, lax.scan(back, jnp.zeros(3), (ts, cs, scales, ends), reverse=True)[0]

    graph = alone(DROPPED, program, *ARGS[:2], "f32[]", fires=True)
    forward = next(op for op in graph.walk() if isinstance(op, Cond))
    assert {op.name for op in forward.branches[0].walk()} >= {"tanh"}
    assert not any(op.name == "cos" for op in forward.branches[0].walk())


def test_what_is_compiled_together():
    """`exit-loop-early` stops the loops of one program."""
    with using(EAGER):
        alone(DROPPED, both(), *ARGS, fires=False)


def test_what_is_read_after_the_last_step(joint):
    """(1) The last state."""
    alone(DROPPED, both(also=jnp.sum), *ARGS, fires=False)


def test_a_loop_that_takes_all_steps(joint):
    """(1) What tells which steps count is in no other loop to be seen."""
    alone(DROPPED, both(counts=lambda t, h, n: h[0] < n), *ARGS, fires=False)


def test_a_loop_that_does_not_stop_early(joint):
    """(1) It asks to be unrolled, all of it."""
    alone(DROPPED, both(unroll=2), *ARGS, fires=True)
    check_refuses(DROPPED, both(unroll=True), *ARGS, because="asks to be unrolled")


def test_rows_that_are_read_forward(joint):
    """(2) A step of the loop that reads them comes before what tells it where to stop."""
    because = "is not read row by row"
    check_refuses(DROPPED, by_hand(reverse=False), *ARGS, because=because)


def test_rows_of_a_nest(joint):
    """(2) The inner loop of another nest reads them, which does not know how many were taken."""

    def program(w, xs, counts):
        def step(h, row):
            h = jnp.sin(h * w) + row[0]
            return h, (h, jnp.where(row[1], h[0], 0.0))

        back = lambda c, row: (jnp.where(row[1], c * row[0], c), None)
        there = lambda c, rows: (c, lax.scan(step, w, rows)[1])
        _, (hs, losses) = lax.scan(there, 0, (xs, counts))
        again = lambda c, rows: lax.scan(back, c, rows, reverse=True)
        return losses, lax.scan(again, w, (hs, counts), reverse=True)[0]

    types = "f32[3]", "f32[2,6,3]", "bool[2,6]"
    check_refuses(DROPPED, program, *types, because="is not read row by row")


@pytest.mark.slow
@pytest.mark.parametrize("f", LOSSES)
def test_gradients_of_an_optimised_loss(f):
    """The values, and those of a batch of gradients."""
    mapped = lambda f: jax.vmap(jax.grad(f), (None, None, 0))
    single = [jax.jit(jax.value_and_grad(each, (0, 1))) for each in (f, optimize(f))]
    rows = [jax.jit(mapped(each)) for each in (f, optimize(f))]
    args = jnp.float32([0.3, -0.5, 0.9]), X
    for n in (0, 1, 7, 48, 60):
        assert_close(*(each(*args, jnp.int32(n)) for each in single))
        assert_close(*(each(*args, jnp.int32([n, 3, 0])) for each in rows))


@pytest.mark.parametrize("f", LOSSES)
def test_both_halves_stop_early(f):
    args = jnp.float32([0.3, -0.5, 0.9]), X[:40], jnp.int32(7)
    with using(EAGER), collect_journals() as journals:
        jax.jit(jax.value_and_grad(optimize(f))).lower(*args)
    last = [each.record("exit-loop-early", False) for each in journals if each.phase == "final"]
    assert [len(each.rewrites) for each in last] == [1, 1]


def test_second_derivatives():
    """(3) In either mode: forward, or backward of a batch, whose branches are selects."""
    args = jnp.float32([0.3, -0.5, 0.9]), X, jnp.int32(7)
    assert_close(jax.hessian(loss)(*args), jax.hessian(optimize(loss))(*args))
    rows = (*args[:2], jnp.int32([7, 3, 0]))

    def twice(f):
        mapped = jax.vmap(jax.grad(f), (None, None, 0))
        return jax.grad(lambda w: jnp.sin(mapped(w, *rows[1:])).sum())(rows[0])

    assert_close(twice(loss), twice(optimize(loss)))


def test_steps_after_the_last_one_are_no_numbers():
    """What is left out is not multiplied by zero, as in plain JAX."""
    xs = X.at[7:].set(jnp.nan)
    f = lambda w, xs, n: loss(w, xs, n, counts=lambda t, h, n: t < n)
    got = jax.grad(optimize(f))(jnp.float32([0.3, -0.5, 0.9]), xs, jnp.int32(7))
    assert_close(jax.grad(loss)(jnp.float32([0.3, -0.5, 0.9]), X, jnp.int32(7)), got)


def markov(transitions, emissions, n):
    """A filter whose gradient reads the mask only: it is a small part of what is stored."""

    def step(a, row):
        t, b = row
        m = jax.nn.logsumexp(a[:, None] + transitions, axis=0) + b
        z = jax.nn.logsumexp(m)
        return m - z, jnp.where(t < n, z, 0.0)

    numbers = jnp.arange(len(emissions))
    return lax.scan(step, jnp.zeros(len(transitions)), (numbers, emissions))[1].sum()


def test_a_mask_that_tells_a_loop_back_is_computed_again():
    """Where the loss is not asked for, nothing else tells the loops where to stop."""
    args = jnp.outer(X[:24, 0], X[24:, 1]), jnp.outer(X[:, 0], X[24:, 2]), jnp.int32(7)
    gradient = optimize(jax.grad(markov))
    graph, _ = observe.optimized(gradient, args, {})
    assert [type(op) for op in graph.walk() if isinstance(op, Scan | While)] == [While, While]
    assert_close(jax.grad(markov)(*args), gradient(*args))


@pytest.mark.parametrize("bound", [0.5, 1.2, 99.0])
def test_cheap_steps_of_a_batch(bound):
    """The forward loop asks after several steps and stacks what it computes; the loop back begins
    at the last one taken.
    """
    args = 0.3, jax.random.normal(jax.random.key(0), (64, 256)) + 1, bound
    gradient = jax.grad(optimize(paths()))
    after, journals = observe.optimized(gradient, args, {})
    assert any(DROPPED.name in journal.records for journal in journals)
    outer = [op for op in after.walk() if isinstance(op, While) and op.parent is None]
    assert any(isinstance(op, Scan) for op in outer[0].body.ops)
    assert not any(isinstance(op, Cond) for op in after.walk())
    assert not any(op.name == "reduce_or" for op in outer[-1].walk())
    assert_close(jax.jit(gradient)(*args), jax.grad(paths())(*args), rtol=1e-5)


def test_cheap_steps_of_a_batch_that_read_windows():
    """A branch of the loop back would become a select of the whole table under `vmap`."""

    def light(table, origins):
        def one(origin):
            def step(state, t):
                through, total, goes_on = state
                seen = table[jnp.clip(origin + t, 0, len(table) - 1).astype(int)]
                left = jnp.exp(-0.2 * jax.nn.softplus(seen[0]))
                new = through * left, total + through * (1 - left) * jax.nn.sigmoid(seen[1:])
                kept = [jnp.where(goes_on, a, b) for a, b in zip(new, state, strict=False)]
                return (*kept, goes_on & (kept[0] > 0.05)), None

            return lax.scan(step, (1.0, jnp.zeros(3), True), jnp.arange(64))[0][1]

        return jnp.sum(jnp.sin(jax.vmap(one)(origins)))

    table = jax.random.normal(jax.random.key(0), (32768, 4))
    args = table, 32768 * jax.random.uniform(jax.random.key(1), (3, 128))
    rows = lambda f: jax.vmap(jax.grad(f), (None, 0))
    after, _ = observe.optimized(rows(optimize(light)), args, {})
    assert any(op.result.size == 3 * table.size for op in after.walk() if op.name in SUMS)
    assert not any(op.result.size >= table.size for op in after.walk() if op.name == "select_n")
    assert_close(jax.jit(rows(optimize(light)))(*args), rows(light)(*args), rtol=1e-5)


def test_cheap_steps_of_a_batch_that_are_asked_in_vain():
    """Fewer rows take less time than asking after any number of steps that divides that of all."""
    gradient = jax.grad(optimize(paths()))
    args = jnp.float32(0.3), jnp.ones((61, 8)), jnp.float32(1.2)
    _, journals = observe.optimized(gradient, args, {})
    records = [r for j in journals for r in j.records.values() if r.name == DROPPED.name]
    assert records and not any(record.rewrites for record in records)
