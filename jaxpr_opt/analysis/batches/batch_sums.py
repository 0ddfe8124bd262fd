"""Products and scatters of each row of a batch whose results are summed over the batch: gradients
of what the rows share.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from jaxpr_opt.analysis.batches.repeated import is_repeated
from jaxpr_opt.analysis.rows.row_axes import axis_of_operand
from jaxpr_opt.analysis.sparse.scatter_chains import SCATTERS, may_coincide
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import (
    axes_of,
    groups_of,
    is_in_order,
    is_resharded,
    numbers_of,
)
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
    source: Op | None = None
    """The product, the convolution or the scatter into zeros that makes it, if that may sum it up,
    too. What else the scatter adds to is another term."""

    @property
    def rows(self) -> set[int]:
        """The axes along which rows are summed up or chosen."""
        return {*self.summed, *(axis for mask in self.masks for axis in mask.axes)}


@dataclass(frozen=True, slots=True, eq=False)
class SumOfTerms:
    """What a `reduce_sum` sums up, as terms."""

    terms: tuple[Term, ...]
    ops: tuple[Op, ...]
    """Those that lead from the terms to the sum, which is the first, each before its operands."""

    def made_by(self, names: Collection[str]) -> dict[Op, Term]:
        """The terms that ops of these names make."""
        return {t.source: t for t in self.terms if t.source and t.source.name in names}


@remembered
def sum_of_terms(reduction: Op) -> SumOfTerms | None:
    """What a `reduce_sum` sums up; None if there are too many ops."""
    pending = [Term(reduction.operands[0], axes_of(reduction))]
    terms, ops = list[Term](), [reduction]
    while pending:
        term = pending.pop()
        op = term.array.op
        # Condition 1 of sum-batches-at-once.
        if op is None or op.region is not reduction.region or len(term.array.uses) > 1:
            terms.append(term)
        elif _sums_up(op, term):
            terms.append(replace(term, source=op))
            if op.name in SCATTERS and uniform(op.operands[0]) != 0:
                pending.append(replace(term, array=op.operands[0]))
            ops.append(op)
        elif (convolution := _convolution(op, term)) is not None:
            terms.append(replace(term, source=convolution))
            ops += [op, convolution]
        elif (within := _within(term, op)) is not None:
            pending += within
            ops.append(op)
        else:
            terms.append(term)
        if len(ops) > limits.OPS_OF_A_SUM:
            return None
    return SumOfTerms(tuple(terms), tuple(ops))


def _sums_up(op: Op, term: Term) -> bool:
    """Whether an op could sum up the rows that it makes: whole rows of all that it reads, along
    batch axes.
    """
    # Condition 1 of sum-batches-at-once.
    if is_resharded(op):
        return False
    if op.name == "dot_general":
        _, (batch, _) = numbers_of(op)
        # Condition 1 of sum-batches-at-once.
        return term.rows <= set(range(len(batch)))
    if op.name not in SCATTERS:
        return False
    # Condition 2 of sum-batches-at-once.
    if op.name == "scatter" and (uniform(op.operands[0]) != 0 or may_coincide(op)):
        return False
    # Condition 1 of sum-batches-at-once.
    return term.rows <= set(numbers_of(op).operand_batching_dims)


def _convolution(op: Op, term: Term) -> Op | None:
    """The convolution of which an op makes an axis of some groups, if it could sum these up."""
    made = op.operands[0].op if op.name == "reshape" and is_in_order(op) else None
    if made is None or made.name != "conv_general_dilated" or len(made.result.uses) > 1:
        return None
    if made.region is not op.region or is_resharded(made) or is_resharded(op):
        return None
    axis, shape = numbers_of(made)[2][1], [*made.result.shape]
    groups, rows = max(groups_of(made)), op.result.shape[axis] if axis < len(shape) else 0
    if rows < 2 or groups != rows:
        return None
    shape[axis : axis + 1] = rows, shape[axis] // rows
    # Condition 1 of sum-batches-at-once.
    return made if tuple(shape) == op.result.shape and term.rows == {axis} else None


def _within(term: Term, op: Op) -> list[Term] | None:
    """The terms of which an op makes an array; None if the array itself must be summed up."""
    if op.name in SUMS:
        if any(v.shape != op.result.shape for v in op.operands):  # a number, which has no rows
            return None
        return [replace(term, array=v) for v in op.operands]
    if op.name == "select_n":
        return _chosen(term, op)
    if op.name not in MOVES and not _widens(op):
        return None
    # Condition 1 of sum-batches-at-once.
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
    # Condition 1 of sum-batches-at-once.
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
