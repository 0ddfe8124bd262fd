"""What README, the Makefile and CI tell people to run is the same, and is there."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README, MAKEFILE, CI = ((ROOT / name).read_text() for name in ("README.md", "Makefile", ".ci/run"))
TARGETS = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def made(text):
    """The targets that a text says to make, in order."""
    return re.findall(r"\bmake ([a-z]+(?:-[a-z]+)*)\b", text)


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.DOTALL | re.MULTILINE)[1]


def test_the_two_commands_come_first_and_say_what_they_need_and_take():
    block = re.search(r"```\n(.*?)```", section("Try it"), re.DOTALL)[1]
    assert made(block) == ["demo", "test"]
    rows = re.findall(r"^\| `make (\w+)` \| (.+) \| (.+) \|$", section("Try it"), re.MULTILINE)
    assert [name for name, *_ in rows] == ["demo", "test"]
    assert all("MB" in takes and "minute" in takes for *_, takes in rows)


def test_ci_runs_what_the_readme_says():
    assert made(CI) == ["lint", "demo", "test", "test-newest", "test-middle"]
    assert set(made(CI)) <= set(made(section("Try it")))


def test_every_target_that_is_named_is_there():
    pages = [README, CI, *(page.read_text() for page in (ROOT / "docs").glob("*.md"))]
    named = {target for page in pages for target in re.findall(r"`make ([a-z-]+)[^`]*`", page)}
    assert named | set(made(CI)) <= TARGETS


def test_every_target_is_on_the_first_lines_of_the_makefile():
    first = MAKEFILE.partition("\n#\n")[0]
    assert set(re.findall(r"[a-z-]+", first.removeprefix("# make "))) == TARGETS
    assert set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE)) == TARGETS


@needs_make
@pytest.mark.parametrize(
    ("target", "runs"),
    [
        ("demo", "-m examples.demo"),
        ("test", "-m pytest"),
        (
            "test-middle",
            "-m pytest --numprocesses auto --maxprocesses 4 --quiet tests/test_calls.py",
        ),
        ("test-all", "-m pytest --numprocesses auto --maxprocesses 4 --quiet tests;"),
    ],
)
def test_what_the_targets_run(target, runs):
    told = ["make", "--dry-run", "--always-make", target, "MIDDLE=python3.12", "NEWEST=python3.13"]
    done = subprocess.run(told, check=True, cwd=ROOT, capture_output=True, text=True)
    assert runs in done.stdout


@needs_make
def test_a_machine_without_the_python_in_between_is_told_so():
    done = subprocess.run(
        ["make", "test-middle", "MIDDLE="], check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert "JAX 0.11 was not tested: it takes a Python 3.12" in done.stdout


@needs_make
def test_pythons_are_found_by_their_minor_version():
    missing = subprocess.run([ROOT / ".ci/newest-python", "3.99"], check=False, capture_output=True)
    assert (missing.returncode, missing.stdout) == (1, b"")
    assert b"No Python 3.99 with venv" in missing.stderr
