"""What exact tokens cost: a turn of a long conversation against a full render and encoding, and what surrounds it.

Prints markdown tables. A real vocabulary is used where `MILES_TOKENIZERS` (or the shared test data) has one; otherwise
the quickstart's own. Times are of the process's CPU, the median of several calls, with the wall clock beside them.
"""

import gc
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from miles_core import env
from miles_tito import ChatTokenizer
from miles_tito.derive import Deriver
from miles_tito.profile import CALLS, SAYS, TOOL, USER, derive_profile
from miles_tito.profile_cache import ProfileCache
from miles_tito.proof import Prover
from miles_tito.render import ChatTemplate
from miles_tito.transcript import Transcript
from miles_tito.verify.vocabulary import default_vocabulary

ROOT = Path(__file__).parents[1]
LENGTHS = (1_000, 10_000, 30_000, 100_000)
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
MORE = " with a mill and an old bridge over the water" * 16
"""What makes a short result one of two hundred tokens."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Median seconds of one call: of the process's CPU, and on the wall clock."""

    cpu: float
    wall: float

    def __str__(self) -> str:
        return f"{self.cpu * 1e3:.2f} ({self.wall * 1e3:.2f})"


def main() -> None:
    """Measure and print."""
    folder = tokenizer_folder()
    chat = ChatTokenizer.from_pretrained(folder)
    peer = AutoTokenizer.from_pretrained(folder)
    conversations = [conversation(chat, length) for length in LENGTHS]
    print(f"\n### A turn with exact tokens against a full render (vocabulary: {folder.name})\n")
    print("CPU milliseconds (wall in brackets), medians.\n")
    print("| tokens so far | append, short result | append, 200 tokens | full render + encode | ratio | ratio, 200 |")
    print("|---|---|---|---|---|---|")
    for done in conversations:
        print(turn_row(chat, peer, done))
    print("\n| tokens | begin | verify |\n|---|---|---|")
    for done in conversations:
        whole = median(lambda done=done: chat.begin(done.messages, TOOLS), 5)
        check = median(lambda done=done: chat.verify(done), 3)
        print(f"| {done.num_tokens} | {whole} | {check} |")
    print_once(chat, folder)
    print_memory(chat)
    print_corpus()


def tokenizer_folder() -> Path:
    """A folder with a real vocabulary and a template that takes tools."""
    shared = shared_data("MILES_TOKENIZERS", "tokenizers") / "qwen3"
    return shared if shared.is_dir() else ROOT / "packages/miles-cli/src/miles_cli/recipes/quickstart/model"


def shared_data(variable: str, name: str) -> Path:
    """The folder that the variable names, else the one beside the checkout."""
    return Path(env.get(variable) or ROOT.parent / "shared" / name)


def conversation(chat: ChatTokenizer, length: int) -> Transcript:
    """Tool steps up to about that many tokens, the last turn sampled and not yet answered."""
    transcript = chat.begin([{"role": "user", "content": "Find the population of every town on the list."}], TOOLS)
    turn = 0
    while True:
        turn += 1
        transcript = step(chat, transcript, turn)
        if transcript.num_tokens >= length:
            return transcript
        transcript = chat.append(transcript, [result(transcript, turn, more=MORE if turn % 16 == 2 else "")])


def step(chat: ChatTokenizer, transcript: Transcript, turn: int) -> Transcript:
    """One more turn that calls a tool."""
    call = json.dumps({"name": "look", "arguments": {"town": f"town {turn}"}})
    ids, _ = chat.vocabulary.encode(f"<tool_call>\n{call}\n</tool_call>")
    ids = [*ids, *chat.stop_token_ids[:1]]
    return transcript.sampled(ids, logprobs=[-0.5 - turn * 1e-6] * len(ids), weight_version=0)


def result(transcript: Transcript, turn: int, *, more: str = "") -> dict[str, str]:
    """A tool result of about forty tokens, and more."""
    calls = transcript.messages[-1].get("tool_calls") or [{"id": f"call_{turn}"}]
    text = f"Town {turn} has {turn * 1237} inhabitants, a church, a river and a market on each second Tuesday"
    return {"role": "tool", "tool_call_id": calls[0]["id"], "content": text + more}


