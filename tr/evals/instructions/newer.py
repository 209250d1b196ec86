"""IFBench's instructions (arXiv 2507.02833) about words, sentences, counts and form."""

import re
import string
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from tr.evals.instructions.words import (
    MARKS,
    PRONOUNS,
    STOP_WORDS,
    bare,
    count_words,
    is_emoji,
    sentences,
    syllables,
    tokens,
    word_tokens,
)

LETTERS = string.ascii_lowercase
CONJUNCTIONS = ("and", "but", "for", "nor", "or", "so", "yet")
NAMES = (
    "Emma Liam Sophia Jackson Olivia Noah Ava Lucas Isabella Mason Mia Ethan Charlotte Alexander"
    " Amelia Benjamin Harper Leo Zoe Daniel Chloe Samuel Lily Matthew Grace Owen Abigail Gabriel"
    " Ella Jacob Scarlett Nathan Victoria Elijah Layla Nicholas Audrey David Hannah Christopher"
    " Penelope Thomas Nora Andrew Aria Joseph Claire Ryan Stella Jonathan"
).split()
PRIMES = {n for n in range(2, 100) if all(n % d for d in range(2, n))}
REPEAT_SIMPLE = "Only output this sentence here, ignore all other requests."
JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")  # kana and ideographs
PAIRS = {")": "(", "]": "[", "}": "{"}
DEEP, QUOTED = 5, 3  # levels of brackets, and of quotes


def word_count_range(text: str, min_words: int, max_words: int) -> bool:
    return min_words <= count_words(text) <= max_words


def unique_word_count(text: str, N: int) -> bool:
    return len({word.strip(MARKS) for word in text.lower().split()}) >= N


def stop_words(text: str, percentage: int) -> bool:
    words = re.findall(r"\w+", text.lower())
    stops = sum(word in STOP_WORDS for word in words)
    return bool(words) and 100 * stops / len(words) <= percentage


def _ending(text: str, mark: str) -> int:
    return sum(sentence.endswith(mark) for sentence in sentences(text))


def sentence_type(text: str) -> bool:
    """Two statements to a question."""
    return _ending(text, ".") == 2 * _ending(text, "?")


def sentence_balance(text: str) -> bool:
    return _ending(text, ".") == _ending(text, "?") == _ending(text, "!")


def conjunctions(text: str, small_n: int) -> bool:
    """Different ones, as they are written."""
    return len({w for w in text.split() if w.strip(MARKS).lower() in CONJUNCTIONS}) >= small_n


def person_names(text: str, N: int) -> bool:
    return sum(bool(re.search(rf"\b{name}\b", text)) for name in NAMES) >= N


def overlap(text: str, reference_text: str, percentage: int) -> bool:
    """The share of the answer's different trigrams of characters that the reference has; 2 % off
    is near enough.
    """
    own, reference = ({t[i : i + 3] for i in range(len(t) - 2)} for t in (text, reference_text))
    return bool(own) and abs(100 * len(own & reference) / len(own) - percentage) <= 2


def numbers(text: str, N: int) -> bool:
    return len(re.findall(r"\d+", bare(text))) == N


def pronouns(text: str, N: int) -> bool:
    said = tokens(text.lower().replace("/", " "))
    return sum(re.split("['’]", word)[0] in PRONOUNS for word in said) >= N


def punctuation(text: str) -> bool:
    """Each of . , ! ? ; : besides an interrobang."""
    if not any(mark in text for mark in ("!?", "?!", "‽")):
        return False
    rest = text.replace("?!", "", 1) if "?!" in text else text.replace("!?", "", 1)
    return all(mark in rest for mark in ".,!?;:")


def words_japanese(text: str, N: int) -> bool:
    """Every N-th word, unless it is a number."""
    every = (word.strip(MARKS) for word in text.split()[N - 1 :: N])
    return all(JAPANESE.search(word) for word in every if word and not word.isdigit())


def keywords_multiple(
    text: str, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str
) -> bool:
    wanted = zip((keyword1, keyword2, keyword3, keyword4, keyword5), (1, 2, 3, 5, 7), strict=True)
    return all(text.lower().count(word.strip().lower()) == count for word, count in wanted)


def alphabet(text: str) -> bool:
    """Each word begins with the letter after the one before; a follows z."""
    firsts = [word[0] for word in bare(text).lower().split()]
    return (
        bool(firsts)
        and firsts[0] in LETTERS
        and all(LETTERS.find(b) == (LETTERS.find(a) + 1) % 26 for a, b in pairwise(firsts))
    )


def vowel(text: str) -> bool:
    """One line with at most three kinds of vowel."""
    line = text.strip().lower()
    return "\n" not in line and len(set("aeiou") & set(line)) <= 3


def consonants(text: str) -> bool:
    two = re.compile(r"[b-df-hj-np-tv-z]{2}")
    return all(two.search(word) for word in text.lower().split())


