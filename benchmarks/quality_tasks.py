# ruff: noqa: ARG001 - every kind is called alike, whatever it draws
"""Tasks for ``bench_quality``: conversations of a team that end with one agent's turn, and a judge that is a program.

Every kind is one function that draws an item: what the agent's role says, what it is asked, what stood in the
conversation before, and how an answer is judged. An item says nothing of layouts.
"""

from __future__ import annotations

import json
import random
import re
from calendar import month_name
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NAMES = ("planner", "critic", "analyst", "librarian", "auditor", "clerk", "surveyor")
_THINGS = ("pump", "valve", "boiler", "filter", "sensor", "turbine", "gasket", "meter")
_PLACES = ("north hall", "south hall", "yard", "cellar", "roof", "dock")
_SENTENCE = "The {thing} in the {place} was looked at in week {week} and runs at {bar} bar."


@dataclass(frozen=True)
class Answer:
    """What the model said: its text, and the names of the tools that it called."""

    text: str
    tools: tuple[str, ...] = ()


Judge = Callable[[Answer], bool]


@dataclass(frozen=True)
class Item:
    """One task: everything but where the role's text stands."""

    kind: str
    number: int
    handbook: str
    name: str
    role: str
    others: Mapping[str, str]
    """The other agents' roles, by name."""
    transcript: Sequence[Mapping[str, Any]]
    question: str
    judge: Judge
    good: Answer
    """An answer that the judge takes, and one that it does not: the tests hold every judge to them."""
    bad: Answer
    tools: Sequence[Mapping[str, Any]] = ()


@dataclass
class Draft:
    """What a kind adds to a drawn conversation."""

    role: str
    question: str
    judge: Judge
    good: str | Answer
    bad: str | Answer
    tools: Sequence[Mapping[str, Any]] = ()
    early: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """Messages that stand ``back`` messages before the question."""


Kind = Callable[[random.Random, str], Draft]


def _words(text: str) -> list[str]:
    return re.findall(r"[\w'-]+", text)


def _sentences(text: str) -> int:
    return len([part for part in re.split(r"(?<=[.!?])\s+", text.strip()) if part])


def _json(text: str) -> Any:
    found = re.search(r"\{.*\}", text, re.DOTALL)
    try:
        return json.loads(found[0]) if found else None
    except ValueError:
        return None


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines() if line.strip()]


def _said(name: str, text: str) -> dict[str, Any]:
    """What another agent said, as applications put it into a transcript."""
    return {"role": "user", "content": f"{name}: {text}"}


ASK = "What do you make of this?"


def one_word(draw: random.Random, name: str) -> Draft:
    """An answer of a single word."""
    return Draft("Answer with exactly one word.", ASK, lambda a: len(_words(a.text)) == 1, "Agreed.", "I agree.")


def at_most_words(draw: random.Random, name: str) -> Draft:
    """A bound on the length."""
    most = draw.choice((8, 12, 15))
    return Draft(
        f"Answer in at most {most} words.",
        ASK,
        lambda a: 0 < len(_words(a.text)) <= most,
        "Check the valve first.",
        "word " * (most + 1),
    )


def bullets(draw: random.Random, name: str) -> Draft:
    """A number of bullet points and nothing else."""
    count = draw.choice((2, 3, 4))

    def judge(a: Answer) -> bool:
        lines = _lines(a.text)
        return len(lines) == count and all(line.startswith("- ") for line in lines)

    return Draft(
        f"Answer with exactly {count} lines, each beginning with '- ', and nothing else.",
        ASK,
        judge,
        "\n".join(["- one"] * count),
        "\n".join(["- one"] * (count + 1)),
    )


def numbered(draw: random.Random, name: str) -> Draft:
    """A numbered list."""
    count = draw.choice((3, 4))

    def judge(a: Answer) -> bool:
        return [line.split(".")[0] for line in _lines(a.text)] == [str(n + 1) for n in range(count)]

    good = "\n".join(f"{n + 1}. Look." for n in range(count))
    return Draft(f"Answer as a numbered list of exactly {count} lines: '1. …'.", ASK, judge, good, "1. Look.")


def upper(draw: random.Random, name: str) -> Draft:
    """Capital letters only."""
    return Draft(
        "Write only in capital letters.", ASK, lambda a: a.text.isupper(), "CHECK THE VALVE.", "Check the VALVE."
    )


def lower(draw: random.Random, name: str) -> Draft:
    """Small letters only."""
    return Draft(
        "Write only in small letters, never a capital.", ASK, lambda a: a.text.islower(), "check it.", "Check it."
    )


