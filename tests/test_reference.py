"""The reference pages say what the docstrings say."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import jaxpr_opt
from jaxpr_opt.cli import documentation, reference
from jaxpr_opt.engine import registry
from jaxpr_opt.lint import config
from jaxpr_opt.lint.formats import WRITERS
from jaxpr_opt.lint.options import MODES, Options, Spec
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
    for each in registry.library_passes():
        assert f"\n## {each.name}\n" in pages["passes.md"]


def test_every_folder_of_passes_says_what_each_is_for():
    passes = {each.name: each for each in registry.library_passes()}
    _, *folders = documentation.rooms(passes.values())
    assert len(folders) == 13
    for room, members in folders:
        assert set(room.laws) == {each.name for each in members}


@pytest.mark.parametrize("name", sorted(reference.pages()))
def test_links_lead_somewhere_and_blocks_are_closed(name):
    page = reference.pages()[name]
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(#([^)]*)\)", page)
    assert links and set(links) <= anchors
    assert len(re.findall(r"^```", page, re.MULTILINE)) % 2 == 0


LINT = (DOCS / "lint.md").read_text()


def test_the_page_about_lint_names_every_setting_and_format():
    settings = [field.name for field in (*fields(Options), *fields(Spec))] + list(config.OWN)
    names = [name.replace("_", "-") for name in settings] + ["text", *WRITERS, *MODES]
    assert [name for name in names if not re.search(rf"[`\n.]{name}[`=. ]", LINT)] == []


def test_the_settings_on_the_page_about_lint_are_settings():
    blocks = re.findall(r"```toml\n(.*?)```", LINT, re.DOTALL)
    assert len(blocks) == 2
    file = DOCS / "pyproject.toml"
    targets, project = (config.read(block, file) for block in blocks)
    assert targets.targets["step"].spec.mode == "gradient"
    assert project.baseline == DOCS / "lint-baseline.json"


def test_pages_are_written_where_they_are_asked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["reference", str(tmp_path)])
    reference.main()
    assert {file.name for file in tmp_path.iterdir()} == {"rules.md", "passes.md"}
    assert capsys.readouterr().out.count("\n") == 2
