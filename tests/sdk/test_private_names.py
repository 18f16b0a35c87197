"""The private names that the adapter relies on are those of the installed release."""

from tests.private_names import missing, releases

PACKAGES = ("openai", "anthropic")


def test_private_names_are_those_of_the_installed_release():
    """A name that is gone changed in the release that the message names."""
    gone = missing("sdk", PACKAGES, ours=("_cacheprefix_events", "_cacheprefix_change", "_cacheprefix_post", "_own"))
    assert not gone, f"{releases('openai', 'anthropic')}: {', '.join(gone)}"
