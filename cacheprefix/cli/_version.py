"""``cacheprefix version``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def register(app: typer.Typer) -> None:
    """Adds the command to a typer application."""

    @app.command("version")
    def version() -> None:
        """Print the version."""
        from cacheprefix._version import __version__

        print(f"cacheprefix {__version__}")
