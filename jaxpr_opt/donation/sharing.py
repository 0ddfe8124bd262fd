"""Arguments that are the same array, or arrays that share memory."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax

from jaxpr_opt.bridge import compat, compat_call


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


def sharing_memory(values: Sequence[Sequence[Any]]) -> list[int]:
    """Which of some lists of arrays, by position, share memory with a living array, or may.

    There may be many arrays: each is asked once, and not by a line of Python.
    """
    living = compat_call.living()
    ours = set(map(id, itertools.chain.from_iterable(values)))
    try:
        places = [*map(compat.Array.unsafe_buffer_pointer, living)]
    except jax.errors.JaxRuntimeError:  # one is on several devices: its parts may be among ours
        return list(range(len(values)))
    apart = ours.intersection(map(id, living))
    if len(set(places)) < len(places):
        count = Counter(places)
        apart -= {id(x) for x, p in zip(living, places, strict=True) if count[p] > 1 and x.size}
    if len(apart) == len(ours):
        return []
    return [i for i, arrays in enumerate(values) if not apart.issuperset(map(id, arrays))]


def pointer(array: Any) -> int | None:
    """Where an array is; None if it was deleted, is on several devices, or is none of JAX's."""
    try:
        place: int = array.unsafe_buffer_pointer()
    except (AttributeError, jax.errors.JaxRuntimeError):
        return None
    return place
