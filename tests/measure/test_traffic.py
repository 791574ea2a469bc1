"""Traffic files: what a line may say, and how a bad one is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dflash2.measure.traffic import Line, TrafficError, read_traffic

USER = {"role": "user", "content": "Hi"}
ANSWER = {"role": "assistant", "content": "Hello."}


def write(path: Path, *lines: object) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def only(path: Path) -> Line:
    (line,) = read_traffic(path)
    assert isinstance(line, Line)
    return line


def test_a_last_assistant_message_is_the_recorded_answer(tmp_path: Path) -> None:
    line = only(write(tmp_path / "t.jsonl", {"messages": [USER, ANSWER], "temperature": 1}))
    assert (line.prompt, line.completion, line.temperature) == ((USER,), "Hello.", 1.0)


def test_earlier_answers_belong_to_the_question(tmp_path: Path) -> None:
    line = only(write(tmp_path / "t.jsonl", {"messages": [USER, ANSWER, USER]}))
    assert (line.prompt, line.completion) == ((USER, ANSWER, USER), None)


def test_a_prompt_may_have_a_completion(tmp_path: Path) -> None:
    lines = ({"prompt": "a", "completion": "b"}, "", {"prompt": "a"})
    found = list(read_traffic(write(tmp_path / "t.jsonl", *lines)))
    assert [(f.number, f.completion) for f in found if isinstance(f, Line)] == [(1, "b"), (3, None)]


@pytest.mark.parametrize(
    ("fields", "whole"),
    [
        ({"messages": [USER, ANSWER]}, True),
        ({"messages": [USER, ANSWER], "finish_reason": "length"}, False),
        ({"prompt": "a", "completion": "b"}, False),
        ({"prompt": "a", "completion": "b", "finish_reason": "stop"}, True),
    ],
)
def test_an_answer_says_whether_it_is_whole(
    tmp_path: Path, fields: dict[str, object], whole: bool
) -> None:
    assert only(write(tmp_path / "t.jsonl", fields)).whole is whole


def test_the_users_fields_are_labels(tmp_path: Path) -> None:
    fields = {"task": "code", "turn": 3, "ok": True, "tools": [1], "seed": None}
    line = only(write(tmp_path / "t.jsonl", {"prompt": "a", **fields}))
    assert line.labels == {"task": "code", "turn": "3", "ok": "true"}


def test_a_line_is_known_by_what_it_says(tmp_path: Path) -> None:
    a = only(write(tmp_path / "a.jsonl", '{"prompt": "x", "task": "y"}'))
    b = only(write(tmp_path / "b.jsonl", "", '{"task":"y",  "prompt":"\\u0078"}'))
    c = only(write(tmp_path / "c.jsonl", '{"prompt": "x", "task": "z"}'))
    assert a.digest == b.digest != c.digest


BAD = {
    "prompt": "expected a JSON object",
    "[1]": "expected a JSON object",
    "[" * 5000: "expected a JSON object",
    "{}": "expected either messages or prompt, got an empty object",
    '{"prompt": "a", "messages": []}': "expected either messages or prompt",
    '{"prompt": ""}': "prompt: expected text that is not empty",
    '{"prompt": ["a"]}': "prompt: expected text that is not empty",
    '{"prompt": "a", "completion": ""}': "completion: expected text that is not empty",
    '{"messages": []}': "messages: expected a list that is not empty",
    '{"messages": ["hi"]}': r"messages\[0\]: expected an object with text in role and content",
    '{"messages": [{"role": "user", "content": null}]}': r"messages\[0\]: expected an object",
    '{"messages": [{"role": "assistant", "content": "a"}]}': "messages: expected a question before",
    '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]}': (
        "messages: expected an answer that is not empty"
    ),
    '{"prompt": "a", "finish_reason": "end"}': "finish_reason: expected stop or length, got 'end'",
    '{"prompt": "a", "temperature": "hot"}': "temperature: expected 0, or 0.001 to 100, got 'hot'",
    '{"prompt": "a", "temperature": -1}': "temperature: expected 0",
    '{"prompt": "a", "temperature": true}': "temperature: expected 0",
    '{"prompt": "a", "temperature": NaN}': "temperature: expected 0",
}


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_a_bad_line_is_named_with_what_was_expected(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "t.jsonl", {"prompt": "good"}, text)
    with pytest.raises(TrafficError, match=rf"t\.jsonl:2: {BAD[text]}") as e:
        list(read_traffic(path))
    assert "\n" not in str(e.value)
    assert len(str(e.value)) < 400 + len(str(path))
    good, bad = read_traffic(path, skip_bad=True)
    assert isinstance(good, Line)
    assert isinstance(bad, TrafficError)


def test_bytes_that_are_no_text_are_a_bad_line(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'{"prompt": "\xff"}\n')
    with pytest.raises(TrafficError, match=r"t\.jsonl:1: expected a JSON object in UTF-8"):
        list(read_traffic(tmp_path / "t.jsonl"))