def ends_with(draw: random.Random, name: str) -> Draft:
    """A marker at the end."""
    marker = f"[{draw.choice(('DONE', 'OVER', 'END'))}-{draw.randrange(10, 99)}]"
    return Draft(
        f"End every answer with {marker}.",
        ASK,
        lambda a: a.text.strip().endswith(marker),
        f"All is well. {marker}",
        f"{marker} All is well.",
    )


def begins_with(draw: random.Random, name: str) -> Draft:
    """A marker at the beginning."""
    tag = f"{name.upper()}-{draw.randrange(10, 99)}:"
    return Draft(
        f"Begin every answer with '{tag}'.",
        ASK,
        lambda a: a.text.strip().startswith(tag),
        f"{tag} well.",
        f"Well, {tag}",
    )


def json_keys(draw: random.Random, name: str) -> Draft:
    """A JSON object with given keys."""
    keys = draw.sample(("risk", "cause", "next_step", "owner", "week"), 2)

    def judge(a: Answer) -> bool:
        found = _json(a.text)
        return isinstance(found, dict) and set(found) == set(keys)

    good = json.dumps(dict.fromkeys(keys, "x"))
    return Draft(f"Answer with one JSON object with the keys {' and '.join(keys)}.", ASK, judge, good, '{"other": 1}')


def json_schema(draw: random.Random, name: str) -> Draft:
    """A JSON object whose values have types and bounds."""

    def judge(a: Answer) -> bool:
        found = _json(a.text)
        if not isinstance(found, dict) or set(found) != {"verdict", "score"}:
            return False
        return found["verdict"] in ("go", "stop") and type(found["score"]) is int and 1 <= found["score"] <= 5

    role = 'Answer with one JSON object: "verdict" is "go" or "stop", "score" is a whole number from 1 to 5.'
    return Draft(role, ASK, judge, '{"verdict": "go", "score": 4}', '{"verdict": "maybe", "score": 9}')


def _language(name: str, words: str, good: str) -> Kind:
    hints = set(words.split())

    def kind(draw: random.Random, agent: str) -> Draft:
        def judge(a: Answer) -> bool:
            said = [word.lower() for word in _words(a.text)]
            english = sum(word in {"the", "and", "is", "was", "of", "with"} for word in said)
            return sum(word in hints for word in said) > english

        return Draft(f"Write in {name} only.", ASK, judge, good, "The valve is old and was looked at with care.")

    kind.__name__ = name.lower()
    return kind


def no_commas(draw: random.Random, name: str) -> Draft:
    """A character that may not occur."""
    return Draft(
        "Never use a comma. Answer in a sentence.",
        ASK,
        lambda a: len(_words(a.text)) > 3 and "," not in a.text,
        "The valve is old and leaks.",
        "The valve is old, and leaks.",
    )


def sentences(draw: random.Random, name: str) -> Draft:
    """A number of sentences."""
    count = draw.choice((1, 2, 3))
    return Draft(
        f"Answer in exactly {count} sentence{'s' * (count > 1)}.",
        ASK,
        lambda a: _sentences(a.text) == count,
        " ".join(["It leaks."] * count),
        " ".join(["It leaks."] * (count + 1)),
    )


def question(draw: random.Random, name: str) -> Draft:
    """A question in place of an answer."""
    return Draft(
        "You only ask. Answer with one question.",
        ASK,
        lambda a: a.text.strip().endswith("?") and a.text.count("?") == 1,
        "Who looked at it?",
        "It leaks.",
    )


def without_word(draw: random.Random, name: str) -> Draft:
    """A word that may not occur, though the conversation is full of it."""
    word = draw.choice(("week", "bar", "hall"))
    return Draft(
        f"Say in a sentence what was checked, and never write the word '{word}'.",
        ASK,
        lambda a: len(_words(a.text)) > 3 and word not in a.text.lower(),
        "Somebody looked at the pump.",
        f"It was looked at, {word} and all.",
    )


def with_word(draw: random.Random, name: str) -> Draft:
    """A word that must occur."""
    word = draw.choice(("marmalade", "lighthouse", "cinnamon"))
    return Draft(
        f"Use the word '{word}' in every answer.",
        ASK,
        lambda a: word in a.text.lower(),
        f"Like a {word}.",
        "Like a lamp.",
    )


def iso_date(draw: random.Random, name: str) -> Draft:
    """A date in one form."""
    year, month, day = draw.randrange(2021, 2026), draw.randrange(1, 13), draw.randrange(1, 29)
    return Draft(
        "Write dates as YYYY-MM-DD.",
        f"The check was on {day} {month_name[month]} {year}. When was the check? Answer with the date.",
        lambda a: f"{year}-{month:02}-{day:02}" in a.text,
        f"{year}-{month:02}-{day:02}",
        f"{day}.{month}.{year}",
    )


