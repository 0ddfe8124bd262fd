"""Detect modules that a traced function changes without returning the change.

A traced function gets copies of its arguments. If it changes the variables of such a copy, as
modules of `flax.nnx` do (statistics of a batch normalization, counters of random numbers), and does
not return them, the change is lost: in `jax.jit` without a warning. Here it is an error.

A variable may get a new value that equals the old one, passed through a loop, a branch or a call,
as `nnx.jit` does with all of them. So the values are outputs of the traced program until it is
known what they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr

from jaxpr_opt.bridge import compat_ad, guard
from jaxpr_opt.ir.facts import remembered
from jaxpr_opt.ir.graph import Call, Cond, Remat, Scan, Value, While
from jaxpr_opt.ir.importer import import_jaxpr


class Changed(NamedTuple):
    """A variable that holds something else than before."""

    name: str
    held: int | None
    """Which input of the program it held."""


class Watch:
    """What the variables of a function's arguments hold before it is called."""

    def __init__(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self._nnx: Any = sys.modules.get("flax.nnx")
        self._arguments = [*((f"args[{i}]", x) for i, x in enumerate(args)), *kwargs.items()]
        self._before = self._variables()

    def changed(
        self, returned: Any, inputs: Sequence[Any], names: Sequence[str]
    ) -> tuple[list[Changed], list[Any]]:
        """The variables that hold something else that is not returned, either, and what they hold.

        Args:
          returned: by the function.
          inputs: of the program.
          names: of the inputs.
        """
        if not self._before:
            return [], []
        after, seen = self._variables(), set(map(id, jax.tree.leaves(returned)))
        position = {id(x): i for i, x in enumerate(inputs)}
        changed, values = [], []
        for place, old in self._before.items():
            new = after.get(place, old)
            if new is not old and id(new) not in seen:
                held = position.get(id(old))
                changed.append(Changed(place if held is None else names[held], held))
                values.append(new)
        return changed, values

    def _variables(self) -> dict[str, Any]:
        """The arrays in variables, but for variables that only collect something on the way."""
        if self._nnx is None:
            return {}
        return {
            where + jax.tree_util.keystr(path): leaf
            for where, argument in self._arguments
            for path, variable in jax.tree_util.tree_leaves_with_path(
                argument, is_leaf=self._is_variable
            )
            if self._is_variable(variable) and not isinstance(variable, self._nnx.Intermediate)
            for leaf in jax.tree.leaves(variable)[:1]
        }

    def _is_variable(self, value: Any) -> bool:
        return isinstance(value, self._nnx.Variable)


def checked(jaxpr: ClosedJaxpr, count: int, changed: Iterable[Changed], name: str) -> ClosedJaxpr:
    """The program with its first `count` outputs only.

    Args:
      jaxpr: a program that also returns what changed variables hold.
      count: how many outputs are not that.
      changed: what the others are.
      name: of the function.

    Raises:
      ValueError: one of them does not hold what it held.
    """
    graph = import_jaxpr(jaxpr, "final")
    for variable, value in zip(changed, graph.outputs[count:], strict=True):
        if variable.held is None or _origin(value) is not graph.inputs[variable.held]:
            raise guard.users(
                ValueError(
                    f"optimize: {name} changes {variable.name} and does not return it, so the"
                    " caller's module would keep its old value: return nnx.state(module), and"
                    " nnx.update the module with it outside"
                )
            )
    used = [i < count for i in range(len(graph.outputs))]
    return compat_ad.select_outputs(jaxpr, used)


@remembered
def _origin(value: Value) -> Value:
    """The value from which loops, branches and calls hand this one through."""
    op = value.op
    if isinstance(op, Scan | While):
        for carry in op.carries:
            if carry.result is value and _origin(carry.next) is carry.param:
                return _origin(carry.init)
    elif isinstance(op, Cond | Remat | Call):
        index = op.results.index(value)
        inner = {_origin(region.outputs[index]) for region in op.regions}
        only = inner.pop() if len(inner) == 1 else value
        if isinstance(op, Call) and only in op.body.params:
            return _origin(op.operands[op.body.params.index(only)])
        if not isinstance(op, Call) and not any(r.defines(only) for r in op.regions):
            return only
    return value
