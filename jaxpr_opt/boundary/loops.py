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

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from jaxpr_opt.bridge import compat, compat_ad, dtypes
from jaxpr_opt.cost import limits
from jaxpr_opt.ir.devices import is_manual, is_replicated
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.graph import While, is_sized
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.nesting import runs
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.memory.budget import Budget

T = TypeVar("T")
Function = Callable[..., Any]

HINT = (
    "jaxpr_opt: to differentiate a loop of unknown length, put `optimize` inside the gradient, "
    "jax.grad(optimize(f)), not only around it"
)


def with_reverse_mode(jaxpr: ClosedJaxpr, pipeline: Any = None) -> ClosedJaxpr:
    """The program with loops of unknown length that JAX can differentiate backwards; the object
    that came in if it has none.

    If `pipeline` is given, programs of `optimize` in it that have another pipeline stay calls.
    """
    if "while" not in compat.primitive_names(jaxpr):
        return jaxpr
    graph = import_jaxpr(jaxpr, pipeline=pipeline)
    rw = Rewriter(graph)
    loops = [op for op in graph.walk() if isinstance(op, While) and _can_be_kept(op)]
    memory = None if pipeline is None else pipeline.memory
    room = None if memory is None else _room(memory, len(loops))
    for op in loops:
        rw.set_rows(op, _rows(op, room))
    return export(graph, jaxpr.out_avals) if rw.edits else jaxpr


def differentiated(how: Callable[[Function], T], fun: Function) -> T:
    """The derivative that `how` makes of a function, backwards. If JAX lacks the gradient of a loop
    in it, that of `jaxpr_opt.optimize` is used.
    """
    try:
        return how(fun)
    except ValueError as error:
        if not lacks_reverse_mode(error):
            raise
    return how(differentiable(fun))


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """An error that JAX raises inside because it cannot differentiate a loop says what can."""
    try:
        yield
    except ValueError as error:
        if lacks_reverse_mode(error) and HINT not in getattr(error, "__notes__", ()):
            error.add_note(HINT)
        raise


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


def _room(memory: Budget, loops: int) -> int | None:
    """Bytes that a budget leaves for the carries of each of so many loops; None if it does not say.

    The rest is for what a step of the gradient takes.  A part of what the program takes without a
    budget says nothing: how much that is depends on these carries.
    """
    if memory.part is not None:
        return None
    return (memory.nbytes or 0) // (limits.PARTS_OF_A_BUDGET * max(loops, 1))


def _rows(loop: While, room: int | None) -> int:
    """As many as XLA fills at once, for all steps of the loops around this one, but no more than a
    budget has room for, if there is one.
    """
    carried = [c.param for c in loop.carries if not c.is_invariant]
    if not all(is_sized(v.shape) for v in carried):
        return limits.LEAST_ROWS
    carry = max(sum(v.nbytes for v in carried), 1)
    filled = limits.BYTES_OF_ROWS // (carry * runs(loop))
    rows = min(max(filled, limits.LEAST_ROWS), limits.MOST_ROWS)
    return rows if room is None else min(rows, max(room // carry, limits.FEWEST_ROWS))
