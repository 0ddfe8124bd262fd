"""The cost model: what passes, lint and reports ask where they weigh one program against another.

Every question of profit is a question to the `CostModel` of the device that the program runs on.
Its answers are seconds; what is not known costs infinitely many.  It knows only the graph and the
figures of the device (`jaxpr_opt.cost.devices`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import ceil, inf, prod
from sys import maxsize
from typing import Any

from jaxpr_opt.bridge import compat_devices
from jaxpr_opt.cost.devices import CPU, DEVICES, GPU, Device
from jaxpr_opt.cost.fusion import (
    ONE_INSTRUCTION,
    is_fused,
    is_made_once,
    is_reduced_inside,
    is_repeated,
    kernels,
)
from jaxpr_opt.cost.layouts import Copy, bytes_made, copies, is_read_transposed
from jaxpr_opt.cost.ops import Cost, cost
from jaxpr_opt.cost.reuse import is_view
from jaxpr_opt.cost.scratch import scratch_bytes
from jaxpr_opt.cost.work import READS, WRITES
from jaxpr_opt.ir.graph import Op, Region, Scan, Value, While
from jaxpr_opt.ir.inputs import inputs
from jaxpr_opt.ir.traits import SCATTERING, TRANSCENDENTAL, dead_ops, is_broadcast, rearranges


@dataclass(frozen=True, slots=True)
class CostModel:
    """What things cost on a device."""

    device: Device = CPU
    byte: float = 0.0
    """Seconds that a byte of temporary memory is worth; 0 where there is memory enough."""
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

    # -- bytes that are held

    def thrifty(self) -> tuple[CostModel, ...]:
        """The same where a byte is worth a little and hardly any time may be lost: what is tried
        without a budget, the dearest byte first.
        """
        prices = (self.device.worth, self.device.worth / 4) if self.device.worth else ()
        return tuple(replace(self, byte=each, part=1.0, slack=self.device.slack) for each in prices)

    def is_spared(self, stacked: float) -> bool:
        """Whether so many bytes of a loop's stacks are worth a little of its time."""
        return self.device.worth > 0 and stacked >= self.device.spared

    def is_started(self, row: float) -> bool:
        """Whether moving a row takes as long as starting an op."""
        return self.moved(row) >= self.device.kernel

    def is_slack(self, seconds: float, whole: float) -> bool:
        """Whether a step of so many seconds may take so many more for less memory."""
        return seconds <= self.slack * whole

    def is_spared_enough(self, nbytes: float, before: float) -> bool:
        """Whether a program that takes so many bytes, not as many as before, may be a little
        slower.
        """
        return nbytes <= self.device.spares * before

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

    def held(self, nbytes: float) -> float:
        """Seconds that so many bytes of temporary memory are worth."""
        return self.byte * _number(nbytes)

    @property
    def is_breadth_first(self) -> bool:
        """Whether ops run in the order in which they become ready."""
        return self.device.breadth_first

    def rearranged(self, op: Op) -> list[Copy]:
        """The copies of operands that XLA makes for a product or convolution, and holds until it
        has run.
        """
        return copies(op) if self.device.copies_operands else []

    def made(self, value: Value) -> int:
        """Bytes of a value as an op makes it."""
        return bytes_made(value) if self.device.copies_operands else value.nbytes

    def is_read_transposed(self, op: Op, value: Value) -> bool:
        """Whether a product reads a matrix where the one is that it is the transpose of."""
        return self.device.copies_operands and is_read_transposed(op, value)

    @property
    def sums_by_library(self) -> bool:
        """Whether a library reduces arrays, which knows few of the ops that make them."""
        return self.device.sums_by_library

    def is_reduced_inside(self, reduction: Op, op: Op) -> bool:
        """Whether such a library computes an op on the way, so that what it makes is no array."""
        return is_reduced_inside(reduction, op)

    @property
    def fuses_functions(self) -> bool:
        """Whether functions of numbers are computed where they are read."""
        return self.device.fuses_functions

    def is_repeated(self, op: Op) -> bool:
        """Whether XLA may compute an op once for each fusion that reads it."""
        is_quick = self.device.fuses_functions and op.name in ONE_INSTRUCTION
        return is_quick or is_repeated(op)

    def scratch(self, op: Op) -> int:
        """Bytes that an op needs beside its operands and results."""
        return scratch_bytes(op) if self.device.sums_by_library else 0

    # -- bytes that are moved

    def moved(self, nbytes: float) -> float:
        """Seconds to write so many bytes, and to read them once."""
        return self.device.cached * _number(nbytes)

    def stored(self, nbytes: float) -> float:
        """Seconds to write so many bytes in a forward pass and to read them in the backward pass.

        Between the two the cache is needed for other things, unless they are few.
        """
        return self.kept(nbytes, nbytes)

    def stored_far(self, nbytes: int) -> float:
        """The same where it is unknown what else is stored."""
        return self.device.trips * self.device.memory * _number(nbytes)

    def read_windows(self, nbytes: float, count: int) -> float:
        """Seconds to read so many bytes again, in so many windows that lie anywhere."""
        return self.device.cached / 2 * max(_number(nbytes), count * self.device.line)

    def paired(self, windows: int) -> float:
        """Seconds to compare all pairs of so many windows."""
        return self.device.predicate * windows**2

    def marked(self, numbers: int, nbytes: float) -> float:
        """Seconds to write a number for each window into so many bytes of zeros, and to read it, if
        so many numbers say where all of them are.
        """
        return self.moved(nbytes) / 2 + 2 * self.read_windows(0, numbers)

    def filled(self, nbytes: float) -> float:
        """Seconds to write so many bytes to new pages, which may never be read."""
        return self.device.memory / 2 * _number(nbytes)

    def fresh(self, nbytes: float) -> float:
        """Seconds that handing out so many bytes of temporary memory takes in each run."""
        return self.device.fresh * _number(nbytes) if self.is_far(nbytes) else 0.0

    def kept(self, nbytes: float, stacked: float) -> float:
        """Seconds to store so many bytes, and to load them, among so many that are stacked."""
        far = self.device.trips * self.device.memory
        return _number(nbytes) * (far if self.is_far(stacked) else self.device.cached)

    def kept_row(self, nbytes: float, stacked: float, *, is_new: bool) -> float:
        """Seconds to store such a row in a step, and to load it.

        Where it is copied beyond the cache, that takes as long in a new stack as in one that is
        there, and starts ops.  Else the op that makes it may write it into a new stack, or may not.
        """
        seconds = self.kept(nbytes, stacked)
        if self.device.trips > 1 and self.is_far(stacked):
            return seconds + self.device.kernel
        return self.doubtful(seconds) if is_new else seconds

    def passed(self, nbytes: float, among: float) -> float:
        """Seconds to store and load so many bytes, as far as they show in the time of a whole
        program: bytes that are used together may stay near a core.
        """
        is_near = among <= self.device.near
        return _number(nbytes) * self.device.nearby if is_near else self.kept(nbytes, among)

    def is_far(self, stacked: float) -> bool:
        """Whether so many bytes exceed the cache."""
        return stacked > self.device.cache

    def is_no_line(self, nbytes: int) -> bool:
        """Whether so many bytes are less than a cache line, so that moving more takes as long."""
        return nbytes < self.device.line

    def is_row_unrolled(self, array: Value, row: int | None) -> bool:
        """Whether LLVM unrolls a loop over a row of an array of so many numbers, and computes the
        row before the loop over all rows; where ops are started one by one if the rows are many.
        """
        if row is None or row > self.device.unrolled:
            return False
        return not self.device.starts_each or self.is_longer(row, array.size // row)

    def are_close(self, windows: int) -> bool:
        """Whether windows that lie anywhere stay in the cache of first level, so that those beside
        them are read and written next as quickly as if all lay in one.
        """
        return windows * self.device.line <= self.device.first_level

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

    def is_most(self, windows: float, array: float) -> bool:
        """Whether reading and writing windows takes longer than writing the array they are of."""
        return 2 * windows > array

    def is_sparse(self, windows: float, array: float) -> bool:
        """Whether moving windows one by one takes no longer than moving all of an array."""
        return self.device.bulk * _number(windows) <= array

    def is_sparse_apart(self, count: int, nbytes: int, array: int) -> bool:
        """The same of so many windows of so many bytes, each in a cache line of its own."""
        return self.is_sparse(count * max(nbytes, self.device.line), array)

    def is_dense(self, windows: float, array: float) -> bool:
        """Whether moving all of an array takes no longer than moving windows of it one by one."""
        return self.device.bulk * _number(windows) >= array

    def is_noticed(self, part: float, whole: float) -> bool:
        """Whether moving a part less shows in the time that the whole takes."""
        return whole <= self.device.noticed * _number(part)

    def is_visible(self, part: float, whole: float) -> bool:
        """Whether moving a part less is worth computing it again."""
        return whole <= self.device.visible * _number(part)

    def doubtful(self, seconds: float) -> float:
        """Seconds that must be saved to be worth this many, where the saving is not certain."""
        return self.device.noticed * seconds

    def is_longer(self, few: int, many: int) -> bool:
        """Whether the second size is several times the first."""
        return self.device.noticed * few < many

    def is_less_in_place(self, windows: Sequence[int], array: Value) -> bool:
        """Whether adding to windows of so many bytes each, one after the other, takes less time
        than adding dense arrays with these windows in them, all in one sum.

        In place each window is read, its addend too, and it is written.  The sum reads the addends,
        reads and writes the array, and looks at each of its elements once for every window.  Of a
        tiny array the sum is one op, the windows are as many as there are.
        """
        added = sum(windows)
        looks = len(windows) * _number(array.size) * self.device.arithmetic
        is_apart = self.device.starts_each and self.is_no_line(array.nbytes)
        more = self.started(len(windows) - 1) if is_apart or self.has_kernels else 0.0
        return self.moved(3 * added) + more < self.moved(added + 2 * array.nbytes) + looks

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

    @property
    def has_kernels(self) -> bool:
        """Whether each op of a loop is a kernel that is launched, however few its numbers."""
        return not self.device.fused_bytes

    def is_less_divided(self, numbers: int, array: int) -> bool:
        """Whether dividing the numbers of several windows, one by one, saves a copy of the array
        that takes longer, beside what a step takes anyway.
        """
        return self.device.predicate * _number(numbers) + self.device.step < self.moved(array)

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

    def is_padded_one_by_one(self, row: int) -> bool:
        """Whether no elements of a row of so many are computed together if all but one are the
        filler of a pad.
        """
        return self.device.jumps and row >= self.device.row

    def is_made_where_read(self, op: Op) -> bool:
        """Whether XLA computes an op where what it makes is read, and no more of it than is."""
        return is_fused(op) or op.name in TRANSCENDENTAL

    def is_made_once(self, op: Op) -> bool:
        """Whether XLA computes a cheap op by itself: something costly that is made of it meets it
        again.
        """
        return self.device.fuses_all_or_none and is_made_once(op)

    def is_read_again(self, nbytes: int) -> bool:
        """Whether XLA reads a window again for each reduction of it."""
        return nbytes < self.device.reread

    # -- loops

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
        tested = self.device.tested * _number(predicate.size)
        return max(steps, _quotient(self.device.unsure * tested, self.repeated([body])))

    @property
    def asks_the_host(self) -> bool:
        """Whether the host decides whether a loop goes on."""
        return self.device.asks_the_host

    def asks_in_no_time(self, scan: Scan, predicate: Value) -> bool:
        """Whether one number more is tested before a step while others are computed, and steps are
        so many that it is noticed if they end: more than it takes to fill in rows.
        """
        if not self.is_one_function(scan, sum(stack.result.nbytes for stack in scan.stacks)):
            return False
        return predicate.size == 1 and self.loop_seconds(scan.length, 0) >= self.device.step

    def is_one_function(self, scan: Scan, others: int = 0) -> bool:
        """Whether a loop, and so many bytes more, are few numbers: it is compiled as one function,
        in which selects cost nothing.
        """
        touched = sum(v.nbytes for v in inputs(scan)) + sum(map(_made, scan.body.walk()))
        return touched + others <= self.device.fused_bytes

    @property
    def makes_functions(self) -> bool:
        """Whether XLA makes one function of a loop where it is asked to."""
        return self.device.makes_functions

    def is_worth_one_function(self, loop: Scan | While) -> bool:
        """Whether XLA would start each op of a loop by itself, as it touches many bytes or writes
        several windows at once, and that takes a good part of the time of a step.  What a region
        hands on is an op, and those it is made of are parts of it.  Windows of a scatter are then
        written one by one, and those of a gather read so.
        """
        ops = [op for op in loop.walk() if not (op.regions or op.is_terminator or is_view(op))]
        if any(op.name in SCATTERING and _windows_apart(op) > 1 for op in ops):
            is_possible = self.makes_functions or self._makes_by_itself(ops)
        else:
            touched = sum(cost(op).bytes or 0 for op in ops)
            is_possible = self.makes_functions and touched > self.device.few_bytes
        if not is_possible:
            return False
        regions = [region for op in loop.walk() for region in op.regions]
        handed = {v for region in regions for v in region.outputs if v.op and is_fused(v.op)}
        known = [self._computed(cost(op)) for op in ops]
        starts = self.started(kernels(ops) + len(handed))
        seconds = self.moved(sum(map(_made, ops))) + sum(each for each in known if each < inf)
        saved = starts - self.device.window_apart * sum(map(_windows_apart, ops))
        return saved >= self.device.noticed_starts * seconds

    def _makes_by_itself(self, ops: Sequence[Op]) -> bool:
        """Whether XLA makes one function of a loop of these ops, as they touch few bytes, if it has
        code for all of them.
        """
        few = self.device.few_bytes if self.device.starts_each else self.device.fused_bytes
        return sum(map(_bytes_touched, ops)) <= few

    def is_worth_carrying(self, value: Value, ops: Sequence[Op], times: float) -> bool:
        """Whether making a value so many times more, by these ops, takes longer than handing it on
        to the next step.
        """
        return times * self.repeated(ops) > self.moved(value.nbytes)

    def is_worth_questions(self, body: Region, predicate: Value) -> bool:
        """Whether a step takes so much longer than computing its predicate, with those of all
        steps before the loop, that it is worth it though maybe no step is skipped.
        """
        asked = self.device.predicate * _number(predicate.size)
        return self.step_seconds(body) >= self.device.unsure * asked

    def is_worth_masks(self, scan: Scan, masks: Sequence[Value]) -> bool:
        """Whether all steps take so much longer than testing masks of them once that it is worth it
        though maybe no step is skipped.
        """
        return self._outlasts(scan, self._testing(masks))

    def is_worth_ranges(self, scan: Scan, arrays: Sequence[Value]) -> bool:
        """Whether all steps take so much longer than finding the least and the greatest number of
        arrays, once, and asking for it, that it is worth it though maybe no step is skipped.
        """
        ops = 2 * self.device.kernel * len(arrays)
        return self._outlasts(scan, self._testing(arrays) + ops + self.device.question)

    def _testing(self, arrays: Sequence[Value]) -> float:
        """Seconds to look at all elements of arrays."""
        return self.device.predicate * sum(_number(array.size) for array in arrays)

    def _outlasts(self, scan: Scan, asked: float) -> bool:
        """Whether all steps take so much longer than what is asked once, though maybe in vain."""
        return _number(scan.length) * self.step_seconds(scan.body) >= self.device.unsure * asked

    def is_worth_a_search(self, body: Region, predicate: Value) -> bool:
        """Whether a step takes longer than one of a loop that looks for the last step that is to be
        taken, by its predicate.
        """
        asked = self.device.predicate * _number(predicate.size) + self.device.step
        return not self.asks_the_host and self.step_seconds(body) > asked

    def is_worth_loops(self, more: int, seconds: float, tested: int = 0) -> bool:
        """Whether saving so many seconds is worth so many more loops, and testing so many numbers,
        though maybe no step that is taken saves any.
        """
        asked = more * self.device.step + self.device.predicate * _number(tested)
        return seconds >= self.device.unsure * asked

    def is_worth_asking(
        self, ops: Sequence[Op], predicate: Value, nbytes: int, rest: float = 0.0
    ) -> bool:
        """Whether ops take so much longer than asking whether any element of a predicate is true,
        than writing so many bytes for a branch, and than the rest, that it is worth it though
        maybe one always is.
        """
        asked = self.device.predicate * _number(predicate.size) + self._branch(nbytes)
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

    def step_seconds(self, body: Region) -> float:
        """Seconds of a step of a loop, by what its ops make, of an array that is written in place
        the window, and what its products read; infinite if there is a loop inside.  What nobody
        reads does not count: a pass has left it.
        """
        dead = dead_ops(body)
        return self._step_of([op for op in body.walk() if op not in dead])

    def is_little_of_a_step(self, ops: Sequence[Op], body: Region) -> bool:
        """Whether ops of a step take so little of its time that a loop of their own saves most."""
        part, step = self._step_of(ops), self.step_seconds(body)
        return part < inf and self.doubtful(part) <= step

    def _step_of(self, ops: Sequence[Op]) -> float:
        if any(isinstance(op, Scan | While) for op in ops):
            return inf
        made = sum(_made(op) for op in ops if not is_view(op))
        starts = kernels(ops) * self.device.kernel if made > self.device.fused_bytes else 0.0
        return self.moved(made) + starts

    def loop_seconds(self, steps: int, nbytes: int) -> float:
        """Seconds of so many steps that do next to nothing, over arrays of so many bytes."""
        is_fused = nbytes <= self.device.fused_bytes
        return steps * (self.device.fused_step if is_fused else self.device.step)

    def is_faster_by_rows(self, rows: int, nbytes: int) -> bool:
        """Whether a loop that writes so many rows takes less time than making their whole array of
        so many bytes anew, or next to none: it makes no second array.
        """
        is_fused = nbytes <= self.device.fused_bytes
        return is_fused or self.loop_seconds(rows, nbytes) < self.moved(nbytes)

    def block(self, size: int) -> int:
        """How many rows of so many elements can be tested in a time that a loop's step hides."""
        elements = self.device.visible * self.device.step / self.device.predicate
        return max(int(elements) // max(size, 1), 1)

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

    # -- ops

    def repeated(self, items: Iterable[Op | Region]) -> float:
        """Seconds to compute ops once more, fused with what reads them; infinite if not known."""
        return sum(self._computed(cost(item)) for item in items)

    def apart(self, items: Iterable[Op]) -> float:
        """Seconds to compute functions of numbers one step at a time: one core does, and where few
        are fused with other ops, one by one.
        """
        return self.device.lanes * self.repeated(items)

    def elementwise(self, value: Value, ops: int = 1) -> float:
        """Seconds of so many ops of basic arithmetic, or movement, that make such a value."""
        return self.device.arithmetic * ops * _number(value.size)

    def one_by_one(self, value: Value) -> float:
        """Seconds of one such op on numbers that no vector instruction computes together."""
        return self.device.lanes * self.elementwise(value)

    def is_short(self, row: int) -> bool:
        """Whether rows have so few numbers that those of one are not computed together."""
        return 1 < row < self.device.row

    def by_places(self, value: Value) -> float:
        """Seconds of an op that makes such a value of several arrays, all read in another order."""
        return self.device.place * _number(value.size)

    def started(self, ops: int) -> float:
        """Seconds to start so many ops, in a loop of which each is called by itself."""
        return self.device.kernel * ops

    def repeated_apart(self, op: Op) -> float:
        """Seconds to compute an op once more in a loop of its own, which writes what it makes; a
        function of each number in that of what reads it, where the device fuses these.
        """
        if self.device.fuses_functions and op.name in TRANSCENDENTAL:
            return self.repeated([op])
        made = sum(v.nbytes for v in op.results)
        start = self.device.kernel + (self.device.product if cost(op).products else 0.0)
        return start + self.repeated([op]) + self.moved(made)

    def streamed(self, nbytes: int) -> float:
        """Seconds to read so many bytes, four a number, in an op that computes with them."""
        return self.device.arithmetic * nbytes / 4

    def run(self, items: Iterable[Op | Region]) -> float:
        """Seconds that ops take at least, each by itself: to read, to compute and to write."""
        known = [cost(item) for item in items]
        seconds = [self._computed(each) + self._touched(each) for each in known]
        return sum(each for each in seconds if each != inf)

    def _computed(self, known: Cost) -> float:
        if known.flops is None or known.products is None or known.functions is None:
            return inf
        turned = known.turned or 0
        others = max(known.flops - known.products - known.functions, 0)
        products = (known.products - turned) * self.device.flop
        products += turned * (self.device.turned or self.device.flop)
        special = products + known.functions * self.device.transcendental
        return special + others * self.device.arithmetic

    def _touched(self, known: Cost) -> float:
        return inf if known.bytes is None else self.moved(known.bytes)


def _quotient(seconds: float, of_one: float) -> int:
    """How many take so many seconds; one at least."""
    return max(ceil(seconds / of_one), 1) if of_one else maxsize


def _number(size: Any) -> float:
    """A size; one that is a symbol raises JAX's `InconclusiveDimensionOperation`."""
    return size if isinstance(size, float) else int(size)


def _made(op: Op) -> int:
    """Bytes that an op writes, the window where it writes one in place; and what a product reads,
    of which no kernel before has it at hand.
    """
    if op.name in WRITES:
        return op.operands[1 if op.name == "dynamic_update_slice" else 2].nbytes
    read = op.operands if op.name == "dot_general" else ()
    return sum(v.nbytes for v in (*op.results, *read))


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


def _windows_apart(op: Op) -> int:
    """How many windows an op writes, or reads at places of several numbers each, which one
    function of a loop puts together again and again.
    """
    if op.name not in SCATTERING and op.name != "gather":
        return 0
    *windows, numbers = op.operands[1].shape
    return prod(windows) if numbers > 1 or op.name in SCATTERING else 0


def _bytes_touched(op: Op) -> int:
    """Bytes that an op reads and writes, of an array that it looks into, or writes in place, the
    windows.
    """
    if op.name in READS:
        return 2 * sum(v.nbytes for v in op.results) + sum(v.nbytes for v in op.operands[1:])
    if op.name in WRITES:
        return 2 * sum(v.nbytes for v in op.operands[1:])
    return cost(op).bytes or 0
