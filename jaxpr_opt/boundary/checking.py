"""``JAXPR_OPT_CHECK=1``: compiled programs compare themselves with the original program.

A program carries its `History`, functions that must all compute the same: the original, then a
snapshot after every pass that changed something.  Programs derived from it (by `jvp`, `vjp` or
`vmap`) carry the history transformed by JAX's public API, an oracle that shares nothing with how
they were really made.  At lowering every function of the history is compiled beside the program,
and a callback names the first one whose values differ.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from jaxpr_opt.boundary import loops

Function = Callable[..., Sequence[Any]]
Snapshots = Sequence[tuple[str, ClosedJaxpr]]

ORIGINAL = "original"


class CheckError(Exception):
    """A pass changed a result: which pass, which output, by how much."""


@dataclass(frozen=True, slots=True)
class History:
    """What a program must compute, pass by pass, the original first; empty if unchecked."""

    steps: tuple[tuple[str, Function], ...] = ()
    """`(pass, the program after it)`"""
    outputs: int = 0
    """How many of the program's first outputs it is about: residuals have no original."""
    guard: bool = False
    """Whether it is of a backward program, which reads residuals where it reads primals."""

    def __bool__(self) -> bool:
        return bool(self.steps)

    def mapped(self, transform: Callable[[Function], Function], outputs: int) -> History:
        """The history of a derived program."""
        steps = tuple((name, transform(fun)) for name, fun in self.steps)
        return replace(self, steps=steps, outputs=outputs if steps else 0)

    def guarded(
        self, forward: ClosedJaxpr, residuals: Sequence[tuple[str, int]], backward: ClosedJaxpr
    ) -> History:
        """From the history of `(inputs, cotangents)` that of `(residuals, inputs, cotangents)`.

        A cond under `vmap` runs the backward of the branch a row did not take on dummy residuals
        and drops the result: where residuals are not those of the inputs, whatever comes out is
        right.
        """
        count, num_inputs = len(residuals), len(forward.in_avals)

        def transform(fun: Function) -> Function:
            def run(*args: Any) -> list[Any]:
                given, rest = args[:count], args[count:]
                made = jaxpr_as_fun(forward)(*rest[:num_inputs])
                kept = [rest[i] if kind == "input" else made[i] for kind, i in residuals]
                own = jaxpr_as_fun(backward)(*given, *rest[num_inputs:])
                meant = _all_close(given, kept)
                return [jnp.where(meant, x, y) for x, y in zip(fun(*rest), own, strict=True)]

            return run

        return replace(self.mapped(transform, self.outputs), guard=True)

    def followed_by(self, snapshots: Snapshots) -> History:
        """With the snapshots a pipeline took."""
        more = tuple((name, jaxpr_as_fun(jaxpr)) for name, jaxpr in snapshots)
        return replace(self, steps=(*self.steps, *more))


UNCHECKED = History()


def begin(jaxpr: ClosedJaxpr) -> History:
    """The history of a program that nothing has happened to."""
    return History(((ORIGINAL, jaxpr_as_fun(jaxpr)),), len(jaxpr.out_avals))


def checked(name: str, history: History, program: ClosedJaxpr) -> Function:
    """The program as a function that also compares itself with its history."""

    def run(*args: Any) -> Sequence[Any]:
        outputs: Sequence[Any] = jaxpr_as_fun(program)(*args)
        every = [*(fun(*args) for _, fun in history.steps), outputs]
        results = [[_plain(x) for x in list(each)[: history.outputs]] for each in every]
        names = (*(label for label, _ in history.steps), "export")
        io_callback(partial(_compare, name, names), None, results)
        return outputs

    return run


def warn_unchecked(name: str, why: str) -> None:
    """Say that a program cannot be checked."""
    warnings.warn(f"jaxpr_opt: {name} {why}: it is not checked", stacklevel=2)


