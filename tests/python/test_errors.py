"""Bad models and bad arguments: one line that says what is wrong, and nothing breaks."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import dflash2
import gguf
import numpy as np
import pytest
from dflash2 import (
    DFlash2Error,
    IncompatibleModelsError,
    ModelFormatError,
    SamplingParams,
)
from dflash2._native import core
from drafters import Garbage
from greedy import open_target
from make_tiny_models import make_tiny_target
from rewrite_gguf import Kind, Value, rewrite_gguf

Pair = tuple[Path, Path]


def fails(kind: type[Exception], *files: Path | None) -> str:
    with pytest.raises(kind) as caught:
        dflash2.load(*files, n_ctx=64, n_threads=1)  # type: ignore[arg-type]
    assert type(caught.value) is kind
    message = str(caught.value)
    assert "\n" not in message
    return message


# -- files


def test_missing_files_are_named(pair: Pair, tmp_path: Path) -> None:
    for files in [(tmp_path / "no.gguf", None), (pair[0], tmp_path / "no.gguf")]:
        assert str(tmp_path / "no.gguf") in fails(FileNotFoundError, *files)


@pytest.mark.parametrize("keep", [0, 3, 24, 5000, 0.3, 0.99])
@pytest.mark.parametrize("which", [0, 1])
def test_truncated_files_are_refused(pair: Pair, tmp_path: Path, which: int, keep: float) -> None:
    data = pair[which].read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(data[: keep if isinstance(keep, int) else int(keep * len(data))])
    files = [*pair]
    files[which] = cut
    assert str(cut) in fails(ModelFormatError, *files)


def test_swapped_files_are_refused(pair: Pair) -> None:
    assert 'expected "dflash", got "llama"' in fails(ModelFormatError, pair[0], pair[0])


@pytest.mark.parametrize(
    "name", ["fc.weight", "selector_hidden.weight", "blk.1.attn_conv_base", "output_norm.weight"]
)
def test_a_missing_tensor_is_named(pair: Pair, tmp_path: Path, name: str) -> None:
    draft = rewrite_gguf(pair[1], tmp_path / "draft.gguf", tensors={name: None})
    assert name in fails(ModelFormatError, pair[0], draft)


def test_a_tensor_of_another_shape_is_named(pair: Pair, tmp_path: Path) -> None:
    name = "blk.0.attn_q.weight"
    narrow = np.zeros((32, 320), np.float32)
    draft = rewrite_gguf(pair[1], tmp_path / "draft.gguf", tensors={name: narrow})
    assert name in fails(ModelFormatError, pair[0], draft)


@pytest.mark.parametrize(
    "key",
    [
        "dflash.target_layers",
        "dflash.block_size",
        "dflash.embedding_length",
        "dflash.selector_top_k",
        "dflash.attention.layer_norm_rms_epsilon",
        "tokenizer.ggml.mask_token_id",
    ],
)
def test_a_missing_key_is_named(pair: Pair, tmp_path: Path, key: str) -> None:
    draft = rewrite_gguf(pair[1], tmp_path / "draft.gguf", keys={key: None})
    assert key in fails(ModelFormatError, pair[0], draft)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dflash.block_size", Value("eight", Kind.STRING)),
        ("dflash.block_size", Value(0, Kind.UINT32)),
        ("dflash.block_size", Value(2**31, Kind.UINT32)),
        ("dflash.target_layers", Value(3, Kind.UINT32)),
        ("dflash.target_layers", Value(["1"], Kind.ARRAY, Kind.STRING)),
        ("dflash.block_count", Value(-1, Kind.INT32)),
        ("dflash.attention.head_count", Value(0, Kind.UINT32)),
        ("dflash.attention.layer_norm_rms_epsilon", Value("tiny", Kind.STRING)),
        ("dflash.selector_top_k", Value(10**6, Kind.UINT32)),
        ("dflash.conv_group_size", Value(7, Kind.UINT32)),
        ("tokenizer.ggml.mask_token_id", Value(512, Kind.UINT32)),
    ],
)
def test_a_bad_value_is_named(pair: Pair, tmp_path: Path, key: str, value: Value) -> None:
    draft = rewrite_gguf(pair[1], tmp_path / "draft.gguf", keys={key: value})
    message = fails(ModelFormatError, pair[0], draft)
    words = key.split(".")[-1].replace("_", "[ _]")
    assert re.search(words, message)


# -- pairs


def test_another_targets_drafter_is_refused_with_all_numbers(pair: Pair, tmp_path: Path) -> None:
    other = make_tiny_target(tmp_path / "other.gguf", n_embd=256, n_layer=6, n_vocab=400)
    message = fails(IncompatibleModelsError, other, pair[1])
    for part in (
        str(other),
        str(pair[1]),
        "hidden size: the target has 256, the drafter expects 320",
        "vocabulary size: the target has 400, the drafter expects 512",
        "layers: the target has 6, the drafter expects 4",
    ):
        assert part in message


def test_another_vocabulary_of_the_same_size_is_refused(pair: Pair, tmp_path: Path) -> None:
    key = "tokenizer.ggml.tokens"
    tokens = gguf.GGUFReader(pair[0]).fields[key].contents()
    tokens[300], tokens[301] = tokens[301], tokens[300]
    swapped = {key: Value(tokens, Kind.ARRAY, Kind.STRING)}
    other = rewrite_gguf(pair[0], tmp_path / "other.gguf", keys=swapped)
    message = fails(IncompatibleModelsError, other, pair[1])
    assert re.search(r"hash [0-9a-f]{16}.* hash [0-9a-f]{16}", message)


def test_a_tap_outside_the_target_is_refused(pair: Pair, tmp_path: Path) -> None:
    taps = {"dflash.target_layers": Value([1, 2, 99], Kind.ARRAY, Kind.INT32)}
    draft = rewrite_gguf(pair[1], tmp_path / "draft.gguf", keys=taps)
    assert "99" in fails(IncompatibleModelsError, pair[0], draft)


def test_files_of_other_converters_load_without_the_recorded_facts(
    pair: Pair, tmp_path: Path
) -> None:
    ours = ("dflash2.target.name", "dflash2.target.block_count", "dflash2.target.vocab_hash")
    draft = rewrite_gguf(pair[1], tmp_path / "draft.gguf", keys=dict.fromkeys(ours))
    with dflash2.load(pair[0], draft, n_ctx=64, n_threads=1, spec_draft_n_max=7) as engine:
        assert engine.spec_draft_n_max == 7


def test_a_tap_that_a_python_drafter_wants_must_exist(pair: Pair) -> None:
    target = open_target(pair[0])
    drafter = Garbage(target.n_vocab, target.n_embd)
    drafter.target_layers = lambda: [1, 44]  # type: ignore[method-assign]
    with pytest.raises(IncompatibleModelsError, match="44"):
        dflash2.Engine(target, drafter)


# -- arguments


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
        ("min_p", 1.0),
        ("repeat_penalty", 0.0),
        ("repeat_last_n", -2),
        ("seed", -1),
        ("seed", 2**64),
        ("max_tokens", 0),
        ("stop", ["a", ""]),
        ("stop", "a\udc80"),
    ],
)
def test_sampling_values_out_of_range_are_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected .*, got "):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_ctx", -1), ("n_batch", 0), ("n_threads", 0), ("n_gpu_layers", -2), ("n_ctx", 2**40)],
)
def test_load_values_out_of_range_are_named(pair: Pair, name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected .*, got {value}"):
        dflash2.load(*pair, **{name: value})  # type: ignore[arg-type]


def test_unknown_keywords_fail(pair: Pair, engine: dflash2.Engine) -> None:
    calls: list[Any] = [
        lambda: SamplingParams(temprature=1.0),  # type: ignore[call-arg]
        lambda: SamplingParams(1.0),  # type: ignore[misc]
        lambda: dflash2.load(*pair, ngl=1),  # type: ignore[call-arg]
        lambda: engine.generate("a", max_tokens=3),  # type: ignore[call-arg]
        lambda: engine.chat([], stop="x"),  # type: ignore[call-overload]
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()


def test_bad_requests_leave_the_engine_usable(engine: dflash2.Engine) -> None:
    params = SamplingParams(max_tokens=8)
    expected = engine.generate("ab", params).tokens
    calls: list[Any] = [
        lambda: engine.stream([], params),
        lambda: engine.generate([512], params),
        lambda: engine.generate([-1], params),
        lambda: engine.generate("ab", params, spec_draft_n_max=-1),
        lambda: engine.chat([], params),
        lambda: engine.chat([{"role": "user"}], params),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"expected|outside"):
            call()
        assert engine.generate("ab", params).tokens == expected


def test_a_lattice_that_breaks_its_promises_is_refused(pair: Pair) -> None:
    target = open_target(pair[0])
    drafter = Garbage(target.n_vocab, target.n_embd)
    engine = dflash2.Engine(target, drafter, spec_draft_n_max=7)
    for row in ([1, 1, 2, 3], [512, 1, 2, 3], [-1, 2, 3, 4]):
        drafter.candidates = lambda position, row=row: np.array(row, np.int32)  # type: ignore
        with pytest.raises(ValueError, match=r"lattice|outside the vocabulary"):
            engine.generate("ab", SamplingParams(max_tokens=8))
    with pytest.raises(ValueError, match="lattice"):
        core.Lattice(np.zeros((2, 4), np.int32), np.zeros((2, 4, 3), np.float32))


def test_a_drafter_that_returns_no_lattice_is_named(pair: Pair) -> None:
    target = open_target(pair[0])
    drafter = Garbage(target.n_vocab, target.n_embd)
    drafter.draft = lambda *args: None  # type: ignore[method-assign, assignment, return-value]
    with pytest.raises(TypeError, match=r"Drafter.draft: expected a list of Lattice, got None"):
        dflash2.Engine(target, drafter, spec_draft_n_max=7).generate(
            "ab", SamplingParams(max_tokens=8)
        )


def test_a_target_used_out_of_order_is_refused_and_stays_usable(pair: Pair) -> None:
    target = open_target(pair[0])
    target.decode([7, 8, 9], 0)
    target.set_taps([1])
    with pytest.raises(ValueError, match="nothing was decoded since the taps were set"):
        target.tapped()
    with pytest.raises(ValueError, match="expected a position, got -5"):
        target.truncate(-5)
    target.decode([10], 3)
    assert target.tapped().shape == (1, 1, target.n_embd)


def test_a_drafter_given_as_target_is_named(pair: Pair) -> None:
    with pytest.raises(dflash2.ModelFormatError, match="this is a drafter"):
        dflash2.load(pair[1])


def test_text_that_is_not_utf8_keeps_its_bytes(engine: dflash2.Engine) -> None:
    """As a shell hands it over."""
    assert engine.detokenize(engine.tokenize("a\udcff")) == "a\ufffd"
    with pytest.raises(ValueError, match="surrogates"):
        engine.tokenize("a\ud800")


def test_a_target_without_a_chat_template_says_so(pair: Pair, tmp_path: Path) -> None:
    bare = {"tokenizer.chat_template": None}
    target = rewrite_gguf(pair[0], tmp_path / "target.gguf", keys=bare)
    with dflash2.load(target, n_ctx=64, n_threads=1) as engine:
        with pytest.raises(DFlash2Error, match=r"no chat template: .*tokenizer\.chat_template"):
            engine.chat([{"role": "user", "content": "hi"}])
        assert engine.spec_draft_n_max == 0
        params = SamplingParams(max_tokens=3, ignore_eos=True)
        assert len(engine.generate("ab", params).tokens) == 3


@pytest.mark.parametrize(
    ("template", "message"),
    [("{% for %}", "chat template"), ("{{ raise_exception('no system role') }}", "no system role")],
)
def test_a_broken_chat_template_says_so(
    pair: Pair, tmp_path: Path, template: str, message: str
) -> None:
    broken = {"tokenizer.chat_template": Value(template, Kind.STRING)}
    target = rewrite_gguf(pair[0], tmp_path / "target.gguf", keys=broken)
    with (
        dflash2.load(target, n_ctx=64, n_threads=1) as engine,
        pytest.raises((DFlash2Error, ValueError), match=message),
    ):
        engine.chat([{"role": "user", "content": "hi"}])
