"""Steps of a scan that do nothing, and the predicate that says which.

A scan *skips* under a predicate `p` of its body if, whenever `p` is false (everywhere, for a
batched one), every carry keeps its value, counters apart. The predicate is ``carried``, or known
``upfront`` (`predicates`), as in the transpose of a skipping scan: its predicates are residuals. In
a loop that JAX made by transposing, a zero cotangent stays zero under any product, as for the zeros
that JAX knows while tracing. So a batched step is skipped if all its rows have finished and a
`select` sets their cotangents to zero.

A carry also keeps its value under a write of its initial number into a window that no other step
writes: `ys.at[t].set(where(t < length, y, 0))`, where `ys` starts as zeros.

A scan that does not skip in this sense may still skip at its *ends*.  After the last step taken,
nothing may read the carries that change, as the state of a network whose losses a mask drops.  And
a scan in reverse may leave its carries as they began until the first step taken, as the cotangents
of that state: zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from itertools import islice

import numpy as np

from jaxpr_opt.analysis.steps.assume import MULTIPLYING, Assumed, may_keep
from jaxpr_opt.analysis.steps.computed import Computed, computed_in
from jaxpr_opt.analysis.steps.incremental_assume import Assumable
from jaxpr_opt.analysis.steps.masked_rows import facts_of
from jaxpr_opt.analysis.steps.predicates import (
    Counters,
    Kind,
    asked_for,
    candidates_of,
    counted,
    is_kind,
    is_of_numbers,
    kind_of,
    predicate_root,
    slice_of,
)
from jaxpr_opt.analysis.steps.splats import Known, Splat, zero_of
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.flags import may_be_zero
from jaxpr_opt.analysis.values.linearity import carries_cotangents
from jaxpr_opt.analysis.values.renaming import original
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.bridge import compat_types
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Carry, Cond, Constant, Op, Scan, Value

_MIXED = "its predicate mixes carries with streams or counters"


@dataclass(frozen=True, slots=True, eq=False)
class Skip:
    """How a scan skips; `predicate` is true (somewhere, if batched) exactly in steps that must
    be taken.
    """

    scan: Scan
    predicate: Value
    counters: Counters
    """Carries that advance by an invariant amount in every step, skipped or not, with that
    amount.
    """
    skipped: Assumed
    """The body's values in a skipped step."""
    taken_when: bool = True
    """The value of `predicate` in a step that is taken: True, or False for `cond(done,
    identity, step)`.
    """
    kind: Kind = "upfront"
    slice: tuple[Op, ...] = ()
    """The ops of the body that compute the predicate from the body's parameters and outer
    values.
    """
    blanks: tuple[Access, ...] = ()
    """Writes that leave a carry alone in a skipped step: there they write what it began with."""
    dropped: tuple[Carry, ...] = ()
    """Carries that a skipped step changes: nothing reads what they are after the last step taken,
    nor does what skipped steps keep depend on them. Of `find_ends` only.
    """
    going: tuple[Carry, ...] = ()
    """Carries that a skipped step changes, which a loop of their own computes after the last step
    taken, or before the first one. Of `find_goings` only.
    """
    products: tuple[Op, ...] = ()
    """What is zero in a skipped step if the other factor is finite. Of `find_factors` only."""

    @property
    def is_early(self) -> bool:
        """Whether it is the first steps that are left out, of a loop in reverse: those before the
        first one taken.
        """
        return self.kind == "upfront" and self.scan.reverse

    @property
    def kept(self) -> tuple[Carry, ...]:
        """Carries that a skipped step leaves alone."""
        changing = {c.param for c, _ in self.counters} | {c.param for c in self.going}
        return tuple(c for c in self.scan.carries if c.param not in changing)

    @property
    def asked(self) -> set[Value]:
        """What is read to compute the predicate, and the predicate."""
        return asked_for(self.predicate, self.slice)

    def computed(self, values: Iterable[Value]) -> Computed:
        """What a skipped step computes to make these values of the body."""
        return computed_in(self.scan.body, self.skipped, values)

    def gives_any(self, values: Iterable[Value]) -> bool:
        """Whether a skipped step makes anything of these values, or gives one of them."""
        known = [*self.computed(self.scan.body.outputs).known.values()]
        return any(value in known for value in values)


@remembered
def find_skips(scan: Scan) -> tuple[Skip | str, ...]:
    """The ways in which a scan skips steps; a string says why a candidate predicate is none.

    Masks of which computing makes most of what a step makes come last.
    """
    found = [each if _is_told(each) else _MIXED for each in _all_skips(scan)]
    return tuple(sorted(found, key=_takes_long) if len(found) > 1 else found)


def _takes_long(found: Skip | str) -> bool:
    """Whether computing a mask takes about as long as a step."""
    if isinstance(found, str) or found.predicate.size == 1:
        return False
    return cost_model().are_most(found.slice, found.scan.body)


@remembered
def find_mixed(scan: Scan) -> tuple[Skip, ...]:
    """How a scan skips steps by predicates that are neither known before it nor kept by a skipped
    step; none if it skips by another.
    """
    found = tuple(each for each in _all_skips(scan) if isinstance(each, Skip))
    return () if any(map(_is_told, found)) else found


