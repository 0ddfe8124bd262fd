"""Does a program compute the same after passes have been at it?"""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from fuzz import masks
from fuzz.evaluate import MAX_STEPS_AFTER, EndlessError, Evaluator
from fuzz.firstorder import GARBAGE, OTHER_GARBAGE
from fuzz.lanes import LANES, Lanes
from fuzz.mutations import effects
from fuzz.mutations.places import copy_of
from jaxpr_opt import settings
from jaxpr_opt.bridge import compat, compat_types, dtypes
from jaxpr_opt.engine import registry
from jaxpr_opt.engine.interface import Pass, PassError
from jaxpr_opt.engine.pipeline import Pipeline
from jaxpr_opt.insight.journal import Journal
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.graph import UNDEFINED, Graph, Phase
from jaxpr_opt.ir.verify import VerifyError, verify
from jaxpr_opt.testing import assert_close, evaluate_exactly
from jaxpr_opt.testing.agreement import close
from tests.prices import AddedElsewhere

Kind = Literal["fault", "values", "said", "type", "compiled"]


@dataclass(frozen=True)
class Plan:
    """What passes run on a program."""

    pipeline: Pipeline
    phase: Phase
    label: str
    lanes: bool = False
    """Whether several devices run the program in step."""

    def rounds(self, fired: Container[str]) -> bool:
        """Whether what has fired may round results otherwise."""
        return any(each.rounds for each in self.pipeline.passes if each.name in fired)

    def runner(self, *args: Any, **options: Any) -> Any:
        """What runs it in NumPy."""
        return (Lanes if self.lanes else Evaluator)(*args, **options)


@dataclass(frozen=True)
class Difference:
    """What went wrong: a pass failed, or the program computes, says or returns something else."""

    kind: Kind
    text: str
    args: Sequence[Any] = ()

    @property
    def key(self) -> str:
        """What differences of one cause have in common, more or less."""
        plain = re.sub(r"[0-9]+|0x[0-9a-f]+|<[^>]*>", "N", self.text.splitlines()[0])
        return f"{self.kind} {plain[:160]}"


@dataclass
class Outcome:
    """What passes did to a program."""

    fired: tuple[str, ...] = ()
    reasons: frozenset[str] = frozenset()
    is_valid: bool = True
    difference: Difference | None = None
    unconfirmed: bool = False
    notes: list[str] = field(default_factory=list)


def whole(phase: Phase) -> Plan:
    """Every pass, as in `optimize`; sums move however small they are."""
    moves = AddedElsewhere()
    stages = tuple(
        tuple(moves if p.name == moves.name else p for p in stage)
        for stage in registry.resolve().stages
    )
    return Plan(Pipeline(stages), phase, "the whole pipeline")


def alone(each: Pass, phase: Phase, *, tidied: bool) -> Plan:
    """One pass, after and beside the passes that only tidy up."""
    cleanup = tuple(p for p in registry.available().values() if p.cleanup and p.name != each.name)
    phase = each.phase if phase == "differentiable" else phase
    stage = (*cleanup, each) if tidied else (each,)
    return Plan(Pipeline((stage,)), phase, each.name)


def run(graph: Graph, plan: Plan) -> tuple[Graph, Journal]:
    """A copy of a program, after passes."""
    made, _ = copy_of(graph)
    made.phase = plan.phase
    journal = Journal(plan.phase)
    with settings.override(strict=True, verify=False):
        plan.pipeline.apply(made, journal)
    verify(made)
    return made, journal


def check(graph: Graph, plan: Plan, arguments: Sequence[Sequence[Any]]) -> Outcome:
    """Run passes on a program, and compare it with what it was."""
    try:
        after, journal = run(graph, plan)
    except (PassError, VerifyError) as error:
        if not is_valid(graph):
            return Outcome(is_valid=False)
        return Outcome(difference=Difference("fault", f"{plan.label}: {error}"))
    fired = those_fired(journal)
    reasons = frozenset(
        f"{record.name}: {_plain(refusal.reason)}"
        for record in journal.records.values()
        for refusal in record.refusals
    )
    outcome = Outcome(fired, reasons)
    if fired:
        outcome.difference = compare(graph, after, arguments, outcome, plan)
    return outcome


