"""A shop, an MCP server with two tools: `python -m tests.adapters.mcp_shop NOTES`."""

import sys
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer


def serve(notes: str) -> None:
    server = MCPServer("shop")

    @server.tool()
    def stock(item: str) -> int:
        """Return how many there are."""
        note(f"stock {item}")
        return len(item)

    @server.tool()
    def order(item: str, ctx: Context) -> str:
        """Order one."""
        meta = ctx.request_context.meta or {}
        note(f"order {item} {meta.get('snapline/effect-key', '')}".rstrip())
        return f"ordered {item}"

    def note(text: str) -> None:
        with Path(notes).open("a") as file:
            file.write(f"{text}\n")

    server.run()


if __name__ == "__main__":
    serve(sys.argv[1])
