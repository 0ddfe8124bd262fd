"""The choices of a step with which it does nothing, where no truth value says so by itself.

Examples are a state machine of which some states rest, ``switch(state, [fall, slide, rest], x)``;
``where(s == 0, f(x), where(s == 1, g(x), x))``; two states that each rest; and a `cond` in a case
of a switch.  A carry that would change is followed to what chooses its next value.  Each choice is
tried, until all carries are kept, or made a number that is the same from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import islice

from jaxpr_opt.analysis.steps.assume import Assumed, may_keep, same_number
from jaxpr_opt.analysis.steps.incremental_assume import Assumable
from jaxpr_opt.analysis.steps.predicates import counted, is_kind, is_of_numbers, kind_of, slice_of
from jaxpr_opt.analysis.steps.skips import Skip, blanks, find_skip
from jaxpr_opt.analysis.steps.splats import RULES, Splat
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.flags import is_question
from jaxpr_opt.analysis.values.induction import bounds, decide
from jaxpr_opt.analysis.values.linearity import carries_cotangents
from jaxpr_opt.analysis.values.truths import numbers_if
from jaxpr_opt.analysis.windows.window_primitives import INDEXED_WRITES, WRITES
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.dataflow import inputs
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Carry, Cond, Constant, Op, Scan, Value
from jaxpr_opt.ir.traits import BARRIER, ELEMENTWISE, LAYING, PICKING

Fact = bool | frozenset[int]
"""What a truth value is, or the numbers of which an integer is one."""
ChoiceFacts = Mapping[Value, Fact]

_PASSING = {*RULES, *INDEXED_WRITES, *WRITES, BARRIER}
"""Ops that may make what an operand is, if it is known what others are."""


@dataclass(frozen=True, slots=True)
class Idle:
    """Choices with which a step does nothing, and how the loop then skips steps: by the last of
    them in the step.
    """

    facts: ChoiceFacts
    skip: Skip


@remembered
def find_idle(scan: Scan) -> Idle | None:
    """Choices with which a step does nothing, if no predicate says that it is skipped."""
    counters, _, keeping = counted(scan)
    if not keeping or not all(map(may_keep, keeping)) or find_skip(scan) is not None:
        return None
    search = _Search(scan, keeping)
    found = list(search.all())
    if not found:
        return None
    facts = search.joined(found)
    last = max(facts, key=lambda v: -1 if v.op is None else scan.body.order(v.op))
    kind = kind_of(scan, *facts)
    ops = {op: None for value in facts for op in slice_of(scan, value)}
    if not is_kind(kind):  # though that of each of them is
        return None
    skipped = search.step.under(facts)
    return Idle(facts, Skip(scan, last, counters, skipped, kind=kind, slice=tuple(ops)))


class _Search:
    """The facts under which a step keeps some carries."""

    def __init__(self, scan: Scan, keeping: list[Carry]) -> None:
        self._scan, self._keeping = scan, keeping
        self._is_linear = carries_cotangents(scan)
        self.step = Assumable(scan.body, linear=self._is_linear)

    def all(self) -> Iterator[ChoiceFacts]:
        """Facts of which each is needed, with one number of each integer."""
        pending: list[ChoiceFacts] = [{}]
        found: list[ChoiceFacts] = []
        seen: set[frozenset[tuple[Value, Fact]]] = set()
        while pending and len(seen) < limits.CHOICES_OF_A_STEP and not self.step.is_worn:
            facts = pending.pop()
            if frozenset(facts.items()) in seen:
                continue
            seen.add(frozenset(facts.items()))
            choices = self._choices(facts)
            if choices is None:
                least = self._least(facts)
                if least not in found and self._is_told(least):
                    found.append(least)
                    yield least
            elif len(facts) < limits.FACTS_OF_A_SKIP:
                pending += [{**facts, value: fact} for value, fact in reversed(choices)]

    def joined(self, found: list[ChoiceFacts]) -> ChoiceFacts:
        """What is found first, with all numbers that are found beside, if any of them will do."""
        first = found[0]
        alike = [each for each in found if _truths(each) == _truths(first)]
        every = {value: _union(fact, value, alike) for value, fact in first.items()}
        return every if len(alike) > 1 and self._choices(every) is None else first

    def _choices(self, facts: ChoiceFacts) -> list[tuple[Value, Fact]] | None:
        """What may be known, too, for one more carry to be kept; None if all are."""
        known = self.step.under(facts)
        asked = {v for value in facts for op in slice_of(self._scan, value) for v in inputs(op)}
        asked |= facts.keys()
        changed = [c for c in self._keeping if blanks(self._scan, [c], known) is None]
        kept = {c.param for c in self._keeping}.difference(c.param for c in changed)
        lost = [c for c in changed if c.param in asked or not self._settles(c, known, kept)]
        ways = [list(self._ways(c, known)) for c in lost]
        if self._is_linear:  # what sums up products stays as it is if cotangents are zeros
            told = [[way for way in each if _is_said_forward(self._scan, *way)] for each in ways]
            ways = [each for each in told if each] or ways
        return min(ways, key=len) if lost else None

    def _settles(self, carry: Carry, known: Assumed, kept: Set[Value]) -> bool:
        """Whether all skipped steps make the same of a carry, of what they keep."""
        made = known[carry.next]
        if self._scan.reverse or isinstance(made, Splat):
            return not self._scan.reverse
        return not self._scan.body.defines(made) or made in kept

    def _ways(self, carry: Carry, known: Assumed) -> Iterator[tuple[Value, Fact]]:
        """What may be known for a carry to be kept."""
        begun, made = known[carry.param], known[carry.next]
        if isinstance(made, Splat):
            if isinstance(begun, Value) and dtypes.is_integral(begun.dtype):
                yield from self._root(carry.param, int(made.value))
            return
        if carry.param.dtype == bool and isinstance(begun, Value):
            yield from self._root(carry.param, False)
            yield from self._root(carry.param, True)
        pending = [made]
        for value in islice(pending, limits.TERMS_OF_A_SUM):
            op = value.op
            if op is None:
                continue
            count = len(op.branches) if isinstance(op, Cond) else len(op.operands) - 1
            if isinstance(op, Cond) or op.name == "select_n":
                if isinstance(asked := known[op.operands[0]], Value):
                    for number in range(count):
                        yield from self._root(asked, number)
            elif op.name in _PASSING:
                told = (known[v] for v in op.operands)
                pending += [v for v in told if isinstance(v, Value) and v not in pending]

    def _root(self, value: Value, number: int) -> Iterator[tuple[Value, Fact]]:
        """What tells that a value is some number, if the step computes it."""
        while (op := value.op) is not None:
            inner = same_number(value, (number,))
            if op.name == "clamp" and not self._is_cut(op, number):
                inner = op.operands[1]
            if value.dtype == bool and op.name in {"not", *LAYING}:
                inner, number = op.operands[0], number ^ (op.name == "not")
            elif op.name == "convert_element_type" and op.operands[0].dtype == bool:
                inner = op.operands[0]
            elif op.name == ("eq" if number else "ne") and value.dtype == bool:
                told = numbers_if(value, bool(number))
                if told is not None:
                    inner, (number,) = told
            if inner is None:
                break
            value = inner
        if value.region is self._scan.body and not isinstance(value, Constant):
            yield value, bool(number) if value.dtype == bool else frozenset({number})

    @staticmethod
    def _is_cut(clamp: Op, number: int) -> bool:
        least, _, most = map(uniform, clamp.operands)
        return least is None or most is None or not least <= number <= most

    def _least(self, facts: ChoiceFacts) -> ChoiceFacts:
        """As few of the facts as a step that does nothing needs."""
        for value in facts:
            others = {other: fact for other, fact in facts.items() if other is not value}
            if self._choices(others) is None:
                return self._least(others)
        return facts

    def _is_told(self, facts: ChoiceFacts) -> bool:
        """Whether it is known before the loop, or once, whether later steps do nothing."""
        if not facts or kind_of(self._scan, *facts) not in ("carried", "upfront"):
            return False
        if [*map(type, facts.values())] == [bool]:
            return False  # it would be asked by itself, which is no question
        if any(map(_marks_rows, facts)):
            return False
        return not any(_is_asked(v) or _is_known(v, facts[v]) or is_of_numbers(v) for v in facts)


def _is_said_forward(scan: Scan, value: Value, fact: Fact) -> bool:
    """Whether a row of a transposed loop is so in skipped steps of the loop that stacked it: of
    rows that no such step has, two may exclude each other.
    """
    stream = scan.stream_of(value)
    loop = stream.operand.op if stream is not None else None
    stack = loop.stack_of(stream.operand) if stream is not None and isinstance(loop, Scan) else None
    skip = find_skip(loop) if isinstance(loop, Scan) else None
    if stack is None or skip is None:
        return False
    known = skip.skipped[stack.value]
    return isinstance(known, Splat) and isinstance(fact, bool) and bool(known.value) == fact


def _marks_rows(value: Value) -> bool:
    """Whether a mask says where a step writes rows, as it does in each, for all that is known: then
    `update-states` changes these.
    """
    for _ in range(limits.OPS_OF_A_ROW):
        op = value.op
        if op is None or op.name in INDEXED_WRITES:
            return op is not None and uniform(op.operands[0]) == 0 and op.operands[1].size > 0
        others = [v for v in op.operands if uniform(v) is None]
        if op.name not in ELEMENTWISE | LAYING | PICKING or len(others) != 1:
            return False
        value = others[0]
    return False


def _is_asked(value: Value) -> bool:
    """Whether a value has been asked about."""
    return is_question(value) or any(is_question(v) for op in value.users for v in op.results)


def _is_known(value: Value, fact: Fact) -> bool:
    """Whether it is known in each step whether a fact holds: a question would be no question."""
    if isinstance(fact, bool):
        return decide(value) is not None
    known = bounds(value)
    return known is not None and not all(known[0] <= n <= known[1] != known[0] for n in fact)


def _truths(facts: ChoiceFacts) -> ChoiceFacts:
    return {v: fact if isinstance(fact, bool) else frozenset() for v, fact in facts.items()}


def _union(fact: Fact, value: Value, alike: list[ChoiceFacts]) -> Fact:
    numbers = [each[value] for each in alike]
    return fact if isinstance(fact, bool) else frozenset().union(*numbers)  # type: ignore[arg-type]
