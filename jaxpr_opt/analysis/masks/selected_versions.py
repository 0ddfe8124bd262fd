"""Cases of a select that are versions of one array: each case writes some windows of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxpr_opt.analysis.values.constants import is_weak, uniform
from jaxpr_opt.analysis.values.selected_cases import case_within
from jaxpr_opt.analysis.windows.access import Access, access, combined
from jaxpr_opt.analysis.windows.window_primitives import neutral
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.fusion import is_fused
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.cost.reuse import is_view
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.traits import SUMS, is_broadcast, is_data_movement


@dataclass(frozen=True, slots=True)
class SelectedVersion:
    """What an array is written into to give the case of a select."""

    array: Value
    writes: tuple[tuple[int, Access], ...] = ()
    between: tuple[Op, ...] = ()


def versions(value: Value, which: Value, case: int, anchor: Op) -> Iterator[SelectedVersion]:
    """The case itself, and what it is one write of, two, ..."""
    writes: tuple[tuple[int, Access], ...] = ()
    between: tuple[Op, ...] = ()
    count = len(anchor.operands) - 1
    seen, through = _seen_through(value, which, case, count)
    yield SelectedVersion(seen)
    for _ in range(limits.WRITES_IN_A_ROW):
        op = seen.op
        made = _made(op) if op is not None and op.region is anchor.region else None
        if made is None:  # Condition 1 of sink-select-into-update.
            return
        array, write, ops = made
        writes, between = ((case, write), *writes), (*between, *through, *ops)
        seen, through = _seen_through(array, which, case, count)
        yield SelectedVersion(seen, writes, between)


def of_array(array: Value, versions: Iterable[SelectedVersion]) -> SelectedVersion | None:
    """The first of some versions that is one of an array."""
    return next((each for each in versions if each.array is array), None)


def _made(op: Op) -> tuple[Value, Access, tuple[Op, ...]] | None:
    """The array that an op writes or adds a window to, the access, and the ops behind it, last to
    first.  Adding zeros to which a window was added counts as adding the window.
    """
    write = _write(op)
    if write is not None and write.kind != "read":
        return write.array, write, (op,)
    for rest, dense in (op.operands, op.operands[::-1]) if op.name in SUMS else ():
        added = access(dense.op) if dense.op is not None else None
        # Condition 1 of sink-select-into-update.
        is_sum = added is not None and added.kind == "add" and uniform(added.array) == 0
        if added is not None and is_sum and is_weak(dense) == is_weak(op.result):
            return rest, added, (op, added.op)
    return None


def _write(op: Op) -> Access | None:
    """The window that an op writes, adds to, or combines with what may change nothing."""
    return access(op) or (combined(op) if neutral(op) is not None else None)


def _seen_through(
    value: Value, which: Value, case: int, count: int
) -> tuple[Value, tuple[Op, ...]]:
    """The value of one of so many cases where that case is taken, through selects by the same
    number.
    """
    selects: tuple[Op, ...] = ()
    # Condition 1 of sink-select-into-update.
    while (op := value.op) is not None and op.name == "select_n":
        taken = case_within(op, which, case, count)
        if taken is None:
            break
        selects, value = (*selects, op), op.operands[1 + taken]
    return value, selects


def no_gain(writes: Sequence[tuple[int, Access]], array: Value) -> str | None:
    """Why selecting written windows takes no less than selecting the array; None if it does."""
    prices = cost_model()
    made = len({case for case, _ in writes}) * array.nbytes  # each of these cases is an array
    if prices.is_most(sum(write.nbytes for _, write in writes), made):
        return "the windows are most of the array"
    apart = prices.started(2 * len(writes))  # each window is read and written
    if prices.elementwise(array) <= apart and _is_made_anew(array):
        return "the array is small, and selected while it is made"
    return None


def _is_made_anew(array: Value) -> bool:
    """Whether what an array is a version of is computed where it is read, as what is selected from
    several arrays is, too; not carried or stored, nor zeros, which are as good as not made.
    """
    pending, roots = [array], set[Value]()
    for value in pending:
        op = value.op
        write = _write(op) if op is not None else None
        if write is not None:
            pending.append(write.array)
        elif op is not None and op.name == "select_n":
            pending += [case for case in op.operands[1:] if case not in pending]
        elif op is not None and is_view(op):
            pending.append(op.operands[0])
        else:
            roots.add(value)
    return len(roots) > 1 or all(
        root.op is not None and is_fused(root.op) and not is_broadcast(root.op) for root in roots
    )


def is_stored_for_loop_back(version: Value) -> bool:
    """Whether the loop whose step makes a version stacks it, or the same elements in another order,
    and a loop in the other direction reads the stack.
    """
    loop = version.op.parent if version.op is not None else None
    return isinstance(loop, Scan) and any(
        is_reordered(stack.value, version)
        and any(isinstance(op, Scan) and op.reverse != loop.reverse for op in stack.result.users)
        for stack in loop.stacks
    )


def is_reordered(value: Value, version: Value) -> bool:
    """Whether a value is a version of an array, or elements of it in another order."""
    while value is not version:
        if value.op is None or not is_data_movement(value.op) or not value.op.operands:
            return False
        value = value.op.operands[0]
    return True
