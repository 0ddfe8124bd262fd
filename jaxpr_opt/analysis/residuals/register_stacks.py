"""Values of a step that are shift registers, or elementwise functions of one, and whether to stack
only the rows that enter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxpr_opt.analysis.carried.shift_registers import Register, shifting
from jaxpr_opt.analysis.residuals.cuts import available, residuals
from jaxpr_opt.analysis.residuals.stack_consumers import Route, Rows, Stacked, routes
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.rounding import adds_product, is_discontinuous
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import broadcast_dimensions_of
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Region, Scan, Value
from jaxpr_opt.ir.traits import TRANSCENDENTAL, VECTOR, same_in_vectors

RegisterReader = tuple[Route, Value]
"""The way to a loop that reads a stack, and the row that it reads in a step."""


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """What a value of a step holds: rows of a register as the step finds it, or as it leaves it."""

    register: Register
    after: bool
    value: Value
    ops: tuple[Op, ...] = ()
    """What makes the value of the register, row by row, and of values from outside the loop."""

    @property
    def present(self) -> Value | None:
        """A value that enters the register and is streamed or stacked already; None if there is
        none.
        """
        scan, there = self.register.scan, available(self.register.scan)
        entering = () if self.ops else self.register.entering
        return next((v for v in entering if v in there or scan.stream_of(v)), None)

    @property
    def entering_bytes(self) -> int:
        """Bytes of what enters in a step."""
        return self.value.nbytes // self.register.held * self.register.size

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.value.nbytes // self.register.held * self.register.rows


@remembered
def registers(scan: Scan) -> Mapping[Value, State]:
    """The values of a step that are registers, or made of one row by row."""
    found: dict[Value, State] = {}
    for register in shifting(scan):
        for after, value in enumerate((register.carry.param, register.carry.next)):
            found[value] = State(register, bool(after), value)
    for op in scan.body.ops if found else ():
        state = _made_of(op, found) if _is_same_anywhere(op) else None
        if state is not None:
            found.setdefault(op.result, state)
    return found


def _is_same_anywhere(op: Op) -> bool:
    """Whether what an op makes of an element does not depend on where in an array that is."""
    # Condition 5 of stack-entering-rows.
    return same_in_vectors(op) and (op.name not in TRANSCENDENTAL or op.result.size % VECTOR == 0)


def _made_of(op: Op, found: Mapping[Value, State]) -> State | None:
    """The state that an op computes of rows, if it computes each row alike, wherever the row is."""
    states = [found[v] for v in op.operands if v in found]
    if not states or op.result.shape != states[0].value.shape:
        return None
    register, after = states[0].register, states[0].after
    # Condition 5 of stack-entering-rows.
    if any(each.register is not register or each.after != after for each in states):
        return None
    # Condition 5 of stack-entering-rows.
    if is_discontinuous(op) and any(each.ops for each in states):
        return None
    # Condition 5 of stack-entering-rows.
    if adds_product(op, register.scan.body):
        return None
    made = [each for state in states for each in state.ops]
    for value in op.operands:
        spread = () if value in found else _known(value, register.scan.body)
        # Condition 5 of stack-entering-rows.
        if spread is None or not (value in found or _is_alike(value, register.axis)):
            return None
        made.extend(spread)
    ops = dict.fromkeys((*made, op))
    return State(register, after, op.result, tuple(ops))


def _known(value: Value, body: Region) -> tuple[Op, ...] | None:
    """The ops of a step that spread a value from outside the loop; None if there is none."""
    made: list[Op] = []
    while body.defines(value):
        # Condition 5 of stack-entering-rows.
        if value.op is None or value.op.name != "broadcast_in_dim" or len(value.op.operands) > 1:
            return None
        made.append(value.op)
        value = value.op.operands[0]
    return tuple(reversed(made))


def _is_alike(value: Value, axis: int) -> bool:
    """Whether all rows of an array are the same."""
    while value.shape != () and value.shape[axis] != 1 and uniform(value) is None:
        op = value.op
        if op is None or op.name != "broadcast_in_dim":
            return False
        axes = broadcast_dimensions_of(op)
        if axis not in axes:
            return True
        value, axis = op.operands[0], axes.index(axis)
    return True


def window_readers(stacked: Value) -> tuple[RegisterReader, ...] | str:
    """The loops that can read windows instead of rows of a stack of a register; a string says why
    others cannot.
    """
    found = routes(stacked, nests=True)
    # Condition 2 of stack-entering-rows.
    if found is None:
        return f"{stacked.label} is needed whole"
    # Condition 2 of stack-entering-rows.
    if not all(_is_whole(route) for route, _ in found):
        return f"{stacked.label} is split before its rows are read"
    return found


def _is_whole(route: Route) -> bool:
    """Whether loops around the one that stacks stack again, and as many read rows of that."""
    around = sum(isinstance(hop, Stacked) for hop in route)
    kinds = [*[Stacked] * around, *[Rows] * (around + 1)]
    return [type(hop) for hop in route] == kinds


def why_stacked_whole(state: State) -> str | None:
    """Why a stack of rows of a register should stay as it is."""
    register, prices = state.register, cost_model()
    # Condition 3 of stack-entering-rows.
    if not dtypes.holds(np.int32, register.rows):
        return "it has more rows than an index can number"
    steps = register.scan.length
    old, new = state.value.nbytes * steps, state.nbytes
    if state.present is None and (register.is_turned or register.size > 1):
        new += state.entering_bytes * steps  # else `scan-in-place` puts it there
    if prices.is_quick(old):
        return "it is small"
    if not prices.is_longer(new, old):
        return "the rows that enter are a good part of it"
    return None


@remembered
def stored_as_rows(scan: Scan) -> Mapping[Value, int]:
    """Values of a step that readers can have as windows of rows that entered, and the bytes that a
    step stores for them.
    """
    if any(isinstance(window_readers(s.result), str) for s, _ in residuals(scan, nests=True)):
        return {}
    known = registers(scan).items()
    return {
        value: state.entering_bytes for value, state in known if why_stacked_whole(state) is None
    }
