"""Windows in zeros, at the places where a one-hot array is one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxpr_opt.analysis.masks.picked_arrays import Picked
from jaxpr_opt.analysis.masks.picked_sums import PickedSum
from jaxpr_opt.builders.masks.picked_sums import SumOfPlaces
from jaxpr_opt.builders.same_op import repeated


@dataclass(frozen=True)
class InZeros:
    """What is picked, made of the sources of its places and of its factors: zeros to which one
    window is added for each row of a batch, times the factors that its zeros are multiplied by.
    """

    picked: Picked
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __call__(self, *sources: jax.Array) -> jax.Array:
        """The array."""
        pairs = list(zip(self.picked.factors, sources[len(self.picked.places) :], strict=True))
        chosen = Picked(
            self.picked.places, tuple(f for f, _ in pairs if not f.leaks), self.picked.number
        )
        every = PickedSum(chosen, self.shape, frozenset())
        window = SumOfPlaces(every, self.dtype, are_dropped=True)
        numbers = window.numbers(sources)
        parts = window.factors([value for f, value in pairs if not f.leaks], numbers)
        rows = sorted(chosen.rows(chosen.axes))
        free = [d for d in range(len(self.shape)) if d not in (*chosen.axes, *rows)]
        laid = window.product(parts, [*rows, *free])
        places = {d: window.spread(number, rows) for d, number in numbers.items()}
        made = self._scattered(laid, places, rows)
        leaking = [
            repeated(value.astype(self.dtype), self.shape, f.source.axes)
            for f, value in pairs
            if f.leaks
        ]
        return reduce(lax.mul, leaking, made)

    def _scattered(
        self, window: jax.Array, places: dict[int, jax.Array], rows: Sequence[int]
    ) -> jax.Array:
        """A window in zeros, for each row of a batch."""
        inner = [d for d in range(len(self.shape)) if d not in rows]
        axes = tuple(inner.index(d) for d in sorted(places))
        windows = tuple(range(len(inner) - len(axes)))
        dims = lax.ScatterDimensionNumbers(windows, axes, axes)

        def added(window: jax.Array, *at: jax.Array) -> jax.Array:
            zeros = jnp.zeros([self.shape[d] for d in inner], self.dtype)
            wide = jnp.result_type(*at)
            index = jnp.stack([each.astype(wide) for each in at])
            hints = {"indices_are_sorted": True, "unique_indices": True}
            mode = lax.GatherScatterMode.FILL_OR_DROP
            return lax.scatter_add(zeros, index, window, dims, mode=mode, **hints)

        fun = added
        for passed, axis in reversed([*enumerate(rows)]):
            fun = jax.vmap(fun, out_axes=axis - passed)
        return fun(window, *(places[d] for d in sorted(places)))
