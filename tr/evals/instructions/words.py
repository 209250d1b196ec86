"""What checkers count: sentences, words, syllables, languages.

Sentences and tokens are split by rules of our own, not by NLTK's trained models as the published
checkers do; few texts are split otherwise.
"""

import re
import string
from importlib.util import find_spec

MARKS = string.punctuation + " "
_NO_MARKS = str.maketrans("", "", string.punctuation)

_END = re.compile(r"([.!?]+)[\"'”’)\]]*(?=\s)")
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st sr jr rev gen col sgt lt capt hon vs etc cf al approx dept est fig inc"
    " ltd co corp no vol pp ed eds jan feb mar apr jun jul aug sep sept oct nov dec a.m p.m e.g i.e"
    " u.s u.k u.n ph.d m.d b.a m.a d.c".split()
)
NEAR = 64  # characters that tell whether a sentence ends
_TOKEN = re.compile(r"\w+(?:[-.'’]\w+)*|\.\.\.|[^\w\s]")

STOP_WORDS = frozenset(
    "i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she"
    " her hers herself it its itself they them their theirs themselves what which who whom this"
    " that these those am is are was were be been being have has had having do does did doing a an"
    " the and but if or because as until while of at by for with about against between into through"
    " during before after above below to from up down in out on off over under again further then"
    " once here there when where why how all any both each few more most other some such no nor not"
    " only own same so than too very can will just don should now"
    " s t d ll m o re ve y ain aren couldn didn doesn hadn hasn haven isn ma mightn mustn needn"
    " shan shouldn wasn weren won wouldn".split()
)
PRONOUNS = frozenset(
    "i me we us you he him she her it they them my mine our ours your yours his hers its their"
    " theirs myself ourselves yourself yourselves himself herself itself themselves this that these"
    " those who whom whose which what whoever whomever whatever whichever anybody anyone anything"
    " everybody everyone everything nobody nothing somebody someone something each either neither"
    " both all some any none".split()
)


def bare(text: str) -> str:
    """`text` without ASCII punctuation."""
    return text.translate(_NO_MARKS)


def count_words(text: str) -> int:
    """Runs of letters, digits and underscores."""
    return len(re.findall(r"\w+", text))


def tokens(text: str) -> list[str]:
    """Words, inner hyphens and apostrophes included, and every other mark alone."""
    return _TOKEN.findall(text)


def word_tokens(text: str) -> list[str]:
    return [token for token in tokens(text) if any(c.isalnum() for c in token)]


def sentences(text: str) -> list[str]:
    """Ended by . ! or ? before white space; line breaks alone end none.

    No end: an abbreviation, an initial, the number of a list's item, dots that a small letter
    follows.
    """
    found, start = [], 0
    for match in _END.finditer(text):
        before = text[max(start, match.start() - NEAR) : match.start()]
        if match[1] == "." and _goes_on(before):
            continue
        after = text[match.end() : match.end() + NEAR].lstrip()[:1]
        if match[1].startswith("..") and after.islower():
            continue
        found.append(text[start : match.end()].strip())
        start = match.end()
    found.append(text[start:].strip())
    return [sentence for sentence in found if sentence]


def _goes_on(before: str) -> bool:
    """Whether the full stop behind `before` belongs to its last word."""
    word = before.split()[-1].lstrip("([\"'“‘") if before.split() else ""
    if word.isdecimal() and before.rpartition("\n")[2].strip() == word:
        return True
    initial = len(word) == 1 and word.isupper() and word != "I"
    return initial or word.lower() in _ABBREVIATIONS


def has(library: str) -> bool:
    return find_spec(library) is not None


def language(text: str) -> str | None:
    """ISO 639-1 code by langdetect, the same at every call; None: it finds none."""
    import langdetect

    langdetect.DetectorFactory.seed = 0
    try:
        return langdetect.detect(text)
    except langdetect.LangDetectException:
        return None


def syllables(word: str) -> int:
    import syllapy

    return syllapy.count(word)


_EMOJI = (
    (0xA9, 0xA9), (0xAE, 0xAE), (0x203C, 0x203C), (0x2049, 0x2049), (0x2122, 0x2122),
    (0x2139, 0x2139), (0x2194, 0x2199), (0x21A9, 0x21AA), (0x231A, 0x231B), (0x2328, 0x2328),
    (0x23CF, 0x23CF), (0x23E9, 0x23F3), (0x23F8, 0x23FA), (0x24C2, 0x24C2), (0x25AA, 0x25AB),
    (0x25B6, 0x25B6), (0x25C0, 0x25C0), (0x25FB, 0x25FE), (0x2600, 0x2604), (0x260E, 0x260E),
    (0x2611, 0x2611), (0x2614, 0x2615), (0x2618, 0x2618), (0x261D, 0x261D), (0x2620, 0x2620),
    (0x2622, 0x2623), (0x2626, 0x2626), (0x262A, 0x262A), (0x262E, 0x262F), (0x2638, 0x263A),
    (0x2640, 0x2640), (0x2642, 0x2642), (0x2648, 0x2653), (0x265F, 0x2660), (0x2663, 0x2663),
    (0x2665, 0x2666), (0x2668, 0x2668), (0x267B, 0x267B), (0x267E, 0x267F), (0x2692, 0x2697),
    (0x2699, 0x2699), (0x269B, 0x269C), (0x26A0, 0x26A1), (0x26A7, 0x26A7), (0x26AA, 0x26AB),
    (0x26B0, 0x26B1), (0x26BD, 0x26BE), (0x26C4, 0x26C5), (0x26C8, 0x26C8), (0x26CE, 0x26CF),
    (0x26D1, 0x26D1), (0x26D3, 0x26D4), (0x26E9, 0x26EA), (0x26F0, 0x26F5), (0x26F7, 0x26FA),
    (0x26FD, 0x26FD), (0x2702, 0x2702), (0x2705, 0x2705), (0x2708, 0x270D), (0x270F, 0x270F),
    (0x2712, 0x2712), (0x2714, 0x2714), (0x2716, 0x2716), (0x271D, 0x271D), (0x2721, 0x2721),
    (0x2728, 0x2728), (0x2733, 0x2734), (0x2744, 0x2744), (0x2747, 0x2747), (0x274C, 0x274C),
    (0x274E, 0x274E), (0x2753, 0x2755), (0x2757, 0x2757), (0x2763, 0x2764), (0x2795, 0x2797),
    (0x27A1, 0x27A1), (0x27B0, 0x27B0), (0x27BF, 0x27BF), (0x2934, 0x2935), (0x2B05, 0x2B07),
    (0x2B1B, 0x2B1C), (0x2B50, 0x2B50), (0x2B55, 0x2B55), (0x3030, 0x3030), (0x303D, 0x303D),
    (0x3297, 0x3297), (0x3299, 0x3299), (0x1F000, 0x1FAFF),
)  # fmt: skip


def is_emoji(character: str) -> bool:
    """Of one code point, by Unicode's blocks; of several: by the first."""
    code = ord(character)
    return any(low <= code <= high for low, high in _EMOJI)
