"""Versions of a buffer that a loop carries and writes to, as its transposed loop needs them.

Each write of a step makes a version of the buffer. A loop that takes the steps in the opposite
order meets every version if it starts with the last one and undoes the writes, last first. The
versions that it reads then need no stack, nor do views of them: transposed, rounded, or rows
gathered at indices from outside the loop. `restored` are the values that need no stack for this
reason, `restorable` those of which the loop stacks what it computes of them and of others.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from jaxpr_opt.analysis.masks.selected_versions import is_stored_for_loop_back
from jaxpr_opt.analysis.residuals.counterparts import counterparts
from jaxpr_opt.analysis.residuals.walks import Walk, walks
from jaxpr_opt.analysis.steps.masks import steps_mask, takes_as_many
from jaxpr_opt.analysis.steps.skips import Skip, find_skip, find_skips
from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.analysis.values.expressions import same_expression
from jaxpr_opt.analysis.values.renaming import original
from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.analysis.windows.window_primitives import UPDATE, places
from jaxpr_opt.bridge.parameters import combiner_of
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Carry, Op, Scan, Stack, Value
from jaxpr_opt.ir.traits import is_arithmetic, is_data_movement
from jaxpr_opt.sizes import bytes_text

_History = tuple[tuple[Op, ...], dict[Value, int], str | None]


@dataclass(frozen=True, slots=True, eq=False)
class Versions:
    """The writes that make a carry in a step, last to first, and the stacks of versions of it."""

    scan: Scan
    carry: Carry
    writes: tuple[Op, ...]
    """The last one first."""
    stacks: Mapping[Stack, int]
    """How many writes come after each version that is stacked, or of which a view is."""
    views: Mapping[Stack, tuple[Op, ...]]
    """What makes that view of the version, first to last."""
    obstacle: str | None
    """What makes a version but is no write; those before it are not known."""

    @property
    def walks(self) -> tuple[Walk, ...] | str:
        """The loops that read the stacks; a string says why the writes cannot be undone there."""
        return walks(self.scan, self.carry, self.stacks, self.name)

    @property
    def name(self) -> str:
        return _name(self.carry)

    @property
    def numbers(self) -> tuple[Value, ...]:
        """The indices of the writes, and what views are made with, each once."""
        viewed = [v for ops in self.views.values() for op in ops for v in op.operands[1:]]
        return tuple(dict.fromkeys([*viewed, *(v for write in self.writes for v in places(write))]))

    @property
    def replaced(self) -> Any:
        """The number that every overwritten element is known to be; None if that is unknown."""
        if len(self.writes) != 1 or self.carry.init.nbytes == 0:
            return None
        found = access(self.writes[0])
        extents = found.window if found is not None else ()
        starts = [(e.start.steps.get(self.scan, 0), e.size) for e in extents if e.start]
        # Condition 1 of undo-carried-writes.
        return uniform(self.carry.init) if any(abs(k) >= n for k, n in starts) else None

    def why_not_undone(self, old: int | None = None) -> str | None:
        """Why the writes cannot be undone, or why nothing would be gained if the loop no longer
        stacks `old` bytes: by default those of all the stacks.
        """
        # Condition 1 of undo-carried-writes.
        if self.obstacle is not None:
            return self.obstacle
        found = self.walks
        if isinstance(found, str):
            return found
        guards = [(walk, self.guard(walk)) for walk in found]
        # Condition 4 of undo-carried-writes.
        if not all(skip is None or self._is_kept(skip, walk) for walk, skip in guards):
            return f"the loop that reads {self.name} skips steps that may write to it"
        return self._too_large(found, old)

    def guard(self, walk: Walk) -> Skip | None:
        """How a loop skips steps, if those are known to be the first or the last ones."""
        skip, made_by = find_skip(walk.reader), find_skip(self.scan)
        if skip is None:
            return None
        for_good = any(each is not None and each.kind == "carried" for each in (skip, made_by))
        return skip if for_good or steps_mask(skip) is not None else None

    def _is_kept(self, skip: Skip, walk: Walk) -> bool:
        """Whether the carry is as it was after a step that a reading loop skips."""
        made_by = find_skip(self.scan)
        if (
            made_by is not None
            and len(walk.pairs) == 1
            and takes_as_many(skip, made_by)
            and made_by.skipped.keeps(self.carry)
        ):
            return True
        found = counterparts(self.scan, walk.route, ())
        names = found.names if found is not None else {}
        renamed = {there: here for here, there in names.items()}
        return any(
            other.taken_when == skip.taken_when
            and other.skipped.keeps(self.carry)
            and same_expression(other.predicate, skip.predicate, renamed)
            for other in find_skips(self.scan)
            if isinstance(other, Skip)
        )

    def _too_large(self, found: Sequence[Walk], old: int | None) -> str | None:
        nest = max(found, key=lambda walk: len(walk.pairs))
        old = sum(s.result.nbytes for s in self.stacks) if old is None else old
        old *= prod(nest.lengths[1:])
        new, copied = self._stored(found)
        prices = cost_model()  # a buffer is copied; a step reads a window more, and one writes it
        undone = prices.stored(new) + prices.moved(copied)
        if old <= new or prices.stored(old) < undone:  # what is kept is read of versions, too
            parts = "the buffer and what is overwritten"
            return f"{bytes_text(old)} are stacked; {parts} take {bytes_text(new)}"
        return None

    def stored(self) -> int:
        """The bytes that a step stores, so that the writes can be undone."""
        found = self.walks
        assert not isinstance(found, str)
        return -(-self._stored(found)[0] // max(prod(walk.lengths) for walk in found))

    def _stored(self, found: Sequence[Walk]) -> tuple[int, int]:
        """The bytes that are stored in all, and those of buffers and windows."""
        scan, nest = self.scan, max(found, key=lambda walk: len(walk.pairs))
        there = {s.value for s in scan.stacks if s not in self.stacks} | {*scan.body.params}
        there -= {c.param for c in scan.carries}
        kept = self.writes if self.replaced is None else ()
        windows = sum(w.operands[UPDATE[w.name]].nbytes for w in kept) * prod(nest.lengths)
        numbers = sum(v.nbytes * nest.steps_with(v) for v in self.numbers if v not in there)
        buffers = self.carry.result.nbytes * (len(found) + max(walk.starts for walk in found))
        return buffers + windows + numbers, buffers + windows


def stacked_versions(scan: Scan) -> Iterator[Versions]:
    """The carries of which a loop stacks versions."""
    written = {_type(each.result) for each in scan.body.walk() if _is_write(each)}
    for carry in scan.carries:
        if carry.is_invariant or _type(carry.param) not in written:
            continue
        history = _history(scan, carry)
        found, narrow = (_stacked(scan, carry, history, windows) for windows in (False, True))
        # Where windows that a step chooses are read otherwise, or are little, they stay stacks.
        if narrow.stacks.keys() != found.stacks.keys() and narrow.why_not_undone() is None:
            yield narrow
        elif found.stacks:
            yield found


def _stacked(scan: Scan, carry: Carry, history: _History, windows: bool) -> Versions:
    """The versions of a carry that a loop stacks; also those of which it stacks `windows` that a
    step chooses.
    """
    writes, versions, obstacle = history
    views = {s: _view(s.value, versions, scan, windows) for s in scan.stacks if s.result.uses}
    found = {s: view for s, view in views.items() if view is not None}
    stacks = {s: versions[version] for s, (version, _) in found.items()}
    made = {s: ops for s, (_, ops) in found.items()}
    return Versions(scan, carry, writes, stacks, made, obstacle)


@remembered
def undoable(scan: Scan) -> Mapping[Value, int]:
    """The versions of carries that a step makes by writes alone, and the one that it starts with:
    the bytes that undoing the writes of a step takes, for each.
    """
    found: dict[Value, int] = {}
    for carry in scan.carries:
        if carry.is_invariant:
            continue
        writes, versions, _ = _history(scan, carry)
        # Condition 1 of undo-carried-writes.
        if writes:
            nbytes = sum(w.operands[UPDATE[w.name]].nbytes for w in writes)
            found.update(dict.fromkeys(versions, nbytes))
    return found


def is_stacked(version: Value) -> bool:
    """Whether a loop around stacks a value of its step."""
    loop = version.region.owner if version.region is not None else None
    stacks = loop.stacks if isinstance(loop, Scan) else []
    return any(original(each.value) is version and each.result.uses for each in stacks)


@remembered
def restored(scan: Scan) -> frozenset[Value]:
    """Values of a step that are stacked, and need not be, because the writes to a buffer can be
    undone.
    """
    undone = (each for each in stacked_versions(scan) if each.why_not_undone() is None)
    return frozenset(stack.value for each in undone for stack in each.stacks)


@remembered
def restorable(scan: Scan) -> Mapping[Value, int]:
    """Versions of carries of which a step computes, element by element, what it stacks: were they
    stacked instead, their writes could be undone. The bytes that a step then stores for each.
    """
    found: dict[Value, int] = {}
    for carry in scan.carries:
        writes, versions, _ = _history(scan, carry) if not carry.is_invariant else ((), {}, None)
        # Condition 1 of undo-carried-writes.
        read = _computed_of(scan, versions) if writes else {}
        stacks = {stack: versions[version] for stack, version in read.items()}
        would = Versions(scan, carry, writes, stacks, {}, None)
        old = carry.result.nbytes * scan.length * len(set(stacks.values()))
        if stacks and would.why_not_undone(old) is None:
            found.update(dict.fromkeys(read.values(), would.stored()))
    return found


def _computed_of(scan: Scan, versions: Mapping[Value, int]) -> Mapping[Stack, Value]:
    """Stacks of what is computed, element by element, of a version and of other arrays."""
    made: dict[Value, Value] = {}

    def version_of(value: Value) -> Value | None:
        return version if (version := original(value)) in versions else made.get(value)

    for op in scan.body.ops:
        if is_arithmetic(op):
            read = (version_of(v) for v in op.operands if v.size <= op.result.size)
            made.update((op.result, each) for each in read if each is not None)
    stacks = ((stack, version_of(stack.value)) for stack in scan.stacks if stack.result.uses)
    return {stack: version for stack, version in stacks if version is not None}


@remembered
def is_kept_in_rows(array: Value) -> bool:
    """Whether a loop has stacked an array, or what it is a row of, and nothing will restore it."""
    op, owner = array.op, array.region.owner if array.region is not None else None
    if isinstance(op, Scan):
        stack = op.stack_of(array)
        if stack is None or stack.value in restored(op):
            return False
        return not isinstance(stack.value.op, Scan) or is_kept_in_rows(stack.value)
    if op is not None:
        return is_data_movement(op) and any(map(is_kept_in_rows, op.operands))
    stream = owner.stream_of(array) if isinstance(owner, Scan) else None
    return stream is not None and is_kept_in_rows(stream.operand)


def is_undone(value: Value, stored: Value) -> bool:
    """Whether a loop back, for which the loop around stores one value, could have it as another
    one: a version of a carried buffer, or a view of one, if it undoes the writes.
    """
    scan = stored.op.parent if stored.op is not None else None
    if not isinstance(scan, Scan) or not is_stored_for_loop_back(stored):
        return False
    carries = (c for c in scan.carries if not c.is_invariant and c.param.dtype == value.dtype)
    histories = (_history(scan, carry) for carry in carries)
    return any(
        _view(value, versions, scan) is not None
        for _, versions, why_not in histories
        if why_not is None
    )


def _history(scan: Scan, carry: Carry) -> _History:
    """The writes from the version that leaves a step to the one that enters it, the versions with
    the number of writes that come after each, and what is no write.
    """
    writes: list[Op] = []
    version, versions = original(carry.next), {}
    while version is not carry.param:
        versions[version] = len(writes)
        op = version.op
        # Condition 1 of undo-carried-writes.
        if op is None or op.region is not scan.body or not _is_write(op):
            versions[carry.param] = len(writes)
            by = op.name if op is not None else "another value"
            return (), versions, f"{_name(carry)} is replaced by {by}, not written to"
        writes.append(op)
        version = original(op.operands[0])
    versions[carry.param] = len(writes)
    return tuple(writes), versions, None


def _name(carry: Carry) -> str:
    return carry.param.name or f"the carry {carry.param.type}"


def _view(
    value: Value, versions: Mapping[Value, int], scan: Scan, windows: bool = False
) -> tuple[Value, tuple[Op, ...]] | None:
    """The version that a value is, or is a view of, and what makes it of that; also of `windows`
    that a step chooses.
    """
    ops: list[Op] = []
    while (version := original(value)) not in versions:
        op = value.op
        # Condition 3 of undo-carried-writes.
        if op is None or not scan.body.contains(op.region):
            return None
        if not _makes_view(op, scan) and not (windows and _is_read(op)):
            return None
        ops.append(op)
        value = op.operands[0]
    return version, tuple(reversed(ops))


def _makes_view(op: Op, scan: Scan) -> bool:
    """Whether the first operand, and what is there outside of the loop or written to a window, give
    the result for no more work than reading it.
    """
    # Condition 3 of undo-carried-writes.
    if _is_write(op):
        return True
    # Condition 3 of undo-carried-writes.
    if not op.operands or not (is_arithmetic(op) or op.name == "gather"):
        return False
    # Condition 3 of undo-carried-writes.
    return not any(map(scan.body.defines, op.operands[1:]))


def _is_write(op: Op) -> bool:
    # Condition 1 of undo-carried-writes.
    if op.name not in UPDATE or (op.name == "scatter" and combiner_of(op)):
        return False
    return not is_sharded(op.result)


def _is_read(op: Op) -> bool:
    """Whether an op reads a window, wherever that is: its indices are stacked."""
    found = access(op)
    # Condition 3 of undo-carried-writes.
    return found is not None and found.kind == "read"


def _type(value: Value) -> tuple[Hashable, ...]:
    return value.shape, value.dtype
