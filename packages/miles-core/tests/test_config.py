"""Layers, origins, overrides, faults as sentences, and the way back to TOML."""

import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError, model_validator

from miles_core.config import Config, build, dump_toml, parse_override, read_toml
from miles_core.errors import ConfigError


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Jsonl(Config):
    type: Literal["jsonl"] = "jsonl"
    path: Path
    shuffle: bool = True


class Parquet(Config):
    type: Literal["parquet"] = "parquet"
    folder: Path
    columns: tuple[str, ...] = ()


class Optimizer(Config):
    lr: float = Field(1e-3, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    steps: int = 10


class Stage(Config):
    name: str
    weight: float = 1.0


class Recipe(Config):
    data: Annotated[Jsonl | Parquet, Field(discriminator="type")]
    optimizer: Optimizer = Optimizer()
    colour: Colour = Colour.RED
    limit: int | None = None
    extra: Optimizer | None = None
    stages: tuple[Stage, ...] = ()
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _steps_fit(self):
        if self.limit is not None and self.limit < self.optimizer.steps:
            raise ValueError(f"expected a limit of at least optimizer.steps ({self.optimizer.steps})")
        return self


BASE = {"data": {"type": "jsonl", "path": "a.jsonl"}}


def fault(*layers):
    with pytest.raises(ConfigError) as caught:
        build(Recipe, [("recipe.toml", BASE), *layers])
    return str(caught.value)


def test_later_layers_win_key_by_key_and_every_value_knows_its_origin():
    resolved = build(
        Recipe,
        [
            ("recipe.toml", {**BASE, "optimizer": {"lr": 0.5, "steps": 7}}),
            ("--set", parse_override("optimizer.lr=1")),
        ],
    )
    assert resolved.config.optimizer == Optimizer(lr=1.0, steps=7)
    assert resolved.origins == {
        "data.type": "recipe.toml",
        "data.path": "recipe.toml",
        "data.shuffle": "default",
        "optimizer.lr": "--set",
        "optimizer.betas": "default",
        "optimizer.steps": "recipe.toml",
        "colour": "default",
        "limit": "default",
        "extra": "default",
        "stages": "default",
        "options": "default",
    }


def test_lists_are_replaced_not_merged():
    layers = [("a", {**BASE, "stages": [{"name": "x"}, {"name": "y"}]}), ("b", {"stages": [{"name": "z"}]})]
    resolved = build(Recipe, layers)
    assert resolved.config.stages == (Stage(name="z"),)
    assert resolved.origins["stages"] == "b"


def test_toml_values_become_paths_enums_tuples_and_floats():
    layer = {**BASE, "colour": "blue", "optimizer": {"betas": [0, 1], "lr": 2}}
    config = build(Recipe, [("recipe.toml", layer)]).config
    assert config.data.path == Path("a.jsonl")
    assert config.colour is Colour.BLUE
    assert config.optimizer.betas == (0.0, 1.0)
    assert type(config.optimizer.lr) is float


def test_free_tables_keep_the_origin_of_each_key():
    resolved = build(Recipe, [("a", {**BASE, "options": {"x": 1, "deep": {"y": 2}}}), ("b", {"options": {"x": 3}})])
    assert resolved.config.options == {"x": 3, "deep": {"y": 2}}
    assert (resolved.origins["options.x"], resolved.origins["options.deep.y"]) == ("b", "a")


def test_the_layers_given_are_not_changed():
    layer = {"data": {"type": "jsonl", "path": "a"}, "options": {"x": 1}}
    build(Recipe, [("a", layer), ("b", {"options": {"x": 2}, "data": {"path": "b"}})])
    assert layer == {"data": {"type": "jsonl", "path": "a"}, "options": {"x": 1}}


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        ({"optimizer": {"step": 1}}, "optimizer.step (from x): unknown key 'step'; did you mean 'steps'?"),
        ({"optimizer": {"zzz": 1}}, "optimizer.zzz (from x): unknown key 'zzz'; valid are betas, lr, steps."),
        ({"data": {"shufle": False}}, "data.shufle (from x): unknown key 'shufle'; did you mean 'shuffle'?"),
        ({"colour": "green"}, "colour (from x): expected 'red' or 'blue', found the string 'green'."),
        ({"optimizer": {"lr": "big"}}, "optimizer.lr (from x): expected a number, found the string 'big'."),
        ({"optimizer": {"lr": 0}}, "optimizer.lr (from x): expected a number above 0.0, found 0."),
        ({"optimizer": {"steps": 1.5}}, "optimizer.steps (from x): expected an integer, found 1.5."),
        ({"optimizer": {"steps": True}}, "optimizer.steps (from x): expected an integer, found true."),
        ({"optimizer": 3}, "optimizer (from x): expected a table, found 3."),
        ({"optimizer": {"betas": 3}}, "optimizer.betas (from x): expected a list, found 3."),
        ({"optimizer": {"betas": [1]}}, "optimizer.betas.1: expected a value, found none; set it."),
        ({"data": {"shuffle": "yes"}}, "data.shuffle (from x): expected true or false, found the string 'yes'."),
        (
            {"data": {"type": "jsonI"}},
            "data.type (from x): expected one of 'jsonl', 'parquet', found 'jsonI'; did you mean 'jsonl'?",
        ),
        (
            {"stages": [{"name": "a"}, {"nam": "b"}]},
            "stages.1.nam (from x): unknown key 'nam'; did you mean 'name'? (1 more fault after this one.)",
        ),
        ({"stages": [{"weight": 1}]}, "stages.0.name: expected a value, found none; set it."),
        ({"extra": {"lrr": 1}}, "extra.lrr (from x): unknown key 'lrr'; did you mean 'lr'?"),
        ({"limit": "no"}, "limit (from x): expected an integer, found the string 'no'."),
        ({"optimizer": {"lr": float("nan")}}, "optimizer.lr (from x): expected a finite number, found nan."),
        ({"limit": 3}, "the configuration: expected a limit of at least optimizer.steps (10)."),
    ],
)  # fmt: skip
def test_each_fault_is_one_sentence_with_key_layer_expected_and_found(layer, told):
    assert fault(("x", layer)) == told


