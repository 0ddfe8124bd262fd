"""Ops of a step that the readers of its residuals may compute again, and what that takes.

`REPEATED` is a table of kinds of ops, each with its price; the first that knows an op decides. An
op of no kind is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf

from jaxpr_opt.analysis.residuals.cuts import known_to_readers, residuals
from jaxpr_opt.analysis.residuals.shifted_reads import times_read
from jaxpr_opt.analysis.residuals.stack_consumers import Route, paired, routes
from jaxpr_opt.analysis.residuals.suppliers import stored_bytes
from jaxpr_opt.analysis.residuals.versions import restored, undoable
from jaxpr_opt.analysis.steps.skips import find_skip
from jaxpr_opt.analysis.values.renaming import original
from jaxpr_opt.analysis.values.rounding import is_discontinuous, rounded
from jaxpr_opt.analysis.windows.window_primitives import windows_read
from jaxpr_opt.bridge.parameters import broadcast_dimensions_of, permutation_of, strides_of
from jaxpr_opt.cost.fusion import PUT_TOGETHER
from jaxpr_opt.cost.model import CostModel, cost_model
from jaxpr_opt.cost.ops import cost
from jaxpr_opt.ir.graph import Cond, Constant, Op, Scan, Value
from jaxpr_opt.ir.nesting import program_of
from jaxpr_opt.ir.traits import is_arithmetic, is_broadcast, is_speculable

WINDOW_READS = frozenset({"dynamic_slice", "gather"})
"""Primitives that read windows."""


@dataclass(frozen=True, slots=True)
class StepPrices:
    """What the prices of repeated ops depend on."""

    model: CostModel
    stacked: int
    """Bytes of all stacks: how far away memory is."""
    restored: Set[Value]
    """Versions of buffers that the readers have, as writes are undone."""
    spread: Set[Value]
    """What is repeated along axes of what is made of it."""
    times: Mapping[Value, float]
    """How often each element of a value is computed, where its neighbours are read, too."""
    mixed: Set[Value]
    """What is put together of arrays, and combined with others of the kind in one residual."""
    places: Mapping[Value, Value]
    """What ops make that read in another order, and the largest array that is combined with it: all
    of that is computed number by number."""
    long_rows: Set[Op]
    """What makes rows as long as a restored buffer, or is made of such rows in linear time."""
    windows: Mapping[Op, int]
    """Reads of windows of arrays that the readers have, and of how many."""
    fetched: Set[Op]
    """Those of them that read versions of a buffer of the loop around: if its loop back stores
    each, its writes can be undone."""
    unstable: Set[Op]
    """What must not be repeated, as it may be rounded otherwise, where that makes a difference."""
    skips: bool
    """Whether the loop skips steps."""
    one_by_one: bool
    """Whether such loops are functions, which compute some functions number by number."""


def step_of(scan: Scan) -> StepPrices:
    """The facts of a step on which the prices of its ops depend."""
    whole, fetched = restored(scan), _fetched(scan)
    return StepPrices(
        model=cost_model(),
        stacked=stacked_bytes(scan),
        restored=whole,
        spread=_spread(scan),
        times=times_read(scan),
        mixed=_mixed(scan) if cost_model().device.mixes_by_places else frozenset(),
        places=_places(scan) if cost_model().device.mixes_by_places else {},
        long_rows=_long_rows(scan, whole),
        windows=_windows(scan) | {op: windows_read(op) for op in fetched},
        fetched=fetched,
        unstable=_unstable(scan),
        skips=find_skip(scan) is not None,
        one_by_one=cost_model().makes_whole(scan),
    )


def stacked_bytes(scan: Scan) -> int:
    """Bytes of all that a loop stacks."""
    return sum(stack.result.nbytes for stack in scan.stacks)


def _rounded_otherwise(step: StepPrices, op: Op) -> float | None:
    # Condition 3 of narrow-residuals.
    return inf if op in step.unstable else None


def _fused(step: StepPrices, op: Op) -> float | None:
    """Basic arithmetic and movement: the reader computes it element by element."""
    # Condition 2 of narrow-residuals.
    if not is_arithmetic(op):
        return None
    made = op.results[0]
    is_short = len(made.shape) > 1 and step.model.is_short(made.shape[-1])
    if is_short and (_is_of_pairs(op) or _repeats_numbers(op)):
        return step.model.by_places(made)
    times = step.times.get(made, 1.0)
    is_alone = made in step.spread or times > 1
    if made in step.places:
        return times * step.model.by_places(step.places[made])
    seconds = (step.model.one_by_one if is_alone else step.model.elementwise)(made)
    return times * (seconds + step.model.slow(op))


def _is_of_pairs(op: Op) -> bool:
    """Whether an op combines rows of one array with rows of another, each with several, as in
    ``x[:, None] - y``.
    """
    made = op.results[0]
    return sum(_repeats_rows(v, made) for v in op.operands) > 1


def _repeats_numbers(op: Op) -> bool:
    """Whether an op computes with each number of a row of one array and one number for the row, as
    in ``x + t[:, None] * d``; not with one row for all, as in ``x - y[None]``.
    """
    made = op.results[0]
    if is_broadcast(op) or op.name == "select_n":
        return False
    sources = [_repeated(v) or v for v in op.operands]
    is_one_a_row = any(_is_one_a_row(v, made) for v in op.operands)
    return is_one_a_row and any(source.size == made.size for source in sources)


def _is_one_a_row(value: Value, made: Value) -> bool:
    """Whether a value has one number for each row of what is made of it, repeated along the row."""
    if value.shape[-1:] == (1,):
        return 1 < value.size < made.size
    source, op = _repeated(value), value.op
    if source is None or op is None:
        return False
    dims, last = broadcast_dimensions_of(op), len(value.shape) - 1
    is_along = last in dims and source.shape[dims.index(last)] > 1
    return source.size > 1 and not is_along


def _repeated(value: Value) -> Value | None:
    """What a broadcast repeats to make a value."""
    op = value.op
    return op.operands[0] if op is not None and op.name == "broadcast_in_dim" else None


def _repeats_rows(value: Value, made: Value) -> bool:
    """Whether rows of an array are repeated in what is made of it."""
    if value.size == made.size and value.op is not None and is_broadcast(value.op):
        value = next(iter(value.op.operands), value)
    return value.size < made.size and value.shape[-1:] == made.shape[-1:]


def _read_again(step: StepPrices, op: Op) -> float | None:
    count = step.windows.get(op)
    return None if count is None else step.model.read_again(op, count)


def _attention(step: StepPrices, op: Op) -> float | None:
    """Rows as long as a buffer: the reader multiplies with the buffer itself."""
    if op not in step.long_rows:
        return None
    read = sum(v.nbytes for v in op.operands if v not in step.restored)
    return step.model.streamed(_made(op) + read)


def _put_together(step: StepPrices, op: Op) -> float | None:
    """Arrays beside each other, and padding: each element is a choice of where it comes from."""
    # Condition 2 of narrow-residuals.
    if op.name not in PUT_TOGETHER:
        return None
    made = op.result
    return (step.model.by_places if made in step.mixed else step.model.one_by_one)(made)


def _by_itself(step: StepPrices, op: Op) -> float | None:
    """Anything that is cheaper to compute than to load, where memory is far or has a price."""
    priced = step.model.byte > 0
    if step.skips or not (priced or step.model.is_far(step.stacked)):
        return None
    # Condition 2 of narrow-residuals.
    is_repeatable = is_speculable(op) and (step.model.has_price or not op.regions)
    if not is_repeatable:
        return None
    return step.model.repeated_apart(op, one_by_one=step.one_by_one)


REPEATED: tuple[Callable[[StepPrices, Op], float | None], ...] = (
    _rounded_otherwise,
    _fused,
    _read_again,
    _attention,
    _put_together,
    _by_itself,
)
"""Kinds of ops: the seconds of computing one again, infinite for never; None for another kind."""


def repeated_seconds(step: StepPrices, op: Op) -> float:
    """The seconds that computing an op again takes; infinite if it may not, or should not, be."""
    answers = (kind(step, op) for kind in REPEATED)
    return next((seconds for seconds in answers if seconds is not None), inf)


def _made(op: Op) -> int:
    return sum(v.nbytes for v in op.results)


def _repeatable(scan: Scan) -> Iterator[Op]:
    """The ops of a step, and of the branches in it."""
    regions = [scan.body]
    while regions:
        for op in regions.pop().ops:
            yield op
            regions += op.branches if isinstance(op, Cond) else ()


def _unstable(scan: Scan) -> Set[Op]:
    """Ops that jump where what they read is rounded otherwise; or what makes it, if the readers
    have that anyway.
    """
    kept = {value for value, nbytes in stored_bytes(scan).items() if nbytes == 0}
    kept |= known_to_readers(scan, residuals(scan, nests=True))
    found: set[Op] = set()
    for op in filter(is_discontinuous, _repeatable(scan)):
        sources = rounded(op.operands, scan.body)
        makers = {v.op for v in sources if v.op is not None}
        found |= {op} if sources - kept else makers
    return found


def _spread(scan: Scan) -> Set[Value]:
    """Arrays that residuals are made of by basic arithmetic and by repeating them along some axes:
    XLA computes them where they are repeated.
    """
    found: set[Value] = set()
    pending = [(value, False) for _, value in residuals(scan, nests=True)]
    seen = set(pending)
    while pending:
        value, is_spread = pending.pop()
        if is_spread and value.size > 1:
            found.add(value)
        if value.op is None or value.region is not scan.body or not is_arithmetic(value.op):
            continue
        repeats = value.op.name == "broadcast_in_dim"
        for each in value.op.operands:
            state = each, is_spread or (repeats and each.size < value.size)
            if state not in seen:
                seen.add(state)
                pending.append(state)
    return found


def _mixed(scan: Scan) -> Set[Value]:
    """Arrays put together of others, several of which one residual is made of by basic arithmetic,
    as the sum of a field's neighbours is.
    """
    if not any(op.name in PUT_TOGETHER for op in scan.body.ops):
        return frozenset()
    parts: dict[Value, Set[Value]] = {}
    for op in scan.body.ops:
        if op.name in PUT_TOGETHER:
            parts[op.result] = {op.result}
        elif is_arithmetic(op):
            parts[op.result] = set[Value]().union(*(parts.get(v, ()) for v in op.operands))
    made = (parts.get(value, frozenset()) for _, value in residuals(scan, nests=True))
    return set[Value]().union(*(each for each in made if len(each) > 1))


def _places(scan: Scan) -> dict[Value, Value]:
    """The largest array that is combined with each that an op makes by reading in another order, in
    the step and where its rows are read.
    """
    found = [op.result for op in scan.body.ops if _is_in_another_order(op)]
    stacks = {value: stack.result for stack, value in residuals(scan, nests=True) if found}
    return {made: _largest([made, *_rows(stacks.get(made))]) for made in found}


def _rows(stack: Value | None) -> Iterator[Value]:
    return (row for _, row in (routes(stack, nests=True) or () if stack is not None else ()))


def _largest(values: Sequence[Value]) -> Value:
    """The largest of some arrays, what is made of them by basic arithmetic, and where they are
    repeated.
    """
    pending, largest = [*values], values[0]
    while pending:
        for op in filter(is_arithmetic, pending.pop().users):
            largest = max(largest, op.result, key=lambda value: value.size)
            pending += op.results if is_broadcast(op) else ()
    return largest


def _is_in_another_order(op: Op) -> bool:
    """Whether an op reads numbers that do not lie beside each other, or backwards."""
    if op.name == "slice":
        return not set(strides_of(op)) <= {1}
    if op.name == "transpose":
        return permutation_of(op)[-1] != len(op.result.shape) - 1
    return op.name == "rev"


def _long_rows(scan: Scan, whole: Set[Value]) -> Set[Op]:
    """The ops that multiply with a restored buffer, and what is made of that in linear time."""
    found: set[Op] = set()
    made: set[Value] = set()
    for op in scan.body.ops if whole else ():
        # Condition 2 of narrow-residuals.
        if op.regions or op.is_terminator or not is_speculable(op):
            continue
        if _multiplies(op, whole, scan) or (_is_linear(op) and not made.isdisjoint(op.operands)):
            found.add(op)
            made.update(op.results)
    return found


def _windows(scan: Scan) -> dict[Op, int]:
    """Reads of windows of arrays that are as large as the program's arguments, or no larger than
    all rows that a loop would store of them.
    """
    return {
        op: windows_read(op)
        for op in _repeatable(scan)
        if op.name in WINDOW_READS
        and _is_at_hand(op.operands[0], op.result.nbytes * scan.length, scan)
    }


def _fetched(scan: Scan) -> Set[Op]:
    """Reads of windows of a buffer that the loop around writes to, where the buffer, and what its
    writes replace, are much less than the rows that the inner loop would store in all steps.
    """
    around = scan.parent
    if not isinstance(around, Scan) or scan.region is not around.body:
        return frozenset()
    reads = [op for op in scan.body.ops if op.name in WINDOW_READS]
    versions = undoable(around) if reads else {}
    found = set()
    for op in reads:
        array, rows = op.operands[0], op.result.nbytes * scan.length
        replaced = versions.get(original(array))
        if replaced is None or array.nbytes > rows or any(map(around.body.defines, _outer(op))):
            continue
        held = replaced * around.length + 2 * array.nbytes  # the last version, and one walked back
        if not cost_model().is_most(held, rows * around.length):
            found.add(op)
    return found if found and _is_walked_back(scan, around) else frozenset()


def _outer(read: Op) -> Iterable[Value]:
    """The operands that say where a window is and that the step which reads it does not compute."""
    region = read.region
    return (v for v in read.operands[1:] if region is None or not region.defines(v))


def _is_walked_back(scan: Scan, around: Scan) -> bool:
    """Whether loops read all residuals whose loops around take the steps in the opposite order."""
    ways = [way for stack, _ in residuals(scan, nests=True) for way in _ways(stack.result)]
    pairs = [paired(scan, way) for way in ways]
    return all(
        each is not None
        and len(each) > 1
        and each[1][0] is around
        and each[1][1].reverse != around.reverse
        and find_skip(each[1][1]) is None
        for each in pairs
    )


def _ways(stack: Value) -> Iterator[Route]:
    return (way for way, _ in routes(stack, nests=True) or ())


def _is_at_hand(array: Value, rows: int, scan: Scan) -> bool:
    """Whether an array is there for all that reads residuals, at no more memory than its rows."""
    program = program_of(scan)
    is_argument = array.op is None and program is not None and array.region is program.body
    return isinstance(array, Constant) or is_argument or array.nbytes <= rows


def _multiplies(op: Op, whole: Set[Value], scan: Scan) -> bool:
    """Whether rows come of a buffer for no more work than the readers do with it anyway."""
    buffers, is_longer = [v for v in op.operands if v in whole], cost_model().is_longer
    others = sum(v.nbytes for v in op.operands if v not in whole)
    if len(buffers) != 1 or not is_longer(others, sum(v.nbytes for v in op.results)):
        return False
    if is_longer(max(buffers[0].shape), scan.length):
        return False
    stacks = [stack.result for stack in scan.stacks if stack.value is buffers[0]]
    read = [row.users for stack in stacks for _, row in routes(stack, nests=True) or ()]
    least, most = buffers[0].size, min(map(_work, read))
    return least <= _work([op]) <= most


def _is_linear(op: Op) -> bool:
    return _work([op]) <= sum(v.size for v in op.operands)


def _work(ops: Iterable[Op]) -> float:
    """Floating point operations; infinite if not known."""
    flops = [cost(op).flops for op in ops]
    return sum(inf if each is None else each for each in flops)
