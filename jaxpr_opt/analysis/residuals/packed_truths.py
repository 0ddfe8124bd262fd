"""Truth values of a step that are stored as bits of one number.

A mask takes a byte an element.  The gradient of a clamp needs four of them, and eight fit into the
bits of a byte.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import jax.numpy as jnp

from jaxpr_opt.analysis.residuals.cuts import residuals
from jaxpr_opt.analysis.residuals.fewer_bytes import why_stored_whole
from jaxpr_opt.analysis.residuals.stack_consumers import routes
from jaxpr_opt.analysis.residuals.unread_rows import tells_ends
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Scan, Stack, Value

BITS = dtypes.limits(jnp.uint8)[1].bit_length()
"""How many truth values one number holds."""


def packable(scan: Scan) -> Iterator[tuple[Stack, ...]]:
    """The stacks of a loop that may be bits of one number for each element, in groups."""
    alike: dict[tuple[int, ...], list[Stack]] = defaultdict(list)
    for stack in scan.stacks:
        # Conditions 1, 2 of pack-truth-values.
        if _is_made(stack.value, scan) and routes(stack.result, nests=True):
            alike[stack.value.shape].append(stack)
    for stacks in alike.values():
        for first in range(0, len(stacks), BITS):
            group = tuple(stacks[first : first + BITS])
            if len(group) > 1:
                yield group


def why_apart(stacks: tuple[Stack, ...]) -> str | None:
    """Why these truth values stay arrays of their own."""
    saved = stacks[0].value.nbytes * (len(stacks) - 1)
    if any(tells_ends(stack, quickly=True) for stack in stacks):
        return "they tell which steps do nothing"
    return why_stored_whole(saved, stacks)


@remembered
def packed_beside_others(scan: Scan) -> Mapping[Value, int]:
    """Truth values of which residuals are made, if there are several, with the bytes of each where
    all are stored.
    """
    alike: dict[tuple[int, ...], list[Value]] = defaultdict(list)
    for value in _behind(scan):
        alike[value.shape].append(value)
    found: dict[Value, int] = {}
    for values in alike.values():
        nbytes = values[0].nbytes
        if not cost_model().is_hidden(nbytes * (len(values) - 1)):
            found |= dict.fromkeys(values, nbytes // min(len(values), BITS))
    return found


def _behind(scan: Scan) -> Iterator[Value]:
    """The truth values that residuals are made of; not what these are made of."""
    pending = [value for _, value in residuals(scan, nests=True)]
    seen = set(pending)
    while pending:
        value = pending.pop()
        if _is_made(value, scan):
            yield value
        elif value.op is not None and scan.body.defines(value):
            new = dict.fromkeys(v for v in value.op.operands if v not in seen)
            pending.extend(new)
            seen.update(new)


def _is_made(value: Value, scan: Scan) -> bool:
    """Whether a step itself makes truth values, in no branch or loop of it."""
    is_own = value.op is not None and value.region is scan.body and not value.op.regions
    return is_own and value.dtype == bool
