"""`make test-suites` runs the tests of a library optimised, and says so where none has run."""

import ast
import signal

import pytest

from suites import __main__ as main
from suites.__main__ import _report, _run
from suites.libraries import Library

LIBRARY = Library("numpy", ("test_it.py",))
TESTS = """
import jax

def test_passes():
    assert jax.jit(lambda x: x + 1)(1) == 2

def test_fails():
    assert jax.jit(lambda x: x + 1)(1) == 3
"""


def test_a_suite_runs_optimised(tmp_path, capsys):
    source = tmp_path / "source"
    source.mkdir()
    (source / "test_it.py").write_text(TESTS)
    ours = _run(LIBRARY, source, "", 100, optimized=True)
    assert sorted(ours.values()) == ["failed", "passed"]
    counts = ast.literal_eval((tmp_path / "optimized.counts").read_text())
    assert counts["programs"] >= 1
    plain = _run(LIBRARY, source, "", 100, optimized=False)
    assert list(plain.values()) == ["failed"]
    assert _report(LIBRARY, ours, set()) == 0
    assert "1 passed, 0 skipped, 1 failed optimised, 1 of them in plain" in capsys.readouterr().out


def test_a_suite_that_does_not_run_fails(capsys):
    assert _report(LIBRARY, {}, set()) == 1
    assert "no test has run" in capsys.readouterr().out


def test_a_distribution_without_tests_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(main, "LIBRARIES", (LIBRARY,))
    monkeypatch.setattr(main, "_source", lambda library, folder: folder / library.name)
    monkeypatch.setattr("sys.argv", ["suites", "numpy", "--folder", str(tmp_path)])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a shell's background job
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 0
    assert f"no tests in {tmp_path / 'numpy'}: put a checkout there" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # pytest will be told
