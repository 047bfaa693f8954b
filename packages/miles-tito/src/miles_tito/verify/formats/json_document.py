"""Everything as one JSON document."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from miles_tito.verify.formats.table import totals
from miles_tito.verify.options import Options
from miles_tito.verify.report import Outcome, Unusable


def json_document(outcomes: Sequence[Outcome], options: Options) -> str:
    """For one template its report; for several an object with them under "templates" and the totals as text."""
    documents = [as_json(outcome) for outcome in outcomes]
    if len(documents) == 1:
        return json.dumps(documents[0], ensure_ascii=False, indent=1, default=str)
    whole = {
        "sound": all(document["sound"] for document in documents),
        "passes": all(not isinstance(outcome, Unusable) and outcome.passes(options.fail_on) for outcome in outcomes),
        "totals": totals(outcomes),
        "templates": documents,
    }
    return json.dumps(whole, ensure_ascii=False, indent=1, default=str)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """One outcome as JSON values; of an unusable one "why", of a report every verdict with what follows from it."""
    data = asdict(outcome)
    if isinstance(outcome, Unusable):
        return data | {"sound": False}
    for verdict, entry in zip(outcome.verdicts, data["verdicts"], strict=True):
        entry |= {"sound": verdict.sound, "severity": verdict.severity, "cure": verdict.cure}
    for finding, entry in zip(outcome.findings, data["findings"], strict=True):
        entry["cure"] = finding.advice
    return data | {"sound": outcome.sound, "profile": json.loads(outcome.profile) if outcome.profile else None}
