"""The cost model: what passes, lint and reports ask where they weigh one program against another.

Every question of profit is a question to the `CostModel` of the device that the program runs on.
Its answers are seconds; what is not known costs infinitely many.  It knows only the graph and the
figures of the device (`jaxpr_opt.cost.devices`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace

from jaxpr_opt import compat_devices
from jaxpr_opt.cost.devices import CPU, DEVICES, GPU, Device


@dataclass(frozen=True, slots=True)
class CostModel:
    """What things cost on a device."""

    device: Device = CPU

    @classmethod
    def of_backend(cls, name: str) -> CostModel:
        """The model of a backend of JAX; of one that is not known, that of a GPU."""
        return cls(DEVICES.get(name, GPU))

    def but(self, **figures: float) -> CostModel:
        """The same, but for some figures of the device."""
        return CostModel(replace(self.device, **figures))


_given: ContextVar[CostModel | None] = ContextVar("jaxpr_opt_cost_model", default=None)


def cost_model() -> CostModel:
    """The model in use: the one that `using` has set, else that of JAX's default backend.

    Before JAX has started its backends, it is that of a CPU: shapes need no device.
    """
    return _given.get() or CostModel.of_backend(compat_devices.started_backend() or CPU.name)


@contextlib.contextmanager
def using(model: CostModel) -> Iterator[CostModel]:
    """Let passes ask this model for the duration of a block.

    Programs that JAX has already traced or compiled stay as they are.
    """
    token = _given.set(model)
    try:
        yield model
    finally:
        _given.reset(token)
