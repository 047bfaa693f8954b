"""Forms of a report: each a function of the outcomes and the options, in a file of its own."""

from collections.abc import Callable, Sequence

from miles_tito.verify.formats.json_document import json_document
from miles_tito.verify.formats.junit import junit
from miles_tito.verify.formats.sarif import sarif
from miles_tito.verify.formats.text import text
from miles_tito.verify.options import Options
from miles_tito.verify.report import Outcome

FORMATS: dict[str, Callable[[Sequence[Outcome], Options], str]] = {
    "text": text,
    "json": json_document,
    "junit": junit,
    "sarif": sarif,
}
"""Forms by the name that `--format` takes."""
