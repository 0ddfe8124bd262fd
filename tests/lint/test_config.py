"""What pyproject.toml says, and what it may not say."""

from __future__ import annotations

import pytest

from jaxpr_opt.errors import TargetError
from jaxpr_opt.lint.config import find, load
from jaxpr_opt.lint.options import Options

PROJECT = """
[tool.jaxpr-opt.lint]
select = ["JXO60", "unused-suppression"]
extend-select = ["peak-budget"]
ignore = ["JXO603"]
per-path-ignores = {"tests/*" = ["ALL"], "*/vendored.py" = ["JXO001"]}
min-bytes = "2 KiB"
baseline = "known.json"

[tool.jaxpr-opt.lint.targets.step]
function = "model.py:loss"
args = ["f32[3]"]
"""


@pytest.fixture
def project(tmp_path):
    def write(text):
        (tmp_path / "pyproject.toml").write_text(text)
        return tmp_path / "pyproject.toml"

    return write


def codes(chosen):
    return {rule.code for rule in chosen}


def test_a_project(project, tmp_path):
    config = load(project(PROJECT))
    assert config.options == Options(min_bytes=2048)
    assert config.baseline == tmp_path / "known.json"
    assert list(config.targets) == ["step"]
    assert {"JXO001", "JXO601", "JXO602"} <= codes(config.chosen(None, ()))
    assert "JXO603" not in codes(config.chosen(None, ()))
    assert "JXO602" not in codes(config.chosen(None, ("peak-budget",)))


def test_a_selection_on_the_command_line_replaces_that_of_the_file(project):
    config = load(project(PROJECT))
    assert codes(config.chosen(("JXO603",), ())) == {"JXO603"}
    assert codes(config.chosen(("ALL",), ("JXO6",))).isdisjoint({"JXO601", "JXO603"})


def test_paths_are_matched_from_the_project(project, tmp_path):
    config = load(project(PROJECT))
    at = lambda path: config.ignored_at((str(path), 3, "f"))
    assert "JXO601" in at(tmp_path / "tests" / "deep" / "model.py")
    assert at(tmp_path / "model.py") == set()
    assert at(tmp_path / "src" / "vendored.py") == {"JXO001"}
    assert at("/elsewhere/vendored.py") == {"JXO001"}
    assert config.ignored_at(None) == set()


def test_the_nearest_project_is_found(project, tmp_path):
    file = project("")
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert find(tmp_path / "a" / "b") == file
    assert load(file).targets == {}


LINT, STEP = "[tool.jaxpr-opt.lint]\n", "[tool.jaxpr-opt.lint.targets.step]\n"
INTRO = r"pyproject.toml: \[tool.jaxpr-opt.lint\]: "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool", "pyproject.toml is not TOML: "),
        ("[tool.jaxpr_opt.lint]", r"pyproject.toml: \[tool.jaxpr_opt\] is unknown: write \[tool"),
        ("tool = 3", "pyproject.toml: tool is 3: write "),
        ("[tool]\njaxpr-opt = 3", "pyproject.toml: jaxpr-opt is 3: write "),
        ("[tool.jaxpr-opt]\nlint = 3", r"pyproject.toml: lint is 3: write \[tool.jaxpr-opt.lint\]"),
        ("[tool.jaxpr-opt.lnt]", r"pyproject.toml: \[tool.jaxpr-opt.lnt\] is unknown: write"),
        (LINT + "selct = []", INTRO + "unknown setting 'selct'; did you mean 'select'"),
        (LINT + "select = 3", INTRO + "select is 3: expected a list of strings"),
        (LINT + "select = ['peak-budgets']", INTRO + "there is no rule 'peak-budgets'; did you"),
        (LINT + "ignore = ['JX']", INTRO + "there is no rule 'JX': `jaxpr-opt rule` lists them"),
        (LINT + "min-bytes = 'x'", INTRO + "min-bytes is 'x'"),
        (LINT + "baseline = 3", INTRO + "baseline is 3: expected the name of a file"),
        (LINT + "per-path-ignores = 3", INTRO + "per-path-ignores is 3: expected a table"),
        (LINT + "targets = [3]", INTRO + "targets must be tables"),
        (LINT + "[tool.jaxpr-opt.lint.per-path-ignores]\nx = ['BLA']", INTRO + "there is no rule"),
        (STEP, r"\[tool.jaxpr-opt.lint.targets.step\]: function is missing: expected 'module:f"),
        (STEP + "function = 3", "targets.step.: function is 3: expected 'module:function'"),
        (STEP + "function = 'm:f'\nargs = 3", "targets.step.: args is 3: expected a list"),
        (STEP + "function = 'm:f'\nmod = 3", "unknown setting 'mod'; did you mean 'mode'"),
        (
            STEP + "function = 'm:f'\nzzz = 3",
            "'zzz': expected one of mode, .*, function, args",
        ),
        (STEP + "function = 'm:f'\nmode = 3", "mode is 3: expected one of as-is, gradient"),
        (
            STEP + "run = 'x.py'\nprogram = 'f'\nstop-after = 0",
            "stop-after is 0: expected a",
        ),
        (STEP + "run = 'x.py'\nprogram = 'f'\nstop-after = true", "stop-after is True: expected"),
        (STEP + "function = 'm:f'\nignore = ['nope']", "there is no rule 'nope'"),
    ],
)
def test_what_a_project_may_not_say(project, text, message):
    with pytest.raises(TargetError, match=message):
        load(project(text))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(TargetError, match=r"cannot read .*: No such file"):
        load(tmp_path / "pyproject.toml")
