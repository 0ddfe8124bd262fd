"""Facts about the contents of a value, found without running anything."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxpr_opt.bridge import dtypes
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.graph import UNDEFINED, Cond, Constant, Op, Scan, Value
from jaxpr_opt.ir.traits import VIEWING

_SPREAD = VIEWING | {"dynamic_slice"}


def uniform(value: Value) -> Any:
    """The number that all elements of a value are known to be; None if that is unknown.

    Sees through broadcasts, slices and reshapes, through a pad by the same number, through
    conversions of integers, and signs.
    """
    changes: list[Op] = []
    while (op := value.op) is not None:
        is_first_pad = op.name == "pad" and all(each.name != "pad" for each in changes)
        is_converted = op.name == "convert_element_type" and _is_of_integers(op)
        if op.name == "neg" or is_first_pad or is_converted:
            changes.append(op)
        elif op.name not in _SPREAD:
            return None
        value = op.operands[0]
    number = value.scalar if isinstance(value, Constant) else None
    for op in reversed(changes):
        number = None if number is None else _changed(number, op)
    return number


def _changed(number: Any, op: Op) -> Any:
    """What all elements are after an op: None if it pads by another number, bit for bit."""
    if not isinstance(op.operands[0].dtype, np.dtype):
        return None
    numbers = np.asarray(number, op.operands[0].dtype)
    if op.name == "pad":
        filler = op.operands[1]
        around = filler.scalar if isinstance(filler, Constant) else None
        is_same = around is not None and numbers.dtype.type(around).tobytes() == numbers.tobytes()
        return number if is_same else None
    is_negated = op.name == "neg"
    made = np.negative(numbers) if is_negated else dtypes.converted(numbers, op.result.dtype)
    return made[()]


def captured(array: Constant) -> np.ndarray[Any, Any] | None:
    """The numbers of a captured array, also if it is on a device."""
    return fetched(array.value)


def fetched(numbers: Any) -> np.ndarray[Any, Any] | None:
    """The numbers that a program captured as these; None if this process cannot see them."""
    if isinstance(numbers, jax.core.Tracer):
        return None
    if isinstance(numbers, jax.Array) and not numbers.is_fully_addressable:
        return None
    return np.asarray(numbers)


def captured_indices(array: Constant) -> np.ndarray[Any, Any] | None:
    """The numbers of a captured array that is small enough to look at all of them."""
    return captured(array) if 0 < array.nbytes <= limits.BYTES_OF_INDICES else None


def scalar_of(value: Value) -> Value | None:
    """The scalar that a value is, or repeats in all elements."""
    op = value.op
    if op is not None and op.name == "broadcast_in_dim":
        value = op.operands[0]
    return value if value.shape == () else None


def _is_of_integers(conversion: Op) -> bool:
    """Whether integers or truth values are converted, to such or to real numbers."""
    source, made = conversion.operands[0].dtype, conversion.result.dtype
    are_numeric = isinstance(source, np.dtype) and isinstance(made, np.dtype)
    return are_numeric and source.kind in "biu" and made.kind in "biuf"


def is_undefined(value: Value) -> bool:
    """Whether a value is undefined, so that any other may replace it."""
    return value.op is not None and value.op.name == UNDEFINED


def defined(value: Value) -> Value:
    """A value; of a choice between two of which one is undefined, the other."""
    op = value.op
    if op is None or op.name != "select_n" or len(op.operands) != 3:
        return value
    known = [v for v in op.operands[1:] if not is_undefined(v)]
    return known[0] if len(known) == 1 else value


def may_be_undefined(value: Value) -> bool:
    """Whether a value is undefined in some branch or step, or computed from one that is.  Then its
    number matters nowhere, and may differ from reader to reader.
    """
    pending, seen = [value], {value}
    while pending:
        if is_undefined(pending[-1]):
            return True
        made_of = [v for v in _made_of(pending.pop()) if v not in seen]
        pending += made_of
        seen.update(made_of)
    return False


def _made_of(value: Value) -> list[Value]:
    """The values that a result stands for in each branch or step, or the operands of its op."""
    op, region = value.op, value.region
    if isinstance(op, Cond):
        return list(op.outcomes[value.position].values)
    if isinstance(op, Scan):
        return [op.body.outputs[value.position]]
    if op is not None:
        return list(op.operands)
    loop = region.owner if region is not None else None
    if not isinstance(loop, Scan):
        return []
    stream = loop.stream_of(value)
    if stream is not None:
        return [stream.operand]
    return [v for c in loop.carries if c.param is value for v in (c.init, c.next)]


def is_weak(value: Value) -> bool:
    """Whether the type is weak: it gives way to the other operand's."""
    return bool(getattr(value.aval, "weak_type", False))


def strong(x: jax.Array) -> jax.Array:
    """The same numbers with a type that is not weak."""
    return lax.convert_element_type(x, x.dtype)


def identity(value: Value) -> Hashable:
    """A key that is equal for values that are the same: one value, or constants of one type with
    the same bits.

    So NaN equals NaN, -0.0 is not 0.0, and a constant on a device equals itself only.
    """
    if not isinstance(value, Constant):
        return value
    number = value.value
    if value.nbytes > limits.BYTES_COMPARED or not dtypes.is_on_host(number):
        return id(number)
    return (value.aval, np.asarray(number, value.dtype).tobytes())
