"""Finding a text by its words, and what most of several texts begin or end with."""

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprefix.adapter import SearchedText, find_text, majority_text
from cacheprefix.layout.shared_text import LEAST, mostly_holds

words = st.lists(st.text("abcé語.", min_size=1, max_size=4), min_size=1, max_size=12)
spaces = st.sampled_from([" ", "\n", "\r\n", "\t", "\n\n", "\u00a0", "    ", "\u2028"])
HANDBOOK = "\n".join(f"Rule {n}: an order of kind {n} is refunded within {n} days." for n in range(9))


@st.composite
def spelled(draw, what=words):
    """Words with some white space between them and around them."""
    found = draw(what)
    return "".join(f"{word}{draw(spaces)}" for word in found)


def _plain(text):
    return " ".join(text.split())


@given(spelled(), spelled())
def test_a_text_is_found_exactly_where_its_words_stand(wanted, text):
    """Whatever the white space: the words of the span are the words wanted, and no others."""
    span = find_text(wanted, text)
    # Between white space it surely stands; elsewhere only where it ends no word in the middle.
    surely = bool(wanted.strip()) and f" {_plain(wanted)} " in f" {_plain(text)} "
    assert not surely or span is not None
    assert span is None or _plain(wanted) in _plain(text)
    if span is not None:
        edges = ((text[: span[0]][-1:], text[span[0]]), (text[span[1] - 1], text[span[1] :][:1]))
        assert not any(one.isalnum() and other.isalnum() and max(one, other) < "\u2e80" for one, other in edges)
        found = text[span[0] : span[1]]
        assert _plain(found) == _plain(wanted)
        assert found == found.strip()


@given(words, spelled(), spelled(), st.data())
def test_a_text_with_other_white_space_is_found_among_others(found, before, behind, data):
    """Indented, wrapped anew, with other line ends."""
    one, other = (data.draw(spelled(st.just(found))) for _ in range(2))
    assert find_text(one, before + other + behind) is not None


@given(words, st.lists(spelled(), min_size=1, max_size=4), st.data())
def test_a_searched_text_finds_all_places_that_looking_one_by_one_finds(found, around, data):
    """The same words, in their order and apart from each other; none where the other finds none."""
    wanted = data.draw(spelled(st.just(found)))
    text = "".join(f"{one} {data.draw(spelled(st.just(found)))} " for one in around)
    spans = list(SearchedText(text).spans(wanted))
    assert (find_text(wanted, text) is None) == (not spans)
    assert all(_plain(text[start:end]) == _plain(wanted) for start, end in spans)
    assert all(before[1] <= behind[0] for before, behind in pairwise(spans))
    assert list(SearchedText("x y").spans(wanted)) == list(SearchedText("").spans(wanted)) == []


@pytest.mark.parametrize("wanted", ["", " \n\t"])
def test_a_text_without_words_stands_nowhere(wanted):
    """So that nothing is taken out for it."""
    assert find_text(wanted, "a b") is None


def test_the_very_characters_come_before_the_same_words():
    """Of two places the one that is spelled alike."""
    assert find_text("a\nb", "a b, a\nb") == (5, 8)


@pytest.mark.parametrize("text", ["a " * 100_000, "a" + " " * 200_000, "\n" * 200_000 + "b", "a" * 200_000])
def test_a_search_takes_time_in_proportion_to_the_text(text):
    """Also where much repeats itself; a search that is not linear takes minutes here."""
    began = time.monotonic()
    assert find_text("a " * 50_000 + "c", text) is None
    assert find_text("a c", text) is None
    assert majority_text([text, text + "c"])[1] in ((), (0, 1))
    assert time.monotonic() - began < 30


OTHERS = " ".join(f"order {n} of kind {n % 7} was refunded," for n in range(60_000))


@pytest.mark.parametrize("text", [OTHERS, f"{HANDBOOK[:-9]} zz " * 100], ids=["others", "editions"])
def test_a_text_that_stands_nowhere_takes_no_text_apart(text):
    """A handbook is looked for in each message of each request, and the event loop waits: 0.2 s a megabyte.

    Other editions of it have the very words that are looked for first.
    """

    def fastest(work):
        took = []
        for _ in range(3):
            began = time.perf_counter()
            work()
            took.append(time.perf_counter() - began)
        return min(took)

    assert find_text(HANDBOOK, text) is None
    # The longest of the words stands in each line; taking the text apart takes thirteen times as long as its words.
    assert fastest(lambda: find_text(HANDBOOK, text)) < 5 * fastest(text.split)


