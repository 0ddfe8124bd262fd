"""Store truth values that a step makes as bits of one number.

Before::

    c, ps, qs = scan[8] carry(c=z) xs(x=xs) {
      p = gt c -1.0
      q = lt c 1.0
      yield carry(f c x) ys(p, q)
    }
    g = scan[8, reverse] carry(d=ct) xs(p=ps, q=qs) { h d p q }

After::

    c, bs = scan[8] carry(c=z) xs(x=xs) {
      p = gt c -1.0
      q = lt c 1.0
      b = or (convert_element_type p) (shift_left (convert_element_type q) 1)
      yield carry(f c x) ys(b)
    }
    g = scan[8, reverse] carry(d=ct) xs(b=bs) {
      p = ne (and b 1) 0
      q = ne (and b 2) 0
      h d p q
    }

The gradients of `max`, `min`, `clip`, `relu` and `where` read masks, each a byte an element; JAX's
gradient of a clamp reads four. Sound when

1. the stacks are read only row by row, in loops or nests of loops of as many steps; enclosing loops
   may stack them again;
2. they are truth values of one shape, at most eight, which the step itself makes.

Cost: a few ops on bytes in place of the bytes of all masks but one. It fires if these are much of
what a reader reads, and no row tells a loop quickly which of its steps do nothing: later passes ask
the mask itself. The gradient of a clamp of 2,048 numbers in 128 steps takes 0.5 of the time of
plain JAX on 0.12 and 0.8 on 0.10, of 32,768 numbers 0.15 (0.25 with a byte for each mask), in an
eighth of the memory. `narrow-residuals` knows the price, and stores masks in place of numbers that
are made of them.
Source: Griewank and Walther, Evaluating Derivatives (2008), 4.2: what a reverse sweep needs of a
choice is the choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from jaxpr_opt.analysis.residuals.packed_truths import packable, why_apart
from jaxpr_opt.builders.residual_transfer import restack, stacked
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Scan, Stack
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class TruthValues(Match):
    """Stacks of truth values of one shape."""

    op: Scan
    stacks: tuple[Stack, ...]


@dataclass(frozen=True)
class PackTruthValues(Pass[TruthValues]):
    """Stacks of masks -> one stack of numbers whose bits they are."""

    name: ClassVar[str] = "pack-truth-values"
    whole_arrays: ClassVar[bool] = True
    thrifty: ClassVar[bool] = True
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[TruthValues]:
        for stacks in packable(op):  # (1), (2)
            says = f"{len(stacks)} masks are bits of one number for each element"
            first = stacks[0]
            yield TruthValues(op, says, stacks, at=first.value.op, about=first.result)

    def refuse(self, match: TruthValues) -> str | None:
        return why_apart(match.stacks)

    def rewrite(self, match: TruthValues, rw: Rewriter) -> None:
        scan, values = match.op, [stack.value for stack in match.stacks]
        numbers = stacked(rw.insert(_packed, *values, before=scan.body.terminator), scan, rw)
        bits = ((stack, partial(_truth, bit)) for bit, stack in enumerate(match.stacks))
        restack(scan, {stack: (numbers, back) for stack, back in bits}, rw)


def _packed(*truths: jax.Array) -> jax.Array:
    number = lax.convert_element_type(truths[0], jnp.uint8)
    for bit, truth in enumerate(truths[1:], 1):
        each = lax.convert_element_type(truth, jnp.uint8)
        number = lax.bitwise_or(number, lax.shift_left(each, lax.full_like(each, bit)))
    return number


def _truth(bit: int, number: jax.Array) -> jax.Array:
    mask = lax.full_like(number, 1 << bit)
    return lax.ne(lax.bitwise_and(number, mask), lax.full_like(number, 0))
