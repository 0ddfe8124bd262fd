"""Choices with which a step does nothing are asked about."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxpr_opt import optimize
from jaxpr_opt.cost.model import using
from jaxpr_opt.engine import registry
from jaxpr_opt.ir.graph import Scan, While
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.passes.steps.ask_about_choices import AskAboutChoices
from jaxpr_opt.reports import observe
from jaxpr_opt.testing import (
    assert_close,
    assert_same_bits,
    assert_same_derivatives,
    check_rewrite,
    evaluate_exactly,
    run_alone,
    traced,
)
from tests.loops import alone
from tests.prices import EAGER

ASK = AskAboutChoices()
STEPS = 6
X = jnp.array([0.5, 1.5])


def scanned(step, *carry, xs=None, length=STEPS):
    return lax.scan(lambda c, x: (step(*c, x), None), carry, xs, length=length)[0]


def fall(x):
    return 0.5 * x - 0.3


def slide(x):
    return jnp.sin(x)


def at_rest(x, s):
    """The last case does nothing: an index beyond it is one of it."""

    def step(x, s, _):
        cases = [
            lambda: (fall(x), jnp.where(x[0] < 0, 1, 0)),
            lambda: (slide(x), jnp.where(x[1] < 0.5, 2, 1)),
            lambda: (x, s),
        ]
        return lax.switch(s, cases)

    return scanned(step, x, s)


def over_first(x, s):
    """The first one, of small integers without a sign; the state is a constant of each case."""

    def step(x, s, _):
        number = lambda n: jnp.asarray(n, jnp.uint8)
        cases = [
            lambda: (x, number(0)),
            lambda: (fall(x), number(2)),
            lambda: (slide(x), jnp.where(x[1] < 0.5, number(0), number(2))),
        ]
        return lax.switch(s, cases)

    return scanned(step, x, jnp.asarray(s, jnp.uint8))


def accepted(x, s):
    """One in the middle, and the last."""

    def step(x, s, _):
        cases = [
            lambda: (fall(x), jnp.where(x[0] < 0, 2, 0)),
            lambda: (x, jnp.int32(1)),
            lambda: (slide(x), jnp.where(x[1] < 0.5, 1, 3)),
            lambda: (x, jnp.int32(3)),
        ]
        return lax.switch(s, cases)

    return scanned(step, x, s)


def halted(x, s):
    """A program whose last instruction does nothing."""
    program = jnp.array([0, 1, 0, 1, 2])

    def step(x, at, _):
        onward = lambda f: lambda: (f(x), at + 1)
        return lax.switch(program[at], [onward(fall), onward(slide), lambda: (x, at)])

    return scanned(step, x, s)


def chained(x, s):
    """No truth value tells of the case that is left."""

    def step(x, s, _):
        x1 = jnp.where(s == 0, fall(x), jnp.where(s == 1, slide(x), x))
        s1 = jnp.where(s == 0, jnp.where(x1[0] < 0, 1, 0), jnp.where(s == 1, 2, s))
        return x1, s1

    return scanned(step, x, s)


def together(x, s):
    """Two states, of which both rest."""

    def step(x, s, y, r, _):
        move = lambda x, s: (jnp.tanh(x), jnp.where(x[1] < 0.7, 1, 0))
        rest = lambda x, s: (x, s)
        return (
            *lax.switch(s, [move, rest, rest], x, s),
            *lax.switch(r, [lambda x, s: (slide(x), 1), rest, rest], y, r),
        )

    return scanned(step, x, s, 2 * x, jnp.int32(0))


def flags(x, s):
    """Truth values of which each keeps a part from changing."""

    def step(x, a, y, b, _):
        return (
            jnp.where(a, fall(x), x),
            a & (x[0] > 0),
            jnp.where(b, slide(y), y),
            b & (y[1] > 0.8),
        )

    return scanned(step, x, s == 0, 2 * x, s < 2)


def nested(x, s):
    """A `cond` in the case that may do nothing."""

    def step(x, s, is_kicked, _):
        cases = [
            lambda: (fall(x), jnp.where(x[0] < 0, 2, 1), is_kicked),
            lambda: (slide(x), 0, is_kicked),
            lambda: lax.cond(is_kicked, lambda: (x + 1.0, 0, False), lambda: (x, s, is_kicked)),
        ]
        return lax.switch(s, cases)

    return scanned(step, x, s, True)


def settled(x, s):
    """What was in motion is zero from then on."""

    def step(x, v, s, _):
        cases = [
            lambda: (x + 0.1 * v, fall(v), jnp.where(v[0] < 0, 1, 0)),
            lambda: (x + 0.1 * v, slide(v), jnp.where(v[1] < 0.5, 2, 1)),
            lambda: (x, jnp.zeros(2), 2),
        ]
        return lax.switch(s, cases)

    return scanned(step, x, x, s)


def logged(x, s):
    """A row is written by some cases, and all rows are results."""

    def step(x, s, log, t):
        cases = [
            lambda: (fall(x), jnp.where(x[0] < 0, 1, 0), log.at[t].set(x[0])),
            lambda: (slide(x), 2, log),
            lambda: (x, s, log),
        ]
        return lax.switch(s, cases)

    return scanned(step, x, s, jnp.zeros(STEPS), xs=jnp.arange(STEPS))


def padded(x, s):
    """Kinds of steps are data, of which the last ones do nothing."""
    kinds = jnp.where(jnp.arange(STEPS) < s + 1, jnp.arange(STEPS) % 2 + 1, 0)
    step = lambda x, kind: (lax.switch(kind, [lambda x: x, fall, slide], x), None)
    return lax.scan(step, x, kinds)[0]


PROGRAMS = {
    f.__name__: f
    for f in (
        at_rest, over_first, accepted, halted, chained, together, flags, nested, settled, logged,
        padded,
    )
}  # fmt: skip


def machine(x, s):
    """Two cases rest."""
    rest = lambda x, s: (x, s)
    cases = [lambda x, s: (x + 1.0, s + 1), rest, lambda x, s: (x * 2.0, s + 1), rest]
    return scanned(lambda x, s, _: lax.switch(s, cases, x, s), x, s)


def test_text():
    with using(EAGER):
        check_rewrite(
            ASK,
            machine,
            "f32[2]",
            "i32[]",
            diff="""
            fn (x:f32[2], s:i32[]) {
              c:f32[2], c1:i32[] = scan[6] carry(c=x, c1=s) {
          +     n:bool[] = ne c1 1
          +     n1:bool[] = ne c1 3
          +     a2:bool[] = and n n1
          +     s1:i32[] = select_n a2 c1 c1
          -     c2:i32[] = clamp 0 c1 3
          +     c2:i32[] = clamp 0 s1 3
                r:f32[2], r1:i32[] = switch c2 case 0 {
                  a:f32[2] = add c 1.0
          -       a1:i32[] = add c1 1
          +       a1:i32[] = add s1 1
                  yield a, a1
                } case 1 {
          -       yield c, c1
          +       yield c, s1
                } case 2 {
                  m:f32[2] = mul c 2.0
          -       a:i32[] = add c1 1
          +       a:i32[] = add s1 1
                  yield m, a
                } case 3 {
          -       yield c, c1
          +       yield c, s1
                }
                yield carry(r, r1)
              }
              return c, c1
            }
            """,
        )


@pytest.mark.parametrize("s", [0, 3, -1, 7])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name, s):
    """Also if the first state is out of range; what goes on may be most of a step."""
    program, args = PROGRAMS[name], (X, jnp.int32(s))
    with using(EAGER.but(noticed=1.0)):
        alone(ASK, program, *args, fires=True)
        found, _ = observe.optimized(program, args, {})
    assert any(isinstance(op, While) for op in found.walk())
    assert_same_bits(
        evaluate_exactly(found, *args), evaluate_exactly(traced(program, *args), *args)
    )


def loss_of(program):
    return lambda x, s: sum(jnp.sum(each**2.0) for each in jax.tree.leaves(program(x, s)))


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name):
    loss = loss_of(PROGRAMS[name])
    with using(EAGER):
        assert_same_derivatives(lambda x: loss(x, 0), optimize(lambda x: loss(x, 0)), X)
        graph, _ = observe.optimized(jax.grad(loss), (X, 0), {})
    assert any(isinstance(op, While) for op in graph.walk())
    assert_close(evaluate_exactly(graph, X, 0), [jax.grad(loss)(X, 0)])


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_batches(name):
    """Whose rows rest in different steps, and in different states."""
    loss = loss_of(PROGRAMS[name])
    xs, states = X + jnp.arange(4.0)[:, None] / 3, jnp.array([0, 1, 2, 3])
    each = jax.vmap(jax.grad(loss))
    with using(EAGER):
        for function in (jax.vmap(PROGRAMS[name]), each):
            graph, _ = observe.optimized(function, (xs, states), {})
            # One of the two states of `together` is the same in all rows, and chosen by a `cond`.
            assert any(isinstance(op, While) for op in graph.walk()) or name == "together"
            want = jax.tree.leaves(function(xs, states))
            assert_close(evaluate_exactly(graph, xs, states), want)
        inside = jax.vmap(jax.grad(optimize(loss)))
        assert_close(jax.tree.leaves(inside(xs, states)), [each(xs, states)])


@pytest.mark.parametrize("given", [False, True])
def test_both_loops_of_two_masks(given):
    """The loop back sums products of cotangents, of which nothing is chosen; a mask is read as a
    row of what the loop forward stacks, or computed again.
    """

    def loss(w, x, rows, n, m):
        def step(x, y, z):
            row, *masks = z
            first, second = masks if given else (masks[0] < n, masks[0] < m)
            new = jnp.where(first[:, None], jnp.tanh(x @ w + row), x)
            return new, jnp.where(second[:, None], jnp.sin(y @ w) + row, y)

        steps = jnp.arange(STEPS)
        xs = (rows, steps[:, None] < n, steps[:, None] < m) if given else (rows, steps)
        return sum(jnp.sum(each**2) for each in scanned(step, x, x + 1.0, xs=xs))

    w, rows = jnp.array([[0.5, 0.2], [-0.3, 0.4]]), jnp.ones((STEPS, 3, 2)) * X
    with using(EAGER):
        for n, m in (([1, 0, 2], [0, 3, 1]), ([6, 1, 2], [0, 0, 0]), ([0, 0, 0], [0, 0, 0])):
            args = w, jnp.ones((3, 2)), rows, jnp.array(n), jnp.array(m)
            graph, _ = observe.optimized(jax.grad(loss), args, {})
            assert sum(isinstance(op, While) for op in graph.walk()) == 2
            assert_close(evaluate_exactly(graph, *args), [jax.grad(loss)(*args)])


@pytest.mark.slow
def test_the_loop_back_of_steps_that_are_rejected(monkeypatch):
    """A mask is stacked twice, and another beside it (curves are fitted): the loop back is asked
    what skipped steps have stacked, and not whether the mask is true and false.
    """
    asked = []
    find = AskAboutChoices.find

    def recorded(self, op):
        for match in find(self, op):
            asked.append(match.idle.facts)
            yield match

    times = jnp.linspace(0, 4, 50)
    curve = lambda p: p[0] * jnp.exp(-p[1] * times) + p[2] * jnp.sin(p[3] * times)

    def fitted(y):
        def step(p, rate, cost, done, _):
            slopes = jax.jacfwd(curve)(p)
            a = slopes.T @ slopes + rate * jnp.eye(4)
            d = jnp.linalg.solve(a, slopes.T @ (y - curve(p)))
            new = jnp.sum((curve(p + d) - y) ** 2)
            better = new < cost
            changed = jnp.where(better, p + d, p), jnp.where(better, 0.3 * rate, 3 * rate)
            state = (*changed, jnp.where(better, new, cost), jnp.max(jnp.abs(d)) < 1e-4)
            keep = lambda old, new: jnp.where(done, old, new)
            return tuple(map(keep, (p, rate, cost, done), state))

        begin = jnp.array([1.0, 0.5, 0.5, 2.0]), jnp.float32(0.01), jnp.sum(y**2), jnp.array(False)
        return scanned(step, *begin, length=100)

    def loss(ys):
        p, _, cost, _ = jax.vmap(fitted)(ys)
        return jnp.sum(p[:, 1]) + jnp.sum(cost)

    monkeypatch.setattr(AskAboutChoices, "find", recorded)
    observe.optimized(jax.grad(loss), (jnp.ones((8, 50)),), {})
    assert asked and all(fact is True for facts in asked for fact in facts.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["at_rest", "chained", "settled"])
def test_forward_mode(name):
    program, args = PROGRAMS[name], (X, jnp.int32(0))
    with using(EAGER):
        found = jax.jvp(lambda x: optimize(program)(x, args[1])[0], (X,), (jnp.ones(2),))
    want = jax.jvp(lambda x: program(x, args[1])[0], (X,), (jnp.ones(2),))
    assert_close(list(found), list(want))


# ---------------------------------------------------------------- what is not asked


def changing(x, s, _):
    """Each case does something."""
    return lax.switch(s, [lambda: (fall(x), 1), lambda: (slide(x), 2), lambda: (x * 2.0, s)])


def counting(x, s, _):
    """A case keeps the array, and goes on to another one."""
    return lax.switch(s, [lambda: (fall(x), 1), lambda: (x, 2), lambda: (slide(x), 0)])


def drawn(x, s, key):
    """Each row of a batch draws what it does."""
    case = jax.random.randint(jax.random.wrap_key_data(key), (), 0, 3)
    return lax.switch(case, [lambda: (x, s), lambda: (fall(x), s), lambda: (slide(x), s)])


@pytest.mark.parametrize("step", [changing, counting])
def test_what_is_not_asked(step):
    with using(EAGER):
        alone(ASK, lambda x, s: scanned(step, x, s), "f32[2]", "i32[]", fires=False)


def test_what_each_row_draws():
    keys = jnp.zeros((4, STEPS, 2), jnp.uint32)
    program = jax.vmap(lambda x, s, keys: scanned(drawn, x, s, xs=keys))
    with using(EAGER):
        alone(ASK, program, jnp.ones((4, 2)), jnp.zeros(4, jnp.int32), keys, fires=False)


def test_a_step_that_is_skipped_anyway():
    def step(x, s, _):
        rest = lambda x, s: (x, s)
        move = lambda x, s: lax.switch(s, [lambda x, s: (fall(x), 1), rest, rest], x, s)
        return lax.cond(x[0] < 0, rest, move, x, s)

    with using(EAGER):
        alone(ASK, lambda x, s: scanned(step, x, s), "f32[2]", "i32[]", fires=False)


def test_what_is_known_anyway():
    """A question that is answered at once would be asked again and again."""
    cases = [lambda x, s: (fall(x), 0), lambda x, s: (x, 2), lambda x, s: (x, s)]
    never = lambda x, s, _: lax.switch(lax.clamp(2, s, 0), cases, x, s)
    kept = lambda x, s, _: (x, s)
    for step in (never, kept):
        with using(EAGER):
            graph = alone(
                ASK, lambda x, s, f=step: scanned(f, x, s), "f32[2]", "i32[]", fires=False
            )
        assert any(isinstance(op, Scan) for op in graph.walk())


def test_a_truth_value_that_would_be_asked_by_itself():
    """``select_n (not s) s s`` is s, which passes that tidy up find: it would be asked for ever."""

    def program(x):
        cases = [lambda _: (jnp.zeros(2), 1), *[lambda s: (x, s)] * 2]
        return scanned(lambda y, s, _: lax.switch(s, cases, s), 2 * x, 0)[0]

    tidy = (each for each in registry.available().values() if each.cleanup)
    with using(EAGER):
        graph = import_jaxpr(traced(program, X))
        asked = run_alone((ASK, *tidy), graph).record(ASK.name, False).rewrites
    assert len(asked) == 1
    assert_same_bits(evaluate_exactly(graph, X), [program(X)])


def test_rows_that_are_marked():
    """A step marks some rows, for all that is known, and changes those: `update-states` does so."""

    def program(x, age, ids):
        def step(carry, ti):
            (x, age), (t, i) = carry, ti
            hits = jnp.zeros((len(x), 1), jnp.int32).at[i].add(1)
            x = jnp.where(hits > 0, jnp.sin(x), x)
            return (x, jnp.where(hits[:, 0] > 0, t, age)), None

        return lax.scan(step, (x, age), (jnp.arange(5), ids))[0]

    with using(EAGER):
        alone(ASK, program, "f32[9,2]", "i32[9]", "i32[5,3]", fires=False)