def jvp(fun: Function, nonzero: Sequence[bool], nonzero_out: Sequence[bool]) -> Function:
    """The history of `(inputs, nonzero tangents) -> (outputs, nonzero tangents)`."""

    def run(*args: Any) -> list[Any]:
        primals, tangents = args[: len(nonzero)], args[len(nonzero) :]
        wrt, of = _differentiable(fun, primals, nonzero)
        outputs, moved = jax.jvp(of, wrt, tuple(tangents))
        return [*outputs, *(t for t, nz in zip(moved, nonzero_out, strict=True) if nz)]

    return run


def vjp(
    fun: Function, nonzero: Sequence[bool], nonzero_out: Sequence[bool], nonzero_in: Sequence[bool]
) -> Function:
    """The history of `(inputs, nonzero cotangents) -> nonzero cotangents`."""

    def run(*args: Any) -> list[Any]:
        primals, cotangents = args[: len(nonzero)], args[len(nonzero) :]
        wrt, of = _differentiable(loops.differentiable(fun), primals, nonzero)

        def moving(*xs: Any) -> list[Any]:
            return [x for x, nz in zip(of(*xs), nonzero_out, strict=True) if nz]

        _, pull = jax.vjp(moving, *wrt)
        return [ct for ct, nz in zip(pull(list(cotangents)), nonzero_in, strict=True) if nz]

    return run


def vmap(fun: Function, axis: Any, dims: Sequence[Any], dims_out: Sequence[Any]) -> Function:
    """The history of a vectorised program."""
    named: dict[str, Any] = {"axis_size": axis.size, "spmd_axis_name": axis.spmd_name}
    if isinstance(axis.name, str | tuple):
        named["axis_name"] = axis.name

    def run(*args: Any) -> list[Any]:
        outputs = jax.vmap(lambda *xs: list(fun(*xs)), tuple(dims), 0, **named)(*args)
        each = zip(outputs, dims_out, strict=False)
        return [x[0] if d is None else jnp.moveaxis(x, 0, d) for x, d in each]

    return run


def _differentiable(
    fun: Function, primals: Sequence[Any], nonzero: Sequence[bool]
) -> tuple[tuple[Any, ...], Function]:
    """The inputs to differentiate, and `fun` as a function of them alone."""
    wrt = tuple(x for x, nz in zip(primals, nonzero, strict=True) if nz)

    def of(*xs: Any) -> list[Any]:
        given = iter(xs)
        return list(
            fun(*(next(given) if nz else x for x, nz in zip(primals, nonzero, strict=True)))
        )

    return wrt, of


def _plain(x: Any) -> Any:
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x


def _all_close(xs: Sequence[Any], ys: Sequence[Any]) -> Any:
    each = [
        jnp.allclose(_plain(x), _plain(y), rtol=1e-3, equal_nan=True)
        for x, y in zip(xs, ys, strict=True)
    ]
    return jnp.all(jnp.stack(each)) if each else True


def _compare(name: str, passes: Sequence[str], results: Sequence[Sequence[Any]]) -> None:
    """Raise for the first pass whose results differ from the original's."""
    original = [np.asarray(x) for x in results[0]]
    for label, values in zip(passes[1:], results[1:], strict=True):
        for index, (expected, got) in enumerate(zip(original, values, strict=True)):
            difference = _difference(expected, np.asarray(got))
            if difference is not None:
                raise CheckError(
                    f"{name}: pass {label} changed output {index}, by up to {difference}"
                )


def _difference(expected: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> str | None:
    """The largest difference, if the two are not the same up to rounding; NaNs equal each other."""
    if not jnp.issubdtype(expected.dtype, jnp.inexact):
        wrong = int(np.sum(expected != got))
        return f"{wrong} of {expected.size} elements" if wrong else None
    precision = jnp.finfo(expected.dtype)  # type: ignore[no-untyped-call]
    tolerance = float(precision.eps) ** 0.5
    wide = np.complex128 if jnp.issubdtype(expected.dtype, jnp.complexfloating) else np.float64
    a, b = expected.astype(wide), got.astype(wide)
    scale = float(np.max(np.abs(a), where=np.isfinite(a), initial=0.0))
    if np.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
        return None
    with np.errstate(invalid="ignore"):
        return (
            f"{np.nanmax(np.abs(a - b)):.3g}"
            if np.array_equal(np.isnan(a), np.isnan(b))
            else "a NaN"
        )
