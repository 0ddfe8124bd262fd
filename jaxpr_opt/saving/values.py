"""Parameters, types and constants as JSON, and back; nothing is looked up by what a file says but
in tables of what is known.
"""

from __future__ import annotations

import base64
import enum
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxpr_opt.bridge import compat_saving, compat_types

_CLASSES = (
    jax.lax.GatherDimensionNumbers,
    jax.lax.ScatterDimensionNumbers,
    jax.lax.ConvDimensionNumbers,
    jax.lax.DotAlgorithm,
)
_ENUMS = (
    jax.lax.GatherScatterMode,
    jax.lax.Precision,
    jax.lax.DotAlgorithmPreset,
    jax.lax.RandomAlgorithm,
    jax.lax.RoundingMethod,
    jax.lax.FftType,
    jax.lax.AccuracyMode,
)
CLASSES: dict[str, Any] = {each.__name__: each for each in (*_CLASSES, *_ENUMS)}
"""Classes of parameters, by their names."""

PLAIN = (bool, int, str, type(None))


class UnwritableError(Exception):
    """Something that a file cannot hold; the message says what."""


Jaxprs = Callable[[Any], Any]
"""Writes, or reads, a jaxpr that is a parameter."""


def written(value: Any, jaxprs: Jaxprs) -> Any:
    """A parameter as JSON."""
    if isinstance(value, enum.Enum):
        return _tagged("enum", _known(value), value.name)
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, float | complex):
        return _tagged("number", repr(value))
    if compat_saving.is_jaxpr(value):
        return _tagged("jaxpr", not hasattr(value, "consts"), jaxprs(value))
    if isinstance(value, np.dtype) or compat_saving.is_key_type(value):
        return _tagged("dtype", dtype_text(value))
    if compat_saving.is_key_implementation(value):
        return _tagged("prng", value.name)
    if hasattr(value, "_fields") or hasattr(value, "__dataclass_fields__"):
        return _tagged("record", _known(value), _fields(value, jaxprs))
    if isinstance(value, tuple | list | dict):
        return _container(value, jaxprs)
    if isinstance(value, np.ndarray | np.generic):
        return _tagged("array", array(value))
    if isinstance(value, jax.sharding.NamedSharding) and value.mesh.empty:
        return None
    raise UnwritableError(type(value).__name__)


def _tagged(*parts: Any) -> dict[str, Any]:
    return {"": list(parts)}


def _known(value: Any) -> str:
    name = type(value).__name__
    if CLASSES.get(name) is not type(value):
        raise UnwritableError(name)
    return name


def _fields(value: Any, jaxprs: Jaxprs) -> dict[str, Any]:
    names = getattr(value, "_fields", None) or value.__dataclass_fields__
    return {name: written(getattr(value, name), jaxprs) for name in names}


def _container(value: Any, jaxprs: Jaxprs) -> Any:
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise UnwritableError("dict")
        return _tagged("dict", {key: written(each, jaxprs) for key, each in value.items()})
    elements = [written(each, jaxprs) for each in value]
    return elements if isinstance(value, tuple) else _tagged("list", elements)


def read(value: Any, jaxprs: Jaxprs) -> Any:
    """A parameter from JSON; raises whatever it likes where that is no such JSON."""
    if isinstance(value, list):
        return tuple(read(each, jaxprs) for each in value)
    if not isinstance(value, dict):
        return value
    kind, *parts = value[""]
    return _READERS[kind](jaxprs, *parts)


_READERS: dict[str, Callable[..., Any]] = {
    "enum": lambda _, name, member: CLASSES[name][member],
    "number": lambda _, text: float(text) if "j" not in text else complex(text),
    "jaxpr": lambda jaxprs, is_open, region: compat_saving.as_parameter(jaxprs(region), is_open),
    "dtype": lambda _, text: dtype(text),
    "record": lambda jaxprs, name, fields: CLASSES[name](
        **{key: read(each, jaxprs) for key, each in fields.items()}
    ),
    "dict": lambda jaxprs, items: {key: read(each, jaxprs) for key, each in items.items()},
    "list": lambda jaxprs, items: [read(each, jaxprs) for each in items],
    "array": lambda _, parts: read_array(parts),
    "prng": lambda _, name: compat_saving.implementation_of(compat_saving.key_type(name)),
}


# -- types and arrays ----------------------------------------------------------------------------


def dtype_text(dtype: Any) -> str:
    """`float32`, `key<fry>`."""
    if compat_saving.is_key_type(dtype):
        return f"key {compat_saving.implementation_of(dtype).name}"
    if not isinstance(dtype, np.dtype):
        raise UnwritableError(str(dtype))
    return dtype.name


def dtype(text: str) -> Any:
    """The type of elements that a text stands for."""
    kind, _, impl = text.partition(" ")
    if kind == "key":
        return compat_saving.key_type(impl)
    return jax.dtypes.float0 if text == "float0" else jax.numpy.dtype(text)


def type_of(aval: Any) -> list[Any]:
    """The type of a value as JSON."""
    if not isinstance(compat_types.without_idle_mesh(aval), jax.core.ShapedArray):
        raise UnwritableError(str(aval))
    if not all(isinstance(size, int) for size in aval.shape):
        raise UnwritableError(f"{aval}: a size that is a symbol")
    return [list(aval.shape), dtype_text(aval.dtype), int(aval.weak_type)]


def read_type(parts: Any) -> Any:
    """A type from JSON."""
    shape, name, is_weak = parts
    return compat_types.array_aval(tuple(map(int, shape)), dtype(name), bool(is_weak))


def array(value: Any) -> list[Any]:
    """The elements of an array as JSON."""
    if compat_saving.is_key_type(getattr(value, "dtype", None)):
        return [dtype_text(value.dtype), *array(np.asarray(jax.random.key_data(value)))]
    made = np.ascontiguousarray(value)
    return [made.dtype.name, list(np.shape(value)), base64.b64encode(made.tobytes()).decode()]


def constant(value: Any, aval: Any) -> Any:
    """A captured value as JSON: one of a weak type as a number of Python's."""
    if getattr(aval, "weak_type", False) and not aval.shape:
        return written(np.asarray(value).item(), lambda jaxpr: jaxpr)
    return _tagged(
        "array",
        array(value if compat_saving.is_key_type(aval.dtype) else np.asarray(value, aval.dtype)),
    )


def read_array(parts: Any) -> Any:
    """An array from JSON."""
    if parts[0].startswith("key "):
        impl = parts[0].partition(" ")[2]
        return jax.random.wrap_key_data(jax.numpy.asarray(read_array(parts[1:])), impl=impl)
    name, shape, data = parts
    raw = np.frombuffer(base64.b64decode(data, validate=True), dtype(name))
    return raw.reshape(tuple(shape))[()]
