"""One turn of a long conversation: append the new messages to a transcript, against `apply_chat_template` on it all.

Prints a markdown table. A real vocabulary is used where `MILES_TOKENIZERS` (or the shared test data) has one; otherwise
the quickstart's own.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from miles_core import env
from miles_tito import ChatTokenizer

ROOT = Path(__file__).parents[1]
LENGTHS = (1_000, 10_000, 30_000)
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def tokenizer_folder() -> Path:
    """A folder with a real vocabulary and a template that takes tools."""
    shared = Path(env.get("MILES_TOKENIZERS") or ROOT.parent / "shared" / "tokenizers") / "qwen3"
    return shared if shared.is_dir() else ROOT / "packages/miles-cli/src/miles_cli/recipes/quickstart/model"


def main() -> None:
    """Measure and print."""
    folder = tokenizer_folder()
    chat = ChatTokenizer.from_pretrained(folder)
    peer = AutoTokenizer.from_pretrained(folder)
    print(f"\n### A turn with exact tokens against a full render (vocabulary: {folder.name})\n")
    print("| tokens so far | append (ms) | full render + encode (ms) | ratio |")
    print("|---|---|---|---|")
    for length in LENGTHS:
        append, whole, tokens = measure(chat, peer, length)
        print(f"| {tokens} | {append * 1e3:.2f} | {whole * 1e3:.2f} | {whole / append:.0f}x |")


def measure(chat: ChatTokenizer, peer: Any, length: int) -> tuple[float, float, int]:
    """Median seconds of an append, of a full render and encoding by transformers, and the tokens so far."""
    messages = [{"role": "user", "content": "Find the population of every town on the list."}]
    transcript = chat.begin(messages, tools=TOOLS)
    turn = 0
    while len(transcript.ids) < length:
        turn += 1
        body = {"name": "look", "arguments": {"town": f"town {turn}"}}
        text = f"<tool_call>\n{json.dumps(body)}\n</tool_call>" + chat.vocabulary.decode(chat.stop_token_ids[:1])
        ids, _ = chat.vocabulary.encode(text)
        transcript = transcript.sampled(ids, logprobs=[-0.5] * len(ids), weight_version=0)
        transcript = chat.append(transcript, [result(turn)])
    ids, _ = chat.vocabulary.encode("Done." + chat.vocabulary.decode(chat.stop_token_ids[:1]))
    done = transcript.sampled(ids, logprobs=[-0.5] * len(ids), weight_version=0)
    new = [result(turn + 1)]
    everything = [rendered(message) for message in [*done.messages, *new]]
    append = median(lambda: chat.append(done, new))
    whole = median(lambda: peer.apply_chat_template(everything, tools=TOOLS, add_generation_prompt=True))
    return append, whole, len(transcript.ids)


def rendered(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message as transformers wants it: arguments as an object, content as a string."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    return {**message, "content": message.get("content") or "", **({"tool_calls": calls} if calls else {})}


def result(turn: int) -> dict[str, str]:
    """A tool result of about forty tokens."""
    return {
        "role": "tool",
        "tool_call_id": f"call_{turn}",
        "content": f"Town {turn} has {turn * 1237} inhabitants, a church, a river and a market on each second Tuesday",
    }


def median(work: Callable[[], object], repeats: int = 9) -> float:
    """Median seconds of a call."""
    spent = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        spent.append(time.perf_counter() - begin)
    return statistics.median(spent)


if __name__ == "__main__":
    main()
