"""Findings and figures of an earlier run, as JSON, so that a run reports only new ones.

It is what ``--format json`` writes, or the part of that which stays the same when lines move, as
``--update-baseline`` writes it.  A finding is known if there was one of the same rule for the same
target, file, function and shape.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxpr_opt.errors import TargetError
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.parts import Earlier, Name
from jaxpr_opt.lint.paths import relative
from jaxpr_opt.lint.result import Checked, Result
from jaxpr_opt.lint.rules.budgets import MoreThanBefore

VERSION = 1
KEYS = ("code", "file", "function", "shape")

Key = tuple[Any, ...]


@dataclass(slots=True)
class Baseline:
    """An earlier run."""

    figures: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Of every target, by its name."""
    known: Counter[Key] = field(default_factory=Counter)
    parts: Mapping[str, Mapping[str, Mapping[Name, int]]] = field(default_factory=dict)
    """Of every target, what its figures were made of."""
    source: str = ""
    """The file."""

    def of(self, target: str, root: Path) -> Earlier:
        """The baseline of one target."""
        return Earlier(self.source, root, self.parts.get(target, {}))

    def new(self, findings: Iterable[Finding], root: Path) -> Iterator[tuple[Finding, bool]]:
        """Every finding, and whether it is new; as many are known as there were.

        That something has grown is never known: the figures are.
        """
        left = self.known.copy()
        for finding in findings:
            name = key(finding.target, described(finding, root))
            yield finding, left[name] <= 0 or finding.code == MoreThanBefore.code
            left[name] -= 1


def described(finding: Finding, root: Path) -> dict[str, Any]:
    """A finding for machines, its file relative to `root`."""
    record = finding.to_dict()
    return record | {"file": record["file"] and relative(record["file"], root)}


def key(target: str, record: Mapping[str, Any]) -> Key:
    """The key by which a finding is known again."""
    return (target, *(record.get(name) for name in KEYS))


def read(path: Path) -> Baseline:
    """An earlier run from its file.

    Raises:
      TargetError: it is not there, or something else.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["version"] != VERSION:
            raise TargetError(f"{path} is of version {document['version']}: expected {VERSION}")
        targets = {each["target"]: each for each in document["targets"]}
        found = [
            (name, record)
            for name, each in targets.items()
            for record in [*each["findings"], *each.get("suppressed", ())]
        ]
        figures = {name: dict(each["figures"]) for name, each in targets.items()}
        known = Counter(key(name, record) for name, record in found)
        parts = {name: _read_parts(each.get("parts", {})) for name, each in targets.items()}
        return Baseline(figures, known, parts, path.name)
    except OSError as error:
        raise TargetError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TargetError(
            f"{path} is not a baseline: write one with --update-baseline or --format json"
        ) from error


def _read_parts(parts: Mapping[str, Iterable[Mapping[str, Any]]]) -> dict[str, dict[Name, int]]:
    found: dict[str, dict[Name, int]] = {}
    for figure, rows in parts.items():
        amounts = found.setdefault(figure, {})
        for row in rows:
            name = Name(*(str(row[each]) for each in Name._fields))
            amounts[name] = amounts.get(name, 0) + int(row["bytes"])
    return found


def parts_of(checked: Checked, root: Path) -> dict[str, Any]:
    """The parts of the figures of a target, for machines."""
    return {name: [part.to_dict(root) for part in each] for name, each in checked.parts.items()}


def written(result: Result) -> str:
    """The file of a run: what was found, but for what a change elsewhere in a file would move."""
    targets = [
        {
            "target": each.name,
            "figures": dict(each.figures),
            "parts": _without_lines(parts_of(each, result.root)),
            "findings": [_kept(finding, result.root) for finding in _all(each)],
        }
        for each in result.targets
    ]
    return json.dumps({"version": VERSION, "targets": targets}, indent=2) + "\n"


def _all(checked: Checked) -> list[Finding]:
    """All findings of a target's run, now or before."""
    known = (each.finding for each in checked.suppressed if each.how == "baseline")
    return [*checked.findings, *known]


def _without_lines(parts: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    for rows in parts.values():
        for row in rows:
            del row["line"]
    return parts


def _kept(finding: Finding, root: Path) -> dict[str, Any]:
    record = described(finding, root)
    return {key: record[key] for key in ("rule", *KEYS, "bytes")}
