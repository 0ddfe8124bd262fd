"""``python -m fuzz --mutants``: conditions broken by hand, which random programs must notice.

A mutant is a copy of the project with one piece of text replaced.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("jaxpr_opt", "passes", "tests", "pyproject.toml")


@dataclass(frozen=True)
class Mutant:
    """A pass, a condition of its docstring, and the text that breaks it."""

    aimed_at: str
    condition: str
    file: str
    old: str
    new: str

    @property
    def label(self) -> str:
        """What it is called in reports."""
        return f"{self.aimed_at} ({self.condition})"


MUTANTS = (
    Mutant(
        "stack-carried-updates", "3", "jaxpr_opt/analysis/windows/access.py",
        "start if low >= 0 and high <= n - size else None", "start",
    ),
    Mutant(
        "stack-carried-updates", "2", "jaxpr_opt/analysis/carried/sliding.py",
        "if not stride or any(s.steps != {scan: stride} for s, _ in starts):", "if not stride:",
    ),
    Mutant(
        "undo-carried-writes", "2", "jaxpr_opt/analysis/residuals/walks.py",
        "if pairs[0][1].reverse == scan.reverse:", "if False:",
    ),
    Mutant(
        "forward-known-stacks", "1", "passes/residuals/forward_known_stacks.py",
        'return "it depends on an outer step, too" if match.number.steps else None', "return None",
    ),
    Mutant(
        "exit-loop-early", "4", "jaxpr_opt/analysis/steps/skipped_rows.py",
        "moving = {s.param for s in skip.scan.streams} | {c.param for c, _ in skip.counters}",
        "moving = {s.param for s in skip.scan.streams}",
    ),
    Mutant(
        "exit-loop-early", "1", "jaxpr_opt/analysis/steps/skips.py",
        "if skipped.keeps(carry):", "if True:",
    ),
    Mutant(
        "count-steps", "1", "passes/steps/count_steps.py",
        'if match.skip.kind != "carried":', "if False:",
    ),
    Mutant(
        "isolate-skipped-steps", "2", "jaxpr_opt/analysis/residuals/unread_rows.py",
        "and _skips_with(last.scan, other, skip, route)", "and True",
    ),
    Mutant(
        "accumulate-sparse-cotangents", "1", "passes/sparse/accumulate_sparse_cotangents.py",
        "if is_read_beside(match.dense, op, match.chain):", "if False:",
    ),
    Mutant(
        "accumulate-sparse-cotangents", "2", "jaxpr_opt/analysis/sparse/disjoint_pieces.py",
        "if distance.is_constant and not -second.size < distance.offset < first.size:",
        "if distance.is_constant:",
    ),
    Mutant(
        "replay-steps", "3", "jaxpr_opt/analysis/residuals/cuts.py",
        "and _is_unspecified(alone.skipped[stack.value])", "",
    ),
    Mutant(
        "share-shifted-stacks", "2", "jaxpr_opt/analysis/residuals/adjacent_step_stacks.py",
        "hop.scan.reverse != scan.reverse and", "",
    ),
    Mutant(
        "narrow-carried-arrays", "2", "jaxpr_opt/analysis/carried/blocks.py",
        "if not outer.steps or any(part.steps != outer.steps for part, _ in parts):",
        "if not outer.steps:",
    ),
    Mutant(
        "sink-select-into-update", "1", "jaxpr_opt/analysis/masks/selected_versions.py",
        "(each for each in versions if each.array is array)",
        "(each for each in versions if each.array.aval == array.aval)",
    ),
    Mutant(
        "forward-written-windows", "2", "passes/writes/forward_written_windows.py",
        "return fills(read) and not write.is_located", "return False",
    ),
    Mutant(
        "forward-written-windows", "3", "passes/writes/forward_written_windows.py",
        'if write.kind == "add" and not to_zeros:', "if False:",
    ),
)  # fmt: skip


def run(mutants: Sequence[Mutant], python: str, programs: int, seed: int) -> list[str]:
    """Try that many programs on each mutant, print what became of it; those that survive."""
    survived = []
    for number, mutant in enumerate(mutants):
        with tempfile.TemporaryDirectory() as folder:
            verdict = _tried(mutant, Path(folder), python, programs, seed, number)
        print(f"{mutant.label}: {verdict}", flush=True)
        survived += [mutant.label] * (not verdict.startswith("killed"))
    print(f"{len(mutants) - len(survived)} of {len(mutants)} mutants killed", flush=True)
    return survived


def _tried(mutant: Mutant, folder: Path, python: str, programs: int, seed: int, number: int) -> str:
    copy, found = folder / "copy", folder / "found"
    patched(mutant, copy)
    options = ["--epoch", str(number), "--seed", str(seed), "--programs", str(programs)]
    options += ["--folder", str(found), "--aim", mutant.aimed_at, "--until-found"]
    command = [python, "-W", "ignore", "-m", "fuzz", *options]
    subprocess.run(command, cwd=copy, env=_env(copy), check=False)
    kept = found / "epochs.jsonl"
    if not kept.exists():
        return "the epoch ended without a word"
    (done,) = map(json.loads, kept.read_text().splitlines())
    tried = done["counts"].get("programs", 0)
    if not done["counts"].get("finds"):
        return f"survived {tried} programs"
    if _fails(found, python):
        return f"its find after {tried} programs is none: it fails without the mutant, too"
    kind = "a wrong value" if done["counts"].get("wrong") else "a pass that fails"
    return f"killed by {kind}, {tried} programs"


def _fails(found: Path, python: str) -> bool:
    """Whether what was found goes wrong in the project as it is."""
    command = [python, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
    files = map(str, found.glob("found_*.py"))
    made = subprocess.run(
        [*command, *files], cwd=ROOT, env=_env(ROOT), capture_output=True, check=False
    )
    return made.returncode not in {0, 5}  # 5: it cannot be written as source


def _env(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{root}:{root / 'tests'}"}


def patched(mutant: Mutant, folder: Path) -> None:
    """Copy the project, with the mutant's text replaced."""
    ignored = shutil.ignore_patterns("__pycache__", "browser")
    folder.mkdir()
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    path = folder / mutant.file
    text = path.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.label}: not once in {mutant.file}: {mutant.old}"
    path.write_text(text.replace(mutant.old, mutant.new))


def named(names: Sequence[str]) -> list[Mutant]:
    """The mutants of these passes; all, if none is named."""
    known = {m.aimed_at for m in MUTANTS}
    unknown = set(names) - known
    if unknown:
        sys.exit(f"no mutant of {', '.join(sorted(unknown))}: there are some of {sorted(known)}")
    return [m for m in MUTANTS if not names or m.aimed_at in names]
