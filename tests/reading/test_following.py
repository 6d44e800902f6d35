"""Names, branches, loops and functions of a file that is followed."""

import ast

import pytest

from smp_advisor.review.reading.data import is_plain, plain, reason
from smp_advisor.review.reading.following import follow
from smp_advisor.review.reading.module import parse
from smp_advisor.review.reading.run import TooLongError
from smp_advisor.review.reading.source import _with_old_syntax, read
from smp_advisor.review.reading.values import Constant
from tests.steps import Steps

UNKNOWN = "import mine\nunknown = mine.value()\n"


def value_of(text, *, computes=True, name="x"):
    run = follow(read(f"{UNKNOWN}{text}\n"), computes=computes)
    return run.trace.modules[0].scope.names[name]


@pytest.mark.parametrize("computes", [True, False])
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x = 1\nif unknown:\n    x = 1", 1),
        ("if unknown:\n    x = 2\nelse:\n    x = 2", 2),
        ("x = 1\nif unknown:\n    x = 2\n    raise ValueError", 1),
        ("x = {}\nif unknown:\n    x['a'] = 1\nelse:\n    x['a'] = 1", {"a": 1}),
        ("x = [1]\nif unknown:\n    x = x + [2]\n    raise ValueError\nx.append(3)", [1, 3]),
        ("y = x = {}\ny['a'] = 1", {"a": 1}),
        ("x = {'a': 1}\ny = x.copy()\ny['a'] = 2", {"a": 1}),
        ("x = {'a': 1, 'b': 2}\ndel x['a']\nx |= {'c': 3}", {"b": 2, "c": 3}),
        ("x = 1\ndef f():\n    x = 2\nf()", 1),
        ("x = 1\ndef f():\n    global x\n    x = 2\nf()", 2),
        ("x = len({1, 1, 2})", 2),
        ("a, *b = 1, 2, 3\nx = b", [2, 3]),
        ("match 3:\n    case 1:\n        x = 1\n    case 3:\n        x = 3", 3),
        ("try:\n    x = 1\nfinally:\n    y = 2", 1),
    ],
)
def test_what_is_certain_is_known(text, value, computes):
    assert plain(value_of(text, computes=computes)) == value


@pytest.mark.parametrize("computes", [True, False])
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1\nif unknown:\n    x = 2", "it depends on `unknown`"),
        ("x = {}\nif unknown:\n    x['a'] = 1", "it depends on `unknown`"),
        ("x = [1]\nif unknown:\n    x.append(2)", "its length depends on `unknown`"),
        ("x = 1\nfor n in unknown:\n    x = 2", "loop of line 4"),
        ("x = 0\nfor n in unknown:\n    x += 1", "loop of line 4"),
        ("x = []\nfor n in unknown:\n    x.append(1)", "it grows in a loop"),
        ("x = 1\nwhile unknown:\n    x = 2\n    break", "loop of line 4"),
        ("class A: pass\na = A()\na.b = 1\nfor n in unknown:\n    if n:\n        a.b = 2\n        break\nx = a.b", "n"),
        ("def f():\n    if unknown:\n        return 1\n    return 2\nx = f()", "returns in several places"),
        ("x = {'a': 1}\nx[unknown] = 2", "a key is computed"),
        ("x = [1, 2]\nx.sort(key=unknown)", "changed by sort()"),
        ("x = 1 + unknown", "the result of mine.value(...)"),
        ("def f(n):\n    return f(n) if unknown else 1\nx = f(1)", "it depends on `unknown`"),
        ("def f():\n    yield 1\nx = f()", "generator"),
        ("match unknown:\n    case 1:\n        x = 1\n    case _:\n        x = 2", "it depends on `unknown`"),
    ],
)
def test_what_is_not_certain_has_a_reason(text, why, computes):
    value = value_of(text, computes=computes)
    assert not is_plain(value)
    assert why in reason(value)


def test_branches_that_change_objects_and_import_modules(tmp_path):
    text = """
class A:
    def set(self):
        if unknown:
            self.b = 1
            return
        self.b = 2
a = A()
a.set()
x = a.b
"""
    value = value_of(text)
    assert {option.value for option in value.alternatives} == {1, 2}

    (tmp_path / "sizes.py").write_text("LARGE = 8\n", encoding="utf-8")
    script = tmp_path / "script.py"
    script.write_text("if unknown:\n    import sizes\nelse:\n    import sizes\nx = sizes.LARGE\n", encoding="utf-8")
    run = follow(read(script))
    assert plain(run.trace.modules[0].scope.names["x"]) == 8


def test_loops_of_imported_functions_are_followed_once(tmp_path):
    (tmp_path / "data.py").write_text(
        "def rows():\n    made = []\n    for i in range(2000):\n        for j in range(2000):\n"
        "            made.append(i * j)\n    return made\n",
        encoding="utf-8",
    )
    script = tmp_path / "cell.py"
    script.write_text(
        "from data import rows\ntable = rows()\ncount = 0\nfor i in range(3):\n    count += i\n", encoding="utf-8"
    )
    run = follow(read(script), computes=True)
    assert plain(run.trace.modules[0].scope.names["count"]) == 3


def test_loops_that_are_followed_once():
    with pytest.raises(TooLongError):
        follow(read("for i in range(2000):\n    for j in range(2000):\n        x = i * j\n"), computes=True)
    assert follow(read("for i in range(2000):\n    for j in range(2000):\n        x = i * j\n"))

    text = """
status, count = "", 0
while True:
    count = count + 1
    status = client.describe()
    if status == "Completed":
        break
after = 2
"""
    run = follow(read(text), computes=True)
    assert run.steps < 200
    names = run.trace.modules[0].scope.names
    assert plain(names["after"]) == 2
    assert not isinstance(names["count"], Constant)


@pytest.mark.parametrize(
    "line",
    [
        'text = f"{", ".join(names)}"',
        "text = f'{'\\n'.join(names)} {{x}} {sizes['k']:>10}'",
        "type Batch[T: (int, str)] = list[T]",
        "def first[T, *Ts](items: T) -> T: return items",
        "class Box[K: dict[str, int]](Base[K]): item: K",
        'text = f"{f"{1 + 1}"} it\'s"',
    ],
)
def test_python_3_12_is_read_at_its_places_by_older_versions(line):
    old = _with_old_syntax(line)
    assert len(old) == len(line)
    assert ast.parse(old, feature_version=(3, 11)).body
    assert parse(read(f"{line}\nafter = 1\n")).tree.body[-1].lineno == 2


@pytest.mark.parametrize(
    "text", ['f"{' * 40_000, "class A[" + "[" * 40_000, "'" * 40_001, "type " * 20_000, "\n" * 99_999]
)
def test_old_syntax_of_a_long_text_is_little_work(text):
    with Steps() as steps:
        _with_old_syntax(text)
    assert steps.count < 20 * len(text)
