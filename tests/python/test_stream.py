"""Iterators, text and the ends of a generation."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import dflash2
import pytest
from dflash2 import ContextFullError, DFlash2Error, SamplingParams
from dflash2._native import core
from drafters import Callback, Oracle
from greedy import open_target

PROMPT = "the cat"

Pair = tuple[Path, Path]


def greedy(engine: dflash2.Engine, n: int = 24) -> dflash2.Response:
    return engine.generate(PROMPT, SamplingParams(max_tokens=n))


# -- iterators


def test_stream_yields_what_generate_returns(engine: dflash2.Engine) -> None:
    items = list(engine.stream(PROMPT, SamplingParams(max_tokens=24)))
    whole = greedy(engine)
    assert tuple(item.token for item in items) == whole.tokens
    assert "".join(item.text for item in items) == whole.text
    assert [item.finish_reason for item in items] == [None] * 23 + ["length"]
    assert not items[0].from_draft


def test_from_draft_counts_the_accepted_tokens(real_pair: Pair) -> None:
    with dflash2.load(*real_pair, n_ctx=256, n_threads=1, spec_draft_n_max=7) as engine:
        items = list(engine.stream("1, 2, 3, 4, 5, 6,", SamplingParams(max_tokens=16)))
        assert sum(item.from_draft for item in items) == engine.stats.num_accepted_tokens > 0


def test_leaving_a_stream_early_leaves_the_engine_usable(engine: dflash2.Engine) -> None:
    expected = greedy(engine)
    for n in (1, 2, 5):
        for i, _ in enumerate(engine.stream(PROMPT, SamplingParams(max_tokens=24)), start=1):
            if i == n:
                break
        assert greedy(engine).tokens == expected.tokens


def test_a_later_request_ends_a_stream(engine: dflash2.Engine) -> None:
    old = engine.stream(PROMPT, SamplingParams(max_tokens=24))
    next(old)
    expected = greedy(engine)
    with pytest.raises(DFlash2Error, match="ended by a later request"):
        next(old)
    assert greedy(engine).tokens == expected.tokens


def test_a_finished_stream_stays_finished(engine: dflash2.Engine) -> None:
    old = engine.stream(PROMPT, SamplingParams(max_tokens=1))
    next(old)
    greedy(engine)
    assert list(old) == []


def test_a_second_thread_is_told_that_the_engine_is_busy(pair: Pair) -> None:
    target = core.Target(str(pair[0]), n_ctx=64, n_threads=1)
    drafter = Callback(target.n_vocab, target.n_embd)
    engine = dflash2.Engine(target, drafter, spec_draft_n_max=7)
    inside, leave = threading.Event(), threading.Event()

    def wait() -> None:
        inside.set()
        assert leave.wait(30)

    drafter.on_draft = wait
    worker = threading.Thread(target=greedy, args=(engine, 3))
    worker.start()
    try:
        assert inside.wait(30)
        with pytest.raises(DFlash2Error, match="busy in another thread"):
            greedy(engine)
    finally:
        leave.set()
        worker.join()
    assert len(greedy(engine, 3).tokens) == 3


def test_an_error_in_a_drafter_arrives_and_leaves_the_engine_usable(pair: Pair) -> None:
    target = core.Target(str(pair[0]), n_ctx=64, n_threads=1)
    drafter = Callback(target.n_vocab, target.n_embd)
    engine = dflash2.Engine(target, drafter, spec_draft_n_max=7)

    def fail() -> None:
        raise ZeroDivisionError("of the drafter")

    drafter.on_draft = fail
    with pytest.raises(ZeroDivisionError, match="of the drafter"):
        greedy(engine)
    drafter.on_draft = lambda: None
    plain = engine.generate(PROMPT, SamplingParams(max_tokens=24), spec_draft_n_max=0)
    assert greedy(engine).tokens == plain.tokens


INTERRUPTED = """
import os, signal, sys, threading
import dflash2

params = dflash2.SamplingParams(ignore_eos=True)
engine = dflash2.load(sys.argv[1], sys.argv[2], n_ctx=4096, n_batch=1, n_threads=1)

def interrupt(after):
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()

try:
    interrupt(0.3)
    engine.stream([7] * 4000, params)  # decodes the prompt token by token
except KeyboardInterrupt:
    print("prompt", engine.stats.num_prompt_tokens)
n = 0
try:
    for token in engine.stream([7, 8], params):
        n += 1
        if n == 10:
            interrupt(0.1)
except KeyboardInterrupt:
    print("answer", n < 4000)
