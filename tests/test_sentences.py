"""Sentences in data files: each call has a value for every slot, and none for another."""

import ast
import tomllib
from pathlib import Path
from string import Formatter

PACKAGE = Path(__file__).parents[1] / "smp_advisor"
TABLES = {
    path.parents[1].name: tomllib.loads(path.read_text("utf-8")) for path in PACKAGE.glob("*/data/sentences.toml")
}


def slots(text):
    return {name.partition(".")[0].partition("[")[0] for _, name, _, _ in Formatter().parse(text) if name}


def test_every_sentence_is_called_with_its_slots():
    sources = {path: path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    faults = []
    for path, source in sources.items():
        for call in ast.walk(ast.parse(source)) if "sentence(" in source else ():
            if not isinstance(call, ast.Call) or getattr(call.func, "id", "") != "sentence" or len(call.args) != 2:
                continue
            room, key = (getattr(argument, "value", None) for argument in call.args)
            names = {keyword.arg for keyword in call.keywords}
            if room is None or key is None:
                continue
            needed = slots(TABLES[room][key])
            if (None not in names and names != needed) or not names - {None} <= needed:
                faults.append(f"{path.name}:{call.lineno} {key}: {names ^ needed}")
    assert faults == []
