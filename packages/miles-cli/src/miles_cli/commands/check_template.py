"""`miles check-template`: is a chat template safe for token-in-token-out sessions?"""

from pathlib import Path
from typing import Annotated, Literal

import typer

_Paths = Annotated[
    list[Path], typer.Argument(help="A model folder, a .jinja file, or a folder of these.", metavar="PATH...")
]
_Tokenizer = Annotated[Path | None, typer.Option(metavar="DIR", help="Take the vocabulary from this folder.")]
_Kwargs = Annotated[str, typer.Option(metavar="JSON", help="Template arguments as a JSON object.")]
_Arg = Annotated[
    list[str] | None, typer.Option("--arg", metavar="NAME=VALUE", help="One template argument; may be repeated.")
]
_Tools = Annotated[bool, typer.Option("--tools/--no-tools", help="Check conversations with tools.")]
_Thinking = Annotated[Literal["on", "off", "both"], typer.Option(help="Turns with reasoning.")]
_Require = Annotated[
    list[str] | None, typer.Option(metavar="KIND", help="Kinds of append that must be sound; may be repeated.")
]
_Roles = Annotated[
    list[str] | None, typer.Option(metavar="ROLE", help="Roles whose every append must be sound; may be repeated.")
]
_Format = Annotated[Literal["text", "json", "junit", "sarif"], typer.Option(help="Form of the report.")]
_Output = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the report here; the text goes to the terminal.")
]
_FailOn = Annotated[Literal["error", "warning"], typer.Option(help="What makes the exit code 1.")]
_Explain = Annotated[bool, typer.Option("--explain", help="Show every conversation that fails, and what was derived.")]
_Pin = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the derived profile, or compare with the one written before.")
]
_Timeout = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Longest for one template.")]
_Jobs = Annotated[int | None, typer.Option(min=1, metavar="N", help="Processes at once; by default one for each core.")]


def check_template(
    paths: _Paths,
    tokenizer: _Tokenizer = None,
    kwargs: _Kwargs = "{}",
    arg: _Arg = None,
    tools: _Tools = True,
    thinking: _Thinking = "both",
    require: _Require = None,
    roles: _Roles = None,
    format: _Format = "text",
    output: _Output = None,
    fail_on: _FailOn = "error",
    explain: _Explain = False,
    pin: _Pin = None,
    timeout_s: _Timeout = 120.0,
    jobs: _Jobs = None,
) -> int:
    """Grow conversations append by append and say, for each kind of append, whether the template is sound.

    Exit code 0: sound; 1: some append is not; 2: a template that cannot be read, rendered or checked in time.
    """
    from miles_tito.verify.command import run
    from miles_tito.verify.options import Options

    return run(
        Options(
            paths=tuple(paths),
            tokenizer=tokenizer,
            kwargs=kwargs,
            arg=tuple(arg or ()),
            tools=tools,
            thinking=thinking,
            require=tuple(require or ()),
            roles=tuple(roles or ()),
            format=format,
            output=output,
            fail_on=fail_on,
            explain=explain,
            pin=pin,
            timeout_s=timeout_s,
            jobs=jobs,
        )
    )
