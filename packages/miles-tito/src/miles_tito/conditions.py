"""Which names a template only asks about: what may be set to True or False without the template failing on it."""

from collections import defaultdict
from collections.abc import Iterator
from enum import Enum

from jinja2 import nodes


class _Use(Enum):
    """What is done with a value: asked whether it holds, made into text or reached into, or handed on."""

    ASKED = 1
    TEXT = 2
    PASSED = 3


_TRUTHS = {"defined", "undefined", "none", "true", "false", "boolean"}
"""Tests that a truth value passes or fails as a template's author means it; the others are about text and lists."""


def names_asked(template: nodes.Template) -> frozenset[str]:
    """Names used as conditions and as nothing else.

    A condition is the test of an `if`, an operand of `and`, `or`, `not` or `is defined` and its kin, a comparison with
    a truth value, a default that is one. Joined, filtered, printed, iterated over, compared with text: those are none.
    A name whose value another name takes on is used as that one is.
    """
    uses: dict[str, set[_Use]] = defaultdict(set)
    becomes: dict[str, set[str]] = defaultdict(set)
    for name, use, target in _uses(template, _Use.PASSED, ""):
        uses[name].add(use)
        if target:
            becomes[name].add(target)
    found = {name: set().union(*(uses[other] for other in _closure(name, becomes))) for name in list(uses)}
    return frozenset(name for name, use in found.items() if _Use.ASKED in use and _Use.TEXT not in use)


def _closure(name: str, becomes: dict[str, set[str]]) -> set[str]:
    reached, left = set[str](), [name]
    while left:
        here = left.pop()
        if here not in reached:
            reached.add(here)
            left += becomes.get(here, ())
    return reached


def _uses(node: nodes.Node, use: _Use, target: str) -> Iterator[tuple[str, _Use, str]]:
    """`(name, use, the name that takes on its value or "")` for every name read below the node."""
    if isinstance(node, nodes.Name):
        yield node.name, use, target if use is _Use.PASSED else ""
        return
    for child, below in _children(node, use):
        if isinstance(node, nodes.Assign):
            yield from _uses(child, below, node.target.name if isinstance(node.target, nodes.Name) else "")
        else:
            yield from _uses(child, below, target if isinstance(child, nodes.Expr) else "")
    if isinstance(node, nodes.And | nodes.Or) and use is _Use.PASSED:
        for side in (node.left, node.right):
            yield from _uses(side, _Use.ASKED, "")


def _children(node: nodes.Node, use: _Use) -> Iterator[tuple[nodes.Node, _Use]]:
    """What lies directly below the node, each with what is done with it there."""
    match node:
        case nodes.Assign():
            yield node.node, _Use.PASSED
        case nodes.CondExpr():
            yield node.test, _Use.ASKED
            yield from ((child, use) for child in (node.expr1, node.expr2) if child is not None)
        case nodes.If():
            yield node.test, _Use.ASKED
            yield from ((child, _Use.PASSED) for child in (*node.body, *node.elif_, *node.else_))
        case nodes.Not():
            yield node.node, _Use.ASKED
        case nodes.And() | nodes.Or():
            yield from ((child, use) for child in (node.left, node.right))
        case nodes.Test():
            yield node.node, _Use.ASKED if node.name in _TRUTHS else _Use.TEXT
        case nodes.Compare():
            sides = [node.expr, *(operand.expr for operand in node.ops)]
            truth = any(isinstance(side, nodes.Const) and isinstance(side.value, bool | None) for side in sides)
            yield from ((side, _Use.ASKED if truth else _Use.TEXT) for side in sides)
        case nodes.Filter() if node.node is not None and node.name in ("default", "d"):
            yield from _defaulted(node.node, node.args, use)
        case nodes.Call():
            yield node.node, _Use.TEXT
            yield from ((child, _Use.PASSED) for child in (*node.args, *(pair.value for pair in node.kwargs)))
        case nodes.List() | nodes.Tuple():
            yield from ((child, use) for child in node.items)
        case nodes.Output():
            yield from ((child, _Use.TEXT) for child in node.nodes)
        case nodes.For():
            yield node.iter, _Use.TEXT
            yield from ((node.test, _Use.ASKED),) if node.test is not None else ()
            yield from ((child, _Use.PASSED) for child in (*node.body, *node.else_))
        case nodes.Expr():
            yield from ((child, _Use.TEXT) for child in node.iter_child_nodes())
        case _:
            yield from ((child, _Use.PASSED) for child in node.iter_child_nodes())


def _defaulted(value: nodes.Expr, defaults: list[nodes.Expr], use: _Use) -> Iterator[tuple[nodes.Node, _Use]]:
    yield value, use
    for default in defaults:
        if isinstance(default, nodes.Const) and default.value is not None:
            yield value, _Use.ASKED if isinstance(default.value, bool) else _Use.TEXT
        else:
            yield default, use
