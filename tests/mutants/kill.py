"""Run tests against a mutant, in a process that is forked after JAX has been imported."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import io
import json
import math
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import jax
import numpy as np
import pytest

from fuzz.corpus import CHECKS
from mutants.find import Mutant, codes

TIMEOUT = 4
"""Times the processor time that all tests take, after which tests hang: the mutant is killed."""

QUICK = "survived tests that need not compile"

ALONE = (*CHECKS, "run_alone(", "aliasing(", "graph_of(")
"""What tests call that run a pass and evaluate the program op by op, or ask an analysis."""

TOOL = 3
"""A number of `sys.monitoring` that nobody else uses."""


def live(path: Path, qualname: str) -> list[FunctionType]:
    """The functions of a module by that name, wherever they are kept, and those they have made."""
    return [
        each
        for each in gc.get_objects()
        if isinstance(each, FunctionType)
        and (each.__code__.co_qualname + ".").startswith(f"{qualname}.")
        and Path(each.__code__.co_filename).resolve() == path
    ]


def apply(mutant: Mutant) -> None:
    """Change this process's copy of a module."""
    if mutant.number < 0:
        owner, name = mutant.function.split(".")
        return delattr(vars(_module(mutant.path))[owner], name)
    changed = {_name(code): code for code in codes(mutant.code())}
    functions = live(mutant.path, mutant.function)
    assert functions, f"{mutant.function} is not found"
    for function in functions:
        function.__code__ = changed[_name(function.__code__)]
    return None


def _name(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _module(path: Path) -> Any:
    loaded = [m for m in sys.modules.values() if getattr(m, "__file__", None)]
    return next(m for m in loaded if Path(m.__file__).resolve() == path)


class _Coverage:
    """A plugin of pytest: which tests ran which lines of what is mutated."""

    def __init__(self, found: Sequence[Mutant]) -> None:
        self.lines: dict[str, set[str]] = {}
        self.test, self.passed = "", set()
        monitor: Any = sys.monitoring
        monitor.use_tool_id(TOOL, "mutants")
        monitor.register_callback(TOOL, monitor.events.LINE, self._line)
        monitor.register_callback(TOOL, monitor.events.PY_START, self._start)
        places = {(m.path, m.function) for m in found if m.number >= 0}
        for code in {code for place in places for code in _all(*place)}:
            monitor.set_local_events(TOOL, code, monitor.events.LINE | monitor.events.PY_START)

    def _line(self, code: CodeType, line: int) -> Any:
        path = Path(code.co_filename).resolve()
        self.lines.setdefault(self.test, set()).add(f"{path}:{line}")
        return sys.monitoring.DISABLE  # type: ignore[attr-defined]

    def _start(self, code: CodeType, _: int) -> Any:
        """A function of one line has no event for that line."""
        return self._line(code, code.co_firstlineno)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        self.test = item.nodeid
        sys.monitoring.restart_events()  # type: ignore[attr-defined]
        return (yield)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)


class _Quick:
    """A plugin of pytest: only the tests that need not compile, and NumPy in place of XLA."""

    def __init__(self) -> None:
        import jaxpr_opt.testing
        import tests.loops
        from fuzz.evaluate import Evaluator
        from jaxpr_opt.ir.graph import Graph
        from jaxpr_opt.ir.importer import import_jaxpr

        def evaluate(program: Any, *args: Any) -> list[Any]:
            graph = program if isinstance(program, Graph) else import_jaxpr(program, "final")
            with np.errstate(all="ignore"):
                return Evaluator(graph)([np.asarray(a) if _is_plain(a) else a for a in args])

        for module in (jaxpr_opt.testing, tests.loops):
            vars(module)["evaluate_exactly"] = evaluate
        vars(jaxpr_opt.testing)["assert_same_derivatives"] = lambda *_: None

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if any(c in _source(item) for c in ALONE)]


def _source(item: Any) -> str:
    """The source of a test, and of what it calls of its module."""
    source = inspect.getsource(item.function)
    near = (f for f in vars(item.module).values() if inspect.isfunction(f))
    called = [
        f for f in near if f.__module__ == item.module.__name__ and f"{f.__name__}(" in source
    ]
    return "".join(map(inspect.getsource, {item.function, *called}))


