"""Stack what will be read of an array: a window of it, or its elements as they were arranged.

Before::

    c_n, cs = scan[n] carry(c=c_0) xs(i=is) {
      d = f c i
      yield carry(d) ys(c)
    }
    g = scan[n, reverse] carry(c=ct) xs(a=cs, i=is) {
      r = gather a i
      e = h c r
      yield carry(e)
    }

After::

    c_n, rs = scan[n] carry(c=c_0) xs(i=is) {
      d = f c i
      r = gather c i
      yield carry(d) ys(r)
    }
    g = scan[n, reverse] carry(c=ct) xs(r=rs) {
      e = h c r
      yield carry(e)
    }

The transpose of a product multiplies with the other factor. If the product is of a window, the
transpose needs only the window, but JAX stores the array in each step. `vmap` of a gradient moves
the axis of the batch to the front of all that an inner loop stacks, and back where the transposed
loop reads it: then no pass sees that one loop stores rows for the other. Sound when

1. the stack is read row by row, in loops or nests of loops of as many steps, and only windows of a
   row are read (`jaxpr_opt.analysis.windows.access`);
2. their indices are computed from what the stacking step has as well: rows of the same streams and
   of its stacks, and values outside both loops (`jaxpr_opt.analysis.residuals.counterparts`);
3. or each reader takes back the transposition or reshape that makes the row: what it was made of is
   stacked.

Cost: windows are read in every step, also if the reading loop skips some. It fires if they are at
most half of the array. A row that is arranged otherwise takes the same memory, and saves work.
Source: https://github.com/jax-ml/jax/issues/8192, `scatter_mul` in jax/_src/lax/slicing.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.residuals.counterparts import Counterparts, counterparts
from jaxpr_opt.analysis.residuals.stack_consumers import Route, routes
from jaxpr_opt.analysis.values.moves import is_taken_back
from jaxpr_opt.analysis.windows.access import reads_window
from jaxpr_opt.builders.residual_transfer import send
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Scan, Stack, Value
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True)
class _Read:
    """A window that is read of a row at the end of a route, and how to tell where it is."""

    op: Op
    route: Route
    place: Counterparts | None


@dataclass(frozen=True, slots=True, eq=False)
class WindowsOfRows(Match):
    """A stack of whose rows windows are read, or rows as they were arranged (`back`)."""

    op: Scan
    stack: Stack
    reads: tuple[_Read, ...]
    back: bool = False


@dataclass(frozen=True)
class StackReadWindows(Pass[WindowsOfRows]):
    """Stack and read a window -> read a window and stack it."""

    name: ClassVar[str] = "stack-read-windows"
    whole_arrays: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[WindowsOfRows]:
        for stack in op.stacks:
            ways = routes(stack.result, nests=True) if stack.value.shape else None
            users = [(way, user, row) for way, row in ways or () for user in row.users]
            made = stack.value.op
            if users and made and all(is_taken_back(made, user) for _, user, _ in users):  # (3)
                reads = tuple(_Read(user, way, Counterparts({}, ())) for way, user, _ in users)
                says = f"{stack.value.label} is stacked as it was before it was rearranged"
                yield WindowsOfRows(op, says, stack, reads, back=True, about=stack.result)
            elif users and all(reads_window(user, row) for _, user, row in users):  # (1)
                reads = tuple(
                    _Read(user, way, counterparts(op, way, user.operands[1:]))
                    for way, user, _ in users
                )
                says = f"windows of {stack.value.label} are stacked, not all of it"
                yield WindowsOfRows(op, says, stack, reads, about=stack.result)

    def refuse(self, match: WindowsOfRows) -> str | None:
        array = match.stack.value
        if any(read.place is None for read in match.reads):
            return f"the loop that stacks {array.label} does not know where it is read"  # (2)
        windows = sum(read.op.result.nbytes for read in match.reads)
        if not match.back and cost_model().is_most(windows, array.nbytes):
            return "the windows are most of the array"
        return None

    def rewrite(self, match: WindowsOfRows, rw: Rewriter) -> None:
        scan = match.op
        sent = [(read.op, _made(match, read, rw), read.route) for read in match.reads]
        send(scan, match.stack, sent, rw)


def _made(match: WindowsOfRows, read: _Read, rw: Rewriter) -> Value:
    """The window that a reader reads, in the step that stacks."""
    array, place = match.stack.value, read.place
    assert place is not None
    if match.back:
        assert array.op is not None
        return array.op.operands[0]
    names = {**place.names, read.op.operands[0]: array}
    rw.clone([*place.ops, read.op], names, match.op.body.terminator)
    return names[read.op.result]
