"""`jaxpr-opt report`: a file, one line about it, and one line where it cannot be."""

import sys

import pytest

from jaxpr_opt.cli import main

PROGRAM = """
import jax.numpy as jnp

def f(x):
    return jnp.sin(x).sum()
"""


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    (tmp_path / "report_program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*argv):
        code = main(["report", "report_program.py:f", "--args", "f32[3]", *argv])
        return code, *capsys.readouterr()

    return run


def test_a_page_is_written(run, tmp_path):
    code, out, err = run("--grad", "--html", "out.html")
    assert (code, err) == (0, "")
    assert out.startswith("wrote out.html (")
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "<code>grad(f)</code>" in text


def test_where_to_write_it_must_be_said(run):
    code, out, err = run()
    assert (code, out) == (2, "")
    assert "--html" in err and err.count("\n") == 1


def test_a_file_that_cannot_be_written_is_one_line(run):
    code, out, err = run("--html", "no/such/folder.html")
    assert (code, out) == (2, "")
    assert err == "jaxpr-opt: error: cannot write no/such/folder.html: No such file or directory\n"


def test_findings_are_those_of_lint_by_the_settings_of_the_project(run, tmp_path):
    settings, written = tmp_path / "pyproject.toml", tmp_path / "out.html"
    settings.write_text("[tool.jaxpr-opt.lint]\nmax-peak-bytes = '1 B'\n")
    assert run("--grad", "--html", "out.html")[0] == 0
    assert 'id="findings"' in written.read_text(encoding="utf-8")
    settings.write_text("[tool.jaxpr-opt.lint]\nmax-peak-bytes = '1 B'\nignore = ['JXO6']\n")
    assert run("--grad", "--html", "out.html")[0] == 0
    assert 'id="findings"' not in written.read_text(encoding="utf-8")
