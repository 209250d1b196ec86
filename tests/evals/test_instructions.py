"""Every instruction with an answer that follows it and one that does not; how kwargs are read."""

import json

import pytest

from tr.evals.instructions import follow as f
from tr.evals.instructions import words
from tr.evals.instructions.custom import CAPITALS
from tr.evals.instructions.newer import NAMES, REPEAT_SIMPLE
from tr.evals.instructions.prompts import ROWS

REQUEST = "Name the moons of Mars."
AFRICA = ["Zimbabwe"] + [f"{c}{d}" for c in "YXWV" for d in "zyxwvutsrqpon"]
QUESTION = "\n".join(f"{c}) {c}" for c in "ABCDE")
CITIES = "ID,Country,City,Year,Count\n" + "1,a,b,2000,3\n" * 7
GOODS = "ProductID,Category,Brand,Price,Stock\n" + "1,a,b,2,3\n" * 13
MARKS = "StudentID\tSubject\tGrade\tSemester\tScore"
QUOTED = '"' + MARKS.replace("\t", '"\t"') + '"'
FIVE = dict(zip([f"keyword{n}" for n in range(1, 6)], "abcde", strict=True))
ABC = "abcdefghijklmnopqrstuvwxyz"


def mcq(lengths: str) -> str:
    return "\n".join(f"Question {n}. {'so ' * int(n)}\n{QUESTION}" for n in lengths)


