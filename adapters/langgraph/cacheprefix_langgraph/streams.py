"""Streams, passed on unchanged while their first chunk and their usage are noted."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import aclosing, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.messages.ai import UsageMetadata, add_usage

from cacheprefix_langgraph.pending import SENDING, Sending, fail
from cacheprefix_langgraph.request_bodies import api_of
from cacheprefix_langgraph.sending import Prepared, close, without_list
from cacheprefix_langgraph.whole_answers import UnfinishedError
from cacheprefix_langgraph.wrapping import wrapping

if TYPE_CHECKING:
    from langchain_core.outputs import ChatGenerationChunk

    from cacheprefix.adapter import Api

Stream = TypeVar("Stream")

_REFUSED = (400, 404, 405, 415, 422, 501)
"""Statuses that say something of the request itself."""
_OWN_ERRORS = ("openai", "anthropic", "google", "langchain_openai", "langchain_anthropic", "langchain_google_genai")


def within(
    sending: Sending | None, chunks: Iterator[Any], anew: Callable[[], Iterator[Any] | None] | None = None
) -> Generator[Any, None, None]:
    """Pass a stream on, with ``sending`` in force while the model's own code runs and not while the reader's does.

    What ends it early ends the model's own stream too, before the reader goes on: its callbacks hear of it there.
    Where it fails before anything came of it, ``anew`` may give another one in its place.
    """
    step: Callable[[], Any] = chunks.__next__
    while True:
        try:
            with SENDING.within(sending), _reading(sending):
                chunk = step()
        except StopIteration:
            return
        except Exception:
            other = None if anew is None else anew()
            if other is None:
                raise
            chunks, step, anew = other, other.__next__, None
            continue
        anew = None
        try:
            yield chunk
            step = chunks.__next__
        except GeneratorExit:
            close = getattr(chunks, "close", None)
            if close is not None:
                with SENDING.within(sending):
                    close()
            raise
        except BaseException as error:
            if not hasattr(chunks, "throw"):
                raise
            step = partial(chunks.throw, error)


async def awithin(
    sending: Sending | None, chunks: AsyncIterator[Any], anew: Callable[[], AsyncIterator[Any] | None] | None = None
) -> AsyncGenerator[Any, None]:
    """As ``within``, for an async stream."""
    step: Callable[[], Awaitable[Any]] = chunks.__anext__
    while True:
        try:
            with SENDING.within(sending), _reading(sending):
                chunk = await step()
        except StopAsyncIteration:
            return
        except Exception:
            other = None if anew is None else anew()
            if other is None:
                raise
            chunks, step, anew = other, other.__anext__, None
            continue
        anew = None
        try:
            yield chunk
            step = chunks.__anext__
        except GeneratorExit:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                with SENDING.within(sending):
                    await close()
            raise
        except BaseException as error:
            if not hasattr(chunks, "athrow"):
                raise
            step = partial(chunks.athrow, error)


@contextmanager
def _reading(sending: Sending | None) -> Iterator[None]:
    """Around a pull: the first begins the request, which is known when it ends."""
    if sending is not None and sending.pending is not None:
        sending.pending.leave.reads()
    try:
        yield
    finally:
        if sending is not None and sending.pending is not None:
            sending.pending.leave.rests()


async def behind(
    first: Callable[[], Awaitable[None]], begin: Callable[[], AsyncGenerator[Any, None]]
) -> AsyncGenerator[Any, None]:
    """A stream that is begun only once ``first`` was awaited."""
    await first()
    async with aclosing(begin()) as chunks:
        async for chunk in chunks:
            yield chunk


def watch(
    model: Any, sending: Sending, ask: Callable[[Prepared], Iterator[ChatGenerationChunk]], ready: Prepared
) -> Iterator[ChatGenerationChunk]:
    """Pass on the stream that is asked for with ``ready``; note its first chunk and add up its usage."""
    anew = partial(_anew, model, sending, ask)
    with _watching(sending) as note, closing(within(sending, ask(ready), anew)) as passed:
        for chunk in passed:
            note(chunk)
            yield chunk


async def awatch(
    model: Any, sending: Sending, ask: Callable[[Prepared], AsyncIterator[ChatGenerationChunk]], ready: Prepared
) -> AsyncGenerator[ChatGenerationChunk, None]:
    """As ``watch``, for an async stream."""
    anew = partial(_anew, model, sending, ask)
    with _watching(sending) as note:
        async with aclosing(awithin(sending, ask(ready), anew)) as passed:
            async for chunk in passed:
                note(chunk)
                yield chunk


def _anew(model: Any, sending: Sending, ask: Callable[[Prepared], Stream]) -> Stream | None:
    """A stream of the application's own request, where the endpoint refused the fork's list of allowed tools."""
    own = without_list(model, sending)
    return None if own is None else ask(own)


@contextmanager
def _watching(sending: Sending) -> Iterator[Callable[[ChatGenerationChunk], None]]:
    """Closes the request with the usage noted so far, also where the application stops reading; an error fails it."""
    usage: UsageMetadata | None = None
    begun = False

    def note(chunk: ChatGenerationChunk) -> None:
        nonlocal usage, begun
        begun = True
        usage = sending.session.attempt("usage", lambda: _sum(usage, chunk), usage)
        sending.session.attempt("first token", lambda: _first(sending, chunk), None)

    try:
        yield note
    except GeneratorExit:
        close(sending, usage, cut=True)
        raise
    except CancelledError:
        # The provider was asked, and charges for what it was sent; before it began to answer nobody knows.
        if begun:
            close(sending, usage, cut=True)
        else:
            fail(sending)
        raise
    except BaseException:
        fail(sending)
        raise
    close(sending, usage)


def _first(sending: Sending, chunk: ChatGenerationChunk) -> None:
    """Let waiting siblings go on with the first chunk that holds something of the answer."""
    pending = sending.pending
    if pending is not None and pending.first_token_at is None and _says(chunk):
        pending.first_token()


def whole(model: Any, sending: Sending) -> tuple[Api, dict[str, Any]]:
    """The finished body of a whole answer that comes as a stream, and its wire form."""
    payload, sending.payload = sending.payload or {}, None
    return api_of(payload, model), payload


def began(sending: Sending) -> Callable[[], None]:
    """What is called when the answer begins: waiting siblings go on."""

    def begun() -> None:
        if sending.pending is not None:
            sending.pending.first_token()

    return begun


def again(model: Any, sending: Sending, error: Exception) -> bool:
    """Whether an answer that was streamed only for waiting siblings is to be asked for again, as a whole.

    What a stream breaks with is not what a whole answer breaks with, and an application's retries go by the type.
    The SDKs' own errors are the same either way, but for a stream that broke off (``BrokenError``) and for a refusal:
    that may be one of the stream, by a gateway that knows no ``stream_options``.
    """
    refused = getattr(error, "status_code", None) in _REFUSED
    if type(error).__module__.partition(".")[0] in _OWN_ERRORS and not refused:
        return False
    if refused or isinstance(error, UnfinishedError):
        # Another stream of this model would fare no better.
        wrapping(model).streams = False
    # Whether it was only the stream that was refused is known once the whole answer comes.
    sending.refused = refused
    fail(sending)
    sending.pending = sending.payload = None
    return True


def _says(chunk: ChatGenerationChunk) -> bool:
    """Whether a chunk holds something of the answer: the first of some APIs says only that the request was taken."""
    # Of what is no chunk of LangChain's (a test's fake) nothing is known, but that it came.
    message = getattr(chunk, "message", None)
    if message is None:
        return True
    return bool(message.content or message.additional_kwargs or getattr(message, "tool_call_chunks", None))


def _sum(usage: UsageMetadata | None, chunk: ChatGenerationChunk) -> UsageMetadata | None:
    """The usage of a stream so far, with that of one more chunk."""
    found = getattr(getattr(chunk, "message", None), "usage_metadata", None)
    if not found:
        return usage
    return found if usage is None else add_usage(usage, found)
