"""The minimum cut is the cheapest choice, and sources that cost nothing may be used before it."""

import random
import sys
from itertools import chain, combinations
from math import inf

from jaxpr_opt.analysis.residuals.networks import cheapest_leaves


class Step:
    """A random step: ops that read earlier values, results that are needed, prices."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.values = [f"v{i}" for i in range(rng.randint(4, 8))]
        inputs = rng.randint(1, 2)
        self.makers, self.operands = dict.fromkeys(self.values[:inputs]), {}
        for i, value in enumerate(self.values[inputs:], inputs):
            op = f"op{rng.randint(inputs, i)}"  # maybe another result of an earlier op
            if self.operands.get(op) is None:
                op = f"op{i}"
                self.operands[op] = rng.sample(self.values[:i], rng.randint(1, min(i, 3)))
            self.makers[value] = op
        self.needed = rng.sample(self.values, rng.randint(1, 3))
        self.free = set(rng.sample(self.values, rng.randint(0, 3)))
        self.stored = {v: 0 if v in self.free else rng.randint(1, 9) for v in self.values}
        self.repeated = {op: rng.choice([None, *range(1, 9)]) for op in self.operands}

    def price(self, leaves, needed):
        """What it costs to store the leaves that are reached, and to compute the rest from them."""
        pending, seen, ops = list(needed), set(), set()
        while pending:
            value = pending.pop()
            if value in seen:
                continue
            seen.add(value)
            op = self.makers[value]
            if value in leaves:
                continue
            if op is None or self.repeated[op] is None:
                return inf
            ops.add(op)
            pending.extend(self.operands[op])
        return sum(self.stored[v] for v in seen & leaves) + sum(self.repeated[op] for op in ops)

    def best(self):
        """The least price of all choices."""
        sets = (combinations(self.values, n) for n in range(len(self.values) + 1))
        return min(self.price(set(leaves), self.needed) for leaves in chain.from_iterable(sets))

    def cut(self, needed, given=()):
        """The leaves that the network finds, where nothing asks for what is given."""
        return cheapest_leaves(
            needed,
            maker=self.makers.get,
            operands=lambda op: [v for v in self.operands[op] if v not in given],
            store=self.stored.get,
            repeat=self.repeated.get,
        )


STEPS = [Step(seed) for seed in range(300)]


def test_the_cut_is_the_cheapest_choice():
    for step in STEPS:
        assert step.price(step.cut(step.needed), step.needed) == step.best()


def test_free_sources_first_and_the_cut_of_the_rest_is_the_cheapest_choice():
    for step in STEPS:
        rest = [v for v in step.needed if v not in step.free]
        leaves = step.cut(rest, given=step.free) | step.free
        assert step.price(leaves, step.needed) == step.best()


def test_where_two_choices_cost_the_same_less_is_repeated():
    kept = cheapest_leaves(
        ["y"],
        maker={"x": None, "y": "sin"}.get,
        operands={"sin": ["x"]}.__getitem__,
        store={"x": 1, "y": 2}.get,
        repeat={"sin": 1}.get,
    )
    assert kept == {"y"}


def test_where_nothing_may_be_repeated_no_network_is_solved(monkeypatch):
    """Which is an import that most programs never need."""
    monkeypatch.setitem(sys.modules, "networkx", None)
    for step in map(Step, range(30)):
        step.repeated = dict.fromkeys(step.operands)
        assert step.cut(step.needed) == set(step.needed)
