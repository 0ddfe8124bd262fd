"""Reads of a window that a write then overwrites: whether XLA orders them first, and whether a
fence pays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from jaxpr_opt.analysis.carried.buffers import becomes
from jaxpr_opt.analysis.values.enclosing import is_read_twice, loop_body, readers_after
from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.analysis.windows.window_primitives import (
    UPDATE,
    UPDATING,
    component_of,
    places,
    windows_read,
)
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import combiner_of
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import backward_slice, inputs, users_through
from jaxpr_opt.ir.devices import fence, is_sharded
from jaxpr_opt.ir.graph import Op, Scan, Value, While
from jaxpr_opt.ir.nesting import is_not_before


def reads_a_window(op: Op) -> bool:
    """Whether an op reads a window, or gathers several."""
    found = access(op)
    return op.name == "gather" or (found is not None and found.kind == "read")


def is_read_late(array: Value, op: Op, but: Collection[Op] = ()) -> bool:
    """Whether another op than `but` may read `array` after `op` has run, and not as well before it:
    a read of a window may be fenced (`read-before-overwriting`).
    """
    late = (user for user in readers_after(array, op, but) if not may_be_early(user, op))
    return is_read_twice(array, op) or any(late)


def comes_late(user: Op, op: Op) -> bool:
    """Whether an op may run after another has begun, and not as well before it."""
    return is_not_before(user, op) and not may_be_early(user, op)


def may_be_early(user: Op, op: Op) -> bool:
    """Whether an op of a step reads a window at a place that is not made of what another makes."""
    if loop_body(op) is None or user.region is not op.region or not reads_a_window(user):
        return False
    return op not in backward_slice(user.operands, lambda v: v.region is not op.region)


@dataclass(frozen=True, slots=True)
class Overwrite:
    """An op that writes windows into an array, or a loop that does so in its steps."""

    op: Op
    array: Value
    result: Value

    @property
    def waiting_place(self) -> int | None:
        """Which operand may wait for what is added to it; None if there is none.  Of a write, where
        it starts: along an axis that the window fills XLA knows it to start at zero, whatever is
        computed.  Of a loop, an integer or a truth value that it begins with.
        """
        op = self.op
        if isinstance(op, Scan | While):
            inits = [carry.init for carry in op.carries]
            numbers = (at for at, init in enumerate(inits) if _may_wait(init))
            return next(numbers, None)
        if op.name != "dynamic_update_slice":
            return 1
        array, window = self.array.shape, op.operands[UPDATE[op.name]].shape
        short = (axis for axis, size in enumerate(window) if size < array[axis])
        return component_of(op, next(short, 0))[0]


def _may_wait(init: Value) -> bool:
    return init.shape == () and (dtypes.is_integer(init.dtype) or init.dtype == bool)


def overwrites(op: Op) -> Iterator[Overwrite]:
    """The arrays that an op overwrites in place, if nothing reads them any more."""
    if isinstance(op, Scan | While):
        for carry in op.carries:
            if carry.next is not carry.param and becomes(carry.param, carry.next):
                yield Overwrite(op, carry.init, carry.result)
    elif writes_windows(op):
        yield Overwrite(op, op.operands[0], op.result)


def comes_first(reader: Op, write: Op) -> bool:
    """Whether a write needs what an op makes, or what has that op in its branches or steps."""
    assert write.region is not None
    around = write.region.ancestor(reader)
    return around in backward_slice(inputs(write), lambda v: v.region is not write.region)


def writes_windows(op: Op) -> bool:
    """Whether an op writes a window, or several, or adds to them or combines them, with no function
    of its own.
    """
    has_function = op.name == "scatter" and combiner_of(op) is not None
    return op.name in UPDATING and not has_function and not is_sharded(op.operands[0])


def pays(write: Overwrite, readers: tuple[Op, ...], whole_is_read: bool) -> bool:
    """Whether a fence around the windows that are read takes less time than copying the array."""
    windows = list[Op]()
    for each in filter(reads_a_window, readers):
        if not any(_is_same(each, other) for other in windows):
            windows.append(each)
    array, sizes = write.array.nbytes, [each.result.nbytes for each in windows]
    several = sum(each.result.size for each in windows if windows_read(each) > 1)
    if several and fence() == "division" and not cost_model().is_less_divided(several, array):
        return False
    return cost_model().is_less_fenced(sizes, array, whole_is_read=whole_is_read)


def _is_same(op: Op, other: Op) -> bool:
    """Whether one op computes what another does: XLA makes one of them."""
    return (op.name, op.operands, op.params) == (other.name, other.operands, other.params)


def repeats(write: Overwrite, reader: Op) -> bool:
    """Whether XLA may repeat the write that made an array in a read of it, because the write had to
    wait for a division and is at another place.
    """
    made = write.array.op
    waited = made is not None and writes_windows(made) and any(map(waits, made.operands[0].users))
    return waited and (bool(write.op.regions) or _indices(reader) != places(write.op))


def waits(op: Op) -> bool:
    """Whether an op reads a window behind a division, so that its readers come later."""
    return reads_a_window(op) and is_fenced_by_division(op.result)


def _indices(op: Op) -> list[Value]:
    """The operands that say which window an op reads."""
    return list(op.operands[1:]) if reads_a_window(op) else []


def is_fenced_by_division(value: Value) -> bool:
    """Whether a value goes through such a division."""
    users = users_through(value, lambda op: op.name in _BITS)
    return any(user.name == "population_count" for user in users)


_BITS = frozenset({"bitcast_convert_type", "convert_element_type", "imag", "real"})
"""What makes the integers that are divided."""
