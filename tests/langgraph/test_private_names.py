"""The private names that the adapter relies on are those of the installed release."""

from tests.private_names import missing, releases

OVERRIDDEN = ("_acreate", "_agenerate", "_astream", "_create", "_generate", "_get_request_payload", "_stream")
"""Methods of chat models that a wrapped one has its own of."""
PARTS = ("_api_error", "_bad_request")
"""Ends of names that are put together."""
LATER = ("_uses_gateway",)
"""What not every release of the range has, and is asked for with care: langchain-openai has it from 1.6 on."""
PACKAGES = (
    "langchain",
    "langchain_core",
    "langchain_openai",
    "langchain_anthropic",
    "langgraph",
    "openai",
    "anthropic",
)


DISTRIBUTIONS = ("langgraph", "langchain", "langchain-core", "langchain-openai", "langchain-anthropic")


def test_private_names_are_those_of_the_installed_release():
    """A name that is gone changed in the release that the message names."""
    gone = missing("langgraph", PACKAGES, overridden=OVERRIDDEN, ours=(*PARTS, *LATER))
    assert not gone, f"{releases(*DISTRIBUTIONS)}: {', '.join(gone)}"
