"""The command line: what it imports, what it prints, how it exits."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from miles_cli.app import execute

HEAVY = ("torch", "ray", "transformers", "fastapi")
COMMANDS = [
    [],
    ["run"],
    ["recipes"],
    ["check-template"],
    ["router"],
    ["sessions"],
    ["engine"],
    ["config"],
    ["config", "show"],
    ["config", "schema"],
    ["doctor"],
]
CHATML = """{%- for tool in tools or [] %}{{ (tool | tojson) + "\n" }}{% endfor %}
{%- for m in messages %}{{ "<|im_start|>" + m.role + "\n" }}
{%- if m.reasoning_content %}{{ "<think>" + m.reasoning_content + "</think>" }}{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- "}</tool_call>" }}{% endfor %}{{ "<|im_end|>\n" }}{% endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\n" }}{% endif %}"""


def test_no_help_page_imports_torch_ray_transformers_or_fastapi():
    program = f"""
import sys
from miles_cli.app import execute
for command in {COMMANDS!r}:
    assert execute([*command, "--help"]) == 0, command
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_version_is_that_of_the_distribution(capsys):
    from importlib.metadata import version

    assert execute(["--version"]) == 0
    assert capsys.readouterr().out.strip() == f"miles {version('miles-cli')}"


@pytest.mark.parametrize("arguments", [["nope"], ["run", "--steps", "3"], ["run", "a", "b"], ["engine"]])
def test_a_wrong_command_line_exits_with_2(arguments, capsys):
    assert execute(arguments) == 2
    assert capsys.readouterr().err


def test_an_unknown_recipe_names_the_nearest_one(capsys):
    assert execute(["run", "quikstart", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "'quikstart'" in said
    assert "did you mean 'quickstart'" in said
    assert said.count("\n") == 1


def test_recipes_lists_the_quickstart(capsys):
    assert execute(["recipes"]) == 0
    assert "quickstart" in capsys.readouterr().out


def test_the_schema_of_recipes_is_json_and_names_every_section(capsys):
    assert execute(["config", "schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    sections = set(schema["$defs"]["RunConfig"]["properties"])
    assert sections == {
        "kind", "run", "model", "data", "rollout", "reward", "algorithm", "trainer", "engines", "router", "sessions",
        "weights", "ray",
    }  # fmt: skip


def test_a_sound_template_exits_with_0_and_an_unsound_one_with_1(tmp_path: Path, capsys):
    sound = tmp_path / "sound.jinja"
    sound.write_text(CHATML)
    counts = tmp_path / "counts.jinja"
    counts.write_text("{{ messages | length }}" + CHATML)
    assert execute(["check-template", str(sound)]) == 0
    assert execute(["check-template", str(counts), "--format", "json"]) == 1
    report = capsys.readouterr().out
    assert json.loads(report[report.index("{") :])["sound"] is False


def test_a_template_that_cannot_be_read_exits_with_2(tmp_path: Path, capsys):
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% for %}")
    assert execute(["check-template", str(broken)]) == 2
    assert execute(["check-template", str(tmp_path / "absent.jinja")]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff", "expected UTF-8 text"),
        (b"{{ raise_exception('no') }}", "expected a template that renders a user turn"),
        (b"{{ 1 / 0 }}", "ZeroDivisionError"),
        (b"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "waited 1 s"),
    ],
)
def test_a_template_that_cannot_be_rendered_exits_with_2_in_time(tmp_path: Path, capsys, content, says):
    template = tmp_path / "template.jinja"
    template.write_bytes(content)
    assert execute(["check-template", str(template), "--timeout-s", "1"]) == 2
    told = capsys.readouterr()
    assert says in told.err
    assert len(told.err.splitlines()) == 1
    assert not told.out


@pytest.mark.parametrize("target", ["x.toml", "folder.toml", "loop.toml", f"{'x' * 300}.toml", "", "."])
def test_a_recipe_that_is_no_file_exits_with_2(tmp_path: Path, monkeypatch, capsys, target):
    monkeypatch.chdir(tmp_path)
    Path("folder.toml").mkdir()
    Path("loop.toml").symlink_to("loop.toml")
    assert execute(["run", target, "--dry-run"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_dry_run_refuses_the_folder_that_the_run_would_refuse(tmp_path: Path, capsys):
    (tmp_path / "mine").touch()
    for more in ([], ["--overwrite"], ["--resume"], ["--resume", "--overwrite"]):
        assert execute(["run", "--dry-run", "--out", str(tmp_path), *more]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]


def test_a_dry_run_as_json_is_one_object(tmp_path: Path, capsys):
    assert execute(["run", "--dry-run", "--json", "--out", str(tmp_path / "new")]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["name"] == "quickstart"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("port", ["-1", "65536", "taken"])
def test_a_port_that_cannot_be_listened_on_exits_with_2(port, tiny_model: Path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = str(taken.getsockname()[1]) if port == "taken" else port
        services = (
            ["router", "--worker", "http://127.0.0.1:1"],
            ["sessions", str(tiny_model), "--engine-url", "http://127.0.0.1:1"],
            ["engine", str(tiny_model)],
        )
        for service in services:
            assert execute([*service, "--port", number]) == 2
            told = capsys.readouterr().err
            assert "Traceback" not in told
            assert "cannot listen on" in told if port == "taken" else "--port" in told


@pytest.mark.parametrize(
    "arguments",
    [
        ["engine", "/nowhere"],
        ["engine", "/dev"],
        ["engine", "/nowhere", "--threads", "0"],
        ["sessions", "/nowhere", "--engine-url", "http://127.0.0.1:1"],
        ["sessions", "/dev", "--engine-url", "nonsense"],
        ["router", "--worker", "nonsense"],
        ["router", "--worker", "http://127.0.0.1:1", "--policy", "leest_active"],
        ["router", "--worker", "http://127.0.0.1:1", "--middleware", "nowhere:Thing"],
        ["router", "--worker", "http://127.0.0.1:1", "--host", ""],
        ["router", "--worker", "http://127.0.0.1:1", "--host", "host.invalid"],
        ["router", "--worker", "http://127.0.0.1:1", "--token", ""],
        ["router", "--worker", "http://127.0.0.1:1", "--token", "a\nb"],
        ["router", "--worker", "http://127.0.0.1:1", "--token", "schlüssel"],
    ],
)
def test_a_service_that_cannot_work_exits_with_2(arguments, capsys):
    assert execute(arguments) == 2
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    assert told.err
    assert not told.out


def test_check_template_takes_the_options_of_the_verifier_alone():
    import typer

    from miles_cli.app import app
    from miles_tito.verify.__main__ import _parser

    command = typer.main.get_command(app).commands["check-template"]
    here = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    there = {option for action in _parser()._actions for option in action.option_strings or [action.dest]}
    assert here - {"--help", "-h"} == there - {"--help", "-h"}


def test_check_template_writes_a_report_for_a_ci_beside_the_text(tmp_path: Path, capsys):
    from xml.etree import ElementTree

    template = tmp_path / "sound.jinja"
    template.write_text(CHATML)
    report = tmp_path / "report.xml"
    options = ["--no-tools", "--thinking", "off", "--format", "junit", "--output", str(report)]
    assert execute(["check-template", str(template), *options]) == 0
    assert "sound.jinja: sound" in capsys.readouterr().out
    root = ElementTree.parse(report).getroot()
    assert (int(root.get("tests")), root.get("failures")) == (len(list(root.iter("testcase"))), "0")
