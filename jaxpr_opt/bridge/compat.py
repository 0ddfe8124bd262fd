"""JAX's private API, each part behind a name of our own.

Only `compat*`, `importer` and `exporter` may import ``jax._src`` (the linter enforces it).
Differences between versions of JAX are detected on the class or signature in use; those of XLA by
the version of jaxlib, because nothing else shows them. Supported: jax 0.10.2 to 0.12.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax
from jax._src import array as _array
from jax._src import config as _config
from jax._src import core as _core
from jax._src import linear_util as _lu
from jax._src import source_info_util as _source_info
from jax._src.interpreters import partial_eval as _pe
from jax._src.sharding_impls import UnspecifiedValue as _Unspecified
from jax.extend.core import ClosedJaxpr, Jaxpr, Primitive

from jaxpr_opt.bridge.guard import UnknownJaxError

_trace_ctx, _DynamicJaxprTrace = _core.trace_ctx, _pe.DynamicJaxprTrace  # asked in every call

JAXPRS_ARE_CLOSED: bool = issubclass(Jaxpr, ClosedJaxpr)
"""Whether a jaxpr has its constants with it: there is one class of them since JAX 0.11."""


class Opened(NamedTuple):
    """A jaxpr with its constants beside it, the same on every version."""

    constvars: Sequence[Any]
    consts: Sequence[Any]
    invars: Sequence[Any]
    eqns: Sequence[Any]
    outvars: Sequence[Any]


def open_jaxpr(jaxpr: Any) -> Opened:
    """Open a `Jaxpr` or `ClosedJaxpr`; since jax 0.11 the two are one class."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    return Opened(
        inner.constvars, getattr(jaxpr, "consts", ()), inner.invars, inner.eqns, inner.outvars
    )


def debug_info(jaxpr: Any) -> Any:
    """Names of arguments and results, for JAX's error messages."""
    return getattr(jaxpr, "jaxpr", jaxpr).debug_info


def with_debug_info(jaxpr: ClosedJaxpr, info: Any) -> ClosedJaxpr:
    """The same program with these names of arguments and results."""
    inner: Any = jaxpr
    if JAXPRS_ARE_CLOSED:
        return inner.replace(debug_info=info)  # type: ignore[no-any-return]
    return ClosedJaxpr(inner.jaxpr.replace(debug_info=info), inner.consts)


def trace(fun: Callable[..., Sequence[Any]], avals: Sequence[Any], info: Any = None) -> ClosedJaxpr:
    """`jax.make_jaxpr` for flat functions and exact abstract values (weak types, shardings, keys,
    tokens).

    Three times faster than `jax.make_jaxpr`, which goes through the caches of `jax.jit`.
    """
    if info is None or len(info.arg_names or ()) != len(avals):
        names = tuple(f"args[{i}]" for i in range(len(avals)))
        info = _core.DebugInfo("jaxpr_opt", getattr(fun, "__name__", "fn"), names, None)
    traced: Any = _pe.trace_to_jaxpr_dynamic
    traced = inspect.unwrap(traced)  # not its annotation for profilers, which is one more frame
    jaxpr, _, consts = traced(_lu.wrap_init(fun, debug_info=info), list(avals))
    if JAXPRS_ARE_CLOSED:  # constants come first among the inputs
        closed: ClosedJaxpr = jaxpr.with_consts(consts) if consts else jaxpr
        return closed
    return ClosedJaxpr(jaxpr, consts)


def can_trace(avals: Sequence[Any]) -> bool:
    """Whether `trace` is enough for arguments of these types: not for mutable arrays, which JAX
    tells apart, nor where keys are to be checked for use.
    """
    config: Any = jax.config
    return not config.jax_debug_key_reuse and all(type(a) is _core.ShapedArray for a in avals)


