"""SARIF 2.1.0, as GitHub code scanning reads it.

The standard: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html; what GitHub makes of
it: https://docs.github.com/code-security/code-scanning/integrating-with-code-scanning/sarif-support.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jaxpr_opt.frames import Frame
from jaxpr_opt.lint.baseline import described, key
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.formats.text import cost_text
from jaxpr_opt.lint.paths import relative
from jaxpr_opt.lint.result import Checked, How, Result
from jaxpr_opt.lint.rule import FAMILIES, Rule, documentation, passages, summary
from jaxpr_opt.version import __version__

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT = "%SRCROOT%"
KINDS: dict[How, str] = {
    "comment": "inSource",
    "path": "external",
    "target": "external",
    "baseline": "external",
}


def write(result: Result) -> str:
    """The run as a document."""
    findings = [(f, None) for each in result.targets for f in each.findings]
    suppressed = [(s.finding, s.how) for each in result.targets for s in each.suppressed]
    positions = {rule.code: index for index, rule in enumerate(result.rules)}
    errors = [_notification(each, result) for each in result.errors]
    run: dict[str, Any] = {
        "tool": {"driver": _driver(result)},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {ROOT: {"uri": f"{result.root.as_uri()}/"}},
        "invocations": [
            {
                "executionSuccessful": not result.errors,
                "exitCode": result.exit_code,
                "toolExecutionNotifications": errors,
            }
        ],
        "results": [],
    }
    seen = Counter[str]()
    for finding, how in [*findings, *suppressed]:
        entry = _result(finding, how, positions, result)
        stable = _stable(finding, result)
        entry["partialFingerprints"] = {"jaxprOpt/v1": _fingerprint(f"{stable} {seen[stable]}")}
        seen[stable] += 1
        run["results"].append(entry)
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _driver(result: Result) -> dict[str, Any]:
    rules = [_rule(rule) for rule in result.rules]
    return {"name": "jaxpr-opt", "version": __version__, "rules": rules}


def _rule(rule: Rule) -> dict[str, Any]:
    sections = documentation(rule)
    blocks = []
    for title, text in sections.items():
        blocks.append(f"**{title}**")
        blocks += [f"```\n{t}\n```" if is_code else t for is_code, t in passages(title, text)]
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": summary(rule)},
        "fullDescription": {"text": " ".join(sections["What"].split())},
        "help": {
            "text": "\n\n".join(f"{title}: {text}" for title, text in sections.items()),
            "markdown": "\n\n".join(blocks),
        },
        "defaultConfiguration": {"level": rule.severity, "enabled": rule.default},
        "properties": {"tags": [FAMILIES[rule.code[3]]]},
    }


def _result(
    finding: Finding, how: How | None, positions: dict[str, int], result: Result
) -> dict[str, Any]:
    cost = cost_text(finding)
    says = f"{finding.says} ({cost})" if cost else finding.says
    sentences = [says, finding.reason, f"Fix: {finding.fix}"]
    entry: dict[str, Any] = {
        "ruleId": finding.code,
        "level": finding.severity,
        "message": {"text": "\n".join(filter(None, sentences))},
        "properties": {"target": finding.target, "fixedBy": finding.fixed_by},
    }
    if finding.code in positions:
        entry["ruleIndex"] = positions[finding.code]
    if finding.frame is not None:
        entry["locations"] = [_location(finding.frame, result)]
    if finding.bytes is not None:
        entry["properties"]["bytes"] = finding.bytes
    if how is not None:
        entry["suppressions"] = [{"kind": KINDS[how], "justification": f"by {how}"}]
    return entry


def _location(frame: Frame, result: Result) -> dict[str, Any]:
    file, line, function = frame
    path = relative(file, result.root)
    artifact = {"uri": quote(path), "uriBaseId": ROOT}
    if Path(path).is_absolute():
        artifact = {"uri": Path(path).as_uri()}
    location: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": artifact, "region": {"startLine": max(line, 1)}}
    }
    if function:
        location["logicalLocations"] = [{"fullyQualifiedName": function, "kind": "function"}]
    return location


def _stable(finding: Finding, result: Result) -> str:
    """The part of a finding that stays the same when lines move, so that one that was there is not
    new.
    """
    return repr(key(finding.target, described(finding, result.root)))


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _notification(checked: Checked, result: Result) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "level": "error",
        "message": {"text": checked.error},
        "properties": {"target": checked.name},
    }
    if checked.place is not None:
        entry["locations"] = [_location(checked.place, result)]
    return entry
