"""Thirty questions answered by a scripted client of `smp-advisor mcp`, and through the command line.

    python benchmarks/tool_tasks.py [--session | --once]

The server is a process of its own that speaks the real protocol on standard input and output. A question is answered if
its compact answers have what `tool_tasks.toml` expects, with at most two calls and 6 kB. Exit status 1 if one is not.
``--session`` prints the first messages between client and server instead, for docs/how_to/assistants.md. ``--once``
puts each question in one way: by the protocol or on the command line, in turn, and there those that take seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import shlex
import sys
import tempfile
import tomllib
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

ROOT = Path(__file__).parents[1]
MOST_CALLS, MOST_BYTES = 2, 6_000


def tasks() -> list[dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))["task"]


def value_of(text: str) -> float:
    """The value of an arithmetic expression."""
    return eval(text, {"__builtins__": {}}, {"GiB": 2**30})


def at(data: Any, path: str) -> Any:
    for name in path.split("."):
        data = data[int(name)] if isinstance(data, list) else data.get(name)
    return data


def missing(data: Any, expected: dict[str, Any]) -> str:
    """The fault of an answer; empty if it is right."""
    try:
        value = at(data, expected["path"])
    except (KeyError, IndexError, AttributeError):
        value = None
    size = len(value) if isinstance(value, list | dict) else value
    right = {
        "is": lambda wanted: value == wanted,
        "least": lambda wanted: size is not None and size >= value_of(wanted),
        "most": lambda wanted: size is not None and size <= value_of(wanted),
        "has": lambda wanted: wanted in str(value),
        "some": lambda wanted: any(wanted in json.dumps(entry) for entry in value or ()),
    }
    wrong = [name for name, wanted in expected.items() if name != "path" and not right[name](wanted)]
    return f"{expected['path']} is {str(value)[:120]}, not {expected}" if wrong else ""


def judged(task: dict[str, Any], answers: list[tuple[str, bool]], key: str) -> list[str]:
    """The faults of the answers: texts, and whether each is an error."""
    size = sum(len(text.encode()) for text, _ in answers)
    faults = [f"{len(answers)} calls"] * (len(answers) > MOST_CALLS) + [f"{size:,} bytes"] * (size > MOST_BYTES)
    text, failed = answers[-1]
    if "error" in task:
        return faults + [f"no error with {task['error']!r}: {text[:200]}"] * (not failed or task["error"] not in text)
    if failed:
        return [*faults, text[:300]]
    if key == "expect" and "text" in task:
        return faults + [f"the text has no {task['text']!r}"] * (task["text"] not in text)
    data = json.loads(text)
    return faults + [fault for expected in task.get(key, task.get("expect", [])) if (fault := missing(data, expected))]


async def by_protocol(client: Client, task: dict[str, Any]) -> list[tuple[str, bool]]:
    results = [
        await client.call_tool(call["tool"], {name: value for name, value in call.items() if name != "tool"})
        for call in task["calls"]
    ]
    return [(result.content[0].text, result.is_error) for result in results]


def by_command(line: str, form: list[str]) -> tuple[str, bool]:
    from smp_advisor.command.__main__ import main

    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        status = main([*shlex.split(line), *form])
    return (errors.getvalue() if status == 2 else output.getvalue()), status == 2


def connected(folder: Path) -> Client:
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = ["-P", "-m", "smp_advisor.command", "mcp"]
    parameters = StdioServerParameters(command=sys.executable, args=command, env={"PYTHONPATH": paths}, cwd=folder)
    # The default is the stream at the first import, which under pytest is no file.
    return Client(stdio_client(parameters, errlog=sys.__stderr__ or sys.stderr))


async def run(folder: Path, *, once: bool) -> int:
    failures, sizes = 0, []
    async with connected(folder) as client:
        listed = (await client.list_tools()).model_dump_json(exclude_none=True)
        print(f"list of tools: {len(listed.encode()):,} bytes")
        for number, task in enumerate(tasks(), 1):
            for name, text in task.get("files", {}).items():
                (folder / name).write_text(text, "utf-8")
            skipped = once and (task.get("takes_seconds") or number % 2 == 0)
            answers = [] if skipped else await by_protocol(client, task)
            faults = [] if skipped else judged(task, answers, "expect_tool")
            if skipped or not once:
                with chdir(folder):
                    lines = [by_command(line, [] if "text" in task else ["--json"]) for line in task["command"]]
                faults += [f"command line: {fault}" for fault in judged(task, lines, "expect")]
            size = sum(len(text.encode()) for text, _ in answers)
            sizes.append(size)
            verdict = "WRONG" if faults else "right"
            print(f"{number:>3}  {verdict}  {len(answers)} calls  {size:>5,} bytes  {task['question']}")
            for fault in faults:
                print(f"     {fault}")
            failures += bool(faults)
    print(f"{len(sizes) - failures} of {len(sizes)} right; answers of {min(sizes):,} to {max(sizes):,} bytes")
    return int(bool(failures))


async def session(folder: Path) -> None:
    """One question, its follow-up and an error, as the client sends and gets them."""
    async with connected(folder) as client:
        print(f"client: tools/list\nserver: {', '.join(tool.name for tool in (await client.list_tools()).tools)}\n")
        request = {"model": "llama-3-70b", "instance": "p4d", "count": 4, "sequence_length": 8192, "library": "fsdp"}
        smaller = {"model": "llama-3-70b", "instance": "p4d", "count": 4, "seqlen": 8192, "lora": 16}
        for arguments in (request, smaller, {**smaller, "seqlen": None, "sequence_length": 8192}):
            shown = {name: value for name, value in arguments.items() if value is not None}
            result = await client.call_tool("advise", arguments)
            text, kind = result.content[0].text, "tool error" if result.is_error else "result"
            print(f"client: tools/call advise {json.dumps(shown)}\nserver: {kind}, {len(text.encode()):,} bytes")
            print("\n".join(f"    {line}" for line in outlined(text)))


def outlined(text: str) -> list[str]:
    """The first fields of an answer, or its sentence."""
    if not text.startswith("{"):
        return [text]
    fields = list(json.loads(text).items())
    lines = [f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields]
    kept = ("answer", "fits", "fit_prob", "needed", "usable", "tokens_per_second", "usd_per_million", "changes", "plan")
    lines = [line for line in lines if line.startswith(tuple(f'"{name}' for name in kept))]
    return [line if len(line) < 110 else f"{line[:105]} …" for line in lines]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--session", action="store_true", help="print a session instead")
    parser.add_argument("--once", action="store_true", help="questions that take seconds: on the command line only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        return asyncio.run(session(place) if options.session else run(place, once=options.once)) or 0


if __name__ == "__main__":
    sys.exit(main())
