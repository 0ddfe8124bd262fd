"""Ask whether a step chooses to do nothing, where no truth value says so.

Before::

    x_n, s_n = scan[300] carry(x=x_0, s=0) {
      i = clamp 0 s 2
      x1, s1 = switch i case 0 { fall(x) } case 1 { slide(x) } case 2 { x, s }
      yield carry(x1, s1)
    }

After::

    x_n, s_n = scan[300] carry(x=x_0, s=0) {
      i = clamp 0 s 2
      k = select_n (ne i 2) i i
      x1, s1 = switch k case 0 { fall(x) } case 1 { slide(x) } case 2 { x, s }
      yield carry(x1, s1)
    }

A state machine rests in some states, a program halts. ``ne i 2`` is a truth value by which other
passes skip steps and end the loop early. Where several choices together make a step do nothing, one
truth value asks about all of them. Sound when

1. the number stays the same: both cases of the select are `i`.

It fires if a step that chooses so changes nothing, given what is known of the choices, and if no
predicate skips steps of the loop (`jaxpr_opt.analysis.steps.idle_choices`): not where the loop
would not ask whether to go on.

Cost: none. Where no loop ends early, XLA drops the question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import jax
from jax import lax

from jaxpr_opt.analysis.steps.idle_choices import Fact, Idle, find_idle
from jaxpr_opt.analysis.steps.questions import steps_a_question
from jaxpr_opt.builders.steps.any_row import any_row
from jaxpr_opt.engine.interface import Match, Pass
from jaxpr_opt.ir.graph import Op, Scan
from jaxpr_opt.ir.rewriter import Rewriter


@dataclass(frozen=True, slots=True, eq=False)
class IdleChoice(Match):
    """A scan, and the choices with which a step of it does nothing."""

    op: Scan
    idle: Idle


@dataclass(frozen=True)
class AskAboutChoices(Pass[IdleChoice]):
    """Choices of a step that changes nothing -> choices that are asked about."""

    name: ClassVar[str] = "ask-about-choices"
    anchors: ClassVar[tuple[type[Op], ...]] = (Scan,)

    def find(self, op: Scan) -> Iterator[IdleChoice]:
        idle = find_idle(op)
        if idle is not None and steps_a_question(op, idle.skip) is not None:
            asked = idle.skip.predicate
            says = f"a step is asked whether {asked.label} lets it do nothing"
            yield IdleChoice(op, says, idle, about=asked)

    def rewrite(self, match: IdleChoice, rw: Rewriter) -> None:
        scan, idle = match.op, match.idle
        asked = idle.skip.predicate
        after = asked.op.next if asked.op is not None else scan.body.first
        assert after is not None
        uses = set(asked.uses)
        predicate = rw.insert(_Question(tuple(idle.facts.values())), *idle.facts, before=after)
        new = rw.typed(lax.select_n, asked.aval, predicate, asked, asked, before=after)
        rw.replace(asked, new, uses.__contains__)  # (1)


@dataclass(frozen=True)
class _Question:
    """Whether a step does something: whether some choice is not one of these."""

    facts: tuple[Fact, ...]

    def __call__(self, *values: jax.Array) -> jax.Array:
        others = [_is_other(v, fact) for v, fact in zip(values, self.facts, strict=True)]
        if len({each.shape for each in others}) > 1:
            others = [any_row(each, True) for each in others]
        return reduce(lax.bitwise_or, others)


def _is_other(value: jax.Array, fact: Fact) -> jax.Array:
    if isinstance(fact, bool):
        return lax.bitwise_not(value) if fact else value
    compared = (lax.ne(value, lax.full_like(value, number)) for number in sorted(fact))
    return reduce(lax.bitwise_and, compared)
