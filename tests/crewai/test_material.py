"""What tasks have in common: pure functions, on generated texts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprefix_crewai.material import MIN_CHARS, Piece, common_blocks, given_inputs, referred, used
from tests.drawn import examples

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40)
lines = st.sampled_from(["a" * 120, "b" * 90, "c" * 260, "", "  ", "short", "\u20ac" * 230, "d" * 199, "e" * 200])
texts = st.lists(st.lists(lines, max_size=6).map("\n".join), max_size=5)


@settings(max_examples=examples(150), deadline=None)
@given(texts)
def test_a_common_block_stands_in_two_texts_and_is_long_enough(found_in) -> None:
    """Every block is at least 200 characters, in two texts or twice as given, and none contains another."""
    blocks = common_blocks(found_in)
    for piece in blocks:
        assert len(piece.text) >= MIN_CHARS
        assert sum(piece.text in text for text in found_in) >= 2
        assert piece.text == piece.text.strip()
    assert len({piece.label for piece in blocks}) == len(blocks)
    assert not any(a is not b and a.text in b.text for i, a in enumerate(blocks) for b in blocks[:i])


@settings(max_examples=examples(100), deadline=None)
@given(texts, st.integers(1, 9))
def test_common_blocks_are_the_same_each_time(found_in, label) -> None:
    """The order of the texts decides, nothing else; labels count on from the one given."""
    blocks = common_blocks(found_in, label)
    assert common_blocks(list(found_in), label) == blocks
    assert [piece.label for piece in blocks] == [f"shared text {label + i}" for i in range(len(blocks))]


@settings(max_examples=examples(100), deadline=None)
@given(texts)
def test_references_take_every_piece_out_of_a_text_and_lose_nothing(found_in) -> None:
    """A referred text holds no piece any more, and putting the pieces back gives the text."""
    blocks = common_blocks(found_in)
    for text in found_in:
        short = referred(text, blocks)
        assert len(short) <= len(text)
        assert not used(short, blocks)
        for piece in blocks:
            short = short.replace(piece.reference, piece.text)
        assert short == text


@settings(max_examples=examples(150), deadline=None)
@given(
    st.dictionaries(st.sampled_from("abcd"), st.one_of(st.integers(), words.map(lambda word: word * 30)), max_size=4),
    st.one_of(st.none(), st.lists(st.sampled_from("abcd"), max_size=3)),
    st.frozensets(st.sampled_from("abcd"), max_size=2),
    st.lists(st.sampled_from("abcd"), max_size=8),
)
def test_inputs_are_hoisted_by_name_or_by_size_and_use(inputs, names, constant, order) -> None:
    """Named ones wherever they stand; else those of 200 characters that two texts contain, the constant first."""
    found_in = [f"before {inputs[name]} after" for name in order if name in inputs]
    pieces = given_inputs(inputs, found_in, names, constant)
    taken = [piece.label.split("'")[1] for piece in pieces]
    assert taken == sorted(taken, key=lambda name: (name not in constant, name))
    for name, piece in zip(taken, pieces, strict=True):
        assert inputs[name] == piece.text
        uses = sum(piece.text in text for text in found_in)
        assert uses >= 1
        if names is None:
            assert len(piece.text) >= MIN_CHARS
            assert uses >= 2 or name in constant
        else:
            assert name in names


def test_a_reference_names_its_piece() -> None:
    """What stands in a task in place of a text is found above under the same words."""
    piece = Piece("shared input 'brief'", "x" * 300)
    assert referred(f"Look: {piece.text}!", [piece]) == "Look: (see shared input 'brief' above)!"
    assert piece.block.startswith("[shared input 'brief']\n")
