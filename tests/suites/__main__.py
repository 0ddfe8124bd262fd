"""``python -m suites [library ...]``: no test may fail optimised that passes plain.

Source distributions are downloaded to a folder, or taken from it: ``.suites/src/NAME-*.tar.gz``.
What tests need is installed into the environment that runs this.
"""

from __future__ import annotations

import argparse
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
    worse = 0
    for library in LIBRARIES:
        if args.libraries and library.name not in args.libraries:
            continue
        try:
            source = _source(library, args.folder)
        except (subprocess.CalledProcessError, StopIteration) as error:
            print(f"{library.name}: not to be had: {error}", flush=True)
            continue
        only = library.only if args.only is None else args.only
        seconds = args.seconds or library.seconds
        plain = _run(library, source, only, seconds, optimized=False)
        ours = _run(library, source, only, seconds, optimized=True)
        worse += _report(library.name, plain, ours)
    sys.exit(1 if worse else 0)


def _report(name: str, plain: dict[str, str], ours: dict[str, str]) -> int:
    failed = [{t for t, how in run.items() if how == "failed"} for run in (plain, ours)]
    only = sorted(t for t in failed[1] if plain.get(t) == "passed")
    print(
        f"{name}: {len(ours)} of {len(plain)} tests run, {len(failed[0])} fail plain, "
        f"{len(failed[1])} optimised, {len(only)} only optimised",
        flush=True,
    )
    for test in only:
        print(f"    {test}")
    return len(only)


def _source(library: Library, folder: Path) -> Path:
    """The unpacked source of a library, itself and what its tests need installed."""
    archives = folder / "src"
    archives.mkdir(parents=True, exist_ok=True)
    pattern = f"{library.name.replace('-', '[-_]')}-[0-9]*.tar.gz"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    if not list(archives.glob(pattern)):
        options = ["--no-binary", library.name, "--no-deps", "--dest", str(archives)]
        subprocess.run([*pip, "download", *options, library.name], check=True)
    archive = next(iter(sorted(archives.glob(pattern))))
    target = folder / library.name
    if not target.exists():
        with tarfile.open(archive) as file:
            file.extractall(target, filter="data")
        version = archive.name.removesuffix(".tar.gz").rpartition("-")[2]
        wanted = [f"{library.name}=={version}", *library.needs]
        subprocess.run([*pip, "install", *wanted], check=True)
    return next(each for each in target.iterdir() if each.is_dir())


def _run(
    library: Library, source: Path, only: str, seconds: int, *, optimized: bool
) -> dict[str, str]:
    """What became of each test: passed, failed or skipped."""
    report = source.parent / f"{'optimized' if optimized else 'plain'}.xml"
    report.unlink(missing_ok=True)
    tests = [path for path in library.tests if (source / path).exists()]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    command += ["-p", "suites.plugin"] if optimized else []
    command += ["-k", only] if only else []
    command += [
        "--import-mode=importlib",
        "--continue-on-collection-errors",
        "-o",
        "python_files=*_test.py test_*.py",
    ]
    command += [f"--junitxml={report}", *tests]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "JAX_PLATFORMS": "cpu",
    }
    with report.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(command, cwd=source, env=environment, stdout=log, stderr=log)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            print(f"{library.name}: ended after {seconds} s", flush=True)
            process.send_signal(signal.SIGINT)  # pytest still writes down what it has
            process.wait()
    return _outcomes(report)


def _outcomes(report: Path) -> dict[str, str]:
    if not report.exists():
        return {}
    outcomes = {}
    for case in ET.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        name = f"{case.get('classname')}::{case.get('name')}"
        failed = kinds & {"failure", "error"}
        outcomes[name] = "failed" if failed else "skipped" if "skipped" in kinds else "passed"
    return outcomes


if __name__ == "__main__":
    main()
