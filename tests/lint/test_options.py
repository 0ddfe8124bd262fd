"""What users may set, and what they are told when it makes no sense."""

from __future__ import annotations

import math

import pytest

from jaxpr_opt.lint.options import Limit, Options, Scale, Spec, parse


def test_settings_are_written_with_dashes_or_underscores():
    given = {"max-residual-bytes": "1 kB", "min_share": 1, "argnums": [0, 2], "growth": "O(T)"}
    assert parse(given, Options, Spec) == {
        "max_residual_bytes": Limit(math.inf, 1000),
        "min_share": 1.0,
        "argnums": (0, 2),
        "growth": "O(T)",
    }


def test_a_budget_may_have_two_limits():
    given = {"max-peak-bytes": {"warn": "1 kB", "fail": 2000}, "max-residual-ratio": {"warn": 2}}
    assert parse(given, Options) == {
        "max_peak_bytes": Limit(1000, 2000),
        "max_residual_ratio": Limit(2.0, math.inf),
    }


def test_sizes_are_sorted():
    assert parse({"scale": "T = 128,64, 64"}, Spec) == {"scale": Scale("T", (64, 128))}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max-residual-byte": 1}, "unknown setting 'max-residual-byte'; did you mean 'max-resid"),
        ({"zzz": 1}, "unknown setting 'zzz': expected one of min-bytes, min-share"),
        ({"min-bytes": "5 apples"}, "min-bytes is '5 apples': expected bytes"),
        ({"min-share": "much"}, "min-share is 'much': expected a number that is not negative"),
        ({"min-share": True}, "min-share is True"),
        ({"max-peak-bytes": {"fial": 3}}, "max-peak-bytes has fial: expected warn, fail"),
        ({"max-peak-bytes": {}}, "max-peak-bytes has nothing: expected warn, fail"),
        ({"max-peak-bytes": {"fail": "x"}}, "max-peak-bytes.fail is 'x': expected bytes"),
        ({"mode": "grad"}, "mode is 'grad': expected one of as-is, gradient, train-step"),
        ({"argnums": "0"}, r"argnums is '0': expected argument positions, as 0 or \[0, 2\]"),
        ({"argnums": [0, 0]}, "argnums is"),
        ({"argnums": True}, "argnums is True"),
        ({"ignore": "JXO1"}, "ignore is 'JXO1': expected a list of strings"),
        ({"scale": "T=64"}, "scale is 'T=64': expected the name of a size and some values"),
        ({"scale": "64,128"}, "scale is '64,128'"),
        ({"scale": "T=0,1"}, "scale is 'T=0,1'"),
        ({"growth": 2}, "growth is 2: expected a power of the size"),
    ],
)
def test_what_makes_no_sense(given, message):
    with pytest.raises(ValueError, match=message):
        parse(given, Options, Spec)
