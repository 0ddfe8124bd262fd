"""Products of matrices, or reads and sums of rows instead; sorts, or selections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, log2
from typing import Protocol

from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import numbers_of
from jaxpr_opt.cost.fusion import is_fused
from jaxpr_opt.cost.ops import cost
from jaxpr_opt.cost.prices import Prices, number
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.traits import TRANSCENDENTAL


class Picking(Protocol):
    """Rows that are read at places, or written to them."""

    @property
    def windows(self) -> int:
        """How many windows are read or written."""

    @property
    def made(self) -> int:
        """How many numbers are in memory between."""

    @property
    def numbers(self) -> int:
        """How many numbers are moved."""

    @property
    def ops(self) -> int:
        """How many ops that takes, beside reading."""


class ProductQuestions(Prices):
    """Products of matrices, or reads and sums of rows instead."""

    __slots__ = ()

    def picking(self, rows: Picking, width: int, others: Iterable[Op]) -> float:
        """Seconds to read and multiply rows of numbers of so many bytes each, or to write them; and
        of other ops.
        """
        moved = self.started(1) + self.device.row_apart * rows.windows
        moved += self.moved(width * rows.numbers)
        return moved + sum(map(self.repeated_apart, others))

    def is_picked(self, rows: Picking, ops: Sequence[Op], looked: float, unmade: float) -> bool:
        """Whether that takes less time than products or a reduction of all places, and no more
        memory, if so many bytes are looked at before, and so many no longer made.
        """
        width = ops[0].result.dtype.itemsize
        seconds = self.picking(rows, width, ()) + self.moved(looked)
        seconds += self.doubtful(self.started(rows.ops))
        is_less = width * rows.made <= sum(op.result.nbytes for op in ops) + unmade
        return is_less and seconds < sum(map(self.repeated_apart, ops)) + self.moved(unmade)

    def is_less_without_copies(
        self, copies: float, turned: float = 0, moved: float = 0, made: float = 0
    ) -> bool:
        """Whether reading so many bytes of copies of a factor takes clearly longer than starting a
        product of matrices, which reads another factor of so many bytes across its rows, and moves
        so many bytes of the result; and no less than writing the result.
        """
        spared = self.moved(max(0, copies - turned / 2 - moved))
        return copies >= made and spared > self.doubtful(self.started(1) + self.device.library)

    def is_slow_across(self, matrix: Value) -> bool:
        """Whether a vector times the transpose of a matrix takes longer than times the matrix."""
        longer = self.device.across * number(matrix.size)
        return longer > self.doubtful(self.started(1))

    def is_less_along(self, matrix: Value, other: Value, product: Op) -> bool:
        """Whether reading a matrix beyond the first cache across its rows takes longer than so
        reading the other one, and transposing the result.
        """
        if matrix.nbytes <= self.device.first_level or not dtypes.is_real(matrix.dtype):
            return False
        spared = self.device.across * number(matrix.size - other.size)
        return spared > self.doubtful(self.moved(product.result.nbytes) + self.started(1))

    def rows_computed(self, parts: Mapping[Op, float], factors: int) -> float:
        """Seconds to compute such parts of what ops make, one core in a step, from factors of so
        many bytes, of which all is read.
        """
        alone = [op for op in parts if not is_fused(op)]
        computed = sum(
            part * (self.apart if op.name in TRANSCENDENTAL else self.repeated)([op])
            for op, part in parts.items()
        )
        return self.started(1 + len(alone)) + computed + self.passed(factors, factors) / 2

    def elements_computed(
        self,
        parts: Mapping[Op, float],
        runs: int,
        windows: Iterable[tuple[int, int]],
        rows: set[Op],
    ) -> float:
        """Seconds to compute such parts of what ops make for each of so many places, number by
        number unless they are products of rows with a matrix, from so many windows of so many bytes
        in all that lie anywhere.
        """
        read = sum(self.read_windows(nbytes, count) for count, nbytes in windows)
        shared = sum(part * self.repeated([op]) for op, part in parts.items() if op in rows)
        alone = (part * (cost(op).flops or 0) for op, part in parts.items() if op not in rows)
        computed = runs * (shared + self.device.arithmetic * number(sum(alone)))
        return read + computed + self.started(1 + len(parts))

    def is_sorted_longer(self, length: int, rows: int) -> bool:
        """Whether sorting so many rows takes clearly longer than starting to select of them."""
        sorted_ = self.device.compared * rows * length * ceil(log2(max(length, 1)))
        return sorted_ > self.doubtful(self.started(4) + self.device.library)

    def is_less_in_parts(
        self, product: Op, multiplied: float, results: Sequence[int], summed: int, unmade: int
    ) -> bool:
        """Whether a product takes longer than several that multiply but a part of its numbers and
        make results of so many bytes, which are added or joined; so many bytes are summed up first,
        so many no longer made.
        """
        spared = self.repeated([product]) * (1 - multiplied) + self.moved(unmade)
        start = len(results) * (self.started(1) + self.device.library + self.device.product)
        added = self.elementwise(product.result, len(results) - 1)
        more = self.moved(sum(results) - max(results) + summed / 2) + added
        return spared > self.doubtful(start) + more

    def is_function(self, op: Op) -> bool:
        """Whether an op is a function of numbers, or is not computed where it is read."""
        return op.name in TRANSCENDENTAL or not is_fused(op)

    def is_less_by_tables(
        self, ops: Iterable[Op], share: float, unread: int, made: int, marked: int
    ) -> bool:
        """Whether ops take clearly longer than on a part of their rows, if so many bytes are no
        longer moved for them, but so many read that they made, and so many places are marked.
        """
        spared = self.repeated(op for op in ops if self.is_function(op)) * (1 - share)
        more = self.moved(made * (1 + share) - unread + marked * self.device.line)
        return spared > max(more + self.doubtful(self.started(2)), self.moved(made) / 2)

    def is_less_read(
        self, product: Op, part: float, share: float, unread: int, marked: int
    ) -> bool:
        """The same of a part of a product, whose result is then read in its place."""
        spared = self.repeated([product]) * part * (1 - share)
        more = self.moved(product.result.nbytes * (0.5 + share) - unread)
        more += self.moved(marked * self.device.line) + self.doubtful(self.started(2))
        return spared > max(more, self.moved(product.result.nbytes) / 2)

    def is_less_once(self, op: Op, rows: int) -> bool:
        """Whether computing an op for one row, instead of so many, saves clearly more than starting
        an op takes.  If nobody knows how long it takes, it is an algorithm for matrices.
        """
        saved = self.repeated([op]) * (1 - 1 / rows)
        return not self.is_made_where_read(op) and saved > self.doubtful(self.started(1))

    def is_less_as_one_product(self, products: Op, masks: int) -> bool:
        """Whether the products of a batch, added up, take longer than one product that adds them
        up, after so many masks have chosen rows of the factors. Groups of convolutions do.
        """
        if products.name == "conv_general_dilated":
            return True
        (summed, _), _ = numbers_of(products)
        made = self.elementwise(products.result, 2 + masks)
        start = self.started(2 + 2 * masks) + self.device.library + self.device.product
        factors = sum(self.moved(factor.nbytes) for factor in products.operands)
        if not summed:  # else the library multiplies either way, and reads the factors
            start += self.repeated([products])
            masks = max(masks, 1)
        return made > start + masks * factors
