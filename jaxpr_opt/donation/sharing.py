"""Arrays that are one and the same, or two in one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax

from jaxpr_opt import compat


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
    """Which of some pytrees, by position, share memory with a living array, or may."""
    leaves = [
        [leaf for leaf in jax.tree.leaves(value) if type(leaf) is compat.Array] for value in values
    ]
    shardings = [leaf.sharding for each in leaves for leaf in each]
    platforms = {
        d.platform
        for s in dict(zip(map(id, shardings), shardings, strict=True)).values()
        for d in s.device_set
    }
    living = [array for platform in platforms for array in jax.live_arrays(platform)]
    try:
        places = [array.unsafe_buffer_pointer() for array in living]
    except jax.errors.JaxRuntimeError:  # one is on several devices: its parts may be among ours
        return list(range(len(values)))
    place = dict(zip(map(id, living), places, strict=True))
    count: dict[int, int] = Counter(places) if len(set(places)) < len(places) else {}
    return [
        i
        for i, each in enumerate(leaves)
        if any(
            id(leaf) not in place or (count and leaf.size and count[place[id(leaf)]] > 1)
            for leaf in each
        )
    ]


def pointer(array: Any) -> int | None:
    """Where an array is; None if it was deleted, is on several devices, or is none of JAX's."""
    try:
        place: int = array.unsafe_buffer_pointer()
    except (AttributeError, jax.errors.JaxRuntimeError):
        return None
    return place
