"""A whole run of the verifier: what it reads, what it writes, how it exits, and that it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from miles_core.errors import ConfigError
from miles_tito.verify import Settings, TemplateReport, Unusable, targets_in
from miles_tito.verify.__main__ import main
from miles_tito.verify.options import Options
from miles_tito.verify.workers import check_all, outcome_of

QUICK = ["--thinking", "off", "--no-tools", "--jobs", "1"]
PLAIN = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
DROPS_LATE_SYSTEM = PLAIN.replace("in messages", "in messages if m.role != 'system' or m == messages[0]")
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def plain(tmp_path):
    file = tmp_path / "plain.jinja"
    file.write_text(PLAIN)
    return file


@pytest.fixture
def model(tmp_path, chat_for):
    """A model folder with a vocabulary and no template yet."""
    folder = tmp_path / "model"
    folder.mkdir()
    chat_for("chatml").vocabulary.save(folder)
    return folder


def names(path, **options):
    return [target.name for target in targets_in(path, **options)]


def test_a_model_folder_with_several_templates_gives_each_by_name(model):
    (model / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": [{"name": "default", "template": PLAIN}, {"name": "rag", "template": "r"}]})
    )
    assert names(model) == ["model:default", "model:rag"]
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tool_use.jinja").write_text(PLAIN)
    assert names(model) == ["model:default", "model:rag", "model:tool_use"]


def test_one_template_in_a_model_folder_goes_by_the_folder(model):
    (model / "chat_template.jinja").write_text(PLAIN)
    assert names(model) == ["model"]
    assert [target.tokenizer for target in targets_in(model)] == [model]


def test_a_folder_of_templates_gives_each_file_and_takes_a_tokenizer(plain, model):
    (plain.parent / "another.jinja").write_text(PLAIN)
    assert names(plain.parent) == ["another.jinja", "plain.jinja"]
    assert {target.tokenizer for target in targets_in(plain.parent, tokenizer=model)} == {model}


def test_a_folder_of_models_gives_the_templates_of_each(model):
    (model / "chat_template.jinja").write_text(PLAIN)
    assert names(model.parent) == ["model"]


@pytest.mark.parametrize(
    ("path", "says"),
    [("absent", "found nothing at"), (".", "found none of them"), ("model", "expected a chat template")],
)
def test_a_path_with_nothing_to_check_is_a_usage_error(tmp_path, model, capsys, path, says):
    target = tmp_path / "empty" if path == "." else tmp_path / path
    (tmp_path / "empty").mkdir()
    assert main([str(target)]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert (len(printed.err.splitlines()), printed.out) == (1, "")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kwargs": "[1]"}, "--kwargs as a JSON object"),
        ({"kwargs": "{"}, "--kwargs as a JSON object"),
        ({"arg": ("x",)}, "--arg as name=value"),
        ({"require": ("tool,sytem",)}, "kinds among"),
        ({"require": ("tool",), "tools": False}, "kinds among"),
        ({"roles": ("robot",)}, "roles among"),
        ({"format": "xml"}, "--format among"),
        ({"fail_on": "note"}, "--fail-on among"),
        ({"timeout_s": 0.0}, "--timeout-s above 0"),
        ({"timeout_s": float("inf")}, "at most 86400"),
        ({"timeout_s": 1e300}, "at most 86400"),
        ({"kwargs": "[" * 100_000}, "--kwargs as a JSON object"),
        ({"arg": ("x=" + "[" * 100_000,)}, "--arg x as JSON that can be read"),
        ({"jobs": 0}, "--jobs of at least 1"),
        ({"paths": ()}, "found no path"),
    ],
)
def test_options_that_cannot_be_used_are_refused_in_a_sentence(plain, options, says):
    with pytest.raises(ConfigError, match=says):
        _ = Options(**({"paths": (plain,)} | options)).settings


def test_arguments_come_as_json_and_one_by_one(plain):
    settings = Options(
        paths=(plain,),
        kwargs='{"depth": 2, "keep": false}',
        arg=("keep=True", "style=short", "n=3", 'names=["a"]'),
        require=("tool,tools", "user"),
        roles=("system developer",),
    ).settings
    assert settings.template_kwargs == {"depth": 2, "keep": True, "style": "short", "n": 3, "names": ["a"]}
    assert settings.required == ("tool", "tools", "user")
    assert settings.roles == ("system", "developer")
    assert set(settings.needed) == {"tool", "tools", "user", "system"}


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [
        (PLAIN, 0, "plain.jinja: sound"),
        (PLAIN.replace("{% for", "{{ messages | length }}{% for", 1), 1, "NOT SOUND"),
        ("{% for %}", 2, "expected a chat template in Jinja"),
        ("{{ raise_exception('not today') }}", 2, "not today"),
        ("{{ 1 / 0 }}", 2, "ZeroDivisionError"),
        ("", 2, "renders nothing of the messages"),
        ("import os\n\nprint(os.name)\n", 2, "renders nothing of the messages"),
    ],
)
def test_the_exit_code_says_sound_not_sound_or_not_usable(plain, capsys, source, code, says):
    plain.write_text(source)
    assert main([str(plain), *QUICK]) == code
    printed = capsys.readouterr()
    assert says in (printed.err if code == 2 else printed.out)
    if code == 2:
        assert (len(printed.err.splitlines()), printed.out) == (1, "")


def test_fail_on_warning_fails_what_is_only_not_required(plain, capsys):
    plain.write_text(DROPS_LATE_SYSTEM)
    assert main([str(plain), *QUICK]) == 0
    assert main([str(plain), *QUICK, "--fail-on", "warning"]) == 1
    assert main([str(plain), *QUICK, "--roles", "system"]) == 1
    assert "cure:" in capsys.readouterr().out


def test_an_argument_changes_the_verdict(template_file, capsys):
    path = str(template_file("moves_tools_unless_told"))
    options = ["--thinking", "off", "--jobs", "1"]
    assert main([path, *options]) == 1
    assert "sound with {'tools_stay': True}" in capsys.readouterr().out
    assert main([path, *options, "--arg", "tools_stay=true"]) == 0


def test_explain_shows_every_failing_conversation_and_what_was_derived(plain, capsys):
    plain.write_text(DROPS_LATE_SYSTEM)
    main([str(plain), *QUICK])
    brief = capsys.readouterr().out
    main([str(plain), *QUICK, "--explain"])
    long = capsys.readouterr().out
    assert (brief.count("in 'a "), "derived:" in brief) == (2, False)
    assert long.count("in 'a ") > brief.count("in 'a ")
    assert "stops: ['<|im_end|>']" in long
    assert "generation_prompt: '<|im_start|>assistant\\n'" in long


def test_a_pin_is_written_once_compared_later_and_names_what_changed(plain, tmp_path, capsys):
    pin = tmp_path / "profile.json"
    options = [*QUICK, "--pin", str(pin)]
    assert main([str(plain), *options]) == 0
    assert capsys.readouterr().err == f"miles: {pin}: the derived profile is written.\n"
    written = json.loads(pin.read_text())
    assert written["stops"] == ["<|im_end|>"]
    assert main([str(plain), *options]) == 0
    assert capsys.readouterr().err == f"miles: {pin}: derived as pinned.\n"
    plain.write_text(PLAIN.replace("<|im_end|>", "<|end|>"))
    assert main([str(plain), *options]) == 1
    shown = capsys.readouterr().out
    assert "stops (pinned ('<|im_end|>',), now ('<|end|>',))" in shown
    assert f"Delete {pin}" in shown
    assert json.loads(pin.read_text()) == written
    pin.unlink()
    assert main([str(plain), *options]) == 0
    assert json.loads(pin.read_text())["stops"] == ["<|end|>"]


def test_a_pin_that_is_no_profile_or_of_several_templates_is_a_usage_error(plain, tmp_path, capsys):
    pin = tmp_path / "profile.json"
    for held in ("{}", "[" * 100_000):
        pin.write_text(held)
        assert main([str(plain), *QUICK, "--pin", str(pin)]) == 2
    (tmp_path / "two.jinja").write_text(PLAIN)
    assert main([str(tmp_path), *QUICK, "--pin", str(pin)]) == 2
    assert "expected one template with --pin, found 2" in capsys.readouterr().err


def test_a_folder_gives_a_table_totals_and_the_worst_exit_code(plain, capsys):
    (plain.parent / "drops.jinja").write_text(DROPS_LATE_SYSTEM)
    (plain.parent / "broken.jinja").write_text("{% for %}")
    assert main([str(plain.parent), *QUICK[:-1], "2"]) == 2
    printed = capsys.readouterr()
    rows = {line.split()[0]: line.split()[1:] for line in printed.out.splitlines() if line.strip()}
    assert rows["template"][:5] == ["sound", "tool", "tools", "user*", "system"]
    assert rows["plain.jinja"][:10] == ["yes", "-", "-", "yes", "yes", "yes", "-", "-", "-", "yes"]
    assert rows["drops.jinja"][:10] == ["yes", "-", "-", "yes", "no", "yes", "-", "-", "-", "no"]
    assert rows["broken.jinja"][:2] == ["not", "usable:"]
    totals = "3 templates: user 2, system 1, assistant 2, system+user 1; 2 sound for every required kind, 1 not usable."
    assert totals in printed.out
    assert "broken.jinja: expected a chat template in Jinja" in printed.err


def test_a_template_that_loops_ends_at_its_deadline_and_the_others_are_checked(plain):
    loops = plain.parent / "loops.jinja"
    loops.write_text(LOOPS)
    targets = [*targets_in(loops), *targets_in(plain)]
    settings = Settings(tools=False, thinking=False)
    looped, checked = check_all(targets, settings, jobs=1, timeout_s=8.0)
    assert isinstance(looped, Unusable)
    assert looped.why.startswith("waited 8 s for its check to end; a template that loops never does")
    assert isinstance(checked, TemplateReport)
    assert checked.sound


def test_a_template_that_takes_all_memory_is_not_usable(plain):
    plain.write_text("{% set s = 'x' * 100000000000 %}" + PLAIN)
    (outcome,) = check_all(targets_in(plain), Settings(tools=False, thinking=False), jobs=1, timeout_s=100.0)
    assert isinstance(outcome, Unusable)
    assert "MemoryError" in outcome.why


@pytest.mark.parametrize(
    ("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129), ("SIGKILL", -signal.SIGKILL)]
)
def test_a_run_leaves_no_process_behind_however_it_ends(plain, name, code):
    plain.write_text(LOOPS)
    # A test run in the background of a shell ignores SIGINT, and its children would, too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    run = subprocess.Popen(
        [sys.executable, "-m", "miles_tito.verify", str(plain)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        children = _awaited(lambda: [pid for pid in _children(run.pid) if _seconds_of_cpu(pid) > 3.0])
        run.send_signal(signal.Signals[name])
        _, said = run.communicate(timeout=60)
    finally:
        signal.signal(signal.SIGINT, before)
        run.kill()
    assert children
    assert run.returncode == code
    assert b"Traceback" not in said
    assert _awaited(lambda: not any(_alive(pid) for pid in children))


def _awaited(found):
    """What it finds, once that is something."""
    for _ in range(600):
        if got := found():
            return got
        time.sleep(0.1)
    return found()


def _seconds_of_cpu(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_an_outcome_is_the_same_in_a_process_of_its_own(plain):
    settings = Settings(tools=False, thinking=False)
    (here,) = (outcome_of(target, settings) for target in targets_in(plain))
    (there,) = check_all(targets_in(plain), settings, jobs=1, timeout_s=100.0)
    assert replace(here, profile="", seconds=0.0) == replace(there, profile="", seconds=0.0)
    assert json.loads(here.profile) == json.loads(there.profile)


def test_a_report_that_cannot_be_written_is_said_before_anything_is_checked(plain, tmp_path, capsys):
    plain.write_text(LOOPS)
    for place in (tmp_path / "absent" / "report.xml", tmp_path):
        assert main([str(plain), "--output", str(place)]) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith(f"miles: cannot write {place}: ")
        assert (len(printed.err.splitlines()), printed.out) == (1, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_a_report_that_fails_on_the_way_out_still_goes_to_the_terminal(plain, capsys):
    assert main([str(plain), *QUICK, "--output", "/dev/full"]) == 2
    printed = capsys.readouterr()
    assert "plain.jinja: sound" in printed.out
    assert "cannot write /dev/full" in printed.err


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
def test_arguments_that_every_render_sets_are_named(plain, capsys, name):
    assert main([str(plain), *QUICK, "--arg", f"{name}=1"]) == 2
    assert f"found {name}, which every render sets" in capsys.readouterr().err


def test_a_file_is_checked_once_and_files_of_one_name_are_told_apart(plain, tmp_path, capsys):
    other = tmp_path / "other" / plain.name
    other.parent.mkdir()
    other.write_text(PLAIN)
    options = [*QUICK, "--format", "json"]
    assert main([str(plain), str(plain.parent / "." / plain.name), *options]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "plain.jinja"
    assert main([str(plain), str(other), *options]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["templates"]] == [str(plain), str(other)]


def test_a_model_that_cannot_be_checked_does_not_keep_the_others_from_it(model, capsys):
    (model / "chat_template.jinja").write_text(PLAIN)
    for name in ("bare", "torn"):
        (model.parent / name).mkdir()
        (model.parent / name / "config.json").write_text("{}")
    (model.parent / "torn" / "tokenizer_config.json").write_text("{")
    assert main([str(model.parent), *QUICK]) == 2
    printed = capsys.readouterr()
    rows = {line.split()[0]: line.split()[1:] for line in printed.out.splitlines() if line.strip()}
    assert (rows["bare"][:2], rows["torn"][:2]) == (["not", "usable:"], ["not", "usable:"])
    assert rows["model"][0] == "yes"
    assert "no" not in rows["model"]
    assert "expected a chat template in" in printed.err


def test_an_argument_that_the_template_does_not_read_is_a_warning(plain, capsys):
    plain.write_text("{% if enable_thinking %}{% endif %}" + PLAIN)
    assert main([str(plain), *QUICK, "--arg", "enable_thinking=false", "--fail-on", "warning"]) == 0
    assert main([str(plain), *QUICK, "--arg", "enable_thinkin=false", "--fail-on", "warning"]) == 1
    assert "does not read the argument 'enable_thinkin'; it reads enable_thinking." in capsys.readouterr().out


def test_a_kind_that_most_conversations_leave_out_is_not_sound(plain, capsys):
    refuses = (
        "{% if messages|length != 1 and not messages[0].role == 'assistant' %}{{ raise_exception('no') }}{% endif %}"
    )
    plain.write_text(refuses.replace("messages|length != 1", "messages|length < 9") + PLAIN)
    assert main([str(plain), *QUICK]) == 1
    out = capsys.readouterr().out
    assert "NOT SOUND" in out
    assert "user         not known" in out
    assert "more conversations are refused" in out


def test_what_a_render_lost_is_shown_as_what_is_missing_and_not_as_what_was_grown(plain, capsys):
    plain.write_text(DROPS_LATE_SYSTEM)
    main([str(plain), *QUICK])
    out = capsys.readouterr().out
    assert "expected somewhere: rule" in out
    assert "the whole render ends: " in out
