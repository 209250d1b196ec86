"""Stop strings: the same text however it comes in pieces, and nothing of a match in it."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tr.assemble import EMBEDDED
from tr.checkpoint.detokenizer import Detokenizer
from tr.checkpoint.tokenizer import load_tokenizer
from tr.decode.words import Words


def bytewise(text: str, sizes: list[int]) -> tuple[list[bytes], Detokenizer]:
    """`text` as tokens of the given numbers of bytes in turn, characters cut where they fall."""
    rest, pieces = text.encode(), []
    while rest:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(rest[:size])
        rest = rest[size:]
    return pieces, Detokenizer(pieces)


def plain(text: str, stops: list[str]) -> tuple[str, str]:
    """The text before the match that ends first, the longest of those, and that match."""
    ends = [(text.find(s) + len(s), -len(s), s) for s in stops if s in text]
    if not ends:
        return text, ""
    end, _, stop = min(ends)
    return text[: end - len(stop)], stop


letters = st.text("ab文🙂\n", max_size=12)


@settings(max_examples=300)
@given(
    text=letters,
    stops=st.lists(st.text("ab文🙂\n", min_size=1, max_size=4), max_size=4),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
)
@example(text="aab", stops=["ab"], sizes=[1])  # the second a begins the match
@example(text="abab文", stops=["abab文", "b"], sizes=[2])
@example(text="a文", stops=["文"], sizes=[2])
def test_the_first_match_ends_the_text(text, stops, sizes):
    pieces, decoder = bytewise(text, sizes)
    words, shown, used = Words(decoder, stops), "", 0
    expected, stop = plain(text, stops)
    for i in range(len(pieces)):
        used += 1
        ended = words.push(i)
        shown += words.take()
        assert expected.startswith(shown)  # nothing that would have to be taken back
        if ended:
            break
        known = b"".join(pieces[:used]).decode(errors="ignore")
        longest = max((len(s) - 1 for s in stops), default=0)
        assert len(known) - len(shown) <= longest
    assert shown + words.finish() == expected and words.stop == stop
    ended = b"".join(pieces[:used]).decode(errors="ignore")
    assert (stop in ended) and stop not in ended[: len(expected) + len(stop) - 1] if stop else True


def test_without_stop_strings_it_is_the_detokenizer():
    tokenizer = load_tokenizer(EMBEDDED)
    ids = tokenizer.encode("naïve 中文 🙂 family: 👨‍👩‍👧 é\n")
    words, known = Words(tokenizer.detokenizer()), tokenizer.detokenizer()
    for token in ids[:-2]:
        assert not words.push(token) and words.take() == known.push(token)
    assert words.finish() == known.flush()


@pytest.mark.parametrize("stop", ["文", "🙂", "中文 🙂", "is\n", "é is"])
def test_a_stop_string_across_the_tokens_of_a_real_vocabulary(stop):
    tokenizer, text = load_tokenizer(EMBEDDED), "so 中文 🙂 é is\n\nall of it"
    words, ids = Words(tokenizer.detokenizer(), [stop]), tokenizer.encode(text)
    used = next(i for i, token in enumerate(ids) if words.push(token)) + 1
    assert words.take() + words.finish() == text[: text.index(stop)]
    decoder = tokenizer.detokenizer()
    assert stop in decoder.extend(ids[:used]) + decoder.flush()
    assert stop not in tokenizer.detokenizer().extend(ids[: used - 1])


def test_text_that_may_become_a_match_waits():
    pieces, decoder = bytewise("a<en<end>b", [1])
    words, shown = Words(decoder, ["<end>"]), []
    for i in range(len(pieces)):
        ended = words.push(i)
        shown.append(words.take())
        if ended:
            break
    assert shown == ["a", "", "", "", "<en", "", "", "", ""]
    assert words.finish() == ""
    words = Words(bytewise("a<en", [1])[1], ["<end>"])
    for i in range(4):
        words.push(i)
    assert words.take() + words.finish() == "a<en"  # no match came of it


def test_empty_stop_strings_are_refused():
    with pytest.raises(ValueError, match="stop: expected strings of at least 1 character"):
        Words(Detokenizer([]), ["a", ""])
