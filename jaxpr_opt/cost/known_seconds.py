"""The seconds of ops, as far as they are known."""

from __future__ import annotations

from collections.abc import Iterable

from jaxpr_opt.cost.model import CostModel
from jaxpr_opt.ir.graph import Op, Scan


def known_seconds(ops: Iterable[Op], model: CostModel) -> float:
    """Seconds that ops take at least, each by itself; what is in a `while` counts once."""
    return sum(_known(op, model) for op in ops)


def _known(op: Op, model: CostModel) -> float:
    if not op.regions:
        return model.run([op])
    times = op.length if isinstance(op, Scan) else 1
    return times * sum(known_seconds(region.ops, model) for region in op.regions)
