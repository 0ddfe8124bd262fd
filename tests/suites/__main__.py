"""``python -m suites [library ...]``: no test may fail optimised that passes plain.

Tests run optimised; those that fail run again in plain JAX.

Source distributions are downloaded to a folder, or taken from it: ``.suites/src/NAME-*.tar.gz``.
Where one has no tests in it, put those of the same version at ``.suites/NAME/source``.
What tests need is installed into the environment that runs this.
"""

from __future__ import annotations

import argparse
import collections
import importlib.metadata
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from xml.etree import ElementTree as ET

from suites.libraries import LIBRARIES, Library

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Run the suites and print what fails optimised only."""
    parser = argparse.ArgumentParser(prog="python -m suites", description=__doc__)
    parser.add_argument("libraries", nargs="*", help="all that are known, if none is given")
    parser.add_argument("--folder", type=Path, default=ROOT / ".suites")
    parser.add_argument("--seconds", type=int, help="a limit for each run, not that of the table")
    parser.add_argument("--only", help="an expression for pytest -k, not that of the table")
    args = parser.parse_args()
    # A job in the background ignores it, and so would pytest, which is to write down what it has.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    worse = 0
    for library in LIBRARIES:
        if args.libraries and library.name not in args.libraries:
            continue
        try:
            source = _source(library, args.folder)
        except (subprocess.CalledProcessError, StopIteration) as error:
            print(f"{library.name}: not to be had: {error}", flush=True)
            continue
        if not any((source / path).exists() for path in library.tests):
            print(f"{library.name}: no tests in {source}: put a checkout there", flush=True)
            continue
        only = library.only if args.only is None else args.only
        seconds = args.seconds or library.seconds
        ours = _run(library, source, only, seconds, optimized=True)
        failed = _failed(ours)
        plain = _run(library, source, only, seconds, optimized=False) if failed else {}
        worse += _report(library, ours, failed - _failed(plain))
    sys.exit(1 if worse else 0)


def _failed(outcomes: dict[str, str]) -> set[str]:
    return {test for test, outcome in outcomes.items() if outcome == "failed"}


def _report(library: Library, ours: dict[str, str], only: set[str]) -> int:
    """Print what fails optimised only, and give how much of it has no reason."""
    if not ours:
        print(f"{library.name}: no test has run, see .suites/{library.name}/optimized.log")
        return 1
    counts = collections.Counter(ours.values())
    print(
        f"{library.name} {importlib.metadata.version(library.name)}: {counts['passed']} passed,"
        f" {counts['skipped']} skipped, {counts['failed']} failed optimised,"
        f" {counts['failed'] - len(only)} of them in plain JAX, too",
        flush=True,
    )
    known = {test for test in only if any(part in test for part in library.looks_inside)}
    for test in sorted(only):
        print(f"    {'(looks inside) ' if test in known else ''}{test}")
    return len(only - known)


def _source(library: Library, folder: Path) -> Path:
    """The unpacked source of a library, itself and what its tests need installed."""
    archives, source = folder / "src", folder / library.name / "source"
    archives.mkdir(parents=True, exist_ok=True)
    pattern = f"{library.name.replace('-', '[-_]')}-[0-9]*.tar.gz"
    if not source.exists():
        if not list(archives.glob(pattern)):
            options = ["--no-binary", library.name, "--no-deps", "--dest", str(archives)]
            _pip("download", *options, library.name)
        with tarfile.open(next(iter(sorted(archives.glob(pattern))))) as file:
            file.extractall(source.parent, filter="data")
        next(source.parent.glob("*-[0-9]*")).rename(source)
    if not _is_installed(library):
        known = [path.name.removesuffix(".tar.gz") for path in archives.glob(pattern)]
        version = f"=={known[0].rpartition('-')[2]}" if known else ""
        _pip("install", f"{library.name}{version}", *library.needs)
    return source


def _is_installed(library: Library) -> bool:
    try:
        return all(map(importlib.metadata.version, (library.name, *library.needs)))
    except importlib.metadata.PackageNotFoundError:
        return False


def _pip(*arguments: str) -> None:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *arguments], check=True)


def _run(
    library: Library, source: Path, only: str, seconds: int, *, optimized: bool
) -> dict[str, str]:
    """What became of each test, passed, failed or skipped; plain: of those that failed before."""
    report = source.parent / f"{'optimized' if optimized else 'plain'}.xml"
    report.unlink(missing_ok=True)
    failures = source.parent / "failures"
    tests = [path for path in library.tests if (source / path).exists()]
    if not optimized:
        tests = list(dict.fromkeys(failures.read_text().splitlines()))
    command = [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider"]
    command += ["-p", "suites.plugin"] if optimized else []
    command += ["-k", only] if only and optimized else []
    command += ["--import-mode=importlib", "--continue-on-collection-errors"]
    settings = source / "pyproject.toml"
    command += ["-c", str(settings) if settings.exists() else os.devnull, f"--rootdir={source}"]
    command += ["-o", "python_files=*_test.py test_*.py", f"--junitxml={report}", *tests]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "JAX_PLATFORMS": "cpu",
        "JAXPR_OPT_STRICT": "1",  # a pass that fails is a finding, too
        "SUITES_COUNTS": str(report.with_suffix(".counts")),
        "SUITES_FAILURES": str(failures),
    }
    with report.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(command, cwd=source, env=environment, stdout=log, stderr=log)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            print(f"{library.name}: ended after {seconds} s", flush=True)
            process.send_signal(signal.SIGINT)  # pytest still writes down what it has
            _wait_or_kill(process)
    return _outcomes(report)


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:  # a test has taken the interrupt for an error of its own
        process.kill()
        process.wait()


def _outcomes(report: Path) -> dict[str, str]:
    """One for each test; the parts of a test (`subTest`) are the test."""
    if not report.exists():
        return {}
    outcomes = {}
    for case in ET.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        name = f"{case.get('classname')}::{case.get('name')}"
        failed = kinds & {"failure", "error"} or outcomes.get(name) == "failed"
        outcomes[name] = "failed" if failed else "skipped" if "skipped" in kinds else "passed"
    return outcomes


if __name__ == "__main__":
    main()
