"""Amounts of memory as people write them."""

from __future__ import annotations

import pytest

from jaxpr_opt.sizes import binary_text, parse_bytes


@pytest.mark.parametrize(
    ("written", "nbytes"),
    [
        (0, 0),
        (4096, 4096),
        (1e6, 1_000_000),
        ("4096", 4096),
        ("64 MiB", 64 * 2**20),
        ("64mib", 64 * 2**20),
        ("1.5 GB", 1_500_000_000),
        ("2kB", 2000),
        ("2 KiB", 2048),
        (" .5 TiB ", 2**39),
        ("7 B", 7),
    ],
)
def test_sizes(written, nbytes):
    assert parse_bytes(written) == nbytes


@pytest.mark.parametrize(
    "written", ["", "MiB", "64 MeB", "-1", -1, True, None, "1e6", float("inf")]
)
def test_what_is_no_size(written):
    with pytest.raises(ValueError, match=r"^max is .*: expected bytes, as 65536, '64 MiB' or"):
        parse_bytes(written, "max")


def test_a_size_is_printed_as_it_was_written():
    assert [str(parse_bytes(each)) for each in ("4 MiB", " 1.5GB ", "4096", 7)] == [
        "4 MiB",
        "1.5GB",
        "4096",
        "7",
    ]
    assert [binary_text(n) for n in (96, 2**22, 1.5 * 2**30)] == ["96 B", "4 MiB", "1.5 GiB"]
