"""What the documentation says: its code runs, its commands and its links are good."""

import doctest
import inspect
import pkgutil
import re
import shlex
import tomllib
from pathlib import Path
from textwrap import indent

import jax
import jax.numpy as jnp
import pytest

import jaxpr_opt
from jaxpr_opt import testing
from jaxpr_opt.cli.grammar import parser
from jaxpr_opt.cli.main import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXECUTED = ["donation.md", "memory.md", "quickstart.md", "writing-a-pass.md"]
RECIPES = sorted((ROOT / "docs" / "recipes").glob("*.md"))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", EXECUTED)
def test_code(name):
    """The blocks of a page are one program."""
    page = ROOT / "docs" / name
    source = "\n".join(blocks(page, "python"))
    assert source
    exec(compile(source, str(page), "exec"), {"__name__": "docs"})


def test_code_of_the_tutorial():
    """Its loop is that of the example."""
    loop, _ = blocks(ROOT / "docs" / "tutorial.md", "python")
    assert indent(loop, "    ") in (ROOT / "examples" / "tutorial.py").read_text()


@pytest.mark.filterwarnings("ignore")  # of the libraries
@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_recipes(page):
    """Where their library is installed."""
    source = "\n".join(blocks(page, "python"))
    for library in re.findall(r"^(?:import|from) (\w+)", source, re.MULTILINE):
        pytest.importorskip(library, reason=f"{library} is not installed")
    exec(compile(source, str(page), "exec"), {"__name__": f"recipe_{page.stem}"})


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


def test_the_page_of_a_package_index_links_to_no_file():
    """It is shown without the repository, and says what README says."""
    text = (ROOT / "PACKAGE.md").read_text()
    assert re.findall(r"\]\((?!https?://)", text) == []
    table = re.findall(r"^\| (?:as|the same).*$", text, re.MULTILINE)
    assert len(table) == 2
    assert set(table) <= set((ROOT / "README.md").read_text().splitlines())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["readme"] == "PACKAGE.md"


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


USED = ["budget", "diff", "everywhere", "explain", "growth", "lint", "optimize", "residuals"]
TESTED = ["same", "same_bits", "same_derivatives", "close", "growth", "residual_bytes"]
FUNCTIONS = [*USED, *(f"assert_{each}" for each in TESTED), "check_rewrite", "lint_target"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_examples_of_docstrings(name):
    """Each function that users call has one, and it is right."""
    home = jaxpr_opt if hasattr(jaxpr_opt, name) else testing
    function = inspect.unwrap(getattr(home, name))
    known = {"jax": jax, "jnp": jnp, "jaxpr_opt": jaxpr_opt, name: function}
    (example,) = doctest.DocTestFinder().find(function, name, globs=known)
    ran = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example)
    assert ran.attempted
    assert not ran.failed


def test_modules_and_files_that_are_named_are_there():
    """In pages and in docstrings."""
    sources = [*PAGES, ROOT / "CONTRIBUTING.md", *(ROOT / "passes").rglob("*.py")]
    sources += (ROOT / "jaxpr_opt").rglob("*.py")
    text = "\n".join(path.read_text() for path in sources)
    names = set(re.findall(r"`(jaxpr_opt(?:\.\w+)+)`", text))
    files = set(re.findall(r"`((?:jaxpr_opt|passes|tests|bench|examples)/[\w/]+\.\w+)`", text))
    assert len(names) > 50
    assert len(files) > 10
    for name in names:
        pkgutil.resolve_name(name)
    assert not {file for file in files if not (ROOT / file).is_file()}


def test_every_page_is_linked_from_the_index():
    """So the site has it in its sidebar."""
    linked = set(re.findall(r"\]\(([^)#]+)", (ROOT / "docs" / "index.md").read_text()))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages - linked == {"index.md"}


def test_every_public_name_is_in_the_reference():
    reference = (ROOT / "docs" / "api.rst").read_text()
    shown = set(re.findall(r"^\.\. auto\w+:: jaxpr_opt\.(\w+)$", reference, re.MULTILINE))
    public = {name for name in dir(jaxpr_opt) if _is_public(name, getattr(jaxpr_opt, name))}
    assert public <= shown
    (members,) = re.findall(r"jaxpr_opt\.testing\n   :members: (.*)", reference)
    assert set(members.split(", ")) == set(testing.__all__)


def _is_public(name: str, value: object) -> bool:
    return not name.startswith("_") and not inspect.ismodule(value)


def slug(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
