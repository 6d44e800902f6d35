"""Names of a block: those it needs, binds, updates and changes, in the scope of the block."""

from __future__ import annotations

import pytest

from smp_advisor.reading.block_names import names_of_block


@pytest.mark.parametrize(
    ("code", "read", "bound"),
    [
        ("loss = criterion(model(input), target)", "criterion model input target", "loss"),
        ("x = 1\ny = x", "", "x y"),
        ("if a:\n    x = 1\ny = x", "a x", "x y"),
        ("if a:\n    x = 1\nelse:\n    x = 2\ny = x", "a", "x y"),
        ("for layer in layers:\n    total = total + layer", "layers total", "layer total"),
        ("for i in r:\n    pass\nz = i", "r i", "i z"),
        ("total += loss", "loss total", "total"),
        ("xs = [f(x) for x in data for y in x if y > k]", "data k f", "xs"),
        ("g = lambda x, d=d0: x + d + bias", "d0 bias", "g"),
        ("def f(a):\n    b = a\n    return b + c", "c", "f"),
        ("with open(p) as file:\n    s = file.read()", "open p", "file s"),
        ("if (n := f()):\n    print(n)", "f print", "n"),
        ("try:\n    x = f()\nexcept E as e:\n    x = 0\ny = x", "f E", "x e y"),
        ("import a.b as c\nfrom d import e\nc, e", "", "c e"),
        ("(a, *b), c.d, e[f] = g", "g c e f", "a b"),
        ("del x\ny = x", "x", "x y"),
        ("while n:\n    n = n - 1", "n", "n"),
        ("match v:\n    case [x, *rest]:\n        y = x\n", "v", "rest x y"),
    ],
)
def test_names_in_the_order_of_execution(code, read, bound):
    names = names_of_block(code)
    assert " ".join(names.read) == read
    assert sorted(names.bound) == sorted(bound.split())


def test_what_a_block_receives_changes_and_leaves():
    names = names_of_block("output, hidden = model(x, hidden)\nloss = f(output)\ncount += 1")
    assert names.updated == {"hidden", "count"}

    assert names_of_block("y = x + 1", defined=["x"]).read == ()

    names = names_of_block("state.x = 1\nd['k'] = 2\nlosses.append(f(z))\nprint(loss.item())\nself.meter.update(q)")
    assert names.stored == ("state", "d", "losses", "self")

    assert names_of_block("if bad:\n    continue\nfor x in y:\n    break").leaving == ("continue",)
    code = "def f():\n    for b in d:\n        if b:\n            return b"
    assert names_of_block(code).leaving == ()
