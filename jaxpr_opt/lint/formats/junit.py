"""JUnit XML: a suite for each target, a case for each finding and for each rule that has none.

Notes do not fail: they are cases that pass and say so.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from jaxpr_opt.frames import frame_text
from jaxpr_opt.lint.finding import Finding
from jaxpr_opt.lint.formats.text import cost_text, printable
from jaxpr_opt.lint.paths import relative
from jaxpr_opt.lint.result import Checked, Result


def write(result: Result) -> str:
    """The run as a document."""
    root = ET.Element("testsuites", name="jaxpr-opt lint", time=f"{result.seconds:.3f}")
    for checked in result.targets:
        root.append(_suite(checked, result))
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, 0)) for suite in root)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode")


def _suite(checked: Checked, result: Result) -> ET.Element:
    suite = ET.Element("testsuite", name=checked.name)
    for finding in checked.findings:
        case = _case(suite, checked, _name(finding, result))
        tag = "system-out" if finding.severity == "note" else "failure"
        child = ET.SubElement(case, tag)
        child.text = printable(_text(finding))
        if tag == "failure":
            child.attrib |= {"type": finding.severity, "message": printable(finding.says)}
    for each in checked.suppressed:
        case = _case(suite, checked, _name(each.finding, result))
        ET.SubElement(case, "skipped", message=f"suppressed by {each.how}")
    found = {f.code for f in (*checked.findings, *(each.finding for each in checked.suppressed))}
    for rule in result.rules if not checked.error else ():
        if rule.code not in found:
            _case(suite, checked, f"{rule.code} {rule.name}")
    if checked.error:
        case = _case(suite, checked, "trace")
        ET.SubElement(case, "error", type="error", message=printable(checked.error))
    counted = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite.set("tests", str(len(suite)))
    for name, tag in counted.items():
        suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
    return suite


def _case(suite: ET.Element, checked: Checked, name: str) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=printable(checked.name), name=printable(name))


def _name(finding: Finding, result: Result) -> str:
    where = ""
    if finding.frame is not None:
        where = f" {relative(finding.frame[0], result.root)}:{finding.frame[1]}"
    return f"{finding.code} {finding.rule}{where}"


def _text(finding: Finding) -> str:
    where = "" if finding.frame is None else frame_text(finding.frame)
    lines = [where, finding.says, cost_text(finding), finding.reason, f"fix: {finding.fix}"]
    return "\n".join(filter(None, lines))
