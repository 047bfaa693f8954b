"""What the verifier looks for: every failure and finding carries one of these rules, by its id."""

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that can be wrong with a template.

    id: stable, for reports and suppressions. title: what is required, as a sentence. cure: what helps in general.
    per_kind: its failures belong to a kind of append, whose verdict decides how severe they are.
    """

    id: str
    title: str
    cure: str
    per_kind: bool = False


_BRANCH = "Start a new branch from the whole conversation, or use a template that only appends."

_RULES = (
    Rule(
        id="strict-prefix",
        title="Text outside assistant turns stays as it is when messages are appended.",
        cure=_BRANCH,
        per_kind=True,
    ),
    Rule(
        id="content-loss",
        title="Every message, tool call and answer is in the render.",
        cure="Give the message another role, or use a template that supports it.",
        per_kind=True,
    ),
    Rule(
        id="content-order",
        title="Messages are rendered once and in their order.",
        cure="Append in the order and grouping that the template writes, give the message another role, or start a new "
        "branch from the whole conversation.",
        per_kind=True,
    ),
    Rule(
        id="template-raises",
        title="The template accepts every conversation of multi-turn training.",
        cure="Give the message another role or keep such conversations out, or use a template that accepts them.",
        per_kind=True,
    ),
    Rule(
        id="end-of-turn",
        title="A turn ends in one control token before the next message begins.",
        cure="Name the end-of-sequence ids in generation_config.json, or use a template that closes its turns.",
        per_kind=True,
    ),
    Rule(
        id="special-token-injection",
        title="Text that spells a control token never becomes one.",
        cure="Take the control tokens out of the messages, or use a tokenizer that can encode them as text.",
        per_kind=True,
    ),
    Rule(
        id="incremental-ids",
        title="The ids grown append by append are those of the whole render, piece by piece.",
        cure="Use the tokenizer that the model was trained with.",
        per_kind=True,
    ),
    Rule(
        id="not-proved",
        title="An append is proved before its ids are used.",
        cure=_BRANCH,
        per_kind=True,
    ),
    Rule(
        id="suffix-equality",
        title="What follows a turn is the same under other histories.",
        cure="None needed: the real history is rendered for each such append, which costs more the longer it is.",
    ),
    Rule(
        id="generation-prompt",
        title="The generation prompt opens a turn as the history shows it.",
        cure="Sample with the arguments that the history is rendered with; sampled ids are kept either way.",
    ),
    Rule(
        id="reasoning-retention",
        title="Reasoning stays in the history.",
        cure="Sampled ids keep it in a transcript; a new branch from messages does not have it.",
    ),
    Rule(
        id="text-beside-calls",
        title="Text beside a tool call stays where the model wrote it.",
        cure="Sampled ids keep it in a transcript; a new branch from messages does not have it there.",
    ),
    Rule(
        id="tool-grouping",
        title="Tool results appended one by one give the render of the whole run.",
        cure="Append all results of a turn in one call, as Miles does.",
    ),
    Rule(
        id="content-forms",
        title="The template accepts every form of content and arguments that the API allows.",
        cure="None needed with Miles, which normalises messages before each render; other renderers must, too.",
    ),
    Rule(
        id="clock",
        title="The render does not depend on when it happens.",
        cure="None needed with Miles, which freezes the clock of a transcript; other renderers must, too.",
    ),
    Rule(
        id="call-round-trip",
        title="Tool calls as the template writes them are read back from the ids.",
        cure="Name the family whose parser reads this format, or parse calls in the harness.",
    ),
    Rule(
        id="stop-tokens",
        title="The token that ends a turn is among the stop ids of the model's files.",
        cure="Add its id to eos_token_id in generation_config.json, or hand engines the ids that Miles derives.",
    ),
    Rule(
        id="role-support",
        title="Every required role is rendered.",
        cure="Map the role to one that the template renders.",
    ),
    Rule(
        id="unread-argument",
        title="Every template argument that is given is read by the template.",
        cure="Correct the name, or leave the argument out.",
    ),
    Rule(
        id="pinned-profile",
        title="The template derives as it did when its profile was pinned.",
        cure="Delete the pinned file and run again to accept what is derived now.",
    ),
)
RULES = {rule.id: rule for rule in _RULES}
"""Every rule by its id, in the order of reports."""
