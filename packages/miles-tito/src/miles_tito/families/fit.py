"""Whether a family's data holds for a template and a vocabulary: what is derived wins, a contradiction is an error."""

from collections.abc import Mapping
from typing import Any

from miles_core.errors import TokenError
from miles_tito.families.family import Family
from miles_tito.parsers.detect import reads_back
from miles_tito.parsers.formats import FORMATS, REASONING, TurnFormat, format_named
from miles_tito.render import ChatTemplate, mentions
from miles_tito.vocabulary import Vocabulary


def arguments_of(family: Family, source: str) -> Mapping[str, Any]:
    """The family's template arguments; TokenError for one that the template's source never mentions."""
    unknown = [name for name in family.template_kwargs if not mentions(source, name)]
    if unknown:
        raise TokenError(
            f"expected a template of family {family.name!r}, which takes the argument {unknown[0]}, found one that "
            f"never mentions it; {_AUTO}"
        )
    return family.template_kwargs


def with_stops_of(family: Family, vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary that also stops at the family's tokens; TokenError when it lacks the one that ends most turns."""
    if vocabulary.id_of(family.stops[0]) is None:
        raise TokenError(
            f"expected a vocabulary of family {family.name!r}, whose turns end with {family.stops[0]!r}, found one "
            f"without that token; {_AUTO}"
        )
    ids = (vocabulary.id_of(stop) for stop in family.stops)
    return vocabulary.with_stop_ids([number for number in ids if number is not None])


def format_of(family: Family, template: ChatTemplate, derived: str) -> TurnFormat:
    """The family's turn format; TokenError when it does not read back the calls that the template writes.

    derived: name of the format that was found to read the template. Calls that no format was found for are believed to
    be the family's; marks of reasoning are the template's where it shows any.
    """
    calls, reasoning = _parts(family.format)
    found_calls, found_reasoning = _parts(derived)
    chosen = format_named("+".join(filter(None, (calls, found_reasoning or reasoning))))
    if not found_calls or reads_back(template, chosen):
        return chosen
    raise TokenError(
        f"expected tool calls as {calls!r}, the format of family {family.name!r}, found a template that writes them as "
        f"{found_calls!r}; {_AUTO}"
    )


_AUTO = 'use family="auto", which derives what the template does.'


def _parts(name: str) -> tuple[str, str]:
    """The syntax of calls and the marks of reasoning in a format's name, empty for none."""
    parts = name.split("+")
    calls = next((part for part in parts if part in FORMATS), "")
    return calls, next((part for part in parts if part in REASONING), "")
