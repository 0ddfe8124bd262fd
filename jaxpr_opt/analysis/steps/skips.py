"""Steps of a scan that do nothing: the predicate, and whether it is known before the loop runs.

A scan *skips* under a predicate `p` of its body if, whenever `p` is false (everywhere, for a
batched one), every carry keeps its value, counters apart. There are two kinds:

- ``carried``: `p` is computed from carries that a skipped step keeps (and from outer values). Then
  only skipped steps follow a skipped step: once false, the predicate stays false.
- ``upfront``: `p` is computed from streams, counters and outer values. Then all predicates are
  known before the loop, and so is the last step that is taken. The predicate may become true again.

The transpose of a skipping scan is of the second kind: its predicates are residuals. In a loop that
JAX made by transposing, a zero cotangent stays zero under any product, as for the zeros that JAX
knows while tracing. So a batched step is skipped if all its rows have finished and a `select` sets
their cotangents to zero.

If each row of a batch, or each element of an array, draws its own random numbers in the step
(dropout), some row always takes it: such a mask is not used as a predicate.

A mask of numbers alone, those of its elements and of steps, chooses among elements, not steps:
``arange(n) + i < 8``, ``arange(n) % (1 << i) == 0``.

A carry also keeps its value under a write of its initial number into a window that no other step
writes: `ys.at[t].set(where(t < length, y, 0))`, where `ys` starts as zeros.

Where a scan does not skip, its *ends* may: the steps after the last one that is taken may change
carries of which nothing is read, as the state of a network in steps of which a mask drops the loss.
A scan in reverse may have no effect before the first step that is taken, because there its carries
are what they began with, as the cotangents of that state: zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from jaxpr_opt.analysis.steps.assume import Assumed, Known, Splat, may_keep
from jaxpr_opt.analysis.steps.incremental_assume import Assumable
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.induction import affine
from jaxpr_opt.analysis.values.linearity import carries_cotangents
from jaxpr_opt.analysis.values.renaming import original
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.bridge import compat, dtypes
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Carry, Cond, Constant, Op, Scan, Value, backward_slice
from jaxpr_opt.ir.inputs import inputs
from jaxpr_opt.ir.traits import DRAWING, LAYING, is_speculable

Counters = tuple[tuple[Carry, Value], ...]
"""Carries that count, each with what it counts by."""

_MIXED = "its predicate mixes carries with streams or counters"

_VIEWS = LAYING | {"convert_element_type"}

_CHOOSING = {"select_n": 1, "convert_element_type": 2}
"""Ops that choose, or make a factor of a truth value; after conds."""


@dataclass(frozen=True, slots=True, eq=False)
class Skip:
    """How a scan skips; `predicate` is true (somewhere, if batched) exactly in steps that must
    be taken.
    """

    scan: Scan
    predicate: Value
    taken_when: bool
    """The value of `predicate` in a step that is taken: True, or False for `cond(done,
    identity, step)`.
    """
    kind: Literal["carried", "upfront", "mixed"]
    slice: tuple[Op, ...]
    """The ops of the body that compute the predicate from the body's parameters and outer
    values.
    """
    counters: Counters
    """Carries that advance by an invariant amount in every step, skipped or not, with that
    amount.
    """
    skipped: Assumed
    """The body's values in a skipped step."""
    blanks: tuple[Access, ...] = ()
    """Writes that leave a carry alone in a skipped step: there they write what it began with."""
    dropped: tuple[Carry, ...] = ()
    """Carries that a skipped step changes: nothing reads what they are after the last step taken,
    nor does what skipped steps keep depend on them. Of `find_ends` only.
    """
    going: tuple[Carry, ...] = ()
    """Carries that a skipped step changes, which a loop of their own computes after the last step
    taken. Of `find_goings` only.
    """

    @property
    def kept(self) -> tuple[Carry, ...]:
        """Carries that a skipped step leaves alone."""
        changing = {c.param for c, _ in self.counters} | {c.param for c in self.going}
        return tuple(c for c in self.scan.carries if c.param not in changing)


