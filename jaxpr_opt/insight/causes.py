"""Why a gradient stores more than it needs.

A residual of a loop is a stack of one row a step. That is too much if the rows hold nothing new:

- `dummy`: the row is the result of a branch, and if another branch is taken it is a dummy that
  nothing reads, JAX's ``empty``;
- `input`: every row is an argument of the program, or an array it has captured;
- `invariant`: every row is the same, computed from loop-invariant values;
- `stream`: the rows are those of an array that the loop reads row by row;
- `buffer`: every row is a whole array that the loop carries and writes a part of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxpr_opt.analysis.values.constants import is_undefined
from jaxpr_opt.insight.saved import Saved, inside
from jaxpr_opt.ir.dataflow import backward_slice, inputs, source_through
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Cond, Constant, Graph, Op, Region, Scan, Value
from jaxpr_opt.ir.traits import IN_PLACE, is_data_movement

Why = Literal["dummy", "input", "invariant", "stream", "buffer"]


@dataclass(frozen=True, slots=True)
class Cause:
    """Why the rows of a residual are more than is needed."""

    why: Why
    loop: Scan
    """The loop that stores one in every step."""
    of: Value
    """The value that would do: the real one, the one from outside, the buffer."""


def cause(fact: Saved) -> Cause | None:
    """The first cause found, from the outermost loop inwards; None where rows say something new."""
    value: Value | None = fact.value
    while value is not None:
        if isinstance(value.op, Scan) and (stack := value.op.stack_of(value)) is not None:
            found = _cause(value.op, stack.value)
            if found is not None:
                return found
        value = inside(value)
    return None


def _cause(loop: Scan, row: Value) -> Cause | None:
    real = _behind_dummies(row)
    if real is not row:
        return Cause("dummy", loop, real)
    source = _source(row, loop)
    if not loop.body.defines(source):
        is_input = isinstance(source, Constant) or (source.op is None and _is_top(source.region))
        return Cause("input" if is_input else "invariant", loop, source)
    if (stream := loop.stream_of(row)) is not None:
        return Cause("stream", loop, stream.operand)
    if (buffer := _buffer(loop, row)) is not None:
        return Cause("buffer", loop, buffer)
    return None if _moves(loop, row) else Cause("invariant", loop, row)


def _behind_dummies(row: Value) -> Value:
    """The row that the only branch which makes one yields; the row itself if there is none."""
    value: Value | None = row
    while value is not None:
        cases = _cases(value)
        real = [v for v in cases if not is_undefined(v)]
        if len(real) == 1 < len(cases):
            return real[0]
        value = inside(value) if not isinstance(value.op, Scan) else None
    return row


@remembered
def _source(value: Value, loop: Scan) -> Value:
    """The value from which this one is moved, broadcast or carried unchanged; in a batch, selected
    from copies of it.
    """
    while True:
        op, carry = value.op, loop.carry_of(value)
        if carry is not None and carry.is_invariant:
            value = carry.init
        elif op is not None and op.operands and is_data_movement(op):
            value = op.operands[0]
        elif op is not None and op.name == "select_n":
            sources = {_source(case, loop) for case in op.operands[1:]}
            if len(sources) > 1:
                return value
            (value,) = sources
        else:
            return value


def _cases(value: Value) -> tuple[Value, ...]:
    """The values that a value may be: in a batch, a branch becomes a select."""
    op = value.op
    if isinstance(op, Cond):
        return op.outcomes[value.position].values
    return op.operands[1:] if op is not None and op.name == "select_n" else ()


def _is_top(region: Region | None) -> bool:
    return region is not None and isinstance(region.owner, Graph)


def _buffer(loop: Scan, row: Value) -> Value | None:
    """The carry that a row is a version of, if the loop writes to it in place."""
    version = source_through(row, lambda op: op.name in IN_PLACE)
    carry = next((c for c in loop.carries if c.param is version), None)
    if carry is None:
        return None
    op = carry.next.op
    is_written = any(_is_write(each, carry.param) for each in ([op] if op is not None else []))
    return carry.param if version is not row or is_written else None


def _is_write(op: Op, array: Value) -> bool:
    """Whether the op makes the array's next version by writing a part of it."""
    made = backward_slice(op.results, lambda v: v.aval != array.aval)
    return any(each.name in IN_PLACE for each in made)


def _moves(loop: Scan, row: Value) -> bool:
    """Whether a value of a step depends on which step it is."""
    pending, seen = [row], set[Value]()
    while pending:
        value = _source(pending.pop(), loop)
        if value in seen or not loop.body.defines(value):
            continue
        seen.add(value)
        if value.owner is loop.body:
            return True
        if value.op is not None:
            pending += inputs(value.op)
    return False