def lowered(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The program in the primitives XLA knows: "hi" ones, which keep their rules for `grad` and
    `vmap` until nothing asks for them, become what they stand for.
    """
    is_plain = not jaxpr.is_high or has_high_types(jaxpr)
    return jaxpr if is_plain else _pe.lower_jaxpr2(jaxpr)


def has_high_types(jaxpr: ClosedJaxpr) -> bool:
    """Whether the program takes, gives or closes over values that are no arrays to XLA."""
    opened = open_jaxpr(jaxpr)
    return any(v.aval.is_high for v in (*opened.constvars, *opened.invars, *opened.outvars))


def opened(jaxpr: Any) -> Any:
    """The open jaxpr of one without constants, for primitives that want no closed one."""
    assert not open_jaxpr(jaxpr).consts, "constants must be operands here"
    return getattr(jaxpr, "jaxpr", jaxpr)


def check_jaxpr(jaxpr: Any) -> None:
    """JAX's own type checker; raises `jax.extend.core.JaxprTypeError`."""
    _core.check_jaxpr(getattr(jaxpr, "jaxpr", jaxpr))


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """`(constants, carries)` of a scan equation."""
    if "num_consts" in params and "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    if "ft_in" not in params:
        raise UnknownJaxError("scan does not say how many carries it has")
    consts, carries, _ = params["ft_in"].unpack()  # since 0.11
    return len(list(consts)), len(list(carries))


def is_trivial_jit(params: dict[str, Any]) -> bool:
    """Whether a `jit` equation says nothing but "call this": no sharding, layout, donation or
    option.

    `inline` is a bool before 0.11 and an enum after; only the plain values (False, True, auto,
    early, late in JAX) are trivial, a demand to keep the function for XLA is not.
    """
    shardings = (*params["in_shardings"], *params["out_shardings"])
    inline = params["inline"]
    return (
        all(isinstance(s, _Unspecified) for s in shardings)
        and all(layout is None for layout in (*params["in_layouts"], *params["out_layouts"]))
        and not any(params["donated_invars"])
        and not params["compiler_options_kvs"]
        and (isinstance(inline, bool) or inline.value in ("auto", "jax_early", "jax_late"))
    )


def is_literal(atom: Any) -> bool:
    """Whether an operand is a value written into the equation."""
    return isinstance(atom, _core.Literal)


def is_committed(value: Any) -> bool:
    """Whether an array was put where it is by the user, and is not to be moved."""
    return bool(getattr(value, "_committed", True))


@contextlib.contextmanager
def bound_under(info: Any, ctx: Any) -> Iterator[None]:
    """Bind equations as JAX's own evaluator does: with this source info and equation context."""
    if info is None:
        yield
        return
    stack = _source_info.current_name_stack() + info.name_stack
    with _source_info.user_context(info.traceback, name_stack=stack), ctx.manager:
        yield


def as_traced(ctx: Any) -> AbstractContextManager[None]:
    """Trace under the context of an equation, if it has one."""
    return contextlib.nullcontext() if ctx is None else ctx.manager


@contextlib.contextmanager
def inside_shard_map(params: dict[str, Any], ctx: Any) -> Iterator[None]:
    """Trace as in the body of a `shard_map` with these parameters, of whose equations `ctx` is the
    context: its axes are bound, and values that vary over them are tracked.
    """
    axes = [(a, n) for a, n in params["mesh"].shape.items() if a in params["newly_manual_axes"]]
    checked = _config._check_vma(params["check_vma"])
    with ctx.manager, _core.extend_axis_env_nd(axes), checked:
        yield


def effects(eqn: Any) -> frozenset[Any]:
    """The effects of an equation, but for the names of axes that it runs over."""
    return frozenset(e for e in eqn.effects if not isinstance(e, _core.NamedAxisEffect))


def inner_jaxprs(params: Any) -> Iterator[Any]:
    """The jaxprs in an equation's parameters, open or closed, in tuples and dictionaries too."""
    for each in params.values() if isinstance(params, dict) else params:
        if type(each) in _NUMBERS:
            continue
        if isinstance(each, tuple | list | dict):
            yield from inner_jaxprs(each)
        elif hasattr(getattr(each, "jaxpr", each), "eqns"):
            yield each


_NUMBERS = frozenset({int, bool, str, type(None)})
"""What most parameters are of, and no jaxpr is."""


_names: weakref.WeakKeyDictionary[Any, frozenset[str]] = weakref.WeakKeyDictionary()


def primitive_names(jaxpr: Any) -> frozenset[str]:
    """The names of the primitives of a jaxpr and of all jaxprs in it, and `ROWS` if it may select
    by rows; remembered.
    """
    known = _names.get(jaxpr)
    if known is None:
        known = _names[jaxpr] = frozenset(_primitive_names(jaxpr))
    return known


ROWS = "select_n of rows"
"""What is among the names of a program in which a truth value may choose a whole row."""

_MOVES_ROWS = frozenset({"reshape", "squeeze", "transpose"})


def _is_of_rows(eqn: Any, name: str) -> bool:
    """Whether an equation repeats each truth value along further axes, moves an array of them so
    that another may do so, or selects by numbers.
    """
    if name == "select_n":
        return bool(eqn.invars[0].aval.dtype != bool)
    if name != "broadcast_in_dim" and name not in _MOVES_ROWS:
        return False
    aval = eqn.invars[0].aval
    if aval.dtype != bool or not aval.shape:
        return False
    return name in _MOVES_ROWS or eqn.params["broadcast_dimensions"] == (*range(len(aval.shape)),)


def _primitive_names(jaxpr: Any) -> set[str]:
    names: set[str] = set()
    pending = {id(jaxpr): jaxpr}
    seen: set[int] = set()
    while pending:
        key, each = pending.popitem()
        seen.add(key)
        for eqn in open_jaxpr(each).eqns:
            name = eqn.primitive.name
            names.add(name)
            if _is_of_rows(eqn, name):
                names.add(ROWS)
            inner = inner_jaxprs(eqn.params)
            pending.update({id(j): j for j in inner if id(j) not in seen})
    return names


STRUCTURED = frozenset({"scan", "while", "cond", "checkpoint", "remat", "remat2", "shard_map"})
"""Equations with regions of their own, but for a `jit` that is kept."""


def bind(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Bind an equation again, whatever its primitive wants to be told; always a list of
    results.
    """
    out = primitive.bind(*args, **primitive.get_bind_params(params))
    return list(out) if primitive.multiple_results else [out]


@contextlib.contextmanager
def at_top_level() -> Iterator[None]:
    """Trace as if no transformation of JAX were at work, and no mesh were set."""
    no_mesh = jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ()))
    with _core.set_current_trace(_core.eval_trace), no_mesh:
        yield


def outside_traces() -> bool:
    """Whether code runs eagerly: no transformation of JAX is at work on this thread."""
    outside: bool = _trace_ctx.is_top_level()
    return outside


def is_staging() -> bool:
    """Whether a function that is called now is traced to a jaxpr, as `jax.jit` does."""
    return isinstance(_trace_ctx.trace, _DynamicJaxprTrace)


def is_in_kernel() -> bool:
    """Whether a Pallas kernel is traced: it is lowered by rules for JAX's own primitives."""
    pallas: Any = sys.modules.get("jax._src.pallas.core")
    try:
        return pallas is not None and pallas.axis_frame() is not None
    except (AssertionError, AttributeError):
        return False


def evaluate(jaxpr: ClosedJaxpr, args: Sequence[Any]) -> list[Any]:
    """The results of a program, equation by equation, each at the user's line.

    `jaxpr_as_fun` does not look for NaNs, whatever `jax_debug_nans` says.
    """
    opened = getattr(jaxpr, "jaxpr", jaxpr)
    return _core.eval_jaxpr(opened, jaxpr.consts, *args)


Array: Any = _array.ArrayImpl
"""The class of arrays with data, which keys of random numbers wrap."""