@remembered
def find_skips(scan: Scan) -> tuple[Skip | str, ...]:
    """The ways in which a scan skips steps; a string says why a candidate predicate is none."""
    return tuple(each if _is_told(each) else _MIXED for each in _all_skips(scan))


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
    counters, counting, keeping = counted(scan)
    candidates = candidates_of(scan)
    if not candidates or not keeping or not all(map(may_keep, keeping)):
        return
    step = Assumable(scan.body, linear=carries_cotangents(scan))
    for predicate in candidates:
        for taken_when in (True, False):
            skipped = step.under({predicate: not taken_when})
            blanks = _blanks(scan, keeping, skipped)
            # Condition 1 of exit-loop-early, isolate-skipped-steps.
            if blanks is None:
                continue
            if is_of_numbers(predicate):
                yield "its predicate chooses elements by their numbers, not steps"
                break
            kind, ops = kind_of(scan, predicate, counting)
            if kind in ("carried", "upfront", "mixed"):
                yield Skip(scan, predicate, taken_when, kind, tuple(ops), counters, skipped, blanks)  # type: ignore[arg-type]
            else:
                yield kind
            break


@remembered
def find_ends(scan: Scan) -> tuple[Skip, ...]:
    """The first way in which a scan skips all steps after the last one taken, or, in reverse, all
    before the first one, whose predicates are then known upfront; but not those between. None if it
    skips steps.
    """
    if any(isinstance(each, Skip) for each in find_skips(scan)):
        return ()
    return tuple(islice(_ends(scan), 1))


def _ends(scan: Scan) -> Iterator[Skip]:
    counters, counting, keeping = counted(scan)
    candidates = candidates_of(scan)
    if not candidates:
        return
    # Condition 8 of exit-loop-early.
    began = dict(_numbers(keeping)) if scan.reverse else {}
    must = [c for c in keeping if scan.reverse or c.result.uses]
    if not all(c.param in began or may_keep(c) for c in must):
        return
    read = {stack.value for stack in scan.stacks if stack.result.uses}
    step = Assumable(scan.body, began, linear=carries_cotangents(scan))
    for predicate in candidates:
        for taken_when in (True, False):
            skipped = step.under({predicate: not taken_when})
            if not all(_stays(c, skipped, began.get(c.param), step.linear) for c in must):
                continue
            told = (known for value, known in skipped.told if value in read)
            if not must and not any(_is_dropped(known, scan) for known in told):
                continue  # a step stacks the same, taken or not
            kind, ops = kind_of(scan, predicate, counting)
            rest = () if scan.reverse else (c for c in keeping if not c.result.uses)
            lost = tuple(c for c in rest if not skipped.keeps(c))
            asked = {v for op in ops for v in inputs(op)} | {predicate}
            is_told = kind == "upfront" or (kind == "carried" and not scan.reverse)
            # Condition 8 of exit-loop-early.
            if is_told and not any(c.param in asked for c in lost) and not is_of_numbers(predicate):
                args = scan, predicate, taken_when, kind, tuple(ops), counters, skipped
                yield Skip(*args, dropped=lost)  # type: ignore[arg-type]
                break


def _is_dropped(known: Known, scan: Scan) -> bool:
    """Whether a skipped step makes a number of what others compute, or an outer value."""
    return isinstance(known, Splat) or not scan.body.defines(known)


def as_begun(scan: Scan, zeros: Iterable[Value]) -> tuple[Assumed, Counters]:
    """The body's values in a step in which carries, counters apart, are still the numbers that they
    began with, and some rows are zeros; and the counters.
    """
    counters, _, others = counted(scan)
    began = dict(_numbers(others))
    rows = {v: Splat(np.zeros((), v.dtype)[()]) for v in zeros}
    return Assumed(scan.body, {**began, **rows}, linear=carries_cotangents(scan)), counters


def all_taken(scan: Scan) -> Skip:
    """The steps of a loop that says of none that it is skipped: all are taken."""
    values, counters = as_begun(scan, ())
    always = Constant(compat.array_aval((), np.dtype(bool)), np.bool_(True))
    return Skip(scan, always, True, "upfront", (), counters, values)


def stays(scan: Scan, values: Assumed, counters: Iterable[tuple[Carry, Value]]) -> bool:
    """Whether carries, counters apart, are after such a step what they were before it."""
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


def _blanks(scan: Scan, keeping: Iterable[Carry], skipped: Assumed) -> tuple[Access, ...] | None:
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


def predicate_root(value: Value) -> Value:
    """The predicate that a mask is a broadcast or conversion of, or a comparison of with 0 or 1."""
    while (op := value.op) is not None:
        if op.name in _VIEWS or (op.name == "not" and value.dtype == bool):
            value = op.operands[0]
        elif (
            op.name in ("eq", "ne")
            and isinstance(op.operands[1], Constant)
            and op.operands[1].scalar in (0, 1)
        ):
            inner = predicate_root(op.operands[0])
            if inner.dtype != bool:
                return value
            value = inner
        elif (
            op.name == "clamp"
            and isinstance(op.operands[0], Constant)
            and isinstance(op.operands[2], Constant)
        ):
            inner = predicate_root(op.operands[1])
            if inner.dtype != bool:
                return value
            value = inner
        else:
            return value
    return value


