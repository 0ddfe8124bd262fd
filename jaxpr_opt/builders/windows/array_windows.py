"""Windows of an array's versions, computed one by one instead of the versions."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import lax

from jaxpr_opt.analysis.values.constants import is_weak, strong, uniform
from jaxpr_opt.analysis.windows.access import Access, access
from jaxpr_opt.analysis.windows.boxes import Box, box_of
from jaxpr_opt.analysis.windows.taken_apart import TakenApart, parts, short, window_read
from jaxpr_opt.analysis.windows.window_primitives import WRITES
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import (
    broadcast_dimensions_of,
    dimension_of,
    padding_of,
    permutation_of,
)
from jaxpr_opt.bridge.slicing import read_window, write_window
from jaxpr_opt.builders.same_op import bound
from jaxpr_opt.ir.graph import Op, Value
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.ir.traits import ELEMENTWISE, SUMS

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MadeWindow:
    """A window of a version or of what it is made of: what `code` makes of `operands`, before `op`.

    Its shape is `sizes` without the axes of one element.
    """

    op: Op
    sizes: Sizes
    like: Value
    """Of its type, but for the shape."""
    code: Callable[..., Any] | None
    """None if it is its operand, maybe with other axes of one element."""
    operands: tuple[MadeWindow | Value, ...]
    number: Any = None
    """What all elements are, if that is known."""
    is_computed: bool = False
    """Whether that takes more than reading or reshaping what is there."""

    @property
    def is_given(self) -> bool:
        """Whether it is a value of the program, with all axes."""
        return isinstance(self.operands[0] if self.operands else None, Value)

    @property
    def nbytes(self) -> int:
        return dtypes.nbytes(self.sizes, self.like.dtype)


class Windows:
    """All windows that are needed of some versions."""

    def __init__(self, found: TakenApart) -> None:
        self.found = found
        self._made: dict[tuple[Value, Box], MadeWindow] = {}
        self._once: dict[Hashable, MadeWindow] = {}
        """Windows that are computed alike are one."""
        self._reads: list[tuple[Value, MadeWindow]] = []
        for value in (value for op in found.ops for value in op.results):
            op, box = value.op, window_read(value)
            assert op is not None
            if value not in found.needed:
                assert box is not None
                self._reads.append((value, self._of(op.operands[0], box, op)))
                continue
            for box in found.needed[value]:
                self._made[value, box] = self._part(value, op, box)

    @property
    def computed(self) -> list[MadeWindow]:
        """What is computed, and not only read."""
        return [part for part in self._once.values() if part.is_computed]

    def replace(self, rw: Rewriter) -> None:
        """Replace what is read; the ops that made the versions then serve each other only."""
        made: dict[MadeWindow | Value, Value] = {}
        for read, part in self._reads:
            assert read.op is not None
            window = _insert(part, made, rw)
            code = partial(_value, read, window, part.sizes)
            value = rw.typed(code, read.aval, window, before=read.op)
            rw.replace(read, value)
            made[read] = value
        for op in reversed(self.found.ops):
            rw.erase(op)

    def _of(self, array: Value, box: Box, op: Op) -> MadeWindow:
        """A window of a version, or of what is needed anyway."""
        boxes = self.found.needed.get(array)
        if boxes is None:
            return self._read(self._given(array, op), box, op)
        around = boxes.covering(box)
        if len(around) == 1:
            return self._read(self._made[array, around[0]], box.inside(around[0]), op)
        windows, axis = [self._made[array, each] for each in around], around[0].axis_apart(box)
        assert axis is not None
        return self._beside(windows, axis, box, op, array)

    def _part(self, value: Value, op: Op, box: Box) -> MadeWindow:
        """A window of what an op makes."""
        operands = [(part, self._of(op.operands[at], part, op)) for at, part in parts(value, box)]
        windows = [made for _, made in operands]
        if op.name in WRITES:
            return self._written(op, box, windows)
        if op.name == "pad":
            return self._padded(op, box, operands)
        if op.name == "stack":
            axis = dimension_of(op)
            windows = [self._as(w, op, p.with_axis(axis)) for p, w in operands]
        if op.name in {"concatenate", "stack"}:
            return self._beside(windows, dimension_of(op), box, op, op.result)
        if op.name == "broadcast_in_dim":
            return self._spread(op, box, windows)
        if op.name in ELEMENTWISE:
            return self._elementwise(op, box, windows)
        if op.name == "transpose":
            return self._transposed(op, box, windows[0])
        return self._as(windows[0], op, box)

    def _written(self, op: Op, box: Box, operands: list[MadeWindow]) -> MadeWindow:
        found, written = access(op), box_of(access(op))
        assert found is not None and written is not None
        common = written.common(box)
        if common is None:
            return operands[0]
        given = self._given(found.value, op)
        code = partial(_updated, found)
        value = self._make((op, "value"), op, written.sizes, code, given)
        value = self._read(value, common.inside(written), op)
        # Condition 5 of take-arrays-apart.
        if common == box and (found.kind == "write" or _is_zero(operands[0])):
            return value
        return self._put(operands[0], value, common.inside(box), op, is_added=found.kind == "add")

    def _put(
        self, old: MadeWindow, value: MadeWindow, at: Box, op: Op, *, is_added: bool
    ) -> MadeWindow:
        code, key = partial(_put, old.sizes, at, is_added), ("put", at, is_added)
        return self._make(key, op, old.sizes, code, old, value, is_computed=True)

    def _padded(self, op: Op, box: Box, operands: list[tuple[Box, MadeWindow]]) -> MadeWindow:
        if operands and operands[0][0].sizes == box.sizes:
            return operands[0][1]
        filled = self._filled(self._given(op.operands[1], op), op, box)
        if not operands:
            return filled
        (part, value), lows = operands[0], [low for low, _, _ in padding_of(op)]
        return self._put(filled, value, part.moved(lows).inside(box), op, is_added=False)

    def _filled(self, number: MadeWindow, op: Op, box: Box) -> MadeWindow:
        code = partial(lax.broadcast, sizes=short(box.sizes))
        return self._make("filled", op, box.sizes, code, number)

    def _beside(
        self, windows: list[MadeWindow], axis: int, box: Box, op: Op, like: Value
    ) -> MadeWindow:
        """Windows beside each other."""
        if len(windows) == 1:
            return windows[0]
        sizes = tuple(part.sizes for part in windows)
        code, key = partial(_joined, sizes, axis), ("joined", axis, sizes)
        return self._make(key, op, box.sizes, code, *windows, like=like, is_computed=True)

    def _spread(self, op: Op, box: Box, operands: list[MadeWindow]) -> MadeWindow:
        if not operands:
            return self._filled(self._given(op.operands[0], op), op, box)
        (operand,), axes = operands, broadcast_dimensions_of(op)
        if short(operand.sizes) == short(box.sizes):
            return self._as(operand, op, box)
        code, key = partial(_spread, box.sizes, axes, operand.sizes), ("spread", axes)
        return self._make(key, op, box.sizes, code, operand)

    def _transposed(self, op: Op, box: Box, operand: MadeWindow) -> MadeWindow:
        order = permutation_of(op)
        axes = [axis for axis in order if operand.sizes[axis] != 1]
        if axes == sorted(axes):
            return self._as(operand, op, box)
        code, key = partial(_transposed, operand.sizes, order), ("transposed", order)
        return self._make(key, op, box.sizes, code, operand)

    def _elementwise(self, op: Op, box: Box, operands: list[MadeWindow]) -> MadeWindow:
        others = [part for part in operands if not _is_zero(part)]
        # Condition 5 of take-arrays-apart.
        if op.name in SUMS and len(others) == 1 and len(operands) == len(op.operands):
            return others[0]
        windows = iter(operands)
        given = [self._given(v, op) if v.shape == () else next(windows) for v in op.operands]
        return self._make(op, op, box.sizes, partial(bound, op), *given, is_computed=True)

    def _read(self, part: MadeWindow, box: Box, op: Op) -> MadeWindow:
        if box.sizes == part.sizes and not (part.is_given and 1 in part.sizes):
            return part
        code = partial(_window, part.sizes, box)
        return self._make(("read", box), op, box.sizes, code, part, like=part.like)

    def _as(self, part: MadeWindow, op: Op, box: Box) -> MadeWindow:
        """The same numbers as a window that has other axes of one element."""
        if part.sizes == box.sizes:
            return part
        return self._make("as", op, box.sizes, None, part, like=part.like)

    def _given(self, value: Value, op: Op) -> MadeWindow:
        key = "given", value
        if key not in self._once:
            self._once[key] = MadeWindow(op, value.shape, value, None, (value,), uniform(value))
        return self._once[key]

    def _make(
        self,
        key: Hashable,
        op: Op,
        sizes: Sizes,
        code: Callable[..., Any] | None,
        *operands: MadeWindow,
        like: Value | None = None,
        is_computed: bool = False,
    ) -> MadeWindow:
        """What code makes; without it, if it only moves what is one number everywhere."""
        like, number = op.result if like is None else like, None
        if not is_computed and len(operands) == 1:
            number = operands[0].number
        if number is not None:
            key = "full", str(number), str(like.dtype), is_weak(like)
            code, operands = partial(lax.full, short(sizes), number, like.dtype), ()
        if (key, sizes, operands) not in self._once:
            made = MadeWindow(op, sizes, like, code, operands, number, is_computed)
            self._once[key, sizes, operands] = made
        return self._once[key, sizes, operands]


def _insert(part: MadeWindow, made: dict[MadeWindow | Value, Value], rw: Rewriter) -> Value:
    """Insert what makes a part, and what that is made of."""
    pending: list[MadeWindow] = [part]
    while pending:
        last = pending[-1]
        missing = [p for p in last.operands if isinstance(p, MadeWindow) and p not in made]
        if missing:
            pending += missing
            continue
        pending.pop()
        if last not in made:
            given = [
                made[p] if isinstance(p, MadeWindow) else made.get(p, p) for p in last.operands
            ]
            code, aval = last.code, last.like.aval
            made[last] = (
                rw.typed(code, aval, *given, before=last.op) if code is not None else given[0]
            )
    return made[part]


def _is_zero(part: MadeWindow) -> bool:
    return part.number is not None and part.number == 0


def _window(sizes: Sizes, box: Box, part: jax.Array) -> jax.Array:
    made = read_window(lax.reshape(part, sizes), box.starts, box.sizes)
    return lax.reshape(made, short(box.sizes))


def _updated(write: Access, value: jax.Array) -> jax.Array:
    return lax.reshape(write.to_window(value), short(write.sizes))


def _put(sizes: Sizes, at: Box, is_added: bool, array: jax.Array, value: jax.Array) -> jax.Array:
    array, value = lax.reshape(array, sizes), lax.reshape(value, at.sizes)
    if is_added:
        value = lax.add(read_window(array, at.starts, at.sizes), value)
    return lax.reshape(write_window(array, value, at.starts), short(sizes))


def _joined(sizes: tuple[Sizes, ...], axis: int, *windows: jax.Array) -> jax.Array:
    made = lax.concatenate(list(map(lax.reshape, windows, sizes)), axis)
    return lax.reshape(made, short(made.shape))


def _spread(sizes: Sizes, axes: Sizes, of_operand: Sizes, part: jax.Array) -> jax.Array:
    made = lax.broadcast_in_dim(lax.reshape(part, of_operand), sizes, axes)
    return lax.reshape(made, short(sizes))


def _transposed(sizes: Sizes, order: Sizes, part: jax.Array) -> jax.Array:
    made = lax.transpose(lax.reshape(part, sizes), order)
    return lax.reshape(made, short(made.shape))


def _value(read: Value, made: Value, sizes: Sizes, part: jax.Array) -> jax.Array:
    """The value read from a window, with a type as weak as that of the array was."""
    window = lax.reshape(strong(part) if is_weak(made) and not is_weak(read) else part, sizes)
    found = access(read.op) if read.op is not None else None
    return lax.reshape(window, read.shape) if found is None else found.from_window(window)