CASES = [
    ("keywords:existence", {"keywords": ["c++", "Oak"]}, "An oaken C++ desk.", "C++ alone"),
    ("keywords:frequency", {"keyword": "to", "frequency": 2, "relation": "at least"},
     "Tomorrow to", "to go"),
    ("keywords:frequency", {"keyword": "to", "frequency": 2, "relation": "less than"},
     "to go", "to to"),
    ("keywords:forbidden_words", {"forbidden_words": ["sea"]}, "The season", "The Sea."),
    ("keywords:letter_frequency",
     {"letter": "A", "let_frequency": 2, "let_relation": "at least"}, "Banana", "bat"),
    ("language:response_language", {"language": "de"},
     "Das ist ein ganz gewöhnlicher deutscher Satz über das Wetter.",
     "This is quite an ordinary English sentence about the weather."),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"},
     "It rains. Dr. Who stays!", "Dr. Who stays at 3.5 p.m. and reads"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "a b", "a b c"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb\n***", "a ****** b"),
    ("length_constraints:nth_paragraph_first_word",
     {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
     "A b.\n\n'then, c", "A b.\n\nAnd then"),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "[a] and [b c]", "[a] b"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "Hi.\nP. S. you", "Hi. PS"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "Hi.\np.p.s you", "P.S. you"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n - b", "* a\n** b"),
    ("detectable_format:constrained_response", {}, "My answer is maybe.", "Maybe."),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 2},
     "*a* and **b**", "*a and b*"),
    ("detectable_format:multiple_sections", {"section_spliter": "SECTION", "num_sections": 2},
     "SECTION 1\na\nSECTION 2\nb", "SECTION 1\na\nSECTION b"),
    ("detectable_format:json_format", {}, '```json\n{"a": [1]}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<A day>>\nIt", "<< >>\nIt"),
    ("combination:two_responses", {}, "One.\n******\nTwo.", "One.******One."),
    ("combination:repeat_prompt", {"prompt_to_repeat": REQUEST}, f" {REQUEST} Two.", "Two."),
    ("startend:end_checker", {"end_phrase": "That is all."}, "So. That is ALL.", "That is all. So"),
    ("startend:quotation", {}, ' "So it is." ', '"'),
    ("change_case:capital_word_frequency",
     {"capital_frequency": 2, "capital_relation": "at least"}, "I saw NASA", "I saw Nasa"),
    ("change_case:english_capital", {}, "THIS IS ALL THAT THERE IS TO SAY ABOUT THE WEATHER.",
     "This is all that there is to say about the weather."),
    ("change_case:english_lowercase", {}, "this is all that there is to say about the weather.",
     "This is all that there is to say about the weather."),
    ("punctuation:no_comma", {}, "So it is.", "So, it is."),
    ("count:word_count_range", {"min_words": 2, "max_words": 3}, "a-b c", "a-b c d"),
    ("count:unique_word_count", {"N": 2}, "a b a", "a A a."),
    ("count:conjunctions", {"small_n": 2}, "a and b, but c", "a and b and c"),
    ("count:person_names", {"N": 2}, f"{NAMES[0]} and {NAMES[-1]}", f"{NAMES[0]} {NAMES[0]}"),
    ("count:numbers", {"N": 2}, "1,000 and 3.5", "1 or 2 or 3"),
    ("count:pronouns", {"N": 3}, "She/her, and it's mine", "She and he"),
    ("count:punctuation", {}, "So, it: is; not! Is it? What?!.", "So, it: is; not! Is it?."),
    ("count:words_japanese", {"N": 2}, "a 日 c 水.", "a 日 c d"),
    ("count:keywords_multiple", FIVE, "a bb ccc ddddd eeeeeee", "a bb ccc ddddd eeeeee"),
    ("ratio:stop_words", {"percentage": 50}, "the cat", "the of cat"),
    ("ratio:sentence_type", {}, "Ah. It is. Is it?", "It is. Is it?"),
    ("ratio:sentence_balance", {}, "It is. Is it? It is!", "It is. Is it?"),
    ("ratio:overlap", {"reference_text": "abcdef", "percentage": 50}, "abcdxy", "abcd"),
    ("ratio:sentence_words", {}, "Abc de. Fgh ij. Klm no.", "Abc de. Fgh ij. Klm n."),
    ("words:alphabet", {}, "Yes, zebras all bray.", "Yes, all bray."),
    ("words:vowel", {}, "A big rat sits on it", "A big rat sits on it due"),
    ("words:consonants", {}, "black trucks", "black car is"),
    ("words:palindrome", {}, "level civic radar madam refer kayak rotor stats tenet solos",
     "level civic radar madam refer kayak rotor stats tenet solo"),
    ("words:prime_lengths", {}, "he saw trees", "he sawn trees"),
    ("words:repeats", {"small_n": 1}, "a b. c", "a b. A"),
    ("words:odd_even_syllables", {}, "cat potion cat", "cat dog"),
    ("words:last_first", {}, "I see you. You see me.", "I see you. Me too."),
    ("words:paragraph_last_first", {}, "Rain is rain.\n\nSo so", "Rain is rain.\nSo it"),
    ("words:no_consecutive", {}, "a big cat", "a big bear"),
    ("words:keywords_specific_position", {"keyword": "tea", "n": 2, "m": 3},
     "So. I like tea.", "So. I, tea."),
    ("words:words_position", {"keyword": "so"}, "And so it is so then.", "And so it is then so."),
    ("sentence:alliteration_increment", {}, "It was. Big bears. Big bad bears.", "Big bears. Aha."),
    ("sentence:keyword", {"word": "tea", "N": 2}, "So. More Tea!", "Tea. So team."),
    ("sentence:increment", {"small_n": 2}, "So. It is so. It is so or not.", "So. It is."),
    ("format:parentheses", {}, "(a [b {c (d [e])}])", "((((a)))) [b]"),
    ("format:quotes", {}, "\"a 'b \"c\" d' e\"", "\"a 'b' c\""),
    ("format:options", {"options": "yes/no/maybe"}, "Maybe.", "Yes or no."),
    ("format:options", {"options": "I know or I don't know"}, "i don't know", "I do"),
    ("format:options", {"options": "a), b), c), d)"}, "b)", "b"),
    ("format:newline", {}, "so\nit\n\nis", "so it\nis"),
    ("format:emoji", {}, "So it is 😀. And so. 🎉", "So it is 😀. And so."),
    ("format:line_indent", {}, "a\n b\n\n   c", "a\n b\n c"),
    ("format:quote_unquote", {}, '"So" means so.', 'I say "so".'),
    ("format:list", {"sep": "!?"}, "!? a\n!? b", "!? a\n! b"),
    ("format:thesis", {}, "<em>So.</em>\nIt is.", "<i> </i> It is."),
    ("format:sub-bullets", {}, "* a\n - b\n* c\n - d", "* a\n - b\n* c"),
    ("format:no_bullets_bullets", {}, "So. It is.\n* a\n* b", "So.\n* a\n* b"),
    ("format:title_case", {}, "So It Is, 3 NASA Men", "So It is"),
    ("format:output_template", {},
     "My Answer: a My Conclusion: b Future Outlook: c", "My Answer: a My Conclusion: b"),
    ("format:no_whitespace", {}, "so", "so it"),
    ("repeat:repeat_change", {"prompt_to_repeat": REQUEST}, "Give the moons of Mars.", REQUEST),
    ("repeat:repeat_simple", {}, REPEAT_SIMPLE, "Only this."),
    ("repeat:repeat_span", {"prompt_to_repeat": REQUEST, "n_start": 5, "n_end": 7}, "the", "the m"),
    ("custom:multiples", {}, "14, 21, 28, 35, 42, 49", "7, 14, 21, 28, 35, 42, 49"),
    ("custom:mcq_count_length", {}, mcq("1234"), mcq("1233")),
    ("custom:reverse_newline", {}, "\n".join(AFRICA), "\n".join(AFRICA[:9])),
    ("custom:word_reverse", {}, "Eagle bald the is it", "It is the bald eagle"),
    ("custom:character_reverse", {}, "elgaE dlaB", "bald eagle"),
    ("custom:sentence_alphabet", {}, " ".join(f"{c.upper()}x is." for c in ABC), "Ax is. Bx is."),
    ("custom:european_capitals_sort", {}, ", ".join(CAPITALS), ", ".join(CAPITALS[::-1])),
    ("custom:csv_city", {}, CITIES, CITIES + "1,a,b,2000,3\n"),
    ("custom:csv_special_character", {}, GOODS + '1,a,"b!",2,3\n', GOODS + "1,a,b!,2,3\n"),
    ("custom:csv_quotes", {}, "\n".join([QUOTED] * 4), "\n".join([MARKS] * 4)),
    ("custom:date_format_list", {}, "1798-07-21, 1805-12-02", "1798-02-30"),
]  # fmt: skip


