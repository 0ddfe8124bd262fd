"""Arrays that no op needs as a whole: windows of them, at known places, are all that is read.

Straight-line code writes rows of an array and reads others, ``x = x.at[t].set(f(x[t - 1]))`` in a
Python loop, or appends rows.  Each op makes a *version* of the array, from others or from what is
needed anyway.  If all that reads a version reads a window at a known place, or makes a version of
which that holds, the windows can be computed one by one, and the array need not be made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.analysis.windows.boxes import Box, Boxes, box_of, whole
from jaxpr_opt.analysis.windows.window_primitives import WRITES
from jaxpr_opt.bridge.parameters import (
    broadcast_dimensions_of,
    dimension_of,
    is_in_order,
    padding_of,
    permutation_of,
    sizes_of,
)
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.devices import is_sharded
from jaxpr_opt.ir.facts import memory, remembered
from jaxpr_opt.ir.graph import Op, Value, is_sized
from jaxpr_opt.ir.traits import ELEMENTWISE

SLICING = frozenset({"dynamic_slice", "slice", "split", "unstack"})
"""Reads of windows with the axes of the array, but for some of one element."""

Parts = Iterator[tuple[int, Box]]
"""The place of an operand, and a window of it."""


@dataclass(frozen=True, slots=True, eq=False)
class TakenApart:
    """Versions of an array that are not needed as a whole."""

    ops: tuple[Op, ...]
    """What makes versions or reads windows of them, in order."""
    versions: tuple[Value, ...]
    reads: tuple[Value, ...]
    """What is read, and is no version."""
    needed: dict[Value, Boxes] = field(default_factory=dict)
    """The windows that are needed of each version."""

    @property
    def written(self) -> list[int]:
        """Bytes that ops write: of windows, those.  What is broadcast is not made."""
        versions = [
            v.op for v in self.versions if v.op is not None and v.op.name not in _WINDOW_MOVES
        ]
        made = ((op, access(op)) for op in versions)
        return [op.result.nbytes if found is None else found.nbytes for op, found in made]


def taken_apart(read: Op) -> TakenApart | None:
    """The versions of the array that an op reads, if none of them is needed as a whole, and some of
    them are put together of windows; None for all reads of them but the first.
    """
    known = memory(read, taken_apart)
    if read not in known:
        found, ops = _versions(read)
        known.update(dict.fromkeys(ops))
        if found is not None:
            known[next(op for op in found.ops if is_read(op))] = found
    answer: TakenApart | None = known[read]
    return answer


def window_read(value: Value) -> Box | None:
    """The window at a known place that a value is of the first operand of its op."""
    op = value.op
    if op is None or op.name not in {"gather", *SLICING}:
        return None
    if op.name not in {"split", "unstack"}:
        return box_of(access(op))
    array, axis = op.operands[0], dimension_of(op)
    sizes = sizes_of(op) if op.name == "split" else (1,) * len(op.results)
    at = op.results.index(value)
    return whole(array).along(axis, sum(sizes[:at]), sum(sizes[: at + 1]))


def is_read(op: Op) -> bool:
    """Whether all that an op makes are windows of its first operand at known places, and none is
    empty.
    """
    # Condition 1 of take-arrays-apart.
    return bool(op.results) and all(v.size and window_read(v) is not None for v in op.results)


@remembered
def is_in_windows(array: Value) -> bool:
    """Whether nothing needs an array as a whole."""
    # Condition 2 of take-arrays-apart.
    return all(
        use.op.region is array.region
        and (
            (use.position == 0 and is_read(use.op))
            or (_is_part_of_version(use.op, use.position) and is_in_windows(use.op.result))
        )
        for use in array.uses
    )


def parts(value: Value, box: Box) -> Parts:
    """The windows of operands that a window of a version is made of."""
    op = value.op
    assert op is not None
    read = window_read(value)
    if read is None:
        yield from _RULES[op.name](op, box)
    else:
        box = box.with_axis(dimension_of(op)) if op.name == "unstack" else box
        yield 0, box.moved(read.starts)


def _is_part_of_version(op: Op, index: int) -> bool:
    """Whether an op makes a version, windows of which are made of windows of this operand."""
    return is_version(op) and any(at == index for at, _ in _whole_parts(op.result))


@remembered
def is_version(op: Op) -> bool:
    """Whether an op makes an array of arrays, windows of which are made of windows of theirs."""
    arrays = (*op.results, *op.operands)
    # Condition 3 of take-arrays-apart.
    if op.name not in SLICING | _RULES.keys() or any(map(is_sharded, arrays)):
        return False
    # Condition 1 of take-arrays-apart.
    if not all(is_sized(array.shape) for array in arrays):
        return False
    if op.name in SLICING:
        return is_read(op)
    if op.name in WRITES:
        # Condition 1 of take-arrays-apart.
        return box_of(access(op)) is not None
    if op.name == "pad":
        return all(low >= 0 and high >= 0 and not inner for low, high, inner in padding_of(op))
    if op.name == "reshape":
        return is_in_order(op) and short(op.result.shape) == short(op.operands[0].shape)
    if op.name in ELEMENTWISE:
        # Condition 3 of take-arrays-apart.
        return op.result.shape != () and all(
            value.shape in ((), op.result.shape) for value in op.operands
        )
    return True


def short(sizes: Iterable[int]) -> tuple[int, ...]:
    """Without the axes of one element."""
    return tuple(n for n in sizes if n != 1)


def _versions(read: Op) -> tuple[TakenApart | None, Iterable[Op]]:
    """The versions, and what reads windows of them."""
    versions, ops = dict[Value, None](), {read: None}
    pending = [read.operands[0]]
    seen = set(pending)
    for version in pending:
        made_by = version.op
        if made_by is None or made_by.region is not read.region or not is_version(made_by):
            continue
        if not is_in_windows(version):
            continue
        versions[version] = ops[made_by] = None
        others = [made_by.operands[at] for at, _ in _whole_parts(version)]
        others += (result for user in version.users for result in user.results)
        ops.update(dict.fromkeys(version.users))
        pending += (value for value in dict.fromkeys(others) if value not in seen)
        seen.update(others)
    if not any(op.name in _PUTTING for op in ops):
        return None, ops
    region = read.region
    assert region is not None
    order = sorted(ops, key=region.order)
    results = [value for op in order for value in op.results]
    reads = tuple(value for value in results if value not in versions)
    found = TakenApart(tuple(order), tuple(v for v in results if v in versions), reads)
    return found if reads and _fill_in(found) else None, ops


def _fill_in(found: TakenApart) -> bool:
    """Find which windows are needed; whether they are not too many."""
    needed, left = found.needed, limits.WINDOWS_TAKEN_APART
    asked = list[tuple[Value, Box]]()
    needed.update((version, Boxes(_longest_axis(version))) for version in found.versions)

    def ask(array: Value, box: Box) -> None:
        if array in needed:
            needed[array].add([box])
            asked.append((array, box))

    for value in (value for op in reversed(found.ops) for value in op.results):
        assert value.op is not None
        boxes = needed.get(value)
        if boxes is None:
            box = window_read(value)
            assert box is not None
            ask(value.op.operands[0], box)
            continue
        for part in put_together(value):
            boxes.divide(part)
        left -= len(boxes)
        if left < 0:
            return False
        for box in boxes:
            for at, part in parts(value, box):
                ask(value.op.operands[at], part)
    return all(is_a_row(needed[array].covering(box), box) for array, box in asked)


def _longest_axis(array: Value) -> int:
    return max(range(len(array.shape)), key=lambda axis: array.shape[axis], default=0)


def is_a_row(boxes: list[Box], box: Box) -> bool:
    """Whether windows are one that contains another, or lie in it along one axis."""
    if len(boxes) == 1:
        return boxes[0].contains(box)
    return all(box.contains(b) for b in boxes) and len({b.axis_apart(box) for b in boxes}) == 1


def put_together(value: Value) -> Iterator[Box]:
    """The windows that a version is put together of."""
    op = value.op
    assert op is not None
    if op.name in WRITES:
        written = box_of(access(op))
        assert written is not None
        yield written
    elif op.name == "pad":
        yield _inner(op)
    elif op.name in {"concatenate", "stack"}:
        yield from _operand_boxes(op)


def _whole_parts(value: Value) -> Parts:
    """The operands of which a version is made."""
    op = value.op
    assert op is not None
    if op.name in WRITES or op.name in SLICING:
        yield 0, whole(op.operands[0])
    else:
        yield from parts(value, whole(value))


def _elementwise(op: Op, box: Box) -> Parts:
    yield from ((at, box) for at, each in enumerate(op.operands) if each.shape != ())


def _written(op: Op, box: Box) -> Parts:
    found, written = access(op), box_of(access(op))
    assert found is not None and written is not None
    # Condition 4 of take-arrays-apart.
    if found.kind == "add" or not written.contains(box):
        yield 0, box


def _padded(op: Op, box: Box) -> Parts:
    inner = _inner(op)
    common = inner.common(box)
    if common is not None:
        yield 0, common.inside(inner)


def _concatenated(op: Op, box: Box) -> Parts:
    for at, operand in enumerate(_operand_boxes(op)):
        common = operand.common(box)
        if common is not None:
            yield at, common.inside(operand)


def _stacked(op: Op, box: Box) -> Parts:
    axis = dimension_of(op)
    for at, part in _concatenated(op, box):
        yield at, part.without_axis(axis)


def _inner(op: Op) -> Box:
    """Where the operand of a pad is in the result."""
    return Box(tuple(low for low, _, _ in padding_of(op)), op.operands[0].shape)


def _operand_boxes(op: Op) -> Iterator[Box]:
    """Where the operands of a concatenation or of a stack are in the result."""
    axis, start = dimension_of(op), 0
    for value in op.operands:
        size = 1 if op.name == "stack" else value.shape[axis]
        yield whole(op.result).along(axis, start, start + size)
        start += size


def _spread(op: Op, box: Box) -> Parts:
    shape, axes = op.operands[0].shape, broadcast_dimensions_of(op)
    sides = [
        (0, 1) if n == 1 else (box.starts[axis], box.sizes[axis])
        for axis, n in zip(axes, shape, strict=True)
    ]
    if shape:
        yield 0, Box(tuple(start for start, _ in sides), tuple(size for _, size in sides))


def _reshaped(op: Op, box: Box) -> Parts:
    pairs = zip(box.starts, box.sizes, op.result.shape, strict=True)
    sides = iter([(start, size) for start, size, n in pairs if n != 1])
    taken = [(0, 1) if n == 1 else next(sides) for n in op.operands[0].shape]
    yield 0, Box(tuple(start for start, _ in taken), tuple(size for _, size in taken))


def _transposed(op: Op, box: Box) -> Parts:
    order = permutation_of(op)
    back = [order.index(axis) for axis in range(len(order))]
    yield 0, Box(tuple(box.starts[d] for d in back), tuple(box.sizes[d] for d in back))


_RULES: dict[str, Callable[[Op, Box], Parts]] = {
    **dict.fromkeys(ELEMENTWISE - {"name"}, _elementwise),
    **dict.fromkeys(WRITES, _written),
    "broadcast_in_dim": _spread,
    "concatenate": _concatenated,
    "pad": _padded,
    "reshape": _reshaped,
    "squeeze": _reshaped,
    "stack": _stacked,
    "transpose": _transposed,
}
_WINDOW_MOVES = SLICING | {"broadcast_in_dim", "reshape", "squeeze", "transpose"}
_PUTTING = WRITES | {"concatenate", "pad", "stack"}
"""What puts windows into an array."""
