"""The engine: a target, perhaps a drafter, and one conversation with them at a time."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, overload

from dflash2._native import core, drain_log, logger
from dflash2.chat import ChatTemplate, Messages
from dflash2.errors import DFlash2Error
from dflash2.types import Response, SamplingParams, Stats, Token

Prompt = str | Sequence[int]


class Engine:
    """Generates with a target, and losslessly faster with a drafter.

    One request runs at a time: a new one ends the one before it. Use it from one thread, or guard
    it; a call while another thread is inside fails. `load` makes one from files.

    Args:
        target: the target model.
        drafter: None: plain decoding.
        spec_draft_n_max: tokens drafted per round; None: all that the drafter can.
        spec_draft_p_min: end a greedy draft before a token that is less likely than this.
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
        accept_rule: Literal["rejection", "match"] = "rejection",
    ) -> None:
        self._core: core.Engine | None = core.Engine(
            target,
            drafter,
            n_draft_max=_n_draft(spec_draft_n_max),
            p_min=spec_draft_p_min,
            accept_rule=accept_rule,
        )
        self._target: core.Target | None = target
        self._template: ChatTemplate | None = None
        self._lock = threading.Lock()
        self._requests = 0
        self._seed: int | None = None
        effective = self._core.n_draft_max
        if drafter is not None and spec_draft_n_max is not None and spec_draft_n_max > effective:
            logger.warning("spec_draft_n_max %d: the most is %d", spec_draft_n_max, effective)

    # -- generation

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        spec_draft_n_max: int | None = None,
    ) -> Response:
        """The whole answer. Arguments and errors as for `stream`."""
        return self._collect(self.stream(prompt, params, spec_draft_n_max=spec_draft_n_max))

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        spec_draft_n_max: int | None = None,
    ) -> Iterator[Token]:
        """Decodes the prompt, then yields tokens as they are verified.

        The iterator may be dropped at any time. It fails once a later request has begun.

        Args:
            prompt: text, in which special tokens are recognised, or token ids.
            params: None: greedy until the end.
            spec_draft_n_max: for this request; 0: plain decoding.

        Raises:
            ValueError: the prompt is empty or a parameter is out of range.
            ContextFullError: the prompt does not fit into the context.
            DecodeError: a backend failed.
            DFlash2Error: the engine is closed, or busy in another thread.
        """
        tokens = self.tokenize(prompt) if isinstance(prompt, str) else prompt
        return self._start(tokens, params, spec_draft_n_max)

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

        Args:
            messages: mappings with "role" (system, user, assistant) and "content".
            stream: yield tokens instead of returning the whole answer.

        Raises:
            DFlash2Error: the target has no usable chat template.
            ValueError: the template refuses the messages.
        """
        tokens = self._start(self.tokenize_chat(messages), params, spec_draft_n_max)
        return tokens if stream else self._collect(tokens)

    def _start(
        self, prompt: Sequence[int], params: SamplingParams | None, n_draft: int | None
    ) -> Iterator[Token]:
        params = SamplingParams() if params is None else params
        request = core.Request()
        request.prompt = list(prompt)
        request.temperature = params.temperature
        request.top_k = params.top_k
        request.top_p = params.top_p
        request.min_p = params.min_p
        request.repeat_penalty = params.repeat_penalty
        request.repeat_last_n = params.repeat_last_n
        request.seed = secrets.randbits(32) if params.seed is None else params.seed
        request.max_tokens = -1 if params.max_tokens is None else params.max_tokens
        request.stop = list(params.stop)
        request.ignore_eos = params.ignore_eos
        request.n_draft_max = _n_draft(n_draft)
        with self._exclusive() as engine:
            self._requests += 1
            self._seed = request.seed
            try:
                engine.begin(request)
            finally:
                drain_log()
            return self._tokens(self._requests)

    def _tokens(self, request: int) -> Iterator[Token]:
        reason = None
        while reason is None:
            with self._exclusive() as engine:
                self._require_current(request)
                if engine.done:  # max_tokens is 0
                    return
                tokens = engine.next()
                reason = engine.finish_reason
            for token in tokens[:-1]:
                yield Token(token.id, token.text, token.from_draft)
                self._require_current(request)
            yield Token(tokens[-1].id, tokens[-1].text, tokens[-1].from_draft, reason)

    def _require_current(self, request: int) -> None:
        if request != self._requests:
            raise DFlash2Error("this stream was ended by a later request on its engine")

    def _collect(self, tokens: Iterator[Token]) -> Response:
        items = list(tokens)
        return Response(
            text="".join(item.text for item in items),
            tokens=tuple(item.token for item in items),
            finish_reason=self.finish_reason or "length",
            seed=self._seed or 0,
            stats=self.stats,
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
        """Counters of the last request."""
        return Stats.of(self._open().request_stats)

    @property
    def total_stats(self) -> Stats:
        """Counters of all requests."""
        return Stats.of(self._open().total_stats)

    @property
    def finish_reason(self) -> str | None:
        """Why the last request ended: "stop", "length" or "context"; None while it runs."""
        return self._open().finish_reason

    @property
    def seed(self) -> int | None:
        """Seed of the last request; None before the first."""
        return self._seed

    @property
    def spec_draft_n_max(self) -> int:
        """Tokens drafted per round; 0 without a drafter."""
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
        """Frees the models. Further calls fail; closing twice is fine."""
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

    def _open(self) -> core.Engine:
        if self._core is None:
            raise DFlash2Error("the engine is closed")
        return self._core

    def _model(self) -> core.Target:
        if self._target is None:
            raise DFlash2Error("the engine is closed")
        return self._target


def _n_draft(value: int | None) -> int:
    if value is not None and not 0 <= value < 2**31:
        raise ValueError(f"spec_draft_n_max: expected 0 (plain decoding) or more, got {value}")
    return -1 if value is None else value


def _bytes(text: str) -> bytes:
    """Arguments of a command that are not UTF-8 keep their bytes."""
    return text.encode(errors="surrogateescape")
