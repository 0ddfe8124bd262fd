"""What the documentation says: its code runs, its commands and its links are good."""

import re
import shlex
from pathlib import Path

import pytest

from jaxpr_opt.cli.main import main, parser

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXECUTED = ["donation.md", "quickstart.md", "writing-a-pass.md"]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", EXECUTED)
def test_code(name):
    """The blocks of a page are one program."""
    page = ROOT / "docs" / name
    source = "\n".join(blocks(page, "python"))
    assert source
    exec(compile(source, str(page), "exec"), {"__name__": "docs"})


def test_settings_of_the_quick_start(tmp_path, monkeypatch, capsys):
    """Its targets are in order: the only findings are about the program as it is there."""
    page = ROOT / "docs" / "quickstart.md"
    (settings,) = blocks(page, "toml")
    (tmp_path / "pyproject.toml").write_text(settings)
    (tmp_path / "model.py").write_text(blocks(page, "python")[0])
    monkeypatch.chdir(tmp_path)
    assert main(["lint"]) == 1
    assert "growth-over-limit" in capsys.readouterr().out


def commands():
    for page in PAGES:
        if page.name in {"rules.md", "passes.md"}:
            continue
        for line in re.findall(r"^(?:\$ )?jaxpr-opt (.*)$", page.read_text(), re.MULTILINE):
            yield pytest.param(line.partition("  #")[0].strip(), id=f"{page.stem}: {line[:40]}")


@pytest.mark.parametrize("line", list(commands()))
def test_commands(line):
    """They are what the command line takes; nothing is run."""
    parser().parse_args(shlex.split(line.rstrip("\\")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page):
    """Files that are linked to exist, and so do their headings."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, heading = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            assert heading in {slug(title) for title in titles}, target


def slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
