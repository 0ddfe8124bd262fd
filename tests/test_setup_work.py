"""What is done to set up a program grows with its length, and no faster.

Counted is how often each function of this library is called, and how often two values are compared,
which lists do where sets would not.  Nothing is timed.
"""

import cProfile
import gc
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxpr_opt
import jaxpr_opt.passes
from jaxpr_opt import optimize, settings
from jaxpr_opt.analysis.residuals import replays
from jaxpr_opt.analysis.steps import skips
from jaxpr_opt.analysis.values import step_numbers
from jaxpr_opt.analysis.values.origins import Origins
from jaxpr_opt.bridge import compat, compat_ad, compat_repeats, compat_source, compat_types
from jaxpr_opt.engine import pipeline, split
from jaxpr_opt.engine.interface import Match, Pass, PassError
from jaxpr_opt.engine.running import run_pass
from jaxpr_opt.insight.journal import Journal
from jaxpr_opt.ir import graph
from jaxpr_opt.ir.importer import import_jaxpr
from tests.sets import crossed

OURS = tuple(str(Path(module.__file__).parent) for module in (jaxpr_opt, jaxpr_opt.passes))
FEW = 180
"""Calls that do not tell: there are so many for any program."""


def chain(n):
    """Each value is read by the next two, and once more at the end."""

    def f(x):
        values = [x, lax.sin(x)]
        for k in range(n):
            a, b = values[-2:]
            values.append(lax.mul(a, b) if k % 2 else lax.add(a, lax.mul(b, 0.5)))
        return sum(map(jnp.sum, values[:: max(1, n // 8)]))

    return f, (jnp.ones(3),)


def layers(n):
    """Unrolled, with parameters of their own, and one that all of them share."""

    def f(params, shared, x):
        for w, b in params:
            x = x + jnp.tanh(x @ w + b) @ shared
        return jnp.sum(x * x)

    return f, ([(jnp.eye(2), jnp.ones(2))] * (n // 4), jnp.eye(2), jnp.ones((3, 2)))


def selects(n):
    """Choices between two ways, half of them of zero."""

    def f(x):
        for k in range(n // 3):
            x = lax.select(x > 0.1 * k, lax.sin(x), x * x if k % 2 else jnp.zeros_like(x))
        return jnp.sum(x)

    return f, (jnp.ones(3),)


def slices(n):
    """Rows of arrays that are read and written at places known and unknown."""

    def f(xs, i):
        total = jnp.zeros(2)
        for k in range(n // 8):
            total = lax.sin(total) * xs[k % 8] + lax.dynamic_index_in_dim(xs, i, 0, False)
            if k % 4 == 0:
                xs = xs.at[k % 8].set(total)
        return jnp.sum(total) + jnp.sum(xs)

    return f, (jnp.ones((8, 2)), 3)


def wide(n):
    """Many arguments and many results."""

    def f(xs, y):
        return [lax.sin(x) * y for x in xs]

    return lambda xs, y: sum(map(jnp.sum, f(xs, y))), ([jnp.ones(3)] * (n // 3), jnp.ones(3))


def loops(n):
    """One small loop after another."""

    def f(x, xs):
        for _ in range(n // 24):
            x, _ = lax.scan(lambda c, y: (lax.sin(c) * y, None), x, xs)
        return jnp.sum(x)

    return f, (jnp.ones(2), jnp.ones((3, 2)))


def long_body(n):
    """One loop of which a step is long."""
    step, _ = chain(n // 4)

    def f(x, xs):
        return lax.scan(lambda c, y: (c + step(c * y), None), x, xs)[0].sum()

    return f, (jnp.ones(3), jnp.ones((4, 3)))


def network(n):
    """One loop of which a step has many layers, each multiplied by what it is made of."""

    def step(c, y):
        for k in range(n // 16):
            c = lax.mul(lax.tanh(lax.add(lax.mul(c, 0.9), 0.1 * k)), c)
        return c + y, None

    return lambda x, xs: lax.scan(step, x, xs)[0].sum(), (jnp.ones(3), jnp.ones((4, 3)))


def crossings(n):
    """One loop of which a step chooses again and again, by what it has chosen before."""

    def step(c, y):
        for k in range(n // 8):
            c = lax.select(c > 0.1 * k, lax.sin(c) * y, c * c)
        return c, None

    return lambda x, xs: lax.scan(step, x, xs)[0].sum(), (jnp.ones(3), jnp.ones((4, 3)))


def predicates(n):
    """One loop of which a step changes each of its carries under a predicate of its own."""

    def step(carries, y):
        return [lax.select(y > 0.1 * k, lax.sin(c) * y, c) for k, c in enumerate(carries)], None

    def f(x, xs):
        return sum(map(jnp.sum, lax.scan(step, [x] * (n // 6), xs)[0]))

    return f, (jnp.ones(3), jnp.ones((4, 3)))


def stopping(n):
    """One loop of which a step changes all of its carries under one predicate."""

    def step(carry, y):
        t, *kept = carry
        made = [lax.sin(a) * b + y for a, b in zip(kept, kept[1:] + kept[:1], strict=True)]
        carries = [t + made[0][0], *made]
        return [
            lax.select(jnp.full(c.shape, t < 5.0), new, c)
            for new, c in zip(carries, carry, strict=True)
        ], None

    def f(x, xs):
        return sum(map(jnp.sum, lax.scan(step, [jnp.float32(0), *[x] * (n // 20)], xs)[0]))

    return f, (jnp.ones(512), jnp.ones((64, 512)))


def kinks(n):
    """One loop of which a step is a branch that compares again and again."""

    def go_on(c):
        for _ in range(n // 20):
            c = jnp.minimum(jnp.maximum(c, -c), c + 1)
        return c

    def f(x, xs):
        step = lambda c, y: (lax.cond(c[0] < 5.0, lambda: go_on(c) + y, lambda: c), c)
        c, ys = lax.scan(step, x, xs)
        return jnp.sum(c) + jnp.sum(ys * ys)

    return f, (jnp.ones(3), jnp.ones((4, 3)))


def branches(n):
    """One choice after another."""

    def f(x, p):
        for k in range(n // 12):
            x = lax.cond(p > k, lambda x: lax.sin(x) * x, lambda x: x * 0.5, x)
        return jnp.sum(x)

    return f, (jnp.ones(3), jnp.float32(3))


def batched(n):
    """One choice after another for each row of a batch."""
    f, (x, p) = branches(n)
    rows = jnp.broadcast_to(x, (4, 3)), p + jnp.arange(4.0)
    return lambda *rows: jnp.sum(jax.vmap(f)(*rows)), rows


ORDERS = {
    "gradient of optimised": lambda f: jax.jit(jax.grad(jaxpr_opt.optimize(f))),
    "optimised gradient": lambda f: jax.jit(jaxpr_opt.optimize(jax.grad(f))),
}


PROGRAMS = (
    chain, layers, selects, slices, wide, loops, long_body, network, crossings, predicates,
    branches, batched,
)  # fmt: skip
LONGER = {slices: 160, network: 160}
"""Of short ones less is asked: they are worth less."""


@pytest.mark.parametrize(
    ("program", "order"),
    crossed(PROGRAMS, ORDERS),
    ids=lambda each: getattr(each, "__name__", each),
)
def test_work_is_linear_in_the_length_of_a_program(program, order, monkeypatch):
    """Nothing of ours is called more than twice as often for twice the program.

    Every program in one order; in the other, too, where all tests run.
    """
    for kind in (graph.Value, graph.Op):
        monkeypatch.setattr(kind, "__eq__", compared, raising=False)
        monkeypatch.setattr(kind, "__hash__", object.__hash__)
    n = LONGER.get(program, 96)
    short, long = (calls(ORDERS[order], *program(length)) for length in (n, 2 * n))
    grown = {name: (short[name], count) for name, count in long.items() if count > FEW}
    assert sum(count for _, count in grown.values()) > 10_000
    assert {k: v for k, v in grown.items() if v[1] > 2.2 * v[0]} == {}


def test_what_a_skipped_step_does_is_found_out_once():
    """Not again for each of the stacks that another loop reads."""
    walks = [
        calls(ORDERS["optimised gradient"], *stopping(n))["assume.py: __init__"] for n in (160, 200)
    ]
    assert walks[0] == walks[1] > 10


def test_a_predicate_asks_again_only_what_it_changes():
    """Those of a branch tell little of its other ops."""
    files = ("assume.py", "rounding.py", "splats.py")

    def asked(n):
        found = calls(ORDERS["optimised gradient"], *kinks(n))
        return sum(count for name, count in found.items() if name.split(":")[0].endswith(files))

    short, long = asked(80), asked(160)
    assert 10_000 < long < 2.2 * short


def test_what_loops_read_and_stack_is_looked_at_once(monkeypatch):
    """Not again for each row that one loop stores for another."""

    def looked_at(n):
        count = Counter()
        for kind in (graph.Stream, graph.Stack):
            made = lambda *parts, kind=kind: count.update([kind]) or kind(*parts)
            monkeypatch.setattr(graph, kind.__name__, made)
        calls(ORDERS["optimised gradient"], *network(n))
        monkeypatch.undo()
        return count

    short, long = looked_at(160), looked_at(320)
    assert all(1000 < long[kind] < 2.2 * short[kind] for kind in long)


def test_readers_of_rows_are_found_among_uses():
    """Not among all that the loop which reads them takes."""

    def executed(n):
        """How many instructions of the interpreter that is."""
        g = import_jaxpr(jax.make_jaxpr(jax.grad(network(n)[0]))(*network(n)[1]))
        scan = next(op for op in g.body.ops if isinstance(op, graph.Scan))
        count = Counter()

        def trace(frame, event, _):
            frame.f_trace_opcodes = frame.f_code.co_filename == replays.__file__
            count[event] += 1
            return trace

        sys.settrace(trace)
        try:
            replays.replay(scan)
        finally:
            sys.settrace(None)
        return count["opcode"]

    short, long = executed(640), executed(1280)
    assert 10_000 < long < 2.2 * short


def test_ops_are_numbered_once_where_reads_are_ordered():
    """Not again after each op that moves."""

    def writes(n):
        def step(c, y):
            for k in range(n):
                c = c.at[(k * 7 + y) % 8].set(jnp.sin(c[k % 8]) * 0.5)
            return c, c[0]

        def f(x, xs):
            c, ys = lax.scan(step, x, xs)
            return jnp.sum(c) + jnp.sum(ys)

        return f, (jnp.ones((8, 64)), jnp.arange(16))

    short, long = (
        calls(ORDERS["optimised gradient"], *writes(n))["graph.py: order"] for n in (5, 10)
    )
    assert 0 < long < 2.5 * short


def compared(a, b):
    """Equality of things that are equal only to themselves, counted."""
    return a is b


def calls(order, fun, args):
    """How often each function of ours is called while a program is set up, and how often values
    are compared; what the solver of flow problems compares is its own affair.
    """
    jax.clear_caches()
    gc.collect()  # programs of other tests, whose ends would be counted
    profile = cProfile.Profile(builtins=False)
    profile.runcall(order(fun).lower, *args)
    count = Counter()
    for entry in profile.getstats():
        file = getattr(entry.code, "co_filename", "")
        if file.startswith(OURS):
            count[f"{Path(file).name}: {entry.code.co_name}"] += entry.callcount
        if "networkx" not in file:
            inner = [each for each in entry.calls or () if each.code is compared.__code__]
            count["compared"] += sum(each.callcount for each in inner)
    return count


def truths(n):
    """Truth values that a step makes of the two before."""

    def step(carry, t):
        x, p, q = carry
        for _ in range(n):
            p, q = q, (p & q) | (q & ~p)
        return (jnp.where(p, jnp.sin(x), x), p, q), None

    return lambda x: lax.scan(step, (x, x[0] > 0, x[1] > 0), jnp.arange(8))[0][0].sum()


def conjunctions(n):
    """What a branch knows, where each of them is made of the two before."""

    def f(x):
        p, q = x[0] > 0, x[1] > 0
        for _ in range(n):
            p, q = q, p & q
        return jnp.sum(lax.cond(p, lambda: jnp.sin(x) * jnp.where(q, x, 1.0), lambda: x))

    return f


def versions(n):
    """An array that selects choose of the two before, in a loop that ends by what is in it."""

    def step(carry, t):
        x, errors = carry
        goes_on = (t < 2) | (errors[t - 1] > 0.5)
        a, b = errors, errors.at[t].set(jnp.sum(x))
        for k in range(n):
            a, b = b, jnp.where(x[k % 4] > 0, a, b)
        return (jnp.where(goes_on, jnp.sin(x), x), jnp.where(goes_on, b, errors)), None

    return lambda x: lax.scan(step, (x, -jnp.ones(8)), jnp.arange(8))[0][0].sum()


def masked_sums(n):
    """Rows of sums, of the two before, of which a mask drops those that the loop skips."""

    def loss(x):
        numbers, length = jnp.arange(64), x[0].astype(jnp.int32)

        def step(h, t):
            made = jnp.where(t < length, jnp.tanh(h * x), h)
            return made, made

        h, a = lax.scan(step, x, numbers)
        b = a[:, ::-1]
        for _ in range(n):
            a, b = b, a + b
        return jnp.sum(jnp.where((numbers < length)[:, None], b, 0)) + jnp.sum(h)

    return jax.grad(loss)


@pytest.mark.parametrize("program", [truths, conjunctions, versions, masked_sums])
def test_a_value_that_is_read_twice_is_looked_at_once(program):
    """There are many ways to the first of values each of which is made of the two before it."""
    short, long = (calls(lambda f: f, optimize(program(n)), (jnp.ones(4),)) for n in (7, 14))
    assert {k: (short[k], v) for k, v in long.items() if v > max(FEW, 8 * short[k])} == {}


def nest(depth):
    """Loops in loops."""

    def f(x):
        run = lambda x: jnp.sin(x) * x[::-1]
        for _ in range(depth):
            run = lambda x, inner=run: lax.fori_loop(0, 4, lambda _, c: jnp.cos(inner(c)), x)
        return run(x)

    return f


def test_a_loop_is_priced_once():
    """Not once more for each loop inside of it."""
    asked = calls(optimize, nest(8), (jnp.ones(4),))["starts.py: is_worth_one_function"]
    assert 0 < asked <= 8


def limited(n):
    """A step of n limiters, of which none says whether it does anything."""

    def step(u, _):
        for _ in range(n):
            ahead, behind = jnp.roll(u, -1) - u, u - jnp.roll(u, 1)
            slope = jnp.minimum(jnp.abs(ahead), jnp.abs(behind))
            u = u + 0.1 * jnp.where(ahead * behind > 0, slope, 0.0)
        return u, None

    return lambda u: jnp.sum(lax.scan(step, u, None, length=50)[0]), (jnp.ones((400,)),)


def test_a_step_is_priced_once_for_all_of_its_predicates():
    """Not again for each of which it is asked what a step does that skips under it."""
    found = calls(ORDERS["optimised gradient"], *limited(8))
    assert found["going_on.py: settles"] > 5 * found["prices.py: step_seconds"] > 0


def test_numbers_that_are_known_are_looked_for_once(monkeypatch):
    """Each is made of the two before it."""

    def f():
        a, b = (jnp.asarray(np.arange(8, dtype=np.int32)[::k]) for k in (1, -1))
        for _ in range(20):
            a, b = b, a ^ b
        return b

    asked, uniform = [], step_numbers.uniform
    monkeypatch.setattr(step_numbers, "uniform", lambda v: asked.append(v) or uniform(v))
    found = step_numbers.known_numbers(import_jaxpr(jax.make_jaxpr(f)()).outputs[0])
    assert found.tolist() == f().tolist()
    assert len(asked) < 30


def test_reads_of_a_sum_of_a_value_with_itself_find_an_end():
    """Each moves through one sum, and the two that it becomes are merged, in a round of their
    own.
    """

    def step(x, t):
        change = jnp.zeros(8).at[t].set(x[t] * 2)
        for _ in range(40):
            change = change + change
        return x - 0.1 * change, None

    loss = lambda x: jnp.sum(jnp.sin(lax.scan(step, x, jnp.arange(8))[0]))
    optimize(jax.grad(loss)).lower(jnp.ones(8))


@dataclass(frozen=True)
class Restless(Pass):
    """Never done: turns the operands of a sum around."""

    name = "restless"
    primitives = frozenset({"add"})

    def find(self, op):
        yield Match(op, "turned")

    def rewrite(self, match, rw):
        rw.replace(match.op.result, rw.insert(lax.add, *match.op.operands[::-1], before=match.op))
        rw.erase(match.op)


def test_passes_that_find_no_end_are_stopped():
    """What they have made so far is sound; in strict mode it is an error."""
    run = lambda: optimize(lambda x, y: x + y, passes=[Restless()])(1.0, 2.0)
    with settings.override(strict=False, verify=False):
        assert run() == 3.0
    with pytest.raises(PassError, match="no fixpoint"):
        run()


def test_a_list_of_values_would_be_noticed():
    """What is looked up in a list is compared with all that is in front of it."""
    values = [graph.Value(None) for _ in range(5)]
    with pytest.MonkeyPatch.context() as patch:
        count = []
        patch.setattr(graph.Value, "__eq__", lambda a, b: count.append(1) or a is b, raising=False)
        patch.setattr(graph.Value, "__hash__", object.__hash__)
        assert values[-1] in values
        assert values[-1] in set(values)
    assert len(count) == 4


# ---------------------------------------------------------------- equations of one kind


def told(jaxpr):
    """A program as text, and the source of every equation."""
    return str(jaxpr), [
        (str(eqn.source_info.name_stack), compat_source.user_frame(eqn.source_info), eqn.ctx)
        for eqn in compat.open_jaxpr(jaxpr).eqns
    ]


def scopes(x, y):
    """Equations of one kind from lines and name scopes of their own."""
    with jax.named_scope("first"):
        a = lax.mul(x, y)
    b = lax.mul(a, a)
    with jax.named_scope("then"):
        c = lax.mul(b, y)
    return lax.sub(lax.mul(c, 2.0), lax.mul(y, 2.0)), lax.mul(y, -0.0)


def called(x, y):
    """Functions that are called again, with rules of their own, and loops."""

    @jax.jit
    def inner(x, y):
        return jax.nn.relu(x) * y, jnp.where(x > y, x, 0.0)

    for _ in range(3):
        x, y = inner(x, y)
        y = lax.fori_loop(0, 3, lambda _, y: jnp.sin(y), y)
    return x, y, 1.0


def idle(x, y):
    """Results that are arguments, constants, or of no use, and integers on the way."""
    del y
    unused = [lax.sin(x), lax.sin(x)]
    del unused
    places = lax.convert_element_type(lax.floor(x), jnp.int32)
    return x, places, lax.full((3,), 2.0), x[places], x[places + 1]


def batched_last(x, y):
    """Results whose rows JAX makes last, one of them twice, and moves to the front."""
    products = [jnp.ones((2, 3)) @ x, jnp.ones((4, 3)) @ y]
    return *products, products[0], x


@pytest.mark.parametrize("nonzero", [(True, True), (True, False)])
@pytest.mark.parametrize("program", [scopes, called, idle, selects(9)[0], long_body(80)[0]])
def test_equations_of_one_kind_are_linearized_as_each_for_itself(program, nonzero, monkeypatch):
    """The same equations in the same order, each from its own line and name scope."""
    monkeypatch.setattr(compat_repeats, "_REPEATS", 0)
    args = (jnp.ones(3), jnp.ones(3)) if program.__name__ != "f" else (jnp.ones(3),)
    args = (jnp.ones(3), jnp.ones((4, 3))) if "xs" in program.__code__.co_varnames else args
    jaxpr, nonzero = jax.make_jaxpr(program)(*args), nonzero[: len(args)]
    jaxpr, constants = compat_ad.hoist_constants(jaxpr)
    nonzero = (*(False for _ in constants), *nonzero)
    ours = compat_repeats.linearize(jaxpr, nonzero, is_vjp=True)
    plain = compat_ad.linearize(jaxpr, nonzero, is_vjp=True)
    assert told(ours.forward) == told(plain.forward)
    assert told(ours.tangent) == told(plain.tangent)
    assert (ours.residuals, ours.nonzero_out) == (plain.residuals, plain.nonzero_out)
    for half in (ours.forward, ours.tangent):
        compat.check_jaxpr(half)


@pytest.mark.parametrize("dims", [(0, 0), (None, 0), (0, None)])
@pytest.mark.parametrize("program", [scopes, called, idle, batched_last])
def test_equations_of_one_kind_are_vectorized_as_each_for_itself(program, dims, monkeypatch):
    """The same equations in the same order, inside of JAX's own scope."""
    found, batch = [], compat_repeats.batch

    def compared(jaxpr, axis, dims, **first):
        ours, plain = batch(jaxpr, axis, dims, **first), compat_ad.batch(jaxpr, axis, dims, **first)
        compat.check_jaxpr(ours[0])
        found.append((*told(ours[0]), ours[1]) == (*told(plain[0]), plain[1]))
        return ours

    monkeypatch.setattr(compat_repeats, "_REPEATS", 0)
    monkeypatch.setattr(compat_repeats, "batch", compared)
    rows = [jnp.ones(3) if dim is None else jnp.ones((2, 3)) for dim in dims]
    jax.jit(jax.vmap(jaxpr_opt.optimize(program), dims)).lower(*rows)
    assert found == [True]


def test_equations_that_differ_in_anything_are_of_two_kinds():
    """Signs of zero, weak types, element types, which operands are the same, parameters."""

    def f(x, y, weak, half):
        products = x * 0.0, x * -0.0, x * y, x * x, weak * weak, half * half
        return products, lax.reduce_sum(x[None], [0]), lax.reduce_sum(x[:, None], [1])

    weak = jax.core.ShapedArray((3,), jnp.float32, weak_type=True)
    jaxpr = compat.trace(
        lambda *args: jax.tree.leaves(f(*args)),
        [compat_types.aval_of(jnp.ones(3))] * 2
        + [weak, compat_types.aval_of(jnp.ones(3, "bfloat16"))],
    )
    kinds = [compat_repeats._kind(eqn) for eqn in compat.open_jaxpr(jaxpr).eqns]
    assert len(kinds) == len(set(kinds)) > 7


# ---------------------------------------------------------------- what values are made of


def test_origins_are_counted_once_and_compared_in_bytes():
    """A mask is made of the count; a sum of two arrays is as large as one of them."""

    def f(x, y, n):
        mask = lax.lt(lax.iota(jnp.int32, 8), lax.broadcast(n, (8,)))
        twice = lax.broadcast(lax.add(n, n), (8,))
        return mask, twice, lax.add(x, y), lax.sin(x), lax.iota(jnp.int32, 8)

    graph = import_jaxpr(jax.make_jaxpr(f)(jnp.ones(8), jnp.ones(8), 3))
    origins = Origins(graph.outputs)
    assert [origins.are_smaller(v) for v in graph.outputs] == [True, True, False, False, True]
    assert origins.of(graph.outputs[:2]) == [graph.inputs[2]]


# ---------------------------------------------------------------- modules that are loaded

OPTIMIZED = """
import jaxpr_opt, sys
before = {name for name in sys.modules if name.startswith("jaxpr_opt.")}
jaxpr_opt.optimize(lambda x: x + 1)(1)
unneeded = ("jaxpr_opt.lint", "jaxpr_opt.reports", "jaxpr_opt.donation", "rich", "networkx")
print(len(before) < 20, [name for name in unneeded if name in sys.modules])
import jaxpr_opt.lint.options
print(jaxpr_opt.lint.__name__, jaxpr_opt.explain.__name__, type(jaxpr_opt.lint).__name__)
"""


def test_what_only_reports_need_is_imported_when_one_is_asked_for():
    """The package `lint` does not take the place of the function of this name, either."""
    command = [sys.executable, "-c", OPTIMIZED]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.stdout.splitlines() == ["True []", "lint explain function"], made.stderr


# ---------------------------------------------------------------- what no pass looks at


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_straight_line_code_of_arithmetic_is_not_looked_at(order, monkeypatch):
    """Names alone say that no pass has anything to do: there is no graph."""
    imported = []
    monkeypatch.setattr(pipeline, "import_jaxpr", lambda *args, **_: imported.append(args))
    monkeypatch.setattr(split, "import_jaxpr", lambda *args, **_: imported.append(args))
    fun, args = chain(20)
    with settings.override(verify=False):
        text = order(fun).lower(*args).as_text()
    assert not imported
    assert "sine" in text


def masked(x, scores):
    """Masks of elements: a layer normalization, attention that looks back."""
    x = jnp.where(x > 0.0, x, 0.0) / jnp.sqrt(jnp.var(x))
    seen = jnp.tril(jnp.ones(scores.shape[1:], bool))
    return jnp.sum(x) * jnp.where(seen, scores, -1e9)


def test_selects_of_elements_are_not_looked_at(monkeypatch):
    """No truth value chooses a row, so no branch of a batch can be left out: the final phase makes
    no graph.
    """
    phases = []

    def imported(*args, phase, **options):
        phases.append(phase)
        return import_jaxpr(*args, phase=phase, **options)

    monkeypatch.setattr(pipeline, "import_jaxpr", imported)
    with settings.override(verify=False):
        text = jaxpr_opt.optimize(masked).lower(jnp.ones(3), jnp.ones((2, 4, 4))).as_text()
    assert phases == ["differentiable"]
    assert "select" in text


ROWS = {
    "broadcast": lambda p, x: lax.select_n(lax.broadcast_in_dim(p, (3, 4), (0,)), x, -x),
    "number": lambda p, x: lax.select_n(
        lax.broadcast_in_dim(p.astype(jnp.int32), (3, 4), (0,)), x, -x
    ),
    "moved": lambda p, x: lax.select_n(
        lax.broadcast_in_dim(p, (1, 3, 4), (1,)).reshape(3, 4), x, -x
    ),
    "nested": jax.jit(jax.vmap(lambda p, x: jnp.where(p, x, -x))),
}


@pytest.mark.parametrize("program", ROWS.values(), ids=ROWS)
def test_selects_of_rows_are_looked_at(program):
    """Truth values of rows are broadcast, by their axes or others, or are numbers."""
    jaxpr = jax.make_jaxpr(program)(jnp.ones(3, bool), jnp.ones((3, 4)))
    assert compat.ROWS in compat.primitive_names(jaxpr)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("chooses", [False, True])
def test_steps_that_choose_nothing_are_not_asked_what_they_skip(order, chooses, monkeypatch):
    """No value of them is looked at under a predicate, and no kind of what they carry is sought."""
    asked = []
    for name in ("Assumable", "carries_cotangents"):
        plain = getattr(skips, name)
        noted = lambda *args, of=plain, **options: asked.append(of) or of(*args, **options)
        monkeypatch.setattr(skips, name, noted)

    def f(x):
        def step(c, row):
            c = jnp.where(c > 2.0, c, jnp.sin(c) * row) if chooses else jnp.sin(c) * row
            return c, c

        return jnp.sum(lax.scan(step, x[0], x)[1])

    order(f).lower(jnp.ones(4))
    assert bool(asked) == chooses


def test_a_pass_that_finds_what_it_does_not_need_is_an_error():
    """Verified graphs are searched for what `needs` says is not there."""

    @dataclass(frozen=True)
    class Wrong(Pass):
        name = "wrong"
        needs = frozenset({"while"})

        def find(self, op):
            yield Match(op, "something")

        def refuse(self, match):
            return "never"

    graph = import_jaxpr(jax.make_jaxpr(lax.sin)(1.0))
    with pytest.raises(PassError, match="wrong found something without what it needs"):
        run_pass(Wrong(), graph, Journal("differentiable"), debug=True)
