"""A function compiled on the flat list of its arrays, some of which are donated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import jax

from jaxpr_opt.boundary import compiling
from jaxpr_opt.bridge import compat_types
from jaxpr_opt.donation.plan import Donation
from jaxpr_opt.ir.aliases import Alias

Types = tuple[Any, ...]


class OtherTypesError(Exception):
    """A function was called with types that its donation was not decided for."""

    def __init__(self, types: Types) -> None:
        super().__init__(types)
        self.types = types


@dataclass(eq=False, slots=True)
class Variant:
    """What runs for one structure of arguments, with one set of donated arrays."""

    run: Any
    """The jitted function of the arrays."""
    inputs: tuple[int, ...]
    """Which array each of its parameters is; the donated ones come first."""
    order: Callable[[Sequence[Any]], Sequence[Any]]
    """Puts arrays into that order."""
    finish: Callable[[Any], Any]
    """Turns what it returns into what the user's function returns."""
    donation: Donation
    donated: tuple[int, ...]
    types: set[Types]
    """The types that its donation was decided for."""
    results: Any
    """The structure of what the user's function returns."""

    def does_as(self, other: Variant) -> bool:
        """Whether the two donate the same arrays for the same results."""
        return self.donation.pairs == other.donation.pairs and self.results == other.results


def compiled(
    name: str,
    fun: Callable[[Sequence[Any]], Any],
    donation: Donation,
    traced: Any,
    options: dict[str, Any],
) -> Variant:
    """Make a variant.

    Args:
      name: of the function, for profiles and messages.
      fun: the function of the list of arrays.
      donation: what to donate.
      traced: `fun` traced, for the types of its arrays and its results.
      options: for `jax.jit`; shardings of the arrays as a list.
    """
    aliases = sorted(donation.aliases, key=lambda alias: alias.output)
    donated = tuple(alias.input for alias in aliases)
    count = len(traced.jaxpr.in_avals)
    inputs = (*donated, *(i for i in range(count) if i not in set(donated)))
    back = tuple(sorted(range(count), key=inputs.__getitem__))
    outputs = _outputs(aliases, [_type(a) for a in traced.jaxpr.out_avals])
    if "out_shardings" in options or outputs == list(range(len(outputs))):
        outputs = []
    structure = jax.tree.structure(traced.out_info)
    types: set[Types] = {tuple(traced.jaxpr.in_avals)}

    def flat(*arrays: Any) -> Any:
        leaves = [arrays[k] for k in back]
        made = tuple(map(compat_types.aval_of, leaves))
        if made not in types:
            raise OtherTypesError(made)
        out = fun(leaves)
        if not outputs:
            return out
        results = jax.tree.leaves(out)
        return [results[j] for j in outputs]

    def restored(made: Sequence[Any]) -> Any:
        results = dict(zip(outputs, made, strict=True))
        return jax.tree.unflatten(structure, [results[j] for j in range(len(outputs))])

    flat.__name__ = flat.__qualname__ = name
    if "in_shardings" in options:
        options = {**options, "in_shardings": tuple(options["in_shardings"][i] for i in inputs)}
    if donation.unread:
        options = {**options, "keep_unused": True}
    return Variant(
        run=compiling.jit(flat, donate_argnums=tuple(range(len(donated))), **options),
        inputs=inputs,
        order=itemgetter(*inputs) if count > 1 else tuple,
        finish=restored if outputs else _same,
        donation=donation,
        donated=donated,
        types=types,
        results=structure,
    )


def _same(made: Any) -> Any:
    return made


def _type(aval: Any) -> Any:
    return getattr(aval, "shape", None), getattr(aval, "dtype", None)


def _outputs(aliases: Sequence[Alias], types: Sequence[Any]) -> list[int]:
    """The order of results in which JAX, which takes those of a type as they come, finds the
    matched ones first.
    """
    matched = [alias.output for alias in aliases]
    places: dict[Any, list[int]] = {}
    for j, each in enumerate(types):
        places.setdefault(each, []).append(j)
    order = list(range(len(types)))
    for each in places.values():
        wanted = [j for j in matched if j in each] + [j for j in each if j not in matched]
        for place, j in zip(each, wanted, strict=True):
            order[place] = j
    return order
