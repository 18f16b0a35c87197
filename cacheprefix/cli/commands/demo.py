"""``cacheprefix demo`` where no adapter brings it: the demonstration is a team on LangGraph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cacheprefix.errors import SetupError

if TYPE_CHECKING:
    import typer


def register(app: typer.Typer) -> None:
    """Add the command; the LangGraph adapter replaces it by the real one."""

    @app.command(name="demo", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def demo() -> None:
        """Run a code-review team unmodified and on a shared prefix (needs cacheprefix-langgraph)."""
        raise SetupError(
            "the demonstration is a team on LangGraph and comes with its adapter: from a clone, "
            "pip install '.[cli,server]' './adapters/langgraph[openai,anthropic]'"
        )
