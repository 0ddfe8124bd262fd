"""The work of a step that counts in some cases of a choice only: a `select` drops it in the others,
or a loop of cotangents multiplies it by zeros there.

The rest of the step may read that, and that what the rest makes of it: then it is divided into
layers, each of which is computed at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from jaxpr_opt.analysis.residuals.same_choices import asks_the_same
from jaxpr_opt.analysis.residuals.stack_consumers import Route, Rows, routes
from jaxpr_opt.analysis.residuals.unread_rows import acts
from jaxpr_opt.analysis.steps.assume import Assumed
from jaxpr_opt.analysis.steps.choices import Choice, choices_of
from jaxpr_opt.analysis.steps.computed import Computed, computed_in, inputs_in
from jaxpr_opt.analysis.steps.predicates import slice_of
from jaxpr_opt.analysis.steps.selected_work import reads_carried
from jaxpr_opt.analysis.steps.splats import same
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.cost import limits
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import depending_on, inputs
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Cond, Op, Scan, Stack, Value
from jaxpr_opt.ir.traits import is_broadcast


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Ops of a step that not all cases need."""

    ops: tuple[Op, ...]
    """In order; some that no case needs are replaced by what they select."""
    results: tuple[Value, ...]
    """What others read of them."""
    last: Op
    """The last of them, or what tells the case."""
    later: tuple[Op, ...]
    """Ops before that which read what they make, or what others make of that."""


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """What a step computes in each case."""

    choice: Choice
    layers: tuple[Layer, ...]
    computed: tuple[Computed, ...]
    """What each case computes, with the rest of the step."""

    @property
    def ops(self) -> list[Op]:
        """The ops of all layers."""
        return [op for layer in self.layers for op in layer.ops]

    @property
    def leaves_out(self) -> bool:
        """Whether some case leaves out what nothing reads of it."""
        results = [v for layer in self.layers for v in layer.results]
        return any(v not in each.known for each in self.computed for v in results)

    @property
    def divides(self) -> bool:
        """Whether several cases compute something that others do not."""
        runs = [set(each.ops).intersection(self.ops) for each in self.computed]
        return sum(any(run - other for other in runs) for run in runs) > 1


def divisions(choices: Iterable[Choice]) -> Iterator[Division]:
    """What steps compute by these choices, until so many ops were asked that others are not worth
    it any more.
    """
    walks = 0
    for choice in choices:
        walks += len(choice.cases)
        if walks > limits.WALKS:
            return
        yield division(choice)


def division(choice: Choice) -> Division:
    """The parts of a step that run in some cases only, as far as these are worth a branch."""
    body = choice.scan.body
    unread = [_unread(choice, case) for case in range(len(choice.cases))]
    copied = set[Value]()
    fixed = _fixed(choice, copied)
    while True:
        runs = [
            computed_in(body, known, [*_needed(choice, rows), *_read_by(fixed, known)], whole=False)
            for known, rows in zip(choice.cases, unread, strict=True)
        ]
        always = fixed | set.intersection(*(set(each.ops) for each in runs))
        found = list(_layers(choice, always))
        if more := set(_copied(found, choice)) - copied:
            copied |= more
            fixed |= _fixed(choice, copied)
            continue
        idle = [op for layer in found if not _is_worth(layer, choice, runs) for op in layer.ops]
        if not idle:
            return Division(choice, tuple(_with_known(found, runs)), tuple(runs))
        fixed.update(idle)


def _read_by(ops: Collection[Op], known: Assumed) -> Iterator[Value]:
    """What ops read in a case."""
    return (value for op in ops for value in inputs_in(op, known))


def _needed(choice: Choice, unread: Collection[Stack]) -> list[Value]:
    """What a step must compute if rows of these stacks may be anything."""
    carried = choice.scan.body.outputs[: choice.scan.num_carries]
    return [*carried, *(s.value for s in choice.scan.stacks if s not in unread)]


def _unread(choice: Choice, case: int) -> set[Stack]:
    """The stacks of which nothing reads the rows that steps of a case make."""
    return {stack for stack in choice.scan.stacks if _is_unread(stack, choice, case)}


def _is_unread(stack: Stack, choice: Choice, case: int) -> bool:
    ways = routes(stack.result, nests=True) if stack.result.uses else ()
    return ways is not None and all(_is_left_alone(row, way, choice, case) for way, row in ways)


def _is_left_alone(row: Value, route: Route, choice: Choice, case: int) -> bool:
    """Whether the loop at the end of a route makes nothing of a row of such a step: it reads the
    row in branches only, which it does not take there.
    """
    last = route[-1]
    assert isinstance(last, Rows)
    # Condition 3 of isolate-selected-work.
    if _is_acted_on(last.scan, row):
        return False
    # Condition 2 of isolate-selected-work.
    return any(
        asks_the_same(other, choice, route) and row not in _read(last.scan, other, case)
        for other in choices_of(last.scan)
    )


@remembered
def _is_acted_on(scan: Scan, row: Value) -> bool:
    """Whether it matters what a row holds, even if nothing comes of it."""
    return any(map(acts, depending_on({row}, scan.body.ops)))


