"""How often a loop that skips steps asks whether to go on: before each step, or before several."""

from __future__ import annotations

from collections.abc import Sequence

from jaxpr_opt.analysis.sparse.scatter_chains import added
from jaxpr_opt.analysis.steps.first_taken import rows_below
from jaxpr_opt.analysis.steps.masks import first_rows
from jaxpr_opt.analysis.steps.skips import Skip, has_branch
from jaxpr_opt.analysis.values.rounding import may_differ
from jaxpr_opt.analysis.values.step_numbers import Row, known_numbers, numbers_at
from jaxpr_opt.cost.model import cost_model
from jaxpr_opt.ir.dataflow import reads
from jaxpr_opt.ir.graph import Carry, Scan, Stack, Value, While
from jaxpr_opt.ir.traits import ARRANGING, is_arithmetic
from jaxpr_opt.ir.unrolling import steps_as_one


def steps_a_question(scan: Scan, skip: Skip | str) -> int | None:
    """After how many steps a loop asks; None if that is not worth it.

    Where the host decides, it waits for the device each time, and elsewhere each element of a
    predicate is tested: then the loop runs several steps in between, skipped ones too, unless a
    branch of each step waits already. A loop of few numbers is asked in no time. An inner loop that
    makes the predicate, and more for the step, would run twice.
    """
    if not isinstance(skip, str) and skip.kind == "carried" and _repeats_a_loop(skip):
        return None
    model, once = cost_model(), cost_model().is_worth_a_question(scan.body)
    if isinstance(skip, str):
        return steps_asked_at_once(scan) if once else None
    if not model.asks_the_host:
        every = _steps_a_test(scan, skip)
        if every is not None or not once or _is_between_questions(skip):
            return every
    wanted = model.steps_a_question(scan.body, asked_in_steps(skip))
    if not once and asks_by_branch(skip):
        wanted = 1
    elif not once and wanted > 1 and isinstance(scan.parent, While):  # which asks, too
        return None
    return steps_asked_at_once(scan, wanted)


def _repeats_a_loop(skip: Skip) -> bool:
    """Whether a predicate needs some results of an inner loop, and the rest of the step others:
    `rotate-loops` hands on to the step what it computes alike only.
    """
    needed = reads(skip.slice) | {skip.predicate}
    loops = (op for op in skip.slice if isinstance(op, Scan | While))
    return any(v.uses and v not in needed for op in loops for v in op.results)


def is_asked_for_sure(scan: Scan, skip: Skip) -> bool:
    """Whether a loop asks whether to go on, though maybe all of its steps are taken, and then costs
    no more for it: not a batch of steps so cheap that several are taken before each question.
    """
    model = cost_model()
    if model.is_worth_a_question(scan.body) or model.asks_the_host:
        return steps_a_question(scan, skip) is not None
    return model.asks_in_no_time(scan, skip.predicate) and steps_asked_at_once(scan) is not None


def skipped_at_the_end(skip: Skip) -> int | None:
    """How many steps a loop skips for the last rows of its streams; None if that is not known."""
    numbers, last = numbers_at(skip.predicate, skip.scan), skip.scan.length - 1
    if numbers is not None:
        taken = [row for row, number in enumerate(numbers) if bool(number) == skip.taken_when]
        return last - max(taken, default=-1)
    found = known_numbers(skip.predicate, Row(skip.scan, last))
    return 0 if found is not None and skip.taken_when in found.astype(bool) else None


def _steps_a_test(scan: Scan, skip: Skip) -> int | None:
    """The same in a loop that is one function, where each element of a predicate is tested."""
    model = cost_model()
    if model.asks_in_no_time(scan, skip.predicate):
        return steps_asked_at_once(scan)
    asked = asked_in_steps(skip)
    if skip.going or skip.products or _is_between_questions(skip):
        return None
    if asked is None and model.is_worth_a_question(scan.body):  # the number of steps is compared
        return None
    every = model.steps_a_test(scan, asked, skip.slice)
    return None if every is None else steps_asked_at_once(scan, every)


def _is_between_questions(skip: Skip) -> bool:
    """Whether a loop is all that a step of a `while` does, and counts its steps: those that it runs
    before it asks again.
    """
    loop, scan = skip.scan.parent, skip.scan
    if not isinstance(loop, While) or any(op is not scan for op in [*loop.body.ops][:-1]):
        return False
    return any(carry.init in loop.body.params for carry, _ in skip.counters)