def test_a_missing_key_is_told_where_it_belongs():
    with pytest.raises(ConfigError, match=r"^data\.path: expected a value, found none; set it\.$"):
        build(Recipe, [("r", {"data": {"type": "jsonl"}})])
    with pytest.raises(ConfigError, match=r"^data: expected a value, found none; set it\.$"):
        build(Recipe, [("r", {})])


def test_a_union_without_its_type_names_the_choices():
    with pytest.raises(ConfigError, match=r"^data \(from r\): expected a type among 'jsonl', 'parquet', found none"):
        build(Recipe, [("r", {"data": {"path": "a"}})])


def test_keys_of_the_old_variant_are_told_when_an_override_changes_the_type():
    assert fault(("--set", {"data": {"type": "parquet", "folder": "f"}})) == (
        "data.path (from recipe.toml): data.type is 'parquet' (from --set), which has no key 'path'; "
        "remove the key there, or write a recipe with a [data] of this type; valid are columns, folder, type."
    )


@pytest.mark.parametrize(
    ("text", "nested"),
    [
        ("a.b=3", {"a": {"b": 3}}),
        ("a=1e-6", {"a": 1e-6}),
        ("a=true", {"a": True}),
        ("a=hello world", {"a": "hello world"}),
        ('a="3"', {"a": "3"}),
        ("a=[1, 2]", {"a": [1, 2]}),
        ("a={x = 1}", {"a": {"x": 1}}),
        ("a=", {"a": ""}),
        ("a=b=c", {"a": "b=c"}),
        ("a=../x/y.jsonl", {"a": "../x/y.jsonl"}),
        ("a=1\nb=2", {"a": "1\nb=2"}),
    ],
)
def test_an_override_is_toml_or_else_a_string(text, nested):
    assert parse_override(text) == nested


@pytest.mark.parametrize("text", ["a.b", "=3", "a..b=3", "a b=3", ""])
def test_an_override_without_key_or_value_is_refused(text):
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        parse_override(text)


def test_a_file_that_cannot_be_read_as_toml_is_told(tmp_path):
    broken = tmp_path / "r.toml"
    broken.write_text("a = [1\n")
    with pytest.raises(ConfigError, match=r"r\.toml: expected TOML, found a syntax error: ."):
        read_toml(broken)
    broken.write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigError, match="expected UTF-8 text, found byte 5"):
        read_toml(broken)
    with pytest.raises(ConfigError, match="found nothing there"):
        read_toml(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="expected a readable TOML file"):
        read_toml(tmp_path)


recipes = st.builds(
    Recipe,
    data=st.builds(Jsonl, path=st.sampled_from([Path("a"), Path("/b/c.x")]), shuffle=st.booleans())
    | st.builds(Parquet, folder=st.just(Path("f")), columns=st.lists(st.text(), max_size=3).map(tuple)),
    optimizer=st.builds(
        Optimizer,
        lr=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
        betas=st.tuples(*[st.floats(allow_nan=False, allow_infinity=False)] * 2),
        steps=st.integers(min_value=-5, max_value=5),
    ),
    colour=st.sampled_from(Colour),
    limit=st.none() | st.integers(min_value=6, max_value=2**40),
    extra=st.none() | st.just(Optimizer(lr=3.0)),
    stages=st.lists(st.builds(Stage, name=st.text(), weight=st.integers(0, 9).map(float)), max_size=2).map(tuple),
    options=st.dictionaries(st.text(min_size=1), st.integers(0, 99) | st.text() | st.lists(st.booleans()), max_size=3),
)


@given(recipes)
def test_a_dumped_configuration_builds_an_equal_one(recipe):
    assert build(Recipe, [("dump", tomllib.loads(dump_toml(recipe)))]).config == recipe


def test_a_none_that_toml_would_turn_into_another_default_is_refused():
    class Limited(Config):
        limit: int | None = 10

    assert tomllib.loads(dump_toml(Limited(limit=3))) == {"limit": 3}
    with pytest.raises(ConfigError, match="limit: expected a value that TOML can hold"):
        dump_toml(Limited(limit=None))


def test_a_configuration_cannot_be_changed():
    config = build(Recipe, [("r", BASE)]).config
    with pytest.raises(ValidationError, match="frozen"):
        config.limit = 3


def test_the_docstring_under_a_field_is_its_description():
    class Explained(Config):
        bucket_bytes: int = 1
        """Bytes sent at once."""

    assert Explained.model_json_schema()["properties"]["bucket_bytes"]["description"] == "Bytes sent at once."
