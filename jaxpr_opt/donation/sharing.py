"""Arrays that are one and the same, or two in one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax

from jaxpr_opt import compat, compat_call


def passed_twice(leaves: Sequence[Any], donated: Sequence[int]) -> frozenset[int]:
    """Which of the donated arrays are passed more than once."""
    if len(set(map(id, leaves))) == len(leaves):
        return frozenset()
    count = Counter(map(id, leaves))
    return frozenset(
        i for i in donated if count[id(leaves[i])] > 1 and isinstance(leaves[i], jax.Array)
    )


def same_buffers(leaves: Sequence[Any], donated: Sequence[int]) -> frozenset[int]:
    """Which of the donated arrays share their memory with another: `jax.device_put` may make such
    arrays, and `Array.addressable_shards`.
    """
    places = [_places(leaf) for leaf in leaves]
    count = Counter(place for each in places for place in each)
    return frozenset(i for i in donated if any(count[place] > 1 for place in places[i]))


def _places(leaf: Any) -> set[int | None]:
    shards = leaf.addressable_shards if isinstance(leaf, compat.Array) else ()
    return {pointer(shard.data) for shard in shards} - {None}


def sharing_memory(values: Sequence[Any]) -> list[int]:
    """Which of some pytrees, by position, share memory with a living array, or may.

    As many arrays are asked as there are, so each only once, and without a line of Python for it.
    """
    living = [array for platform in compat_call.platforms() for array in jax.live_arrays(platform)]
    try:
        places = [*map(compat.Array.unsafe_buffer_pointer, living)]
    except jax.errors.JaxRuntimeError:  # one is on several devices: its parts may be among ours
        return list(range(len(values)))
    known, together = set(map(id, living)), set[Any]()
    if len(set(places)) < len(places):
        count = Counter(places)
        together = {id(x) for x, p in zip(living, places, strict=True) if count[p] > 1 and x.size}
    return [i for i, each in enumerate(values) if not _apart(each, known, together)]


def _apart(value: Any, known: set[int], together: set[int]) -> bool:
    """Whether all arrays in a pytree are among the known ones, and not among the others."""
    leaves = jax.tree.leaves(value)
    if set(map(type, leaves)) != {compat.Array}:
        leaves = [leaf for leaf in leaves if type(leaf) is compat.Array]
    own = set(map(id, leaves))
    return own <= known and own.isdisjoint(together)


def pointer(array: Any) -> int | None:
    """Where an array is; None if it was deleted, is on several devices, or is none of JAX's."""
    try:
        place: int = array.unsafe_buffer_pointer()
    except (AttributeError, jax.errors.JaxRuntimeError):
        return None
    return place