@pytest.mark.parametrize("name, kwargs, right, wrong", CASES, ids=[c[0] for c in CASES])
def test_an_instruction(name, kwargs, right, wrong):
    values = f.checked(name, kwargs)
    assert f.CHECKS[name](right, **values)
    assert not f.CHECKS[name](wrong, **values)


def test_every_instruction_has_a_case_and_few_are_left():
    assert {case[0] for case in CASES} == set(f.CHECKS)
    assert len(f.CHECKS) == 25 + 57 and not set(f.UNDEFINED) & set(f.CHECKS)


def asked(name: str, **kwargs) -> f.Problem:
    row = {"key": 1, "prompt": "p", "instruction_id_list": [name], "kwargs": [kwargs]}
    return f.problem(row)


@pytest.mark.parametrize("text", ["Sure:\n{}", "{}\nThat is it.", "Sure:\n{}\nDone."])
def test_loosely_first_and_last_lines_and_stars_do_not_count(text):
    one = asked("detectable_format:json_format")
    assert f.follow(one, text.format('{"a": 1}')) == f.Followed([False], [True])
    assert f.follow(one, '{"a": 1}') == f.Followed([True], [True])
    assert f.follow(one, '**{"a": 1}**') == f.Followed([False], [True])
    assert f.follow(one, "So\nit\nis") == f.Followed([False], [False])


