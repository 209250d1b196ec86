"""IFEval's instructions (arXiv 2311.07911)."""

import json
import re
from collections.abc import Callable

from tr.evals.instructions import words
from tr.evals.instructions.words import count_words, sentences, tokens

LESS, LEAST = RELATIONS = ("less than", "at least")
CONSTRAINED = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def compared(count: int, relation: str, bound: int) -> bool:
    return count < bound if relation == LESS else count >= bound


def found(keyword: str, text: str) -> int:
    """How often a keyword occurs, inside words too, in any case."""
    return len(re.findall(re.escape(keyword.strip()), text, re.IGNORECASE))


def existence(text: str, keywords: list[str]) -> bool:
    return all(found(keyword, text) for keyword in keywords)


def frequency(text: str, keyword: str, frequency: int, relation: str) -> bool:
    return compared(found(keyword, text), relation, frequency)


def forbidden_words(text: str, forbidden_words: list[str]) -> bool:
    """As whole words."""
    whole = (rf"\b{re.escape(word)}\b" for word in forbidden_words)
    return not any(re.search(word, text, re.IGNORECASE) for word in whole)


def letter_frequency(text: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    return compared(text.lower().count(letter.lower()), let_relation, let_frequency)


def response_language(text: str, language: str) -> bool:
    """A text whose language cannot be told passes."""
    return words.language(text) in (language, None)


def number_sentences(text: str, num_sentences: int, relation: str) -> bool:
    return compared(len(sentences(text)), relation, num_sentences)


def number_words(text: str, num_words: int, relation: str) -> bool:
    return compared(count_words(text), relation, num_words)


def number_paragraphs(text: str, num_paragraphs: int) -> bool:
    """Divided by ***; an empty one may stand at either end alone."""
    parts = [part.strip() for part in re.split(r"\s?\*\*\*\s?", text)]
    return all(parts[1:-1]) and len([part for part in parts if part]) == num_paragraphs


def nth_paragraph_first_word(
    text: str, num_paragraphs: int, nth_paragraph: int, first_word: str
) -> bool:
    """Divided by empty lines; the word ends at its first mark."""
    parts = [part.strip() for part in text.split("\n\n")]
    count = len([part for part in parts if part])
    if not 1 <= nth_paragraph <= count or not parts[nth_paragraph - 1]:
        return False
    word = parts[nth_paragraph - 1].split()[0].lstrip("'").lstrip('"')
    return count == num_paragraphs and re.split(r"[.,?!'\"]", word)[0].lower() == first_word.lower()


def number_placeholders(text: str, num_placeholders: int) -> bool:
    return len(re.findall(r"\[.*?\]", text)) >= num_placeholders


def postscript(text: str, postscript_marker: str) -> bool:
    marker = postscript_marker.strip()
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return bool(re.search(known.get(marker, re.escape(marker.lower())), text.lower()))


def number_bullet_lists(text: str, num_bullets: int) -> bool:
    """Lines that begin with one * and something behind it, or with -."""
    stars = re.findall(r"^[^\S\n]*\*[^*].*$", text, re.MULTILINE)
    dashes = re.findall(r"^[^\S\n]*-.*$", text, re.MULTILINE)
    return len(stars) + len(dashes) == num_bullets


def constrained_response(text: str) -> bool:
    return any(option in text for option in CONSTRAINED)


def number_highlighted_sections(text: str, num_highlights: int) -> bool:
    """*so* or **so**, within a line."""
    single = [x.strip("*").strip() for x in re.findall(r"\*[^\n*]*\*", text)]
    double = [x[2:-2].strip() for x in re.findall(r"\*\*[^\n*]*\*\*", text)]
    return len([x for x in single + double if x]) >= num_highlights


def multiple_sections(text: str, section_spliter: str, num_sections: int) -> bool:
    """Each begins with the word and a number."""
    heads = re.findall(rf"{re.escape(section_spliter.strip())}\s?\d+", text)
    return len(heads) >= num_sections


def json_format(text: str) -> bool:
    """The whole answer, in a fence or not."""
    inner = re.sub(r"^```(?:json|Json|JSON)?", "", text.strip()).removesuffix("```")
    try:
        json.loads(inner)
    except (ValueError, RecursionError):
        return False
    return True


def title(text: str) -> bool:
    titles = re.findall(r"<<[^\n]+>>", text)
    return any(t.lstrip("<").rstrip(">").strip() for t in titles)


def two_responses(text: str) -> bool:
    """Two different ones, divided by six asterisks."""
    parts = [part.strip() for part in text.split("******")]
    given = [part for part in parts if part]
    return all(parts[1:-1]) and len(given) == 2 and given[0] != given[1]


def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def end_checker(text: str, end_phrase: str) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def quotation(text: str) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def capital_word_frequency(text: str, capital_frequency: int, capital_relation: str) -> bool:
    """Words without a small letter; one with hyphens is one."""
    capital = [token for token in tokens(text) if token.isupper()]
    return compared(len(capital), capital_relation, capital_frequency)


def english_capital(text: str) -> bool:
    return text.isupper() and words.language(text) in ("en", None)


def english_lowercase(text: str) -> bool:
    return text.islower() and words.language(text) in ("en", None)


def no_comma(text: str) -> bool:
    return "," not in text


CHECKS: dict[str, Callable[..., bool]] = {
    "keywords:existence": existence,
    "keywords:frequency": frequency,
    "keywords:forbidden_words": forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_sentences,
    "length_constraints:number_words": number_words,
    "length_constraints:number_paragraphs": number_paragraphs,
    "length_constraints:nth_paragraph_first_word": nth_paragraph_first_word,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:number_highlighted_sections": number_highlighted_sections,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_checker,
    "startend:quotation": quotation,
    "change_case:capital_word_frequency": capital_word_frequency,
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
    "punctuation:no_comma": no_comma,
}
NEEDS = {
    "language:response_language": "langdetect",
    "change_case:english_capital": "langdetect",
    "change_case:english_lowercase": "langdetect",
}
