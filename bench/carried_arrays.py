"""Loops that carry arrays, as users write them, against what their authors would write by hand.

Each family is a program of examples/, swept over its size. Plain JAX runs for half a second at most
at the largest. What is differentiated is differentiated with respect to `gradient`, its arguments.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
from rich.console import Console

from bench.harness import Program, optimizer, optional
from bench.sweep import Options, sweep
from examples import (
    alignment,
    chosen_rows,
    delay_equation,
    dropped_work,
    fractional_order,
    kv_cache,
    lookups,
    many_carries,
    one_by_one,
    padded_sequences,
    particle_paths,
    phases,
    ragged_writes,
    rollouts,
    sent_tokens,
    spin_flips,
)
from examples import carried_slices as slices
from examples import rare_lookups as rare
from examples import rare_resets as resets
from examples import scaled_in_place as scaled
from examples import shifted_rows as shifts

HAND = "by hand"
KEPT = "by hand, products kept"

Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Family:
    """A user's program and its peers; `others` make theirs, and may find their package missing."""

    name: str
    plain: Function
    hand: Function
    arguments: Callable[[int], tuple[Any, ...]]
    largest: int
    gradient: int | tuple[int, ...] | None = 0
    others: dict[str, Callable[[], Function]] = dataclasses.field(default_factory=dict)

    def sizes(self, quick: bool) -> list[int]:
        """Three doublings; a quick run looks at their ends, and at smaller programs."""
        return [self.largest // n for n in ((16, 2) if quick else (8, 4, 2, 1))]

    def candidates(self) -> Iterator[tuple[str, Callable[[], Function]]]:
        """What is measured: the first tells what the others must give."""
        yield "plain JAX", lambda: self._differentiated(self.plain)
        yield HAND, lambda: self._differentiated(self.hand)
        for name, make in self.others.items():
            yield name, functools.partial(self._made, make)
        yield "jaxpr-opt", lambda: optimizer()(self._differentiated(self.plain))
        if self.gradient is not None:
            inside = "jaxpr-opt inside grad"
            yield inside, lambda: self._differentiated(optimizer()(self.plain))

    def _made(self, make: Callable[[], Function]) -> Function:
        return self._differentiated(make())

    def _differentiated(self, function: Function) -> Function:
        return function if self.gradient is None else jax.grad(function, self.gradient)


def _equinox_scan() -> Function:
    scan = optional("equinox.internal", "equinox").scan
    buffers = lambda carry: carry[2]  # noqa: E731
    scan = functools.partial(scan, kind="checkpointed", checkpoints="all", buffers=buffers)
    return functools.partial(slices.seed, scan=scan)


def _equinox_while() -> Function:
    loop = optional("equinox.internal", "equinox").while_loop
    loop = functools.partial(loop, kind="lax", buffers=lambda carry: carry[1])
    return functools.partial(ragged_writes.batched_while, while_loop=loop)


FAMILIES = [
    Family(
        "slices",
        slices.seed,
        slices.seed_by_hand,
        slices.arguments,
        65536,
        others={"equinox": _equinox_scan},
    ),
    Family("slices, written by where", slices.masked, slices.seed_by_hand, slices.arguments, 16384),
    Family(
        "slices, write or not",
        slices.guarded,
        slices.guarded_by_hand,
        slices.guarded_arguments,
        16384,
    ),
    Family(
        "slices, ragged batch", slices.ragged, slices.guarded_by_hand, slices.ragged_arguments, 4096
    ),
    Family("slices, read whole", slices.dotted, slices.dotted_by_hand, slices.arguments, 8192),
    Family("recurrence", slices.recurrence, slices.recurrence_by_hand, slices.arguments, 32768),
    Family(
        "nested, elements",
        slices.nested_elements,
        slices.nested_by_hand,
        slices.many_rows,
        4096,
        others={"by hand, one loop": lambda: slices.nested_in_one},
    ),
    Family(
        "nested, one index",
        slices.nested_flat,
        slices.nested_by_hand,
        slices.many_rows,
        512,
    ),
    Family(
        "nested, rows",
        slices.nested_rows,
        slices.nested_by_hand,
        slices.long_rows,
        16384,
        others={"by hand, one loop": lambda: slices.nested_in_one},
    ),
    Family(
        "vmap of scan and cond",
        ragged_writes.batched_cond,
        ragged_writes.batched_cond_by_hand,
        ragged_writes.starts,
        16384,
        gradient=None,
        others={"by hand, stacked": lambda: ragged_writes.columns_stacked},
    ),
    Family(
        "vmap of while",
        ragged_writes.batched_while,
        ragged_writes.batched_while_by_hand,
        ragged_writes.spans,
        16384,
        gradient=None,
        others={
            "by hand, rows in turn": lambda: ragged_writes.rows_in_turn,
            "equinox": _equinox_while,
        },
    ),
    Family(
        "edit distance",
        alignment.edit_distance,
        alignment.edit_distance_by_hand,
        alignment.words,
        4096,
        gradient=None,
        others={"by hand, stacked": lambda: alignment.edit_distance_stacked},
    ),
    Family(
        "soft alignment",
        alignment.soft_alignment,
        alignment.soft_alignment_by_hand,
        alignment.arguments,
        2048,
    ),
    Family(
        "soft alignment, one loop",
        alignment.soft_alignment_in_one_loop,
        alignment.soft_alignment_by_hand,
        alignment.arguments,
        2048,
    ),
    Family(
        "paths of particles",
        particle_paths.paths,
        particle_paths.paths_by_hand,
        particle_paths.arguments,
        2048,
        gradient=None,
    ),
    Family(
        "delay equation",
        delay_equation.mean,
        delay_equation.mean_by_hand,
        delay_equation.arguments,
        8192,
    ),
    Family(
        "delay equation, forward",
        delay_equation.mean,
        delay_equation.mean_by_hand,
        delay_equation.arguments,
        8192,
        gradient=None,
    ),
    Family(
        "trajectories",
        rollouts.trajectories,
        rollouts.trajectories_by_hand,
        rollouts.arguments,
        2048,
    ),
    Family(
        "replay",
        rollouts.replay,
        rollouts.replay_by_hand,
        rollouts.replay_arguments,
        8192,
        others={KEPT: lambda: functools.partial(rollouts.replay_by_hand, keep=True)},
    ),
    Family(
        "KV cache, decoding",
        kv_cache.decode,
        kv_cache.decode,
        kv_cache.arguments,
        1024,
        gradient=None,
    ),
    Family("KV cache, gradient", kv_cache.loss, kv_cache.loss_by_hand, kv_cache.arguments, 1024),
    Family("embeddings", lookups.tokens, lookups.tokens_by_hand, lookups.arguments, 16384),
    Family(
        "embeddings, nested",
        lookups.sentences,
        lookups.sentences_by_hand,
        lookups.sentences_arguments,
        16384,
    ),
    Family("embeddings, some steps", rare.events, rare.events_by_hand, rare.arguments, 8192),
    Family(
        "embeddings, trained",
        lookups.trained,
        lookups.trained_by_hand,
        lookups.arguments,
        8192,
        gradient=None,
    ),
    Family(
        "tables, one row a step",
        one_by_one.rated,
        one_by_one.rated_by_hand,
        one_by_one.ratings,
        8192,
    ),
    Family(
        "accounts",
        one_by_one.booked,
        one_by_one.booked_by_hand,
        one_by_one.events,
        8192,
    ),
    Family("spin flips", spin_flips.flipped, spin_flips.flipped_by_hand, spin_flips.grid, 8192),
    Family(
        "columns of a state", spin_flips.struck, spin_flips.struck_by_hand, spin_flips.pushed, 8192
    ),
    Family(
        "rows of all pairs",
        chosen_rows.farthest,
        chosen_rows.farthest_by_hand,
        chosen_rows.arguments,
        2048,
    ),
    Family(
        "rows of a kernel",
        chosen_rows.factored,
        chosen_rows.factored_by_hand,
        chosen_rows.arguments,
        2048,
    ),
    Family(
        "ratings of pairs",
        chosen_rows.rated,
        chosen_rows.rated_by_hand,
        chosen_rows.ratings,
        2048,
    ),
    Family(
        "losses of few steps",
        dropped_work.spotted,
        dropped_work.spotted_by_hand,
        dropped_work.arguments,
        1024,
    ),
    Family("experts", dropped_work.routed, dropped_work.routed_by_hand, dropped_work.routes, 512),
    Family(
        "sent tokens",
        sent_tokens.loss,
        sent_tokens.loss_by_hand,
        sent_tokens.arguments,
        512,
    ),
    Family(
        "fractional order",
        fractional_order.error,
        fractional_order.error_by_hand,
        fractional_order.arguments,
        1024,
        gradient=(0, 1),
    ),
    Family("phases", phases.warm_up, phases.warm_up_by_hand, phases.arguments, 4096),
    Family(
        "phases that come round", phases.corrected, phases.corrected_by_hand, phases.arguments, 4096
    ),
    Family(
        "padded sequences",
        padded_sequences.last_states,
        padded_sequences.last_states_by_hand,
        padded_sequences.arguments,
        512,
    ),
    Family(
        "padded losses",
        padded_sequences.losses,
        padded_sequences.losses_by_hand,
        padded_sequences.arguments,
        512,
    ),
    Family(
        "resets of a batch",
        resets.rollouts,
        resets.rollouts_by_hand,
        resets.arguments,
        512,
        gradient=None,
    ),
    Family(
        "parameters by layer",
        lookups.layers,
        lookups.layers_by_hand,
        lookups.layers_arguments,
        128,
        others={KEPT: lambda: functools.partial(lookups.layers_by_hand, keep=True)},
    ),
    Family(
        "shifts (jax#17845)",
        shifts.take,
        shifts.take_by_hand,
        shifts.take_arguments,
        65536,
        gradient=None,
    ),
    Family(
        "shifts, gradient (jax#17640)",
        shifts.moves,
        shifts.moves_by_hand,
        shifts.arguments,
        4096,
        gradient=(0, 1),
    ),
    Family(
        "multiplied in place",
        scaled.ledger,
        scaled.ledger_by_hand,
        scaled.arguments,
        8192,
        gradient=(0, 1),
    ),
    Family(
        "many carries (jax#40150)",
        many_carries.filtered,
        many_carries.filtered_by_hand,
        many_carries.arguments,
        32,
    ),
]


def programs(quick: bool) -> list[Program]:
    """Every candidate of every family at every size."""
    return [
        Program(
            name=name,
            make=make,
            arguments=arguments,
            group=family.name,
            size=size,
            answer=size,
        )
        for family in FAMILIES
        for size in family.sizes(quick)
        for arguments in [family.arguments(size)]
        for name, make in family.candidates()
    ]


def run(options: Options, console: Console) -> None:
    """Measure and show."""
    sweep("carried_arrays", programs(options.quick), options, console, reference=HAND)
