"""The values of a step when some predicates are known: one forward walk that writes nothing.

`Assumed(region, {p: False})` answers, for every value in the region, what it equals in a step in
which `p` is false everywhere: itself, another value, or a `Splat` (all elements one known scalar).
It handles conds on the predicate, selects (batched ones too), masks derived from it, sums with a
splat of zero and what else has a neutral element, reductions of such elements, and writes of the
old value or out of range.

A truth value may also tell that an integer is one of some numbers: where ``and (ne s 2) (ne s 3)``
is false, `s` is 2 or 3, each element for itself. What an op makes of each of these is known, if it
is the same for all of them; or if it is the number itself, as the new state of a state machine that
stays in a state.

With `linear=True` a product with a zero is zero. That holds for cotangents only, whose zeros are
symbolic: JAX itself drops ``0 * residual`` whenever it knows the zero while tracing. On primal code
``0 * inf`` is NaN. With `finite=True` such a product is zero, too, of either sign, and it is one of
`products`: what else they multiply must then be finite. In any case it is zero if the other factor
is an integer, or is finite whatever the arguments are.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from jax.lax import GatherScatterMode

from jaxpr_opt.analysis.steps.splats import (
    COMBINES,
    RULES,
    Known,
    Rule,
    Splat,
    is_splat_of,
    is_zero,
    same,
    vanishes,
    zero_of,
)
from jaxpr_opt.analysis.values import float_bounds
from jaxpr_opt.analysis.values.constants import identity, is_undefined, uniform
from jaxpr_opt.analysis.values.flags import is_fraction
from jaxpr_opt.analysis.values.truths import implied, numbers_if
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.analysis.windows.window_primitives import INDEXED_WRITES, WRITES, neutral
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import has_numbers, mode_of, numbers_of
from jaxpr_opt.ir.graph import Carry, Cond, Op, Outcome, Region, Scan, Value
from jaxpr_opt.ir.traits import BARRIER, ELEMENTWISE, LAYING, RESHAPING, VIEWING, linear_in

_WRITES = WRITES | INDEXED_WRITES

_OF_EACH = (ELEMENTWISE | VIEWING) & RULES.keys()
"""Ops that make each element of one of each operand."""

_ZERO_IF = {("eq", True), ("gt", False), ("le", True), ("ne", False)}
"""Comparisons with zero, and how they come out if a number that is not negative is zero."""

MULTIPLYING = frozenset({"dot_general", "mul"})
"""Ops of two factors, of which finite ones times zero are zero."""

_FORWARDING = frozenset({
    *COMBINES, *_WRITES, "convert_element_type", "select_n", "sub",
})  # fmt: skip
"""First-order ops that may be found to be one of their operands, not a splat."""


@dataclass(frozen=True, slots=True)
class OneOf:
    """Some numbers of which each element of an array is one, and an array of the same numbers."""

    numbers: tuple[int, ...]
    integer: Value


Facts = Mapping[Value, bool | Splat | frozenset[int]]
"""What all elements of values are, or the integers of which each of them is one."""


class Assumed:
    """The region's values under `facts`, a map from values to what all their elements are, and what
    truth values tell of those that they are made of; what these do not tell is as in `around`.
    """

    def __init__(
        self,
        region: Region,
        facts: Facts,
        *,
        linear: bool = False,
        finite: bool = False,
        around: Assumed | None = None,
    ) -> None:
        self.products: dict[Op, None] = {}
        """What is zero if the other factors are finite, which is not known."""
        self._known: dict[Value, Known] = {
            value: fact if isinstance(fact, Splat) else Splat(np.bool_(fact))
            for value, fact in facts.items()
            if isinstance(fact, Splat | bool)
        }
        self._one_of: dict[Value, OneOf] = {}
        """The integers of which each element is one of some numbers."""
        for value, fact in facts.items():
            if isinstance(fact, frozenset):
                self._tell_numbers(value, fact)
            for other, truth in implied(value, fact).items() if isinstance(fact, bool) else ():
                self._known.setdefault(other, Splat(np.bool_(truth)))
                if (zero := _zero_if(other, truth)) is not None:
                    self._known.setdefault(zero, zero_of(zero))
                if (numbers := numbers_if(other, truth)) is not None:
                    self._tell_numbers(*numbers)
        self._linear, self._finite = linear, finite
        self._around = around
        self._walk(region)

    def __getitem__(self, value: Value) -> Known:
        if value in self._known:
            return self._known[value]
        if self._around is not None:
            return self._around[value]
        number = uniform(value)
        return value if number is None else Splat(np.asarray(number, value.dtype)[()])

    @property
    def told(self) -> ItemsView[Value, Known]:
        """What the facts tell of values."""
        return self._known.items()

    def one_of(self, known: Known) -> OneOf | None:
        """The numbers of which each element is known to be one, if that is all that is known."""
        if isinstance(known, Splat):
            return None
        if known in self._one_of or self._around is None:
            return self._one_of.get(known)
        return self._around.one_of(known)

    def keeps(self, carry: Carry) -> bool:
        """Whether the carry has at the end of the step the value it had at its start."""
        return same(self[carry.next], self[carry.param])

    def _walk(self, region: Region) -> None:
        for op in region.ops:
            self._learn(op)

    def _learn(self, op: Op) -> None:
        for result, known in zip(op.results, self._results(op), strict=False):
            self._tell(result, known)

    def _tell(self, result: Value, known: Known) -> None:
        if result not in self._known and known is not self[result]:
            self._note(result, known)

    def _note(self, value: Value, known: Known) -> None:
        self._known[value] = known

    def _tell_numbers(self, value: Value, numbers: frozenset[int]) -> None:
        """Note that integers are some numbers, and those that they are made of."""
        source: Value | None = value
        while source is not None:
            if len(numbers) == 1:
                (number,) = numbers
                self._known.setdefault(source, Splat(np.asarray(number, source.dtype)[()]))
            else:
                self._one_of.setdefault(source, OneOf(tuple(sorted(numbers)), source))
            source = same_number(source, numbers)

    def _results(self, op: Op) -> list[Known]:
        if isinstance(op, Cond):
            return self._cond(op)
        if isinstance(op, Scan):
            return self._scan(op) if self._linear else []
        if op.name == BARRIER:
            return [self[v] for v in op.operands]
        told = op.name in RULES or op.name in _WRITES
        is_linear = (self._linear or self._finite) and linear_in(op) is not None
        if not (told or is_linear) or op.regions or op.effects:
            return []
        known = [self[v] for v in op.operands]
        return [self._first_order(op, result, known) for result in op.results]

    def _cond(self, op: Cond) -> list[Known]:
        chosen = self._chosen(op)
        if chosen is not None:
            self._walk(chosen)
            return [self[v] for v in chosen.outputs]
        for branch in op.branches:
            self._walk(branch)
        return [self._agreed(outcome) for outcome in op.outcomes]

    def _agreed(self, outcome: Outcome) -> Known:
        """The value of a cond's result, if all branches that may be taken agree on it: what is
        undefined in one of them may be what the others make.
        """
        op = outcome.result.op
        assert isinstance(op, Cond)
        if (chosen := self.one_of(self[op.selector])) is not None:
            made = [self[outcome.values[op.taken(number)]] for number in chosen.numbers]
            return self._of_each(outcome.result, made, chosen, chosen.integer)
        defined = [v for v in outcome.values if not is_undefined(v)]
        first, *rest = (self[v] for v in defined or outcome.values)
        return first if all(same(first, other) for other in rest) else outcome.result

    def _chosen(self, op: Cond) -> Region | None:
        """The branch that is known to be taken."""
        selector = self[op.selector]
        if not isinstance(selector, Splat):
            return None
        return op.branches[op.taken(selector.value)]

    def _scan(self, op: Scan) -> list[Known]:
        """A linear scan whose carries all start at zero keeps those that its body keeps at
        zero.
        """
        zero = {c.param: c for c in op.carries if is_zero(self[c.init])}
        while zero:
            facts = {p: zero_of(p) for p in zero}
            facts |= {s.param: k for s in op.streams if isinstance(k := self[s.operand], Splat)}
            inner = Assumed(op.body, facts, linear=True, around=self)
            lost = [p for p, c in zero.items() if not is_zero(inner[c.next])]
            if not lost:
                by_result = {c.result: inner[c.param] for c in zero.values()}
                by_result |= {
                    s.result: k for s in op.stacks if isinstance(k := inner[s.value], Splat)
                }
                return [by_result.get(v, v) for v in op.results]
            for param in lost:
                del zero[param]
        return list(op.results)

    def _first_order(self, op: Op, result: Value, known: list[Known]) -> Known:
        rule = RULES.get(op.name)
        found: Known | None = None
        if rule is not None and self._one_of and op.name in _OF_EACH:
            found = self._of_numbers(op, result, known, rule)
        if rule is not None and found is None:
            found = rule(op, known)
        if found is None and op.name in _WRITES and self._writes_nothing(op, known):
            return _typed(known[0], result)
        if found is None and self._is_zero(op, known):
            return zero_of(result)
        return result if found is None else _typed(found, result)

    def _of_numbers(self, op: Op, result: Value, known: list[Known], rule: Rule) -> Known | None:
        """What an op makes of integers that are one of some numbers."""
        asked = known[:1] if op.name == "select_n" else known
        each = [(place, of) for place, k in enumerate(asked) if (of := self.one_of(k)) is not None]
        if len(each) != 1:
            return None
        ((place, of),) = each
        made = []
        for number in of.numbers:
            splat = Splat(np.asarray(number, op.operands[place].dtype)[()])
            made.append(rule(op, [*known[:place], splat, *known[place + 1 :]]))
        if None in made:
            return None
        integer = of.integer if op.name in ELEMENTWISE else result
        found = self._of_each(result, [m for m in made if m is not None], of, integer)
        return None if found is result else found

    def _of_each(self, result: Value, made: list[Known], of: OneOf, integer: Value) -> Known:
        """A result that is `made` for each of some numbers: the same for all, or the integer itself
        if each number gives itself.
        """
        if all(same(made[0], other) for other in made[1:]):
            return made[0]
        pairs = zip(made, of.numbers, strict=True)
        if not all(isinstance(m, Splat) and m.value == n for m, n in pairs):
            return result
        found = _typed(integer, result)
        if found is result and result not in self._one_of:
            self._note_numbers(result, OneOf(of.numbers, integer))
        return found

    def _note_numbers(self, value: Value, of: OneOf) -> None:
        self._one_of[value] = of

    def _is_zero(self, op: Op, known: list[Known]) -> bool:
        """Whether an op makes zeros: of symbolic ones, or if other factors are finite."""
        if op.name in MULTIPLYING and vanishes(op, known) and all(map(is_finite, known)):
            return True
        if not (self._linear or self._finite) or not vanishes(op, known):
            return False
        if self._linear or linear_in(op) == "all":
            return True
        if op.name not in MULTIPLYING:
            return False
        self.products[op] = None
        return True

    def _writes_nothing(self, op: Op, known: list[Known]) -> bool:
        """Whether a write is dropped, or writes what is there, or combines it with what is
        neutral.
        """
        array, where = op.operands[0], known[1]
        if op.name in INDEXED_WRITES and is_splat_of(known[-1], neutral(op)):
            return True
        if op.name == "scatter" and isinstance(where, Splat) and 0 not in op.operands[1].shape:
            drops = mode_of(op) == GatherScatterMode.FILL_OR_DROP
            if drops and int(where.value) >= max(array.shape):
                return True
        write = access(op)
        if write is None or write.kind != "write":
            return False
        value = self[write.value]
        while isinstance(value, Value) and value.op is not None:
            read = access(value.op)
            if read is not None and read.kind == "read":
                return self[read.array] is known[0] and _mirrors(read, write)
            (source, *_) = value.op.operands or (value,)
            if value.op.name not in LAYING or source.nbytes != value.nbytes:
                return False
            value = self[source]
        return False


def same_number(value: Value, numbers: Iterable[int]) -> Value | None:
    """The integer that one is made of, which is the same number if that is one of these."""
    op = value.op
    if op is None or not dtypes.is_integer(value.dtype):
        return None
    if op.name == "clamp":
        least, inner, most = op.operands
        bounds = uniform(least), uniform(most)
        is_within = None not in bounds and all(bounds[0] < n < bounds[1] for n in numbers)
        return inner if is_within else None
    if op.name not in {"convert_element_type", *RESHAPING, "broadcast_in_dim"} or not value.size:
        return None
    (inner,) = op.operands
    is_same = dtypes.is_integer(inner.dtype) and np.can_cast(inner.dtype, value.dtype)
    return inner if is_same else None


def _zero_if(compared: Value, truth: bool) -> Value | None:
    """The number that is zero, of whatever sign, if a comparison comes out so: ``mask != 0``, or of
    a number from zero to one ``discount > 0``.
    """
    op = compared.op
    if op is None or (op.name, truth) not in _ZERO_IF or uniform(op.operands[1]) != 0:
        return None
    number = op.operands[0]
    is_told = op.name in ("eq", "ne") and dtypes.has_zero(number.dtype)
    return number if is_told or is_fraction(number) else None


def _mirrors(read: Access, write: Access) -> bool:
    """Whether what is read is, in its order, what is written over."""
    places = [[identity(v) for v in each.indices] for each in (read, write)]
    if places[0] != places[1] or read.sizes != write.sizes:
        return False
    if not has_numbers(read.op) or not has_numbers(write.op):
        return read.op.name == "dynamic_slice" and write.op.name == "dynamic_update_slice"
    numbers, own = numbers_of(read.op), numbers_of(write.op)
    return bool(
        read.axes == write.axes
        and mode_of(read.op) == mode_of(write.op)
        and numbers.start_index_map == own.scatter_dims_to_operand_dims
        and numbers.operand_batching_dims == own.operand_batching_dims
        and numbers.start_indices_batching_dims == own.scatter_indices_batching_dims
    )


def may_keep(carry: Carry) -> bool:
    """Whether `Assumed.keeps` could say yes, whatever is assumed; told without a walk."""
    if carry.next is carry.param or carry.param.dtype == bool:
        return True
    op = carry.next.op
    return op is not None and (bool(op.regions) or op.name in {BARRIER, *_FORWARDING})


def _typed(known: Known, result: Value) -> Known:
    """`known` if it may stand for `result`: a splat always may, a value only with the same
    shape and dtype.
    """
    if isinstance(known, Splat) or (known.shape == result.shape and known.dtype == result.dtype):
        return known
    return result


def is_finite(known: Known) -> bool:
    """Whether every element is known to be finite."""
    if isinstance(known, Splat):
        return bool(np.isfinite(known.value))
    return dtypes.is_integral(known.dtype) or is_fraction(known) or float_bounds.is_finite(known)
