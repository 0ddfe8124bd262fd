"""Products of a batch that are summed up over the batch: gradients of what its rows share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.windows.repeated import is_repeated
from jaxpr_opt.analysis.windows.row_axes import axis_of_operand
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import axes_of, is_resharded, numbers_of
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import SUMS

MOVES = frozenset({"broadcast_in_dim", "neg", "pad", "reshape", "slice", "squeeze", "transpose"})
"""Ops that make of a sum of arrays the sum of what they make of each, infinite or not."""


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """Which rows of an array count: those for which a predicate is this case of a select."""

    predicate: Value
    case: int
    cases: int
    """How many there are: JAX takes the first or last one for a number out of range."""
    kept: tuple[int, ...]
    """Axes along which the predicate is not the same everywhere."""
    axes: tuple[int, ...]
    """The axis of the array that each of these is."""


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One of the arrays that are added up, and of which rows are summed up."""

    array: Value
    summed: tuple[int, ...]
    """Axes of it."""
    masks: tuple[Mask, ...] = ()
    moves: tuple[tuple[Op, tuple[int, ...]], ...] = ()
    """What is made of it before it is added, last first, and the summed axes of each result."""

    @property
    def product(self) -> Op | None:
        """The product that it is, if that may sum it up, too: whole rows of both factors, along
        batch axes.
        """
        op = self.array.op
        # Condition 2 of share-batched-factors.
        if op is None or op.name != "dot_general" or len(self.array.uses) > 1 or is_resharded(op):
            return None
        _, (batch, _) = numbers_of(op)
        rows = {*self.summed, *(axis for mask in self.masks for axis in mask.axes)}
        # Condition 2 of share-batched-factors.
        return op if rows <= set(range(len(batch))) else None


@dataclass(frozen=True, slots=True, eq=False)
class SumOfTerms:
    """What a `reduce_sum` sums up, as terms, one of which at least is a product."""

    terms: tuple[Term, ...]
    ops: tuple[Op, ...]
    """Those that lead from the terms to the sum, which is the first, each before its operands."""


@remembered
def sum_of_terms(reduction: Op) -> SumOfTerms | None:
    """The products of rows that a `reduce_sum` adds up; None if there are no products."""
    pending = [Term(reduction.operands[0], axes_of(reduction))]
    terms, ops = list[Term](), [reduction]
    while pending:
        term = pending.pop()
        within = None if term.product else _within(term, reduction)
        if within is None:
            terms.append(term)
            continue
        assert term.array.op is not None
        pending += within
        ops.append(term.array.op)
        if len(ops) > limits.OPS_OF_A_SUM:
            return None
    products = [term.product for term in terms if term.product]
    # Condition 2 of share-batched-factors.
    return SumOfTerms(tuple(terms), (*ops, *products)) if products else None


def _within(term: Term, reduction: Op) -> list[Term] | None:
    """The terms that an array is made of; None if the array itself must be summed up."""
    array, op = term.array, term.array.op
    if op is None or op.region is not reduction.region or len(array.uses) > 1:
        return None
    if op.name in SUMS:
        if any(v.shape != array.shape for v in op.operands):  # a number, which has no rows
            return None
        return [replace(term, array=v) for v in op.operands]
    if op.name == "select_n":
        return _chosen(term, op)
    if op.name not in MOVES and not _widens(op):
        return None
    # Condition 2 of share-batched-factors.
    if is_resharded(op) or (op.name == "pad" and uniform(op.operands[1]) != 0):
        return None
    summed = _followed(op, term.summed)
    masks = [_moved(mask, op) for mask in term.masks]
    if summed is None or None in masks:
        return None
    known = tuple(mask for mask in masks if mask is not None)
    moves = term.moves if _widens(op) else (*term.moves, (op, term.summed))
    return [Term(op.operands[0], summed, known, moves)]


def _widens(op: Op) -> bool:
    """Whether floats become such as hold all of them: then they may be so from the start."""
    return op.name == "convert_element_type" and dtypes.is_widened(
        op.operands[0].dtype, op.result.dtype
    )


def _chosen(term: Term, select: Op) -> list[Term] | None:
    """The cases of a select that are not zero, each with the rows that are chosen of it."""
    predicate, *cases = select.operands
    # Condition 2 of share-batched-factors.
    if is_resharded(select):
        return None
    kept = tuple(axis for axis in range(len(predicate.shape)) if not is_repeated(predicate, axis))
    return [
        replace(
            term, array=case, masks=(*term.masks, Mask(predicate, number, len(cases), kept, kept))
        )
        for number, case in enumerate(cases)
        if uniform(case) != 0
    ]


def _moved(mask: Mask, op: Op) -> Mask | None:
    """The same rows of what an op reads; None if they are no rows of that."""
    axes = _followed(op, mask.axes)
    return None if axes is None else replace(mask, axes=axes)


def _followed(op: Op, axes: Sequence[int]) -> tuple[int, ...] | None:
    """The axes of the first operand that become these axes of the result, row by row."""
    found = [axis_of_operand(op, 0, axis) for axis in axes]
    return None if None in found else tuple(axis for axis in found if axis is not None)