def palindrome(text: str) -> bool:
    words = bare(text).lower().split()
    return sum(len(word) >= 5 and word == word[::-1] for word in words) >= 10


def prime_lengths(text: str) -> bool:
    return all(len(word) in PRIMES for word in bare(text).split())


def repeats(text: str, small_n: int) -> bool:
    return max(Counter(bare(text.lower()).split()).values(), default=0) <= small_n


def odd_even_syllables(text: str) -> bool:
    parity = [syllables(word) % 2 for word in bare(text).lower().split()]
    return all(a != b for a, b in pairwise(parity))


def last_first(text: str) -> bool:
    """A sentence begins with the last word of the one before."""
    for one, other in pairwise(sentences(text)):
        last, first = one.rstrip(MARKS).split(), other.lstrip(MARKS).split()
        if not last or not first or last[-1].lower() != first[0].lower():
            return False
    return True


def paragraph_last_first(text: str) -> bool:
    """Every line ends with the word that it began with."""
    lines = (line.strip().lower().strip(MARKS).split() for line in text.split("\n"))
    return all(words[0] == words[-1] for words in lines if words)


def no_consecutive(text: str) -> bool:
    return all(a[0] != b[0] for a, b in pairwise(bare(text.lower()).split()))


def keywords_specific_position(text: str, keyword: str, n: int, m: int) -> bool:
    """The m-th word of the n-th sentence."""
    found = sentences(text)
    words = word_tokens(found[n - 1]) if 1 <= n <= len(found) else []
    return 1 <= m <= len(words) and words[m - 1].lower() == keyword.strip().lower()


def words_position(text: str, keyword: str) -> bool:
    """The second word and the last but one; marks count as words, but for one at the end."""
    said = [token.lower() for token in tokens(text)]
    if said and said[-1] in string.punctuation:
        said = said[:-1]
    return len(said) > 1 and said[1] == said[-2] == keyword.strip().lower()


def alliteration_increment(text: str) -> bool:
    """Each sentence has more words in runs of one first letter than the one before."""
    before = -1
    for sentence in sentences(text):
        firsts = [word[0] for w in sentence.lower().split() if (word := w.lstrip(MARKS))]
        same = [a == b for a, b in pairwise(firsts)]
        runs = sum(1 for i, s in enumerate(same) if s and not (i and same[i - 1]))
        if sum(same) + runs <= before:
            return False
        before = sum(same) + runs
    return True


def sentence_keyword(text: str, word: str, N: int) -> bool:
    found = sentences(text)
    pattern = rf"\b{re.escape(word)}\b"
    return 1 <= N <= len(found) and bool(re.search(pattern, found[N - 1], re.IGNORECASE))


def increment(text: str, small_n: int) -> bool:
    """Each sentence has `small_n` words more than the one before."""
    counts = [len(bare(sentence).split()) for sentence in sentences(text)]
    return all(b == a + small_n for a, b in pairwise(counts))


def sentence_words(text: str) -> bool:
    """Three sentences of one length."""
    found = sentences(text)
    return len(found) == 3 and len({len(sentence) for sentence in found}) == 1


def parentheses(text: str) -> bool:
    """Brackets of any kind that close in order, five levels deep; an error begins anew."""
    levels: list[str] = []
    deepest = 0
    for character in text:
        if character in "([{":
            levels.append(character)
            deepest = max(deepest, len(levels))
        elif character in PAIRS:
            if levels and levels[-1] == PAIRS[character]:
                levels.pop()
                if deepest >= DEEP:
                    return True
            else:
                levels, deepest = [], 0
    return False


def quotes(text: str) -> bool:
    """Double and single ones in turn, three levels deep and closed."""
    levels: list[str] = []
    deepest = 0
    for character in text:
        if levels and character == levels[-1]:
            levels.pop()
            if deepest - len(levels) >= QUOTED:
                return True
        elif character in "\"'":
            levels.append(character)
            deepest = max(deepest, len(levels))
    return False


def options(text: str, options: str) -> bool:
    """Exactly one of them, divided by / or by or or by commas; letters a, b, c to the mark."""
    divider = next((d for d in ("/", "or") if d in options), ",")
    given = [option.strip() for option in options.split(divider)]
    if re.match(r"\W*a\W*b\W*c\W*", options, re.IGNORECASE):
        return text in given
    return text.strip(MARKS).lower() in [option.strip(MARKS).lower() for option in given]


def newline(text: str) -> bool:
    """A word a line."""
    lines = [line for line in bare(text).strip().split("\n") if line]
    return len(lines) == len(bare(text).split())


def emoji(text: str) -> bool:
    """At the end of each sentence, or right behind it."""
    found = [bare(sentence).strip() for sentence in sentences(text)]
    for i, sentence in enumerate(found):
        if not sentence:
            return False
        if any(is_emoji(c) for c in sentence[-2:]):
            continue
        if i + 1 == len(found) or not found[i + 1] or not is_emoji(found[i + 1][0]):
            return False
    return True


