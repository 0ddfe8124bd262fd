"""What each format says of the same run."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree as ET

import pytest

from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.formats import WRITERS, github, text
from jaxpr_opt.lint.result import Checked, Result, Suppressed
from jaxpr_opt.lint.rule import rules
from jaxpr_opt.printing import plain
from tests.lint import sarif

FIGURES = {
    "input_bytes": 1_000_000,
    "residual_bytes": 134_000_000,
    "peak_bytes": 240_000_000,
    "donated_bytes": 500_000,
}


def finding(number, root, severity="warning", **changed):
    given = {
        "code": f"JXO6{number:02}",
        "rule": "a-rule",
        "severity": severity,
        "target": "step",
        "says": f"finding {number} is | bad, 100% <really>",
        "reason": "why: it *is*",
        "fix": "write `x`, not `y`",
        "frame": (str(root / "model.py"), number, "f.<locals>.step"),
    }
    return Finding(**{**given, **changed})


@pytest.fixture
def result(tmp_path):
    whole = {"shape": "f32[256,4]", "bytes": 134_000_000, "formula": "256 x 524 kB"}
    found = (
        finding(1, tmp_path, "error", **whole),
        finding(2, tmp_path, frame=None, says="\x00no place"),
        finding(3, tmp_path, "note", frame=("/else where/lib.py", 7, "")),
    )
    known = Suppressed(finding(4, tmp_path), "comment"), Suppressed(finding(5, tmp_path), "path")
    targets = (
        Checked("step", found, known, FIGURES),
        Checked("clean", figures=FIGURES | {"residual_bytes": 0}),
        Checked("lost", error="lost raised while tracing: ValueError: no | good"),
    )
    return Result(targets, tuple(rules().values()), tmp_path, 1.25)


def test_text(result, monkeypatch):
    monkeypatch.chdir(result.root)
    shown = plain(text.render(result, statistics=True))
    assert max(map(len, shown.splitlines())) <= 80
    assert shown.startswith(
        """\
step  residuals 134 MB, 134 times the inputs; peak 240 MB; donated 500 kB

model.py:1 in step
  error JXO601 a-rule
  finding 1 is | bad, 100% <really>
  costs: f32[256,4], 134 MB = 256 x 524 kB
  why: why: it *is*
  fix: write `x`, not `y`