# Condition 9 of exit-loop-early.
def steps_asked_at_once(scan: Scan, at_least: int = 1) -> int | None:
    """The least number of steps, at least so many, that divides the length of the loop and is a
    multiple of the steps that run as one there; None if there is none.

    Steps of a loop that writes rows run one by one.
    """
    block = steps_as_one(scan)
    if scan.stacks and block < scan.length:
        block = 1
    if block == at_least == 1:
        return 1
    blocks = range(-(-at_least // block) * block, scan.length // 2 + 1, block)
    return next((k for k in blocks if scan.length % k == 0), None)


def asked_in_steps(skip: Skip) -> Value | None:
    """The predicate that a loop asks before a step, if it is not known before the loop."""
    return skip.predicate if skip.kind == "carried" else None


def is_asked_each_step(skip: Skip) -> bool:
    """Whether a step takes so much longer than its predicate that a loop asks before each."""
    model, scan = cost_model(), skip.scan
    asks = model.is_worth_a_question(scan.body, asked_in_steps(skip))
    if not asks and (skip.predicate.size != 1 or not model.asks_while_starting(scan)):
        return False
    if is_known_in_steps(skip) or rows_below(skip) is not None or skip.kind == "carried":
        return True
    return model.is_worth_questions(scan.body, skip.predicate, skip.slice)


def is_asked_by_branch(skip: Skip) -> bool:
    """Whether each step may ask whether it is taken: a batch tests many numbers for that, if they
    are not known before the loop.

    Else a loop that reads what it stacks has a branch on the number of the step. `vmap` makes a
    select of that, and XLA copies an array that is selected, to windows of which a step only adds.
    """
    scan = skip.scan
    is_tested = bool(skip.predicate.shape) and skip.kind == "carried"
    if not is_tested or cost_model().is_worth_a_question(scan.body, skip.predicate):
        return True
    users = {use.op for stack in scan.stacks for use in stack.result.uses}
    return any(isinstance(op, Scan) and any(map(_adds_to_windows, op.carries)) for op in users)


def _adds_to_windows(carry: Carry) -> bool:
    """Whether a step adds to windows of an array that takes longer to copy than a step to start."""
    nbytes = carry.param.nbytes
    links = () if cost_model().is_hidden(nbytes) else added(carry.next).links
    return any(link.nbytes < nbytes for link in links)


def asks_by_branch(skip: Skip) -> bool:
    """Whether each step has a branch on the predicate; a loop that asks needs no such branch."""
    return is_known_in_steps(skip) and has_branch(skip)


def is_known_in_steps(skip: Skip) -> bool:
    """Whether the predicate of each step that a loop takes is true if it stops at the first that is
    not taken.
    """
    scalar = skip.predicate.shape == ()
    return scalar and (skip.kind == "carried" or first_rows(skip) is not None)


def is_counted(reader: Skip, skip: Skip) -> bool:
    """Whether a loop of which no step is taken but where this one took one begins with the steps
    that were counted here.
    """
    counts = skip.kind == "upfront" or not skip.scan.reverse
    is_asked = reader.kind == "upfront" and first_rows(reader) is None
    return counts and is_asked and skip.scan.region is reader.scan.region


# Condition 2 of isolate-dropped-steps.
def is_read_by_rows(stack: Stack, readers: Sequence[Skip]) -> bool:
    """Whether loops read a stack row by row, so that several of their steps read rows of as many
    steps.
    """
    loops, rows = {each.scan for each in readers}, stack.result.shape[0]
    is_alike = all(scan.length == rows for scan in loops)
    return is_alike and all(use.op in loops for use in stack.result.uses)


# Condition 6 of exit-loop-early, 7 of end-at-read-rows.
def rounds_alike(skip: Skip) -> bool:
    """Whether the predicate of many rows at once is that of each."""
    exact = ("reduce_and", "reduce_max", "reduce_min", "reduce_or")
    return not any(map(may_differ, skip.slice)) and all(
        is_arithmetic(op) or op.name in (*exact, *ARRANGING, "gather") for op in skip.slice
    )
