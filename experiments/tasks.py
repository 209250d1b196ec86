"""Synthetic chats from a seeded random.Random: each generator returns (messages, tools).

Texts are passages of the corpus; sizes are characters. `render` turns a chat into pieces of text
with a mark on what the assistant wrote.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from experiments import math_tasks
from experiments.task_words import (
    CAPITALS,
    CITIES,
    COLOURS,
    DEFINITIONS,
    NAMES,
    NOUNS,
    OPPOSITES,
    PLACES,
    SERIES,
    THINGS,
    VERBS,
    WORDS,
)
from tr.checkpoint.template import render as render_chat

Message = dict[str, Any]
Tool = dict[str, Any]


@dataclass(frozen=True)
class Chat:
    messages: list[Message]
    tools: list[Tool] | None = None


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def math_problem(rng: Random) -> Chat:
    question, answer, _ = math_tasks.problem(rng)
    return Chat([user(question), assistant(answer)])


# Copying


def looks_like_code(text: str) -> bool:
    return "\n    " in text


def passage(rng: Random, text: str, shortest: int, longest: int) -> str:
    """Whole sentences (of code, lines) of `text` from a random place; log-uniform in length."""
    size = int(shortest * (longest / shortest) ** rng.random())
    start = rng.randrange(max(1, len(text) - size))
    if start:
        border = r"\n(?=[^\s)\]}])" if looks_like_code(text) else r"\n\n?|(?<=[.!?]) "
        found = re.compile(border).search(text, start)
        start = found.end() if found and found.end() < len(text) - shortest else 0
    cut = text[start : start + size]
    if start + size < len(text):
        ends = [m.end() for m in re.finditer(r"[.!?]['\")”’]?(?= |\n)|\n", cut)]
        cut = cut[: ends[-1]] if ends and ends[-1] > size // 2 else cut[: cut.rfind(" ") + 1] or cut
    return cut.strip()


def listing(rng: Random, shortest: int, longest: int) -> str:
    """A document without sense: words, identifiers, numbers or rows of letters."""
    size = int(shortest * (longest / shortest) ** rng.random())
    item: Callable[[], str] = rng.choice(
        (
            lambda: rng.choice(WORDS),
            lambda: "_".join([rng.choice(VERBS), *rng.sample(NOUNS, rng.randint(1, 2))]),
            lambda: str(rng.randrange(10 ** rng.randint(1, 6))),
            lambda: "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 6))),
            lambda: "".join(rng.choices("0123456789abcdef", k=8)),
            lambda: f"{rng.choice(NOUNS)} = {rng.randrange(1000)}",
        )
    )
    if rng.random() < 0.5:  # few different items: only a long context tells where one is
        few = [item() for _ in range(rng.randint(4, 24))]
        item = lambda: rng.choice(few)  # noqa: E731
    between = rng.choice((" ", ", ", "\n"))
    items: list[str] = []
    while sum(map(len, items)) + len(items) * len(between) < size:
        items.append(item())
    return between.join(items)


def echoes(rng: Random, text: str) -> str:
    """`text` with spans of one to eight words said again elsewhere, where other words follow."""
    words = text.split(" ")
    for _ in range(rng.randint(2, 2 + len(words) // 12)):
        start, size = rng.randrange(len(words)), rng.randint(1, 8)
        place = rng.randrange(len(words))
        words[place:place] = words[start : start + size]
    return " ".join(words)


COPY_ONCE = (
    "Repeat the following text exactly:\n\n{}",
    "Repeat this document word for word.\n\n{}",
    "Please copy the text below without any change.\n\n{}",
    "{}\n\nRepeat the text above exactly.",
    "Write out the following document again, verbatim:\n\n{}",
    "Here is a document:\n\n{}\n\nRepeat it verbatim.",
)


def copy_document(rng: Random, text: str, shortest: int = 180, longest: int = 1900) -> Chat:
    """The user quotes a document and asks for it back, mostly once and whole."""
    style = rng.random()
    if style < 0.3:
        document = listing(rng, shortest, longest)
    else:
        document = passage(rng, text, shortest, longest)
        if rng.random() < 0.4:
            document = echoes(rng, document)
    paragraphs = [] if looks_like_code(document) else document.split("\n\n")
    if 0.3 <= style < 0.36 and len(document) < longest // 2:
        ask, answer = "Repeat the following text twice:\n\n{}", f"{document}\n\n{document}"
    elif style >= 0.3 and len(paragraphs) > 1 and rng.random() < 0.2:
        n = rng.randrange(min(3, len(paragraphs)))
        which = ("first", "second", "third")[n]
        ask, answer = f"Repeat the {which} paragraph of this text:\n\n{{}}", paragraphs[n]
    else:
        ask, answer = rng.choice(COPY_ONCE), document
    return Chat([user(ask.replace("{}", document)), assistant(answer)])


# Needles


def secret(rng: Random) -> tuple[str, str]:
    """(subject, value): "the secret code of the blue lantern", "48213"."""
    kind = rng.randrange(4)
    if kind == 0:
        subject = f"the secret code of the {rng.choice(COLOURS)} {rng.choice(THINGS)}"
        return subject, str(rng.randint(10_000, 99_999))
    if kind == 1:
        return f"the password of {rng.choice(NAMES)}", rng.choice(WORDS) + rng.choice(WORDS)
    if kind == 2:
        subject = f"the magic number of {rng.choice(PLACES)}"
        return subject, str(rng.randint(100, 999_999))
    subject = f"the keyword of the {rng.choice(COLOURS)} {rng.choice(THINGS)}"
    return subject, f"{rng.choice(COLOURS)} {rng.choice(THINGS)}"


def sentence(subject: str, value: str) -> str:
    return f"{subject[0].upper()}{subject[1:]} is {value}."


NEEDLE_ASK = (
    "Read the following text.\n\n{text}\n\nWhat is {subject}?",
    "{text}\n\nAccording to the text above, what is {subject}?",
    "Somewhere in this text it says what {subject} is.\n\n{text}\n\nWhat is {subject}?",
)


def hide(rng: Random, filler: str, needles: Sequence[str], length: int) -> str:
    """`length` characters of filler with the needles between its sentences at random depths."""
    start = rng.randrange(max(1, len(filler) - length))
    start = filler.find(" ", start) + 1
    text = filler[start : start + length].rsplit(" ", 1)[0]
    places = [m.end() for m in re.finditer(r"[.!?] |\n\n", text)] or [0]
    where = sorted(rng.choice(places) for _ in needles)
    parts, last = [], 0
    for place, needle_text in zip(where, needles, strict=True):
        parts += [text[last:place], needle_text, " "]
        last = place
    return "".join([*parts, text[last:]]).strip()


def needle(rng: Random, filler: str, length: int) -> Chat:
    """One or several facts hidden in filler; the user asks for one of them, sometimes two."""
    found: dict[str, str] = {}
    for _ in range(rng.choice((1, 1, 2, 3, 5, 8))):
        subject, value = secret(rng)
        found.setdefault(subject, value)
    subjects = list(found)
    rng.shuffle(subjects)
    text = hide(rng, filler, [sentence(s, found[s]) for s in found], length)
    asked = subjects[: 2 if rng.random() < 0.15 else 1]
    ask = rng.choice(NEEDLE_ASK).replace("{subject}", " and what is ".join(asked))
    answer = " ".join(sentence(s, found[s]) for s in asked)
    turns = [user(ask.replace("{text}", text)), assistant(answer)]
    if len(subjects) > len(asked) and rng.random() < 0.3:
        more = subjects[len(asked)]
        turns += [user(f"And what is {more}?"), assistant(sentence(more, found[more]))]
    return Chat(turns)


# Conversation


def greeting(rng: Random) -> tuple[str, str]:
    name = rng.choice(NAMES)
    return rng.choice(
        (
            ("Hello!", "Hello! How can I help you?"),
            ("Hi there.", "Hi! What can I do for you?"),
            (f"Hello, my name is {name}.", f"Hello {name}! How can I help you?"),
            (f"Good morning, I am {name}.", f"Good morning, {name}! What can I do for you?"),
            ("Who are you?", "I am a small language model, trained to test fast decoding."),
            ("What can you do?", "I can continue texts, repeat documents, find facts in a text, "
             "solve small sums and call tools."),
            ("How are you?", "I am fine, thank you. How can I help you?"),
            ("Thank you!", "You are welcome!"),
            ("Are you a human?", "No, I am a small language model."),
        )
    )  # fmt: skip


def sum_turn(rng: Random) -> tuple[str, str]:
    sign = rng.choice("+-*")
    if sign == "*":
        a, b = rng.randint(2, 12), rng.randint(2, 12)
    else:
        a, b = rng.randint(1, 500), rng.randint(1, 500)
        a, b = max(a, b), min(a, b)
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    ask = rng.choice(("What is {}?", "Compute {}.", "How much is {}?"))
    return ask.format(f"{a} {sign} {b}"), f"{a} {sign} {b} = {value}."


def knowledge(rng: Random) -> tuple[str, str]:
    kind = rng.randrange(3)
    if kind == 0:
        thing, text = rng.choice(list(DEFINITIONS.items()))
        return rng.choice(("What is {}?", "Explain what {} is.", "Define {}.")).format(thing), text
    if kind == 1:
        country, city = rng.choice(list(CAPITALS.items()))
        ask = rng.choice(("What is the capital of {}?", "Name the capital of {}."))
        return ask.format(country), f"The capital of {country} is {city}."
    word, other = rng.choice(list(OPPOSITES.items()))
    return f'What is the opposite of "{word}"?', f'The opposite of "{word}" is "{other}".'


def word_game(rng: Random) -> tuple[str, str]:
    word = rng.choice(WORDS)
    words = rng.sample(WORDS, rng.randint(3, 8))
    kind = rng.randrange(7)
    if kind == 0:
        return f'Spell the word "{word}".', "-".join(word.upper())
    if kind == 1:
        return f'Write "{word}" in upper case.', word.upper()
    if kind == 2:
        return f'Reverse the word "{word}".', f"{'-'.join(word)} reversed is {word[::-1]}."
    if kind == 3:
        n = rng.randint(2, 8)
        return f'Say "{word}" {n} times.', " ".join([word] * n)
    if kind == 4:
        ask = f"Sort these words alphabetically: {', '.join(words)}."
        return ask, ", ".join(sorted(words))
    if kind == 5:
        return f"How many words are in this list: {', '.join(words)}?", (
            f"There are {len(words)} words: "
            + ", ".join(f"{i} {w}" for i, w in enumerate(words, 1))
            + "."
        )
    return f"Write these words in reverse order: {' '.join(words)}", " ".join(reversed(words))


def counting(rng: Random) -> tuple[str, str]:
    kind = rng.randrange(4)
    if kind == 0:
        name, items = rng.choice(list(SERIES.items()))
        bullets = rng.random() < 0.5
        if bullets:
            return f"List {name}, one per line.", "\n".join(f"- {x}" for x in items)
        return f"List {name}.", ", ".join(items) + "."
    a = rng.randint(1, 60)
    b = a + rng.randint(4, 20)
    if kind == 1:
        return f"Count from {a} to {b}.", ", ".join(map(str, range(a, b + 1)))
    if kind == 2:
        step = rng.choice((2, 5, 10))
        last = a + step * rng.randint(4, 12)
        numbers = ", ".join(map(str, range(a, last + 1, step)))
        return f"Count from {a} to {last} in steps of {step}.", numbers
    numbers = rng.sample(range(1, 999), rng.randint(3, 6))
    shown = ", ".join(map(str, numbers))
    kind_word, value = rng.choice((("largest", max(numbers)), ("smallest", min(numbers))))
    return f"Which is the {kind_word} of {shown}?", f"The {kind_word} number is {value}."


TURNS = (greeting, sum_turn, knowledge, knowledge, word_game, word_game, counting)
SYSTEMS = (
    "You are a helpful assistant.",
    "Answer briefly.",
    "You are a patient teacher.",
    "Answer in complete sentences.",
)


def chat_turn(rng: Random) -> Chat:
    """One to four exchanges of small talk, sums, definitions and word games."""
    messages: list[Message] = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    for _ in range(rng.randint(1, 4)):
        ask, answer = rng.choice(TURNS)(rng)
        messages += [user(ask), assistant(answer)]
    return Chat(messages)


# Tool calls


def tool(name: str, about: str, required: int | None = None, **parameters: str) -> Tool:
    """A function declaration; a parameter is "type: description"."""
    split = {k: v.split(": ", 1) for k, v in parameters.items()}
    properties = {k: {"type": t, "description": d} for k, (t, d) in split.items()}
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(parameters)[:required],
    }
    function = {"name": name, "description": about, "parameters": schema}
    return {"type": "function", "function": function}


TOOLS = {
    t["function"]["name"]: t
    for t in (
        tool("get_weather", "Current weather of a city.", city="string: Name of the city"),
        tool("add_numbers", "Add two numbers.", a="integer: First", b="integer: Second"),
        tool("multiply", "Multiply two numbers.", x="integer: First", y="integer: Second"),
        tool("set_timer", "Start a timer.", 1, minutes="integer: Length", label="string: Name"),
        tool("send_message", "Send a message.", to="string: Person", text="string: Message"),
        tool("read_file", "Read a text file.", path="string: Path of the file"),
        tool("search_notes", "Search the notes.", 1, query="string: Words", limit="integer: Most"),
        tool("set_light", "Switch a light.", room="string: Room", on="boolean: On or off"),
        tool("get_time", "Current time in a city.", city="string: Name of the city"),
        tool("create_list", "Make a list.", title="string: Title", items="array: Items"),
    )
}


def tool_case(rng: Random, name: str) -> tuple[str, dict[str, Any], str, str]:
    """(what the user asks, arguments, tool result, final sentence)."""
    city, person, word = rng.choice(CITIES), rng.choice(NAMES), rng.choice(WORDS)
    a, b = rng.randint(1, 200), rng.randint(2, 50)
    if name == "get_weather":
        sky, degrees = rng.choice(("sunny", "cloudy", "rainy", "windy")), rng.randint(-5, 35)
        result = json.dumps({"city": city, "sky": sky, "degrees": degrees})
        end = f"In {city} it is {sky} with {degrees} degrees."
        return f"What is the weather in {city}?", {"city": city}, result, end
    if name == "get_time":
        time = f"{rng.randrange(24):02}:{rng.randrange(60):02}"
        return f"What time is it in {city}?", {"city": city}, time, f"In {city} it is {time}."
    if name == "add_numbers":
        return (
            f"Use the tool to add {a} and {b}.",
            {"a": a, "b": b},
            str(a + b),
            (f"{a} + {b} = {a + b}."),
        )
    if name == "multiply":
        return (
            f"Use the tool to multiply {a} by {b}.",
            {"x": a, "y": b},
            str(a * b),
            (f"{a} * {b} = {a * b}."),
        )
    if name == "set_timer":
        if rng.random() < 0.5:
            return (
                f"Set a timer for {b} minutes.",
                {"minutes": b},
                "ok",
                (f"The timer is set for {b} minutes."),
            )
        arguments = {"minutes": b, "label": word}
        ask = f"Set a timer for {b} minutes and call it {word}."
        return ask, arguments, "ok", f'The timer "{word}" is set for {b} minutes.'
    if name == "send_message":
        text = f"{rng.choice(('See you at', 'Meet me at', 'I am at'))} {rng.choice(PLACES)}."
        ask = f'Send {person} the message "{text}"'
        return ask, {"to": person, "text": text}, "sent", f"The message to {person} has been sent."
    if name == "read_file":
        path = f"{rng.choice(NOUNS)}/{word}.txt"
        line = " ".join(rng.sample(WORDS, rng.randint(3, 8)))
        return f"What does the file {path} say?", {"path": path}, line, f"The file says: {line}"
    if name == "search_notes":
        other = rng.choice(WORDS)
        ask, arguments = f"Find my notes about {word}.", {"query": word}
        if rng.random() < 0.5:
            ask, arguments = f"Find at most {b} notes about {word}.", {"query": word, "limit": b}
        return (
            ask,
            arguments,
            f"1. {word} and {other}",
            (f'I found one note: "{word} and {other}".'),
        )
    if name == "set_light":
        room, on = rng.choice(("kitchen", "hall", "garden", "bedroom")), rng.random() < 0.5
        state = "on" if on else "off"
        return (
            f"Turn {state} the light in the {room}.",
            {"room": room, "on": on},
            "ok",
            (f"The light in the {room} is now {state}."),
        )
    items = rng.sample(WORDS, rng.randint(2, 5))
    ask = f'Make a list called "{word}" with {", ".join(items)}.'
    end = f'The list "{word}" now has {len(items)} items.'
    return ask, {"title": word, "items": items}, "created", end


def tool_call(rng: Random) -> Chat:
    """Declared tools; the assistant calls one or two, reads the results and answers."""
    names = rng.sample(list(TOOLS), rng.randint(1, 3))
    used = names[: 2 if len(names) > 1 and rng.random() < 0.2 else 1]
    cases = [tool_case(rng, name) for name in used]
    rng.shuffle(names)
    calls = [
        {"type": "function", "function": {"name": n, "arguments": c[1]}}
        for n, c in zip(used, cases, strict=True)
    ]
    lead = rng.choice(("", "", "I will use a tool for that."))
    messages = [
        user(" ".join(c[0] for c in cases)),
        {"role": "assistant", "content": lead, "tool_calls": calls},
        *({"role": "tool", "content": c[2]} for c in cases),
        assistant(" ".join(c[3] for c in cases)),
    ]
    if rng.random() < 0.2:
        ask, answer = rng.choice(TURNS)(rng)
        messages += [user(ask), assistant(answer)]
    return Chat(messages, [TOOLS[n] for n in names])


# Continuations


def beginning(rng: Random, text: str, longest: int) -> tuple[str, str]:
    """A passage of `text`, cut after a sentence or line in its first half."""
    part = passage(rng, text, 600, longest)
    half = part[: len(part) // 2]
    ends = [m.end() for m in re.finditer(r"\n(?=\S)", half)] if looks_like_code(part) else []
    ends = ends or [m.end() for m in re.finditer(r"[.!?](?= )|\n", half)]
    cut = ends[-1] if ends else part.find(" ", len(part) // 3) + 1
    return part[:cut].rstrip(), part[cut:].strip("\n")


def essay(rng: Random, text: str, longest: int = 2400) -> Chat:
    start, rest = beginning(rng, text, longest)
    ask = rng.choice(("Continue this text:\n\n{}", "{}\n\nContinue the text above."))
    return Chat([user(ask.replace("{}", start)), assistant(rest)])


def code_task(rng: Random, text: str, longest: int = 2400) -> Chat:
    start, rest = beginning(rng, text, longest)
    ask = rng.choice(("Continue this Python file:\n\n{}", "Complete this Python code:\n\n{}"))
    return Chat([user(ask.replace("{}", start)), assistant(rest)])


def short_texts(rng: Random) -> Iterator[str]:
    """The words of chats that quote no document, without end: a tokenizer's sample of them."""
    while True:
        chat = rng.choice((math_problem, chat_turn, tool_call))(rng)
        yield "\n".join(m["content"] for m in chat.messages)
        yield sentence(*secret(rng))


# Rendering


def render(chat: Chat, template: str, **options: Any) -> list[tuple[str, bool]]:
    """Pieces (text, is_response); a response runs to its <|im_end|>, which belongs to it.

    `template` is the chat template's source; thinking is off unless the options say otherwise.
    """
    options = {"enable_thinking": False, **options}
    pieces: list[tuple[str, bool]] = []
    done = 0  # characters of the conversation already in pieces
    for i, message in enumerate(chat.messages):
        if message["role"] != "assistant":
            continue
        past, tools = chat.messages[:i], chat.tools
        head = render_chat(template, past, tools, add_generation_prompt=True, **options)
        whole = render_chat(template, [*past, message], tools, **options)
        if not whole.startswith(head):
            raise ValueError("the template does not extend its own generation prompt")
        end = len(whole) - len("\n")
        pieces += [(head[done:], False), (whole[len(head) : end], True)]
        done = end
    return pieces