@remembered
def _read(scan: Scan, choice: Choice, case: int) -> set[Value]:
    """What a step reads in a case, also of what it multiplies by zero."""
    body = scan.body
    known = Assumed(body, choice.facts[case])
    told = computed_in(body, known, body.outputs, whole=False).known.values()
    asked = {choice.asked, *(v for op in choice.slice for v in inputs(op))}
    return asked | {value for value in told if isinstance(value, Value)}


def _fixed(choice: Choice, copied: Collection[Value]) -> set[Op]:
    """The ops that run in each step: what tells the case; branches; numbers; and what writes
    windows of arrays, or reads those of carried ones, which XLA would copy for a branch. Not if one
    case leaves the array as it is: such a branch writes in place, but to arrays that are `copied`.
    """
    body = choice.scan.body
    found = [(op, access(op)) for op in body.ops]
    written = [each for _, each in found if each is not None and each.kind != "read"]
    left = {each.array for each in written if _leaves(each, choice)}.difference(copied)
    branches = [op for op in body.ops if isinstance(op, Cond)]
    fixed: set[Op] = {*choice.slice, *branches}
    fixed |= {each for op in branches for each in slice_of(choice.scan, op.selector)}
    fixed |= {op for op in body.ops if len(op.results) == 1 and uniform(op.result) is not None}
    fixed |= {each.op for each in written if each.array not in left}
    return fixed | {
        op for op, each in found if each and each.array not in left and reads_carried(op, body)
    }


def _copied(layers: Iterable[Layer], choice: Choice) -> Iterator[Value]:
    """The arrays that a branch would write to, and of which the rest of the step reads for more
    than to tell the case: as XLA need not read before the branch, it copies them.
    """
    body = choice.scan.body
    for layer in layers:
        inside = {*choice.slice, *layer.ops}
        for op in layer.ops:
            write = access(op)
            if write is None or write.kind == "read":
                continue
            told = depending_on({write.array}, choice.slice)
            read = {write.array, *(v for each in told for v in each.results)} - {choice.asked}
            if any(body.ancestor(user) not in inside for value in read for user in value.users):
                yield write.array


def _leaves(write: Access, choice: Choice) -> bool:
    """Whether the first of two cases leaves an array as it is."""
    first = choice.cases[0]
    array, made = first[write.array], first[write.op.result]
    return len(choice.cases) == 2 and same(array, made)


def _layers(choice: Choice, always: Collection[Op]) -> Iterator[Layer]:
    """The ops that do not always run, by how often others come between them."""
    body, levels, places = choice.scan.body, dict[Op, int](), dict[Op, int]()
    for place, op in enumerate(body.ops):
        makers = (v.op for v in inputs(op) if v.op is not None and v.op.region is body)
        found = [levels[m] + (m not in always and op in always) for m in makers]
        levels[op], places[op] = max(found, default=0), place
    layers: dict[int, list[Op]] = {}
    for op, level in levels.items():
        if op not in always and not op.is_terminator:
            layers.setdefault(level, []).append(op)
    for level, ops in sorted(layers.items()):
        told = [op for op in (choice.asked.op,) if op in places]
        last, own = max([ops[-1], *told], key=places.__getitem__), set(ops)
        results = (v for op in ops for v in op.results)
        read = (v for v in results if any(body.ancestor(user) not in own for user in v.users))
        later = (op for op, place in places.items() if place < places[last] and levels[op] > level)
        yield Layer(tuple(ops), tuple(read), last, tuple(later))


def _with_known(layers: Sequence[Layer], runs: Sequence[Computed]) -> Iterator[Layer]:
    """The layers, with the results that others read in place of what they are in some case."""
    read = [{*layer.results, *(v for op in layer.ops for v in inputs(op))} for layer in layers]
    for place, layer in enumerate(layers):
        told = (run.known.get(v) for run in runs for values in read[place + 1 :] for v in values)
        later = {v for v in told if isinstance(v, Value)}
        own = [v for op in layer.ops for v in op.results if v in later and v not in layer.results]
        yield replace(layer, results=(*layer.results, *own))


def _is_worth(layer: Layer, choice: Choice, runs: Sequence[Computed]) -> bool:
    """Whether ops that the shortest case leaves out take longer than to ask, and to write what
    others read.
    """
    model, needed = cost_model(), [set(run.ops) for run in runs]
    each = [[op for op in layer.ops if op in ops] for ops in needed]
    least = min(each, key=lambda ops: max(model.run(ops), model.repeated(ops)) if ops else 0.0)
    kept = set(least)
    dropped = [op for op in layer.ops if op not in kept and any(op in ops for ops in needed)]
    written = (v for v in layer.results if not _is_in_place(v, choice, runs))
    nbytes = sum(value.nbytes for value in written)
    is_work = not all(is_broadcast(op) or op.name == "select_n" for op in dropped)
    return is_work and model.is_worth_asking(dropped, choice.asked, nbytes)


def _is_in_place(result: Value, choice: Choice, runs: Sequence[Computed]) -> bool:
    """Whether a branch writes no array for a result: a row that nobody reads, what is carried, or a
    window of an array.
    """
    is_carried = any(carry.next is result for carry in choice.scan.carries)
    write = access(result.op) if result.op is not None else None
    is_written = write is not None and write.kind != "read"
    return is_carried or is_written or any(result not in run.known for run in runs)
