"""``python -m mutants [pass ...]``: which mutants survive their tests.

Results are kept in a folder (``.mutants``) as long as the pass and its tests stay as they are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Try the mutants of some passes, or of all, and print those that survive."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("passes", nargs="*", help="names of passes; all, if none is given")
    parser.add_argument("--programs", type=int, default=0, help="random programs for survivors")
    parser.add_argument("--only-programs", action="store_true", help="no tests, programs only")
    parser.add_argument("--quick", action="store_true", help="only tests that need not compile")
    parser.add_argument("--part", default="1/1", help="one of several processes, such as 2/4")
    parser.add_argument("--folder", type=Path, default=ROOT / ".mutants")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*fork.*")
    args.folder.mkdir(exist_ok=True)
    part, parts = map(int, args.part.split("/"))
    files = [f for f in sorted((ROOT / "passes").glob("*.py")) if f.stem != "__init__"]
    chosen = [name.replace("-", "_") for name in args.passes]
    files = [f for f in files if not chosen or f.stem in chosen][part - 1 :: parts]
    survived = [each for file in files for each in _tried(file, args)]
    print(f"\n{len(survived)} mutants survive")
    for path, line, conditions, text, verdict in survived:
        numbers = f"({', '.join(conditions)})" if conditions else ""
        print(f"{path}:{line} {numbers} {text}  -- {verdict}")


def _tried(path: Path, args: argparse.Namespace) -> list[Any]:
    from jaxpr_opt import registry
    from mutants import kill
    from mutants.find import mutants, numbered

    kill.warm()
    name = path.stem.replace("_", "-")
    tests = ROOT / "tests" / "passes" / f"test_{path.stem}.py"
    kept = args.folder / f"{path.stem}{'-programs' if args.only_programs else ''}.json"
    digest = _digest(path, tests)
    known = json.loads(kept.read_text()) if kept.exists() else {}
    known = known["verdicts"] if known.get("digest") == digest else {}
    found = mutants(path)
    lines = {}
    if not args.only_programs and any(str(m.number) not in known for m in found):
        lines = kill.covered(path, [str(tests)], quick=args.quick)
    for mutant in found:
        verdict = known.get(str(mutant.number), "")
        if not verdict and not args.only_programs:
            verdict = kill.verdict(mutant, list(_covering(mutant.line, lines)), quick=args.quick)
        if args.programs and not verdict.startswith("killed"):
            each = registry.named(name)
            verdict += "; " * bool(verdict) + kill.by_programs(
                mutant, each, args.programs, args.folder
            )
        known[str(mutant.number)] = verdict
        kept.write_text(json.dumps({"digest": digest, "verdicts": known}, indent=1))
    alive = [m for m in found if "killed" not in known[str(m.number)]]
    without = set(numbered(path)) - {n for m in found for n in m.conditions}
    note = f"; no mutant of condition {', '.join(sorted(without))}" if without else ""
    print(f"{name}: {len(found) - len(alive)} of {len(found)} mutants killed{note}", flush=True)
    return [
        (path.relative_to(ROOT), m.line, m.conditions, m.text, known[str(m.number)]) for m in alive
    ]


def _covering(line: int, lines: dict[str, list[int]]) -> Iterator[str]:
    """Tests that run a line, those that run least first."""
    for test, ran in sorted(lines.items(), key=lambda item: len(item[1])):
        if line in ran:
            yield test


def _digest(*paths: Path) -> str:
    return hashlib.sha256(b"".join(p.read_bytes() for p in paths)).hexdigest()


if __name__ == "__main__":
    main()
