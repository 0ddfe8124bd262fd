"""Assertions about a program: what its gradient keeps, how fast it grows, that two are the same.

::

    def test_memory():
        assert_residual_bytes(loss, (params, batch), at_most="64 MiB")
        assert_growth(jax.grad(loss), lambda n: (params, batch_of(n)), "linear")
        assert_same(loss, faster_loss, (params, batch))

The first two look at shapes alone: nothing is compiled or run, and arguments may be
`jax.ShapeDtypeStruct` objects.  When one fails, it names the lines to blame and by how much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxpr_opt import targets
from jaxpr_opt.boundary.arrays_only import holds_statics, of_arrays
from jaxpr_opt.boundary.arrays_only import kept as keep_statics
from jaxpr_opt.bridge.dtypes import type_text
from jaxpr_opt.errors import indefinite
from jaxpr_opt.frames import Frame, frame_text, name_of
from jaxpr_opt.insight.growth import MEASURES, Measure, Term, Trend
from jaxpr_opt.insight.powers import order_text, parse_limit
from jaxpr_opt.insight.saved import Saved, kept
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.lint.modes import traceable
from jaxpr_opt.reports import observe
from jaxpr_opt.reports.figures import beside_limit, limit_text
from jaxpr_opt.reports.residual_rows import frame_of
from jaxpr_opt.reports.scaling import LABELS, by_line, traced_growth
from jaxpr_opt.sizes import bytes_text, parse_bytes
from jaxpr_opt.testing.agreement import assert_close, assert_same_derivatives
from jaxpr_opt.testing.sampling import random_inputs

MAX_LINES = 5
"""Lines of the source that a failure names."""


def assert_residual_bytes(
    fun: Callable[..., Any],
    args: tuple[Any, ...],
    at_most: str | int,
    *,
    argnums: int | tuple[int, ...] | None = None,
) -> None:
    """Check that the gradient of ``fun(*args)`` keeps no more than so many bytes.

    Every value counts that the forward pass makes and the backward pass reads, times the lengths of
    the loops around it.  Arguments do not count.

    Args:
      fun: the function to be differentiated, plain, jitted or optimised; what is optimised in it
        is looked at optimised.  One that computes a gradient itself is taken as it is.
      args: its arguments, ``args`` or ``(args, kwargs)``: arrays or `jax.ShapeDtypeStruct` objects.
      at_most: bytes, as ``"64 MiB"``, ``"1.5 GB"`` or 65536.
      argnums: which arguments to differentiate by, the first if not given.

    Raises:
      AssertionError: it keeps more; the message names the lines that keep most.
      TypeError: `fun` is not a function, or `args` is not a tuple.
      ValueError: `at_most` is not a number of bytes.

    Example:
      >>> x = jax.ShapeDtypeStruct((256,), "float32")
      >>> assert_residual_bytes(lambda x: jnp.sum(jnp.sin(x)), (x,), at_most="1 KiB")
    """
    __tracebackhide__ = True
    limit = parse_bytes(at_most, "at_most")
    facts = kept(_gradient(fun, _arguments("assert_residual_bytes", fun, args), argnums))
    total = _total(facts)
    if total > limit:
        over = f"{beside_limit(total - limit, limit)} more than {limit_text(limit)}"
        keeps = f"keeps {beside_limit(total, limit)}, {over}"
        lines = "\n".join(_largest(facts))
        raise AssertionError(
            f"the gradient of {name_of(fun)} {keeps}:\n{lines}\n"
            "`jaxpr_opt.residuals` says what each is kept for, and what `optimize` leaves of it"
        )


def _gradient(
    fun: Callable[..., Any], arguments: targets.Arguments, argnums: int | tuple[int, ...] | None
) -> Graph:
    """The program of a gradient, or of the function if it computes one."""
    if argnums is None:
        graph, _ = observe.as_it_is(fun, *arguments)
        if graph.has_gradient:
            return graph
    function, arguments = traceable(fun, arguments, "gradient", argnums or 0)
    return observe.as_it_is(function, *arguments)[0]


def _largest(facts: Sequence[Saved]) -> Iterator[str]:
    """The lines that keep most, and the largest value of each."""
    lines: dict[Frame | None, list[Saved]] = {}
    for fact in facts:
        lines.setdefault(frame_of(fact.made), []).append(fact)
    by_size = sorted(lines.items(), key=lambda item: -_total(item[1]))
    for frame, own in by_size[:MAX_LINES]:
        shape = type_text(max(own, key=lambda fact: fact.nbytes).value.aval)
        values = shape if len(own) == 1 else f"{len(own)} values, the largest {shape}"
        where = "" if frame is None else f" ({frame_text(frame)})"
        yield f"  {bytes_text(_total(own)):>8}  {values}{where}"
    if rest := by_size[MAX_LINES:]:
        total = sum(_total(own) for _, own in rest)
        yield f"  {bytes_text(total):>8}  from {len(rest)} other lines"


def _total(facts: Sequence[Saved]) -> int:
    return sum(fact.nbytes for fact in facts)


def assert_growth(
    fun: Callable[..., Any],
    args_at: Callable[[int], Any],
    limit: str = "linear",
    *,
    sizes: Sequence[int] = (64, 128, 256),
    measures: Sequence[Measure] = MEASURES,
) -> None:
    """Check that a function grows no faster than a power of a size.

    No line may make the residuals, the work or the peak memory grow faster.  For a `while`, whose
    number of iterations is unknown, the work of one iteration counts.

    Args:
      fun: plain, jitted or optimised; a gradient is written ``jax.grad(fun)``.
      args_at: the arguments at a size: a tuple ``args`` or ``(args, kwargs)`` of
        `jax.ShapeDtypeStruct` objects or arrays (those are never made).
      limit: `O(1)`, `O(log n)`, `O(n)`, `O(n log n)`, `O(n^2)`, or `constant`, `logarithmic`,
        `linear`, `linearithmic`, `quadratic`, `cubic`.
      sizes: two or more; three separate a power from lower-order terms.
      measures: some of ``residual_bytes``, ``work``, ``peak_bytes``.

    Raises:
      AssertionError: something grows faster; the message names the lines, and what they come to.
      TypeError: `fun` or `args_at` is not callable.
      ValueError: `limit`, `sizes` or `measures` are invalid.

    Example:
      >>> def given(n):
      ...     return (jax.ShapeDtypeStruct((n,), "float32"),)
      >>> assert_growth(lambda x: jnp.sum(jnp.sin(x)), given, "O(n)")
    """
    __tracebackhide__ = True
    wanted = parse_limit(limit)
    if unknown := [measure for measure in measures if measure not in MEASURES]:
        raise ValueError(f"measures has {unknown[0]!r}: expected {', '.join(MEASURES)}")
    grown = traced_growth(fun, args_at, sizes)
    lines = [
        line
        for measure in measures
        for line in _faster(grown[measure], grown[measure].faster(wanted))
    ]
    if lines:
        at = ", ".join(map(str, grown.sizes))
        raise AssertionError(
            f"{name_of(fun)} grows faster than {limit}, at {at}:\n" + "\n".join(lines)
        )


def _faster(trend: Trend, terms: Sequence[Term]) -> Iterator[str]:
    """The lines where something grows too fast; what has no line only where no line has a part in
    it.
    """
    label, write = LABELS[trend.measure]
    lines: list[tuple[Frame | None, Sequence[Term]]] = [*by_line(terms).items()]
    if terms and not lines:
        lines = [(None, terms)]
    for frame, of_line in lines[:MAX_LINES]:
        whats = ", ".join(dict.fromkeys(term.place.what for term in of_line))
        amounts = trend.together(of_line)
        where = "" if frame is None else f" ({frame_text(frame)})"
        order = order_text(of_line[0].exponent)
        yield f"  {order} {label} in {whats}: {', '.join(map(write, amounts))}{where}"


def assert_same(
    first: Callable[..., Any],
    second: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    grad: bool = True,
    rtol: float | None = None,
) -> None:
    """Check that two functions agree when compiled: values, gradients, forward derivatives.

    They agree up to the rounding of fusion: 1000 units in the last place of the largest value.  If
    they differ by more, they are compared in double precision, too: sums in another order agree
    there, so that rounding alone is no failure.

    Args:
      first: the reference; derivatives that it does not have are not compared.
      second: the function that is compared with it.
      args: their arguments: arrays; of `jax.ShapeDtypeStruct` objects, random arrays are made.
      grad: compare derivatives, too.
      rtol: how much they may differ, as a fraction of the largest value, rounding included.

    Raises:
      AssertionError: they differ; the message has the leaf, the largest error, and where it is.
      TypeError: `first` or `second` is not a function, or `args` is not a tuple.

    Example:
      >>> assert_same(jnp.sin, lambda x: jnp.cos(x - jnp.pi / 2), (jnp.ones(3),), rtol=1e-5)
    """
    __tracebackhide__ = True
    for fun in (first, second):
        _check("assert_same", fun, args)
    drawn = keep_statics(_drawn(args))
    if holds_statics(args):
        first, second = of_arrays(first), of_arrays(second)
    try:
        _compare(first, second, drawn, grad, rtol)
    except AssertionError as error:
        if rtol is not None or not _differ_by_rounding(first, second, drawn, grad):
            raise AssertionError(str(error)) from None


def _compare(
    first: Callable[..., Any],
    second: Callable[..., Any],
    args: tuple[Any, ...],
    grad: bool,
    rtol: float | None,
) -> None:
    assert_close(jax.jit(first)(*args), jax.jit(second)(*args), rtol=rtol)
    if grad:
        assert_same_derivatives(first, second, *args, rtol=rtol)


def _differ_by_rounding(
    first: Callable[..., Any], second: Callable[..., Any], args: tuple[Any, ...], grad: bool
) -> bool:
    """Whether the functions agree in double precision, up to its own rounding."""
    try:
        with jax.enable_x64(True):
            wide = jax.tree.map(_widened, args)
            _compare(first, second, wide, grad, None)
    except Exception:  # noqa: BLE001 -- they differ there, too, or cannot be computed
        return False
    return True


def _widened(leaf: Any) -> Any:
    """A leaf of 32 bits or less as one of 64; others as they are."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.inexact):
        return leaf
    wide = jnp.complex128 if jnp.issubdtype(dtype, jnp.complexfloating) else jnp.float64
    return jnp.asarray(leaf, wide)


def _drawn(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments with random arrays for types."""
    leaves, tree = jax.tree.flatten(args)
    types = [leaf for leaf in leaves if isinstance(leaf, jax.ShapeDtypeStruct)]
    drawn = iter(random_inputs(types))
    filled = [next(drawn) if isinstance(x, jax.ShapeDtypeStruct) else x for x in leaves]
    made: tuple[Any, ...] = jax.tree.unflatten(tree, filled)
    return made


def _arguments(caller: str, fun: Any, args: Any) -> targets.Arguments:
    _check(caller, fun, args)
    return targets.arguments_of(lambda: args, "args")


def _check(caller: str, fun: Any, args: Any) -> None:
    if not callable(fun):
        raise TypeError(f"{caller}: expected a function, got {fun!r}")
    if not isinstance(args, tuple):
        kind = type(args).__name__
        raise TypeError(f"{caller}: args must be a tuple of arguments, got {indefinite(kind)}")
