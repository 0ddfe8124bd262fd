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
from mutants.find import Mutant, mutants

TIMEOUT = 4
"""Times the processor time that all tests take, after which tests hang: the mutant is killed."""

TOOL = 3
"""A number of `sys.monitoring` that nobody else uses."""


def live(path: Path, qualname: str) -> list[FunctionType]:
    """The functions of a module by that name, wherever they are kept."""
    return [
        each
        for each in gc.get_objects()
        if isinstance(each, FunctionType)
        and each.__code__.co_qualname == qualname
        and Path(each.__code__.co_filename).resolve() == path
    ]


def apply(mutant: Mutant) -> None:
    """Change this process's copy of a module."""
    code = mutant.code()
    functions = live(mutant.path, mutant.function)
    assert functions, f"{mutant.function} is not found"
    for function in functions:
        function.__code__ = code


class _Coverage:
    """A plugin of pytest: which tests ran which lines of a module."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, {}
        self.test, self.passed = "", set()
        monitor: Any = sys.monitoring
        monitor.use_tool_id(TOOL, "mutants")
        monitor.register_callback(TOOL, monitor.events.LINE, self._line)
        for code in {c for f in {m.function for m in mutants(path)} for c in _all(path, f)}:
            monitor.set_local_events(TOOL, code, monitor.events.LINE)

    def _line(self, _: CodeType, line: int) -> Any:
        self.lines.setdefault(self.test, set()).add(line)
        return sys.monitoring.DISABLE  # type: ignore[attr-defined]

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
        from jaxpr_opt.importer import import_jaxpr
        from jaxpr_opt.ir import Graph

        def evaluate(program: Any, *args: Any) -> list[Any]:
            graph = program if isinstance(program, Graph) else import_jaxpr(program, "final")
            with np.errstate(all="ignore"):
                return Evaluator(graph)([np.asarray(a) if _is_plain(a) else a for a in args])

        for module in (jaxpr_opt.testing, tests.loops):
            vars(module)["evaluate_exactly"] = evaluate
        vars(jaxpr_opt.testing)["assert_same_derivatives"] = lambda *_: None

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [i for i in items if any(c in inspect.getsource(i.function) for c in CHECKS)]


def _is_plain(x: Any) -> bool:
    return isinstance(x.dtype, np.dtype) and x.dtype != jax.dtypes.float0


def _all(path: Path, qualname: str) -> list[CodeType]:
    found: list[CodeType] = []
    pending = [f.__code__ for f in live(path, qualname)]
    while pending:
        code = pending.pop()
        found.append(code)
        pending += [c for c in code.co_consts if isinstance(c, CodeType)]
    return found


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

    lines: dict[str, list[int]]
    seconds: float

    def covering(self, line: int) -> list[str]:
        """Tests that run a line, those that run least first."""
        return [
            test
            for test, ran in sorted(self.lines.items(), key=lambda item: len(item[1]))
            if line in ran
        ]


def baseline(path: Path, files: Sequence[str], *, quick: bool) -> Baseline:
    """The lines of a module that each test runs, without tests that fail."""

    def run() -> Any:
        coverage = _Coverage(path)
        _pytest(files, [coverage, _Quick()] if quick else [coverage], ["--maxfail=1000"])
        return {t: sorted(lines) for t, lines in coverage.lines.items() if t in coverage.passed}

    started = time.monotonic()
    found = _forked(run, 1200)
    return Baseline(found, time.monotonic() - started)


def verdict(mutant: Mutant, baseline: Baseline, before: str, *, quick: bool) -> str:
    """What became of a mutant: ``killed by`` a test, or ``survived``; first by the one that killed
    it before, then by those that need not compile.
    """
    tests = baseline.covering(mutant.line)
    if not tests:
        return "survived: no test runs this line"
    tests.sort(key=lambda test: test not in before)
    seconds = TIMEOUT * baseline.seconds
    verdict = _run(mutant, tests, seconds, quick=True)
    if verdict.startswith("killed") or quick:
        return verdict
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
    from jaxpr_opt import registry

    registry.default_pipeline()
