"""One process of a fleet: both roles ask once in each of the conversations that are named."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from sdk_driver import MODELS, creator, make_client

from cacheprefix import Caching, Session, SharedPrefix
from cacheprefix_sdk import role, wrap


def main(url: str, keys: int, talks: list[str]) -> None:
    """One request a conversation."""
    session = Session(SharedPrefix(system="Keep to the rules. " * 400), caching=Caching(routing_keys=keys))
    with make_client("openai-chat", SimpleNamespace(openai_base_url=url)) as client:
        for talk in talks:
            for one in ("critic", "writer"):
                with role(one, conversation=talk):
                    said = [{"role": "user", "content": f"Talk {talk}."}]
                    creator(wrap(client, session), "openai-chat")(model=MODELS["openai-chat"], messages=said)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
