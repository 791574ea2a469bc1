"""The engine: a target, perhaps a drafter, and the requests that run on them."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, TypeGuard, cast, overload

from dflash2._native import core, drain_log, logger
from dflash2.chat import ChatTemplate, Messages
from dflash2.errors import DFlash2Error
from dflash2.types import AcceptRule, Mode, Response, SamplingParams, Stats, Token

Prompt = str | Sequence[int]
Prompts = list[str] | list[list[int]] | list[Prompt]
Params = SamplingParams | Sequence[SamplingParams] | None


_STARTED = Token(-1, "", False)


class _Stream:
    """A running request: what it emitted and nobody took yet."""

    def __init__(self, id: int, seed: int, mode: Mode, accept_rule: AcceptRule | None) -> None:
        self.id = id
        self.seed = seed
        self.mode = mode
        self.accept_rule = accept_rule
        self.pending: deque[Token] = deque()
        self.reason: str | None = None  # why it finished
        self.stats: Stats | None = None  # when it finished
        self.superseded = False


class Engine:
    """Generates with a target, and losslessly faster with a drafter.

    As many requests run side by side as the target has sequences; one more stream ends the oldest.
    Use it from one thread, or guard it; a call while another thread is inside fails. `load` makes
    one from files.

    Args:
        target: the target model.
        drafter: None: plain decoding.
        spec_draft_n_max: tokens drafted in every round; None: chosen in each round by what drafts
            and target passes cost here and how often drafts are accepted, down to none. With a
            fixed number a seed repeats a sampled answer.
        spec_draft_p_min: end a greedy draft before a token that is less likely than this.
        draft_temperature: the drafter samples at this multiple of a request's temperature. Any
            value keeps the output's distribution; it changes how much is accepted.
        accept_rule: "rejection", or "match" as in llama.cpp, for comparison.

    Raises:
        ValueError: a parameter is out of range.
        IncompatibleModelsError: the target cannot expose what the drafter needs.
    """

    def __init__(
        self,
        target: core.Target,
        drafter: core.Drafter | None = None,
        *,
        spec_draft_n_max: int | None = None,
        spec_draft_p_min: float = 0.0,
        draft_temperature: float = 1.0,
        accept_rule: AcceptRule = "rejection",
    ) -> None:
        self._core: core.Engine | None = core.Engine(
            target,
            drafter,
            n_draft_max=_n_draft(spec_draft_n_max),
            p_min=spec_draft_p_min,
            draft_temperature=draft_temperature,
            accept_rule=accept_rule,
        )
        self._target: core.Target | None = target
        self._n_draft = 0 if drafter is None else spec_draft_n_max
        self._accept_rule = accept_rule
        self._template: ChatTemplate | None = None
        self._lock = threading.Lock()
        self._streams: dict[int, _Stream] = {}  # running, oldest first
        self._dropped: deque[_Stream] = deque()  # to be ended before the next step
        self._last: _Stream | None = None
        effective = self._core.n_draft_max
        if drafter is not None and spec_draft_n_max is not None and spec_draft_n_max > effective:
            logger.warning("spec_draft_n_max %d: the most is %d", spec_draft_n_max, effective)

    # -- generation

    @overload
    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        spec_draft_n_max: int | None = None,
    ) -> Response: ...

    @overload
    def generate(
        self,
        prompt: Prompts,
        params: Params = None,
        *,
        spec_draft_n_max: int | None = None,
    ) -> list[Response]: ...

    def generate(
        self,
        prompt: Prompt | Prompts,
        params: Params = None,
        *,
        spec_draft_n_max: int | None = None,
    ) -> Response | list[Response]:
        """The whole answer, or the answers to a list of prompts in its order.

        A list keeps all the target's sequences busy. `params` may then be a list too. Other
        arguments and errors as for `stream`.
        """
        if not _is_list_of_prompts(prompt):
            if params is not None and not isinstance(params, SamplingParams):
                raise ValueError("params: expected one SamplingParams for one prompt, got a list")
            one = cast("Prompt", prompt)
            return self._collect(self._open_stream(one, params, spec_draft_n_max))
        each = _params_for(len(prompt), params)
        with self._exclusive():
            streams = []
            try:
                for one, its in zip(prompt, each, strict=True):
                    streams.append(self._submit(self._ids(one), its, spec_draft_n_max))
                while not all(stream.reason for stream in streams):
                    self._step()
            except BaseException:
                self._dropped.extend(streams)
                self._end_dropped()
                raise
            return [self._response(stream, list(stream.pending)) for stream in streams]

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        spec_draft_n_max: int | None = None,
    ) -> Iterator[Token]:
        """Decodes the prompt, then yields tokens as they are verified.

        The iterator may be dropped at any time. It fails once a later one took its place.

        Args:
            prompt: text, in which special tokens are recognised, or token ids.
            params: None: greedy until the end.
            spec_draft_n_max: for this request; None: as the engine; 0: plain decoding.

        Raises:
            ValueError: the prompt is empty or a parameter is out of range.
            ContextFullError: the prompt does not fit into the context.
            DecodeError: a backend failed.
            DFlash2Error: the engine is closed, or busy in another thread.
        """
        return self._iterate(self._open_stream(prompt, params, spec_draft_n_max))

    @overload
    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        stream: Literal[False] = False,
        spec_draft_n_max: int | None = None,
    ) -> Response: ...

    @overload
    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        stream: Literal[True],
        spec_draft_n_max: int | None = None,
    ) -> Iterator[Token]: ...

    def chat(
        self,
        messages: Messages,
        params: SamplingParams | None = None,
        *,
        stream: bool = False,
        spec_draft_n_max: int | None = None,
    ) -> Response | Iterator[Token]:
        """Answers a conversation, rendered with the chat template in the target's file.

        What the conversation shares with the one before is not decoded again.

        Args:
            messages: mappings with "role" (system, user, assistant) and "content".
            stream: yield tokens instead of returning the whole answer.

        Raises:
            DFlash2Error: the target has no usable chat template.
            ValueError: the template refuses the messages.
        """
        opened = self._open_stream(self.tokenize_chat(messages), params, spec_draft_n_max)
        return self._iterate(opened) if stream else self._collect(opened)

    # -- requests

    def _ids(self, prompt: Prompt) -> list[int]:
        return self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)

    def _open_stream(
        self, prompt: Prompt, params: SamplingParams | None, n_draft: int | None
    ) -> _Stream:
        """Submits, and decodes the prompt so that its errors are raised here."""
        ids = self._ids(prompt)
        with self._exclusive():
            stream = self._submit(ids, params, n_draft)
            running = [s for s in self._streams.values() if s is not stream]
            for oldest in running[: max(0, len(running) + 1 - self._model().n_seq)]:
                oldest.superseded = True
                self._end(oldest)
            while not stream.pending:
                self._step()
            return stream

    def _submit(
        self, prompt: list[int], params: SamplingParams | None, n_draft: int | None
    ) -> _Stream:
        params = SamplingParams() if params is None else params
        request = params.to_request(
            prompt, secrets.randbits(32) if params.seed is None else params.seed, _n_draft(n_draft)
        )
        if self._n_draft == 0 or n_draft is None:
            n_draft = self._n_draft
        mode: Mode = "adaptive" if n_draft is None else "fixed" if n_draft > 0 else "plain"
        rule = self._accept_rule if params.temperature > 0 else "match"
        try:
            id = self._open().submit(request)
            stream = _Stream(id, request.seed, mode, None if mode == "plain" else rule)
        finally:
            drain_log()
        self._streams[stream.id] = self._last = stream
        return stream

    def _step(self) -> None:
        """One step of the core, by the holder of the lock; hands its tokens to their streams."""
        self._end_dropped()
        try:
            steps = self._open().step()
        except BaseException:
            # The core dropped at least the requests of the failed pass; none can be trusted.
            self._dropped.extend(self._streams.values())
            self._end_dropped()
            raise
        finally:
            drain_log()
        for progress in steps:
            stream = self._streams[progress.id]
            reason = progress.finish_reason
            items = [Token(t.id, t.text, t.from_draft) for t in progress.tokens]
            if reason is not None:
                last = items.pop()
                items.append(Token(last.token, last.text, last.from_draft, reason))
                stream.reason = reason
                stream.stats = self._stats(stream)
                del self._streams[progress.id]
            stream.pending.extend(items)

    def _stats(self, stream: _Stream) -> Stats:
        # The core forgets a request when another one takes its sequence.
        return stream.stats or Stats.of(self._open().request_stats(stream.id))

    def _end(self, stream: _Stream) -> None:
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
            if self._streams.pop(stream.id, None) is not None and self._core is not None:
                stream.stats = self._stats(stream)
                self._core.cancel(stream.id)

    def _iterate(self, stream: _Stream) -> Iterator[Token]:
        tokens = self._tokens(stream)
        next(tokens)  # a generator that never ran would not notice that it is dropped
        return tokens

    def _tokens(self, stream: _Stream) -> Iterator[Token]:
        try:
            yield _STARTED
            while True:
                while stream.pending and not stream.superseded:
                    yield stream.pending.popleft()
                if stream.superseded:
                    raise DFlash2Error("this stream was ended by a later request on its engine")
                if stream.reason is not None:
                    return
                with self._exclusive():
                    if stream.id not in self._streams:
                        raise DFlash2Error("this stream was ended by an error in another request")
                    self._step()
        finally:
            self._end(stream)

    def _collect(self, stream: _Stream) -> Response:
        return self._response(stream, list(self._iterate(stream)))

    def _response(self, stream: _Stream, items: list[Token]) -> Response:
        return Response(
            text="".join(item.text for item in items),
            tokens=tuple(item.token for item in items if item.token >= 0),
            finish_reason=stream.reason or "",
            seed=stream.seed,
            mode=stream.mode,
            accept_rule=stream.accept_rule,
            stats=stream.stats or self._stats(stream),
        )

    @contextmanager
    def _exclusive(self) -> Iterator[core.Engine]:
        if not self._lock.acquire(blocking=False):
            raise DFlash2Error("the engine is busy in another thread; use one engine per thread")
        try:
            yield self._open()
        finally:
            self._lock.release()

    # -- text

    def tokenize(self, text: str) -> list[int]:
        """Token ids of a prompt. The model's BOS is added, special tokens are recognised."""
        return self._model().tokenize(_bytes(text), add_special=True, parse_special=True)

    def tokenize_chat(self, messages: Messages) -> list[int]:
        """Token ids of messages after the chat template. Errors as for `chat`."""
        if self._template is None:
            self._template = ChatTemplate(self._model())
        text = self._template.render(messages)
        # A template may write the BOS itself.
        has_bos = bool(self._template.bos) and text.startswith(self._template.bos)
        return self._model().tokenize(_bytes(text), add_special=not has_bos, parse_special=True)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        model = self._model()
        return b"".join(model.piece(token) for token in tokens).decode(errors="replace")

    # -- state

    @property
    def stats(self) -> Stats:
        """Counters of the last request.

        Raises:
            DFlash2Error: there was none yet.
        """
        with self._exclusive():
            return self._stats(self._last_stream())

    @property
    def total_stats(self) -> Stats:
        """Counters of all requests."""
        with self._exclusive() as engine:
            return Stats.of(engine.total_stats)

    @property
    def finish_reason(self) -> str | None:
        """Why the last request ended, as in `Token`; None while it runs.

        Raises:
            DFlash2Error: there was none yet.
        """
        return self._last_stream().reason

    @property
    def seed(self) -> int:
        """Seed of the last request. Errors as for `stats`."""
        return self._last_stream().seed

    @property
    def mode(self) -> Mode:
        """Of the last request, as in `Response`. Errors as for `stats`."""
        return self._last_stream().mode

    @property
    def accept_rule(self) -> AcceptRule | None:
        """Of the last request, as in `Response`. Errors as for `stats`."""
        return self._last_stream().accept_rule

    @property
    def spec_draft_n_max(self) -> int:
        """Tokens drafted per round, the most when lengths are adaptive; 0 without a drafter."""
        return self._open().n_draft_max

    @property
    def n_ctx(self) -> int:
        """Size of the context in tokens."""
        return self._model().n_ctx

    @property
    def description(self) -> str:
        """The target in words, such as "llama 135M Q4_1"."""
        return self._model().description

    # -- lifetime

    def close(self) -> None:
        """Frees the models. Further calls fail; closing twice is fine.

        Raises:
            DFlash2Error: busy in another thread.
        """
        if self._core is not None:
            with self._exclusive():
                self._streams.clear()
                self._core = self._target = self._template = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _last_stream(self) -> _Stream:
        if self._last is None:
            raise DFlash2Error("nothing was generated yet")
        return self._last

    def _open(self) -> core.Engine:
        if self._core is None:
            raise DFlash2Error("the engine is closed")
        return self._core

    def _model(self) -> core.Target:
        if self._target is None:
            raise DFlash2Error("the engine is closed")
        return self._target


def _is_list_of_prompts(prompt: Prompt | Prompts) -> TypeGuard[Prompts]:
    return isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int))


def _params_for(n: int, params: Params) -> Sequence[SamplingParams | None]:
    if params is None or isinstance(params, SamplingParams):
        return [params] * n
    if len(params) != n:
        raise ValueError(f"params: expected {n}, one per prompt, got {len(params)}")
    return params


def _n_draft(value: int | None) -> int:
    if value is not None and not 0 <= value < 2**31:
        raise ValueError(f"spec_draft_n_max: expected 0 (plain decoding) or more, got {value}")
    return -1 if value is None else value


def _bytes(text: str) -> bytes:
    """Arguments of a command that are not UTF-8 keep their bytes."""
    return text.encode(errors="surrogateescape")