"""
    )
    assert re.search(r"^1  JXO601  residual-budget +134 MB$", shown, re.MULTILINE)
    assert shown.endswith(
        "3 findings (1 error, 1 warning, 1 note) in 2 targets, 2 suppressed, 1 could not\n"
        "be traced."
    )


def test_a_cost_that_the_sentence_has_is_not_told_again(tmp_path):
    told = finding(1, tmp_path, says="it is 4.2 MB too much", bytes=4_200_000, shape="f32[3]")
    assert text.cost_text(told) == "f32[3]"
    assert text.cost_text(finding(1, tmp_path, formula="n x 3 B")) == "n x 3 B"


def test_json(result):
    told = json.loads(WRITERS["json"](result))
    assert (told["version"], told["exit_code"]) == (1, 2)
    assert told["counts"] == {"error": 1, "warning": 1, "note": 1}
    step, clean, lost = told["targets"]
    assert step["figures"] == FIGURES
    assert [f["file"] for f in step["findings"]] == ["model.py", None, "/else where/lib.py"]
    assert step["findings"][0]["bytes"] == 134_000_000
    assert [f["suppressed_by"] for f in step["suppressed"]] == ["comment", "path"]
    assert (clean["findings"], clean["error"]) == ([], None)
    assert lost["error"].startswith("lost raised")


def test_github(result, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/not/there/summary.md")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    lines = WRITERS["github"](result).splitlines()
    assert lines[0] == (
        "::error title=jaxpr-opt%3A lost::lost raised while tracing: ValueError: no | good"
    )
    assert lines[1] == (
        "::error file=model.py,line=1,title=JXO601 a-rule (step)::finding 1 is | bad, 100%25"
        " <really> (f32[256,4], 134 MB = 256 x 524 kB)%0Awhy: it *is*%0AFix: write `x`, not `y`"
    )
    assert [line.partition(" ")[0] for line in lines[2:4]] == ["::warning", "::notice"]
    assert "file=" not in lines[2]
    assert lines[4:] == [f"jaxpr-opt lint: {result.summary()}"]


def test_github_shows_the_worst_of_each_level_and_the_rest_in_the_summary(tmp_path, monkeypatch):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path.parent))
    many = tuple(finding(n, tmp_path, bytes=n) for n in range(1, 15))
    run = Result(
        (Checked("step", (*many, finding(20, tmp_path, "note")), figures=FIGURES),), (), tmp_path
    )
    lines = WRITERS["github"](run).splitlines()
    assert len([line for line in lines if line.startswith("::warning")]) == github.MOST
    assert f"file={tmp_path.name}/model.py,line=14," in lines[0]
    assert lines[-2].startswith("::notice")
    assert lines[-1].endswith("; 4 of them in the step summary")
    told = summary.read_text()
    assert told.startswith("before\n### jaxpr-opt lint: 15 findings")
    assert "`model.py:1`" in told


def test_markdown(result):
    told = WRITERS["markdown"](result)
    rows = [line for line in told.splitlines() if line.startswith("|")]
    columns = [len(re.findall(r"(?<!\\)\|", row)) for row in rows]
    assert columns == [7] * 5 + [6] * 5
    assert "| `step` | 1 MB | 134 MB | 240 MB | 500 kB | 3 |" in rows
    assert "| `lost` | ? | ? | ? | ? | 0 |" in rows
    assert "❌ lost raised while tracing: ValueError: no \\| good" in told
    assert rows[7].startswith("| ❌ | `model.py:1` | finding 1 is \\| bad, 100% &lt;really>")
    assert "\x00" not in told


def test_markdown_of_one_clean_target_is_short(tmp_path):
    told = WRITERS["markdown"](Result((Checked("step", figures=FIGURES),), (), tmp_path))
    assert told.splitlines() == [
        "### jaxpr-opt lint: no findings in 1 target",
        "",
        "| target | inputs | residuals | peak, estimated | donated | findings |",
        "|---|--:|--:|--:|--:|--:|",
        "| `step` | 1 MB | 134 MB | 240 MB | 500 kB | 0 |",
    ]


def test_junit(result):
    root = ET.fromstring(WRITERS["junit"](result))
    assert root.tag == "testsuites"
    step, clean, lost = root
    assert [step.get(key) for key in ("failures", "errors", "skipped")] == ["2", "0", "2"]
    failed = [case.get("name") for case in step if case.find("failure") is not None]
    assert failed == ["JXO601 a-rule model.py:1", "JXO602 a-rule"]
    (noted,) = [case for case in step if case.find("system-out") is not None]
    assert noted.get("name") == "JXO603 a-rule /else where/lib.py:7"
    assert "?no place" in step[1].find("failure").get("message")
    assert len(clean) == len(result.rules)
    assert all(len(case) == 0 for case in clean)
    assert [case.find("error").get("message") for case in lost] == [result.errors[0].error]
    for name in ("tests", "failures", "errors", "skipped"):
        assert int(root.get(name)) == sum(int(suite.get(name)) for suite in root)
    assert int(root.get("tests")) == len(root.findall("testsuite/testcase"))


def test_sarif(result):
    """What the standard asks for, and GitHub."""
    told = json.loads(WRITERS["sarif"](result))
    sarif.check(told)
    assert told["version"] == "2.1.0"
    (run,) = told["runs"]
    driver = run["tool"]["driver"]
    ids = [rule["id"] for rule in driver["rules"]]
    assert ids == [rule.code for rule in result.rules]
    for rule in driver["rules"]:
        assert rule["shortDescription"]["text"].endswith(".")
        assert rule["help"]["text"] and "```" in rule["help"]["markdown"]
        assert rule["defaultConfiguration"]["level"] in {"error", "warning", "note"}
    (invocation,) = run["invocations"]
    assert not invocation["executionSuccessful"]
    (notification,) = invocation["toolExecutionNotifications"]
    assert notification["message"]["text"] == result.errors[0].error
    base = run["originalUriBaseIds"]["%SRCROOT%"]["uri"]
    assert base.startswith("file:///") and base.endswith("/")

    first, placeless, outside, *known = run["results"]
    assert (first["ruleId"], first["level"]) == ("JXO601", "error")
    assert ids[first["ruleIndex"]] == "JXO601"
    (location,) = first["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "model.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 1},
    }
    assert "locations" not in placeless
    artifact = outside["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": "file:///else%20where/lib.py"}
    assert [each["suppressions"][0]["kind"] for each in known] == ["inSource", "external"]
    prints = [each["partialFingerprints"]["jaxprOpt/v1"] for each in run["results"]]
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"runs": []}, r"\$ lacks {'version'}"),
        ({"version": "2.1.0", "runs": [{}]}, r"\$.runs\[0\] lacks {'tool'}"),
        ({"version": "2.1.0", "runs": [], "run": []}, r"\$ has {'run'}"),
    ],
)
def test_what_is_no_sarif_is_noticed(broken, says):
    with pytest.raises(AssertionError, match=says):
        sarif.check(broken)


def test_the_fingerprint_of_a_finding_stays_when_lines_move(tmp_path):
    def fingerprints(*numbers):
        found = tuple(finding(1, tmp_path, frame=(str(tmp_path / "m.py"), n, "f")) for n in numbers)
        run = json.loads(WRITERS["sarif"](Result((Checked("step", found),), (), tmp_path)))
        return [r["partialFingerprints"]["jaxprOpt/v1"] for r in run["runs"][0]["results"]]

    assert fingerprints(3, 4) == fingerprints(13, 14)
    assert len(set(fingerprints(3, 4))) == 2
