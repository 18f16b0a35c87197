"""The private names that the adapter relies on are those of the installed release."""

from tests.private_names import missing, releases

OURS = ("_cacheprefix",)
PACKAGES = ("ag2", "openai", "anthropic")


def test_private_names_are_those_of_the_installed_release():
    """A name that is gone changed in the release that the message names."""
    gone = missing("ag2", PACKAGES, ours=OURS)
    assert not gone, f"{releases('ag2')}: {', '.join(gone)}"
