"""How a jaxpr is compiled inside another program: in place, or as one function with its loop.

XLA:CPU calls each op of a loop by itself, which takes longer than computing it where it is small.
A loop that touches few bytes it compiles as one function instead, before JAX 0.12 at most 1024 of
them (jax#26145). It does the same with a call that has an attribute, whatever it touches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
from jax._src.interpreters import mlir as _mlir
from jax._src.lib import xla_client as _xla
from jax._src.lib.mlir import ir as _ir
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun

from jaxpr_opt.bridge import compat, compat_devices, compat_guard
from jaxpr_opt.bridge.parameters import SMALL_LOOP

small_loop_p = Primitive(SMALL_LOOP)
"""A loop that is compiled as one function: ``small_loop[jaxpr](*args)``. It is bound after the
final phase, so that nothing differentiates or batches it.
"""
small_loop_p.multiple_results = True
small_loop_p.def_abstract_eval(lambda *_, jaxpr: list(map(compat.typed_here, jaxpr.out_avals)))
small_loop_p.def_impl(lambda *args, jaxpr: compat.evaluate(jaxpr, args))


def in_one_function(fun: Callable[..., Sequence[Any]], operands: Sequence[Any]) -> list[Any]:
    """The results of a function with a loop, which XLA compiles as one."""
    jaxpr = compat.trace(fun, [compat.aval_of(x) for x in operands])
    return list(small_loop_p.bind(*operands, jaxpr=jaxpr))


_AS_ONE_FUNCTION = {"xla_cpu_small_call": "true", "inlineable": "false"}
_ATTRIBUTES = "mhlo.frontend_attributes"

_PARTS = {
    "stablehlo.clamp", "stablehlo.concatenate", "stablehlo.dynamic_update_slice", "stablehlo.pad",
    "stablehlo.scatter", "stablehlo.select",
}  # fmt: skip
"""Ops whose result may turn out to be one of their operands."""

_MOVES = {"stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.transpose"}
"""Ops that leave what is the same everywhere as it is."""

_VALUES = 10_000
"""How many values an operand is made of are looked at."""


def lower_inline(ctx: Any, jaxpr: ClosedJaxpr, args: Sequence[Any]) -> Any:
    """Compile a jaxpr in place, as `mlir.lower_fun` does, without tracing it again."""
    module = (
        ctx.module_context
        if ctx.platforms is None
        else ctx.module_context.replace(platforms=ctx.platforms)
    )
    constvars = compat.open_jaxpr(jaxpr).constvars
    inner: Any = jaxpr if compat.JAXPRS_ARE_CLOSED else jaxpr.jaxpr
    out, tokens = _mlir.jaxpr_subcomp(
        module, inner, ctx.name_stack, ctx.tokens_in,
        _mlir.ir_consts(jaxpr.consts, [v.aval for v in constvars]), *args,
        dim_var_values=ctx.dim_var_values, const_lowering=ctx.const_lowering,
        outer_traceback=_xla.Traceback(),
    )  # fmt: skip
    ctx.set_tokens_out(tokens)
    return out


def _lower_small_loop(ctx: Any, *args: Any, jaxpr: ClosedJaxpr) -> Any:
    if not compat_devices.is_one_cpu(ctx) or not all(map(_is_safe, args)):
        return lower_inline(ctx, jaxpr, args)

    def small_loop(*given: Any) -> Any:
        return jaxpr_as_fun(jaxpr)(*given)

    results = _mlir.lower_fun(jax.jit(small_loop))(ctx, *args)
    call = results[0].owner
    if call.operation.name == "func.call" and _ATTRIBUTES not in call.attributes:
        words: dict[str, _ir.Attribute] = {
            name: _ir.StringAttr.get(word) for name, word in _AS_ONE_FUNCTION.items()
        }
        call.attributes[_ATTRIBUTES] = _ir.DictAttr.get(words)
    return results


def _plain(*, jaxpr: ClosedJaxpr) -> Callable[..., Any]:
    run: Callable[..., Any] = jaxpr_as_fun(jaxpr)
    return run


_mlir.register_lowering(
    small_loop_p, compat_guard.guarded_lowering(_lower_small_loop, _plain), cacheable=False
)


def _is_safe(value: Any) -> bool:
    """Whether a function may have such an operand: one that is made of the program's arguments, or
    a small constant.  XLA puts others, and what counts up, into the function that it calls, which
    then does not read the argument; and of that it ends the process.
    """
    if isinstance(value.owner, _ir.Block) or value.owner.operation.name != "stablehlo.constant":
        return _is_constant(value) is False
    kind = _ir.RankedTensorType(value.type)
    is_complex = isinstance(kind.element_type, _ir.ComplexType)
    return prod(kind.shape) * (16 if is_complex else 8) <= compat_devices.LARGEST_CONSTANT


_Asked = tuple[Any, tuple[Any, ...]]
"""A value, and the calls whose results are looked into to find it, the innermost last."""


def _is_constant(value: Any) -> bool | None:
    """Whether XLA may find that a value is a constant: it is no argument of the program, nor made
    of any.  None where it is the same number everywhere, or an `iota`, which XLA writes when it
    runs.
    """
    known: dict[_Asked, bool | None] = {}
    pending: list[_Asked] = [(value, ())]
    while pending and len(known) < _VALUES:
        found = _found(*pending[-1], known)
        if isinstance(found, tuple):
            pending.append(found)
        else:
            known[pending.pop()] = found
    return known.get((value, ()), True)


def _found(
    value: Any, calls: tuple[Any, ...], known: dict[_Asked, bool | None]
) -> bool | _Asked | None:
    """The answer, or what else must be known first."""
    if isinstance(value.owner, _ir.Block):
        around, number = value.owner.owner.operation, _ir.BlockArgument(value).arg_number
        if around.name == "func.func" and not calls:
            public = _ir.StringAttr.get("public")
            is_named = "sym_visibility" in around.attributes
            return not (is_named and around.attributes["sym_visibility"] == public)
        inner = around.name == "func.func"
        made: list[_Asked] = [
            (calls[-1].operands[number], calls[:-1]) if inner else (around.operands[number], calls)
        ]
        is_part = is_moved = True
    else:
        op = value.owner.operation
        if op.name == "stablehlo.constant":
            return None if op.attributes["value"].is_splat else True
        if op.name == "stablehlo.iota":
            return None
        made, is_part = [(operand, calls) for operand in op.operands], op.name in _PARTS
        is_moved = op.name in _MOVES
        if op.name == "func.call":
            end = _end_of_callee(op)
            if end is None:
                return True
            made = [(end.operands[_ir.OpResult(value).result_number], (*calls, op))]
            is_part = is_moved = True
    answers = set[bool | None]()
    for each in made:
        if each not in known:
            return each
        answers.add(known[each])
        if is_part in answers:
            return is_part
    if False in answers:
        return False
    return None if is_moved and True not in answers else True


def _end_of_callee(call: Any) -> Any:
    """The last op of the function that is called, if it is there already."""
    module = call.parent
    while module.name != "builtin.module":
        module = module.parent
    name = call.attributes["callee"].value
    for each in module.regions[0].blocks[0].operations:
        if _ir.StringAttr(each.attributes["sym_name"]).value == name:
            return list(each.regions[0].blocks[0].operations)[-1]
    return None
