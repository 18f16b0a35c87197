"""What tasks have in common: pure functions, on generated texts."""

from __future__ import annotations

from types import SimpleNamespace

from crewai.utilities.constants import NOT_SPECIFIED
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cacheprefix_crewai.material import MIN_CHARS, SharedText, common_blocks, inputs_to_share, texts_in, with_references
from cacheprefix_crewai.tasks import results_in
from tests.drawn import examples

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40)
lines = st.sampled_from(["a" * 120, "b" * 90, "c" * 260, "", "  ", "short", "\u20ac" * 230, "d" * 199, "e" * 200])
texts = st.lists(st.lists(lines, max_size=6).map("\n".join), max_size=5)


@settings(max_examples=examples(150), deadline=None)
@given(texts)
def test_a_common_block_stands_in_two_texts_and_is_long_enough(found_in) -> None:
    """Every block is at least 200 characters, in two texts or twice as given, and none contains another."""
    blocks = common_blocks(found_in)
    for shared in blocks:
        assert len(shared.text) >= MIN_CHARS
        assert sum(shared.text in text for text in found_in) >= 2
        assert shared.text == shared.text.strip()
    assert len({shared.label for shared in blocks}) == len(blocks)
    assert not any(a is not b and a.text in b.text for i, a in enumerate(blocks) for b in blocks[:i])


@settings(max_examples=examples(100), deadline=None)
@given(texts)
def test_common_blocks_are_the_same_each_time(found_in) -> None:
    """The order of the texts decides, nothing else; labels count on."""
    blocks = common_blocks(found_in)
    assert common_blocks(list(found_in)) == blocks
    assert [shared.label for shared in blocks] == [f"shared text {1 + i}" for i in range(len(blocks))]


FEW_WORDS, OTHERS = "a" * 120, "b" * 90


@settings(max_examples=examples(100), deadline=None)
@example([f"{FEW_WORDS}\n{OTHERS}", f"{FEW_WORDS}\n\n{OTHERS}\n{FEW_WORDS}\n{OTHERS}"])
@example(["\n".join([FEW_WORDS] * 2), "\n".join([*[FEW_WORDS] * 3, "", FEW_WORDS])])
@given(texts)
def test_references_take_every_shared_text_out_of_a_text_and_lose_nothing(found_in) -> None:
    """A text with references holds no shared text any more, and putting those back gives its words."""
    blocks = common_blocks(found_in)
    for text in found_in:
        short = with_references(text, blocks)
        assert len(short) <= len(text)
        assert not texts_in(short, blocks)
        for shared in blocks:
            short = short.replace(shared.reference, shared.text)
        assert short.split() == text.split()


@settings(max_examples=examples(150), deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.one_of(st.integers(), words.map(lambda word: word * 30)), max_size=4),
    st.one_of(st.none(), st.lists(st.sampled_from("abcd"), max_size=3)),
    st.frozensets(st.sampled_from("abcd"), max_size=2),
    st.lists(st.sampled_from("abcd"), max_size=8),
)
def test_inputs_are_shared_by_name_or_by_size_and_use(inputs, names, constant, order) -> None:
    """Named ones wherever they stand; else those of 200 characters that two texts contain, the constant first."""
    found_in = [f"before {inputs[name]} after" for name in order if name in inputs]
    found = inputs_to_share(inputs, found_in, names, constant)
    taken = [shared.label.split("'")[1] for shared in found]
    assert taken == sorted(taken, key=lambda name: (name not in constant, name))
    for name, shared in zip(taken, found, strict=True):
        assert inputs[name] == shared.text
        uses = sum(shared.text in text for text in found_in)
        assert uses >= 1
        if names is None:
            assert len(shared.text) >= MIN_CHARS
            assert uses >= 2 or name in constant
        else:
            assert name in names


def test_a_result_is_found_on_lines_of_its_own_only() -> None:
    """A longer result that begins with it is another one, and stays whole."""
    result = "what was found " * 10 + "so far"
    shared = SharedText("result of task 1", result, on_lines=True)
    said = f"Context:\n{result}\n\n----------\n\n{result} and in the end"
    assert with_references(said, [shared]) == (
        f"Context:\n(see result of task 1 above)\n\n----------\n\n{result} and in the end"
    )


def test_a_result_that_only_begins_another_is_not_shared() -> None:
    """What CrewAI put into a task is the whole longer one; found in its middle, words of it would be gone."""
    result = "what was found " * 30 + "so far"
    first, *others = [SimpleNamespace(output=None, context=NOT_SPECIFIED, async_execution=False) for _ in range(3)]
    first.output = SimpleNamespace(raw=result)
    crew = SimpleNamespace(tasks=[first, *others])
    found = [results_in(f"Context:\n{text}\n\nGo on.", crew, crew.tasks) for text in (result, f"{result} and then")]
    assert [[one.text for one in each] for each in found] == [[result], []]


def test_of_two_texts_that_overlap_the_longer_one_is_held() -> None:
    """Whichever was found first; an equal one is another name for it."""
    short = SharedText("shared input 'part'", "y" * 300)
    whole = SharedText("shared input 'whole'", f"x {short.text} z")
    same = SharedText("shared input 'same'", short.text)
    for shared in ([short, whole, same], [whole, short, same]):
        said = f"First: {whole.text}!"
        assert texts_in(said, shared) == [whole]
        assert with_references(said, shared) == "First: (see shared input 'whole' above)!"
        both = f"{said} Then: {short.text}"
        assert texts_in(both, shared) == [one for one in shared if one is not same]
        assert with_references(both, shared).endswith("Then: (see shared input 'part' above)")


def test_a_reference_names_its_text() -> None:
    """What stands in a task in place of a text is found above under the same words."""
    shared = SharedText("shared input 'brief'", "x" * 300)
    assert with_references(f"Look: {shared.text}!", [shared]) == "Look: (see shared input 'brief' above)!"
    assert shared.block.startswith("[shared input 'brief']\n")
