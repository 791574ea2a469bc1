"""The engine: a target, perhaps a drafter, and the requests that run on them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Literal, TypeGuard, cast, overload

from dflash2._native import core, logger
from dflash2.chat import ChatTemplate, Messages
from dflash2.errors import DFlash2Error
from dflash2.streams import Stream, Streams
from dflash2.types import AcceptRule, Mode, Response, SamplingParams, Stats, Token

Prompt = str | Sequence[int]
Prompts = list[str] | list[list[int]] | list[Prompt]
Params = SamplingParams | Sequence[SamplingParams] | None


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
            fixed number a seed repeats a sampled answer, up to rounding.
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
        engine = core.Engine(
            target,
            drafter,
            n_draft_max=_n_draft(spec_draft_n_max),
            p_min=spec_draft_p_min,
            draft_temperature=draft_temperature,
            accept_rule=accept_rule,
        )
        self._streams = Streams(engine, target.n_seq)
        self._target: core.Target | None = target
        self._n_draft = 0 if drafter is None else spec_draft_n_max
        self._accept_rule = accept_rule
        self._template: ChatTemplate | None = None
        most = engine.n_draft_max
        if drafter is not None and spec_draft_n_max is not None and spec_draft_n_max > most:
            logger.warning("spec_draft_n_max %d: the most is %d", spec_draft_n_max, most)

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
            return self._collect(self._start(one, params, spec_draft_n_max))
        each = zip(prompt, _params_for(len(prompt), params), strict=True)
        return self._streams.finish([self._stream(*one, spec_draft_n_max) for one in each])

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
        return self._streams.tokens(self._start(prompt, params, spec_draft_n_max))

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
        started = self._start(self.tokenize_chat(messages), params, spec_draft_n_max)
        return self._streams.tokens(started) if stream else self._collect(started)

    def _stream(self, prompt: Prompt, params: SamplingParams | None, n_draft: int | None) -> Stream:
        ids = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        params = SamplingParams() if params is None else params
        seed = secrets.randbits(32) if params.seed is None else params.seed
        request = params.to_request(ids, seed, _n_draft(n_draft))
        if self._n_draft == 0 or n_draft is None:
            n_draft = self._n_draft
        mode: Mode = "adaptive" if n_draft is None else "fixed" if n_draft > 0 else "plain"
        rule = self._accept_rule if params.temperature > 0 else "match"
        return Stream(request, mode, None if mode == "plain" else rule)

    def _start(self, prompt: Prompt, params: SamplingParams | None, n_draft: int | None) -> Stream:
        stream = self._stream(prompt, params, n_draft)
        self._streams.start(stream)
        return stream

    def _collect(self, stream: Stream) -> Response:
        return self._streams.response(stream, list(self._streams.tokens(stream)))

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
        with self._streams.exclusive():
            return self._streams.stats(self._last())

    @property
    def total_stats(self) -> Stats:
        """Counters of all requests."""
        with self._streams.exclusive() as engine:
            return Stats.of(engine.total_stats)

    @property
    def finish_reason(self) -> str | None:
        """Why the last request ended, as in `Token`; None while it runs.

        Raises:
            DFlash2Error: there was none yet.
        """
        return self._last().reason

    @property
    def seed(self) -> int:
        """Seed of the last request. Errors as for `stats`."""
        return self._last().request.seed

    @property
    def mode(self) -> Mode:
        """Of the last request, as in `Response`. Errors as for `stats`."""
        return self._last().mode

    @property
    def accept_rule(self) -> AcceptRule | None:
        """Of the last request, as in `Response`. Errors as for `stats`."""
        return self._last().accept_rule

    @property
    def spec_draft_n_max(self) -> int:
        """Tokens drafted per round, the most when lengths are adaptive; 0 without a drafter."""
        return self._streams.engine.n_draft_max

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
        self._streams.close()
        self._target = self._template = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _last(self) -> Stream:
        if self._streams.last is None:
            raise DFlash2Error("nothing was generated yet")
        return self._streams.last

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
