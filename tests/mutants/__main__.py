"""``python -m mutants [pass ...]``: which mutants survive their tests.

Results are kept in a folder (``.mutants``) as long as the pass and its tests stay as they are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from jaxpr_opt.engine import registry
from mutants import kill
from mutants.find import Mutant, mutants, numbered

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Try the mutants of some passes, or of all, and print those that survive."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("passes", nargs="*", help="names of passes; all, if none is given")
    parser.add_argument("--all", action="store_true", help="guards that cite no condition, too")
    parser.add_argument("--programs", type=int, default=0, help="random programs for survivors")
    parser.add_argument("--only-programs", action="store_true", help="no tests, programs only")
    parser.add_argument("--quick", action="store_true", help="only tests that need not compile")
    parser.add_argument("--part", default="1/1", help="one of several processes, such as 2/4")
    parser.add_argument("--folder", type=Path, default=ROOT / ".mutants")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", message=".*fork.*")
    args.folder.mkdir(exist_ok=True)
    part, parts = map(int, args.part.split("/"))
    chosen = [name.replace("-", "_") for name in args.passes]
    files = [f for f in modules() if not chosen or f.stem in chosen][part - 1 :: parts]
    survived = [each for file in files for each in _tried(file, args)]
    _list("do no harm", [(m, m.harmless) for m, _ in survived if m.harmless])
    _list("survive", [(m, verdict) for m, verdict in survived if not m.harmless])


def _list(what: str, found: list[tuple[Mutant, str]]) -> None:
    print(f"\n{len(found)} mutants {what}")
    for mutant, why in found:
        numbers = f"({', '.join(mutant.conditions)}) " if mutant.conditions else ""
        print(f"{mutant.path.stem}.py:{mutant.line} {numbers}{mutant.text}  -- {why}")


def modules() -> list[Path]:
    """The passes."""
    return [f for f in sorted((ROOT / "passes").rglob("*.py")) if f.stem != "__init__"]


def asked(path: Path) -> list[Mutant]:
    """The mutants of what a pass asks before it rewrites, itself, in another or in what it uses."""
    naming = _naming(path)
    return [*mutants(path), *(m for file in naming for m in mutants(file, _name(path)))]


def _naming(path: Path) -> list[Path]:
    """The modules that name a pass: what it uses may ask for it."""
    ours = ROOT / "jaxpr_opt"
    folders = (ROOT / "passes", ours / "analysis", ours / "builders", ours / "memory")
    others = (file for folder in folders for file in sorted(folder.rglob("*.py")))
    return [file for file in others if _name(path) in file.read_text()]


def _name(path: Path) -> str:
    return path.stem.replace("_", "-")


def _tried(path: Path, args: argparse.Namespace) -> list[tuple[Mutant, str]]:
    """The mutants of a module that survive; says how many there are of each condition."""
    kill.warm()
    found = [m for m in asked(path) if args.all or m.conditions]
    verdicts = _verdicts(path, found, args)
    alive = [m for m in found if "killed" not in verdicts[m.key]]
    left = sum(bool(m.harmless) for m in alive)
    of_conditions = (
        f"({n}) {sum(n in m.conditions for m in found if m not in alive)}"
        f"/{sum(n in m.conditions for m in found)}"
        for n in numbered(path)
    )
    killed = f"{len(found) - len(alive)} of {len(found)} mutants killed"
    killed += f", {left} do no harm" if left else ""
    print(f"{_name(path)}: {killed}; {', '.join(of_conditions)}", flush=True)
    return [(m, verdicts[m.key]) for m in alive]


def _verdicts(path: Path, found: list[Mutant], args: argparse.Namespace) -> dict[str, str]:
    tests = list(_tests(path))
    kept = args.folder / f"{path.stem}{'-programs' if args.only_programs else ''}.json"
    digest = _digest(*tests, *{m.path for m in found})
    known = json.loads(kept.read_text()) if kept.exists() else {"digest": "", "verdicts": {}}
    before, verdicts = known["verdicts"], known["verdicts"] if known["digest"] == digest else {}
    final = {key for key, verdict in verdicts.items() if args.quick or verdict != kill.QUICK}
    pending = [m for m in found if m.key not in final]
    tried = args.only_programs or not pending
    baseline = None if tried else kill.baseline(found, list(map(str, tests)), quick=args.quick)
    for mutant in pending:
        verdict = ""
        if baseline is not None:
            verdict = kill.verdict(mutant, baseline, before.get(mutant.key, ""), quick=args.quick)
        if args.programs and not verdict.startswith("killed"):
            each = registry.named(path.stem)
            programs = kill.by_programs(mutant, each, args.programs, args.folder)
            verdict = "; ".join(filter(None, [verdict, programs]))
        verdicts[mutant.key] = verdict
        kept.write_text(json.dumps({"digest": digest, "verdicts": verdicts}, indent=1))
    return verdicts


def _tests(path: Path) -> Iterator[Path]:
    """Its own tests, those of analyses that run it or ask for it, and those of passes that share a
    question.
    """
    for each in (path.stem, *sorted(_sharing(path))):
        yield ROOT / "tests" / "passes" / f"test_{each}.py"
        yield from sorted((ROOT / "tests" / "passes").glob(f"test_{each}_*.py"))
    asking = {f"test_{file.stem}" for file in _naming(path)}
    for test in sorted((ROOT / "tests" / "analysis").glob("test_*.py")):
        if test.stem in asking or f".{path.stem} import" in test.read_text():
            yield test


def _sharing(path: Path) -> set[str]:
    """The passes for which the same line asks."""
    lines = (line for file in _naming(path) for line in file.read_text().splitlines())
    groups = (re.findall(r"# Conditions? [\d, ]+ of ([a-z, -]+)\.$", line) for line in lines)
    together = [found[0].split(", ") for found in groups if found]
    named = {name for names in together if _name(path) in names for name in names}
    return {name.replace("-", "_") for name in named} - {path.stem}


def _digest(*paths: Path) -> str:
    return hashlib.sha256(b"".join(p.read_bytes() for p in sorted(paths))).hexdigest()


if __name__ == "__main__":
    main()
