"""From a recipe file to a configuration: origins, paths, and one sentence for each thing that cannot work."""

import json
import os
import shutil
import tomllib
from pathlib import Path

import pytest
import tomli_w

from miles_cli.checks import check
from miles_cli.load_config import lines_with_origin, load, load_resumed
from miles_cli.pipeline.run_folder import RunFolder, check_folder
from miles_core.config import dump_toml, read_toml
from miles_core.errors import ConfigError, DataError, MilesError


@pytest.fixture
def recipe(tmp_path: Path, tiny_model: Path):
    """Writes a recipe with changes; the answer is its path."""
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "one", "label": "1"}\n{"prompt": "two", "label": "2"}\n')
    (tmp_path / "agent.py").write_text("async def run(*, base_url, prompt, request_kwargs, metadata): ...\n")

    def write(**sections: dict) -> str:
        tree: dict = {
            "run": {"steps": 2, "name": "tiny"},
            "model": {"type": "folder", "path": str(tiny_model)},
            "data": {"type": "jsonl", "path": "prompts.jsonl"},
            "rollout": {"prompts_per_step": 2, "samples_per_prompt": 2, "agent": "agent.py:run"},
            "reward": {"name": "math"},
        }
        for name, changes in sections.items():
            tree[name] = {**tree.get(name, {}), **changes}
        path = tmp_path / "recipe.toml"
        path.write_text(tomli_w.dumps(tree))
        return str(path)

    return write


def refusal(path: str, *overrides: str) -> str:
    """The sentence with which a recipe is refused."""
    with pytest.raises(MilesError) as caught:
        check(load(path, overrides).config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_good_recipe_passes_and_its_paths_start_at_its_folder(recipe, tmp_path: Path, monkeypatch):
    path = recipe()
    monkeypatch.chdir("/")
    config = load(path, ()).config
    check(config)
    assert config.data.path == tmp_path / "prompts.jsonl"
    assert config.rollout.agent == f"{tmp_path}/agent.py:run"


def test_plug_ins_of_sessions_start_at_the_recipes_folder(recipe, tmp_path: Path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "def key(message): return ''\ndef pick(turns): return []\ndef mend(samples): return []\n"
    )
    path = recipe(
        sessions={"matcher": "mine.py:key", "sample_picker": "mine.py:pick", "sample_processors": ["mine.py:mend"]}
    )
    monkeypatch.chdir("/")
    config = load(path, ()).config
    check(config)
    assert config.sessions.matcher == f"{tmp_path}/mine.py:key"
    assert config.sessions.sample_picker == f"{tmp_path}/mine.py:pick"
    assert config.sessions.sample_processors == (f"{tmp_path}/mine.py:mend",)


def test_an_override_wins_and_its_path_starts_at_the_working_folder(recipe, tmp_path: Path, monkeypatch):
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "p.jsonl").write_text('{"prompt": "three"}\n')
    monkeypatch.chdir(other)
    resolved = load(recipe(), ["data.path=p.jsonl", "run.seed=7"])
    assert resolved.config.data.path == other / "p.jsonl"
    assert resolved.config.run.seed == 7
    lines = [line.rsplit("#", 1) for line in lines_with_origin(resolved)]
    origins = {text.split("=")[0].strip(): origin.strip() for text, origin in lines}
    assert origins["run.seed"] == "--set run.seed"
    assert origins["run.steps"] == "recipe.toml"
    assert origins["run.keep"] == "default"


def test_what_is_shown_can_be_given_back_with_set(recipe):
    first = load(recipe(), ["run.seed=7", "data.shuffle=false", "run.description='a # b'"])
    shown = [line.rsplit("#", 1)[0].strip() for line in lines_with_origin(first)]
    given = [line.replace(" = ", "=", 1) for line in shown if line and not line.startswith(("#", "kind"))]
    nested = ("{}", "[]")
    again = load(recipe(), [line for line in given if not line.endswith(nested)])
    assert again.config == first.config


def test_a_section_without_its_type_is_of_the_usual_one(recipe):
    resolved = load(recipe(), ["engines.count=2", "weights.bucket_bytes=1000"])
    assert (resolved.config.engines.type, resolved.config.engines.count) == ("local", 2)
    assert (resolved.config.weights.type, resolved.origins["weights.type"]) == ("shared_memory", "default")