def turn_row(chat: ChatTokenizer, peer: Any, done: Transcript) -> str:
    """A row of the table: one more result appended, and everything rendered and encoded."""
    few = [result(done, done.num_turns)]
    many = [result(done, done.num_turns, more=MORE)]
    everything = [rendered(message) for message in [*done.messages, *few]]
    full = median(lambda: peer.apply_chat_template(everything, tools=TOOLS, add_generation_prompt=True), 5)
    short, long = (median(lambda new=new: chat.append(done, new), 201) for new in (few, many))
    ratios = f"{full.cpu / short.cpu:.0f}x | {full.cpu / long.cpu:.0f}x"
    return f"| {done.num_tokens} | {short} | {long} | {full} | {ratios} |"


def rendered(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message as transformers wants it: arguments as an object, content as a string."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    return {**message, "content": message.get("content") or "", **({"tool_calls": calls} if calls else {})}


def print_once(chat: ChatTokenizer, folder: Path) -> None:
    """What is done once: deriving a profile, cold and from the cache, and proving a kind of append."""
    template, vocabulary = chat.template, chat.vocabulary
    cache = ProfileCache()
    cache.profile_of(template, vocabulary, folder=None)
    rows: list[tuple[str, Callable[[], object], int]] = [
        ("compile the template", lambda: ChatTemplate(template.source), 5),
        ("derive a profile", lambda: derive_profile(template, vocabulary), 5),
        ("the profile from the cache", lambda: cache.profile_of(template, vocabulary, folder=None), 51),
        ("prove the first kind", lambda: Prover(chat.deriver).prove(CALLS, [TOOL], with_tools=True), 5),
        ("load the tokenizer's folder", lambda: ChatTokenizer.from_pretrained(folder), 3),
    ]
    print("\n| once | CPU ms (wall) |\n|---|---|")
    for name, work, repeats in rows:
        print(f"| {name} | {median(work, repeats)} |")


def print_memory(chat: ChatTokenizer, turns: int = 1000) -> None:
    """Memory of a transcript, log-probabilities and messages included, and of a branch of it."""
    transcript = conversation(chat, 100)
    before = transcript.num_tokens
    gc.collect()
    tracemalloc.start()
    for turn in range(turns):
        transcript = step(chat, chat.append(transcript, [result(transcript, turn)]), turn)
    held, _ = tracemalloc.get_traced_memory()
    tokens = transcript.num_tokens - before
    branches = [chat.append(transcript, [result(transcript, turn)]) for turn in range(100)]
    more, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"\n{turns} turns, {tokens} tokens: {held / 2**20:.1f} MiB, {held / tokens:.0f} bytes a token;", end=" ")
    print(f"a branch of it: {(more - held) / len(branches) / 1024:.1f} KiB.")


def print_corpus() -> None:
    """Deriving and proving over a folder of templates, where there is one."""
    paths = sorted(shared_data("MILES_TEMPLATE_CORPUS", "templates").glob("*.jinja"))
    if not paths:
        return
    spent: dict[str, list[float]] = {}
    for path in paths:
        for name, seconds in derived(path.read_bytes().decode("utf-8")).items():
            spent.setdefault(name, []).append(seconds)
    print(f"\n| over {len(paths)} templates | median CPU ms | slowest |\n|---|---|---|")
    for name, seconds in spent.items():
        print(f"| {name} | {statistics.median(seconds) * 1e3:.0f} | {max(seconds) * 1e3:.0f} |")


def derived(source: str) -> dict[str, float]:
    """CPU seconds of each step from a template's text to a proved append."""
    marks: list[tuple[str, float]] = [("", time.process_time())]
    template = ChatTemplate(source)
    marks.append(("compile the template", time.process_time()))
    vocabulary = default_vocabulary(template)
    marks.append(("guess its vocabulary", time.process_time()))
    profile, template = derive_profile(template.with_special_tokens(vocabulary.special_tokens), vocabulary)
    marks.append(("derive a profile", time.process_time()))
    prover = Prover(Deriver(template, vocabulary.marker, profile.stops, profile.prefills))
    prover.prove(SAYS, [USER], with_tools=False)
    marks.append(("prove user turns", time.process_time()))
    prover.prove(CALLS, [TOOL], with_tools=True)
    marks.append(("prove tool results", time.process_time()))
    return {name: at - before for (_, before), (name, at) in pairwise(marks)}


def median(work: Callable[[], object], repeats: int) -> Spent:
    """Median seconds of a call, the first one left out."""
    work()
    pairs = [_spent(work) for _ in range(repeats)]
    return Spent(*(statistics.median(column) for column in zip(*pairs, strict=True)))


def _spent(work: Callable[[], object]) -> Sequence[float]:
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


if __name__ == "__main__":
    main()
