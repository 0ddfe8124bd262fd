"""A process that runs a script as Python does, and reports at its end what JAX compiled.

This file is run by its path, with the options as JSON and then the words of the command line.  It
imports neither JAX nor this package before the script imports JAX, so the script finds the process
as Python would have made it: what it says to JAX in `os.environ` counts.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import io
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

FIRST = ("jax", "jaxpr_opt")
"""What has to be imported before anything is recorded."""


class Finder(importlib.abc.MetaPathFinder):
    """Calls a function once, as soon as JAX is imported, whoever imports it."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Where JAX is, with a loader that says when it is there; None for all others."""
        del path, target
        if name not in FIRST:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            sys.meta_path.insert(0, self)
            return spec
        load = spec.loader.exec_module

        def loaded(module: ModuleType) -> None:
            load(module)
            self.then()

        spec.loader.exec_module = loaded  # type: ignore[method-assign]
        return spec


def main() -> int:
    """Run what the command line names; returns its exit code."""
    options, words = json.loads(sys.argv[1]), sys.argv[2:]
    module = ModuleType("__main__")
    try:
        code = _prepared(module, words, is_module=options["module"])
    except ImportError as error:
        _say(f"jaxpr-opt: error: {error}")
        return 2
    parent = os.getpid()
    sys.modules["__main__"] = module
    sys.meta_path.insert(0, Finder(lambda: _record(options)))
    status = _ended(lambda: exec(code, module.__dict__))
    if os.getpid() == parent:  # a child that was forked reports nothing
        _report(options, words[0])
    return status


def _prepared(module: ModuleType, words: list[str], is_module: bool) -> CodeType:
    """The code to run; the module and `sys` are as Python would have made them."""
    find = _of_module if is_module else _of_file
    sys.argv = list(words)
    return find(module, words[0])


def _of_file(module: ModuleType, name: str) -> CodeType:
    path = Path(name).resolve()
    sys.path[0] = str(path.parent)
    module.__dict__.update(__file__=os.path.abspath(name), __builtins__=__builtins__)  # noqa: PTH100
    with io.open_code(module.__dict__["__file__"]) as file:
        source = file.read()
    return _compiled(source, module.__dict__["__file__"])


def _compiled(source: bytes, path: str) -> CodeType:
    """The code of a file; Python reports what is no Python."""
    try:
        return compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        sys.excepthook(type(error), error.with_traceback(None), None)
        sys.exit(1)


def _of_module(module: ModuleType, name: str) -> CodeType:
    sys.path[0] = str(Path.cwd())
    spec = _found(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _found(f"{name}.__main__")
    code = None if spec is None else getattr(spec.loader, "get_code", lambda _: None)(spec.name)
    if spec is None or code is None:
        raise ImportError(f"there is no module {name!r} to run, here or installed")
    module.__dict__.update(
        __file__=spec.origin,
        __builtins__=__builtins__,
        __loader__=spec.loader,
        __package__=spec.parent,
        __spec__=spec,
    )
    sys.argv[0] = spec.origin or name
    return code  # type: ignore[no-any-return]


def _found(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None


# -- the end -------------------------------------------------------------------------------------


def _ended(run: Callable[[], None]) -> int:
    """Run to the end, of all threads; returns the exit code, having said what Python says."""
    try:
        run()
        status = 0
    except SystemExit as error:
        status = _status(error.code)
    except BaseException as error:  # noqa: BLE001 -- also Ctrl-C: it is reported, and the end
        trace = _theirs(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        status = 130 if isinstance(error, KeyboardInterrupt) else 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    return status


def _status(code: Any) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    _say(str(code))
    return 1


def _say(line: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")


def _theirs(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this file."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


# -- the other side of the door ------------------------------------------------------------------


def _record(options: dict[str, Any]) -> None:
    from jaxpr_opt.run import recorder

    recorder.start(options)


def _report(options: dict[str, Any], name: str) -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    if "jaxpr_opt.run.recorder" not in sys.modules:
        if not options["quiet"]:
            _say(f"jaxpr-opt: {name} did not import JAX: there is nothing to look at")
        return
    from jaxpr_opt.run import ending

    ending.report(options)


if __name__ == "__main__":
    sys.exit(main())
