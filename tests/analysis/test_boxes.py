"""Windows at known places of which no two overlap."""

import random

import pytest

from jaxpr_opt.analysis.windows.boxes import Box, Boxes

SIZE = 12


def elements(boxes, rank):
    """The places in windows, each as often as a window has it."""
    shape = (SIZE,) * rank
    whole = Box((0,) * rank, shape)
    units = [
        Box((i, j)[:rank], (1,) * rank) for i in range(SIZE) for j in range(SIZE ** (rank - 1))
    ]
    return [unit for unit in units for box in boxes if whole.contains(unit) and box.contains(unit)]


def drawn(rank, rng):
    starts = [rng.randrange(SIZE) for _ in range(rank)]
    return Box(tuple(starts), tuple(rng.randint(1, SIZE - start) for start in starts))


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
def test_no_two_windows_have_an_element_in_common(rank, axis):
    rng = random.Random(rank)
    for _ in range(60):
        boxes, added = Boxes(axis), [drawn(rank, rng) for _ in range(5)]
        boxes.add(added)
        asked = drawn(rank, rng)
        boxes.divide(asked)
        held = elements(boxes, rank)
        assert len(set(held)) == len(held)
        assert set(elements(added, rank)) <= set(held)
        covering = [b for b in boxes if b.common(asked)]
        assert sorted(covering, key=lambda b: b.starts) == boxes.covering(asked)
        assert all(b.overlaps(asked) == (b.common(asked) is not None) for b in boxes)


def test_windows_near_one_are_found_without_looking_at_all(monkeypatch):
    looked, overlaps = [], Box.overlaps
    monkeypatch.setattr(Box, "overlaps", lambda a, b: looked.append(b) or overlaps(a, b))
    boxes = Boxes()
    for start in range(1000):
        boxes.add([Box((start,), (1,))])
    assert boxes.covering(Box((500,), (2,))) == [Box((500,), (1,)), Box((501,), (1,))]
    assert len(looked) <= 2


def test_an_empty_window_overlaps_none():
    assert not Box((3,), (0,)).overlaps(Box((2,), (4,)))
    assert not Box((2,), (4,)).overlaps(Box((3,), (0,)))
