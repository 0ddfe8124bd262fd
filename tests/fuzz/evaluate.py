"""A graph as a Python function on NumPy arrays, made once and run on many arguments.

Much faster than `jaxpr_opt.testing.evaluate_exactly`, which it stands in for: what differs here is
confirmed there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fuzz.firstorder import GARBAGE, compiled
from jaxpr_opt.ir.graph import Call, Cond, Constant, Graph, Op, Region, Remat, Scan, Value, While
from jaxpr_opt.ir.importer import import_jaxpr

MAX_STEPS = 300
"""Steps after which a `while` is taken to run forever, if it does so in the original program:"""

MAX_STEPS_AFTER = 10 * MAX_STEPS
"""what passes make of a long `scan` may take more."""

Slots = list[Any]
Run = Callable[[Slots], None]


class EndlessError(Exception):
    """A `while` ran for too long."""


class Evaluator:
    """A graph that runs; every value has a place in one list."""

    def __init__(self, graph: Graph, garbage: int = GARBAGE, steps: int = MAX_STEPS) -> None:
        self.garbage, self.steps = garbage, steps
        self.inside: list[Evaluator] = []
        self.slots: Slots = []
        self.place: dict[Value, int] = {}
        self.body = self._region(graph.body)
        self.params = [self._at(v) for v in graph.inputs]
        self.outputs = [self._at(v) for v in graph.outputs]

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        for at, x in zip(self.params, args, strict=True):
            self.slots[at] = x
        self.body(self.slots)
        return [self.slots[at] for at in self.outputs]

    def inner(self, graph: Graph) -> Evaluator:
        """What runs a function that this one calls."""
        return Evaluator(graph, self.garbage, self.steps)

    def _at(self, value: Value) -> int:
        at = self.place.get(value)
        if at is None:
            at = self.place[value] = len(self.slots)
            self.slots.append(_constant(value) if isinstance(value, Constant) else None)
        return at

    def _all(self, values: Sequence[Value]) -> list[int]:
        return [self._at(v) for v in values]

    def _region(self, region: Region) -> Run:
        runs = [self._op(op) for op in region.ops if not op.is_terminator]
        self._all(region.outputs)

        def run(slots: Slots) -> None:
            for each in runs:
                each(slots)

        return run

    def _op(self, op: Op) -> Run:
        match op:
            case Scan():
                return self._scan(op)
            case While():
                return self._while(op)
            case Cond():
                return self._cond(op)
            case Remat():
                return self._bound(op.body, (), op)
            case Call() if op.name != "shard_map":
                return self._bound(op.body, op.operands, op)
            case _ if op.name in {"custom_jvp_call", "custom_vjp_call"}:
                inner = self.inner(import_jaxpr(op.params["call_jaxpr"], "final"))
                return self._first_order(op, lambda *xs: inner(xs))
            case _:
                return self._first_order(op, compiled(op, self.garbage))

    def _first_order(self, op: Op, fun: Callable[..., list[Any]]) -> Run:
        operands, results = self._all(op.operands), self._all(op.results)
        if len(results) == 1:
            (result,) = results

            def run_one(slots: Slots) -> None:
                (slots[result],) = fun(*[slots[at] for at in operands])

            return run_one

        def run(slots: Slots) -> None:
            made = fun(*[slots[at] for at in operands])
            for at, x in zip(results, made, strict=True):
                slots[at] = x

        return run

    def _bound(self, region: Region, operands: Sequence[Value], op: Op) -> Run:
        given, params, results = (
            self._all(operands),
            self._all(region.params),
            self._all(op.results),
        )
        body, outputs = self._region(region), self._all(region.outputs)

        def run(slots: Slots) -> None:
            _copy(slots, given, params)
            body(slots)
            _copy(slots, outputs, results)

        return run

    def _cond(self, op: Cond) -> Run:
        which, results = self._at(op.selector), self._all(op.results)
        branches = [(self._region(r), self._all(r.outputs)) for r in op.branches]
        last = len(branches) - 1

        def run(slots: Slots) -> None:
            number = int(slots[which])
            body, outputs = branches[number if 0 <= number <= last else last]  # as in XLA
            body(slots)
            _copy(slots, outputs, results)

        return run

    def _while(self, op: While) -> Run:
        inits, results = self._all(op.operands), self._all(op.results)
        asked, params = self._all(op.predicate.params), self._all(op.body.params)
        predicate, body = self._region(op.predicate), self._region(op.body)
        (go_on,), nexts = self._all(op.predicate.outputs), self._all(op.body.outputs)

        def run(slots: Slots) -> None:
            carries = [slots[at] for at in inits]
            for _ in range(self.steps):
                _put(slots, asked, carries)
                predicate(slots)
                if not slots[go_on]:
                    _put(slots, results, carries)
                    return
                _put(slots, params, carries)
                body(slots)
                carries = [slots[at] for at in nexts]
            raise EndlessError

        return run

    def _scan(self, op: Scan) -> Run:
        n, length = op.num_carries, op.length
        inits, streams = self._all(op.operands[:n]), self._all(op.operands[n:])
        carried, rows = self._all(op.body.params[:n]), self._all(op.body.params[n:])
        body = self._region(op.body)
        nexts, stacked = self._all(op.body.outputs[:n]), self._all(op.body.outputs[n:])
        results, stacks = self._all(op.results[:n]), self._all(op.results[n:])
        avals = [v.aval for v in op.results[n:]]
        order = range(length - 1, -1, -1) if op.reverse else range(length)

        def run(slots: Slots) -> None:
            carries = [slots[at] for at in inits]
            arrays = [slots[at] for at in streams]
            made: list[list[Any]] = [[None] * length for _ in stacked]
            for step in order:
                _put(slots, carried, carries)
                for at, array in zip(rows, arrays, strict=True):
                    slots[at] = array[step]
                body(slots)
                carries = [slots[at] for at in nexts]
                for stack, at in zip(made, stacked, strict=True):
                    stack[step] = slots[at]
            _put(slots, results, carries)
            for at, stack, aval in zip(stacks, made, avals, strict=True):
                slots[at] = _stacked(stack, aval)

        return run


def _put(slots: Slots, places: Sequence[int], values: Sequence[Any]) -> None:
    for at, x in zip(places, values, strict=True):
        slots[at] = x


def _copy(slots: Slots, source: Sequence[int], target: Sequence[int]) -> None:
    _put(slots, target, [slots[at] for at in source])


def _constant(value: Constant) -> Any:
    plain = isinstance(value.dtype, np.dtype) and value.dtype != jax.dtypes.float0
    return np.asarray(value.value, value.dtype) if plain else value.value


def _stacked(rows: list[Any], aval: Any) -> Any:
    if not isinstance(aval.dtype, np.dtype):
        return jax.numpy.stack(rows)
    if aval.dtype == jax.dtypes.float0 or not rows:
        return np.zeros(aval.shape, aval.dtype)
    return np.stack(rows)