def _is_told(found: Skip | str) -> bool:
    return isinstance(found, str) or found.kind != "mixed"


@remembered
def _all_skips(scan: Scan) -> tuple[Skip | str, ...]:
    """The same, with those of a mixed predicate."""
    return tuple(_skips(scan))


def _skips(scan: Scan) -> Iterator[Skip | str]:
    counters, _, keeping = counted(scan)
    candidates = candidates_of(scan)
    if not candidates or not keeping or not all(map(may_keep, keeping)):
        return
    step = Assumable(scan.body, linear=carries_cotangents(scan))
    for predicate in step.until_worn(candidates):
        for taken_when in (True, False):
            skipped = step.under(facts_of(scan, predicate, not taken_when))
            blank = blanks(scan, keeping, skipped)
            # Condition 1 of exit-loop-early, isolate-skipped-steps.
            if blank is None:
                continue
            if is_of_numbers(predicate):
                yield "its predicate chooses elements by their numbers, not steps"
                break
            kind = kind_of(scan, predicate)
            if is_kind(kind):
                yield Skip(
                    scan=scan,
                    predicate=predicate,
                    taken_when=taken_when,
                    kind=kind,
                    slice=tuple(slice_of(scan, predicate)),
                    counters=counters,
                    skipped=skipped,
                    blanks=blank,
                )
            else:
                yield kind
            break


@remembered
def find_ends(scan: Scan) -> tuple[Skip, ...]:
    """The first way in which a scan skips all steps after the last one taken, or, in reverse, all
    before the first one, whose predicates are then known upfront; but not those between. Empty if
    it skips steps.
    """
    if any(isinstance(each, Skip) for each in find_skips(scan)):
        return ()
    return tuple(islice(_ends(scan), 1))


@remembered
def find_factors(scan: Scan) -> tuple[Skip, ...]:
    """The first way in which a scan skips all steps after the last one taken, or, in reverse,
    before the first one, if what they multiply by zero is finite: ``total + alive * reward``. Empty
    if it skips steps without that.
    """
    if any(isinstance(each, Skip) for each in find_skips(scan)):
        return ()
    if not any(map(_has_a_mask, scan.body.ops)) or carries_cotangents(scan):
        return ()
    return tuple(islice((each for each in _ends(scan, finite=True) if each.products), 1))


def _has_a_mask(op: Op) -> bool:
    """Whether a factor of a product is made of truth values, or asked about."""
    return op.name in MULTIPLYING and any(map(may_be_zero, op.operands))


def _ends(scan: Scan, finite: bool = False) -> Iterator[Skip]:
    counters, _, keeping = counted(scan)
    candidates = candidates_of(scan)
    if not candidates:
        return
    end = _end(scan, finite=finite)
    if end is None:
        return
    for predicate in end.step.until_worn(candidates):
        for taken_when in (True, False):
            skipped = end.step.under(facts_of(scan, predicate, not taken_when))
            if not end.is_idle(skipped, asked=predicate):
                continue
            kind = kind_of(scan, predicate)
            # Condition 8 of exit-loop-early.
            if not is_kind(kind) or kind == "mixed" or (kind == "carried" and scan.reverse):
                continue
            ops = tuple(slice_of(scan, predicate))
            rest = () if scan.reverse else (c for c in keeping if not c.result.uses)
            lost = tuple(c for c in rest if not skipped.keeps(c))
            asked = asked_for(predicate, ops)
            # Condition 8 of exit-loop-early.
            if not any(c.param in asked for c in lost) and not is_of_numbers(predicate):
                yield Skip(
                    scan=scan,
                    predicate=predicate,
                    taken_when=taken_when,
                    kind=kind,
                    slice=ops,
                    counters=counters,
                    skipped=skipped,
                    dropped=lost,
                    products=(*end.step.products, *skipped.products),
                )
                break


def is_skipped_at(scan: Scan, factors: Iterable[Value]) -> bool:
    """Whether a loop that skips no steps may skip those, or the last of those, in which factors are
    zero, if it is asked whether they are.
    """
    if any(isinstance(each, Skip) for each in (*find_skips(scan), *find_ends(scan))):
        return False
    end = _end(scan, finite=True)
    return end is not None and end.is_idle(end.step.under({v: zero_of(v) for v in factors}))


@dataclass(frozen=True, slots=True)
class _End:
    """The steps of a loop after the last one taken, or, in reverse, before the first one."""

    scan: Scan
    step: Assumable
    began: Mapping[Value, Splat]
    """In reverse, the carries that begin as a number, with that."""
    must: Sequence[Carry]
    """The carries that such a step is to leave alone."""
    others: Sequence[Carry]
    """Carries that nothing reads after the loop."""
    read: Set[Value]
    """What the loop stacks, if that is read."""

    def is_idle(self, skipped: Assumed, asked: Value | None = None) -> bool:
        """Whether such a step leaves alone what it must, and does not stack the same as others:
        its predicate, if that is `asked`, differs.
        """
        # Condition 8 of exit-loop-early.
        if not all(
            _stays(c, skipped, self.began.get(c.param), self.step.linear) for c in self.must
        ):
            return False
        if self.must or asked in self.read or any(map(skipped.keeps, self.others)):
            return True
        told = (known for value, known in skipped.told if value in self.read)
        return any(_is_dropped(known, self.scan) for known in told)