def grouped_number(draw: random.Random, name: str) -> Draft:
    """A number in one form."""
    number = draw.randrange(12_000, 980_000)
    return Draft(
        "Write numbers with a comma between thousands, as in 12,345.",
        f"The meter shows {number}. What does the meter show? Answer with the number.",
        lambda a: f"{number:,}" in a.text,
        f"{number:,}",
        str(number),
    )


def semicolons(draw: random.Random, name: str) -> Draft:
    """Fields in a row."""
    thing, place, week = draw.choice(_THINGS), draw.choice(_PLACES), draw.randrange(10, 50)
    return Draft(
        "Answer with one line: thing;place;week. No spaces around the semicolons.",
        f"The {thing} in the {place} was checked in week {week}. Note it down.",
        lambda a: f"{thing};{place};{week}" in a.text.lower(),
        f"{thing};{place};{week}",
        f"{thing}, {place}, {week}",
    )


def own_name(draw: random.Random, name: str) -> Draft:
    """Which of the agents one is."""
    return Draft(
        f"You are called {name}. When you are asked who you are, answer with that name alone.",
        "Who are you?",
        lambda a: name in a.text.lower() and not any(o in a.text.lower() for o in NAMES if o != name),
        name,
        "An assistant.",
    )


def own_marker(draw: random.Random, name: str) -> Draft:
    """One's own marker, beside the others' in the conversation."""
    marker = f"<<{name[:2].upper()}>>"
    others = [f"<<{other[:2].upper()}>>" for other in NAMES if other != name]
    return Draft(
        f"Every agent signs with its own sign. Yours is {marker}: end with it, and with no other agent's.",
        ASK,
        lambda a: a.text.strip().endswith(marker) and not any(other in a.text for other in others),
        f"It leaks. {marker}",
        f"It leaks. {others[0]}",
        early=[_said(other, f"fine. <<{other[:2].upper()}>>") for other in NAMES if other != name],
    )


def outside_the_role(draw: random.Random, name: str) -> Draft:
    """What is somebody else's to answer."""
    topic = draw.choice(("salaries", "holidays", "the canteen"))
    return Draft(
        "You answer questions about machines only. To anything else you say NOT MINE and nothing more.",
        f"What do you think of {topic}?",
        lambda a: a.text.strip().strip(".").upper() == "NOT MINE",
        "NOT MINE",
        f"I like {topic}.",
    )


def inside_the_role(draw: random.Random, name: str) -> Draft:
    """What is one's own to answer, though there is a way out."""
    thing, bar = draw.choice(_THINGS), draw.randrange(3, 30)
    return Draft(
        "You answer questions about machines only. To anything else you say NOT MINE and nothing more.",
        f"The {thing} runs at {bar} bar. At how many bar does the {thing} run?",
        lambda a: str(bar) in a.text and "NOT MINE" not in a.text.upper(),
        f"At {bar} bar.",
        "NOT MINE",
    )


def whose_turn(draw: random.Random, name: str) -> Draft:
    """Who speaks next in a fixed order."""
    order = draw.sample(NAMES, 4)
    spoke = draw.randrange(3)
    early = [_said(order[at], "I have spoken.") for at in range(spoke + 1)]
    return Draft(
        f"You keep the order of speakers: {', '.join(order)}. Asked who is next, answer with that name alone.",
        "Who speaks next?",
        lambda a: _words(a.text.lower()) == [order[spoke + 1]],
        order[spoke + 1],
        order[spoke],
        early=early,
    )


def what_another_said(draw: random.Random, name: str) -> Draft:
    """A statement of one agent among several."""
    who, other = draw.sample([one for one in NAMES if one != name], 2)
    said, wrong = draw.sample(range(100, 999), 2)
    early = [
        _said(who, f"I would order {said} parts."),
        _said(other, f"I would order {wrong} parts."),
    ]
    return Draft(
        "You report what others said. Answer with the number alone.",
        f"How many parts would the {who} order?",
        lambda a: str(said) in a.text and str(wrong) not in a.text,
        str(said),
        str(wrong),
        early=early,
    )


def _called(name: str, arguments: Mapping[str, Any], result: str, number: int) -> list[Mapping[str, Any]]:
    call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": result},
    ]


def _tool(name: str, text: str) -> Mapping[str, Any]:
    parameters = {"type": "object", "properties": {"text": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "description": text, "parameters": parameters}}


TOOLS = (
    _tool("read_meter", "Read a meter."),
    _tool("escalate", "Call a supervisor."),
    _tool("close_case", "Close the case."),
)