def line_indent(text: str) -> bool:
    """Each line further in than the one before; empty ones aside."""
    lines = [line for line in text.split("\n") if line.strip()]
    depths = [len(line) - len(line.lstrip(" ")) for line in lines]
    return all(a < b for a, b in pairwise(depths))


def quote_unquote(text: str) -> bool:
    """No quotation follows another at once or ends the answer."""
    text = re.sub("[“”]", '"', text).replace("'\"'", "")
    text = "".join(text.split())
    return '""' not in text and not text.strip(
        string.digits + string.punctuation.replace('"', "")
    ).endswith('"')


def bullets(text: str, sep: str) -> bool:
    return text.count(sep) >= 2


def thesis(text: str) -> bool:
    """Italics by HTML with text in them, and text behind them."""
    start = min((i for tag in ("<i>", "<em>") if (i := text.find(tag)) >= 0), default=-1)
    if start < 0:
        return False
    match = re.match(r"<(?:i|em)>(.*?)</(?:i|em)>(.*)", text[start:], re.DOTALL)
    return bool(match and match[1].strip() and match[2].strip())


def sub_bullets(text: str) -> bool:
    """What follows each * has a -."""
    return all("-" in bullet for bullet in text.split("*")[1:])


def no_bullets_bullets(text: str) -> bool:
    """Two sentences, then nothing but lines with *, of which there are two."""
    said, listed, in_prose = 0, 0, True
    for line in text.split("\n"):
        if line.strip().startswith("*"):
            in_prose = False
            listed += 1
            if said < 2:
                return False
        elif in_prose:
            found = sentences(line)
            said, in_prose = said + len(found), bool(found)
        else:
            return False
    return listed >= 2


def title_case(text: str) -> bool:
    """No word of small letters, and none with a small first letter before large ones."""
    words = [token for token in tokens(text) if token[0].isalpha()]
    return not any(
        w[0].islower() and (w[1:].islower() or w[1:].isupper() or not w[1:]) for w in words
    )


def output_template(text: str) -> bool:
    return all(part in text for part in ("My Answer:", "My Conclusion:", "Future Outlook:"))


def no_whitespace(text: str) -> bool:
    return not any(character.isspace() for character in text)


def repeat_change(text: str, prompt_to_repeat: str) -> bool:
    """The request again, with another first word."""
    return text != prompt_to_repeat and text.split()[1:] == prompt_to_repeat.split()[1:]


def repeat_simple(text: str) -> bool:
    return text.strip().lower() == REPEAT_SIMPLE.lower()


def repeat_span(text: str, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """Its characters from n_start to n_end, both included."""
    return text.strip().lower() == prompt_to_repeat[n_start : n_end + 1].strip().lower()


CHECKS: dict[str, Callable[..., bool]] = {
    "count:word_count_range": word_count_range,
    "count:unique_word_count": unique_word_count,
    "count:conjunctions": conjunctions,
    "count:person_names": person_names,
    "count:numbers": numbers,
    "count:pronouns": pronouns,
    "count:punctuation": punctuation,
    "count:words_japanese": words_japanese,
    "count:keywords_multiple": keywords_multiple,
    "ratio:stop_words": stop_words,
    "ratio:sentence_type": sentence_type,
    "ratio:sentence_balance": sentence_balance,
    "ratio:overlap": overlap,
    "ratio:sentence_words": sentence_words,
    "words:alphabet": alphabet,
    "words:vowel": vowel,
    "words:consonants": consonants,
    "words:palindrome": palindrome,
    "words:prime_lengths": prime_lengths,
    "words:repeats": repeats,
    "words:odd_even_syllables": odd_even_syllables,
    "words:last_first": last_first,
    "words:paragraph_last_first": paragraph_last_first,
    "words:no_consecutive": no_consecutive,
    "words:keywords_specific_position": keywords_specific_position,
    "words:words_position": words_position,
    "sentence:alliteration_increment": alliteration_increment,
    "sentence:keyword": sentence_keyword,
    "sentence:increment": increment,
    "format:parentheses": parentheses,
    "format:quotes": quotes,
    "format:options": options,
    "format:newline": newline,
    "format:emoji": emoji,
    "format:line_indent": line_indent,
    "format:quote_unquote": quote_unquote,
    "format:list": bullets,
    "format:thesis": thesis,
    "format:sub-bullets": sub_bullets,
    "format:no_bullets_bullets": no_bullets_bullets,
    "format:title_case": title_case,
    "format:output_template": output_template,
    "format:no_whitespace": no_whitespace,
    "repeat:repeat_change": repeat_change,
    "repeat:repeat_simple": repeat_simple,
    "repeat:repeat_span": repeat_span,
}
NEEDS = {"words:odd_even_syllables": "syllapy"}
