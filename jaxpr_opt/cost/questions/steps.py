"""Whether to ask before a step if it is taken, to branch, to start more loops."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from math import ceil, inf

from jaxpr_opt.cost.prices import Prices, number, quotient
from jaxpr_opt.cost.reuse import is_view
from jaxpr_opt.ir.graph import Op, Region, Scan, Value
from jaxpr_opt.ir.traits import is_transcendental


class StepQuestions(Prices):
    """Whether to ask before a step if it is taken, to branch, to start more loops."""

    __slots__ = ()

    def is_worth_a_question(self, body: Region, predicate: Value | None = None) -> bool:
        """Whether a step takes longer than testing before it whether to go on."""
        return self.steps_a_question(body, predicate) == 1

    def steps_a_question(self, body: Region, predicate: Value | None = None) -> int:
        """How many steps take so much longer than asking whether to go on that it is worth it
        though maybe none is skipped; of a batch, whether any element of a predicate is true.

        Few numbers take a step no longer than starting its ops, many as long as computing them.
        """
        steps = quotient(self.device.unsure * self.device.question, self.step_seconds(body))
        if predicate is None or predicate.size == 1:
            return steps
        tested = self.device.tested * number(predicate.size)
        return max(steps, quotient(self.device.unsure * tested, self.repeated([body])))

    def asks_in_no_time(self, scan: Scan, predicate: Value) -> bool:
        """Whether one number more is tested before a step while others are computed, and steps are
        so many that it is noticed if they end: more than it takes to fill in rows.
        """
        if predicate.size != 1 or self.loop_seconds(scan.length, 0) < self.device.step:
            return False
        stacked = sum(stack.result.nbytes for stack in scan.stacks)
        return self.is_one_function(scan, stacked) or self.asks_while_starting(scan)

    def steps_a_test(self, scan: Scan, predicate: Value | None, ops: Sequence[Op]) -> int | None:
        """How many steps of a loop that is one function take so much longer than computing a
        predicate, by these ops, and testing whether any element of it is true, that it is worth it
        though maybe none is skipped; None if the loop has few steps, or starts ops one by one.
        """
        stacked = sum(stack.result.nbytes for stack in scan.stacks)
        is_short = self.loop_seconds(scan.length, 0) < self.device.step
        if is_short or not (self.is_one_function(scan, stacked) or self.makes_whole(scan)):
            return None
        asked = self.device.question
        if predicate is not None:
            asked += self.device.tested * number(predicate.size) + self.repeated(ops)
        step = max(self.repeated([scan.body]), self.loop_seconds(1, 0))
        return quotient(self.device.unsure * asked, step)

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

    def are_most(self, ops: Sequence[Op], body: Region) -> bool:
        """Whether ops of a step make most of the bytes that it makes."""
        made, all_made = (
            sum(number(v.nbytes) for op in each for v in op.results) for each in (ops, body.ops)
        )
        return 2 * made > all_made

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

    def is_worth_a_search(self, body: Region, predicate: Value) -> bool:
        """Whether a step takes longer than one of a loop that looks for the last step that is to be
        taken, by its predicate.
        """
        asked = self.device.predicate * number(predicate.size) + self.device.step
        return not self.asks_the_host and self.step_seconds(body) > asked

    def is_worth_asking(
        self, ops: Sequence[Op], predicate: Value, nbytes: int, rest: float = 0.0
    ) -> bool:
        """Whether ops take so much longer than asking whether any element of a predicate is true,
        than writing so many bytes for a branch, and than the rest, that it is worth it though
        maybe one always is.
        """
        asked = self.device.predicate * number(predicate.size) + self._branch(nbytes)
        return max(self.run(ops), self.repeated(ops)) >= self.device.unsure * (asked + rest)

    def may_branch(self, body: Region) -> bool:
        """Whether a step takes so much longer than a question that a part may be worth one."""
        least = self.device.unsure * (self.device.predicate + self._branch(0))
        return max(self.run(body.ops), self.repeated([body])) >= least

    def is_worth_branches(self, saved: float, nbytes: int) -> bool:
        """Whether a step saves more by taking a branch, where that is known to save so many
        seconds, than asking and writing so many bytes for it takes.
        """
        return saved > self._branch(nbytes)

    def halvings(self, numbers: int) -> int:
        """How often halves of so many truth values are combined before the rest is reduced."""
        if not self.device.reduces_one_by_one:
            return 0
        parts, most = ceil(numbers / self.device.reduced_together), self.device.reduced_together
        return min((max(parts, 1) - 1).bit_length(), most.bit_length() - 1)

    def is_worth_loops(self, more: int, seconds: float) -> bool:
        """Whether saving so many seconds is worth so many more loops, though maybe no step that is
        taken saves any.
        """
        return seconds >= self.device.unsure * more * self.device.step

    def is_worth_starts(self, inner: int, seconds: float) -> bool:
        """Whether saving so many seconds, for sure, is worth starting loops so often in a step."""
        return seconds >= self.doubtful(number(inner) * self.device.step)

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

    def is_worth_mapping_once(
        self,
        values: Collection[Value],
        ops: Sequence[Op],
        again: float,
        part: float,
        *,
        moves: bool,
    ) -> bool:
        """Whether making a part of values, which are carried, takes less time than making all of
        them by these ops, in so many seconds: reading, computing and writing the part starts ops of
        its own; and where all rows move, all are written.
        """
        written = sum(v.nbytes for v in values) * (1 if moves else part)
        started = self.started(len(values) + len([op for op in ops if not is_view(op)]))
        return again > self.doubtful(again * part + self.moved(written) + started)

    def is_less_shifted(
        self, ops: Iterable[Op], row: Value, width: int, length: int, steps: int
    ) -> bool:
        """Whether reads and functions take clearly longer in all steps, each of which makes so many
        rows, than for an array of so many rows, of which a step reads its own; and that array is
        not several times what a step makes, or stays near the core.
        """
        nbytes = row.nbytes // width * length
        is_small = nbytes <= self.device.first_level or length <= self.device.noticed * width
        reads = [op.operands[1] for op in ops if op.name == "gather"]
        made = sum(map(self.by_places, reads)) + self.apart(
            op for op in ops if is_transcendental(op)
        )
        more = steps * self.elementwise(row) + self.moved(nbytes) + self.started(2)
        return is_small and made * (steps - length / width) > self.doubtful(more)

    def is_little_of_a_step(self, ops: Sequence[Op], seconds: float) -> bool:
        """Whether ops take so little of the seconds of a step that a loop of them saves most."""
        part = self._step_of([each for op in ops for each in op.walk()])
        return part < inf and self.doubtful(part) <= seconds

    def _testing(self, arrays: Sequence[Value]) -> float:
        """Seconds to look at all elements of arrays."""
        return self.device.predicate * sum(number(array.size) for array in arrays)

    def _outlasts(self, scan: Scan, asked: float) -> bool:
        """Whether all steps take so much longer than what is asked once, though maybe in vain."""
        return number(scan.length) * self.step_seconds(scan.body) >= self.device.unsure * asked

    def _branch(self, nbytes: int) -> float:
        """Seconds to wait for what a predicate says, to begin, and to write so many bytes."""
        return self.device.question + self.device.step + self.moved(nbytes)
