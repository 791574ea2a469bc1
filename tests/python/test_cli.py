"""The command: text on stdout, talk on stderr, exit status 0, 1, 2 or 130."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import dflash2
import pytest
from dflash2 import SamplingParams
from dflash2.cli import ui
from dflash2.cli.main import main
from make_tiny_models import make_tiny_target
from rewrite_gguf import rewrite_gguf

Pair = tuple[Path, Path]
Capture = pytest.CaptureFixture[str]

LIMITS = ("-c", "256", "-t", "1")
PROMPT = "the cat"


def run(*args: str | Path) -> int:
    """Usage errors leave by SystemExit, as in argparse."""
    try:
        return main([str(arg) for arg in args])
    except SystemExit as e:
        return int(e.code or 0)


def models(pair: Pair) -> list[str | Path]:
    return ["-m", pair[0], "-md", pair[1], *LIMITS]


def expected_text(pair: Pair, n: int = 12) -> str:
    with dflash2.load(*pair, n_ctx=256, n_threads=1, spec_draft_n_max=7) as engine:
        return engine.generate(PROMPT, SamplingParams(max_tokens=n)).text


# -- generate


def test_text_goes_to_stdout_and_the_counters_to_stderr(pair: Pair, capsys: Capture) -> None:
    assert run("generate", *models(pair), "-p", PROMPT, "-n", "12") == 0
    out, err = capsys.readouterr()
    assert out == expected_text(pair).removesuffix("\n") + "\n"
    lines = err.splitlines()
    assert [line.split()[0] for line in lines] == ["prompt", "generate", "draft", "by"]
    assert re.fullmatch(r"prompt +\d+ tok +[\d.,]+ tok/s", lines[0])
    assert re.fullmatch(r"generate +12 tok +[\d.,]+ tok/s", lines[1])
    accepted = r"\d+ accepted \([\d.]+ %\)   mean accept length \d\.\d\d"
    assert re.fullmatch(
        rf"draft +\d+ of \d+ rounds   \d+ drafted   \d+ verified   {accepted}", lines[2]
    )
    assert re.fullmatch(r"by position  (\.\d\d|1\.0)( (\.\d\d|1\.0)){6}", lines[3])


def test_quiet_leaves_only_the_answer(pair: Pair, capsys: Capture) -> None:
    assert run("generate", *models(pair), "-p", PROMPT, "-n", "12", "-q") == 0
    assert capsys.readouterr().err == ""


def test_prompt_from_file_and_stdin_is_the_same(
    pair: Pair, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt.txt").write_text(PROMPT + "\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT + "\n"))
    texts = set()
    for source in (["-p", PROMPT], ["-f", tmp_path / "prompt.txt"], ["-p", "-"]):
        assert run("generate", *models(pair), *source, "-n", "12", "-q") == 0
        texts.add(capsys.readouterr().out)
    assert texts == {expected_text(pair).removesuffix("\n") + "\n"}


def test_json_is_one_object_with_everything(pair: Pair, capsys: Capture) -> None:
    args = ("-p", PROMPT, "-n", "12", "--json", "--compare-plain")
    assert run("generate", *models(pair), *args) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert result["text"] == expected_text(pair)
    assert len(result["tokens"]) == 12
    assert result["finish_reason"] == "length"
    assert result["stats"]["num_drafts"] > 0
    assert result["plain"]["num_drafts"] == 0
    assert result["speed_up"] > 0
    assert re.search(r"\(plain [\d.]+, speed-up [\d.]+x, same tokens\)", err)


def test_an_unset_seed_is_printed_and_repeats_the_run(pair: Pair, capsys: Capture) -> None:
    fixed = ("--spec-draft-n-max", "3")  # a length that is chosen follows the clock
    args = ("generate", *models(pair), "-p", PROMPT, "-n", "12", "--temp", "1", *fixed)
    assert run(*args) == 0
    out, err = capsys.readouterr()
    found = re.search(r"^seed +(\d+)$", err, re.MULTILINE)
    assert found is not None
    assert run(*args, "--seed", found[1]) == 0
    again = capsys.readouterr()
    assert again.out == out
    assert "seed" not in again.err


def test_chat_flag_applies_the_template(pair: Pair, capsys: Capture) -> None:
    with dflash2.load(*pair, n_ctx=256, n_threads=1, spec_draft_n_max=7) as engine:
        messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}]
        params = SamplingParams(max_tokens=8)
        with_system = engine.chat(messages, params).text
        without = engine.chat(messages[1:], params).text
    for flags, text in ((["-sys", "S"], with_system), (["--chat"], without)):
        args = (*flags, "-p", "hi", "-n", "8", "--json")
        assert run("generate", *models(pair), *args) == 0
        assert json.loads(capsys.readouterr().out)["text"] == text


def test_too_long_drafts_are_shortened_with_a_warning(pair: Pair, capsys: Capture) -> None:
    args = ("-p", PROMPT, "-n", "4", "--spec-draft-n-max", "20")
    assert run("generate", *models(pair), *args) == 0
    assert "warning: --spec-draft-n-max 20: the drafter can 7" in capsys.readouterr().err


def test_aliases_of_other_tools_work(pair: Pair, capsys: Capture) -> None:
    target, draft = pair
    args = ("--draft-model", draft, "--num-draft-tokens", "3", "--max-tokens", "4")
    assert run("generate", "-m", target, *args, *LIMITS, "-p", PROMPT, "--json") == 0
    stats = json.loads(capsys.readouterr().out)["stats"]
    assert stats["num_generated_tokens"] == 4
    assert stats["num_draft_tokens"] <= 3 * stats["num_drafts"]


# -- errors


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["generate", "-m", "x", "-p", "a", "--temp", "-1"],
            "temperature: expected 0 (greedy), or 0.001 or more",
        ),
        (["generate", "-m", "x", "-p", "a", "-n", "many"], "invalid int value: 'many'"),
        (["generate", "-m", "x"], "one of the arguments -p/--prompt -f/--file is required"),
        (["generate", "-m", "x", "-p", "a", "-f", "b"], "not allowed with"),
        (["generate", "-p", "a"], "-m/--model"),
        (["chat", "-m", "x", "--no-such"], "unrecognized arguments: --no-such"),
        (["inspect"], "FILE"),
        (["no-such"], "no-such"),
    ],
)
def test_usage_errors_exit_2_with_a_hint(args: list[str], message: str, capsys: Capture) -> None:
    assert run(*args) == 2
    out, err = capsys.readouterr()
    error, hint = err.splitlines()
    assert error.startswith("error: ")
    assert message in error
    assert hint.startswith("hint: dflash2")
    assert out == ""


def test_called_bare_it_prints_the_help(capsys: Capture) -> None:
    assert run() == 2
    assert "examples:" in capsys.readouterr().out


def test_runtime_errors_exit_1_in_one_line(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    other = make_tiny_target(tmp_path / "other.gguf", n_embd=256)
    not_gguf = tmp_path / "not.gguf"
    not_gguf.write_text("hello")
    cases = [
        (["-m", tmp_path / "no.gguf", "-p", "a"], r"no\.gguf: no such file"),
        (["-m", not_gguf, "-p", "a"], r"not\.gguf: not a readable GGUF"),
        (["-m", other, "-md", pair[1], "-p", "a"], r"hidden size: .* 256.* 320"),
        (["-m", pair[0], "-c", "64", "-p", "ab " * 256], r"do not fit into the context of \d+"),
        (["-m", pair[0], "-f", tmp_path / "no.txt"], r"no\.txt"),
    ]
    for args, message in cases:
        assert run("generate", *args) == 1
        err = capsys.readouterr().err.splitlines()
        assert err[0].startswith("error: ")
        assert re.search(message, err[0])
        assert len(err) <= 2
        assert all(line.startswith("hint: ") for line in err[1:])


def test_verbose_adds_traceback_and_log(pair: Pair) -> None:
    def stderr(*args: str | Path) -> str:
        command = [sys.executable, "-m", "dflash2", "generate", *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stderr

    assert "Traceback" in stderr("-m", "/no.gguf", "-p", "a", "-v")
    log = stderr(*models(pair), "-p", "a", "-n", "2", "-v")
    assert "llama_model_loader" in log
    assert "llama_model_loader" not in stderr(*models(pair), "-p", "a", "-n", "2")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_stops_generate_with_130(pair: Pair) -> None:
    args = [*models(pair), "-p", PROMPT, "--ignore-eos", "-c", "4096"]
    command = [sys.executable, "-m", "dflash2", "generate", *map(str, args)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(1) != b""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert err.startswith(b"prompt")


def test_a_closed_pipe_is_no_traceback(pair: Pair) -> None:
    command = [sys.executable, "-m", "dflash2", "inspect", str(pair[0])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 1
    process.stderr.close()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colour_needs_a_terminal_and_respects_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    drafted = dflash2.Token(1, "x", from_draft=True)

    def shown(stream: io.StringIO) -> str:
        monkeypatch.setattr(sys, "stdout", stream)
        ui.Ui(color=True).token(drafted)
        return stream.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert shown(io.StringIO()) == "x"
    assert shown(Terminal()) == "\x1b[32mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert shown(Terminal()) == "x"


# -- chat


def test_chat_answers_keeps_the_history_and_knows_its_commands(
    pair: Pair, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ["hi", "/help", "/nope", "", "again", "/reset", "hi", "/quit", "not read"]
    stdin = io.StringIO("\n".join(lines) + "\n")
    monkeypatch.setattr(sys, "stdin", stdin)
    assert run("chat", *models(pair), "-sys", "S", "-n", "6") == 0
    out, err = capsys.readouterr()

    system = [{"role": "system", "content": "S"}]
    params = SamplingParams(max_tokens=6)
    with dflash2.load(*pair, n_ctx=256, n_threads=1, spec_draft_n_max=7) as engine:
        first = [*system, {"role": "user", "content": "hi"}]
        a = engine.chat(first, params).text
        second = [*first, {"role": "assistant", "content": a}, {"role": "user", "content": "again"}]
        b = engine.chat(second, params).text
    assert out == f"{a}\n{b}\n{a}\n"
    assert "/reset  forget the conversation" in err
    assert "unknown command /nope" in err
    assert stdin.read() == "not read\n"


def test_chat_survives_a_full_context(
    pair: Pair, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("x" * 400 + "\nhi\n"))
    assert run("chat", *models(pair), "-n", "4") == 0
    out, err = capsys.readouterr()
    assert "error: prompt: " in err
    assert "hint: /reset" in err
    assert len(out.splitlines()) >= 1


def test_chat_without_a_template_fails_at_once(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    bare = {"tokenizer.chat_template": None}
    target = rewrite_gguf(pair[0], tmp_path / "target.gguf", keys=bare)
    assert run("chat", "-m", target, *LIMITS) == 1
    assert "no chat template" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX terminals")
def test_ctrl_c_in_chat_stops_the_answer_and_not_the_program(pair: Pair) -> None:
    import pty
    import select

    args = [*models(pair), "--ignore-eos", "-c", "4096"]
    command = [sys.executable, "-m", "dflash2", "chat", *map(str, args)]
    master, slave = pty.openpty()
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""

    def wait_for(text: bytes, *, interrupt: bool = False) -> None:
        """interrupt: again when nothing comes; one before the prompt reads is without effect."""
        nonlocal seen
        deadline = time.monotonic() + 60
        quiet = True
        while time.monotonic() < deadline:
            if interrupt and quiet:
                process.send_signal(signal.SIGINT)
            quiet = not select.select([master], [], [], 3.0)[0]
            if not quiet:
                seen += os.read(master, 4096)
            if text in seen:
                seen = seen[seen.index(text) + len(text) :]
                return
        pytest.fail(f"expected {text!r}, got {seen!r}")

    try:
        wait_for(b"> ")
        os.write(master, b"hi\n")
        wait_for(b"hi\r\n")
        seen += os.read(master, 16)  # the answer has begun
        process.send_signal(signal.SIGINT)
        wait_for(b"\r\n> ")
        wait_for(b"(/quit or Ctrl-D leaves)", interrupt=True)
        os.write(master, b"/quit\n")
        wait_for(b"generate")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)


# -- inspect


def test_inspect_says_what_a_file_is(pair: Pair, capsys: Capture) -> None:
    assert run("inspect", pair[0]) == 0
    out = capsys.readouterr().out
    assert "target model, architecture llama" in out
    assert "llama.embedding_length = 320" in out
    assert re.search(r"^blk\.0\.attn_q\.weight +f32 +[\d.]+ kB +320 x 320$", out, re.MULTILINE)

    assert run("inspect", pair[1], "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["kind"] == "DFlash 2 drafter"
    assert result["hparams"]["dflash.target_layers"] == [1, 2, 3]
    assert {t["name"] for t in result["tensors"]} >= {"fc.weight", "selector_hidden.weight"}
    total = sum(t["bytes"] for t in result["tensors"])
    assert total == sum(t["bytes"] for t in result["types"].values())
    assert "pair" not in result


def test_inspect_judges_a_pair(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    assert run("inspect", pair[1], "--target", pair[0], "--no-tensors") == 0
    assert capsys.readouterr().out.rstrip().endswith("fits")

    other = make_tiny_target(tmp_path / "other.gguf", n_embd=256, n_layer=2)
    assert run("inspect", pair[1], "--target", other, "--json") == 1
    verdict = json.loads(capsys.readouterr().out)["pair"]
    assert verdict["fits"] is False
    for words in ("hidden size: the target has 256", "layers: the target has 2", "tapped layers"):
        assert any(words in reason for reason in verdict["reasons"])

    assert run("inspect", pair[0], "--target", pair[0]) == 1
    assert "is no drafter" in capsys.readouterr().out


def test_inspect_agrees_with_load_about_the_vocabulary(pair: Pair) -> None:
    from dflash2._native import core
    from dflash2.gguf_info import GgufInfo
    from dflash2.pairing import DraftFacts, TargetFacts

    assert GgufInfo(pair[0]).target_facts() == TargetFacts.of(core.Target(str(pair[0])))
    assert GgufInfo(pair[1]).draft_facts() == DraftFacts.of(core.DraftModel(str(pair[1])))


def test_inspect_refuses_broken_files(pair: Pair, tmp_path: Path, capsys: Capture) -> None:
    data = pair[1].read_bytes()
    for n, message in ((10, "malformed"), (len(data) - 100, "it is truncated")):
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(data[:n])
        assert run("inspect", cut) == 1
        assert message in capsys.readouterr().err


def test_version_names_both_packages(capsys: Capture) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == (f"dflash2 {dflash2.__version__} (llama-cpp-python 0.3.36)\n")


def test_devices_are_listed(capsys: Capture) -> None:
    assert run("--list-devices") == 0
    assert "CPU: " in capsys.readouterr().out
