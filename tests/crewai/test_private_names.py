"""The private names that the adapter relies on are those of the installed release."""

from tests.private_names import missing, releases

# The last two are names of Python's own, in ``sys`` and ``copyreg``.
OURS = ("_cacheprefix", "_cacheprefix_inner", "_getframe", "_reconstructor")
PACKAGES = ("crewai", "crewai_core", "anthropic", "openai", "litellm")


def test_private_names_are_those_of_the_installed_release():
    """A name that is gone changed in the release that the message names."""
    gone = missing("crewai", PACKAGES, ours=OURS)
    assert not gone, f"{releases('crewai')}: {', '.join(gone)}"
