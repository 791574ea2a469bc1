"""Where a generation ends inside an accepted block, the text is that of plain decoding."""

from __future__ import annotations

from pathlib import Path

import dflash2
import pytest
from dflash2 import SamplingParams
from dflash2._native import core
from fake_drafters import Known
from plain_decoding import decode_alone

Pair = tuple[Path, Path]

PROMPT = [20, 300, 41]
N = 40


class Script:
    """An engine whose output is chosen: a logit bias per request is not enough, so a grammar
    spells the text, and the drafter knows its tokens."""

    def __init__(self, pair: Pair) -> None:
        self.target = core.Target(str(pair[0]), n_ctx=256, n_threads=1)
        self.drafter = Known(self.target, [], lambda at: True)
        self.engine = dflash2.Engine(self.target, self.drafter, spec_draft_n_max=7)

    def run(
        self, text: str, **options: object
    ) -> tuple[dflash2.Response, dflash2.Response, list[str]]:
        """Drafted, plain, and the texts of the drafted stream."""
        grammar = "root ::= " + json_string(text)
        params = SamplingParams(grammar=grammar, **{"max_tokens": 200, **options})
        whole = self.engine.generate(
            PROMPT, SamplingParams(grammar=grammar, max_tokens=200), spec_draft_n_max=0
        )
        assert whole.text == text
        self.drafter.tokens = [*PROMPT, *whole.tokens]
        plain = self.engine.generate(PROMPT, params, spec_draft_n_max=0)
        drafted = self.engine.generate(PROMPT, params)
        pieces = [token.text for token in self.engine.stream(PROMPT, params)]
        return drafted, plain, pieces


def json_string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@pytest.fixture(scope="module")
def script(pair: Pair) -> Script:
    return Script(pair)


def same(script: Script, text: str, expected: str, reason: str, **options: object) -> None:
    drafted, plain, pieces = script.run(text, **options)
    assert drafted.text == plain.text == expected
    assert drafted.tokens == plain.tokens
    assert drafted.finish_reason == plain.finish_reason == reason
    assert "".join(pieces) == expected
    assert len(pieces) == len(drafted.tokens), "one item per token"


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("t sat", "the ca"),
        (" ", "the"),
        ("the", ""),
        ("mat.", "the cat sat on the "),
        (["on", "sat"], "the cat "),
        (["cat sat on", "sat"], "the cat "),
        ("dog", "the cat sat on the mat."),
    ],
)
def test_stop_strings_across_token_borders(
    script: Script, stop: str | list[str], expected: str
) -> None:
    same(script, "the cat sat on the mat.", expected, "stop", stop=stop)


def test_nothing_of_a_stop_string_is_shown_before_it_is_complete(script: Script) -> None:
    text = "a sto stop stops stopping"
    same(script, text, "a sto stop stops ", "stop", stop="stoppi")


def test_what_was_held_back_is_shown_at_the_end(script: Script) -> None:
    same(script, "go on and stop", "go on and stop", "stop", stop="stopping")


@pytest.mark.parametrize(
    "text",
    ["h\u00e9llo", "\u00e4\u00f6\u00fc\u20ac", "a\U0001f600b\U0001f680", "\u65e5\u672c\u8a9e"],
)
def test_characters_of_several_tokens_are_shown_whole(script: Script, text: str) -> None:
    same(script, text, text, "stop")
    _, _, pieces = script.run(text)
    assert all("\ufffd" not in piece for piece in pieces)


def test_a_character_cut_by_max_tokens_becomes_a_replacement_character(script: Script) -> None:
    drafted, plain, _ = script.run("\u20ac\u20ac", max_tokens=4)
    assert drafted.text == plain.text == "\u20ac\ufffd"
    assert drafted.finish_reason == "length"


def test_a_stop_string_of_several_bytes(script: Script) -> None:
    same(script, "ab\u20accd", "ab", "stop", stop="\u20ac")


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 8, 9, 10])
def test_max_tokens_is_never_passed(script: Script, max_tokens: int) -> None:
    text = "the cat sat on the mat."
    drafted, plain, pieces = script.run(text, max_tokens=max_tokens)
    assert drafted.tokens == plain.tokens
    assert drafted.text == plain.text == "".join(pieces)
    assert len(drafted.tokens) == max_tokens
    assert drafted.finish_reason == "length"
    assert drafted.stats.num_generated_tokens == max_tokens
    assert drafted.stats.num_verified_tokens <= max_tokens - 1


@pytest.mark.parametrize("n", range(1, 12))
def test_an_eos_inside_an_accepted_block_is_the_last_token(script: Script, n: int) -> None:
    text = "x" * n
    same(script, text, text, "stop")
    drafted, _, _ = script.run(text)
    assert script.target.is_eog(drafted.tokens[-1])
    assert not any(script.target.is_eog(token) for token in drafted.tokens[:-1])


def test_the_context_ends_the_generation(pair: Pair, alone: core.Target) -> None:
    target = core.Target(str(pair[0]), n_ctx=256, n_threads=1)
    drafter = Known(target, [], lambda at: True)
    engine = dflash2.Engine(target, drafter, spec_draft_n_max=7)
    prompt = [9] * (target.n_ctx - 12)
    plain = engine.generate(prompt, SamplingParams(ignore_eos=True), spec_draft_n_max=0)
    drafter.tokens = [*prompt, *plain.tokens]
    drafted = engine.generate(prompt, SamplingParams(ignore_eos=True))
    assert drafted.tokens == plain.tokens
    assert drafted.finish_reason == plain.finish_reason == "context"
    assert len(plain.tokens) == 13
    assert decode_alone(alone, prompt, 3) == list(plain.tokens[:3])


def test_text_is_that_of_the_tokens(engine: dflash2.Engine) -> None:
    for seed in range(6):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=N)
        answer = engine.generate(PROMPT, params)
        assert answer.text == engine.detokenize(answer.tokens)
        assert answer.stats.num_generated_tokens == len(answer.tokens)
