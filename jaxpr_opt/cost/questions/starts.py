"""How ops are started: one by one, in a row, or as one function; in registers, in vectors."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from jaxpr_opt.cost.functions import longer_one_by_one
from jaxpr_opt.cost.fusion import (
    handed_on,
    is_fused,
    kernels,
    loops_started,
    numbers_read,
    own_kernels,
)
from jaxpr_opt.cost.jumps import fills_behind, joins_parts, merges_axes
from jaxpr_opt.cost.ops import HASHING, cost
from jaxpr_opt.cost.prices import number
from jaxpr_opt.cost.questions.windows import WindowQuestions
from jaxpr_opt.cost.reuse import is_view
from jaxpr_opt.cost.windows import bytes_moved, numbers_converted, rows_apart, windows_apart
from jaxpr_opt.cost.work import embedded
from jaxpr_opt.ir.dataflow import inputs
from jaxpr_opt.ir.graph import Op, Region, Scan, Value, While
from jaxpr_opt.ir.traits import IN_PLACE, SCATTERING


class StartQuestions(WindowQuestions):
    """How ops are started: one by one, in a row, or as one function; in registers, in vectors."""

    __slots__ = ()

    def is_worth_one_function(self, loop: Scan | While) -> bool:
        """Whether XLA would start each op of a loop by itself, as it touches many bytes or writes
        several windows at once, and that takes a good part of the time of a step.  What a region
        hands on is an op, and those it is made of are parts of it.  Windows of a scatter are then
        written one by one, and those of a gather read so; of several scatters that are added each
        has an array of its own, which XLA joins elsewhere; some functions are computed number by
        number, with what of several windows is read for them; and products take longer.  Random
        numbers are drawn in loops, of which each op is started, too.
        """
        ops = [op for op in loop.walk() if not (op.regions or op.is_terminator or is_view(op))]
        written = [op for op in ops if op.name in SCATTERING and windows_apart(op) > 1]
        hashed = sum(op.name in HASHING for op in ops)
        if written:
            is_possible = self.makes_functions or self._makes_by_itself(ops)
        else:
            touched = sum(cost(op).bytes or 0 for op in ops)
            touched += self.device.hashed_bytes * hashed
            is_possible = self.makes_functions and touched > self._few_bytes(loop)
        if not is_possible:
            return False
        regions = [region for op in loop.walk() for region in op.regions]
        of_hashes = self.started(self.device.hashed_kernels * hashed)
        in_a_row = sum(map(self._started_in_a_row, regions)) + of_hashes
        longer = [(op, more) for op in ops if (more := longer_one_by_one(op))]
        numbers = sum(more + numbers_read(op) for op, more in longer)
        numbers += sum(map(numbers_converted, ops)) if self.makes_functions else 0
        if self.device.one_by_one * number(numbers) > in_a_row:
            return False
        multiplied = self.device.multiplied_inside * sum(cost(op).products or 0 for op in ops)
        if multiplied > sum(map(self._started_for_nothing, regions)) + of_hashes:
            return False
        handed = sum(map(handed_on, regions))
        known = [self._computed(cost(op)) for op in ops]
        starts = self.started(kernels(ops) + handed)
        seconds = self.moved(sum(map(bytes_moved, ops))) + sum(each for each in known if each < inf)
        summed = [op for op in ops if windows_apart(op) > 1 and any(map(embedded, op.results))]
        if written and (few := self._kernels_in_a_row(loop, max(len(summed) - 1, 0))):
            starts = self.device.kernel_in_a_row * few
        filled = self.moved(sum(op.result.nbytes for op in summed[1:]))
        apart = self.device.window_apart * number(sum(map(windows_apart, ops)))
        apart += self.device.row_apart * number(sum(map(rows_apart, ops)))
        apart += self.moved(sum(op.operands[2].nbytes for op in written)) / 2
        saved = starts + of_hashes - apart - filled
        return saved >= self.device.noticed_starts * seconds

    def _few_bytes(self, loop: Scan | While) -> int:
        """Bytes that a loop touches, by our count, up to which XLA makes one function of it."""
        counts_more = any(
            op.regions or cost(op).products for region in loop.regions for op in region.ops
        )
        return self.device.surely_few_bytes if counts_more else self.device.few_bytes

    def is_read_one_by_one(self, row: Value, loop: Scan | While) -> bool:
        """Whether functions of the numbers of a row would be computed one by one because these lie
        apart: in an op that writes what comes of them, or by functions that XLA computes for
        several numbers at once where it starts ops one by one.
        """
        ops = [op for op in loop.walk() if not (op.regions or op.is_terminator or is_view(op))]
        is_apart = not (self._is_one_function(loop) or self._makes_by_itself(ops))
        pending, seen = [row], {row}
        for value in pending:
            for user in (each for each in value.users if each.region is loop.body):
                several = any(v.size > 1 for v in user.results)
                if user.name in IN_PLACE and any(map(self.is_made_one_by_one, user.operands[1:])):
                    return True
                if several and is_apart and is_fused(user) and longer_one_by_one(user):
                    return True
                if is_fused(user):
                    pending.extend(v for v in user.results if v not in seen)
                    seen.update(user.results)
        return False

    def is_joined(self, op: Op) -> bool:
        """Whether a loop takes a jump for each number, to find the part that it is in."""
        return self.device.jumps and joins_parts(op, turns=self.device.mixes_by_places)

    def jumps(self, op: Op) -> bool:
        """Whether a loop over what an op makes takes a jump for each number, or looks up its place:
        then it computes no numbers together.
        """
        if self.is_joined(op):
            return True
        shifts = self.device.shifts
        return self.device.jumps and (fills_behind(op) or merges_axes(op, shifts=shifts))

    def jumped(self, ops: Iterable[Op], numbers: int) -> float:
        """Seconds longer that a loop over so many numbers takes for the jumps of such ops."""
        return self.device.jumped * number(numbers) * sum(map(self.jumps, ops))

    def is_row_unrolled(self, row: int, ops: Iterable[Op]) -> bool:
        """Whether LLVM unrolls a loop over a row of so many numbers, and then computes them before
        the loop over all rows: if few, those that are joined of parts, too, unless ops are started
        one by one.
        """
        few = 0 if self.device.starts_each else self.device.row
        return row <= (few if any(map(self.is_joined, ops)) else self.device.unrolled)

    def is_hidden_in(self, loop: Scan | While, nbytes: int) -> bool:
        """Whether moving so many bytes takes no longer than a step of a loop does anyway; of one
        that is one function, and starts no ops, less than of others.
        """
        step = self.device.fused_step if self.makes_whole(loop) else self.device.step
        return self.moved(nbytes) < step

    def is_less_than_one_more(self, array: Value, region: Region) -> bool:
        """Whether moving an array takes less time than one more op of a region in a loop: then all
        its ops may be too many to be started in a row.  One function of a loop starts none.
        """
        loop, few = region.owner, self.device.few_kernels
        if not few or not isinstance(loop, Scan | While) or self._is_one_function(loop):
            return False
        more = self.device.kernel
        if own_kernels(region) <= few:
            more += few * (self.device.kernel - self.device.kernel_in_a_row)
        return self.moved(2 * array.nbytes) < more

    def are_copied_in_a_row(self, arrays: Iterable[Value], region: Region) -> bool:
        """Whether a region has so few ops that they are started in a row, and may not be with one
        more; where starting them takes longer than copies in the cache of first level.
        """
        copied = 2 * sum(number(array.nbytes) for array in arrays)
        return copied <= self.device.first_level and own_kernels(region) <= self.device.few_kernels

    def is_worth_writing_apart(self, array: Value, region: Region) -> bool:
        """Whether asking of each number of an array whether it is in a window that is written takes
        longer than to start an op that writes it; with what it reads, and with the loop's counter,
        these are five more.
        """
        stacks = len(region.owner.stacks) if isinstance(region.owner, Scan) else 0
        few = own_kernels(region) + stacks + 5 <= self.device.few_kernels
        start = self.device.kernel + (0.0 if few else self.device.own_function)
        return self.device.write_inside * number(array.size) > start

    def _is_one_function(self, loop: Scan | While) -> bool:
        """Whether XLA makes one function of a loop, by itself or as it is asked to."""
        apart = (op.name in SCATTERING and windows_apart(op) > 1 for op in loop.walk())
        return self.is_worth_one_function(loop) or (self.makes_whole(loop) and not any(apart))

    def _kernels_in_a_row(self, loop: Scan | While, joined: int) -> int:
        """The kernels of a step, with those that read its rows and move its counter on, and copy
        it, without so many that are joined with others, if they are started in a row, as few are,
        and those of a loop over few bytes where XLA makes a function of such; 0 if they are not, or
        if regions are inside.
        """
        body = loop.body
        if any(op.regions for op in body.ops):
            return 0
        rows = len(loop.streams) + len(loop.stacks) if isinstance(loop, Scan) else 0
        count = loops_started(body) - joined + rows + 2
        handed = sum(value.nbytes for value in inputs(loop))
        others = 2 * handed  # what is handed to the loop is also read, and handed on
        is_small = not self.device.starts_each and self.is_one_function(loop, others)
        return count if is_small or count <= self.device.few_kernels else 0

    def _started_in_a_row(self, region: Region) -> float:
        """Seconds to start the ops of a region; many are not started in a row."""
        count = own_kernels(region)
        few = count <= self.device.few_kernels
        return (self.device.kernel_in_a_row if few else self.device.kernel) * count

    def _started_for_nothing(self, region: Region) -> float:
        """Seconds to start what one function of a loop does not; a loop's counter, its predicate
        and what reads its rows are started in a row with few others.
        """
        count = loops_started(region)
        few = count + self.device.loop_kernels <= self.device.few_kernels
        return (self.device.kernel_in_a_row if few else self.device.kernel) * count

    def is_vector(self, count: int) -> bool:
        """Whether so many numbers that are computed alike are worth a vector."""
        return count >= self.device.lanes

    def is_less_in_vectors(self, scalars: int, vectors: int) -> bool:
        """Whether so many ops on short vectors take no longer than so many on scalars."""
        return self.device.vector * vectors <= scalars

    def is_too_many_scalars(self, count: int) -> bool:
        """Whether a loop has too many scalars to keep them in registers."""
        return count >= self.device.registers
