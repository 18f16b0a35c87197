"""The conversation that ``cacheprefix bench`` holds: a desk of a small library answers a reader's questions."""

from __future__ import annotations

_RULES = (
    "Answer in plain words and name the shelf where a book stands.",
    "A book that is out may be reserved; say when it is due back and how long the list is.",
    "Lend at most twelve items to a reader, of which four may be films and two may be maps.",
    "Loans last four weeks and are extended twice, unless somebody waits for the book.",
    "Never tell one reader what another reads, has read or has asked for.",
    "Fees are waived for pupils, for whoever is ill, and whenever the fault was ours.",
    "Say what you do not know, and who at the desk may know it.",
    "Suggest one further book at most, and only if the reader asked for a subject and not for a title.",
    "Old maps and manuscripts are read in the hall on the second floor and never lent.",
    "Prices, dates and shelf marks are copied from the catalogue and never guessed.",
)
_SHELVES = ("travel", "gardening", "history of the coast", "ships", "birds", "cooking", "letters", "mathematics")

STATIC = "\n".join(
    [
        "You are at the desk of the town library and help its readers. Keep to the rules of the house.",
        *(f"Rule {number}. {rule}" for number, rule in enumerate(_RULES, 1)),
        "The shelves:",
        *(
            f"Shelf {10 * number + part}: {shelf}, part {part} of 5, on floor {1 + number % 3}, "
            f"{'left' if part % 2 else 'right'} of the stairs, {40 + 7 * number + part} books, "
            f"newest of {1990 + 3 * number + part}."
            for number, shelf in enumerate(_SHELVES, 1)
            for part in range(1, 6)
        ),
    ]
)
"""About 1,300 tokens by the estimate, above the minimum of most providers."""

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
EVERY = 3
"""Turns between two changes of the volatile text."""


def volatile(turn: int) -> str:
    """What the desk knows just now; another text every three turns."""
    state = turn // EVERY
    day = _DAYS[state % len(_DAYS)]
    return (
        f"Now: {day}, {9 + state % 9}:{10 + 7 * state % 50} h. At the desk: {3 + state % 4} readers. "
        f"Returned in the last hour: shelf marks {11 + state}, {23 + state} and {42 + state}. "
        f"The hall on the second floor has {12 - state % 6} free seats, "
        f"the lift is {'out of order' if state % 2 else 'working'}."
    )


_QUESTIONS = (
    "Where do I find something on the birds of the coast?",
    "I look for letters that a captain wrote home. Have you got any?",
    "May I take four films and a map with me today?",
    "My book is due on Friday and I am not done. What can I do?",
    "Is there a free seat to look at the old maps?",
    "What is new on the gardening shelf, and is it in?",
    "A friend says that he lent the ship atlas here. Who has it now?",
    "I was ill for three weeks and have a fee of two coins. Must I pay?",
    "How do I get to the mathematics shelf with a pram?",
    "Which cookery book would you give to somebody who has never cooked?",
)


def question(turn: int) -> str:
    """What the reader asks in a turn."""
    return f"{_QUESTIONS[turn % len(_QUESTIONS)]} (question {turn + 1})"


def answer(turn: int) -> str:
    """What the simulated model says: about 150 tokens, the same in every layout."""
    shelf = _SHELVES[turn % len(_SHELVES)]
    rule = _RULES[turn % len(_RULES)]
    return " ".join(
        [
            f"To your question number {turn + 1}: what you look for stands under {shelf}, part {1 + turn % 5} of 5.",
            f"The rule that applies is this one. {rule}",
            *(
                f"Book {number} of {shelf} came in {1950 + 3 * turn + number} and was lent {7 * number + turn} times."
                for number in range(1, 7)
            ),
        ]
    )