def _end(scan: Scan, *, finite: bool) -> _End | None:
    """The steps of a loop that may do nothing at its end; None if none does."""
    _, _, keeping = counted(scan)
    # Condition 8 of exit-loop-early.
    began = dict(_numbers(keeping)) if scan.reverse else {}
    must = [c for c in keeping if scan.reverse or c.result.uses]
    if not all(c.param in began or may_keep(c) for c in must):
        return None
    step = Assumable(scan.body, began, linear=carries_cotangents(scan), finite=finite)
    read = {stack.value for stack in scan.stacks if stack.result.uses}
    rest = () if scan.reverse else (c for c in keeping if not c.result.uses)
    others = [c for c in rest if c.next is not c.param and may_keep(c)]
    return _End(scan, step, began, must, others, read)


def _is_dropped(known: Known, scan: Scan) -> bool:
    """Whether a skipped step makes a number of what others compute, or an outer value."""
    return isinstance(known, Splat) or not scan.body.defines(known)


def as_begun(scan: Scan, rows: Mapping[Value, Splat]) -> tuple[Assumed, Counters]:
    """The body's values in a step with some known rows, if the carries, counters apart, are still
    the numbers that they began with; and the counters.
    """
    counters, _, others = counted(scan)
    began = dict(_numbers(others))
    return Assumed(scan.body, {**began, **rows}, linear=carries_cotangents(scan)), counters


def all_taken(scan: Scan, rows: Mapping[Value, Splat] | None = None) -> Skip:
    """A `Skip` of a loop without a predicate: it takes all steps, but for the first ones if they
    have such `rows`.
    """
    values, counters = as_begun(scan, rows or {})
    return Skip(scan, _always(), counters, values)


@cache
def _always() -> Constant:
    return Constant(compat_types.array_aval((), np.dtype(bool)), np.bool_(True))


def stays(scan: Scan, values: Assumed, counters: Iterable[tuple[Carry, Value]]) -> bool:
    """Whether such a step leaves the carries, counters apart, as they were before it."""
    counting = {c.param for c, _ in counters}
    keeping = [c for c in scan.carries if c.param not in counting]
    began, linear = dict(_numbers(keeping)), carries_cotangents(scan)
    return all(_stays(c, values, began.get(c.param), linear) for c in keeping)


def _numbers(carries: Iterable[Carry]) -> Iterator[tuple[Value, Splat]]:
    """The carries that begin as one number, with that."""
    for carry in carries:
        number = uniform(carry.init)
        if number is not None:
            yield carry.param, Splat(np.asarray(number, carry.init.dtype)[()])


def _stays(carry: Carry, skipped: Assumed, began: Splat | None, linear: bool) -> bool:
    """Whether a skipped step leaves a carry alone, or as the number that it began with; a cotangent
    up to the sign of zero.
    """
    if began is None:
        return skipped.keeps(carry)
    known = skipped[carry.next]
    if not isinstance(known, Splat) or known.value != began.value:
        return False
    bits = np.asarray(known.value, began.value.dtype).tobytes()  # also of complex numbers
    return linear or not began.is_zero or bits == began.value.tobytes()


def blanks(scan: Scan, keeping: Iterable[Carry], skipped: Assumed) -> tuple[Access, ...] | None:
    """The writes that leave carries alone in a skipped step; None if it changes a carry."""
    found = []
    for carry in keeping:
        if skipped.keeps(carry):
            continue
        write = _blank(scan, carry, skipped)
        # Condition 1 of exit-loop-early, isolate-skipped-steps.
        if write is None:
            return None
        found.append(write)
    return tuple(found)


def _blank(scan: Scan, carry: Carry, skipped: Assumed) -> Access | None:
    """The write that makes the next value of a carry, if a skipped step writes what the carry
    began with, where no other step has written.
    """
    op = original(carry.next).op
    write = access(op) if op is not None else None
    if write is None or write.kind != "write" or original(write.array) is not carry.param:
        return None
    number, began = skipped[write.value], skipped[carry.init]
    if not isinstance(number, Splat) or not isinstance(began, Splat):
        return None
    strides = [(abs(e.start.steps.get(scan, 0)), e.size) for e in write.window if e.start]
    is_apart = any(stride >= size for stride, size in strides if stride)
    return write if is_apart and number.value == began.value else None


def find_skip(scan: Scan) -> Skip | None:
    """The first way in which a scan skips steps; None if it skips none."""
    return next((s for s in find_skips(scan) if isinstance(s, Skip)), None)


def has_branch(skip: Skip) -> bool:
    """Whether each step has a branch on the predicate."""
    conds = (op for op in skip.scan.body.ops if isinstance(op, Cond))
    return any(predicate_root(op.selector) is skip.predicate for op in conds)
