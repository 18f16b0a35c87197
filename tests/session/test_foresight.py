"""What a session says before anything is lost: lint of tools and system text."""

from cacheprefix import Session, SharedPrefix
from cacheprefix.adapter import Request, Role, fork_body

LONG = "The handbook says that every statement needs a source. " * 90


def body(system, text="hi"):
    """A chat body."""
    return {"model": "gpt-5.2", "messages": [{"role": "system", "content": system}, {"role": "user", "content": text}]}


def test_a_time_stamp_in_the_system_text_is_noted_once_with_its_place_and_without_its_text():
    """Before the second request pays for it."""
    session = Session()
    for number in range(3):
        session.adapter.begin(Request(body(f"{LONG} Now: 2026-11-21T06:30:00Z", str(number)), "openai-chat")).finish(
            None
        )
    notes = [note for note in session.report().notes if note.startswith("lint, system[0]")]
    assert len(notes) == 1
    assert "06:30" not in notes[0]
    assert not session.failures


def test_a_text_without_anything_volatile_is_not_noted():
    """No false warning on plain text."""
    session = Session()
    session.adapter.begin(Request(body(LONG), "openai-chat")).finish(None)
    assert not [note for note in session.report().notes if note.startswith("lint")]


def noted(session, *systems, agents=("a",), tools=()):
    """The lint notes after one request for each system text."""
    for number, system in enumerate(systems):
        made = {**body(system), **({"tools": tools[number]} if tools else {})}
        session.adapter.begin(
            Request(made, "openai-chat", agent=agents[number % len(agents)], conversation="c")
        ).finish(None)
    return [note for note in session.report().notes if note.startswith("lint")]


def test_a_set_that_comes_out_in_another_order_is_noted():
    """The first request could not tell; the second one of the agent shows it."""
    assert not noted(Session(), LONG + "[oak, ash, elm]")
    (note,) = noted(Session(), LONG + "[oak, ash, elm]", LONG + "[elm, oak, ash]")
    assert note.startswith("lint, system[0]: unordered_set.")


def test_json_with_its_keys_in_another_order_is_noted():
    """Tools that are made anew for each call, with other key orders."""
    function = {"name": "f", "description": LONG}
    turned = dict(reversed(function.items()))
    tools = [[{"type": "function", "function": one}] for one in (function, turned)]
    assert any("tools[0]: unstable_json" in note for note in noted(Session(), LONG, LONG, tools=tools))


def test_a_persona_that_we_left_where_it_was_is_no_advice():
    """To move it is what was weighed and not done."""
    for layout, told in (("own", False), ("fork", True)):
        session = Session()
        for agent in ("critic", "writer"):
            made = body(f"You are the {agent} of this team. {LONG}")
            request = Request(made, "openai-chat", agent=agent, conversation="c", layout=layout)
            session.adapter.begin(request).finish(None)
        assert any("persona" in note for note in session.report().notes) is told


def test_a_shared_text_that_speaks_to_all_is_no_persona():
    """Every fork begins with it; observed, it may be one agent's own."""
    shared = f"You are a support agent of this shop. {LONG}"
    for mode, told in (("fork", False), ("observe", True)):
        session = Session(SharedPrefix(system=shared), mode=mode)
        for agent in ("refunds", "parcels"):
            role = Role(agent, conversation="c")
            fork_body(session.adapter, body(f"{shared}\n\nMind the {agent}."), "openai-chat", role).begin().finish(None)
        assert any("persona" in note for note in session.report().notes) is told
        assert {call.layout for call in session.calls} == {"observed" if told else "fork"}


def test_personas_in_the_system_slot_of_one_conversation_are_noted():
    """Two agents that could share everything but the first words."""
    notes = noted(Session(), "You are the reviewer.\n" + LONG, "You are the planner.\n" + LONG, agents=("a", "b"))
    assert any(note.startswith("lint, system[0]: persona.") for note in notes)
