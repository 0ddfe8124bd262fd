"""How much of an array is read or written: a part or most of it, in place or all of it."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from jaxpr_opt.cost.prices import Prices, number, quotient
from jaxpr_opt.ir.graph import Value

_ROWS, _COLUMNS = 4, 8
"""Arrays that XLA adds up, each zero but for a window, while it moves as many rows, or columns."""

_PARTS = 8
"""Parts of an array that XLA computes while it puts them together."""


class WindowQuestions(Prices):
    """How much of an array is read or written: a part or most of it, in place or all of it."""

    __slots__ = ()

    def is_most(self, windows: float, array: float) -> bool:
        """Whether reading and writing windows takes longer than writing the array they are of."""
        return 2 * windows > array

    def is_sparse(self, windows: float, array: float) -> bool:
        """Whether moving windows one by one takes no longer than moving all of an array."""
        return self.device.bulk * number(windows) <= array

    def is_sparse_apart(self, count: int, nbytes: int, array: int) -> bool:
        """The same of so many windows of so many bytes, each in a cache line of its own."""
        return self.is_sparse(count * max(nbytes, self.device.line), array)

    def is_side_by_side(self, count: int, share: float, run: float, nbytes: int) -> bool:
        """Whether moving so many windows takes less time than adding as many arrays that are zero
        but for them; `share`: of an array that an average window is, `run`: bytes of a window side
        by side.
        """
        slower = _ROWS if run >= self.device.line else _COLUMNS
        moved = (count * share + 1) * nbytes
        return slower * moved <= count * nbytes and self.is_less_moved(
            count, moved, 1, count * nbytes
        )

    def is_in_memory(self, parts: int, *, computed: bool) -> bool:
        """Whether XLA keeps so many parts of an array in memory until it puts them together; if
        they are computed for that.
        """
        return computed and parts > _PARTS

    def is_dense(self, windows: float, array: float) -> bool:
        """Whether moving all of an array takes no longer than moving windows of it one by one."""
        return self.device.bulk * number(windows) >= array

    def outlasts(self, nbytes: float, seconds: float) -> bool:
        """Whether moving so many bytes takes clearly longer than so many seconds: of starting ops,
        `started`; of starting those for rows instead, `started_for_rows`, `started_for_states`.
        """
        return self.moved(nbytes) >= self.doubtful(seconds)

    def is_less_moved(self, ops: int, nbytes: float, than_ops: int, than_nbytes: float) -> bool:
        """Whether so many ops that move so many bytes take less time than others."""
        more = self.moved(nbytes) + self.started(ops)
        return more < self.moved(than_nbytes) + self.started(than_ops)

    def is_quick(self, nbytes: float) -> bool:
        """Whether computing so many bytes takes no longer than starting an op."""
        return self.moved(nbytes) <= self.device.kernel

    def is_hidden(self, nbytes: int) -> bool:
        """Whether moving so many bytes takes no longer than a loop's step does anyway."""
        return self.moved(nbytes) < self.device.step

    def is_hidden_converted(self, nbytes: int) -> bool:
        """The same of converting so many bytes to twice as many, and back."""
        return self.is_hidden(6 * nbytes)

    def is_no_line(self, nbytes: float) -> bool:
        """Whether so many bytes are less than a cache line, so that moving more takes as long."""
        return nbytes < self.device.line

    def is_read_apart(self, pieces: int, array: int, *, together: bool) -> bool:
        """Whether XLA reads a window of so many pieces, between two writes to an array, by itself:
        what lies in one piece, where the second writes, becomes part of that.
        """
        is_part = pieces == 1 and together
        return not is_part and not self.has_kernels and not self.is_no_line(array)

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

    def is_short(self, row: int) -> bool:
        """Whether rows have so few numbers that those of one are not computed together."""
        return 1 < row < self.device.row

    def more_than_a_copy(self, nbytes: int) -> int:
        """Bytes that are moved more to add an array of zeros with some rows in it to an array of so
        many bytes than to copy that: filling in zeros, and reading them.
        """
        return nbytes // 2

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

    def is_less_in_runs(self, array: Value, numbers: Value, runs: int) -> bool:
        """Whether finding the place of each number takes longer than adding, for so many runs of
        them, as much as the array has, of the numbers among as many zeros.
        """
        summed = self.elementwise(array, 2 * runs) + self.elementwise(numbers, runs)
        return self.by_places(numbers) > summed + self.started(1 + runs)

    def is_better_stacked(self, nbytes: int) -> bool:
        """Whether stacking a row that only one step sees, and moving it again, takes no longer than
        adding to it in place, by an op of its own.
        """
        return self.is_quick(nbytes)

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

    def rows_at_once(self, rows: int, nbytes: int) -> int:
        """How many rows a loop's step writes of an array of so many bytes where others are there
        already: so many that starting the step is hardly noticed; all, if one step writes them.
        """
        if nbytes <= self.device.fused_bytes:
            return 1
        step = self.loop_seconds(1, nbytes) + self.device.question
        return max(1, min(rows, quotient(self.doubtful(step), self.moved(nbytes) / rows)))

    def block(self, size: int) -> int:
        """How many rows of so many elements can be tested in a time that a loop's step hides."""
        elements = quotient(self.device.visible * self.device.step, self.device.predicate)
        return max(elements // max(size, 1), 1)
