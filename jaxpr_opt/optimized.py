"""The type of what `optimize` returns, for people and for type checkers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

import jax

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Self_ = TypeVar("Self_")


class Optimized(Protocol[P, R_co]):
    """An optimised function: jitted, with the signature of the function it was made from."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """The value that the function returns."""
        ...

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Lowered:
        """The program for these arguments, lowered and not yet compiled."""
        ...

    def trace(self, *args: P.args, **kwargs: P.kwargs) -> jax.stages.Traced:
        """The program for these arguments, traced and not yet lowered."""
        ...

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes and dtypes of the results; arguments may be `jax.ShapeDtypeStruct` objects."""
        ...

    def clear_cache(self) -> None:
        """Forget what was traced and compiled."""
        ...

    @property
    def __wrapped__(self) -> Callable[P, R_co]:
        """The function itself."""
        ...

    @overload
    def __get__(self: Self_, instance: None, owner: type) -> Self_: ...
    @overload
    def __get__(
        self: Optimized[Concatenate[Any, Q], R], instance: object, owner: type | None = None
    ) -> Callable[Q, R]: ...
