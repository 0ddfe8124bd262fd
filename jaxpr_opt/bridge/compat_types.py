"""The types of values, JAX's avals: of arrays with weak types, on meshes, as rows and stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax._src import ad_util as _ad_util
from jax._src import core as _core
from jax._src.lax import lax as _lax_internal
from jax._src.state.types import AbstractRef as _AbstractRef
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def aval_of(value: Any) -> Any:
    """The abstract value of a JAX value."""
    return _core.typeof(value)


def array_aval(shape: Sequence[int], dtype: Any, weak_type: bool = False) -> Any:
    """The abstract value of a plain array."""
    return jax.core.ShapedArray(tuple(shape), dtype, weak_type=weak_type)


def is_ref(aval: Any) -> bool:
    """Whether values of this type are mutable references."""
    return isinstance(aval, _AbstractRef)


def is_local(aval: Any) -> bool:
    """Whether the type says nothing of devices."""
    return isinstance(aval, _core.ShapedArray) and bool(aval.sharding.mesh.empty)


def same_type(a: Any, b: Any) -> bool:
    """Whether a value of type `a` may stand for one of type `b`, weak types apart."""
    return bool(with_weak_type(a, False) == with_weak_type(b, False))


def can_select(predicate: Any, avals: Sequence[Any]) -> bool:
    """Whether `lax.select_n` takes these types: arrays that vary over the same devices."""
    varying = {getattr(aval, "manual_axis_type", None) for aval in (predicate, *avals)}
    return all(isinstance(aval, _core.ShapedArray) for aval in avals) and len(varying) == 1


def with_weak_type(aval: Any, weak_type: bool) -> Any:
    """`aval` with another weak type."""
    return aval.update(weak_type=weak_type) if hasattr(aval, "weak_type") else aval


def weaken(value: Any, aval: Any) -> Any:
    """`value` with the dtype and weak type of `aval`."""
    return _lax_internal._convert_element_type(value, aval.dtype, weak_type=aval.weak_type)


def undefined(aval: Any) -> Any:
    """An unspecified array of this type, as JAX itself makes them for untaken branches."""
    made = _ad_util.empty_like_aval(aval)
    return weaken(made, aval) if getattr(aval, "weak_type", False) else made


def reshaped(aval: Any, shape: Sequence[int]) -> Any:
    """A type that says nothing of devices, of another shape."""
    return aval.update(shape=tuple(shape), sharding=None)


def stacked(aval: Any, length: int) -> Any:
    """The type of an array of `length` rows of this type, as `lax.scan` stacks them."""
    if is_local(aval):  # ten times as fast
        return reshaped(aval, (length, *aval.shape))
    return _core.unmapped_aval(length, 0, aval)


def row(aval: Any) -> Any:
    """The type of one row of an array of this type, as `lax.scan` reads them."""
    if is_local(aval):
        return reshaped(aval, aval.shape[1:])
    return _core.mapped_aval(aval.shape[0], 0, aval)


def without_idle_mesh(aval: Any) -> Any:
    """The type, without a mesh that it does not divide anything over: XLA decides, or all devices
    have the whole array.
    """
    sharding = getattr(aval, "sharding", None)
    if sharding is None:
        return aval
    kinds = {*sharding.mesh.axis_types}
    is_whole = sharding.spec == PartitionSpec(*(None for _ in aval.shape))
    idle = kinds <= {AxisType.Auto} or (is_whole and AxisType.Manual not in kinds)
    return aval.update(sharding=None) if idle else aval


def typed_here(aval: Any) -> Any:
    """The type, without a mesh that is not that of the code traced now, if each device runs this
    code by itself: the program was traced outside of it.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if AxisType.Manual not in mesh.axis_types or is_local(aval) or aval.sharding.mesh == mesh:
        return aval
    return without_idle_mesh(aval)


def beside(array: Any, value: Any) -> Any:
    """The value; one that is on no mesh, as constants are, on that of an array, which all devices
    have whole: ops that take both ask for it.
    """
    mesh = aval_of(array).sharding.mesh
    if mesh.empty or not is_local(aval_of(value)):
        return value
    whole = NamedSharding(mesh, PartitionSpec(*(None for _ in value.shape)))
    return jax.lax.reshape(value, value.shape, out_sharding=whole)


def may_be_on_mesh() -> bool:
    """Whether types of what is traced now may say which device has what."""
    return AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types