def those_fired(journal: Journal) -> tuple[str, ...]:
    """The names of the passes that changed a program."""
    return tuple(r.name for r in journal.records.values() if r.rewrites)


def _plain(reason: str) -> str:
    """A reason without names and numbers."""
    return re.sub(r"\b([a-z]+\d+|[a-z]{1,2}|[a-z]+_\w+|\d+|[a-z]+\d*\[[\d,]*\])\b", "N", reason)


def is_valid(graph: Graph) -> bool:
    """Whether a program is one: mutations do not ask JAX about types."""
    try:
        verify(graph, types=True)
        compat.check_jaxpr(export(graph))
    except Exception:  # noqa: BLE001 - whatever JAX says, it is no program
        return False
    return True


def compare(
    before: Graph,
    after: Graph,
    arguments: Sequence[Sequence[Any]],
    outcome: Outcome | None = None,
    plan: Plan | None = None,
) -> Difference | None:
    """How two programs differ on some arguments; NumPy's opinion is confirmed by JAX."""
    outcome, run = outcome or Outcome(), Evaluator if plan is None else plan.runner
    old, new, lenient = run(before), run(after, steps=MAX_STEPS_AFTER), is_lenient(before)
    other = run(before, OTHER_GARBAGE) if has_unspecified(before) else None
    rounds = plan is not None and plan.rounds(outcome.fired)
    for args in arguments:
        try:
            want, said = heard(old, args)
            if other is not None and difference(want, said, *heard(other, args), lenient=False):
                outcome.is_valid = False  # it reads what nobody may look at
                return None
        except EndlessError:
            outcome.is_valid = False
            return None
        except Exception as error:  # noqa: BLE001 - what it was cannot be run
            outcome.is_valid = False
            outcome.notes.append(f"{type(error).__name__}: {str(error)[:200]}")
            return None
        try:
            got, repeated = heard(new, args)
            wrong = difference(want, said, got, repeated, lenient=lenient, rounds=rounds)
        except EndlessError:  # and would not in JAX
            found = Difference("values", "it does not end", args)
            return found if is_valid(before) else None
        except Exception as error:  # noqa: BLE001 - it cannot be run any more
            wrong = f"{type(error).__name__}: {error}"
        if wrong is not None and plan is not None and plan.lanes:
            return Difference("values", wrong, args) if is_valid(before) else None
        if wrong is not None:
            return confirmed(before, after, args, outcome, rounds=rounds)
    return None


def confirmed(
    before: Graph,
    after: Graph,
    args: Sequence[Any],
    outcome: Outcome | None = None,
    *,
    rounds: bool = False,
) -> Difference | None:
    """How two programs differ on some arguments, as JAX evaluates them op by op."""
    outcome = outcome or Outcome()
    if not is_valid(before):
        outcome.is_valid = False
        return None
    try:
        jaxpr = export(after)
        compat.check_jaxpr(jaxpr)
    except Exception as error:  # noqa: BLE001 - it is no program any more
        return Difference("type", f"{type(error).__name__}: {error}", args)
    with garbage():
        want, said = heard(lambda a: evaluate_exactly(before, *a), args)
    with garbage(range(OTHER_GARBAGE, GARBAGE)):
        other = heard(lambda a: evaluate_exactly(before, *a), args)
    if difference(want, said, *other, lenient=False):
        outcome.is_valid = False
        return None
    try:
        with garbage():
            got, repeated = heard(lambda a: evaluate_exactly(jaxpr, *a), args)
    except Exception as error:  # noqa: BLE001 - what it does is the find
        return Difference("fault", f"cannot be run: {type(error).__name__}: {error}", args)
    wrong = difference(want, said, got, repeated, is_lenient(before), rounds=rounds)
    rounded = rounds and wrong is not None and "is wrong" in wrong and has_narrow_floats(before)
    if wrong is None or rounded:
        outcome.unconfirmed = True
        return None
    return Difference("said" if wrong.startswith("said") else "values", wrong, args)


