"""When a program reads its inputs and makes its outputs, to decide what may overwrite what.

Only the top level of the graph counts, where a loop is one op: it reads what its body reads.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from jaxpr_opt.ir.aliases import Kind
from jaxpr_opt.ir.graph import Call, Cond, Graph, Op, Remat, Scan, Value, While
from jaxpr_opt.ir.traits import ELEMENTWISE, IN_PLACE, RESHAPING


class Lifetimes:
    """When inputs are read and outputs are made, in the order of the program.

    Sets of inputs or outputs are bits of an integer: the whole takes one pass.
    """

    def __init__(self, graph: Graph) -> None:
        self._inputs, self._outputs = graph.inputs, graph.outputs
        self._bits: dict[Value, int] = {}
        for j, value in enumerate(graph.outputs):
            self._bits[value] = self._bits.get(value, 0) | 1 << j
        self._readers: dict[Value, list[Op]] = {value: [] for value in graph.inputs}
        self._order: dict[Op, int] = {}
        self._needs: dict[Op, int] = {}
        """For every op, the outputs that must be there, whole, before it runs."""
        self._of: dict[Value, int] = {v: 1 << i for i, v in enumerate(graph.inputs)}
        """For every value, the inputs it is made of element by element."""
        self._scan(graph)
        self._barred = {value: self._barring(value) for value in graph.inputs}

    def _scan(self, graph: Graph) -> None:
        near: dict[Value, int] = {}  # outputs it needs, all that is between being elementwise:
        far: dict[Value, int] = {}  # those may run in the loop over elements that makes the output
        for order, op in enumerate(graph.body.ops):
            if op.is_terminator:
                continue
            reads = dict.fromkeys(value for each in op.walk() for value in each.operands)
            close = reduce(or_, (near.get(v, 0) for v in reads), 0)
            before = reduce(or_, (far.get(v, 0) for v in reads), 0)
            if op.name not in ELEMENTWISE:
                before, close = before | close, 0
            self._order[op], self._needs[op] = order, before
            for value in reads:
                if value in self._readers:
                    self._readers[value].append(op)
            for value in op.results:
                far[value], near[value] = before, close | self._bits.get(value, 0)
                made_of = (v for v in reads if v in self._of and overwrites(op, v, value))
                if bits := reduce(or_, (self._of[v] for v in made_of), 0):
                    self._of[value] = bits

    def _barring(self, argument: Value) -> int:
        """The outputs that are there, or half written, when something must read `argument`."""
        barred = 0
        for op in self._readers[argument]:
            barred |= self._needs[op]
            for result in op.results:
                if result in self._bits and not overwrites(op, argument, result):
                    barred |= self._bits[result]
        return barred

    def kind(self, i: int, j: int) -> Kind:
        """How well input `i` and output `j` go together."""
        argument, result = self._inputs[i], self._outputs[j]
        if returned := self._bits.get(argument):
            # Condition 4 of mark-donated-buffers.
            first = returned & -returned == 1 << j
            return Kind.MOVED if first else Kind.NONE
        # Condition 3 of mark-donated-buffers.
        if self._barred[argument] >> j & 1:
            return Kind.NONE
        updated = bool(self._of.get(result, 0) >> i & 1)
        # Condition 3 of mark-donated-buffers.
        if self._later(argument, result):
            return Kind.LATE if updated else Kind.NONE
        return Kind.UPDATED if updated else Kind.DEAD

    def _later(self, argument: Value, result: Value) -> bool:
        """Whether `argument` is read after `result` is made; what nothing makes is made last."""
        readers, producer = self._readers[argument], result.op
        return bool(
            readers and producer is not None and self._order[readers[-1]] > self._order[producer]
        )

    def obstacle(self, i: int, j: int) -> tuple[str, Op | None]:
        """Why input `i` cannot become output `j`, in words, and the op that this is about."""
        argument, result = self._inputs[i], self._outputs[j]
        if argument in self._bits:
            return "is returned as it is, and cannot be another result too", None
        for op in self._readers[argument]:
            if self._needs[op] >> j & 1:
                return f"{op.name} reads it when the result is there, which it needs", op
            if op is result.op and not overwrites(op, argument, result):
                return f"{op.name} reads it while it writes the result", op
        op = self._readers[argument][-1]
        return f"{op.name} reads it when the result is there", op


def overwrites(op: Op, argument: Value, result: Value) -> bool:
    """Whether an op that reads `argument` can write `result` over it as it goes.

    Branches and calls can, for all that is known: XLA sees what is inside them.
    """
    if argument.shape != result.shape:
        return op.name in RESHAPING
    if isinstance(op, Scan | While):
        reads = sum(v is argument for each in op.walk() for v in each.operands)
        return reads == 1 and any(c.init is argument and c.result is result for c in op.carries)
    if isinstance(op, Cond | Call | Remat):
        return True
    if op.name in IN_PLACE:
        return op.operands[0] is argument and argument not in op.operands[1:]
    return op.name in ELEMENTWISE | RESHAPING
