"""Products of a batch that are only summed up over the batch: gradients of what its rows share."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.windows.repeated import is_repeated
from jaxpr_opt.bridge.parameters import axes_of, numbers_of, permutation_of
from jaxpr_opt.ir.graph import Op, Value


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """A predicate that replaces rows of a product by zeros."""

    predicate: Value
    zeros: bool
    """For which truth value it does."""
    axes: tuple[int, ...]
    """The axis of the product that each axis of the predicate is along."""


@dataclass(frozen=True, slots=True, eq=False)
class SummedProduct:
    """A product of which rows are chosen, and then summed up along batch axes."""

    product: Op
    masks: tuple[Mask, ...]
    summed: tuple[int, ...]
    """Axes of the product."""
    kept: tuple[int, ...]
    """The others, in the order in which the sum has them."""
    ops: tuple[Op, ...]
    """All that the sum replaces, last first, the product included."""


def summed_product(reduction: Op) -> SummedProduct | None:
    """The product that a `reduce_sum` sums up along batch axes; None if it does something else."""
    ops, masks = [reduction], list[Mask]()
    value, reduced = reduction.operands[0], axes_of(reduction)
    order = list(range(len(value.shape)))
    while (op := value.op) is not None and len(value.uses) == 1 and op.region is reduction.region:
        ops.append(op)
        if op.name == "dot_general":
            summed = tuple(sorted(order[axis] for axis in reduced))
            kept = tuple(to for axis, to in enumerate(order) if axis not in reduced)
            found = SummedProduct(op, tuple(masks), summed, kept, tuple(ops))
            return found if _are_rows(found) else None
        if op.name == "transpose":
            moved = permutation_of(op)
            order = [moved[axis] for axis in order]
            masks = [Mask(m.predicate, m.zeros, tuple(moved[a] for a in m.axes)) for m in masks]
            value = op.operands[0]
        elif (mask := _mask(op)) is not None:
            masks.append(mask)
            value = op.operands[1] if mask.zeros else op.operands[2]
        else:
            return None
    return None


def _mask(op: Op) -> Mask | None:
    """What a select between rows and zeros chooses by."""
    if op.name != "select_n" or op.operands[0].dtype != bool:
        return None
    predicate, *cases = op.operands
    zeros = [uniform(case) == 0 for case in cases]
    if zeros.count(True) != 1:
        return None
    return Mask(predicate, zeros[1], tuple(range(len(predicate.shape))))


def _are_rows(found: SummedProduct) -> bool:
    """Whether whole rows of the batch are summed up, and replaced."""
    _, (batch, _) = numbers_of(found.product)
    in_rows = range(len(batch), len(found.product.result.shape))
    # Condition 2 of share-batched-factors.
    if not set(found.summed) <= set(range(len(batch))):
        return False
    # Condition 2 of share-batched-factors.
    return all(
        is_repeated(mask.predicate, axis)
        for mask in found.masks
        for axis, to in enumerate(mask.axes)
        if to in in_rows
    )
