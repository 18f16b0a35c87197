"""The private names that the adapter relies on are those of the installed release."""

from tests.private_names import missing, releases

OURS = ("_input_token_count",)
"""The end of a name that is put together."""
PACKAGES = ("agent_framework", "agent_framework_openai", "agent_framework_anthropic", "agent_framework_orchestrations")


def test_private_names_are_those_of_the_installed_release():
    """A name that is gone changed in the release that the message names."""
    gone = missing("maf", PACKAGES, ours=OURS)
    assert not gone, (
        f"{releases('agent-framework-core', 'agent-framework-openai', 'agent-framework-anthropic')}: {', '.join(gone)}"
    )
