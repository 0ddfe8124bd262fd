"""Add a window in place, instead of a dense array that is zero but for the window.

Before::

    c = scan[n] carry(c=b) xs(u=us, i=is) {
      z = broadcast_in_dim 0.0
      p = dynamic_update_slice z u i
      a = add_any c p
      yield carry(a)
    }

After::

    c = scan[n] carry(c=b) xs(u=us, i=is) {
      r = dynamic_slice c i
      s = add r u
      a = dynamic_update_slice c s i
      yield carry(a)
    }

The transposes of reads make such arrays: `dynamic_update_slice`, `scatter` and `scatter-add` into
zeros, `pad`, `concatenate`, sums of these, and loops that add them up.

Sound when

1. the array that receives the windows is zero everywhere else, because acc + 0 is acc, up to the
   sign of zero; with the windows in it, only the sum reads it, or sums of which each adds them;
2. no element gets two windows, because ``acc + (u + v)`` is not ``(acc + u) + v``: several windows
   are proved disjoint, those of one `scatter-add` unique, and those of the steps of an inner loop,
   which then adds to the accumulator itself, adjacent; integers need none of this;
3. the sum, the accumulator and the array with the windows have one type, weak type included;
4. a loop that adds up windows in a second array does so in the step, not before the loop.

Where two windows may coincide, but are one place each, the program compares the places, and each
window of the sum gets what all of them have there (`forward-written-windows`).

If (2) does not hold, as where an inner loop reads a table at indices from the data and adds one
window a step, the windows are added up in the old order, but in as many slots as the loop has
steps, or in a second array, and then moved window by window
(`jaxpr_opt/builders/sparse/reduction_privatization.py`).

Cost: a step costs the windows instead of the array. It fires only if that is less for all windows
that are added in a row. XLA fuses the arrays that the transpose of a stencil adds into one sum, and
tests every window at every element. It fires in the body of a loop whose accumulator is a buffer
updated in place, or has just been written to, and which nothing reads afterwards: elsewhere one
dense sum, fused with its operands, is as fast (4 MB on CPU: 62 us dense, 89 us in place), unless
windows are scattered in each row of a batch, which XLA does not fuse. XLA finds the simplest case
itself, but not pads, sums of windows, batches of writes and nested loops (500 steps, table of 128
KB: two windows 11.6 ms before and 11 us after). Slots take 0.06 to 0.97 of the time of the dense
sum (tables of 4 KB to 1 MB, 4 to 1024 steps) and one number for a window; a second array takes
longer, and as much memory as the first. Both fire only if the windows are small beside the array.
Source: XLA's algebraic simplifier; Shaikhha et al., "Efficient Differentiable Programming in a
Functional Array-Processing Language", arXiv:1806.02136 (what a dense one-hot cotangent costs).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from jaxpr_opt.analysis.carried.buffers import is_updated_in
from jaxpr_opt.analysis.carried.overwritten import is_read_late
from jaxpr_opt.analysis.sparse.disjoint_pieces import is_one_by_one, own_windows
from jaxpr_opt.analysis.sparse.mapped_windows import is_narrower_soon
from jaxpr_opt.analysis.sparse.scatter_chains import SCATTERS, Chain, Piece, Pieces, added
from jaxpr_opt.analysis.sparse.sums import (
    ComparedWrites,
    added_in_a_row,
    compared_writes,
    is_read_beside,
    is_scattered_in_rows,
    loop_with_own_windows,
)
from jaxpr_opt.analysis.values.constants import is_weak
from jaxpr_opt.analysis.values.enclosing import loop_of
from jaxpr_opt.analysis.windows.window_primitives import WRITES
from jaxpr_opt.builders.sparse.reduction_privatization import add_privately, is_less_elsewhere
from jaxpr_opt.builders.sparse.summed_windows import one_by_one, write_sum
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.insight.journal import Waste
from jaxpr_opt.ir.graph import Op, Scan, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import SUMS
from jaxpr_opt.sizes import bytes_text


@dataclass(frozen=True, slots=True, eq=False)
class Sum(Match):
    """The op adds `chain`, which starts at zero and whose result is `dense`, to `array`."""

    array: Value
    dense: Value
    chain: Chain

    @property
    def loop(self) -> Pieces | None:
        """The loop that may add to the array itself, instead of to zeros (2)."""
        return loop_with_own_windows(self.chain, self.array)

    @property
    def compared(self) -> ComparedWrites | None:
        """The windows that the program compares, as two of them may coincide (2)."""
        return compared_writes(self.op, self.array)


@dataclass(frozen=True)
class AccumulateSparseCotangents(Pass[Sum]):
    """Zeros with a piece in them, added to a buffer of a loop -> the piece added in place."""

    name: ClassVar[str] = "accumulate-sparse-cotangents"
    whole_arrays: ClassVar[bool] = True
    primitives: ClassVar[frozenset[str]] = SUMS
    needs: ClassVar[frozenset[str]] = frozenset({"scan", "while", *SCATTERS})

    def find(self, op: Op) -> Iterator[Sum]:
        if loop_of(op) is None and not all(map(is_scattered_in_rows, op.operands)):
            return  # the dense sum is as fast
        for array, dense in (op.operands, op.operands[::-1]):
            chain = added(dense)
            if chain.starts_at_zero:  # (1)
                few, all_ = bytes_text(chain.nbytes), bytes_text(array.nbytes)
                says = f"{few} are added in place, not a whole {all_}"
                at, waste = chain.links[-1].innermost.op, self._waste(array, chain)
                yield Sum(op, says, array, dense, chain, at=at, about=op.result, waste=waste)

    def _waste(self, array: Value, chain: Chain) -> Waste | None:
        is_dense = any(link.is_dense for link in chain.links)
        return "zeros" if is_dense and cost_model().is_sparse(chain.nbytes, array.nbytes) else None

    def refuse(self, match: Sum) -> str | None:
        op, array, result = match.op, match.array, match.op.result
        if is_read_beside(match.dense, op, match.chain):  # (1)
            return f"{match.dense.label} is read elsewhere"
        is_alike = array.shape == match.dense.shape == result.shape
        if not is_alike or is_weak(array) != is_weak(result):  # (3)
            return f"the sum is a {result.exact_type}, the accumulator a {array.exact_type}"
        if is_read_late(array, op):
            return f"{array.label} is read afterwards, so XLA would copy it"
        if is_narrower_soon(match.dense):
            return f"another rewrite adds to a part of {array.label} only"
        loop = loop_of(op)
        if loop is not None and not is_updated_in(array, loop) and not _is_written(array):
            return f"{array.label} is new in each step: there is no buffer to update"
        if is_one_by_one(match.chain, array.dtype):  # (2)
            if not cost_model().is_less_in_place(added_in_a_row(op), array):
                return f"the windows together are as large as {array.label}"
            is_fused = all(link.is_dense for link in match.chain.links)
            is_small = is_fused and loop and cost_model().is_less_than_one_more(array, loop.body)
            return "starting one more op takes as long as adding all of it" if is_small else None
        if match.loop is not None:
            return None
        if match.compared is not None:
            windows = sum(write.nbytes for write in match.compared.writes)
            is_most = cost_model().is_most(windows, array.nbytes)
            return "the windows are most of it" if is_most else None
        return self._why_not_moved(match)

    def _why_not_moved(self, match: Sum) -> str | None:
        """Why the pieces cannot be added up in an array of their own that the loop carries."""
        op, links = match.op, match.chain.links
        scan, size = op.parent, match.array.nbytes
        if len(links) == 1 and isinstance(links[0], Piece):  # (2)
            return "windows may repeat, and the order of the sum would change"
        if not isinstance(scan, Scan):
            return "windows may overlap, and the order of the sum would change"
        if is_weak(op.result) or not op.result.aval.sharding.mesh.empty:
            return f"a second {op.result.type} cannot be carried"
        loops = [link.op for link in links if isinstance(link, Pieces)]
        if any(loop.region is not op.region for loop in loops):  # (4)
            return "the windows are added up before the loop"
        if any(link.op.effects for link in links):
            return "the inner loop has effects"
        if any(map(own_windows, links)):
            return "each step of the inner loop has a window of its own"
        touched = sum(link.count for link in links)
        if scan.length < 2 or not is_less_elsewhere(match.chain, size, touched):
            return f"the array of {bytes_text(size)} is small beside its {touched:,} windows"
        return None

    def rewrite(self, match: Sum, rw: Rewriter) -> None:
        if is_one_by_one(match.chain, match.array.dtype):  # (2)
            made = one_by_one(match.chain, match.array, match.op, rw)
        elif (loop := match.loop) is not None:
            rw.set_operand(loop.op, loop.op.results.index(loop.result), match.array)
            made = loop.result
        elif match.compared is not None:
            made, (terms, writes, sums) = match.array, match.compared
            for write in writes:
                made = write_sum(made, terms, write, sums, rw)
        else:
            made = add_privately(match.chain, match.array, match.op, rw)
        rw.replace(match.op.result, made)
        rw.erase_unread(match.op)


def _is_written(array: Value) -> bool:
    """Whether windows of more than zeros were written last: XLA fuses no sum with that."""
    return array.op is not None and array.op.name in WRITES and not added(array).starts_at_zero
