"""The cost model: what passes, lint and reports ask where they weigh one program against another.

Every question of profit is a question to the `CostModel` of the device that the program runs on.
It decides by prices in seconds (`jaxpr_opt.cost.prices`), which follow from what XLA makes of a
program (`jaxpr_opt.cost.lowering`) and the figures of the device (`jaxpr_opt.cost.devices`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import ceil, gcd, inf
from sys import maxsize
from typing import Any

from jaxpr_opt.bridge import compat_devices
from jaxpr_opt.bridge.parameters import numbers_of
from jaxpr_opt.cost.devices import CPU, DEVICES, GPU
from jaxpr_opt.cost.functions import longer_one_by_one
from jaxpr_opt.cost.fusion import handed_on, is_fused, kernels, numbers_read, own_kernels
from jaxpr_opt.cost.ops import cost
from jaxpr_opt.cost.prices import Prices, number
from jaxpr_opt.cost.reuse import is_view
from jaxpr_opt.cost.windows import bytes_moved, rows_apart, windows_apart
from jaxpr_opt.cost.work import embedded
from jaxpr_opt.ir.graph import Op, Region, Scan, Value, While
from jaxpr_opt.ir.traits import IN_PLACE, SCATTERING


@dataclass(frozen=True, slots=True)
class CostModel(Prices):
    """What pays on a device."""

    part: float | None = None
    """Of what straight-line code holds at its peak, the part that it is to hold: 0 for as little as
    there is; None for as much as its bytes are worth."""
    slack: float = inf
    """The part of a step's seconds that may be given for less memory, at most."""

    @staticmethod
    def of_backend(name: str) -> CostModel:
        """The model of one of JAX's backends; that of a GPU for an unknown one."""
        return _MODELS.get(name, _MODELS[GPU.name])

    def but(self, **figures: Any) -> CostModel:
        """This model with other figures of the device."""
        return replace(self, device=replace(self.device, **figures))

    def at(self, byte: float, part: float | None = None) -> CostModel:
        """The same where a byte of temporary memory is worth so many seconds, and where
        straight-line code is to hold such a part of what it holds.
        """
        return replace(self, byte=byte, part=part)

    # -- memory

    def thrifty(self) -> tuple[CostModel, ...]:
        """The same where a byte is worth a little and hardly any time may be lost: what is tried
        without a budget, the dearest byte first.
        """
        prices = (self.device.worth, self.device.worth / 4) if self.device.worth else ()
        return tuple(replace(self, byte=each, part=1.0, slack=self.device.slack) for each in prices)

    @property
    def is_traded(self) -> bool:
        """Whether memory has a price."""
        return self.byte > 0 or self.part is not None

    @property
    def has_price(self) -> bool:
        """Whether a byte of memory is worth time, however much."""
        return self.byte > 0 and self.slack == inf

    @property
    def keeps_all(self) -> bool:
        """Whether straight-line code is to hold all that it holds now."""
        return self.part is not None and self.part >= 1

    def is_spared(self, stacked: float) -> bool:
        """Whether so many bytes of a loop's stacks are worth a little of its time."""
        return self.device.worth > 0 and stacked >= self.device.spared

    def is_spared_enough(self, nbytes: float, before: float) -> bool:
        """Whether a program that takes so many bytes, not as many as before, may be a little
        slower.
        """
        return nbytes <= self.device.spares * number(before)

    def is_slack(self, seconds: float, whole: float) -> bool:
        """Whether a step of so many seconds may take so many more for less memory."""
        return seconds <= self.slack * whole

    # -- windows and arrays

    def is_most(self, windows: float, array: float) -> bool:
        """Whether reading and writing windows takes longer than writing the array they are of."""
        return 2 * windows > array

    def is_sparse(self, windows: float, array: float) -> bool:
        """Whether moving windows one by one takes no longer than moving all of an array."""
        return self.device.bulk * number(windows) <= array

    def is_sparse_apart(self, count: int, nbytes: int, array: int) -> bool:
        """The same of so many windows of so many bytes, each in a cache line of its own."""
        return self.is_sparse(count * max(nbytes, self.device.line), array)

    def is_dense(self, windows: float, array: float) -> bool:
        """Whether moving all of an array takes no longer than moving windows of it one by one."""
        return self.device.bulk * number(windows) >= array

    def outlasts(self, nbytes: float, ops: int) -> bool:
        """Whether moving so many bytes takes clearly longer than starting so many ops."""
        return self.moved(nbytes) >= self.doubtful(self.started(ops))

    def outlasts_rows(self, nbytes: float, pieces: int) -> bool:
        """Whether moving so many bytes takes clearly longer than starting the ops that read, sum
        and write rows of so many pieces instead.
        """
        return self.moved(nbytes) >= self.doubtful(self.started_for_rows(pieces))

    def outlasts_states(self, nbytes: float, arrays: int, pieces: int) -> bool:
        """The same of rows of so many arrays of an optimizer's state."""
        started = self.started_for_states(arrays, pieces)
        return self.moved(nbytes) >= self.doubtful(started)

    def is_less_moved(self, ops: int, nbytes: int, than_ops: int, than_nbytes: int) -> bool:
        """Whether so many ops that move so many bytes take less time than others."""
        more = self.moved(nbytes) + self.started(ops)
        return more < self.moved(than_nbytes) + self.started(than_ops)

    def more_than_a_copy(self, nbytes: int) -> int:
        """Bytes that are moved more to add an array of zeros with some rows in it to an array of so
        many bytes than to copy that: filling in zeros, and reading them.
        """
        return nbytes // 2

    def is_noticed(self, part: float, whole: float) -> bool:
        """Whether moving a part less shows in the time that the whole takes."""
        return whole <= self.device.noticed * number(part)

    def is_visible(self, part: float, whole: float) -> bool:
        """Whether moving a part less is worth computing it again."""
        return whole <= self.device.visible * number(part)

    def may_be_copied(self, part: int, array: int, spared: int) -> bool:
        """Whether a part of an array may be copied where so many bytes are no longer made: it has
        fewer, or copying it hardly takes time beside reading the array.
        """
        return part <= spared or not self.is_visible(part, array)

    def is_longer(self, few: int, many: int) -> bool:
        """Whether the second size is several times the first."""
        return self.device.noticed * few < many

    def is_no_line(self, nbytes: int) -> bool:
        """Whether so many bytes are less than a cache line, so that moving more takes as long."""
        return nbytes < self.device.line

    def are_close(self, windows: int, apart: int, nbytes: int) -> bool:
        """Whether windows of so many bytes, each so many bytes from the next, stay in the cache of
        first level, so that those beside them are read and written next as quickly as if all lay in
        one. If the distance is a power of two, half of them may replace each other, unless each
        fills lines; or so few that a step hides it.
        """
        line, room = self.device.line, self.device.first_level
        if windows * line > room:
            return False
        alike = 1 if nbytes >= line else max(gcd(apart, self.device.alike) // max(line, 1), 1)
        hides = number(windows) * self.device.replaced <= self.device.fused_step
        return windows * line * alike <= 2 * room or hides

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

    def is_started(self, row: float) -> bool:
        """Whether moving a row takes as long as starting an op."""
        return self.moved(row) >= self.device.kernel

    def is_quick(self, nbytes: int) -> bool:
        """Whether computing so many bytes takes no longer than starting an op."""
        return self.moved(nbytes) <= self.device.kernel

    def is_better_stacked(self, nbytes: int) -> bool:
        """Whether stacking a row that only one step sees, and moving it again, takes no longer than
        adding to it in place, by an op of its own.
        """
        return self.is_quick(nbytes)

    def is_hidden(self, nbytes: int) -> bool:
        """Whether moving so many bytes takes no longer than a loop's step does anyway."""
        return self.moved(nbytes) < self.device.step

    def is_row_unrolled(self, array: Value, row: int | None) -> bool:
        """Whether LLVM unrolls a loop over a row of an array of so many numbers, and computes the
        row before the loop over all rows; where ops are started one by one if the rows are many.
        """
        if row is None or row > self.device.unrolled:
            return False
        return not self.device.starts_each or self.is_longer(row, array.size // row)

    def is_short(self, row: int) -> bool:
        """Whether rows have so few numbers that those of one are not computed together."""
        return 1 < row < self.device.row

    def is_less_in_place(self, windows: Sequence[int], array: Value) -> bool:
        """Whether adding to windows of so many bytes each, one after the other, takes less time
        than adding dense arrays with these windows in them, all in one sum.

        In place each window is read, its addend too, and it is written.  The sum reads the addends,
        reads and writes the array, and looks at each of its elements once for every window.  Of a
        tiny array the sum is one op, the windows are as many as there are.
        """
        added = sum(windows)
        looks = len(windows) * number(array.size) * self.device.arithmetic
        is_apart = self.device.starts_each and self.is_no_line(array.nbytes)
        more = self.started(len(windows) - 1) if is_apart or self.has_kernels else 0.0
        return self.moved(3 * added) + more < self.moved(added + 2 * array.nbytes) + looks

    def is_picked(self, product: Op, looked: int, steps: int) -> bool:
        """Whether the rows that a product picks of a table are read in less time than it takes, if
        so many bytes of the table are looked at before so many steps.
        """
        rows = self.started(1) + self.moved(2 * product.result.nbytes)
        return rows + self.streamed(looked) / max(steps, 1) < self.repeated_apart(product)

    def is_less_without_copies(self, copies: float) -> bool:
        """Whether reading so many bytes of copies of a factor takes clearly longer than starting a
        product of matrices.
        """
        return self.moved(copies) > self.doubtful(self.started(1) + self.device.library)

    def is_less_as_one_product(self, products: Op, masks: int) -> bool:
        """Whether the products of a batch, added up, take longer than one product that adds them
        up, after so many masks have chosen rows of the factors.
        """
        (summed, _), _ = numbers_of(products)
        made = self.elementwise(products.result, 2 + masks)
        start = self.started(2 + 2 * masks) + self.device.library + self.device.product
        factors = sum(self.moved(factor.nbytes) for factor in products.operands)
        if not summed:  # else the library multiplies either way, and reads the factors
            start += self.repeated([products])
            masks = max(masks, 1)
        return made > start + masks * factors

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

    def _is_one_function(self, loop: Scan | While) -> bool:
        """Whether XLA makes one function of a loop, by itself or as it is asked to."""
        apart = (op.name in SCATTERING and windows_apart(op) > 1 for op in loop.walk())
        return self.is_worth_one_function(loop) or (self.makes_whole(loop) and not any(apart))

    def is_less_fenced(self, windows: Sequence[int], array: int, *, whole_is_read: bool) -> bool:
        """Whether a fence around reads of so many bytes each takes less time than the copy of the
        array that it saves.

        What is read is written before the fence, and read again behind it.  Where all of the array
        is read, too, that is no longer fused with the write: it is read once more.  Where each op
        is a kernel, the copy is made by the one that writes, the reads are more of them.
        """
        more = self.started(len(windows)) if self.has_kernels else 0.0
        fenced = self.moved(2 * sum(windows) + whole_is_read * array) + more
        return fenced < self.moved(2 * array)

    def is_less_divided(self, numbers: int, array: int) -> bool:
        """Whether dividing the numbers of several windows, one by one, saves a copy of the array
        that takes longer, beside what a step takes anyway.
        """
        return self.device.predicate * number(numbers) + self.device.step < self.moved(array)

    # -- whether to go on, to skip, to branch

    def is_worth_a_question(self, body: Region, predicate: Value | None = None) -> bool:
        """Whether a step takes longer than testing before it whether to go on."""
        return self.steps_a_question(body, predicate) == 1

    def steps_a_question(self, body: Region, predicate: Value | None = None) -> int:
        """How many steps take so much longer than asking whether to go on that it is worth it
        though maybe none is skipped; of a batch, whether any element of a predicate is true.

        Few numbers take a step no longer than starting its ops, many as long as computing them.
        """
        steps = _quotient(self.device.unsure * self.device.question, self.step_seconds(body))
        if predicate is None or predicate.size == 1:
            return steps
        tested = self.device.tested * number(predicate.size)
        return max(steps, _quotient(self.device.unsure * tested, self.repeated([body])))

    def asks_in_no_time(self, scan: Scan, predicate: Value) -> bool:
        """Whether one number more is tested before a step while others are computed, and steps are
        so many that it is noticed if they end: more than it takes to fill in rows.
        """
        if predicate.size != 1 or self.loop_seconds(scan.length, 0) < self.device.step:
            return False
        stacked = sum(stack.result.nbytes for stack in scan.stacks)
        return self.is_one_function(scan, stacked) or self.asks_while_starting(scan)

    def asks_while_starting(self, scan: Scan) -> bool:
        """Whether starting a step's ops one by one takes so much longer than testing a number
        before it that it is worth it though maybe no step is skipped.
        """
        stacked = sum(stack.result.nbytes for stack in scan.stacks)
        is_slow = self.device.step >= self.device.unsure * self.device.question
        return is_slow and not self.is_one_function(scan, stacked)

    def is_worth_questions(self, body: Region, predicate: Value, ops: Sequence[Op] = ()) -> bool:
        """Whether a step takes so much longer than computing its predicate, with those of all
        steps before the loop, that it is worth it though maybe no step is skipped; by ops of which
        those that make more numbers than it has run in the loop, too.
        """
        asked = self.device.predicate * number(predicate.size)
        sizes = [number(op.results[0].size) for op in ops if not is_view(op)]
        again = self.device.predicate * sum(size for size in sizes if size > predicate.size)
        return self.step_seconds(body) >= max(self.device.unsure * asked, self.doubtful(again))

    def is_worth_masks(self, scan: Scan, masks: Sequence[Value]) -> bool:
        """Whether all steps take so much longer than testing masks of them once that it is worth it
        though maybe no step is skipped.
        """
        return self._outlasts(scan, self._testing(masks))

    def is_worth_ranges(self, scan: Scan, arrays: Sequence[Value]) -> bool:
        """Whether all steps take so much longer than starting to look for the least and the
        greatest number of arrays, and asking for it, that it is worth it though maybe no step is
        skipped; and longer than looking at all elements.
        """
        ops = 2 * self.device.kernel * len(arrays)
        is_worth = self._outlasts(scan, ops + self.device.question)
        return is_worth and self.steps_for_ranges(scan, arrays) < number(scan.length)

    def steps_for_ranges(self, scan: Scan, arrays: Sequence[Value]) -> int:
        """How many steps take twice as long as looking at all elements of arrays."""
        return max(ceil(2 * self._testing(arrays) / self.step_seconds(scan.body)), 1)

    def _testing(self, arrays: Sequence[Value]) -> float:
        """Seconds to look at all elements of arrays."""
        return self.device.predicate * sum(number(array.size) for array in arrays)

    def _outlasts(self, scan: Scan, asked: float) -> bool:
        """Whether all steps take so much longer than what is asked once, though maybe in vain."""
        return number(scan.length) * self.step_seconds(scan.body) >= self.device.unsure * asked

    def is_worth_a_search(self, body: Region, predicate: Value) -> bool:
        """Whether a step takes longer than one of a loop that looks for the last step that is to be
        taken, by its predicate.
        """
        asked = self.device.predicate * number(predicate.size) + self.device.step
        return not self.asks_the_host and self.step_seconds(body) > asked

    def is_worth_replaying(self, again: float, back: float) -> bool:
        """Whether a step may be computed again for its step back: if that takes many times as long,
        as of random numbers, nothing else of the gradient hides it.  What is not known may be.
        """
        return again == inf or again <= self.doubtful(back)

    def is_worth_loops(self, more: int, seconds: float) -> bool:
        """Whether saving so many seconds is worth so many more loops, though maybe no step that is
        taken saves any.
        """
        return seconds >= self.device.unsure * more * self.device.step

    def is_worth_starts(self, inner: int, seconds: float) -> bool:
        """Whether saving so many seconds, for sure, is worth starting loops so often in a step."""
        return seconds >= self.doubtful(number(inner) * self.device.step)

    def is_worth_asking(
        self, ops: Sequence[Op], predicate: Value, nbytes: int, rest: float = 0.0
    ) -> bool:
        """Whether ops take so much longer than asking whether any element of a predicate is true,
        than writing so many bytes for a branch, and than the rest, that it is worth it though
        maybe one always is.
        """
        asked = self.device.predicate * number(predicate.size) + self._branch(nbytes)
        return max(self.run(ops), self.repeated(ops)) >= self.device.unsure * (asked + rest)

    def is_worth_branches(self, saved: float, nbytes: int) -> bool:
        """Whether a step saves more by taking a branch, where that is known to save so many
        seconds, than asking and writing so many bytes for it takes.
        """
        return saved > self._branch(nbytes)

    def _branch(self, nbytes: int) -> float:
        """Seconds to wait for what a predicate says, to begin, and to write so many bytes."""
        return self.device.question + self.device.step + self.moved(nbytes)

    def halvings(self, numbers: int) -> int:
        """How often halves of so many truth values are combined before the rest is reduced."""
        if not self.device.reduces_one_by_one:
            return 0
        most = max(numbers // self.device.reduced_together, 1)
        return min(most.bit_length() - 1, self.device.reduced_together.bit_length() - 1)

    # -- loops

    def is_worth_one_function(self, loop: Scan | While) -> bool:
        """Whether XLA would start each op of a loop by itself, as it touches many bytes or writes
        several windows at once, and that takes a good part of the time of a step.  What a region
        hands on is an op, and those it is made of are parts of it.  Windows of a scatter are then
        written one by one, and those of a gather read so; of several scatters that are added each
        has an array of its own, which XLA joins elsewhere; and some functions are computed number
        by number, with what of several windows is read for them.
        """
        ops = [op for op in loop.walk() if not (op.regions or op.is_terminator or is_view(op))]
        if any(op.name in SCATTERING and windows_apart(op) > 1 for op in ops):
            is_possible = self.makes_functions or self._makes_by_itself(ops)
        else:
            touched = sum(cost(op).bytes or 0 for op in ops)
            is_possible = self.makes_functions and touched > self.device.few_bytes
        if not is_possible:
            return False
        regions = [region for op in loop.walk() for region in op.regions]
        in_a_row = sum(map(self._started_in_a_row, regions))
        longer = [(op, more) for op in ops if (more := longer_one_by_one(op))]
        numbers = sum(more + numbers_read(op) for op, more in longer)
        if self.device.one_by_one * number(numbers) > in_a_row:
            return False
        handed = sum(map(handed_on, regions))
        known = [self._computed(cost(op)) for op in ops]
        starts = self.started(kernels(ops) + handed)
        seconds = self.moved(sum(map(bytes_moved, ops))) + sum(each for each in known if each < inf)
        summed = [op for op in ops if windows_apart(op) > 1 and any(map(embedded, op.results))]
        filled = self.moved(sum(op.result.nbytes for op in summed[1:]))
        apart = self.device.window_apart * number(sum(map(windows_apart, ops)))
        apart += self.device.row_apart * number(sum(map(rows_apart, ops)))
        saved = starts - apart - filled
        return saved >= self.device.noticed_starts * seconds

    def _started_in_a_row(self, region: Region) -> float:
        """Seconds to start the ops of a region; many are not started in a row."""
        count = own_kernels(region)
        few = count <= self.device.few_kernels
        return (self.device.kernel_in_a_row if few else self.device.kernel) * count

    def is_worth_writing_apart(self, array: Value, region: Region) -> bool:
        """Whether asking of each number of an array whether it is in a window that is written takes
        longer than to start an op that writes it; with what it reads, and with the loop's counter,
        these are five more.
        """
        stacks = len(region.owner.stacks) if isinstance(region.owner, Scan) else 0
        few = own_kernels(region) + stacks + 5 <= self.device.few_kernels
        start = self.device.kernel + (0.0 if few else self.device.own_function)
        return self.device.write_inside * number(array.size) > start

    def is_worth_carrying(self, value: Value, ops: Sequence[Op], times: float) -> bool:
        """Whether making a value so many times more, by these ops, takes longer than handing it on
        to the next step.
        """
        return times * self.repeated(ops) > self.moved(value.nbytes)

    def is_worth_handing_on(self, values: Collection[Value], again: float) -> bool:
        """Whether carrying values from step to step takes less time than to make them again, which
        takes so many seconds a step.
        """
        carried = self.doubtful(self.moved(sum(v.nbytes for v in values)))
        return again > self.started(1 + len(values)) + carried

    def is_little_of_a_step(self, ops: Sequence[Op], body: Region) -> bool:
        """Whether ops of a step take so little of its time that a loop of their own saves most."""
        inside = [each for op in ops for each in op.walk()]
        part, step = self._step_of(inside), self.step_seconds(body)
        return part < inf and self.doubtful(part) <= step

    def rows_at_once(self, rows: int, nbytes: int) -> int:
        """How many rows a loop's step writes of an array of so many bytes where others are there
        already: so many that starting the step is hardly noticed; all, if one step writes them.
        """
        if nbytes <= self.device.fused_bytes:
            return 1
        step = self.loop_seconds(1, nbytes) + self.device.question
        return max(1, min(rows, _quotient(self.doubtful(step), self.moved(nbytes) / rows)))

    def block(self, size: int) -> int:
        """How many rows of so many elements can be tested in a time that a loop's step hides."""
        elements = _quotient(self.device.visible * self.device.step, self.device.predicate)
        return max(elements // max(size, 1), 1)

    # -- scalars

    def is_vector(self, count: int) -> bool:
        """Whether so many numbers that are computed alike are worth a vector."""
        return count >= self.device.lanes

    def is_too_many_scalars(self, count: int) -> bool:
        """Whether a loop has too many scalars to keep them in registers."""
        return count >= self.device.registers

    def is_too_many_arrays(self, count: int) -> bool:
        """Whether a loop has too many arrays to keep their addresses in registers."""
        return count >= self.device.pointers

    def is_less_in_vectors(self, scalars: int, vectors: int) -> bool:
        """Whether so many ops on short vectors take no longer than so many on scalars."""
        return self.device.vector * vectors <= scalars


def _quotient(seconds: float, of_one: float) -> int:
    """How many take so many seconds; one at least."""
    return max(ceil(seconds / of_one), 1) if of_one else maxsize


_MODELS = {name: CostModel(device) for name, device in DEVICES.items()}
_given: ContextVar[CostModel | None] = ContextVar("jaxpr_opt_cost_model", default=None)


def cost_model() -> CostModel:
    """The model in use: the one that `using` has set, else that of JAX's default backend.

    Before JAX has started its backends, it is that of a CPU: shapes need no device.
    """
    return _given.get() or CostModel.of_backend(compat_devices.started_backend() or CPU.name)


@contextlib.contextmanager
def using(model: CostModel) -> Iterator[CostModel]:
    """Use this model for the duration of a block.

    Programs that JAX has already traced or compiled stay as they are.
    """
    token = _given.set(model)
    try:
        yield model
    finally:
        _given.reset(token)
