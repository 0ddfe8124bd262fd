"""How a jaxpr is compiled inside another program: in place, or as a function of its own.

XLA:CPU calls each op of a loop by itself, which takes longer than computing it where it is small.
A loop that touches few bytes it compiles as one function instead, before JAX 0.12 at most 1024 of
them (jax#26145). It does the same with a call that has an attribute, whatever it touches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax._src.interpreters import mlir as _mlir
from jax._src.lib import xla_client as _xla
from jax._src.lib.mlir import ir as _ir
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun

from jaxpr_opt.bridge import compat, compat_devices, compat_guard, compat_types
from jaxpr_opt.bridge.parameters import SMALL_LOOP

small_loop_p = Primitive(SMALL_LOOP)
"""A loop, or a write, that is compiled as one function: ``small_loop[jaxpr](*args)``. It is bound
after the final phase, so that nothing differentiates or batches it.
"""
small_loop_p.multiple_results = True
small_loop_p.def_abstract_eval(
    lambda *_, jaxpr: list(map(compat_types.typed_here, jaxpr.out_avals))
)
small_loop_p.def_impl(lambda *args, jaxpr: compat.evaluate(jaxpr, args))


def apart(fun: Callable[..., Sequence[Any]], operands: Sequence[Any]) -> list[Any]:
    """The results of a function that XLA does not fuse with what reads them.

    Since JAX 0.11 a barrier sees to that.  Before, XLA drops barriers before it fuses; on a CPU it
    then is a function of its own, all of whose arguments must be read.
    """
    if compat_devices.KEEPS_BARRIERS:
        return list(lax.optimization_barrier(list(fun(*operands))))
    return in_one_function(fun, operands)


def in_one_function(fun: Callable[..., Sequence[Any]], operands: Sequence[Any]) -> list[Any]:
    """The results of a function that XLA compiles as one, with its loop."""
    jaxpr = compat.trace(fun, [compat_types.aval_of(x) for x in operands])
    return list(small_loop_p.bind(*operands, jaxpr=jaxpr))


_AS_ONE_FUNCTION = {"xla_cpu_small_call": "true", "inlineable": "false"}
_ATTRIBUTES = "mhlo.frontend_attributes"


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
    """As one function for one CPU, else in place.

    XLA puts an operand that it finds to be a constant into the function, which then does not read
    its argument, and of that XLA ends the process.  Behind a barrier it finds none.
    """
    if not compat_devices.is_one_cpu(ctx):
        return lower_inline(ctx, jaxpr, args)

    def small_loop(*given: Any) -> Any:
        return jaxpr_as_fun(jaxpr)(*given)

    def fenced(*given: Any) -> Any:
        return jax.jit(small_loop)(*lax.optimization_barrier(given))

    results = _mlir.lower_fun(fenced)(ctx, *args)
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
