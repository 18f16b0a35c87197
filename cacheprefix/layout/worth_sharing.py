"""Whether what the requests of a conversation share is long enough to be cached."""

from __future__ import annotations

from cacheprefix.bounded import Bounded
from cacheprefix.errors import named
from cacheprefix.layout.economics import NAMED
from cacheprefix.layout.team import Decided, Team
from cacheprefix.locks import Lock
from cacheprefix.profiles import Profile
from cacheprefix.prompt import Api, Prompt, digest_of
from cacheprefix.prompt.reasons import Reason, reason
from cacheprefix.services import TELLING, Services, in_our_tokens, scale_of
from cacheprefix.unnamed import is_named

_WORTH_NAMING = 4 * NAMED
"""Tokens that two requests have in common at least if they are to be forks."""
_KEEP = 10_000
"""What is remembered at most of conversations that nobody named."""


class WorthSharing:
    """Whose requests of which conversations are forks: once they are, their layout must not change.

    A conversation records it with its other decisions, so that another process, and one that goes back to an earlier
    checkpoint, goes by what was so there. All that nobody named have one answer, which is kept here. Thread-safe.
    """

    def __init__(self) -> None:
        self._unnamed: Bounded[str, None] = Bounded(_KEEP)
        self._lock = Lock()

    def moved(self, conversation: Decided, role: str, model: str) -> bool:
        """Whether a role has left its own layout in a conversation, where its text was longer than what it shared."""
        return self._decided(conversation, _moved(conversation, role, model))

    def move(self, conversation: Decided, role: str, model: str) -> None:
        """Remember that it has."""
        self._decide(conversation, _moved(conversation, role, model))

    def refusal(
        self,
        team: Team,
        services: Services,
        conversation: Decided,
        role: str,
        model: str,
        shared: int,
        *,
        whole: int = 0,
        base: bool = False,
    ) -> Reason | None:
        """Why a role's requests of a conversation that share so many tokens are no forks; None where they may be.

        What is left alone is noted once. ``whole`` are the tokens of the request with the role's own, ``base`` says
        that a text of the role's stands in place of the shared one.
        """
        profile, note = services.profile(model), services.notices.note
        # A provider without a cache charges the same for any layout.
        if profile.control == "none":
            note(f"{named(model)}: {profile.name} has no prompt cache, requests are left as they are")
            return reason("no_cache", profile.name)
        # Money: by role, since one that is told little reads nothing of what those share who are told all.
        entry, minimum = digest_of(model, team.key, role), profile.min_tokens
        if self._decided(conversation, entry):
            return None
        scale = scale_in(conversation, services, model)
        shared = round(shared * scale)
        # Below its minimum a provider caches nothing, so that sharing would gain nothing.
        if shared < minimum:
            if team.alone and round(whole * scale) >= minimum:
                # The request is long enough: what it lacks is somebody to share it with.
                return reason("alone")
            more = " (role texts given as SharedPrefix(roles=...) with Caching(tail='cards') are shared)"
            note(
                f"{named(model)}: requests share fewer tokens than the minimum of {minimum:,} that "
                f"{profile.name} caches, and are left as they are until they share more{more * (team.tail == 'tail')}"
            )
            return reason("prefix_below_minimum", profile.name, shared=shared, minimum=minimum)
        # Money: where a provider caches the shortest prompts too, a fork's name around its text must be little of it.
        if shared < _WORTH_NAMING:
            return reason("little_to_share", cost=NAMED, saved=shared)
        # Where the shared text alone is long enough, each request shares enough by itself.
        if base or services.count(team.prefix.text, model) * scale < minimum:
            self._decide(conversation, entry)
        return None

    def too_short(
        self, services: Services, conversation: Decided, model: str, shared: int, whole: int
    ) -> Reason | None:
        """That a request of ``whole`` tokens is too short for the provider to cache any of it; None where it is not."""
        profile = services.profile(model)
        if round(whole * scale_in(conversation, services, model)) >= profile.min_tokens:
            return None
        return reason("prefix_below_minimum", profile.name, shared=shared, minimum=profile.min_tokens)

    def _decided(self, conversation: Decided, entry: str) -> bool:
        if is_named(conversation.id):
            return conversation.decided("shares", entry) is not None
        return entry in self._unnamed

    def _decide(self, conversation: Decided, entry: str) -> None:
        if is_named(conversation.id):
            if conversation.decided("shares", entry) is None:
                conversation.decide("shares", entry)
            return
        with self._lock:
            self._unnamed[entry] = None


def scale_in(conversation: Decided, services: Services, model: str) -> float:
    """What the provider counts for a token of ours, as far as layouts of a conversation go by it.

    The provider's minimum is in its tokens. What the process knows at first holds, and is recorded, so that another
    process decides by the same, until an answer to the conversation itself has told (``learn_scale``).
    """
    if not is_named(conversation.id):
        return services.scale(model)
    told, first = digest_of("counted", model), digest_of("uncounted", model)
    known = conversation.decided("shares", told) or conversation.decided("shares", first)
    if known is not None:
        return float(known)
    found = services.scale(model)
    conversation.decide("shares", first, str(found))
    return found


def learn_scale(conversation: Decided, prompt: Prompt, counted: int | None) -> None:
    """Record what the provider counts for a token of ours by its count of a conversation's own request.

    By no other conversation's: a process that resumes it has not seen those. Images are counted otherwise.
    """
    entry = digest_of("counted", prompt.model)
    if not counted or not is_named(conversation.id) or conversation.decided("shares", entry) is not None:
        return
    if prompt.tokens < TELLING or any(one.kind == "image" for one in prompt.sections):
        return
    found = scale_of(counted, prompt.tokens)
    if found != 1.0:
        conversation.decide("shares", entry, str(found))


def rules_in(conversation: Decided, services: Services, model: str, api: Api | None = None) -> Profile:
    """The provider's rules with its sizes in our tokens, as far as layouts of a conversation go by them."""
    return in_our_tokens(services.profile(model, api), scale_in(conversation, services, model))


def _moved(conversation: Decided, role: str, model: str) -> str:
    name = "" if is_named(conversation.id) else conversation.id
    return digest_of("moved", name, role, model)
