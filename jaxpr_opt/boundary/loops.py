"""Rewrite loops of unknown length so that JAX can differentiate them backwards.

`jax.grad` of a ``while`` raises. Before an optimised program is differentiated backwards, each
``while`` in it becomes a loop that stores the carries of some of its steps
(`jaxpr_opt.ir.checkpointed`), if

1. it has no effects, which would be repeated;
2. it carries a real or complex number; otherwise nothing can be differentiated;
3. devices that decide by themselves how many steps they take all take as many: its transpose
   communicates in each step.

Source: https://github.com/jax-ml/jax/issues/2139, https://github.com/jax-ml/jax/issues/27748.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from jaxpr_opt.bridge import compat, compat_ad, dtypes
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.devices import is_manual, is_replicated
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.graph import While, is_sized
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.rewriter import Rewriter

T = TypeVar("T")
Function = Callable[..., Any]


def with_reverse_mode(jaxpr: ClosedJaxpr, pipeline: Any = None) -> ClosedJaxpr:
    """The program with loops of unknown length that JAX can differentiate backwards; the object
    that came in if it has none.

    Programs in it that another pipeline optimises than `pipeline`, if it is given, stay calls.
    """
    if "while" not in compat.primitive_names(jaxpr):
        return jaxpr
    graph = import_jaxpr(jaxpr, pipeline=pipeline)
    rw = Rewriter(graph)
    for op in graph.walk():
        if isinstance(op, While) and _can_be_kept(op):
            rw.set_rows(op, _rows(op))
    return export(graph, jaxpr.out_avals) if rw.edits else jaxpr


def differentiated(how: Callable[[Function], T], fun: Function) -> T:
    """What `how` makes of a function that it differentiates backwards: as JAX does, or else, where
    that lacks the gradient of a loop, as `jaxpr_opt.optimize` does.
    """
    try:
        return how(fun)
    except ValueError as error:
        if not lacks_reverse_mode(error):
            raise
    return how(differentiable(fun))


def lacks_reverse_mode(error: BaseException) -> bool:
    """Whether JAX says that it cannot differentiate a loop."""
    return "Reverse-mode differentiation does not work" in str(error)


def differentiable(fun: Function) -> Function:
    """A function with loops that JAX can differentiate backwards."""

    @functools.wraps(fun)
    def run(*args: Any, **kwargs: Any) -> Any:
        jaxpr, made = jax.make_jaxpr(fun, return_shape=True)(*args, **kwargs)
        outputs = jaxpr_as_fun(with_reverse_mode(jaxpr))(*jax.tree.leaves((args, kwargs)))
        return jax.tree.unflatten(jax.tree.structure(made), outputs)

    return run


def _can_be_kept(loop: While) -> bool:
    (predicate,) = loop.predicate.outputs
    return (
        not compat_ad.are_side_effects(loop.effects)  # (1)
        and any(dtypes.is_inexact(c.param.dtype) for c in loop.carries)  # (2)
        and (not is_manual(loop) or is_replicated(predicate, loop))  # (3)
    )


def _rows(loop: While) -> int:
    """As many as there is room for."""
    carried = [c.param for c in loop.carries if not c.is_invariant]
    if not all(is_sized(v.shape) for v in carried):
        return limits.LEAST_ROWS
    room = limits.BYTES_OF_ROWS // max(sum(v.nbytes for v in carried), 1)
    return min(max(room, limits.LEAST_ROWS), limits.MOST_ROWS)