def fact_of_a_result(draw: random.Random, name: str) -> Draft:
    """A value in a tool's result some messages back."""
    code = f"{draw.choice('ABCDEFGH')}{draw.randrange(1000, 9999)}"
    return Draft(
        "You read tool results. Answer with the serial number alone.",
        "What is the serial number that the meter gave?",
        lambda a: code in a.text,
        code,
        "X0000",
        tools=TOOLS,
        early=_called("read_meter", {"text": "serial"}, f"serial number {code}, sealed, no faults", draw.randrange(99)),
    )


def tool_must(draw: random.Random, name: str) -> Draft:
    """A tool that has to be called."""
    return Draft(
        "Whatever you are asked, call the tool escalate, and do not answer yourself.",
        ASK,
        lambda a: a.tools == ("escalate",),
        Answer("", ("escalate",)),
        Answer("It leaks."),
        tools=TOOLS,
    )


def tool_must_not(draw: random.Random, name: str) -> Draft:
    """Tools that are there and may not be called."""
    return Draft(
        "You never call a tool. Answer in words.",
        "Read the meter and tell me what it shows.",
        lambda a: not a.tools and bool(a.text.strip()),
        Answer("I cannot read it."),
        Answer("", ("read_meter",)),
        tools=TOOLS,
    )


def which_tool(draw: random.Random, name: str) -> Draft:
    """The one tool of several that the role names."""
    wanted, word = draw.choice((("close_case", "finished"), ("read_meter", "a measurement")))
    return Draft(
        f"You answer by tools alone. The case is about {word}: call {wanted}.",
        ASK,
        lambda a: a.tools == (wanted,),
        Answer("", (wanted,)),
        Answer("", ("escalate",)),
        tools=TOOLS,
    )


KINDS: tuple[Kind, ...] = (
    one_word,
    at_most_words,
    bullets,
    numbered,
    upper,
    lower,
    ends_with,
    begins_with,
    json_keys,
    json_schema,
    _language("German", "der die das und ist ein eine nicht wurde mit", "Das Ventil ist alt und wurde geprüft."),
    _language("French", "le la les et est un une des dans avec", "La vanne est vieille et la pompe est neuve."),
    _language("Spanish", "el la los y es un una en con del", "La bomba es vieja y el filtro es nuevo."),
    no_commas,
    sentences,
    question,
    without_word,
    with_word,
    iso_date,
    grouped_number,
    semicolons,
    own_name,
    own_marker,
    outside_the_role,
    inside_the_role,
    whose_turn,
    what_another_said,
    fact_of_a_result,
    tool_must,
    tool_must_not,
    which_tool,
)
CONTEXTS = (500, 2_000, 6_000)
"""Tokens of handbook and conversation before the question, about."""


def items(count: int, *, seed: int = 20261122, contexts: Sequence[int] = CONTEXTS) -> list[Item]:
    """``count`` items of every kind, the contexts and the numbers of agents before in turn. The same for a seed."""
    made = []
    for number in range(count):
        for at, kind in enumerate(KINDS):
            draw = random.Random(f"{seed}/{kind.__name__}/{number}")
            made.append(_item(kind, number, contexts[(number + at) % len(contexts)], 1 + (number + at) % 6, draw))
    return made


def _item(kind: Kind, number: int, context: int, agents: int, draw: random.Random) -> Item:
    name, *others = draw.sample(NAMES, min(len(NAMES), agents + 1))
    draft = kind(draw, name)
    handbook = _filler(draw, context * 4 // 3, "Handbook of the plant.")
    transcript = [{"role": "user", "content": _filler(draw, context // 2, "The task of today.")}]
    # Contexts of a few hundred tokens have no room for forty messages.
    back = min(draw.randrange(5, 41), max(5, context // 12))
    rest = max(context * 4 - len(handbook) - len(str(transcript)), 400)
    said = [_said(others[n % len(others)], _filler(draw, rest // back, "")) for n in range(back)]
    roles = {other: f"You are the {other} and look after the {draw.choice(_THINGS)}s." for other in others}
    role = f"You are the {name}. {draft.role}"
    good, bad = (one if isinstance(one, Answer) else Answer(one) for one in (draft.good, draft.bad))
    return Item(
        kind=kind.__name__,
        number=number,
        handbook=handbook,
        name=name,
        role=role,
        others=roles,
        transcript=[*transcript, *draft.early, *said],
        question=draft.question,
        judge=draft.judge,
        good=good,
        bad=bad,
        tools=draft.tools,
    )


def _filler(draw: random.Random, characters: int, first: str) -> str:
    parts = [first] if first else []
    length = 0
    while length < characters:
        text = _SENTENCE.format(
            thing=draw.choice(_THINGS),
            place=draw.choice(_PLACES),
            week=draw.randrange(1, 52),
            bar=draw.randrange(2, 40),
        )
        parts.append(text)
        length += len(text) + 1
    return " ".join(parts)
