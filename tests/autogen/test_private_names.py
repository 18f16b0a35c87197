"""The private names that the adapter relies on are those of the installed release."""

from tests.private_names import missing, releases

OURS = ("_cacheprefix",)
PACKAGES = ("autogen_agentchat", "autogen_core", "autogen_ext", "openai", "anthropic")


def test_private_names_are_those_of_the_installed_release():
    """A name that is gone changed in the release that the message names."""
    gone = missing("autogen", PACKAGES, ours=OURS)
    assert not gone, f"{releases('autogen-agentchat', 'autogen-core', 'autogen-ext')}: {', '.join(gone)}"
