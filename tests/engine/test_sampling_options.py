"""Every sampling option works with drafting as it does without."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import dflash2
import pytest
from dflash2 import Response, SamplingParams
from dflash2._native import core
from fake_drafters import Known
from plain_decoding import prompts

Pair = tuple[Path, Path]

GRAMMARS = {
    "date": (r'root ::= [0-9]{4} "-" [0-9]{2} "-" [0-9]{2}', r"\d{4}-\d\d-\d\d"),
    "words": (r'root ::= ([a-z]+ " "){2,3} "end"', r"([a-z]+ ){2,3}end"),
    "umlauts": (r'root ::= [äöü]{3} "."', r"[äöü]{3}\."),
}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "penalties": {"repeat_penalty": 1.5, "frequency_penalty": 0.5, "presence_penalty": 0.5},
    "penalties on the last tokens": {"presence_penalty": 50.0, "repeat_last_n": 8},
    "penalties on the whole context": {"presence_penalty": 2.0, "repeat_last_n": -1},
    "logit_bias": {"logit_bias": dict.fromkeys(range(270, 290), 4.0) | {300: float("-inf")}},
    "ignore_eos": {"ignore_eos": True, "logit_bias": {2: 100.0}},
    "date": {"grammar": GRAMMARS["date"][0]},
    "umlauts": {"grammar": GRAMMARS["umlauts"][0]},
    "schema": {"json_schema": SCHEMA},
    # at temperature 0 these choose nothing else
    "cuts": {"top_k": 3, "top_p": 0.5, "min_p": 0.2, "typical_p": 0.4},
}


def both(
    engine: dflash2.Engine, prompt: list[int], params: SamplingParams
) -> tuple[Response, Response]:
    """Drafted, plain."""
    return engine.generate(prompt, params), engine.generate(prompt, params, spec_draft_n_max=0)


@pytest.fixture(scope="module")
def knowing(pair: Pair) -> tuple[dflash2.Engine, Known]:
    """An engine whose drafter is right for 3 of 4 positions, so that blocks are accepted."""
    target = core.Target(str(pair[0]), n_ctx=256, n_threads=1)
    drafter = Known(target, [], lambda at: at % 4 != 0)
    return dflash2.Engine(target, drafter, spec_draft_n_max=7), drafter


@pytest.mark.rounding
@pytest.mark.parametrize("name", OPTIONS)
def test_greedy_with_drafting_equals_plain_decoding(
    knowing: tuple[dflash2.Engine, Known], name: str
) -> None:
    engine, drafter = knowing
    for prompt in prompts(3, 512, longest=20):
        params = SamplingParams(max_tokens=24, **OPTIONS[name])
        plain = engine.generate(prompt, params, spec_draft_n_max=0)
        drafter.tokens = [*prompt, *plain.tokens]
        drafted = engine.generate(prompt, params)
        assert drafted.tokens == plain.tokens
        assert (drafted.text, drafted.finish_reason) == (plain.text, plain.finish_reason)
        assert drafted.stats.num_accepted_tokens > 0


def test_the_options_do_something(engine: dflash2.Engine) -> None:
    """Else the test above shows nothing."""

    def tokens(options: dict[str, Any]) -> list[tuple[int, ...]]:
        params = SamplingParams(max_tokens=24, **options)
        return [engine.generate(prompt, params).tokens for prompt in prompts(3, 512)]

    plain = tokens({})
    for name, options in OPTIONS.items():
        idle = name in ("cuts", "ignore_eos")  # nothing ends by itself here
        assert (tokens(options) == plain) == idle, name


# -- grammar


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", GRAMMARS)
def test_the_text_obeys_the_grammar(engine: dflash2.Engine, name: str, temperature: float) -> None:
    grammar, pattern = GRAMMARS[name]
    for seed in range(4):
        params = SamplingParams(
            grammar=grammar, temperature=temperature, seed=seed, max_tokens=200, top_k=40
        )
        answer = engine.generate([60 + seed], params)
        if answer.finish_reason == "stop":
            assert re.fullmatch(pattern, answer.text), answer.text
        else:
            assert name == "words", "only words can go on for ever"
    assert answer.stats.num_drafts > 0


def test_the_text_follows_the_schema(engine: dflash2.Engine) -> None:
    params = SamplingParams(json_schema=json.dumps(SCHEMA), temperature=0.8, seed=2, max_tokens=120)
    answer = engine.generate("x", params)
    assert answer.finish_reason == "stop"
    value = json.loads(answer.text)
    assert type(value["n"]) is int
    assert type(value["ok"]) is bool


@pytest.mark.parametrize(
    "grammar", ["root ::= [a", 'start ::= "a"', "root ::= nothing", 'root ::= root "a"', "?"]
)
def test_a_bad_grammar_is_a_value_error(engine: dflash2.Engine, grammar: str) -> None:
    with pytest.raises(ValueError, match=r"^grammar: [^\n]*$"):
        engine.generate("x", SamplingParams(grammar=grammar, max_tokens=2))
    assert engine.generate("x", SamplingParams(max_tokens=2)).tokens


@pytest.mark.parametrize(
    "schema", ['{"type":', "[]", "true", {"type": "banana"}, {"$ref": "#/definitions/none"}]
)
def test_a_bad_schema_is_a_value_error(engine: dflash2.Engine, schema: Any) -> None:
    with pytest.raises(ValueError, match=r"^json_schema: [^\n]*$"):
        engine.generate("x", SamplingParams(json_schema=schema, max_tokens=2))


def test_grammar_and_schema_together_are_refused() -> None:
    with pytest.raises(ValueError, match="no grammar beside it"):
        SamplingParams(grammar='root ::= "a"', json_schema={})


DEAD_ENDS: dict[str, dict[str, Any]] = {
    "first token": {"logit_bias": dict.fromkeys(range(512), float("-inf"))},
    "later token": {"grammar": 'root ::= "a" "b"', "ignore_eos": True},
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("where", DEAD_ENDS)
@pytest.mark.parametrize("n_draft", [0, 7])
def test_a_request_for_which_no_token_is_left_ends_there(
    engine: dflash2.Engine, temperature: float, where: str, n_draft: int
) -> None:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=9, **DEAD_ENDS[where])
    items = list(engine.stream("x", params, spec_draft_n_max=n_draft))
    assert (items[-1].token, items[-1].finish_reason) == (-1, "dead_end")
    assert "".join(item.text for item in items) == ("" if where == "first token" else "ab")
    answer = engine.generate("x", params, spec_draft_n_max=n_draft)
    assert answer.tokens == tuple(item.token for item in items[:-1])
    assert answer.stats.num_generated_tokens == len(answer.tokens)
    assert len(engine.generate("x", SamplingParams(max_tokens=9)).tokens) == 9


def test_a_dead_end_shows_what_was_held_back(engine: dflash2.Engine) -> None:
    params = SamplingParams(max_tokens=9, stop=["bc"], **DEAD_ENDS["later token"])
    assert engine.generate("x", params).text == "ab"


def test_a_dead_end_leaves_the_other_requests_alone(pair: Pair) -> None:
    long = SamplingParams(max_tokens=20)
    each = [long, *(SamplingParams(max_tokens=20, **o) for o in DEAD_ENDS.values()), long]
    given = prompts(4, 512)
    with dflash2.load(*pair, n_ctx=256, n_threads=1, n_parallel=4, spec_draft_n_max=7) as engine:
        alone = engine.generate(given[3], long)
        answers = engine.generate(given, each)
    assert [a.finish_reason for a in answers] == ["length", "dead_end", "dead_end", "length"]
    assert answers[2].text == "ab"
    assert answers[3].tokens == alone.tokens


# -- sampled


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 1},
        {"top_p": 1e-6},
        {"min_p": 0.999999},
        {"temperature": 1e-3},
        {"top_k": 1, "typical_p": 0.5},
    ],
    ids=str,
)
def test_a_law_of_one_token_is_greedy(engine: dflash2.Engine, options: dict[str, Any]) -> None:
    prompt = prompts(1, 512)[0]
    greedy = engine.generate(prompt, SamplingParams(max_tokens=16))
    params = SamplingParams(**{"temperature": 0.8, "seed": 1, "max_tokens": 16} | options)
    drafted, plain = both(engine, prompt, params)
    assert drafted.tokens == plain.tokens == greedy.tokens
