"""The requests that run on an engine of the core, and what they emitted."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from dflash2._native import core, drain_log
from dflash2.errors import DFlash2Error
from dflash2.types import AcceptRule, Mode, Response, Stats, Token

_STARTED = Token(-1, "", False)


class Stream:
    """A request: what it emitted and nobody took yet."""

    def __init__(self, request: core.Request, mode: Mode, accept_rule: AcceptRule | None) -> None:
        self.id = -1  # until it is submitted
        self.request = request
        self.mode = mode
        self.accept_rule = accept_rule
        self.pending: deque[Token] = deque()
        self.reason: str | None = None  # why it finished
        self.stats: Stats | None = None  # when it finished
        self.superseded = False


class Streams:
    """Runs requests, from one thread at a time.

    Args:
        engine: runs them.
        n_most: that run side by side; one more ends the oldest.

    Raises, every call:
        DFlash2Error: closed, or busy in another thread.
    """

    def __init__(self, engine: core.Engine, n_most: int) -> None:
        self.last: Stream | None = None
        self._engine: core.Engine | None = engine
        self._n_most = n_most
        self._lock = threading.Lock()
        self._running: dict[int, Stream] = {}  # oldest first
        self._dropped: deque[Stream] = deque()  # to be ended before the next step

    @property
    def engine(self) -> core.Engine:
        if self._engine is None:
            raise DFlash2Error("the engine is closed")
        return self._engine

    @contextmanager
    def exclusive(self) -> Iterator[core.Engine]:
        if not self._lock.acquire(blocking=False):
            raise DFlash2Error("the engine is busy in another thread; use one engine per thread")
        try:
            yield self.engine
        finally:
            self._lock.release()

    def start(self, stream: Stream) -> None:
        """Submits, and decodes the prompt so that its errors are raised here."""
        with self.exclusive():
            self._submit(stream)
            others = [s for s in self._running.values() if s is not stream]
            for oldest in others[: max(0, len(others) + 1 - self._n_most)]:
                oldest.superseded = True
                self._end(oldest)
            while not stream.pending:
                self._step()

    def finish(self, streams: list[Stream]) -> list[Response]:
        """Submits all of them and runs them to their ends."""
        with self.exclusive():
            try:
                for stream in streams:
                    self._submit(stream)
                while not all(stream.reason for stream in streams):
                    self._step()
            except BaseException:
                self._dropped.extend(streams)
                self._end_dropped()
                raise
            return [self.response(stream, list(stream.pending)) for stream in streams]

    def tokens(self, stream: Stream) -> Iterator[Token]:
        """What a started one emits; it ends when the iterator is dropped."""
        tokens = self._tokens(stream)
        next(tokens)  # a generator that never ran would not notice that it is dropped
        return tokens

    def response(self, stream: Stream, items: list[Token]) -> Response:
        return Response(
            text="".join(item.text for item in items),
            tokens=tuple(item.token for item in items if item.token >= 0),
            finish_reason=stream.reason or "",
            seed=stream.request.seed,
            mode=stream.mode,
            accept_rule=stream.accept_rule,
            stats=stream.stats or self.stats(stream),
        )

    def stats(self, stream: Stream) -> Stats:
        # The core forgets a request when another one takes its sequence.
        return stream.stats or Stats.of(self.engine.request_stats(stream.id))

    def close(self) -> None:
        """Closing twice is fine."""
        if self._engine is not None:
            with self.exclusive():
                self._running.clear()
                self._engine = None

    def _submit(self, stream: Stream) -> None:
        try:
            stream.id = self.engine.submit(stream.request)
        finally:
            drain_log()
        self._running[stream.id] = self.last = stream

    def _step(self) -> None:
        """One step of the core, by the holder of the lock; hands its tokens to their streams."""
        self._end_dropped()
        try:
            steps = self.engine.step()
        except BaseException:
            # The core dropped at least the requests of the failed pass; none can be trusted.
            self._dropped.extend(self._running.values())
            self._end_dropped()
            raise
        finally:
            drain_log()
        for progress in steps:
            stream = self._running[progress.id]
            reason = progress.finish_reason
            items = [Token(t.id, t.text, t.from_draft) for t in progress.tokens]
            if reason is not None:
                last = items.pop()
                items.append(Token(last.token, last.text, last.from_draft, reason))
                stream.reason = reason
                stream.stats = self.stats(stream)
                del self._running[progress.id]
            stream.pending.extend(items)

    def _end(self, stream: Stream) -> None:
        """Ends a request now, or before the next step while the core is at work."""
        self._dropped.append(stream)
        if self._lock.acquire(blocking=False):
            try:
                self._end_dropped()
            finally:
                self._lock.release()

    def _end_dropped(self) -> None:
        while self._dropped:
            stream = self._dropped.popleft()
            if self._running.pop(stream.id, None) is not None and self._engine is not None:
                stream.stats = self.stats(stream)
                self._engine.cancel(stream.id)

    def _tokens(self, stream: Stream) -> Iterator[Token]:
        try:
            yield _STARTED
            while True:
                while stream.pending and not stream.superseded:
                    yield stream.pending.popleft()
                if stream.superseded:
                    raise DFlash2Error("this stream was ended by a later request on its engine")
                if stream.reason is not None:
                    return
                with self.exclusive():
                    if stream.id not in self._running:
                        raise DFlash2Error("this stream was ended by an error in another request")
                    self._step()
        finally:
            self._end(stream)
