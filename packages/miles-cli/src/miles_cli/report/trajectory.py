"""One trajectory as HTML: every token in the colour of where it came from."""

import html
import math
from collections.abc import Mapping
from typing import Any

MOST_CHARACTERS = 30_000
"""Longer trajectories are cut, and say so."""

_KINDS = {
    "prompt": "what the rollout began with",
    "sampled": "sampled by the policy and trained; the paler, the less probable",
    "masked": "sampled, but not trained",
    "environment": "tool results and other messages of the environment",
    "glue": "template text between turns",
}

LEGEND = (
    '<p class="legend">'
    + "".join(f'<span class="token {kind}" data-tip="{tip}">{kind}</span>' for kind, tip in _KINDS.items())
    + "<span>The paler a sampled token, the less probable it was; point at it for its log-probability.</span></p>"
)


def trajectory(sample: Mapping[str, Any], *, opened: bool) -> str:
    """A foldable block: reward, finish and length in its head, the tokens below. All text is escaped."""
    spans = sample.get("spans") or []
    trained = sum(len(span["ids"]) for span in spans if span.get("trained"))
    head = (
        f"step {sample['step']} · {html.escape(str(sample.get('rollout_id')))} · reward {_reward(sample)} · "
        f"{html.escape(str(sample.get('finish')))} · {sample.get('num_tokens')} tokens, {trained} trained"
    )
    error = f'<p class="alarm">{html.escape(str(sample["error"]))}</p>' if sample.get("error") else ""
    mark = " open" if opened else ""
    return (
        f'<details class="card trajectory"{mark}><summary>{head}</summary>{error}'
        f'<div class="tokens">{_tokens(spans)}</div></details>'
    )


def _reward(sample: Mapping[str, Any]) -> str:
    reward = sample.get("reward")
    return f"{reward:.3f}" if isinstance(reward, int | float) else "none"


def _tokens(spans: list[Mapping[str, Any]]) -> str:
    parts, room = [], MOST_CHARACTERS
    for span in spans:
        if room <= 0:
            parts.append('<span class="cut"> … cut here</span>')
            break
        parts.append(_sampled(span, room) if span["origin"] == "sampled" else _other(span, room))
        room -= len(span["text"])
    return "".join(parts)


def _other(span: Mapping[str, Any], room: int) -> str:
    kind = span["origin"] if span["origin"] in _KINDS else "glue"
    tip = f"{kind}, {len(span['ids'])} tokens"
    return f'<span class="token {kind}" data-tip="{tip}">{_visible(span["text"][:room])}</span>'


def _sampled(span: Mapping[str, Any], room: int) -> str:
    kind = "sampled" if span.get("trained") else "masked"
    parts = []
    columns = zip(span["pieces"], span["ids"], span["logprobs"], span["weight_versions"], strict=True)
    for piece, token, logprob, version in columns:
        if room <= 0:
            break
        room -= len(piece)
        probability = math.exp(logprob)
        tip = f"{kind} · id {token} · logprob {logprob:.4f} · p {probability:.3f} · weights v{version}"
        parts.append(
            f'<span class="token {kind}" style="--p:{probability:.2f}" data-tip="{tip}">{_visible(piece)}</span>'
        )
    return "".join(parts)


def _visible(text: str) -> str:
    """Escaped, with a mark before each line break, which would not show otherwise."""
    return html.escape(text).replace("\n", '<i class="nl">⏎</i>\n')
