"""Writes of branches after their cond, and what reads them in a second cond."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax.numpy as jnp

from jaxpr_opt.analysis.values.constants import identity, is_undefined
from jaxpr_opt.analysis.windows.access import access
from jaxpr_opt.analysis.writes.branch_writes import BranchWrites, may_be_early
from jaxpr_opt.ir.dataflow import backward_slice, depending_on, inputs
from jaxpr_opt.ir.graph import Cond, Op, Outcome, Region, Value
from jaxpr_opt.ir.rewriter import Rewriter


def write_after(writes: BranchWrites, result: Value, rw: Rewriter) -> None:
    """Let a cond yield the window that a branch writes; the result is written after it."""
    cond, first = writes.cond, writes.made[0]
    assert cond.next is not None
    array = first.array
    if writes.are_of_zeros:
        array = rw.insert(partial(jnp.zeros, array.shape, array.dtype), before=cond)
    values = {i: write.value for i, write in enumerate(writes.writes) if write is not None}
    places = {i: write.indices for i, write in enumerate(writes.writes) if write is not None}
    if None in writes.writes:
        moved = rw.clone(writes.places(), {}, cond)
        moved |= {v: rw.full(0, v.aval, before=cond) for v in writes.unspecified}
        there = tuple(moved.get(v, v) for v in first.indices)
        old = rw.typed(first.read, first.value.aval, array, *there, before=cond)
        places = places if len(places) > 1 or writes.unspecified else {}
    else:
        there, old = first.indices, first.value
    branches = range(len(cond.branches))
    each = [places.get(i, there) for i in branches]
    cases = tuple(values.get(i, old) for i in branches)
    window = Outcome(rw.new_value(first.value.aval), cases)
    chosen = [_chosen(numbers, rw) for numbers in zip(*each, strict=True)]
    new = [o for o in chosen if isinstance(o, Outcome)]
    at = [o.result if isinstance(o, Outcome) else o for o in chosen]
    aval, operands = first.op.result.aval, (array, window.result, *at)
    rw.replace(result, rw.typed(first.again, aval, *operands, before=cond.next))
    kept = [window if o.result is result else o for o in cond.outcomes]
    rw.set_cond(cond, [*kept, *new])
    for write in writes.made:
        rw.erase(write.op)


def split_after(cond: Cond, all_writes: Sequence[BranchWrites], rw: Rewriter) -> list[Value]:
    """Move what reads some arrays after branches have written to them into a second cond, and let
    the first yield these arrays; return them.
    """
    versions = [_yielded(cond, writes.versions, rw) for writes in all_writes]
    late = [
        _late(branch, [each.values[case] for each in versions])
        for case, branch in enumerate(cond.branches)
    ]
    made = {write.op.result for writes in all_writes for write in writes.made}
    made |= {result for ops in late for op in ops for result in op.results}
    results = {each.result for each in versions}
    moved = [o for o in cond.outcomes if o.result not in results and not made.isdisjoint(o.values)]

    assert cond.next is not None
    regions = [rw.new_region() for _ in cond.branches]
    second = rw.new_cond(cond.selector, regions, like=cond, before=cond.next)
    for ops, region in zip(late, regions, strict=True):
        for op in ops:
            rw.move(op, region.terminator)
    there = [{each.values[case]: each.result for each in versions} for case in range(len(regions))]
    outcomes = []
    for old, values in moved:
        seen = tuple(names.get(value, value) for names, value in zip(there, values, strict=True))
        outcomes.append(Outcome(rw.new_value(old.aval, old.name), seen))
        rw.replace(old, outcomes[-1].result)
    rw.set_cond(second, outcomes)
    kept = [each for each in cond.outcomes if each not in moved]
    rw.set_cond(cond, kept)
    for case, region in enumerate(regions):
        kept = _pass_on(case, cond, region, kept, rw)
    rw.set_cond(cond, kept)
    return [each.result for each in versions]


def _chosen(values: tuple[Value, ...], rw: Rewriter) -> Outcome | Value:
    """The outcome of a cond that gives each branch its number; the number itself if all have the
    same.
    """
    if len({identity(value) for value in values}) == 1:
        return values[0]
    return Outcome(rw.new_value(values[0].aval), values)


def _yielded(cond: Cond, version: tuple[Value, ...], rw: Rewriter) -> Outcome:
    """The result of a cond that is a version of an array, made if there is none; other results that
    are the version wherever they are defined are replaced by it.
    """
    found = next((o for o in cond.outcomes if o.values == version), None)
    if found is None:
        found = Outcome(rw.new_value(version[0].aval), version)
        rw.set_cond(cond, [*cond.outcomes, found])
    kept = []
    for each in cond.outcomes:
        pairs = zip(each.values, version, strict=True)
        is_defined = not all(map(is_undefined, each.values))
        if is_defined and all(is_undefined(one) or one is other for one, other in pairs):
            rw.replace(each.result, found.result)
        else:
            kept.append(each)
    rw.set_cond(cond, [*kept, found])
    return found


def _late(branch: Region, versions: list[Value]) -> list[Op]:
    """The ops of a branch that depend on versions made in it, and those that only they read, but
    not those that read the arrays as they were before.
    """
    made = [version for version in versions if branch.defines(version)]
    late = {op for op in depending_on(made, branch.ops) if not op.is_terminator}
    makers = [version.op for version in made if version.op is not None]
    old = {v for op in makers for v in inputs(op) if v.aval == op.result.aval}
    for op in reversed(list(branch.ops)) if late else ():
        users = {branch.ancestor(user) for result in op.results for user in result.users}
        if users and late >= users and old.isdisjoint(inputs(op)) and op not in makers:
            late.add(op)
    return [op for op in branch.ops if op in late]


def _pass_on(
    case: int, first: Cond, region: Region, outcomes: list[Outcome], rw: Rewriter
) -> list[Outcome]:
    """The results of the first cond, and what a branch of the second reads of it.  Where another
    write is, all branches say: such numbers are computed again, or zero where they are not known.
    """
    branch, outcomes = first.branches[case], list(outcomes)
    accesses = [known for op in region.walk() if (known := access(op)) is not None]
    places = {v for known in accesses for v in known.indices}
    for value in [v for v in places if branch.defines(v)]:
        made = backward_slice([value], lambda v: not branch.defines(v))
        if all(map(may_be_early, made)) and region.first is not None:
            copies = rw.clone(made, {}, region.first)
            rw.replace(value, copies[value], region.reads)
    for value in {v: None for op in region.walk() for v in op.operands if branch.defines(v)}:
        found = next((each for each in outcomes if each.values[case] is value), None)
        if found is None:
            other = partial(rw.full, 0) if value in places else rw.undefined  # written nowhere
            cases = [other(value.aval, before=each.terminator) for each in first.branches]
            cases[case] = value
            found = Outcome(rw.new_value(value.aval, value.name), tuple(cases))
            outcomes.append(found)
        rw.replace(value, found.result, region.reads)
    return outcomes
