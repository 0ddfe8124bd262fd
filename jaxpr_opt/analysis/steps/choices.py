"""The ways in which a step of a loop chooses: by a truth value or an integer, or by one a row.

A step that chooses need not be skipped as a whole (`skips`): it computes for some of its cases what
it drops in the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jaxpr_opt.analysis.steps.assume import Assumed, Facts
from jaxpr_opt.analysis.steps.incremental_assume import Assumable
from jaxpr_opt.analysis.steps.masked_rows import facts_of
from jaxpr_opt.analysis.steps.predicates import (
    candidates_of,
    is_kind,
    is_of_numbers,
    kind_of,
    predicate_root,
    slice_of,
)
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.induction import bounds
from jaxpr_opt.analysis.values.linearity import carries_cotangents
from jaxpr_opt.analysis.values.selected_cases import spread
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Cond, Op, Region, Scan, Value

_NOTHING: Facts = {}
Equal = Mapping[Value, tuple[Value, int]]
"""Masks that compare integers with a number."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """How a step of a loop chooses between cases."""

    scan: Scan
    asked: Value
    """A truth value, an integer, or an array of one for each row."""
    facts: tuple[Facts, ...]
    """What is known in each case; of rows, whether none of them or some may be as asked."""
    cases: tuple[Assumed, ...]
    """What the values of a step are in each case."""
    slice: tuple[Op, ...] = ()
    """The ops of the step that compute what is asked."""
    number: int | None = None
    """If there are two cases, what is asked for: no row is it, or some may be. Else the cases are
    false and true; or the `numbers`, and all others, if the integer may be another.
    """
    numbers: tuple[int, ...] = ()

    @property
    def is_borrowed(self) -> bool:
        """Whether a row of another loop is asked, of an array that this one could read, too."""
        return self.asked.region is not self.scan.body

    def is_like(self, other: Choice) -> bool:
        """Whether another one has the same cases, if what it asks is the same."""
        alike = (self.asked.shape, self.asked.dtype) == (other.asked.shape, other.asked.dtype)
        return (
            alike
            and len(self.cases) == len(other.cases)
            and (self.number, self.numbers) == (other.number, other.numbers)
        )


@remembered
def choices_of(scan: Scan) -> tuple[Choice, ...]:
    """The ways in which a step chooses."""
    return tuple(_choices(scan))


def _choices(scan: Scan) -> Iterator[Choice]:
    integers = _integers(scan)
    sizes, equal = _sizes(scan), dict(_equal(scan))
    truths = dict.fromkeys(v for v in candidates_of(scan) if _is_of_steps(v, sizes))
    truths |= dict.fromkeys(v for v in _rows_of_branches(scan) if v.dtype == bool)
    if not (integers or truths):
        return
    step = Assumable(scan.body, linear=carries_cotangents(scan))
    for asked in step.until_worn((*integers, *truths)):
        if not is_kind(kind_of(scan, asked)):
            continue
        ops, numbers = tuple(slice_of(scan, asked)), integers.get(asked, ())
        if not asked.shape:
            told = _cases(equal, asked, numbers) if numbers else _truths(scan, asked)
            yield Choice(scan, asked, told, tuple(map(step.under, told)), ops, None, numbers)
        for number in numbers or ((True, False) if asked.shape else ()):
            told = (_unlike(scan, equal, asked, number, numbers), _NOTHING)
            yield Choice(scan, asked, told, tuple(map(step.under, told)), ops, number)


def _truths(scan: Scan, asked: Value) -> tuple[Facts, ...]:
    return tuple(facts_of(scan, asked, truth) for truth in (False, True))


def _cases(equal: Equal, asked: Value, numbers: tuple[int, ...]) -> tuple[Facts, ...]:
    """What is known for each number, and for others if there are."""
    each: list[Facts] = [{asked: frozenset({k})} for k in numbers]
    others = {v: False for v, (of, k) in equal.items() if of is asked and k in numbers}
    return (*each, *(() if _is_one_of(asked, numbers) else (others,)))


def _unlike(scan: Scan, equal: Equal, asked: Value, number: int, numbers: tuple[int, ...]) -> Facts:
    """What is known if no row is a number."""
    if asked.dtype == bool:
        return facts_of(scan, asked, not number)
    if _is_one_of(asked, numbers):
        return {asked: frozenset(numbers) - {number}}
    return {v: False for v, (of, k) in equal.items() if of is asked and k == number}


def _equal(scan: Scan) -> Iterator[tuple[Value, tuple[Value, int]]]:
    """The masks of a step that compare integers with numbers."""
    for op in scan.body.ops:
        known = _compared(op.result) if op.name == "eq" else None
        if known is not None:
            yield op.result, known


def _sizes(scan: Scan) -> dict[Value, int]:
    """How many elements are selected at most by each truth value, or row of them."""
    found: dict[Value, int] = {}
    for op in scan.body.ops:
        if op.name == "select_n":
            asked = predicate_root(op.operands[0])
            found[asked] = max(found.get(asked, 0), op.result.size)
    return found


def _is_of_steps(asked: Value, sizes: Mapping[Value, int]) -> bool:
    """Whether a step selects arrays by a truth value, or rows of an array by one a row."""
    if not asked.shape:
        return True
    return sizes.get(asked, 0) > asked.size and not is_of_numbers(asked)


def _integers(scan: Scan) -> dict[Value, tuple[int, ...]]:
    """The integers by which a step takes one of more than two cases, or that it compares with
    several numbers to select, with the numbers.
    """
    found: dict[Value, set[int]] = {}
    for op in scan.body.ops:
        if isinstance(op, Cond) and op.selector.region is scan.body and len(op.branches) > 2:
            found.setdefault(op.selector, set()).update(range(len(op.branches)))
        if op.name != "select_n":
            continue
        asked, numbers, equal = chooser(op), range(len(op.operands) - 1), _compared(op.operands[0])
        if equal is not None:
            numbers = range(equal[1], equal[1] + 1)
        is_few = not asked.shape or asked.size < op.result.size
        if dtypes.is_integer(asked.dtype) and is_few and asked.region is scan.body:
            found.setdefault(asked, set()).update(numbers)
    return {asked: tuple(sorted(numbers)) for asked, numbers in found.items() if len(numbers) > 1}


def _rows_of_branches(scan: Scan) -> Iterator[Value]:
    """The rows of truth values of which a branch asks whether one is true."""
    for op in scan.body.ops:
        asked = predicate_root(op.operands[0]).op if isinstance(op, Cond) else None
        if asked is not None and asked.name == "reduce_or":
            rows = predicate_root(asked.operands[0])
            if rows.region is scan.body:
                yield rows


def chooser(select: Op) -> Value:
    """The truth value or the integer, or the row of them, that a select chooses by."""
    equal, root = _compared(select.operands[0]), predicate_root(select.operands[0])
    if equal is not None:
        return equal[0]
    return root if root.dtype == bool else spread(root)[0]


def _compared(mask: Value) -> tuple[Value, int] | None:
    """The integer that a mask says to be a number, or a row of them, and the number."""
    op = spread(mask)[0].op
    number = uniform(op.operands[1]) if op is not None and op.name == "eq" else None
    if op is None or number is None or not dtypes.is_integer(op.operands[0].dtype):
        return None
    return spread(op.operands[0])[0], int(number)


def _is_one_of(integer: Value, numbers: tuple[int, ...]) -> bool:
    """Whether an integer is one of these numbers."""
    known = bounds(integer)
    if known is None or known[1] - known[0] >= len(numbers):
        return False
    return all(n in numbers for n in range(known[0], known[1] + 1))


def row_of(value: Value) -> Value | None:
    """The array of which a loop streams a value."""
    region = value.owner
    loop = region.owner if isinstance(region, Region) else None
    stream = loop.stream_of(value) if isinstance(loop, Scan) else None
    return stream.operand if stream is not None else None
