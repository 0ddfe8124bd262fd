"""The results of `trace` and `lower` where the program that is compiled has other arguments than
the user's function: only some of them, in another order, as a flat list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Stage:
    """A stage of JAX's (`jax.stages`), with the arguments and results of the user's function.

    Args:
      inner: what JAX gives for the program: traced, lowered or compiled.
      arrays: of the positional arguments and those by name of a call: the program's own.
      finish: of what the program returns: what the user's function returns.
    """

    def __init__(
        self,
        inner: Any,
        arrays: Callable[[tuple[Any, ...], dict[str, Any]], Sequence[Any]],
        finish: Callable[[Any], Any],
    ) -> None:
        self._inner, self._arrays, self._finish = inner, arrays, finish

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As of `jax.stages.Compiled`."""
        return self._finish(self._inner(*self._arrays(args, kwargs)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def out_info(self) -> Any:
        """The types of what the user's function returns."""
        return self._finish(self._inner.out_info)

    def lower(self, *args: Any, **kwargs: Any) -> Stage:
        """As of `jax.stages.Traced`."""
        return Stage(self._inner.lower(*args, **kwargs), self._arrays, self._finish)

    def compile(self, *args: Any, **kwargs: Any) -> Stage:
        """As of `jax.stages.Lowered`."""
        return Stage(self._inner.compile(*args, **kwargs), self._arrays, self._finish)