def has_unspecified(graph: Graph) -> bool:
    """Whether a program makes arrays that nobody may look at."""
    return any(op.name == UNDEFINED for op in graph.walk())


def has_narrow_floats(graph: Graph) -> bool:
    """Whether a program rounds to so few bits that a result may be another one altogether: the sine
    of a sum of bfloat16, say.
    """
    types = {v.dtype for op in graph.walk() for v in (*op.operands, *op.results)}
    return any(dtypes.is_inexact(dtype) and dtypes.bits(dtype) < 32 for dtype in types)


def is_lenient(graph: Graph) -> bool:
    """Whether JAX made some of it by transposing, or could have: zero times what is not finite may
    be zero, and what is unspecified, infinite.
    """
    return any(op.source.transposed or op.name == UNDEFINED for op in graph.walk())


def heard(fun: Any, args: Sequence[Any]) -> tuple[list[Any], list[float]]:
    """Results, and what was said."""
    effects.forget()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = fun(args)
        jax.effects_barrier()
    return out, effects.said()


def difference(
    want: Sequence[Any],
    said: list[float],
    got: Sequence[Any],
    repeated: list[float],
    lenient: bool,
    *,
    rounds: bool = False,
) -> str | None:
    """The first output that is not the same, up to the sign of zero and the kind of NaN; if it
    `rounds`, up to rounding.
    """
    before, after = (np.asarray(each, np.float32) for each in (said, repeated))
    is_rounded = rounds and before.shape == after.shape and np.all(close(before, after))
    if not (is_rounded or np.array_equal(said, repeated, equal_nan=True)):
        return f"said {said} and says {repeated}"
    for index, (x, y) in enumerate(zip(want, got, strict=True)):
        a, b = _array(x), _array(y)
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"output {index} was {a.dtype}{a.shape} and is {b.dtype}{b.shape}"
        with np.errstate(all="ignore"):
            same = (a == b) | ((a != a) & (b != b))  # noqa: PLR0124 - NaN
            if a.dtype.kind == "f":  # of zeros whose sign is free, these are the reciprocals
                same |= np.isinf(a) & np.isinf(b)
            if lenient and jnp.issubdtype(a.dtype, jnp.inexact):
                same |= ~np.isfinite(a)
            if rounds:
                same |= close(a, b)
        if not np.all(same):
            return f"output {index} is wrong{_error(a, b)}: it was\n{a}\nand is\n{b}"
    return None


def _error(a: Any, b: Any) -> str:
    """How far apart finite numbers are: loops that amplify rounding show in double precision."""
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        return ""
    finite = np.isfinite(a) & np.isfinite(b)
    apart, largest = (np.max(np.abs(x), where=finite, initial=0) for x in (a - b, a))
    return f" by {apart / largest if largest else apart:.2g} of the largest"


def _array(x: Any) -> Any:
    if not isinstance(x.dtype, np.dtype):
        x = jax.random.key_data(x)
    return np.asarray(x)


@contextlib.contextmanager
def garbage(numbers: Iterable[int] = (GARBAGE,)) -> Iterator[None]:
    """Unspecified arrays hold what nobody may look at: each the next number."""
    kept, given = compat_types.undefined, cycle(numbers)

    def undefined(aval: Any) -> Any:
        if not isinstance(aval.dtype, np.dtype) or aval.dtype == jax.dtypes.float0:
            return kept(aval)
        return jnp.full(aval.shape, next(given), aval.dtype)

    compat_types.undefined = undefined
    try:
        yield
    finally:
        compat_types.undefined = kept


# -- arguments ------------------------------------------------------------------------------------


def arguments(graph: Graph, rng: np.random.Generator) -> list[list[Any]]:
    """Three sets of arguments: ordinary, floats that are special, integers at the limits; some of
    the others are masks.
    """
    avals = [v.aval for v in graph.inputs]
    return [[_drawn(aval, rng, how) for aval in avals] for how in ("plain", "special", "limits")]


