"""Read and write one window by slicing where its index is known, instead of gathering it.

Before::

    s = scatter[mode=fill_or_drop, ...] ys i y
    x = gather[mode=clip, ...] xs i

After::

    s = dynamic_update_slice ys y j
    d = dynamic_slice xs j
    x = squeeze d

``ys.at[i].set(y)`` is a scatter, which checks its index and on a CPU becomes a loop; and other
passes match slices only. Sound when

1. it is one window, or one in each row of a batch at the same index, whose start is an affine
   function of the steps of the enclosing loops (`jaxpr_opt.analysis.windows.access`);
2. the window is in range at every step, so that clamping, dropping and filling change nothing, and
   no index is negative.

Cost: none; a slice needs no checks. But XLA:CPU writes a slice of an array that the same step
computes in the loop over its elements, one by one: up to 14 times as long as the scatter, which
stays. And the transpose of an addition is a read, while that of a
read and a write clears the window and adds to it: additions stay as long as they may be
differentiated.
Source: https://github.com/jax-ml/jax/issues/8192.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxpr_opt.analysis.values.enclosing import is_differentiated
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import After, Match, Pass
from jaxpr_opt.ir.graph import Op
from jaxpr_opt.ir.nesting import phase_of
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class Located(Match):
    """A gather or scatter of one window whose place is known."""

    access: Access


@dataclass(frozen=True)
class SliceKnownWindows(Pass[Located]):
    """Gather and scatter of one window at a known place -> slice and update."""

    name: ClassVar[str] = "slice-known-windows"
    after: ClassVar[tuple[After, ...]] = (
        After("stack-carried-updates", "streaming or stacking a row is better than slicing it"),
        After("narrow-reads", "an array that is read narrowly may not be needed at all"),
    )
    whole_arrays: ClassVar[bool] = True
    cleanup: ClassVar[bool] = True

    primitives: ClassVar[frozenset[str]] = frozenset({"gather", "scatter", "scatter-add"})

    def find(self, op: Op) -> Iterator[Located]:
        found = access(op) if op.result.uses else None
        if found is not None:
            yield Located(op, f"{op.name} of one window is a slice", found)

    def refuse(self, match: Located) -> str | None:
        if not match.access.is_located:  # (1, 2)
            return "the start of the window is unknown, or may be out of range"
        if match.access.kind == "add" and _may_be_differentiated(match.op):
            return "the transpose of a write also clears the window, that of an addition does not"
        if match.access.kind != "read" and _is_slower(match.access):
            return "XLA would make the array and write the slice in one loop, element by element"
        return None

    def rewrite(self, match: Located, rw: Rewriter) -> None:
        window, op = match.access, match.op

        def sliced(array: jax.Array, *rest: jax.Array) -> jax.Array:
            value = rest[len(window.indices) :]
            return window.sliced(array, window.starts(*rest[: len(window.indices)]), *value)

        update = () if window.kind == "read" else (window.value,)
        new = rw.typed(sliced, op.result.aval, window.array, *window.indices, *update, before=op)
        rw.replace(op.result, new)
        rw.erase(op)


def _is_slower(write: Access) -> bool:
    """Whether a scatter takes less time: it waits until the array is there."""
    is_constant = all(e.start is not None and e.start.is_constant for e in write.window)
    return not is_constant and cost_model().is_written_while_made(write.op)


def _may_be_differentiated(op: Op) -> bool:
    """Whether JAX may still transpose the program, which is none of its own gradient."""
    still = phase_of(op) != "final"
    return still and jnp.issubdtype(op.result.dtype, jnp.inexact) and not is_differentiated(op)
