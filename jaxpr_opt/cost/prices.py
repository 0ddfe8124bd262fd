"""The prices of a device, in seconds: bytes, ops, steps of loops.

What is not known costs infinitely many.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf
from sys import maxsize
from typing import Any

from jaxpr_opt.cost.functions import longer_one_by_one, slow_values
from jaxpr_opt.cost.fusion import is_fused, kernels, sums_nothing
from jaxpr_opt.cost.layouts import copies
from jaxpr_opt.cost.lowering import Lowering
from jaxpr_opt.cost.ops import Cost, cost, rows_multiplied
from jaxpr_opt.cost.reuse import is_view
from jaxpr_opt.cost.windows import bytes_handed_on, bytes_moved, is_in_rows
from jaxpr_opt.ir.graph import Op, Region, Scan, Value, While
from jaxpr_opt.ir.nesting import is_in_a_loop
from jaxpr_opt.ir.traits import TRANSCENDENTAL, dead_ops


@dataclass(frozen=True, slots=True)
class Prices(Lowering):
    """What things cost on a device, in seconds."""

    byte: float = 0.0
    """Seconds that a byte of temporary memory is worth; 0 where there is memory enough."""

    # -- bytes

    def held(self, nbytes: float) -> float:
        """Seconds that so many bytes of temporary memory are worth."""
        return self.byte * number(nbytes)

    def moved(self, nbytes: float) -> float:
        """Seconds to write so many bytes, and to read them once."""
        return self.device.cached * number(nbytes)

    def stored(self, nbytes: float) -> float:
        """Seconds to write so many bytes in a forward pass and to read them in the backward pass.

        Between the two the cache is needed for other things, unless they are few.
        """
        return self.kept(nbytes, nbytes)

    def stored_far(self, nbytes: int) -> float:
        """The same where it is unknown what else is stored."""
        return self.device.trips * self.device.memory * number(nbytes)

    def kept(self, nbytes: float, stacked: float) -> float:
        """Seconds to store so many bytes, and to load them, among so many that are stacked."""
        far = self.device.trips * self.device.memory
        return number(nbytes) * (far if self.is_far(stacked) else self.device.cached)

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
        return number(nbytes) * self.device.nearby if is_near else self.kept(nbytes, among)

    def is_far(self, stacked: float) -> bool:
        """Whether so many bytes exceed the cache."""
        return stacked > self.device.cache

    def fresh(self, nbytes: float) -> float:
        """Seconds that handing out so many bytes of temporary memory takes in each run."""
        return self.device.fresh * number(nbytes) if self.is_far(nbytes) else 0.0

    def filled(self, nbytes: float) -> float:
        """Seconds to write so many bytes to new pages, which may never be read."""
        return self.device.memory / 2 * number(nbytes)

    def read_windows(self, nbytes: float, count: int) -> float:
        """Seconds to read so many bytes again, in so many windows that lie anywhere."""
        return self.device.cached / 2 * max(number(nbytes), count * self.device.line)

    def read_again(self, read: Op, count: int) -> float:
        """Seconds to read again so many windows that an op has read, fused with what reads them;
        those of a batch, each in its row, are looked up number by number.
        """
        looked_up = sum(number(v.size) for v in read.results) if is_in_rows(read) else 0
        nbytes = sum(v.nbytes for v in read.results)
        return self.read_windows(nbytes, count) + self.device.number_apart * looked_up

    def marked(self, numbers: int, nbytes: float) -> float:
        """Seconds to write a number for each window into so many bytes of zeros, and to read it, if
        so many numbers say where all of them are.
        """
        return self.moved(nbytes) / 2 + 2 * self.read_windows(0, numbers)

    def paired(self, windows: int, others: int | None = None) -> float:
        """Seconds to compare all pairs of so many windows, or of one of these and one of others."""
        return self.device.predicate * number(windows) * number(others or windows)

    # -- ops

    def repeated(self, items: Iterable[Op | Region]) -> float:
        """Seconds to compute ops once more, fused with what reads them; infinite if not known."""
        return sum(self._computed(cost(item)) for item in items)

    def run(self, items: Iterable[Op | Region]) -> float:
        """Seconds that ops take at least, each by itself: to read, to compute and to write."""
        known = [cost(item) for item in items]
        seconds = [self._computed(each) + self._touched(each) for each in known]
        return sum(each for each in seconds if each != inf)

    def differentiated(self, ops: Sequence[Op], row: float) -> float:
        """Seconds that ops, which keep a row of so many bytes, and their transpose take in one
        function, which keeps what it fuses in registers: the transpose about twice as long.
        """
        apart = [cost(op) for op in ops if not is_fused(op)]
        return 3 * (self.repeated(ops) + sum(map(self._touched, apart)) + self.moved(row))

    def started(self, ops: int) -> float:
        """Seconds to start so many ops, in a loop of which each is called by itself."""
        return self.device.kernel * ops

    def started_for_rows(self, pieces: int) -> float:
        """Seconds to start the ops that read, sum and write rows of so many pieces: five each."""
        return self.started(5 * pieces)

    def started_for_states(self, arrays: int, pieces: int) -> float:
        """Seconds to start the ops that read, sum, test and write rows of an optimizer's state:
        four for each array and each piece, and for a loop.
        """
        return self.started(4 * (arrays + pieces + 1))

    def repeated_apart(self, op: Op, *, one_by_one: bool = False) -> float:
        """Seconds to compute an op once more in a loop of its own, which writes what it makes; a
        function of each number in that of what reads it, where the device fuses these, or a loop
        is one function, which starts no ops; it computes some number by number, and then all that
        is fused with them.
        """
        slow = self.slow(op)
        if one_by_one:
            slow += self.doubtful(self.device.one_by_one * number(longer_one_by_one(op)))
        if (one_by_one or self.device.fuses_functions) and op.name in TRANSCENDENTAL:
            return self.repeated([op]) + slow
        made = sum(v.nbytes for v in op.results)
        computed = self.repeated([op])
        start = 0.0 if one_by_one else self.device.kernel
        if cost(op).products:
            start += self.device.product
            computed = max(computed, self.read_once(op), self.in_rows(op))
        return start + computed + slow + self.moved(made)

    def slow(self, op: Op) -> float:
        """Seconds longer that a function takes which is computed number by number everywhere."""
        return self.device.slow_function * number(slow_values(op))

    def read_once(self, product: Op) -> float:
        """Seconds to read the operands of a product with a vector in a loop, which uses each number
        once, and to copy those that are laid out otherwise: that takes longer than multiplying.
        """
        largest = max((number(v.size) for v in product.operands), default=0.0)
        if product.regions or sums_nothing(product) or not is_in_a_loop(product):
            return 0.0
        if (cost(product).products or 0) > 2 * largest:
            return 0.0
        copied = sum(copy.nbytes for copy in copies(product)) if self.device.copies_operands else 0
        return self.moved(sum(v.nbytes for v in product.operands)) / 2 + self.moved(copied)

    def in_rows(self, product: Op) -> float:
        """Seconds that the rows of a product of matrices in a loop take at least: short ones take
        longer than their operations.
        """
        if product.name != "dot_general" or not is_in_a_loop(product):
            return 0.0
        return self.device.product_row * number(rows_multiplied(product))

    def apart(self, items: Iterable[Op]) -> float:
        """Seconds to compute functions of numbers one step at a time: one core does, and where few
        are fused with other ops, one by one.
        """
        return self.device.lanes * self.repeated(items)

    def elementwise(self, value: Value, ops: int = 1) -> float:
        """Seconds of so many ops of basic arithmetic, or movement, that make such a value."""
        return self.device.arithmetic * ops * number(value.size)

    def one_by_one(self, value: Value) -> float:
        """Seconds of one such op on numbers that no vector instruction computes together."""
        return self.device.lanes * self.elementwise(value)

    def by_places(self, value: Value) -> float:
        """Seconds of an op that makes such a value of several arrays, all read in another order."""
        return self.device.place * number(value.size)

    def streamed(self, nbytes: int) -> float:
        """Seconds to read so many bytes, four a number, in an op that computes with them."""
        return self.device.arithmetic * number(nbytes) / 4

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

    # -- loops

    def step_seconds(self, body: Region) -> float:
        """Seconds of a step of a loop, by what its ops make, of an array that is written in place
        the window, and what its products read; infinite if there is a loop inside.  What nobody
        reads does not count: a pass has left it.
        """
        dead = dead_ops(body)
        return self._step_of([op for op in body.walk() if op not in dead])

    def _step_of(self, ops: Sequence[Op]) -> float:
        if any(isinstance(op, Scan | While) for op in ops):
            return inf
        made = sum(bytes_moved(op) for op in ops if not is_view(op))
        if not self.device.starts_each:  # nor copies what a branch writes to
            made -= sum(map(bytes_handed_on, ops))
        starts = kernels(ops) * self.device.kernel if made > self.device.fused_bytes else 0.0
        return self.moved(made) + starts

    def added_up(self, nbytes: float) -> float:
        """Seconds to read a value of so many bytes, and to read and write the sum of such."""
        return self.moved(1.5 * number(nbytes))

    def added_apart(self, windows: int, nbytes: int) -> float:
        """Seconds to read so many windows of a second array, and to add each to an array of so many
        bytes, write it and clear it.
        """
        return self.loop_seconds(4 * windows, nbytes)

    def loop_seconds(self, steps: int, nbytes: int) -> float:
        """Seconds of so many steps that do next to nothing, over arrays of so many bytes."""
        is_fused = nbytes <= self.device.fused_bytes
        return number(steps) * (self.device.fused_step if is_fused else self.device.step)

    def doubtful(self, seconds: float) -> float:
        """Seconds that must be saved to be worth this many, where the saving is not certain."""
        return self.device.noticed * seconds


def number(size: Any) -> float:
    """A size; one that is a symbol raises JAX's `InconclusiveDimensionOperation`."""
    return size if isinstance(size, float) else int(size)


def quotient(seconds: float, of_one: float) -> int:
    """How many take so many seconds; one at least."""
    return max(ceil(seconds / of_one), 1) if of_one else maxsize