@given(st.lists(st.sampled_from(["alpha", "beta", "gamma"]), min_size=2, max_size=7), st.booleans(), st.data())
def test_the_text_of_most_is_found_with_who_holds_it(kinds, first, data):
    """One with another text, or none, changes nothing for the others, and is not among them."""
    books = {kind: "\n".join(f"{kind} {line}" for line in HANDBOOK.split("\n")) for kind in kinds}
    texts = []
    for at, kind in enumerate(kinds):
        book = data.draw(st.sampled_from(["\n", "\r\n", "\n  ", "\n\n"])).join(books[kind].split("\n"))
        texts.append(f"You are number {at}.\n{book}" if first else f"{book}\nYou are number {at}.")
    text, holders = majority_text(texts)
    most = max(map(kinds.count, kinds))
    assert len(holders) == (most if most > 1 else 0)
    assert all(find_text(text, texts[at]) for at in holders)
    assert not any(text and find_text(text, texts[at]) for at in range(len(texts)) if at not in holders)
    assert _plain(text) in {_plain(book) for book in books.values()} | {""}


def test_the_text_of_most_ends_with_a_line():
    """Words that begin alike are no text of their own."""
    roles = ["You are the planner.", "You are the critic.", "You are the writer."]
    text, holders = majority_text([f"{HANDBOOK}\n{role}" for role in roles])
    assert (text, holders) == (HANDBOOK, (0, 1, 2))


def test_a_large_text_of_most_is_taken_before_a_small_one_of_all():
    """What saves most."""
    opening = "A line that all of them begin with, whoever they are." * 5
    texts = [f"{opening}\n{HANDBOOK * 4}\nYou are {at}." for at in range(4)] + [f"{opening}\nYou speak in rhymes."]
    assert majority_text(texts)[1] == (0, 1, 2, 3)


def test_one_with_the_text_in_its_middle_holds_it():
    """It need neither begin nor end with it."""
    texts = [f"{HANDBOOK}\nYou plan.", f"{HANDBOOK}\nYou write.", f"You judge.\n{HANDBOOK}\nBe kind."]
    assert majority_text(texts) == (HANDBOOK, (0, 1, 2))


@pytest.mark.parametrize("texts", [[], [HANDBOOK], [HANDBOOK, "You write."], ["Be brief.", "Be brief."]])
def test_without_two_holders_or_with_a_short_text_there_is_none(texts):
    """Moving it is not worth a changed prompt."""
    assert majority_text(texts) == ("", ())


def test_lone_surrogates_are_text_like_any_other():
    """Python's own strings may hold them."""
    odd = "\ud800 " * LEAST
    assert majority_text([odd, odd])[1] == (0, 1)


@pytest.mark.parametrize(("changed", "found"), [(1, True), (3, True), (6, False), (9, False)])
def test_another_version_of_a_text_mostly_holds_it(changed, found):
    """More than half of its runs of words, however it is wrapped; one wholly reworded is another text."""
    lines = HANDBOOK.split("\n")
    said = [f"Orders of type {at} go back." if at < changed else line for at, line in enumerate(lines)]
    assert mostly_holds(HANDBOOK, "You write.\r\n  " + " \n".join(" ".join(said).split(" "))) == found


def test_a_short_role_holds_no_text():
    """Nothing that it says is somebody's handbook."""
    assert not mostly_holds(HANDBOOK, HANDBOOK[:230])
    assert not mostly_holds("Be brief.", "Be brief.")


@pytest.mark.parametrize(
    ("wanted", "text", "found"),
    [
        ("Be", "Because.", None),
        ("be brief", "Maybe brief, be briefer, and\nbe  brief", (29, 38)),
        ("Be", "Because. Be", (9, 11)),
        ("Be brief.", "<rules>Be brief.</rules>", (7, 16)),
        ("你是审稿人", "现在你是审稿人。", (2, 7)),
    ],
)
def test_words_are_not_found_within_longer_ones(wanted, text, found):
    """Nothing is cut out of the middle of a word; scripts without spaces between words have none to cut."""
    assert find_text(wanted, text) == found