def for_lanes(graph: Graph, rng: np.random.Generator) -> list[list[Any]]:
    """The same for several devices: some arguments are alike on all of them."""
    first, *others = (arguments(graph, rng) for _ in range(LANES))
    shared = rng.random(len(graph.inputs)) < 0.3
    return [
        [
            _array_of([args[k], *(args[k] if shared[k] else each[n][k] for each in others)])
            for k in range(len(args))
        ]
        for n, args in enumerate(first)
    ]


def _array_of(rows: Sequence[Any]) -> Any:
    return np.stack(rows) if isinstance(rows[0].dtype, np.dtype) else jnp.stack(rows)


def _drawn(aval: Any, rng: np.random.Generator, how: str) -> Any:
    shape, dtype = aval.shape, aval.dtype
    if not isinstance(dtype, np.dtype):
        key = jax.random.key(int(rng.integers(1000)))
        return jax.random.split(key, math.prod(shape)).reshape(shape)
    if dtype == jax.dtypes.float0:
        return np.zeros(shape, dtype)
    if dtype == np.bool_:
        return np.asarray(rng.random(shape) < rng.choice((0.5, 0.9, 0.1)))
    if jnp.issubdtype(dtype, jnp.integer):
        return _integers(shape, dtype, rng, how)
    values = np.asarray(rng.standard_normal(shape))
    if how != "plain" and rng.random() < 0.4:
        values = masks.numbers(shape, rng, is_special=how == "special")
    elif how == "special":
        values = np.where(rng.random(shape) < 0.3, rng.choice(masks.SPECIAL, size=shape), values)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = values + 1j * rng.standard_normal(shape)
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(dtype)


def _integers(shape: Any, dtype: Any, rng: np.random.Generator, how: str) -> Any:
    if how == "plain":
        return np.asarray(rng.integers(4, size=shape)).astype(dtype)
    if how == "special":
        return np.asarray(rng.integers(-3, 9, size=shape)).astype(dtype)
    if rng.random() < 0.3:
        return masks.numbers(shape, rng, is_special=False).astype(dtype)
    info = jnp.iinfo(dtype)
    edges = [info.min, info.max, int(info.max) - 1, 0, 1, 3, max(int(info.min), -1)]
    wide = np.int64 if int(info.max) < 2**63 else np.uint64
    drawn = [int(edges[k]) for k in rng.integers(len(edges), size=math.prod(shape))]
    return np.asarray(drawn, wide).astype(dtype).reshape(shape)


def compiled(graph: Graph, plan: Plan, arguments: Sequence[Sequence[Any]]) -> Difference | None:
    """How a program and what passes make of it differ when XLA has compiled both, by more than
    rounding.
    """
    from jax.extend.core import jaxpr_as_fun

    if not is_valid(graph):
        return None
    after, _ = run(graph, plan)
    before, changed = export(graph), export(after)
    compat.check_jaxpr(changed)
    if any(aval_changed(a, b) for a, b in zip(before.out_avals, changed.out_avals, strict=True)):
        return Difference("type", f"outputs were {before.out_avals} and are {changed.out_avals}")
    try:
        jax.jit(jaxpr_as_fun(before)).lower(*before.in_avals)
    except Exception:  # noqa: BLE001 - JAX has no code for it, or such as XLA refuses
        return None
    both = jax.jit(lambda *xs: (jaxpr_as_fun(before)(*xs), jaxpr_as_fun(changed)(*xs)))
    for args in arguments:
        (want, got), _ = heard(lambda a: both(*a), args)
        if all(is_finite(x) for x in want):
            try:
                assert_close(want, got)
            except AssertionError as error:
                return Difference("compiled", str(error), args)
    return None


def is_finite(x: Any) -> bool:
    """Whether an array has no NaN and no infinity; what has no numbers (float0) has none."""
    array = _array(x)
    return array.dtype == jax.dtypes.float0 or bool(np.isfinite(array.astype(np.complex128)).all())


def aval_changed(old: Any, new: Any) -> bool:
    """Whether the type of an output is another one, or weak where it was not."""
    weak = [getattr(each, "weak_type", None) for each in (old, new)]
    return bool(old != new or weak[0] != weak[1])