def _is_plain(x: Any) -> bool:
    return isinstance(x.dtype, np.dtype) and x.dtype != jax.dtypes.float0


def _all(path: Path, qualname: str) -> list[CodeType]:
    return [code for function in live(path, qualname) for code in codes(function.__code__)]


def _pytest(
    arguments: Sequence[str], plugins: Sequence[Any] = (), more: Sequence[str] = ("-x",)
) -> tuple[int, str]:
    said = io.StringIO()
    options = ["-q", "-n0", *more, "-p", "no:cacheprovider", "-Wignore", "--tb=line", "--no-header"]
    with contextlib.redirect_stdout(said):
        code = pytest.main([*options, *arguments], plugins=list(plugins))
    return int(code), said.getvalue()


@dataclass(frozen=True)
class Baseline:
    """What tests do as things are."""

    lines: dict[str, list[str]]
    seconds: float

    def covering(self, mutant: Mutant) -> list[str]:
        """Tests that run its line, those that run least first; all, if it is in no function."""
        line = f"{mutant.path}:{mutant.line}"
        tests = sorted(self.lines, key=lambda test: len(self.lines[test]))
        return [test for test in tests if mutant.number < 0 or line in self.lines[test]]


def baseline(found: Sequence[Mutant], files: Sequence[str], *, quick: bool) -> Baseline:
    """The lines of mutants that each test runs, without tests that fail."""

    def run() -> Any:
        coverage = _Coverage(found)
        _pytest(files, [coverage, _Quick()] if quick else [coverage], ["--maxfail=1000"])
        return {test: sorted(coverage.lines.get(test, ())) for test in coverage.passed}

    started = time.monotonic()
    return Baseline(_forked(run, 1200), time.monotonic() - started)


def verdict(mutant: Mutant, baseline: Baseline, before: str, *, quick: bool) -> str:
    """What became of a mutant: ``killed by`` a test, or ``survived``; first by the one that killed
    it before, then by those that need not compile.
    """
    tests = baseline.covering(mutant)
    if not tests:
        return "survived: no test runs this line"
    tests.sort(key=lambda test: test not in before)
    seconds = TIMEOUT * baseline.seconds
    verdict = _run(mutant, tests, seconds, quick=True)
    if verdict.startswith("killed") or quick:
        return verdict if verdict.startswith("killed") else QUICK
    return _run(mutant, tests, seconds, quick=False)


def _run(mutant: Mutant, tests: Sequence[str], seconds: float, quick: bool) -> str:
    def run() -> Any:
        apply(mutant)
        code, said = _pytest(tests, [_Quick()] if quick else [])
        failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if code in {0, 5}:  # no test at all is no test that fails
            return "survived"
        return f"killed by {(failed or [said[-200:]])[0].split(' - ')[0]}"

    found = _forked(run, math.ceil(seconds))
    return found if isinstance(found, str) else "killed: it hangs, or takes the process down"


def by_programs(mutant: Mutant, each: Any, programs: int, folder: Path) -> str:
    """Whether random programs notice."""

    def run() -> Any:
        from fuzz.epoch import Epoch

        apply(mutant)
        epoch = Epoch(0, mutant.number, folder)
        epoch.run(programs, each, until_found=True)
        tried = epoch.counts["programs"]
        return (
            f"killed by program {tried}" if epoch.counts["finds"] else f"survived {tried} programs"
        )

    found = _forked(run, 600)
    return found if isinstance(found, str) else "killed: it hangs, or takes the process down"


def _forked(run: Callable[[], Any], seconds: int) -> Any:
    """What a function returns in a child of this process; None if it gives nothing back."""
    with tempfile.NamedTemporaryFile("r") as file:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(BaseException):
                resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, 1)
                os.dup2(null, 2)
                Path(file.name).write_text(json.dumps(run()))
                code = 0
            os._exit(code)
        os.waitpid(child, 0)
        text = file.read()
    return json.loads(text) if text else None


@functools.cache
def warm() -> None:
    """Import what children need, all passes included, without starting a device."""
    import jaxpr_opt.testing  # noqa: F401
    from jaxpr_opt.engine import registry

    registry.default_pipeline()
