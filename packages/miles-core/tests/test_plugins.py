"""Names to objects, and the signatures they must have."""

import importlib
import sys
from pathlib import Path

import pytest

from miles_core.builtins import BUILTINS
from miles_core.errors import PluginError
from miles_core.plugins import SHAPES, load


@pytest.fixture
def plugin_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "class Box:\n"
        "    @staticmethod\n"
        "    def judge(sample, prompt): return 1.0\n"
        "def good(sample, prompt, *, scale=1.0): return scale\n"
        "async def waits(sample, prompt, **options): return 1.0\n"
        "def short(sample): return 1.0\n"
        "def demands(sample, prompt, *, url): return 1.0\n"
        "def run(*, base_url, prompt, request_kwargs, metadata): return None\n"
        "def sync_generate(prompt, context): return []\n"
        "async def async_filter(group): return None\n"
        "value = 3\n"
    )
    yield path
    for name in [n for n in sys.modules if n.startswith("miles_plugin_")]:
        del sys.modules[name]


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, table in BUILTINS.items() for name in table])
def test_every_built_in_exists(kind, name):
    module, _, attribute = BUILTINS[kind][name].partition(":")
    assert getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("kind", ["generates", "group_filters", "data_sources"])
def test_every_built_in_fits_its_extension_point(kind):
    assert all(callable(load(kind, name)) for name in BUILTINS[kind])


def test_a_kind_with_a_table_has_a_shape_and_every_kind_can_be_loaded(tmp_path: Path):
    assert BUILTINS.keys() <= SHAPES.keys()
    (tmp_path / "any.py").write_text("async def any(*args, **kwargs): ...\ndef plain(*args, **kwargs): ...\n")
    for kind, shape in SHAPES.items():
        assert callable(load(kind, f"any.py:{'plain' if shape.waits == 'sync' else 'any'}", base=tmp_path))


def test_a_file_beside_the_recipe_is_loaded_once(plugin_file):
    first = load("rewards", "mine.py:good", base=plugin_file.parent)
    assert first(None, None, scale=2.0) == 2.0
    assert load("rewards", str(plugin_file) + ":good") is first
    assert load("rewards", "mine.py:Box.judge", base=plugin_file.parent)(None, None) == 1.0


def test_module_and_attribute_are_loaded():
    assert load("rewards", "miles_core.rewards.f1:f1_reward").__name__ == "f1_reward"


def test_async_and_plain_rewards_and_agents_are_welcome(plugin_file):
    base = plugin_file.parent
    assert load("rewards", "mine.py:waits", base=base)
    assert load("agents", "mine.py:run", base=base)


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        ("rewards", "mine.py:short", r"expected \(sample, prompt, \*\*options\).*found \(sample\)"),
        ("rewards", "mine.py:demands", "found .*missing a required argument: 'url'"),
        ("rewards", "mine.py:value", "found int"),
        ("rewards", "mine.py:goood", "mine.py has no 'goood'; did you mean 'good'"),
        ("agents", "mine.py:good", r"expected \(\*, base_url, prompt, request_kwargs, metadata\)"),
        ("generates", "mine.py:sync_generate", "found a function that is not async"),
        ("group_filters", "mine.py:async_filter", "found an async function"),
        ("rewards", "nowhere.py:x", r"expected a file at .*nowhere\.py, found none"),
        ("rewards", "no.such.module:x", "cannot be imported: ModuleNotFoundError"),
        ("rewards", "mth", r"no plug-in is called 'mth' \(nearest: math"),
        ("rewards", "zzzzzz", r"known: agent_reward, boxed, choice, f1, math, random, remote"),
        ("rewards", "module:", "module:attribute"),
        ("reward", "math", "kind of plug-in among rewards"),
    ],
)
def test_what_cannot_be_used_is_told(plugin_file, kind, name, told):
    with pytest.raises(PluginError, match=told):
        load(kind, name, base=plugin_file.parent)


def test_options_are_checked_against_the_signature(plugin_file):
    base = plugin_file.parent
    assert load("rewards", "mine.py:demands", base=base, options=["url"])
    with pytest.raises(PluginError, match=r"called with the options scal, found .*unexpected keyword argument 'scal'"):
        load("rewards", "mine.py:good", base=base, options=["scal"])


def test_a_file_that_raises_is_told_and_tried_again(plugin_file):
    plugin_file.write_text("1 / 0")
    with pytest.raises(PluginError, match="cannot be run: ZeroDivisionError"):
        load("rewards", "mine.py:good", base=plugin_file.parent)
    plugin_file.write_text("def good(sample, prompt): return 2.0")
    assert load("rewards", "mine.py:good", base=plugin_file.parent)(None, None) == 2.0


def test_an_entry_point_is_found_by_its_name(tmp_path, monkeypatch):
    info = tmp_path / "extra_rewards-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra-rewards\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[miles.rewards]\nshiny = extra_rewards_module:shiny\n")
    (tmp_path / "extra_rewards_module.py").write_text("def shiny(sample, prompt): return 0.5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load("rewards", "shiny")(None, None) == 0.5
    with pytest.raises(PluginError, match="nearest: shiny"):
        load("rewards", "shinny")
