"""Parts of an array, each zero where another is not. The transpose of a select splits a cotangent
into parts, and the transpose of the selected code writes windows of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.selected_cases import case_within
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import SUMS


@dataclass(frozen=True, slots=True)
class SelectedPart:
    """What `whole` is where `which` says one of `cases`, zero elsewhere; then written to."""

    result: Value
    writes: tuple[Access, ...]
    """First to last."""
    before: Value
    """The part as it was before."""
    whole: Value
    which: Value
    cases: frozenset[int]


def part(value: Value, anchor: Op) -> SelectedPart | None:
    """The part that a value is of another, with the windows written to it in the region of
    `anchor`.
    """
    before, writes = before_writes(value, anchor)
    found = _part(before)
    return SelectedPart(value, writes, before, *found) if found is not None else None


def _part(value: Value) -> tuple[Value, Value, frozenset[int]] | None:
    """Of what a value is a part, by which predicate, and in which cases."""
    op = value.op
    if op is None or op.name != "select_n":
        return None
    which, *cases = op.operands
    chosen = frozenset(case for case, v in enumerate(cases) if uniform(v) != 0)
    wholes = {cases[case] for case in chosen}
    return (wholes.pop(), which, chosen) if len(wholes) == 1 else None


def joined(parts: Sequence[SelectedPart]) -> Value | None:
    """The array that is split into these parts, or into parts of parts."""
    cases: dict[tuple[Value, Value, int], list[int]] = {}
    pending = [(each.whole, each.which, each.cases, each.before) for each in parts]
    while pending:
        whole, which, chosen, before = pending.pop()
        assert before.op is not None
        count = len(before.op.operands) - 1
        found = cases.setdefault((whole, which, count), [])
        found += chosen
        # Condition 1 of join-selected-parts.
        if sorted(found) != list(range(count)):
            continue
        del cases[whole, which, count]
        if not pending and not cases:
            return whole
        around = _part(whole)
        if around is None:
            return None
        pending.append((*around, whole))
    return None


def before_writes(value: Value, anchor: Op) -> tuple[Value, tuple[Access, ...]]:
    """The array before windows of it were written, and those writes, first to last."""
    writes: tuple[Access, ...] = ()
    while (op := value.op) is not None and len(writes) < limits.WRITES_IN_A_ROW:
        write = access(op) if op.region is anchor.region else None
        # Condition 2 of join-selected-parts.
        if write is None or write.kind == "read":
            break
        writes, value = (write, *writes), write.array
    return value, writes


def origin(select: Op, case: int) -> Value:
    """The array that a case of a select was before windows of it were written, where the case is
    taken.
    """
    which, *cases = select.operands
    value = cases[case]
    for _ in range(limits.WRITES_IN_A_ROW):
        op = value.op
        write = access(op) if op is not None else None
        if write is not None and write.kind != "read":
            value = write.array
            continue
        is_select = op is not None and op.name == "select_n"
        taken = case_within(op, which, case, len(cases)) if op is not None and is_select else None
        if op is None or taken is None:
            break
        value = op.operands[1 + taken]
    return value


def summands(
    op: Op, array: Value | None = None, most: int = limits.WRITES_IN_A_ROW
) -> tuple[tuple[Op, ...], list[Value]]:
    """The additions that compute a sum, last to first, and its terms. `array` is one term; of more
    additions than `most`, the first make a term.
    """
    sums, terms, left = [op], [], list(op.operands)
    while left:
        value = left.pop()
        inner = value.op
        if (
            inner is not None
            and inner.name in SUMS
            and inner.region is op.region
            and value is not array
            and len(value.uses) == 1
            and len(sums) < most
        ):
            sums.append(inner)
            left += inner.operands
        else:
            terms.append(value)
    return tuple(sums), terms
