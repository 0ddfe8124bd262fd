"""`residuals`: every value that the gradient of a function stores, with its source line, reader and
size.

What is kept is what `jax.vjp` of the function hands over to its pullback, array by array; inside
of loops, branches, calls and checkpoints too.  Only shapes are traced: nothing is compiled or run.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxpr_opt.boundary.arrays_only import arrays_only
from jaxpr_opt.boundary.loops import differentiated
from jaxpr_opt.bridge import compat_call
from jaxpr_opt.bridge.compat_frames import boundary
from jaxpr_opt.errors import check_function
from jaxpr_opt.frames import name_of
from jaxpr_opt.insight.journal import Journal, collect_journals
from jaxpr_opt.insight.saved import Saved, kept_bytes, saved
from jaxpr_opt.ir.graph import Graph, aval_bytes
from jaxpr_opt.ir.rewriter import Rewriter
from jaxpr_opt.reports import observe
from jaxpr_opt.reports.residual_report import Residuals
from jaxpr_opt.reports.residual_rows import Key, bytes_by_key, compared


class ArgnumsError(ValueError):
    """There is nothing to differentiate by."""


@boundary
def residuals(
    fun: Callable[..., Any], *args: Any, argnums: int | Sequence[int] | None = None, **kwargs: Any
) -> Residuals:
    """The values that the gradient of ``fun(*args, **kwargs)`` keeps, and those that `optimize`
    would leave of them.

    Args:
      fun: the function to differentiate, whatever it returns.  A function that computes a gradient
        itself, as a training step does, is not differentiated again.
      *args: arrays, or `jax.ShapeDtypeStruct` objects for them: no data is needed.
      argnums: the arguments to differentiate with respect to; by default the first that holds
        floats.  If given, a function that computes a gradient is differentiated once more.
      **kwargs: like `args`.

    Returns:
      A report: `print` it, or call `to_dict()`; `kept` has the values, the largest first.

    Raises:
      TypeError: `fun` is not a function.
      ArgnumsError: `argnums` names an argument that is not there, or that holds no floats.

    Example:
      >>> def loss(x):
      ...     return jnp.sum(jnp.sin(x))
      >>> kept_by_loss = jaxpr_opt.residuals(loss, jax.ShapeDtypeStruct((256,), "float32"))
      >>> [(each.name, each.shape, each.bytes) for each in kept_by_loss.kept]
      [('cos', 'f32[256]', 1024)]
    """
    check_function(fun, "residuals")
    name = name_of(fun)
    graph = observe.original(fun, args, kwargs)
    if argnums is None and graph.has_gradient:
        return _account(name, graph, saved(graph), None)
    fun, args, kwargs = arrays_only(fun, args, kwargs)
    numbers = checked(argnums, args)
    how = functools.partial(_joint, numbers=numbers, args=args, kwargs=kwargs, forward=graph)
    joint, facts = differentiated(how, fun)
    wrt = [leaf for number in numbers for leaf in jax.tree.leaves(args[number])]
    return _account(f"grad({name})", joint, facts, wrt)


def checked(argnums: int | Sequence[int] | None, args: Sequence[Any]) -> tuple[int, ...]:
    """The positions of the arguments to differentiate by, all of them there and of floats; None
    stands for the first that holds floats.
    """
    if argnums is None:
        argnums = [i for i, each in enumerate(args) if _has_floats(each)][:1]
        if not argnums:
            raise ArgnumsError("no argument holds floats to differentiate by")
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for number in numbers:
        if not -len(args) <= number < len(args):
            given = f"{len(args)} positional argument{'' if len(args) == 1 else 's'}"
            raise ArgnumsError(f"there is no argument {number} to differentiate by: {given}")
        if not _has_floats(args[number]):
            raise ArgnumsError(f"argument {number} holds no floats to differentiate by")
    return tuple(number % len(args) for number in numbers)


def _has_floats(argument: Any) -> bool:
    return any(map(_is_inexact, jax.tree.leaves(argument)))


def _is_inexact(leaf: Any) -> bool:
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return isinstance(leaf, float | complex)
    return jnp.issubdtype(dtype, jnp.inexact)


def _joint(
    fun: Callable[..., Any],
    numbers: tuple[int, ...],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    forward: Graph,
) -> tuple[Graph, tuple[Saved, ...]]:
    """Forward and backward as one program, and what the first half hands over to the second."""
    handed_over = 0

    def joint(cotangents: Sequence[Any], /, *args: Any, **kwargs: Any) -> Any:
        nonlocal handed_over
        given = iter(cotangents)

        def chosen(*wrt: Any) -> Any:
            filled = dict(zip(numbers, wrt, strict=True))
            return fun(*(filled.get(i, arg) for i, arg in enumerate(args)), **kwargs)

        outputs, pullback = jax.vjp(chosen, *(args[number] for number in numbers))
        gradients = pullback(jax.tree.map(lambda output: _cotangent(output, given), outputs))
        arrays = jax.tree.leaves(pullback)
        handed_over = len(arrays)
        return outputs, gradients, arrays

    _name_arguments(joint, fun)
    starts = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in forward.outputs if _is_inexact(v)]
    graph = observe.original(jax.jit(joint, **_static(fun)), (starts, *args), kwargs)
    graph.cotangents = graph.inputs[: len(starts)]
    returned, crossing = _parted(graph.outputs, handed_over)
    facts = saved(graph, crossing)
    Rewriter(graph).set_outputs(graph.body, returned)
    return graph, facts


def _parted(values: Sequence[Any], last: int) -> tuple[Sequence[Any], Sequence[Any]]:
    return values[: len(values) - last], values[len(values) - last :]


def _cotangent(output: Any, given: Iterator[Any]) -> Any:
    """A cotangent for an output: the next one given, or the zero there is for what is no float."""
    if _is_inexact(output):
        return next(given)
    return np.zeros(np.shape(output), jax.dtypes.float0)


def _name_arguments(joint: Any, fun: Callable[..., Any]) -> None:
    """Have JAX call the arguments of the joint program what the author of `fun` calls them."""
    joint.__name__ = name_of(fun)
    with contextlib.suppress(TypeError, ValueError):  # some builtins have no signature
        first = inspect.Parameter("_cotangents", inspect.Parameter.POSITIONAL_ONLY)
        signature = inspect.signature(fun)
        params = [first, *signature.parameters.values()]
        joint.__signature__ = signature.replace(parameters=params)


def _static(fun: Callable[..., Any]) -> dict[str, Any]:
    """The arguments that a jitted function wants static, behind one that is not."""
    _, options = compat_call.jit_options(fun) or (fun, {})
    static = {key: options[key] for key in ("static_argnames",) if key in options}
    if "static_argnums" in options:
        numbers = options["static_argnums"]
        static["static_argnums"] = tuple(n + 1 if n >= 0 else n for n in numbers)
    return static


# -- what becomes of it --------------------------------------------------------------------------


def _account(
    name: str, graph: Graph, facts: Sequence[Saved], wrt: Sequence[Any] | None
) -> Residuals:
    """Compare with the optimised program, row by row."""
    with collect_journals(lambda graph: bytes_by_key(saved(graph))):
        improved, journal = observe.improved(graph)
    kept, instead = compared(graph, facts, improved, _taken_off(journal))
    given = [value for value in graph.inputs if value not in graph.cotangents]
    parameters = None if wrt is None else sum(aval_bytes(leaf) for leaf in wrt)
    return Residuals(
        name,
        kept,
        instead,
        parameters,
        sum(v.nbytes for v in given),
        kept_bytes(graph),
        kept_bytes(improved),
    )


def _taken_off(journal: Journal) -> dict[Key, tuple[str, ...]]:
    """Under every key, the passes after which less is kept; tidying up is the work of the pass
    that left something behind.
    """
    found: dict[Key, dict[str, None]] = {}
    credited = ""
    for (_, before), (name, after) in itertools.pairwise(journal.trail):
        credited = credited if journal.records[name].cleanup else name
        for which, nbytes in before.items():
            if after.get(which, 0) < nbytes and credited:
                found.setdefault(which, {})[credited] = None
    return {which: tuple(names) for which, names in found.items()}
