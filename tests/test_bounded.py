"""What is kept of what was set, and in which order it goes."""

from __future__ import annotations

from cacheprefix.bounded import Bounded, Generations


def test_the_oldest_gives_way():
    """Set again is set last; looked up is not."""
    kept: Bounded[str, int] = Bounded(2)
    kept["a"], kept["b"] = 1, 2
    kept["a"] = 3
    assert kept.get("b") == 2
    kept["c"] = 4
    assert dict(kept) == {"a": 3, "c": 4}


def test_what_is_asked_for_stays():
    """And is made once, when it is new."""
    made = []

    def make():
        made.append(len(made))
        return made[-1]

    kept: Bounded[str, int] = Bounded(2)
    assert [kept.of(key, make) for key in ("a", "b", "a", "c", "a", "b")] == [0, 1, 0, 2, 0, 3]
    assert list(kept) == ["a", "b"]


def test_setting_a_default_is_bounded_too():
    """However an item comes in."""
    kept: Bounded[int, int] = Bounded(3)
    for number in range(10):
        kept.setdefault(number, number)
        kept.update({number + 100: number})
    assert len(kept) == 3


def test_generations_stay_within_their_bytes_and_keep_what_is_used():
    """What is looked up again and again outlives any number of others."""
    kept: Generations[str, int] = Generations(100)
    kept.put("used", 0, 10)
    for number in range(1_000):
        kept.put(f"passing {number}", number, 10)
        assert kept.get("used") == 0
        assert len(kept) <= 12
    assert kept.get("passing 0") is None
    assert kept.get("passing 999") == 999
