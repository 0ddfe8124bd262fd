"""A program that several devices run in step, as under `shard_map`: each lane is a thread.

Lanes meet where they exchange something.  If one waits for another that never comes, or comes for
something else, that is a deadlock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fuzz.evaluate import MAX_STEPS, Evaluator, Run, Slots
from fuzz.firstorder import GARBAGE
from fuzz.mutations import effects
from jaxpr_opt.bridge import compat
from jaxpr_opt.ir.graph import Graph, Op

AXIS, LANES = "i", 2


class DeadlockError(Exception):
    """A lane waits for one that does not come."""


class Meeting:
    """Where lanes exchange what they have."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.given: list[list[tuple[str, Any]]] = [[] for _ in range(LANES)]
        self.left: set[int] = set()

    def exchange(self, lane: int, key: str, value: Any) -> list[Any]:
        """What all lanes have."""
        with self.changed:
            self.given[lane].append((key, value))
            number = len(self.given[lane])
            self.changed.notify_all()
            self.changed.wait_for(lambda: self._all_came(number) or self._somebody_left(number))
            if not self._all_came(number):
                raise DeadlockError(f"one device waits in {key}, another is done")
            came = [each[number - 1] for each in self.given]
        if {name for name, _ in came} != {key}:
            raise DeadlockError(f"devices wait in {came[0][0]} and in {came[1][0]}")
        return [value for _, value in came]

    def _all_came(self, number: int) -> bool:
        return all(len(each) >= number for each in self.given)

    def _somebody_left(self, number: int) -> bool:
        return any(len(self.given[lane]) < number for lane in self.left)

    def leave(self, lane: int) -> None:
        """Not come any more."""
        with self.changed:
            self.left.add(lane)
            self.changed.notify_all()


class Lane(Evaluator):
    """One of the devices."""

    def __init__(self, graph: Graph, garbage: int, steps: int, number: int) -> None:
        self.number = number
        self.meeting = Meeting()
        super().__init__(graph, garbage, steps)

    def inner(self, graph: Graph) -> Evaluator:
        made = Lane(graph, self.garbage, self.steps, self.number)
        self.inside.append(made)
        return made

    def meet_at(self, meeting: Meeting) -> None:
        """Meet the others there, also in the functions that custom rules are of."""
        self.meeting = meeting
        for each in self.inside:
            each.meet_at(meeting)  # type: ignore[attr-defined]

    def _op(self, op: Op) -> Run:
        if op.name not in COLLECTIVES:
            return super()._op(op)
        operands, results = self._all(op.operands), self._all(op.results)
        rule, key = COLLECTIVES[op.name], _key(op)

        def run(slots: Slots) -> None:
            mine = [slots[at] for at in operands]
            rows = self.meeting.exchange(self.number, key, mine) if mine else []
            for at, x in zip(results, rule(op, rows, self.number), strict=True):
                slots[at] = x

        return run


class Lanes:
    """A graph that runs on all devices: arguments and results have a leading axis for them."""

    def __init__(self, graph: Graph, garbage: int = GARBAGE, steps: int = MAX_STEPS) -> None:
        self.lanes = [Lane(graph, garbage, steps, number) for number in range(LANES)]

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        meeting, made, errors = Meeting(), {}, {}

        def run(lane: Lane) -> None:
            try:
                with np.errstate(all="ignore"):
                    made[lane.number] = lane([x[lane.number] for x in args])
            except Exception as error:  # noqa: BLE001 - raised again below
                errors[lane.number] = error
            finally:
                meeting.leave(lane.number)

        threads = [threading.Thread(target=run, args=(lane,)) for lane in self.lanes]
        for lane in self.lanes:
            lane.meet_at(meeting)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        effects.mix()
        if errors:
            raise min(errors.values(), key=lambda e: isinstance(e, DeadlockError))
        return [_stacked([made[k][i] for k in range(LANES)]) for i in range(len(made[0]))]


def _stacked(rows: Sequence[Any]) -> Any:
    return np.stack(rows) if isinstance(rows[0].dtype, np.dtype) else jnp.stack(rows)


def _key(op: Op) -> str:
    types = ", ".join(str(v.aval) for v in op.results)
    return f"{op.name} of {types}"


Rule = Callable[[Op, list[list[Any]], int], list[Any]]


def _folded(fun: Callable[[Any, Any], Any]) -> Rule:
    def rule(_: Op, rows: list[list[Any]], __: int) -> list[Any]:
        return [np.asarray(fun(*each)) for each in zip(*rows, strict=True)]

    return rule


def _by_jax(op: Op, rows: list[list[Any]], number: int) -> list[Any]:
    primitive = op.primitive
    assert primitive is not None

    def fun(*xs: Any) -> Any:
        return compat.bind(primitive, list(xs), op.params)

    stacked = [jnp.stack(each) for each in zip(*rows, strict=True)]
    return [np.asarray(x[number]) for x in jax.vmap(fun, axis_name=AXIS)(*stacked)]


COLLECTIVES: dict[str, Rule] = {
    "psum": _folded(np.add),
    "pmax": _folded(np.maximum),
    "pmin": _folded(np.minimum),
    "axis_index": lambda _, __, number: [np.asarray(number, np.int32)],
    "all_gather": _by_jax,
    "ppermute": _by_jax,
    "all_to_all": _by_jax,
    "reduce_scatter": _by_jax,
}


def bound() -> Any:
    """A context in which the axis has a name."""
    return compat._core.extend_axis_env_nd([(AXIS, LANES)])
