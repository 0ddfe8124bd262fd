"""Functions of each element that have a rule for their derivative, as `jax.nn.relu`, of arrays of
another shape.

While JAX may differentiate a program, a call of such a function stays one opaque op.  If each
element of its result, and of its derivative, is made of that element of the operands, it is the
same function of arrays of another shape, and so is the rule.

A rule may give something else than the derivative of its function, as those of spikes do. JAX then
differentiates a gradient by the function itself, not by the rule, for what a loop makes of values
it is given, and by the rule elsewhere: such second derivatives depend on where it is called.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from jaxpr_opt.bridge import compat, compat_types, dtypes
from jaxpr_opt.bridge.parameters import CUSTOM_JVP, callee_of, has_plain_rule, jaxpr_of_jit
from jaxpr_opt.ir.graph import Op
from jaxpr_opt.ir.traits import ELEMENTWISE

_DEPTH = 3
"""How many rules of others a rule may be part of."""

Function = Callable[..., Any]

_KNOWN: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
"""Whether calls are such, by their jaxprs, which JAX makes anew for each."""


def by_element(op: Op) -> Function | None:
    """The function of an op, of arrays of any one shape, with the same derivatives; operands that
    are scalars stay scalars. None if it is no call of such a function.
    """
    if op.name != CUSTOM_JVP or len(op.results) != 1 or op.effects:
        return None
    callee, avals = callee_of(op), [v.aval for v in op.operands]
    if callee not in _KNOWN:
        _KNOWN[callee] = _is_by_element(op, avals, ())
    return _function(op, avals) if _KNOWN[callee] else None


def _is_by_element(call: Any, avals: Sequence[Any], above: tuple[str, ...]) -> bool:
    """Whether a call, and its derivatives of any order, compute each element by itself; `above` are
    the rules that it is a part of, outermost first.
    """
    shapes = {aval.shape for aval in avals if getattr(aval, "shape", None)}
    if len(shapes) != 1 or not has_plain_rule(call):
        return False
    if not all(
        compat_types.is_local(aval) and dtypes.is_real(aval.dtype) and dtypes.is_inexact(aval.dtype)
        for aval in avals
    ):
        return False
    (shape,) = shapes
    if not _keeps_elements(callee_of(call), shape, ()):
        return False
    try:
        rule = _rule(call, avals)
    except Exception:  # noqa: BLE001  there is none, or JAX cannot trace it
        return False
    text = str(rule)
    if text in above:  # a rule that calls the function itself
        return True
    return len(above) < _DEPTH and _keeps_elements(rule, shape, (*above, text))


def _keeps_elements(jaxpr: Any, shape: tuple[int, ...], rules: tuple[str, ...]) -> bool:
    """Whether a jaxpr computes each element of arrays of a shape by itself; it calls functions with
    rules only in a rule.
    """
    opened = compat.open_jaxpr(jaxpr)
    if any(v.aval.shape for v in opened.constvars):
        return False
    for eqn in opened.eqns:
        name, avals = eqn.primitive.name, [atom.aval for atom in eqn.invars]
        if not {v.aval.shape for v in (*eqn.invars, *eqn.outvars)} <= {shape, ()}:
            return False
        if name == "broadcast_in_dim":
            found = not avals[0].shape
        elif name == "jit":
            found = compat.is_trivial_jit(eqn.params) and _keeps_elements(
                jaxpr_of_jit(eqn), shape, rules
            )
        elif name == CUSTOM_JVP:
            found = bool(rules) and _is_by_element(eqn, avals, rules)
        else:
            found = name in ELEMENTWISE
        if not found:
            return False
    return True


def _rule(call: Any, avals: Sequence[Any]) -> Any:
    """The jaxpr of the result and its derivative, of operands and theirs."""

    def bound(*xs: Any) -> Any:
        return compat.bind(call.primitive, xs, call.params)[0]

    def both(*given: Any) -> tuple[Any, Any]:
        values, tangents = given[: len(avals)], given[len(avals) :]
        result: tuple[Any, Any] = jax.jvp(bound, values, tangents)
        return result

    return compat.trace(both, [*avals, *avals])


def _function(call: Any, avals: Sequence[Any]) -> Function:
    """The same function of arrays of another shape."""

    def fun(*xs: Any) -> Any:
        return _evaluated(callee_of(call), xs, np.broadcast_shapes(*map(np.shape, xs)))[0]

    def rule(values: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
        shape = np.broadcast_shapes(*map(np.shape, values))
        result, tangent = _evaluated(_rule(call, avals), [*values, *tangents], shape)
        return result, tangent

    fun.__name__ = fun.__qualname__ = compat.debug_info(callee_of(call)).func_name
    made = jax.custom_jvp(fun)
    made.defjvp(rule)
    return made


def _evaluated(jaxpr: Any, args: Sequence[Any], shape: tuple[int, ...]) -> list[Any]:
    """What a jaxpr of elements makes of arrays of another shape."""
    opened = compat.open_jaxpr(jaxpr)
    env = dict(zip(opened.constvars, opened.consts, strict=True))
    env.update(zip(opened.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if compat.is_literal(atom) else env[atom]

    for eqn in opened.eqns:
        values, name = [read(atom) for atom in eqn.invars], eqn.primitive.name
        if name == "broadcast_in_dim":
            results = [lax.broadcast(values[0], shape)]
        elif name == "jit":
            results = _evaluated(jaxpr_of_jit(eqn), values, shape)
        elif name == CUSTOM_JVP:
            results = [_function(eqn, [atom.aval for atom in eqn.invars])(*values)]
        else:
            results = compat.bind(eqn.primitive, values, eqn.params)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in opened.outvars]