def test_the_resolved_recipe_survives_its_own_file(recipe, tmp_path: Path):
    config = load(recipe(), ["trainer.optimizer.lr=0.001"]).config
    copy = tmp_path / "config.toml"
    copy.write_text(dump_toml(config))
    assert load(str(copy), ()).config == config
    assert read_toml(copy)["trainer"]["optimizer"]["lr"] == 0.001


def test_an_unknown_key_names_the_nearest_one(recipe):
    said = refusal(recipe(), "run.stepz=3")
    assert "run.stepz" in said
    assert "steps" in said


def test_a_wrong_type_says_what_was_expected_and_found(recipe):
    said = refusal(recipe(), 'run.steps="many"')
    assert "run.steps" in said
    assert "many" in said


def test_an_unknown_kind_names_the_known_ones(recipe, tmp_path: Path):
    assert refusal(recipe(), "kind=dpo") == "kind: expected one of 'rl', 'sft', found 'dpo'."


@pytest.mark.parametrize(
    ("override", "names"),
    [
        ("model.path=/nowhere", "model.path"),
        ("data.path=/nowhere.jsonl", "data.path"),
        ("rollout.agent=/nowhere.py:run", "rollout.agent"),
        ("rollout.on_abort=/nowhere.py:clean", "rollout.on_abort"),
        ("reward.name=/nowhere.py:judge", "reward.name"),
        ("sessions.sample_picker=/nowhere.py:pick", "sessions.sample_picker"),
        ("sessions.sample_processors=['/nowhere.py:mend']", "sessions.sample_processors.0"),
    ],
)
def test_a_missing_file_is_named_with_its_key(recipe, override, names):
    said = refusal(recipe(), override)
    assert said.startswith(f"{names}: expected")
    assert "/nowhere" in said


def test_a_model_folder_without_weights_is_refused(recipe, tmp_path: Path, tiny_model: Path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (bare / name).write_bytes((tiny_model / name).read_bytes())
    assert "safetensors" in refusal(recipe(), f"model.path={bare}")
    check(load(recipe(), [f"model.path={bare}", "model.type=fresh"]).config)


@pytest.mark.parametrize(
    ("overrides", "about"),
    [
        (["rollout.samples_per_prompt=1"], "samples_per_prompt"),
        (["algorithm.minibatches=5"], "minibatches"),
        (["rollout.max_seq_len=200"], "max_tokens"),
        (["rollout.prompts_per_step=0"], "prompts_per_step"),
        (["algorithm.loss=sft"], "sft"),
    ],
)
def test_numbers_that_cannot_work_together_are_refused(recipe, overrides, about):
    assert about in refusal(recipe(), *overrides)


def test_sglang_needs_weights_on_disk(recipe):
    said = refusal(recipe(), "engines.type=sglang", "engines.python=/usr/bin/python3")
    assert "weights.type = 'disk'" in said


def test_a_bad_line_of_prompts_is_found_before_anything_starts(recipe, tmp_path: Path):
    path = recipe()
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "one"}\nnot json\n')
    with pytest.raises(DataError, match=r"prompts\.jsonl:2"):
        check(load(path, ()).config)


def test_resume_keeps_the_stored_recipe_and_names_what_may_not_change(recipe, tmp_path: Path):
    path, out = recipe(), tmp_path / "out"
    out.mkdir()
    (out / "config.toml").write_text(dump_toml(load(path, ()).config))
    assert load_resumed(None, ["run.steps=9"], out).config.run.steps == 9
    with pytest.raises(ConfigError, match=r"run\.seed, trainer\.optimizer\.lr differ"):
        load_resumed(path, ["run.seed=4", "trainer.optimizer.lr=0.5"], out)
    with pytest.raises(ConfigError, match=r"no config\.toml"):
        load_resumed(None, (), tmp_path / "nothing")


def test_a_dirty_folder_is_refused_and_stays_as_it_was(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"found metrics\.jsonl.*--resume.*--overwrite"):
        RunFolder.open(tmp_path, mode="new")
    assert (tmp_path / "metrics.jsonl").read_text() == "{}\n"


