"""The seconds of ops as far as they are known, and how often loops run them."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from jaxpr_opt.cost.model import CostModel
from jaxpr_opt.ir.graph import Op, Scan
from jaxpr_opt.ir.nesting import with_parents


def known_seconds(ops: Iterable[Op], model: CostModel) -> float:
    """Seconds that ops take at least, each by itself; what is in a `while` counts once."""
    return sum(_known(op, model) for op in ops)


def _known(op: Op, model: CostModel) -> float:
    if not op.regions:
        return model.run([op])
    times = op.length if isinstance(op, Scan) else 1
    return times * sum(known_seconds(region.ops, model) for region in op.regions)


def runs(op: Op) -> int:
    """How often the loops around an op run it. Loops of unknown length count once."""
    return prod(around.length for around in with_parents(op.parent) if isinstance(around, Scan))
