"""Dataclasses whose methods come with their first use behave as the standard library's."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import pickle
import threading
from dataclasses import FrozenInstanceError, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cacheprefix.values import dataclass

ROOT = Path(__file__).resolve().parents[1]


class Written:
    """What both make a dataclass of."""

    unit: ClassVar[str] = "metres"
    name: str
    size: int = 0
    """Its size."""
    notes: list[str] = field(default_factory=list, compare=False, repr=False)
    seen: int = field(init=False, default=3)

    def __post_init__(self) -> None:
        if self.size < 0:
            message = "no size is below nothing"
            raise ValueError(message)

    @property
    def doubled(self) -> int:
        """Twice its size."""
        return 2 * self.size


def made_by(decorator: Any, **options: Any) -> Any:
    """A class of its own, made by the decorator."""
    body = {name: value for name, value in vars(Written).items() if name not in {"__dict__", "__weakref__"}}
    return decorator(slots=True, **options)(type("Written", (), body))


@dataclass(frozen=True, slots=True)
class Kept:
    """A class that pickle finds by its name."""

    text: str
    parts: tuple[int, ...] = ()


def told(made: Any) -> list[Any]:
    """What a program can see of a class and its values, questions that fail among it."""

    def answer(question: Any) -> Any:
        try:
            return question()
        except (TypeError, ValueError, AttributeError) as error:
            return type(error)

    def fresh() -> Any:
        return made("a", 2)

    return [
        str(inspect.signature(made)),
        made.__slots__,
        made.__match_args__,
        [(one.name, one.type, one.compare, one.init) for one in fields(made)],
        made.unit,
        repr(fresh()),
        fresh() == made("a", 2, ["other"]),
        fresh() == made("b", 2),
        answer(lambda: hash(fresh()) == hash(made("a", 2))),
        answer(lambda: setattr(fresh(), "size", 1)),
        answer(lambda: setattr(fresh(), "other", 1)),
        answer(lambda: delattr(fresh(), "size")),
        answer(lambda: made("a", -1)),
        answer(made),
        answer(lambda: made("a", size=1, other=2)),
        replace(fresh(), size=4).doubled,
        dataclasses.asdict(fresh()),
        copy.deepcopy(fresh()).size,
        hasattr(fresh(), "__dict__"),
        dataclasses.is_dataclass(made),
        fresh().seen,
    ]


@pytest.mark.parametrize("options", [{"frozen": True}, {}, {"eq": False}, {"frozen": True, "kw_only": True}])
def test_a_program_sees_what_it_sees_of_a_dataclass_of_the_standard_library(options: dict[str, bool]) -> None:
    """Signature, fields, comparison, hash, refusals, copies: each each of a class of its own."""
    mine, theirs = made_by(dataclass, **options), made_by(dataclasses.dataclass, **options)
    if "kw_only" in options:
        assert mine(name="a") == mine(name="a")
        assert str(inspect.signature(mine)) == str(inspect.signature(theirs))
    else:
        assert told(mine) == told(theirs)


@pytest.mark.parametrize(
    "first", [fields, inspect.signature, dataclasses.is_dataclass, lambda made: made.__match_args__]
)
def test_a_class_may_be_asked_before_it_has_a_value(first: Any) -> None:
    """Whatever is asked of it first."""
    made = made_by(dataclass, frozen=True)
    assert first(made)
    assert repr(made("a")) == "Written(name='a', size=0, seen=3)"


def test_values_come_back_from_pickles() -> None:
    """Also where the class was never used before."""
    kept = Kept("a", (1, 2))
    assert pickle.loads(pickle.dumps(kept)) == kept


def test_a_frozen_value_stays_frozen_whose_init_was_never_called() -> None:
    """The refusal is there before the first value."""
    made = made_by(dataclass, frozen=True)
    bare = object.__new__(made)
    with pytest.raises(FrozenInstanceError):
        bare.size = 1


def test_a_class_may_have_its_own_methods_and_a_dataclass_as_its_base() -> None:
    """What it says itself stays, and its base's fields come first."""

    @dataclass(frozen=True, slots=True)
    class Base:
        left: int

    @dataclass(frozen=True, slots=True)
    class Derived(Base):
        right: int = 1

        def __repr__(self) -> str:
            return f"<{self.left} {self.right}>"

    assert repr(Derived(3)) == "<3 1>"
    assert list(vars(Derived)["__slots__"]) == ["right"]
    assert [one.name for one in fields(Derived)] == ["left", "right"]


def test_threads_may_use_a_class_first_together() -> None:
    """Its methods are written once."""
    for _ in range(20):
        made = made_by(dataclass, frozen=True)
        start, found = threading.Barrier(4), list[str]()

        def use(made: Any = made, start: threading.Barrier = start, found: list[str] = found) -> None:
            start.wait()
            found.append(repr(made("a", 1)))

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == ["Written(name='a', size=1, seen=3)"] * 4


def test_no_module_that_a_session_loads_writes_methods_that_nobody_calls() -> None:
    """In the core every slotted dataclass comes from ``cacheprefix.values``; the tools' own may be as they like."""
    tools = {"audit", "cli", "record", "report", "server", "testing", "verify"}
    found = []
    for path in sorted((ROOT / "cacheprefix").rglob("*.py")):
        if path.relative_to(ROOT / "cacheprefix").parts[0] in tools or path.stem == "values":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "dataclasses":
                found += [str(path.relative_to(ROOT)) for name in node.names if name.name == "dataclass"]
    assert found == []
