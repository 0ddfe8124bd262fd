"""For tests: of programs (`jaxpr_opt.testing.assertions`), and of passes.

For authors of passes: does a rewrite do what it says, and compute the same?

::

    check_rewrite("my-pass", lambda x: -(-x), "f32[3]", diff='''
      fn (x:f32[3]) {
    -   n:f32[3] = neg x
    -   n1:f32[3] = neg n
    -   return n1
    +   return x
      }
    ''')
    check_refuses("my-pass", lambda x: (-x, -(-x)), "f32[3]", because="n is read elsewhere")

The program is traced on its arguments, which are arrays or types written as `"f32[3]"`.  The diff
is compared whole, and never alone: a golden text can bless a wrong rewrite, numbers cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from textwrap import dedent, indent
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from jaxpr_opt import settings
from jaxpr_opt.bridge import compat
from jaxpr_opt.engine import registry
from jaxpr_opt.engine.interface import Pass
from jaxpr_opt.engine.pipeline import Pipeline
from jaxpr_opt.insight.journal import Journal, PassRecord
from jaxpr_opt.insight.summary import stacked_bytes
from jaxpr_opt.ir.exporter import export
from jaxpr_opt.ir.graph import Graph
from jaxpr_opt.ir.importer import import_jaxpr
from jaxpr_opt.ir.verify import verify
from jaxpr_opt.reports.diff import GraphDiff, diff_graphs
from jaxpr_opt.testing.agreement import assert_close, assert_same_bits, assert_same_derivatives
from jaxpr_opt.testing.assertions import assert_growth, assert_residual_bytes, assert_same
from jaxpr_opt.testing.exact import evaluate_exactly
from jaxpr_opt.testing.sampling import EDGES, parse_type, random_inputs

__all__ = [
    "assert_close",
    "assert_growth",
    "assert_residual_bytes",
    "assert_same",
    "assert_same_bits",
    "assert_same_derivatives",
    "check_refuses",
    "check_rewrite",
    "evaluate_exactly",
    "random_inputs",
    "run_alone",
]

Program = Callable[..., Any] | ClosedJaxpr | Graph


def check_rewrite(
    pass_or_name: Pass[Any] | str,
    program: Program,
    *args: Any,
    diff: str,
    saves_bytes: int | None = None,
    grad: bool = True,
    simplify: bool = False,
    in_range: bool = False,
) -> GraphDiff:
    """Check that a pass changes a program in exactly this way, and that it computes the same.

    In this order: the pass leaves a valid program of the same type; its values are the same bits on
    all arguments, equation by equation (a pass that changes the order of sums: the same up to
    rounding, without infinities); its derivatives agree; run again, it finds nothing; the journal
    lists the rewrites; the diff is `diff`.

    The arguments are, first, the arrays among `args`, with random ones for types.  Then all are
    drawn, four times: normal floats, in the last two with NaNs, or with infinities and zeros of
    both signs; integers from 0 to 3, but after the first time from -n-1 to n+1, where n is a size
    of an axis of an argument, or the least or largest of their type: indices may be out of range.

    Args:
      pass_or_name: the pass.
      program: a function to be traced on `args`, a jaxpr, or a graph.
      *args: arrays, or types written as `"f32[3]"`.
      diff: the whole diff; its indentation does not matter.
      saves_bytes: how many bytes of stacks, which one loop writes and another reads, it saves.
      grad: compare derivatives too, where the pass is differentiable.
      simplify: run the clean-up passes before and after.
      in_range: draw integers from 0 to 3 only, for a program that promises something of them.

    Returns:
      The difference of the programs.

    Raises:
      AssertionError: one of these checks fails.

    Example:
      >>> made = check_rewrite("simplify", lambda x: x * 1.0, "f32[3]", diff='''
      ...   fn (x:f32[3]) {
      ... -   m:f32[3] = mul x 1.0
      ... -   return m
      ... +   return x
      ...   }
      ... ''')
    """
    each, cleanup = _resolve(pass_or_name, simplify)
    jaxpr = traced(program, *args)
    before, after = import_jaxpr(jaxpr, each.phase), import_jaxpr(jaxpr, each.phase)
    run_alone(cleanup, before)
    record = run_alone((each, *cleanup), after).record(each.name, each.cleanup)
    verify(after, types=True)
    exported = export(after)
    compat.check_jaxpr(exported)
    _check_interface(jaxpr, exported)
    *arguments, edges = _argument_sets(jaxpr, args, in_range)
    agree = assert_close if each.rounds else assert_same_bits
    for argument in arguments if each.rounds else (*arguments, edges):
        agree(evaluate_exactly(before, *argument), evaluate_exactly(after, *argument))
    if grad and each.phase != "final":
        argument = _argument_sets(jaxpr, args, in_range)[0]
        assert_same_derivatives(jaxpr_as_fun(jaxpr), jaxpr_as_fun(exported), *argument)
    again = run_alone((each, *cleanup), import_jaxpr(exported, each.phase)).record(
        each.name, each.cleanup
    )
    assert not again.rewrites, f"{each.name} run again finds more: {again.rewrites[0].says}"
    found = diff_graphs(before, after)
    _check_record(record, found)
    _check_text(found.to_text(), diff)
    if saves_bytes is not None:
        saved = stacked_bytes(before) - stacked_bytes(after)
        assert saved == saves_bytes, f"saves {saved} bytes of residuals, not {saves_bytes}"
    return found


def check_refuses(
    pass_or_name: Pass[Any] | str,
    program: Program,
    *args: Any,
    because: str,
    simplify: bool = False,
) -> None:
    """Check that a pass does not change a program, and that one of its reasons contains `because`.

    Raises:
      AssertionError: it changes the program, or gives other reasons.
    """
    each, cleanup = _resolve(pass_or_name, simplify)
    graph = import_jaxpr(traced(program, *args), each.phase)
    run_alone(cleanup, graph)
    record = run_alone((each,), graph).record(each.name, each.cleanup)
    assert not record.rewrites, f"{each.name} did not refuse: {record.rewrites[0].says}"
    reasons = [refusal.reason for refusal in record.refusals]
    listed = "\n  ".join(reasons) or "it found nothing to refuse"
    assert any(because in reason for reason in reasons), f"{each.name}, its reasons:\n  {listed}"


def traced(program: Program, *args: Any) -> ClosedJaxpr:
    """The jaxpr of a program on arguments that may be types such as `"f32[3]"`."""
    if isinstance(program, Graph):
        return export(program)
    if isinstance(program, ClosedJaxpr):
        return program
    typed = [parse_type(a) if isinstance(a, str) else a for a in args]
    return jax.make_jaxpr(program)(*typed)


def run_alone(passes: Sequence[Pass[Any]], graph: Graph) -> Journal:
    """Run passes to a fixpoint on a graph, in place; returns what they did.  Faults are raised."""
    journal = Journal(graph.phase)
    if passes:
        with settings.override(strict=True, verify=True):
            Pipeline((tuple(passes),)).apply(graph, journal)
    return journal


def _resolve(
    pass_or_name: Pass[Any] | str, simplify: bool
) -> tuple[Pass[Any], tuple[Pass[Any], ...]]:
    each = registry.named(pass_or_name) if isinstance(pass_or_name, str) else pass_or_name
    cleanups = tuple(p for p in registry.available().values() if p.cleanup)
    return each, cleanups if simplify else ()


def _argument_sets(jaxpr: ClosedJaxpr, args: tuple[Any, ...], in_range: bool) -> list[list[Any]]:
    """Flat arguments to run on: random ones, special ones, and first those with given arrays."""
    special: list[tuple[float, ...]] = [(), (), (math.nan,), EDGES]
    drawn = [
        random_inputs(jaxpr.in_avals, seed, special=s, places=seed > 0 and not in_range)
        for seed, s in enumerate(special)
    ]
    leaves = jax.tree.leaves(args)
    if len(leaves) != len(jaxpr.in_avals) or not any(map(_is_given, leaves)):
        return drawn
    pairs = zip(leaves, drawn[0], strict=True)
    return [[jnp.asarray(leaf, d.dtype) if _is_given(leaf) else d for leaf, d in pairs], *drawn]


def _is_given(leaf: Any) -> bool:
    """Whether an argument is a value, not a type."""
    return hasattr(leaf, "__array__") or isinstance(leaf, int | float | complex)


def _check_interface(before: ClosedJaxpr, after: ClosedJaxpr) -> None:
    for old, new in zip(before.out_avals, after.out_avals, strict=True):
        weak = [getattr(aval, "weak_type", None) for aval in (old, new)]
        assert old == new and weak[0] == weak[1], f"an output was {old} and became {new}"


def _check_record(record: PassRecord, found: GraphDiff) -> None:
    assert bool(record.rewrites) == found.changed, (
        f"{record.name} tells of {len(record.rewrites)} rewrites, but the program "
        f"{'changed' if found.changed else 'is the same'}"
    )
    assert all(each.says and each.edits for each in record.rewrites), "a rewrite without words"


def _check_text(actual: str, expected: str) -> None:
    plain = [line.rstrip() for line in dedent(expected).strip("\n").splitlines()]
    assert dedent(actual).splitlines() == plain, "the diff is\n\n" + indent(actual, "    ") + "\n"
