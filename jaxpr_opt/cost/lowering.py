"""The program that XLA makes on a device: fusions, copies, loops that are one function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxpr_opt.bridge.parameters import asks_for_all_bits, numbers_of
from jaxpr_opt.cost.devices import CPU, Device
from jaxpr_opt.cost.fusion import (
    ONE_INSTRUCTION,
    is_fused,
    is_made_once,
    is_reduced_inside,
    is_repeated,
    is_rounded,
)
from jaxpr_opt.cost.layouts import Copy, bytes_made, copies, is_read_transposed
from jaxpr_opt.cost.reuse import is_view
from jaxpr_opt.cost.scratch import scratch_bytes, words_between, words_made
from jaxpr_opt.cost.windows import bytes_moved, bytes_touched
from jaxpr_opt.ir.dataflow import inputs
from jaxpr_opt.ir.graph import Op, Scan, Value, While
from jaxpr_opt.ir.traits import TRANSCENDENTAL, is_broadcast, rearranges


@dataclass(frozen=True, slots=True)
class Lowering:
    """What XLA makes of programs on a device."""

    device: Device = CPU

    # -- what is held while ops run

    @property
    def is_breadth_first(self) -> bool:
        """Whether ops run in the order in which they become ready."""
        return self.device.breadth_first

    def rearranged(self, op: Op) -> list[Copy]:
        """The copies of operands that XLA makes for a product or convolution, and holds until it
        has run.
        """
        return copies(op) if self.device.copies_operands else []

    def made(self, value: Value) -> tuple[int, ...]:
        """Bytes of a value as an op makes it, array by array."""
        if self.is_breadth_first and (words := words_made(value)):
            return words
        return (bytes_made(value) if self.device.copies_operands else value.nbytes,)

    def is_read_transposed(self, op: Op, value: Value) -> bool:
        """Whether a product reads a matrix where the one is that it is the transpose of."""
        return self.device.copies_operands and is_read_transposed(op, value)

    def scratch(self, op: Op) -> int:
        """Bytes that an op needs beside its operands and results."""
        return scratch_bytes(op) if self.device.sums_by_library else 0

    def scratch_between(self, op: Op) -> tuple[int, ...]:
        """Those of them, array by array, that it holds while other ops that were ready with it run,
        in turns.
        """
        return words_between(op) if self.is_breadth_first else ()

    # -- what is fused

    def is_repeated(self, op: Op) -> bool:
        """Whether XLA may compute an op once for each fusion that reads it."""
        if self.is_rounded_once(op):
            return False
        is_quick = self.device.fuses_functions and op.name in ONE_INSTRUCTION
        return is_quick or is_repeated(op)

    def is_rounded_once(self, op: Op) -> bool:
        """Whether an op is computed once, however many ops read it, as its numbers are rounded."""
        return self.device.rounds_once and is_rounded(op)

    def is_made_once(self, op: Op) -> bool:
        """Whether XLA computes a cheap op by itself: something costly that is made of it meets it
        again.
        """
        return self.device.fuses_all_or_none and is_made_once(op)

    def is_made_where_read(self, op: Op) -> bool:
        """Whether XLA computes an op where what it makes is read, and no more of it than is."""
        return is_fused(op) or op.name in TRANSCENDENTAL

    @property
    def fuses_functions(self) -> bool:
        """Whether functions of numbers are computed where they are read."""
        return self.device.fuses_functions

    def is_read_again(self, nbytes: int) -> bool:
        """Whether XLA reads a window again for each reduction of it."""
        return nbytes < self.device.reread

    def is_as_precise_in_any_shape(self, product: Op) -> bool:
        """Whether a product keeps as many bits whatever else is multiplied with it: where products
        of matrices of float32 lose some, it is one, or loses none anyway.
        """
        is_truncated = self.device.truncates and not asks_for_all_bits(product)
        is_one_kind = product.name != "dot_general"  # a convolution is one in any shape
        if (
            is_one_kind
            or not is_truncated
            or product.operands[0].dtype not in ("float32", "complex64")
        ):
            return True
        (contracted, _), (batch, _) = numbers_of(product)
        return bool(contracted) and any(n > 1 for n in product.result.shape[len(batch) :])

    @property
    def sorts_for_values(self) -> bool:
        """Whether a selection of which only the numbers are read, not their places, is a sort."""
        return self.device.sorts_for_values

    @property
    def sums_by_library(self) -> bool:
        """Whether a library reduces arrays, which knows few of the ops that make them."""
        return self.device.sums_by_library

    def is_reduced_inside(self, reduction: Op, op: Op) -> bool:
        """Whether such a library computes an op on the way, so that what it makes is no array."""
        return is_reduced_inside(reduction, op)

    def is_written_while_made(self, write: Op) -> bool:
        """Whether XLA would write a slice in the loop that computes the array, and slow that down;
        a scatter waits for the array.
        """
        maker = write.operands[0].op
        while maker is not None and (is_view(maker) or rearranges(maker)):
            maker = maker.operands[0].op
        if maker is None or maker.region is not write.region or is_broadcast(maker):
            return False
        return self.device.jumps and is_fused(maker)

    def is_made_one_by_one(self, update: Value) -> bool:
        """Whether the elements of a window would be computed where it is written, one after the
        other, by functions that XLA computes for several elements at once elsewhere; what
        something else reads, too, is in memory.
        """
        pending = [update]
        for value in pending:
            op = value.op
            if op is None or op.region is not update.region or not is_fused(op):
                continue
            if op.name in TRANSCENDENTAL and value.size > 1:
                return self.device.jumps
            pending += [v for v in op.operands if len(v.uses) == 1]
        return False

    def is_padded_one_by_one(self, row: int, fillers: int) -> bool:
        """Whether no elements of a row of so many are computed together if all but one are the
        filler of a pad, so many of them between that and the nearer end.
        """
        is_beside_end = fillers == 1 and self.device.peels_ends
        return self.device.jumps and row >= self.device.row and not is_beside_end

    # -- loops

    @property
    def has_kernels(self) -> bool:
        """Whether each op of a loop is a kernel that is launched, however few its numbers."""
        return not self.device.fused_bytes

    @property
    def asks_the_host(self) -> bool:
        """Whether the host decides whether a loop goes on."""
        return self.device.asks_the_host

    @property
    def makes_functions(self) -> bool:
        """Whether XLA makes one function of a loop where it is asked to."""
        return self.device.makes_functions

    def is_one_function(self, scan: Scan | While, others: int = 0) -> bool:
        """Whether a loop, and so many bytes more, are few numbers: it is compiled as one function,
        in which selects cost nothing.
        """
        touched = sum(v.nbytes for v in inputs(scan)) + _moved(scan)
        return touched + others <= self.device.fused_bytes

    def makes_whole(self, loop: Scan | While) -> bool:
        """Whether a step is so little that XLA makes one function of the loop, though its stacks
        may be large.
        """
        return not self.device.starts_each and _moved(loop) <= self.device.fused_bytes

    def _makes_by_itself(self, ops: Sequence[Op]) -> bool:
        """Whether XLA makes one function of a loop of these ops, as they touch few bytes, if it has
        code for all of them.
        """
        few = self.device.few_bytes if self.device.starts_each else self.device.fused_bytes
        return sum(map(bytes_touched, ops)) <= few


def _moved(loop: Scan | While) -> int:
    """Bytes that the ops of a step write."""
    return sum(map(bytes_moved, loop.body.walk()))
