"""Every test runs with failing passes raised and graphs verified after every pass."""

import gc
import threading

import hypothesis
import pytest
from jax._src.interpreters import mlir  # noqa: TID251

from jaxpr_opt import settings
from jaxpr_opt.bridge import compat_devices
from jaxpr_opt.cost.model import CostModel, using

hypothesis.settings.register_profile(
    "quick",
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
)
"""The same programs in every run; one that fails is not shrunk, which takes minutes."""
hypothesis.settings.load_profile("quick")


class Reused(threading.local):
    """Makes MLIR contexts, one for many programs, as JAX does by itself since 0.12.  One for each
    program takes JAX 0.10 a third of the time of the tests.
    """

    def __init__(self, make, uses=50):
        self.make, self.uses, self.used, self.context = make, uses, uses, None

    def __call__(self):
        if self.used >= self.uses:
            self.used, self.context = 0, self.make()
        self.used += 1
        return self.context


mlir.make_ir_context = Reused(mlir.make_ir_context)


gc.set_threshold(50_000, 20, 50)
"""Programs are many objects that refer to each other: to look at them less often saves a tenth."""


def pytest_addoption(parser):
    parser.addoption("--ends", choices=["slow", "all"], help="tests of few sets of parameters")


MANY_SETS = 8
"""Of a test of a pass with more sets of parameters, `--ends slow` takes every second."""


def pytest_collection_modifyitems(config, items):
    """Of each test the sets of parameters that `--ends` asks for."""
    of = config.getoption("--ends")
    if of is not None:
        sets = {}
        for item in items:
            sets.setdefault(item.nodeid.partition("[")[0], []).append(item)
        kept = {item for each in sets.values() for item in _kept(each, of)}
        config.hook.pytest_deselected(items=[each for each in items if each not in kept])
        items[:] = [each for each in items if each in kept]


def _kept(sets, of):
    ends = {sets[0], sets[-1]}
    if of == "all":
        return ends
    quick = [item for item in sets if item.get_closest_marker("slow") is None]
    is_long = "tests/passes/" in sets[0].nodeid and len(quick) > MANY_SETS
    return ends.union(quick[::2] if is_long else quick)


@pytest.fixture
def barriers(monkeypatch):
    """A version of XLA that keeps barriers, as since JAX 0.11."""
    monkeypatch.setattr(compat_devices, "KEEPS_BARRIERS", True)


@pytest.fixture
def dividing(monkeypatch):
    """A version of XLA that drops barriers before it fuses, on a CPU: divisions are fences."""
    monkeypatch.setattr(compat_devices, "KEEPS_BARRIERS", False)


@pytest.fixture
def real_questions():
    """Asking whether to go on takes as long as it does."""
    with using(CostModel()):
        yield


@pytest.fixture(autouse=True)
def strict_and_verified(request):
    """A module may name the cost `MODEL` that its tests are about."""
    model = getattr(request.module, "MODEL", None)
    with settings.override(strict=True, verify=True), using(model):
        yield
