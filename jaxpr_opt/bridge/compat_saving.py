"""JAX's private parts that saved programs need: primitives by name, and ops at places of a source
that is not here.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Iterator
from typing import Any

import jax
from jax._src import core as _core
from jax._src import debugging as _debugging
from jax._src import source_info_util as _source_info
from jax._src.interpreters import mlir as _mlir
from jax._src.lib import xla_client as _xla_client
from jax.extend.core import ClosedJaxpr, Primitive
from jax.interpreters import ad

from jaxpr_opt.bridge import compat, compat_ad, dtypes
from jaxpr_opt.errors import TargetError
from jaxpr_opt.frames import Frame


@functools.cache
def primitives() -> dict[str, Primitive]:
    """Primitives that can be compiled here or differentiated, by their names."""
    tables: list[Any] = [
        _mlir._lowerings,
        *_mlir._platform_specific_lowerings.values(),
        ad.primitive_jvps,
    ]
    return {each.name: each for table in tables for each in table}


@functools.cache
def checkpoint() -> Primitive:
    """The primitive of `jax.checkpoint`, whatever its name."""
    return next(p for name, p in primitives().items() if name in ("checkpoint", "remat", "remat2"))


@functools.cache
def opaque(name: str, is_effectful: bool) -> Primitive:
    """A primitive of which only the types of its results are known."""
    primitive = Primitive(f"unknown_{name}")
    primitive.multiple_results = True
    effects = {_debugging.debug_effect} if is_effectful else set[Any]()

    def abstract_eval(*_: Any, avals: tuple[Any, ...]) -> Any:
        return list(avals), effects

    def differentiate(primals: Any, tangents: Any, *, avals: tuple[Any, ...]) -> Any:
        del tangents
        if any(dtypes.is_inexact(each.dtype) for each in avals):
            raise TargetError(f"the file does not hold `{name}`, so its derivative is unknown")
        made = primitive.bind(*primals, avals=avals)
        return made, [compat_ad.zero_tangent(each) for each in avals]

    primitive.def_effectful_abstract_eval(abstract_eval)
    ad.primitive_jvps[primitive] = differentiate
    return primitive


@contextlib.contextmanager
def at_place(frame: Frame | None, transposes: int) -> Iterator[None]:
    """Bind ops as if this line of a source made them, so many times transposed."""
    stack = _source_info.NameStack((_source_info.Transform("transpose"),) * transposes)
    traceback = None if frame is None else _traceback(frame)
    with _source_info.user_context(traceback, name_stack=stack):
        yield


_TRACED = (lambda get: get()).__code__


@functools.cache
def _traceback(frame: Frame) -> Any:
    """A traceback whose innermost frame is this one: of a function of ours, under its name."""
    file, line, name = frame
    code = _TRACED.replace(co_filename=file, co_firstlineno=line, co_name=name, co_qualname=name)
    return types.FunctionType(code, {})(_xla_client.Traceback.get_traceback)


def is_jaxpr(value: Any) -> bool:
    """Whether a parameter is a jaxpr, open or closed."""
    return isinstance(value, _core.Jaxpr | ClosedJaxpr)


def closed(jaxpr: Any) -> ClosedJaxpr:
    """A jaxpr of a parameter as a closed one."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


def as_parameter(jaxpr: ClosedJaxpr, is_open: bool) -> Any:
    """A jaxpr as a primitive wants it."""
    return compat.opened(jaxpr) if is_open else jaxpr


def is_key_type(dtype: Any) -> bool:
    """Whether this is the type of elements of arrays of keys."""
    return isinstance(dtype, type(_default_key_type()))


def implementation_of(key_type: Any) -> Any:
    """The random number generator of keys of a type."""
    return key_type._impl


def is_key_implementation(value: Any) -> bool:
    """Whether a parameter is what makes random numbers of keys."""
    return isinstance(value, type(implementation_of(_default_key_type())))


@functools.cache
def _default_key_type() -> Any:
    return jax.eval_shape(jax.random.key, 0).dtype


def key_type(impl: str) -> Any:
    """The type of elements of arrays of keys."""
    return jax.eval_shape(lambda: jax.random.key(0, impl=impl)).dtype
