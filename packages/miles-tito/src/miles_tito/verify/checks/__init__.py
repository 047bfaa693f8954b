"""One file per check: `APPEND_CHECKS` judge every append that succeeds, `TEMPLATE_CHECKS` the template as a whole.

A new check is one file and one line here.
"""

from collections.abc import Callable, Iterable

from miles_tito.verify.checks import (
    appended_content,
    appended_ids,
    appended_prefix,
    appended_specials,
    call_round_trip,
    clock,
    content_forms,
    generation_prompt,
    reasoning_retention,
    refusals,
    role_support,
    special_tokens,
    stop_tokens,
    suffix_equality,
    text_beside_calls,
    tool_grouping,
    unread_argument,
)
from miles_tito.verify.report import Failure, Finding
from miles_tito.verify.trial import Grown, Trial

APPEND_CHECKS: tuple[Callable[[Grown], Failure | None], ...] = (
    appended_content.check,
    appended_prefix.check,
    appended_specials.check,
    appended_ids.check,
)
TEMPLATE_CHECKS: tuple[Callable[[Trial], Iterable[Finding]], ...] = (
    refusals.check,
    unread_argument.check,
    role_support.check,
    generation_prompt.check,
    reasoning_retention.check,
    text_beside_calls.check,
    call_round_trip.check,
    stop_tokens.check,
    special_tokens.check,
    suffix_equality.check,
    tool_grouping.check,
    content_forms.check,
    clock.check,
)
