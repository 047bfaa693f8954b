"""The console script `miles`: commands, and how their failures become exit codes."""

import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from miles_cli.commands import check_template, config, doctor, engine, recipes, router, run, sessions
from miles_cli.interrupts import Terminated, terminate
from miles_core.errors import ConfigError, DataError, MilesError, PluginError

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

app = typer.Typer(
    name="miles",
    help="Reinforcement-learning post-training for language-model agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.run)
app.command("recipes")(recipes.recipes)
app.command("check-template")(check_template.check_template)
app.command("router")(router.router)
app.command("sessions")(sessions.sessions)
app.command("engine")(engine.engine)
app.add_typer(config.app, name="config")
app.command("doctor")(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"miles {version('miles-cli')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options that come before any command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code.

    0 done; 1 a run or check failed; 2 a command line, recipe or input that cannot be used; 130 Ctrl-C; 143 SIGTERM.
    """
    sys.exit(execute(sys.argv[1:] if arguments is None else arguments))


def execute(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; a MilesError becomes one sentence on stderr."""
    signal.signal(signal.SIGTERM, terminate)
    try:
        result = app(args=list(arguments), prog_name="miles", standalone_mode=False)
    except (ConfigError, PluginError, DataError) as error:
        return _say(error, USAGE)
    except MilesError as error:
        return _say(error, FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted; everything was shut down.", INTERRUPTED)
    except Terminated:
        return _say("terminated; everything was shut down.", 128 + signal.SIGTERM)
    except typer.TyperException as error:
        error.show()  # type: ignore[attr-defined]
        return USAGE
    if result == INTERRUPTED:  # what typer makes of Ctrl-C inside a command
        return _say("interrupted; everything was shut down.", INTERRUPTED)
    return result if isinstance(result, int) else OK


def _say(what: object, code: int) -> int:
    print(f"miles: {what}", file=sys.stderr)
    return code
