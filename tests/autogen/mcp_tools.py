"""A tool server for the workbench test, on standard input and output."""

from __future__ import annotations

from mcp.server.fastmcp import FastMCP

server = FastMCP("tools")


@server.tool()
def z_lookup(query: str) -> str:
    """Looks something up on the server."""
    return f"looked up {query} on the server"


if __name__ == "__main__":
    server.run()
