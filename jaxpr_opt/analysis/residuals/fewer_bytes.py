"""Whether it pays to store rows of loops in fewer bytes."""

from __future__ import annotations

from collections.abc import Iterable

from jaxpr_opt.analysis.residuals.stack_consumers import Rows, routes
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.graph import Stack


def why_stored_whole(saved: int, stacks: Iterable[Stack]) -> str | None:
    """Why rows of stacks are stored as they are, if a step could store so many bytes less."""
    if cost_model().is_hidden(saved):
        return "they are small"
    ways = [route for stack in stacks for route, _ in routes(stack.result, nests=True) or ()]
    readers = {hop.scan for (*_, hop) in ways if isinstance(hop, Rows)}
    read = (sum(stream.param.nbytes for stream in reader.streams) for reader in readers)
    if not all(cost_model().is_visible(saved, nbytes) for nbytes in read):
        return "they are a small part of what is read"
    return None