def test_overwrite_deletes_a_run_and_nothing_else(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    RunFolder.open(tmp_path, mode="overwrite").close()
    assert not (tmp_path / "metrics.jsonl").exists()
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"thesis\.tex"):
        RunFolder.open(tmp_path, mode="overwrite")
    assert (tmp_path / "thesis.tex").exists()


def test_two_runs_never_share_a_folder(tmp_path: Path):
    first = RunFolder.open(tmp_path / "out", mode="new")
    try:
        with pytest.raises(ConfigError, match="another run works in"):
            RunFolder.open(tmp_path / "out", mode="new")
    finally:
        first.close()


def test_processes_are_written_by_role(tmp_path: Path):
    folder = RunFolder.open(tmp_path / "out", mode="new")
    folder.write_processes({"trainer-0": 2, "controller": 1})
    assert json.loads((tmp_path / "out" / "processes.json").read_text()) == {"controller": 1, "trainer-0": 2}
    folder.close()


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("rollout.agent=nosuch", "rollout.agent: agents: no plug-in is called 'nosuch'"),
        ("rollout.agent=no_such_module:run", "rollout.agent: expected a module 'no_such_module'"),
        ("rollout.agent=agent.py:", "rollout.agent: expected a plug-in as module:attribute"),
        ("rollout.generate=agnt", "rollout.generate: generates: no plug-in is called 'agnt' (nearest: agent)"),
        ("reward.name=mth", "reward.name: rewards: no plug-in is called 'mth' (nearest: math)"),
        ('rollout.filters=[{name="nosuch"}]', "rollout.filters.0.name: group_filters: no plug-in is called"),
        ("algorithm.advantage=grop", "algorithm.advantage: expected a known name or module:attribute, found 'grop'"),
        ("algorithm.loss=no_such_module:f", "algorithm.loss: expected a module 'no_such_module'"),
        ("algorithm.reduction=token_man", "did you mean 'token_mean'?"),
        ("algorithm.correction=tiss", "did you mean 'tis'?"),
        ("run.name=../above", "run.name (from --set run.name): expected the name of a folder"),
        ("run.name=", "expected the name of a folder"),
        ("model.path=/dev/null", "model.path: expected a model folder at /dev/null, found a file"),
        ("data.path=/", "data.path: expected a file at /, found a folder"),
        (f"data.path={'x' * 300}", "data.path: cannot look for a file"),
    ],
)
def test_a_name_that_leads_nowhere_is_found_before_anything_starts(recipe, override, says):
    assert says in refusal(recipe(), override)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def run(", "expected Python in"),
        ("def run(prompt): ...", "found (prompt)"),
        ("run = 3", "found int"),
        ("def other(): ...", "has no 'run'"),
        ("raise SystemExit(5)", "SystemExit: 5"),
        ("import no_such_module", "No module named 'no_such_module'"),
    ],
)
def test_a_dry_run_loads_the_agent_and_checks_its_signature(recipe, tmp_path: Path, source, says):
    path = recipe()
    (tmp_path / "agent.py").write_text(source)
    with pytest.raises(MilesError) as caught:
        check(load(path, ()).config, thorough=True)
    assert str(caught.value).startswith("rollout.agent: ")
    assert says in str(caught.value)


def test_a_dry_run_checks_the_options_of_the_reward(recipe):
    check(load(recipe(), ["reward.options.tolerance=0.1"]).config, thorough=True)
    with pytest.raises(MilesError, match=r"^reward\.name: .*'tolerence'"):
        check(load(recipe(), ["reward.options.tolerence=0.1"]).config, thorough=True)


def test_the_agent_that_plays_has_to_be_named(recipe, tmp_path: Path):
    path = recipe()
    text = Path(path).read_text()
    Path(path).write_text(text.replace('agent = "agent.py:run"', ""))
    assert refusal(path).startswith("rollout.agent: expected an agent")


def test_functions_of_the_algorithm_in_a_file_start_at_the_recipe(recipe, tmp_path: Path, monkeypatch):
    path = recipe(algorithm={"loss": "mine.py:loss"})
    monkeypatch.chdir("/")
    assert refusal(path) == f"algorithm.loss: expected a file at {tmp_path / 'mine.py'}, found none."


