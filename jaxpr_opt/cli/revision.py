"""The user's modules as they were at a revision of git, for as long as a program is traced."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import jaxpr_opt
from jaxpr_opt.errors import TargetError

OURS = Path(jaxpr_opt.__file__).parent


@contextlib.contextmanager
def at(revision: str) -> Iterator[None]:
    """Import modules of the repository as they were at a revision, here and below.

    The files of the revision are unpacked into a temporary folder, which takes the place of the
    repository in `sys.path` and as the current folder.

    Raises:
      TargetError: this is no repository, or it has no such revision.
    """
    root = Path(_git("rev-parse", "--show-toplevel").decode().strip()).resolve()
    here = Path.cwd().resolve().relative_to(root)
    with tempfile.TemporaryDirectory(prefix="jaxpr-opt-") as folder:
        copy = Path(folder).resolve()
        packed = _git("-C", str(root), "archive", "--format=tar", revision, "--")
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4
            archive.extractall(copy)
        (copy / here).mkdir(parents=True, exist_ok=True)
        with _in_place_of(root, copy), contextlib.chdir(copy / here):
            try:
                yield
            except TargetError as error:
                raise TargetError(f"at {revision}: {error}") from error


def _git(*words: str) -> bytes:
    try:
        return subprocess.run(["git", *words], check=True, capture_output=True).stdout
    except FileNotFoundError:
        raise TargetError("--rev needs git, which is not installed") from None
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        raise TargetError(f"--rev: {lines[0] if lines else 'git failed'}") from None


@contextlib.contextmanager
def _in_place_of(root: Path, copy: Path) -> Iterator[None]:
    """Have imports from one folder come from another; afterwards as before."""
    before, theirs = list(sys.path), _modules(root)
    for name in theirs:
        del sys.modules[name]
    sys.path[:] = [_moved(entry, root, copy) for entry in before]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for name in _modules(copy):
            del sys.modules[name]
        sys.modules.update(theirs)
        sys.path[:] = before
        importlib.invalidate_caches()


def _moved(entry: str, root: Path, copy: Path) -> str:
    path = Path(entry or os.curdir).resolve()
    is_theirs = path.is_relative_to(root) and not path.is_relative_to(Path(sys.prefix).resolve())
    return str(copy / path.relative_to(root)) if is_theirs else entry


def _modules(root: Path) -> dict[str, ModuleType]:
    """The modules that were imported from files below a folder, but for this package's."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        path = None if file is None else Path(file).resolve()
        if path is None or not path.is_relative_to(root) or path.is_relative_to(OURS):
            continue
        if not path.is_relative_to(Path(sys.prefix).resolve()):
            found[name] = module
    return found