print("usable", len(engine.generate([7], dflash2.SamplingParams(max_tokens=5)).tokens))
"""


def test_ctrl_c_stops_prompt_and_answer_and_leaves_the_engine_usable(pair: Pair) -> None:
    run = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *map(str, pair)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stdout.splitlines() == ["prompt 0", "answer True", "usable 5"], run.stderr


def test_a_closed_engine_says_so(pair: Pair) -> None:
    with dflash2.load(*pair, n_ctx=64, n_threads=1, spec_draft_n_max=7) as engine:
        stream = engine.stream(PROMPT, SamplingParams(max_tokens=8))
        next(stream)
    with pytest.raises(DFlash2Error, match="closed"):
        next(stream)
    with pytest.raises(DFlash2Error, match="closed"):
        greedy(engine)
    engine.close()


# -- text


def test_text_is_the_utf8_of_the_tokens(engine: dflash2.Engine) -> None:
    """The random model emits broken UTF-8; every invalid part becomes one U+FFFD."""
    seen = ""
    for seed in range(8):
        params = SamplingParams(temperature=1.5, seed=seed, max_tokens=48)
        answer = engine.generate(PROMPT, params, spec_draft_n_max=seed % 2)
        assert answer.text == engine.detokenize(answer.tokens)
        seen += answer.text
    assert "\ufffd" in seen
    assert any(ord(c) > 127 and c != "\ufffd" for c in seen), "no whole multi-byte character"


@pytest.mark.parametrize("place", [0.2, 0.5, 0.8])
def test_a_stop_string_ends_the_text_before_it(engine: dflash2.Engine, place: float) -> None:
    whole = greedy(engine, 48)
    at = int(place * len(whole.text))
    stop = whole.text[at : at + 3]
    at = whole.text.index(stop)
    params = SamplingParams(max_tokens=48, stop=["never seen", stop])
    items = list(engine.stream(PROMPT, params))
    assert "".join(item.text for item in items) == whole.text[:at]
    assert items[-1].finish_reason == "stop"
    tokens = tuple(item.token for item in items)
    assert tokens == whole.tokens[: len(tokens)]
    assert stop in engine.detokenize(tokens)
    assert stop not in engine.detokenize(tokens[:-1])


def test_the_start_of_a_stop_string_is_not_lost_at_the_end(engine: dflash2.Engine) -> None:
    whole = greedy(engine)
    params = SamplingParams(max_tokens=24, stop=whole.text[-2:] + "never follows")
    assert engine.generate(PROMPT, params).text == whole.text


def test_nothing_follows_the_end_inside_an_accepted_block(pair: Pair) -> None:
    """The oracle drafts past the end: once an end-of-generation token, once a stop string."""
    target = open_target(pair[0])
    oracle = Oracle(target.n_vocab, target.n_embd)
    engine = dflash2.Engine(target, oracle, spec_draft_n_max=7, accept_rule="match")
    prompt = engine.tokenize(PROMPT)

    def ends(params: SamplingParams) -> dflash2.Response:
        plain = engine.generate(prompt, params, spec_draft_n_max=0)
        oracle.tokens = prompt + list(plain.tokens) + [7] * 8
        items = list(engine.stream(prompt, params))
        assert tuple(item.token for item in items) == plain.tokens
        assert "".join(item.text for item in items) == plain.text
        assert [item.finish_reason for item in items[:-1]] == [None] * (len(items) - 1)
        assert items[-1].finish_reason == plain.finish_reason
        assert engine.stats.num_accepted_tokens == sum(item.from_draft for item in items)
        return plain

    n_inside = 0
    for seed in range(200):
        params = SamplingParams(temperature=3.0, seed=seed, max_tokens=24)
        answer = engine.generate(prompt, params, spec_draft_n_max=0)
        if answer.finish_reason == "stop" and len(answer.tokens) % 8 not in (0, 1):
            assert engine.detokenize(answer.tokens[-1:]) == ""
            ends(params)
            n_inside += 1
        if n_inside == 3:
            break
    assert n_inside == 3, "too few generations ended by themselves: the test needs other seeds"

    whole = greedy(engine, 24)
    oracle.tokens = prompt + list(whole.tokens)
    for n in (4, 7, 10):
        stop = engine.detokenize(whole.tokens[n - 2 : n])
        assert ends(SamplingParams(max_tokens=24, stop=stop)).finish_reason == "stop"


# -- limits


@pytest.mark.parametrize("n", [1, 2, 7, 8, 9, 17])
def test_max_tokens_is_exact(engine: dflash2.Engine, n: int) -> None:
    answer = greedy(engine, n)
    assert len(answer.tokens) == answer.stats.num_generated_tokens == n
    assert answer.finish_reason == "length"
    assert answer.tokens == greedy(engine, 24).tokens[:n]


def test_a_full_context_ends_the_answer(pair: Pair) -> None:
    with dflash2.load(*pair, n_ctx=256, n_threads=1, spec_draft_n_max=7) as engine:
        params = SamplingParams(ignore_eos=True)
        for n_prompt in (200, 240, 255):
            drafted = engine.generate([7] * n_prompt, params)
            plain = engine.generate([7] * n_prompt, params, spec_draft_n_max=0)
            assert drafted.finish_reason == plain.finish_reason == "context"
            assert len(drafted.tokens) == len(plain.tokens) == 256 - n_prompt + 1
        with pytest.raises(ContextFullError, match="256 tokens"):
            engine.generate([7] * 256, params)
        assert len(greedy(engine).tokens) == 24


def test_chat_uses_the_template_of_the_target(engine: dflash2.Engine) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tokens = engine.tokenize_chat(messages)
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokens == engine.tokenize(text)
    params = SamplingParams(max_tokens=8)
    answer = engine.chat(messages, params)
    assert answer.tokens == engine.generate(tokens, params).tokens
    assert "".join(t.text for t in engine.chat(messages, params, stream=True)) == answer.text
