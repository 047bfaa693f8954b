"""Types of bare values: what a schema allows, however it says so."""

import time

import pytest

from miles_tito.parsers.calls import Malformed
from miles_tito.parsers.literals import python_value
from miles_tito.parsers.schemas import Schemas, typed


def schemas(parameter, **root):
    parameters = {"type": "object", "properties": {"x": parameter}, **root}
    return Schemas([{"type": "function", "function": {"name": "f", "parameters": parameters}}])


@pytest.mark.parametrize(
    ("parameter", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"type": "int"}, {"integer"}),
        ({"type": "any"}, set()),
        ({}, set()),
        ({"description": "anything"}, set()),
        ({"enum": ["a", 1, None]}, {"string", "integer", "null"}),
        ({"const": True}, {"boolean"}),
        ({"anyOf": [{"type": "integer"}, {"oneOf": [{"type": "null"}]}]}, {"integer", "null"}),
        ({"allOf": [{"$ref": "#/$defs/Number"}]}, {"number"}),
        ({"$ref": "#/$defs/Loop"}, set()),
        ({"$ref": "#/$defs/Nothing"}, set()),
        ({"$ref": "elsewhere.json"}, set()),
        (True, set()),
    ],
)
def test_types_are_found(parameter, types):
    defined = {"Number": {"type": "number"}, "Loop": {"$ref": "#/$defs/Loop"}}
    assert schemas(parameter, **{"$defs": defined}).types("f", "x") == types


def test_what_no_schema_describes_has_no_types():
    assert schemas({"type": "string"}).types("g", "x") == set()
    assert schemas({"type": "string"}).types("f", "y") == set()
    assert Schemas([{"type": "function"}, {"function": {"name": "f", "parameters": None}}]).types("f", "x") == set()
    assert Schemas([{"name": "f", "parameters": {"properties": {"x": {"type": "string"}}}}]).types("f", "x") == {
        "string"
    }


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("42", {"string"}, "42"),
        ("null", {"string"}, "null"),
        ("null", {"string", "null"}, None),
        ("42", {"string", "integer"}, "42"),
        ("42", {"integer"}, 42),
        ("+42", {"integer"}, 42),
        ("9" * 400, {"integer"}, "9" * 400),
        ("42.5", {"integer"}, "42.5"),
        ("42.0", {"integer"}, 42.0),
        ("42", {"number"}, 42),
        ("4.5e1", {"number"}, 45.0),
        ("true", {"integer"}, "true"),
        ("True", {"boolean", "integer"}, True),
        ("None", {"integer", "null"}, None),
        ('{"a": 1}', {"object"}, {"a": 1}),
        ("{'a': '\\d'}", {"object"}, {"a": "\\d"}),
        ('{"a": 1}', {"array"}, '{"a": 1}'),
        ("[1]", {"object", "array"}, [1]),
        ("open('x')", {"object"}, "open('x')"),
        ("", {"integer"}, ""),
        ("", set(), ""),
    ],
)
def test_a_text_has_the_first_type_that_fits(text, types, value):
    found = typed(text, types)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"'\d+'", "\\d+"),
        (r"'\\d'", "\\d"),
        (r"r'\d'", "\\d"),
        (r"'\n\x41\u00e9\''", "\nAé'"),
        (r'"it\'s \%"', "it's \\%"),
        ("'a' '\\.b'", "a\\.b"),
        ("{'\\.': ['\\w']}", {"\\.": ["\\w"]}),
        ("'''a'b'''", "a'b"),
    ],
)
def test_an_unknown_escape_is_itself_without_a_warning(text, value):
    assert python_value(text) == value


@pytest.mark.parametrize("text", ["'\\", "'\\x1'", "'\\N{no}'", "'a", "-" * 5000 + "1", "-'a'", "-True", "..."])
def test_what_is_no_literal_is_refused(text):
    with pytest.raises(Malformed, match="expected"):
        python_value(text)


@pytest.mark.parametrize(
    "text", ["a" * 50_000, '\\"' * 25_000, "'" + "\\'" * 25_000, '"' + "'a" * 25_000, "[" + "'a' " * 10_000]
)
def test_a_long_text_that_is_no_literal_is_refused_at_once(text):
    start = time.process_time()
    with pytest.raises(Malformed):
        python_value(text)
    assert time.process_time() - start < 2
