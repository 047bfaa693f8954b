"""Which requests run, in which slots, and what each computes in the next step. No tensors here."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from miles_megatron.engine.cache import PAGE
from miles_megatron.engine.prefix_index import PrefixIndex, extend_digests
from miles_megatron.engine.request import Request

BLOCK = 64
"""Tokens by which a request's share of the cache grows."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens `[start, start + length)` of a request, to be computed in one step."""

    request: Request
    start: int
    length: int

    @property
    def last(self) -> bool:
        """Whether the segment ends with the request's last token, so that the next one can be sampled."""
        return self.start + self.length == len(self.request.tokens)


@dataclass(frozen=True, slots=True)
class Admission:
    """A request that got a slot, and the pages to copy into it first."""

    request: Request
    pages: Sequence[int]


@dataclass(slots=True)
class Scheduler:
    """First come, first served, within a number of slots and a budget of cache tokens.

    When running requests outgrow the budget, the one admitted last goes back to the head of the queue; it is computed
    again later and, its random numbers being its own, goes on as if nothing had happened. A lone request always fits:
    the budget is at least one context.
    """

    max_running: int
    cache_tokens: int
    chunk: int
    prefixes: PrefixIndex
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    """In the order of admission."""
    retractions: int = 0

    def __iter__(self) -> Iterator[Request]:
        """Every request, running first."""
        yield from [*self.running, *self.waiting]

    def find(self, rid: str) -> Request | None:
        """The request of that name, if it is not finished."""
        return next((request for request in self if request.rid == rid), None)

    @property
    def used_tokens(self) -> int:
        """Cache tokens that running requests take, the next token of each included."""
        return sum(_share(request) for request in self.running)

    def overflow(self) -> list[Request]:
        """Requests to retract so that the rest can take a token each."""
        victims: list[Request] = []
        used = self.used_tokens
        while used > self.cache_tokens and len(self.running) - len(victims) > 1:
            victims.append(self.running[-1 - len(victims)])
            used -= _share(victims[-1])
        return victims

    def retract(self, request: Request) -> None:
        """Take a running request's slot away and put it at the head of the queue."""
        self.running.remove(request)
        request.slot, request.computed = -1, 0
        self.waiting.appendleft(request)
        self.retractions += 1

    def remove(self, request: Request) -> None:
        """Forget a request that ended."""
        (self.running if request.slot >= 0 else self.waiting).remove(request)
        request.slot = -1

    def admit(self) -> list[Admission]:
        """Give slots to waiting requests, in order.

        One that shares its first page with a request whose prompt is still being computed waits for that page; those
        behind it may pass.
        """
        admissions = []
        free = sorted(set(range(self.max_running)) - {request.slot for request in self.running}, reverse=True)
        for request in list(self.waiting):
            if not free or self._lacks_room(request):
                break
            extend_digests(request.page_digests, request.tokens)
            usable = request.page_digests[: (len(request.tokens) - 1) // PAGE]
            pages = self.prefixes.match(usable, request.tokens)
            if not pages and usable and self._is_being_computed(usable[0]):
                continue
            self.waiting.remove(request)
            request.slot, request.computed = free.pop(), len(pages) * PAGE
            if not request.admissions:
                request.cached_tokens = request.computed
            request.admissions += 1
            self.running.append(request)
            admissions.append(Admission(request, pages))
        return admissions

    def plan(self) -> list[Segment]:
        """One token of every request that decodes, by slot, then up to `chunk` tokens of prompts, oldest first."""
        decoding = sorted((r for r in self.running if r.decoding), key=lambda r: r.slot)
        segments = [Segment(request, request.computed, 1) for request in decoding]
        left = self.chunk
        for request in self.running:
            if request.decoding or not left:
                continue
            length = min(left, len(request.tokens) - request.computed)
            segments.append(Segment(request, request.computed, length))
            left -= length
        return segments

    def hole(self) -> tuple[Request, int] | None:
        """A request to move, and the lower free slot to move it to: a step attends over all slots up to the highest."""
        if not self.running:
            return None
        highest = max(self.running, key=lambda r: r.slot)
        if highest.slot + 1 == len(self.running):
            return None
        taken = {request.slot for request in self.running}
        return highest, next(slot for slot in range(self.max_running) if slot not in taken)

    def _lacks_room(self, request: Request) -> bool:
        return bool(self.running) and self.used_tokens + _share(request) > self.cache_tokens

    def _is_being_computed(self, digest: bytes) -> bool:
        return any(not r.decoding and r.page_digests[:1] == [digest] for r in self.running)


def _share(request: Request) -> int:
    """Cache tokens of a request that is about to take one more, in whole blocks."""
    return -(-(len(request.tokens) + 1) // BLOCK) * BLOCK
