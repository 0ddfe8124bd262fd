"""The cost model: every question of profit is a question to that of the device.

It decides by prices in seconds (`jaxpr_opt.cost.prices`), which follow from what XLA makes of a
program (`jaxpr_opt.cost.lowering`) and the figures of the device (`jaxpr_opt.cost.devices`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from jaxpr_opt.bridge import compat_devices
from jaxpr_opt.cost.devices import CPU, DEVICES, GPU
from jaxpr_opt.cost.questions.memory import MemoryQuestions
from jaxpr_opt.cost.questions.products import ProductQuestions
from jaxpr_opt.cost.questions.starts import StartQuestions
from jaxpr_opt.cost.questions.steps import StepQuestions
from jaxpr_opt.cost.questions.windows import WindowQuestions


@dataclass(frozen=True, slots=True)
class CostModel(MemoryQuestions, StartQuestions, WindowQuestions, ProductQuestions, StepQuestions):
    """What pays on a device: the questions are in `jaxpr_opt.cost.questions`."""

    @staticmethod
    def of_backend(name: str) -> CostModel:
        """The model of one of JAX's backends; that of a GPU for an unknown one."""
        return _MODELS.get(name, _MODELS[GPU.name])

    def but(self, **figures: Any) -> CostModel:
        """This model with other figures of the device."""
        return replace(self, device=replace(self.device, **figures))

    def at(self, byte: float, part: float | None = None) -> CostModel:
        """The same where a byte of temporary memory is worth so many seconds, and where
        straight-line code is to hold such a part of what it holds.
        """
        return replace(self, byte=byte, part=part)


_MODELS = {name: CostModel(device) for name, device in DEVICES.items()}
_given: ContextVar[CostModel | None] = ContextVar("jaxpr_opt_cost_model", default=None)


def cost_model() -> CostModel:
    """The model in use: the one that `using` has set, else that of JAX's default backend.

    Before JAX has started its backends, it is that of a CPU: shapes need no device.
    """
    return _given.get() or CostModel.of_backend(compat_devices.started_backend() or CPU.name)


@contextlib.contextmanager
def using(model: CostModel) -> Iterator[CostModel]:
    """Use this model for the duration of a block.

    Programs that JAX has already traced or compiled stay as they are.
    """
    token = _given.set(model)
    try:
        yield model
    finally:
        _given.reset(token)
