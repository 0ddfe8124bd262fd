"""Reads of a window that a write then overwrites: whether XLA orders them first, and whether a
fence pays.
"""

from __future__ import annotations

from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.graph import Op, Value


def reads_a_window(op: Op) -> bool:
    """Whether an op reads a window."""
    found = access(op)
    return found is not None and found.kind == "read"


def pays(write: Access, readers: tuple[Op, ...], whole_is_read: bool) -> bool:
    """Whether a fence around the windows that are read moves less than copying the array."""
    windows = list[Op]()
    for each in filter(reads_a_window, readers):
        if not any(_is_same(each, other) for other in windows):
            windows.append(each)
    nbytes = sum(each.result.nbytes for each in windows)
    return cost_model().is_less_fenced(nbytes, write.array.nbytes, whole_is_read=whole_is_read)


def _is_same(op: Op, other: Op) -> bool:
    """Whether one op computes what another does: XLA makes one of them."""
    return (op.name, op.operands, op.params) == (other.name, other.operands, other.params)


def repeats(write: Access, reader: Op) -> bool:
    """Whether XLA may repeat the write that made an array in a read of it, because the write had to
    wait for a division and is at another place.
    """
    made = access(write.array.op) if write.array.op is not None else None
    waited = made is not None and any(map(waits, made.array.users))
    return waited and _indices(reader) != write.indices


def waits(op: Op) -> bool:
    """Whether an op reads a window behind a division, so that its readers come later."""
    return reads_a_window(op) and is_fenced_by_division(op.result)


def _indices(op: Op) -> tuple[Value, ...]:
    """What says where the window is that an op reads."""
    found = access(op)
    return found.indices if found is not None else ()


def is_fenced_by_division(value: Value) -> bool:
    """Whether a value goes through such a division."""
    return any(
        user.name == "population_count"
        or (user.name in _BITS and is_fenced_by_division(user.result))
        for user in value.users
    )


_BITS = frozenset({"bitcast_convert_type", "convert_element_type", "imag", "real"})
"""What makes the integers that are divided."""