def test_an_empty_answer_follows_nothing():
    assert f.follow(asked("punctuation:no_comma"), " \n") == f.Followed([False], [False])


def test_a_huge_answer_is_checked_in_time():
    text = 'So it is, (or "not") * [a] - b. ' * 1500 + "\n" * 1500 + "*" * 1500
    for name, kwargs, _, _ in CASES:
        if name not in f.NEEDS:
            f.CHECKS[name](text, **f.checked(name, kwargs))


@pytest.mark.parametrize(
    "name, kwargs, said",
    [
        ("keywords:existence", {}, "keywords:existence: kwargs lack keywords"),
        ("keywords:existence", {"keywords": "a"}, "keywords: expected a list of texts, got 'a'"),
        ("punctuation:no_comma", {"N": 1}, "kwargs have N, expected none"),
        ("count:numbers", {"N": 2.5}, "N: expected a whole number, got 2.5"),
        ("count:numbers", {"N": True}, "N: expected a whole number, got True"),
        ("count:words_japanese", {"N": 0}, "N: expected at least 1, got 0"),
        ("startend:end_checker", {"end_phrase": 3}, "end_phrase: expected a text, got 3"),
        ("length_constraints:number_words", {"num_words": 3, "relation": "at most"}, "at most"),
        ("keywords:letter_frequency",
         {"letter": "ab", "let_frequency": 1, "let_relation": "at least"}, "one character"),
    ],
)  # fmt: skip
def test_wrong_kwargs_are_refused(name, kwargs, said):
    with pytest.raises(ValueError, match=said):
        asked(name, **kwargs)


def test_numbers_may_be_written_as_decimals_and_nulls_are_nothing():
    (one,) = asked("count:numbers", N=2.0, word=None).instructions
    assert one.values == {"N": 2} and isinstance(one.values["N"], int)


@pytest.mark.parametrize(
    "change, said",
    [
        ({"key": None}, "field 'key'"),
        ({"kwargs": []}, "got 0 for 1"),
        ({"instruction_id_list": [3]}, "expected ids and objects, got 3"),
        ({"kwargs": [3]}, "expected ids and objects"),
        ({"prompt": None}, "field 'prompt'"),
    ],
)
def test_damaged_rows_are_refused(tmp_path, change, said):
    path = tmp_path / "if.jsonl"
    path.write_text(json.dumps({**ROWS[3], **change}))
    with pytest.raises(ValueError, match=f"if.jsonl:1: .*{said}"):
        f.load(path)


def test_what_cannot_be_checked_is_named(monkeypatch):
    problems = [asked("words:start_verb"), asked("words:new"), asked("words:new", x=1)]
    assert f.unknown(problems) == {
        "words:new": "is not known (2 times)",
        "words:start_verb": "takes a trained tagger to tell verbs (1 times)",
    }
    one = asked("words:odd_even_syllables")
    assert f.unknown([one]) == {}
    monkeypatch.setattr(f, "has", lambda library: False)
    assert "needs syllapy: pip install" in f.unknown([one])[one.instructions[0].id]


def test_our_own_prompts_are_sound():
    problems = f.embedded(ROWS).problems
    assert len({p.key for p in problems}) == len(problems) == 12 and not f.unknown(problems)


@pytest.mark.parametrize(
    "text, count",
    [
        ("It is 3.5 m. So!", 2),
        ("Mr. A. B. Smith met Dr. No, e.g. here. He left.", 2),
        ("1. One thing\n2. Another thing. Yes.", 2),
        ("Wait... what? “Yes.” Right", 3),
        ("Wait... What", 2),
        ("one\ntwo\nthree", 1),
        ("Who?! I.", 2),
        ("", 0),
    ],
)
def test_sentences(text, count):
    assert len(words.sentences(text)) == count
