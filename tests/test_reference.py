"""The reference pages say what the docstrings say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import jaxpr_opt
from jaxpr_opt import registry
from jaxpr_opt.cli import reference
from jaxpr_opt.lint.rule import rules

DOCS = Path(jaxpr_opt.__file__).resolve().parent.parent / "docs"


@pytest.mark.parametrize("name", sorted(reference.pages()))
def test_the_committed_page_is_current(name):
    made = reference.pages()[name]
    assert (DOCS / name).read_text() == made, "run python -m jaxpr_opt.cli.reference"


def test_every_rule_and_every_pass_has_an_entry():
    pages = reference.pages()
    for rule in rules().values():
        assert f"\n### {rule.code} {rule.name}\n" in pages["rules.md"]
    for each in registry.default_pipeline().passes:
        assert f"\n## {each.name}\n" in pages["passes.md"]


@pytest.mark.parametrize("name", sorted(reference.pages()))
def test_links_lead_somewhere_and_blocks_are_closed(name):
    page = reference.pages()[name]
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(#([^)]*)\)", page)
    assert links and set(links) <= anchors
    assert len(re.findall(r"^```", page, re.MULTILINE)) % 2 == 0


def test_pages_are_written_where_they_are_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["reference", str(tmp_path)])
    reference.main()
    assert {file.name for file in tmp_path.iterdir()} == {"rules.md", "passes.md"}
    assert capsys.readouterr().out.count("\n") == 2
