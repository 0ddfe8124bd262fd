"""The op that makes a single element of an array, found through ops that only split, join or move
arrays.
"""

from __future__ import annotations

from jaxpr_opt.analysis.values.constants import uniform
from jaxpr_opt.bridge.parameters import is_in_order, sizes_of, starts_of, strides_of
from jaxpr_opt.ir.graph import Op, Region, Value

Lane = tuple[Value, int]
"""An element of a value, counted in row-major order."""


def element(array: Value, index: int, region: Region) -> Lane:
    """The element of a value made in `region`, or from outside, that this element is."""
    while array.op is not None and array.region is region:
        found = _moved(array.op, array, index)
        if found is None:
            break
        array, index = found
    return array, index


def _moved(op: Op, array: Value, index: int) -> Lane | None:
    """Of which operand an element of a result is which element, if the op computes nothing."""
    match op.name, len(array.shape), len(op.operands[0].shape) if op.operands else 0:
        case "squeeze", _, _:
            return op.operands[0], index
        case "convert_element_type", _, _ if op.operands[0].dtype == array.dtype:
            return op.operands[0], index  # weak types are not told apart
        case "reshape", _, _ if is_in_order(op):
            return op.operands[0], index
        case "broadcast_in_dim", _, _ if op.operands[0].size == 1:
            return op.operands[0], 0
        case (("slice" | "dynamic_slice" | "dynamic_update_slice"), 1, _):
            return _in_window(op, index)
        case "concatenate", 1, _:
            return _in_turn(op, index)
        case "stack", 1, _:
            return op.operands[index], 0
        case "split", 1, _:
            return op.operands[0], sum(sizes_of(op)[: array.position]) + index
        case "unstack", 0, 1:
            return op.operands[0], array.position
    return None


def _in_window(op: Op, index: int) -> Lane | None:
    """The same of what reads a window of an array, or writes one."""
    array, where = op.operands[0], op.operands[-1]
    if op.name == "slice":
        return array, starts_of(op)[0] + index * strides_of(op)[0]
    window = op.operands[1] if op.name == "dynamic_update_slice" else op.result
    number = uniform(where)
    if number is None:
        return None
    start = min(max(int(number), 0), array.size - window.size)
    if op.name == "dynamic_slice":
        return array, start + index
    return (window, index - start) if start <= index < start + window.size else (array, index)


def _in_turn(op: Op, index: int) -> Lane:
    """The same of arrays one after another."""
    for operand in op.operands:
        if index < operand.size:
            return operand, index
        index -= operand.size
    raise AssertionError("an index out of range")
