"""`smp-advisor mcp`: the tools by the Model Context Protocol on standard input and output."""

from __future__ import annotations

import json
import threading
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

from smp_advisor._version import __version__
from smp_advisor.core.files import data_file
from smp_advisor.core.stopping import Stopped, stop_if_nobody_waits, until
from smp_advisor.core.words import plain
from smp_advisor.errors import AdvisorError
from smp_advisor.tools.interface import TOOLS, Caller, Tool, call

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mcp.server.lowlevel import Server


_AT_ONCE = 4
"""Calls that work at the same time: others wait, and end at once when they are canceled."""


def server(roots: tuple[Path, ...]) -> Server[Any]:
    """Return the server with its tools, for any transport."""
    import anyio
    from mcp import types
    from mcp.server.lowlevel import Server

    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
        def hints(tool: Tool) -> types.ToolAnnotations:
            return types.ToolAnnotations(
                read_only_hint=True, idempotent_hint=not tool.open_world, open_world_hint=tool.open_world
            )

        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    title=tool.title,
                    description=tool.description,
                    input_schema=tool.schema,
                    annotations=hints(tool),
                )
                for tool in TOOLS.values()
            ]
        )

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        stop = threading.Event()
        caller = Caller(roots=roots, progress=_reporter(context.session))
        work = partial(_worked, params.name, params.arguments or {}, caller, stop)
        try:
            text = await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)
        except AdvisorError as error:
            return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
        finally:
            stop.set()  # after a cancellation, the thread ends at its next estimate
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=json.loads(text))

    return Server(
        "smp-advisor",
        version=__version__,
        instructions=data_file("tools", "tools")["instructions"],
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _reporter(session: Any) -> Callable[..., None]:
    """Who hears of the progress of a call: its client, at each percent, in the order that the protocol requires."""
    from anyio.from_thread import run

    reported = 0

    def progress(done: float, total: float, text: str = "") -> None:
        nonlocal reported
        stop_if_nobody_waits()
        percent = int(100 * done / total) if total else 0
        if percent > reported:
            reported = percent
            run(session.report_progress, percent, 100.0, text or None)

    return progress


def _worked(name: str, arguments: dict[str, Any], caller: Caller, stop: threading.Event) -> str:
    try:
        with until(stop):
            data = call(name, arguments, caller)
    except AdvisorError:
        raise
    except Stopped:
        raise AdvisorError("Stopped.") from None
    except Exception as error:  # noqa: BLE001 - one failed call does not end the server
        traceback.print_exc()  # standard output belongs to the protocol
        raise AdvisorError(f"{name} failed: {type(error).__name__}: {error}. Report this call as a defect.") from None
    return plain(json.dumps(data, ensure_ascii=False))


def serve(roots: tuple[Path, ...]) -> None:
    """Serve until the input ends."""
    try:
        import anyio
        from mcp.server.stdio import stdio_server
    except ImportError:
        raise AdvisorError("The protocol requires mcp 2.3 or newer: pip install 'smp-advisor[tools]'.") from None
    for root in roots:
        if not root.is_dir():
            raise AdvisorError(f"{str(root)!r:.200} is no folder: --root takes the folder whose files may be read.")

    async def run() -> None:
        service = server(roots)
        async with stdio_server() as (incoming, outgoing):
            await service.run(incoming, outgoing, service.create_initialization_options())

    anyio.run(run)
