"""``cacheprefix version``."""

# No deferred annotations here: typer reads them when the command is added.
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    import typer


def register(app: "typer.Typer") -> None:
    """Adds the command to a typer application."""
    import typer

    @app.command("version")
    def version(
        as_json: Annotated[bool, typer.Option("--json", help="Print data instead of text.")] = False,
    ) -> None:
        """Print the version."""
        from cacheprefix._version import __version__

        if as_json:
            from cacheprefix.cli.files import print_json

            print_json({"cacheprefix": __version__})
        else:
            print(f"cacheprefix {__version__}")