@pytest.mark.parametrize("reward", ["math", "boxed", "f1", "choice"])
def test_a_reward_that_compares_wants_a_label_in_every_row(recipe, tmp_path: Path, reward):
    path = recipe(reward={"name": reward})
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "one", "label": "1"}\n{"prompt": "two"}\n')
    assert "none in 1 of 2, first in row 1" in refusal(path)
    check(load(path, ["reward.name=random"]).config)


def test_a_bad_line_of_demonstrations_is_found_before_anything_starts(tmp_path: Path, tiny_model: Path):
    path = tmp_path / "sft.toml"
    model = {"type": "folder", "path": str(tiny_model)}
    path.write_text(tomli_w.dumps({"kind": "sft", "run": {"steps": 1}, "model": model, "sft": {"path": "d.jsonl"}}))
    (tmp_path / "d.jsonl").write_text('{"messages": []}\n')
    assert "d.jsonl:1: " in refusal(str(path))


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.json", b"{", "expected JSON in"),
        ("config.json", b"[]", "expected a JSON object in"),
        ("config.json", b"{}", "expected a model_type in"),
        ("tokenizer.json", b"", "expected JSON in"),
        ("tokenizer_config.json", b"\xff", "expected JSON in"),
        ("tokenizer_config.json", b"{}", "expected a chat template in"),
        ("model.safetensors", b"", "found no header of tensors"),
        ("model.safetensors", b"not tensors at all", "found no header of tensors"),
        ("model.safetensors.index.json", b'{"weight_map": {"w": "other.safetensors"}}', "found no other.safetensors"),
        ("chat_template.jinja", b"{% if %}", "the chat template of"),
        ("chat_template.jinja", b"\xff", "expected UTF-8 text in"),
    ],
)
def test_a_damaged_model_folder_is_found_before_anything_starts(recipe, tmp_path, tiny_model, name, content, says):
    folder = tmp_path / "damaged"
    shutil.copytree(tiny_model, folder)
    (folder / name).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        check(load(recipe(), [f"model.path={folder}"]).config, thorough=True)
    assert str(caught.value).startswith("model.path: ")
    assert says in str(caught.value)


def test_weights_cut_short_are_found_before_anything_starts(recipe, tmp_path: Path, tiny_model: Path):
    folder = tmp_path / "cut"
    shutil.copytree(tiny_model, folder)
    weights = folder / "model.safetensors"
    whole = weights.stat().st_size
    os.truncate(weights, whole - 1)
    said = refusal(recipe(), f"model.path={folder}")
    assert f"expected {whole} bytes" in said
    assert f"found {whole - 1}" in said


@pytest.mark.parametrize("package", ["", ".", "a.b.c", "no_such_package"])
def test_a_package_that_is_not_there_is_refused(recipe, package):
    model = {"type": "package_data", "package": package, "name": "model"}
    path = Path(recipe())
    tree = tomllib.loads(path.read_text())
    path.write_text(tomli_w.dumps({**tree, "model": model}))
    assert refusal(str(path)).startswith("model.package: expected an installed package")


@pytest.mark.parametrize("below", ["file", "file/run", "x" * 300])
def test_a_place_that_cannot_be_a_run_folder_is_refused(tmp_path: Path, below):
    (tmp_path / "file").touch()
    for use in (RunFolder.open, check_folder):
        with pytest.raises(ConfigError, match="give another --out"):
            use(tmp_path / below, mode="new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (['engines.urls=["nonsense"]'], "engines.urls: worker 'nonsense': expected a base URL"),
        (["engines.python=/nowhere/python"], "engines.python: expected an interpreter that can be run"),
        ([], "expected either `python`"),
    ],
)
def test_sglang_is_refused_without_what_it_needs(recipe, overrides, says):
    weights = ["weights.type=disk", "weights.folder=weights"]
    assert says in refusal(recipe(), "engines.type=sglang", *weights, *overrides)


def test_sections_of_another_kind_are_those_the_recipe_gave(recipe):
    said = refusal(recipe(engines={"count": 2}), "kind=sft")
    assert "(from recipe.toml): unknown key" in said