def has_branch(skip: Skip) -> bool:
    """Whether each step has a branch on the predicate."""
    conds = (op for op in skip.scan.body.ops if isinstance(op, Cond))
    return any(predicate_root(op.selector) is skip.predicate for op in conds)


def candidates_of(scan: Scan) -> list[Value]:
    """Bools of the body that choose: selectors of its conds, masks of its selects, what it makes
    factors of; in this order. Then the truth values that these are made of by logic: ``or done (lt
    error bound)``.
    """
    kinds: tuple[dict[Value, None], ...] = ({}, {}, {})
    for op in scan.body.ops:
        kind = 0 if isinstance(op, Cond) else _CHOOSING.get(op.name)
        if (
            kind is None
            or len(op.regions) > 2
            or (kind == 2 and not dtypes.is_inexact(op.result.dtype))
        ):
            continue
        root = predicate_root(op.operands[0])
        if root.dtype == bool and root.region is scan.body and not isinstance(root, Constant):
            kinds[kind][root] = None
    found = kinds[0] | kinds[1] | kinds[2]
    return list(found | dict.fromkeys(_parts(scan, found)))


def _parts(scan: Scan, predicates: Iterable[Value]) -> Iterator[Value]:
    """The truth values of the body of which predicates are made by few levels of logic."""
    level = [*predicates]
    seen = set(level)
    for _ in range(limits.LEVELS_OF_A_PREDICATE):
        made_of: dict[Value, None] = {}
        for value in level:
            if value.op is None or value.op.name not in ("and", "not", "or"):
                continue
            parts = [v for v in value.op.operands if v.region is scan.body and v not in seen]
            roots = [v for v in map(predicate_root, parts) if v.region is scan.body]
            yield from (*parts, *(v for v in roots if v.dtype == bool))
            made_of |= dict.fromkeys(parts)
        level = [*made_of]
        seen.update(level)


def counted(scan: Scan) -> tuple[Counters, set[Value], list[Carry]]:
    """The counters of a loop, their parameters, and the other carries."""
    counters = tuple(_counters(scan))
    counting = {c.param for c, _ in counters}
    return counters, counting, [c for c in scan.carries if c.param not in counting]


def _counters(scan: Scan) -> Iterator[tuple[Carry, Value]]:
    """Integer carries whose next value is `param + step`, `step` from outside, computed
    unconditionally.
    """
    for carry in scan.carries:
        op = carry.next.op
        if op is None or op.name != "add" or op.region is not scan.body or carry.param.shape != ():
            continue
        if not dtypes.is_integer(carry.param.dtype):
            continue
        others = [v for v in op.operands if v is not carry.param]
        if len(others) == 1 and not scan.body.defines(others[0]):
            yield carry, others[0]


def is_of_numbers(predicate: Value) -> bool:
    """Whether a mask is made of the numbers of its elements, and else of those of steps alone."""
    if predicate.size == 1:
        return False
    ops = backward_slice([predicate], lambda v: affine(v) is not None)
    made = {result for op in ops for result in op.results}
    sources = [v for op in ops for v in inputs(op) if v not in made and not isinstance(v, Constant)]
    known = [affine(v) for v in sources]
    return all(known) and any(any(each.strides) for each in known if each is not None)


def kind_of(scan: Scan, predicate: Value, counting: set[Value]) -> tuple[str, list[Op]]:
    """When a predicate is known, or why it is none, and the ops of the body that compute it."""
    body = scan.body
    ops = backward_slice([predicate], lambda v: v.region is not body)
    # Condition 3 of exit-loop-early.
    if any(not is_speculable(op) for op in ops):
        return "its predicate has effects or may not end", ops
    reads = {v for op in ops for v in inputs(op)} | {predicate}
    params = {v for v in reads if v.owner is body}
    streams = {s.param for s in scan.streams}
    moving, kept = params & (streams | counting), params - streams - counting
    # Condition 2 of exit-loop-early.
    if moving and kept:
        return "mixed", ops
    if predicate.size > 1 and any(op.name in DRAWING for op in ops):
        return "each element of its predicate is drawn at random: one of them takes the step", ops
    # Condition 2 of exit-loop-early.
    # Condition 1 of count-steps.
    return ("upfront" if not kept else "carried"), ops
