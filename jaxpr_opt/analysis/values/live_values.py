"""Liveness: which values of a program are read, and which of its ops must stay."""

from __future__ import annotations

from collections.abc import Iterable

from jaxpr_opt.ir.graph import Call, Cond, Op, Region, Remat, Scan, Value, While


class Liveness:
    """The values that are read and the ops that must stay, of a whole program."""

    def __init__(self, body: Region) -> None:
        self.values: set[Value] = set()
        self.ops: set[Op] = set()
        self._pending: list[Value] = []
        for op in body.walk():
            # Condition 1 of eliminate-dead-code.
            if op.effects:
                self._keep(op)
        self._read(body.outputs)
        while self._pending:
            self._trace(self._pending.pop())

    def _read(self, values: Iterable[Value]) -> None:
        new = [value for value in values if value not in self.values and value.owner is not None]
        self.values.update(new)
        self._pending.extend(new)

    def _keep(self, op: Op) -> None:
        """The op stays, hence the ops around it and what says whether it runs."""
        self.ops.add(op)
        if (around := op.parent) is not None and around not in self.ops:
            self._keep(around)
        if not op.regions:
            self._read(op.operands)
            return
        match op:
            case Scan() | Remat():
                pass
            case Cond():
                # Condition 3 of eliminate-dead-code.
                self._read([op.selector])
            case While():
                # Condition 3 of eliminate-dead-code.
                self._read(op.predicate.outputs)
            case Call():
                # Condition 4 of eliminate-dead-code.
                self._read(op.operands)
                self._read(op.body.outputs)

    def _trace(self, value: Value) -> None:
        """Keep the ops, results and parameters from which a live value is made."""
        owner = value.owner
        if isinstance(owner, Op):
            if owner not in self.ops:
                self._keep(owner)
            if owner.regions:
                self._result(owner, value.position)
        elif isinstance(owner, Region) and isinstance(owner.owner, Op):
            self._parameter(owner.owner, value.position)

    def _result(self, op: Op, index: int) -> None:
        match op:
            case Scan() if index < op.num_carries:
                # Condition 2 of eliminate-dead-code.
                self._read([op.operands[index], op.body.outputs[index]])
            case While():
                # Condition 2 of eliminate-dead-code.
                self._read([op.operands[index], op.body.outputs[index]])
            case Scan() | Cond() | Remat():
                self._read(region.outputs[index] for region in op.regions)

    def _parameter(self, op: Op, index: int) -> None:
        match op:
            case Scan() if index >= op.num_carries:
                self._read([op.operands[index]])
            case Scan() | While():
                # Condition 2 of eliminate-dead-code.
                self._read([op.operands[index], op.regions[-1].outputs[index]])


def is_dead(op: Op, live: Liveness) -> bool:
    """Whether the op, or a part of its interface, is dead."""
    if op.is_terminator:
        return False
    if op not in live.ops:
        return True
    return bool(op.regions) and not isinstance(op, Call) and not all(live_slots(op, live))


def live_slots(op: Op, live: Liveness) -> list[bool]:
    """For each slot of a structured op, whether it is live: carries then streams then stacks;
    results.
    """
    values = live.values
    match op:
        case Scan():
            n, params, results = op.num_carries, op.body.params, op.results
            carries = zip(params[:n], results[:n], strict=True)
            rest = (*params[n:], *results[n:])
            return [p in values or r in values for p, r in carries] + [v in values for v in rest]
        case While():
            slots = zip(op.predicate.params, op.body.params, op.results, strict=True)
            return [not values.isdisjoint(slot) for slot in slots]
        case _:
            return [v in values for v in op.results]
