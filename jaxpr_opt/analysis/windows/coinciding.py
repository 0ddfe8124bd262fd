"""Windows that either coincide or are disjoint, so that a program can tell which by comparing two
places.

Each is a single place along some axes of the array, and whole along the others.
"""

from __future__ import annotations

from jax import lax

from jaxpr_opt.analysis.values.expressions import same_expression
from jaxpr_opt.analysis.windows.access import Access
from jaxpr_opt.analysis.windows.window_primitives import component_of, indexed_axes
from jaxpr_opt.bridge import dtypes
from jaxpr_opt.bridge.parameters import has_numbers, mode_of, numbers_of
from jaxpr_opt.cost.reuse import is_view
from jaxpr_opt.ir.dataflow import source_through
from jaxpr_opt.ir.graph import Value
from jaxpr_opt.ir.traits import is_broadcast

DROPS = lax.GatherScatterMode.FILL_OR_DROP
CLAMPS = (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.PROMISE_IN_BOUNDS)


def are_comparable(a: Access, b: Access) -> bool:
    """Whether windows of arrays of one shape coincide or are disjoint, in each row of a batch."""
    # Condition 4 of forward-written-windows.
    # Condition 1 of read-around-writes.
    return a.sizes == b.sizes and _is_one_place(a) and _is_one_place(b)


def single_axes(window: Access) -> list[int]:
    """The axes along which the window is one element, in one place or in one for each row."""
    sizes = zip(window.sizes, window.array.shape, strict=True)
    return [axis for axis, (size, n) in enumerate(sizes) if size != n]


def is_at_one_place(a: Access, b: Access) -> bool:
    """Whether two windows are known to coincide where both are in range: XLA sees as much."""
    if a.sizes != b.sizes:
        return False
    pairs = zip(_places(a), _places(b), strict=True)
    return all(i and j and same_expression(i, j, {}) for i, j in pairs)


def _places(window: Access) -> list[Value | None]:
    """The number that says where a window is along each axis on which it is one element; None for
    one that is no value of its own.
    """
    return [_place(window, axis) for axis in single_axes(window)]


def _place(window: Access, axis: int) -> Value | None:
    if window.op.name == "slice":
        return None
    at, component = component_of(window.op, axis)
    value = window.op.operands[at]
    if value.size > 1:
        maker = value.op
        is_joined = maker is not None and maker.name in {"concatenate", "stack"}
        if maker is None or not is_joined or component is None or len(maker.operands) != value.size:
            return None
        value = maker.operands[component]
    return source_through(
        value, lambda op: op.operands[0].size == 1 and (is_view(op) or is_broadcast(op))
    )


def batch(window: Access) -> list[tuple[int, int]]:
    """The axes of the array on which each row has a window, and which axis of the index each is, in
    the order of the latter.
    """
    if not has_numbers(window.op):
        return []
    numbers, is_read = numbers_of(window.op), window.kind == "read"
    of_index = (
        numbers.start_indices_batching_dims if is_read else numbers.scatter_indices_batching_dims
    )
    pairs = zip(numbers.operand_batching_dims, of_index, strict=True)
    return sorted(pairs, key=lambda pair: pair[1])


def _is_one_place(window: Access) -> bool:
    single = single_axes(window)
    # Condition 4 of forward-written-windows.
    # Condition 1 of read-around-writes.
    if any(window.sizes[axis] != 1 for axis in single):
        return False
    if not has_numbers(window.op):
        return True
    (index,), mode = window.indices, mode_of(window.op)
    whole = set(indexed_axes(window.op)) - set(single)
    # Condition 4 of forward-written-windows.
    # Condition 1 of read-around-writes.
    if mode == DROPS and any(window.window[axis].start is None for axis in whole):
        return False  # all of the window may be dropped
    known = mode in {DROPS, *CLAMPS} and set(single) <= set(indexed_axes(window.op))
    is_wide = dtypes.bits(index.dtype) > 32  # JAX reads at what is left of it in 32 bits
    return known and not is_wide and dtypes.holds(index.dtype, max(window.array.shape))
