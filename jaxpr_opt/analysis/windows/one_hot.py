"""Masks that are true at one place along an axis."""

from __future__ import annotations

from dataclasses import dataclass

from jaxpr_opt.analysis.values.induction import affine
from jaxpr_opt.analysis.values.selected_cases import spread
from jaxpr_opt.ir.graph import Value


@dataclass(frozen=True, slots=True)
class OneHot:
    """A mask that is true (or false, if `negated`) where the place along `axis`, counted from
    `offset`, is `number`.
    """

    axis: int
    offset: int
    number: Value
    rows: tuple[int, ...]
    """For each axis of the number, which axis of the mask it is."""
    negated: bool


def one_hot(predicate: Value) -> OneHot | None:
    """The one place where a mask is true, or false (1)."""
    root, axes = spread(predicate)
    op = root.op
    # Condition 1 of recognize-one-hot.
    if op is None or op.name not in ("eq", "ne"):
        return None
    for places, number in (op.operands, op.operands[::-1]):
        counted = affine(places) if places.shape else None
        source, rows = spread(number)
        # Condition 1 of recognize-one-hot.
        if counted is None or counted.steps or 1 in source.shape:
            continue
        along = [d for d, n in enumerate(places.shape) if counted.strides[d] and n > 1]
        # Condition 1 of recognize-one-hot.
        if len(along) == 1 and counted.strides[along[0]] == 1 and along[0] not in rows:
            rows = tuple(axes[d] for d in rows)
            return OneHot(axes[along[0]], counted.offset, source, rows, op.name == "ne")
    return None
