"""Doctor names what is wrong with a drafter, and leaves a good one alone."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from dflash2._native import core
from dflash2.cli.main import main
from dflash2.doctor import bands, passages
from dflash2.doctor import variants as v
from dflash2.doctor.examination import Doctor, Examination, Settings
from dflash2.doctor.gguf_file import Edit, GgufFile, TensorData
from dflash2.doctor.reference import compare_with
from dflash2.doctor.report import as_json, as_text
from dflash2.doctor.static_checks import static_checks
from dflash2.doctor.trial import Trial, compare
from dflash2.gguf_raw import f32, i32_array, u32
from plant_faults import Fault, plant
from smollm2 import CHECKPOINT

# ---------------------------------------------------------------------------------------- files


def edited(source: Path, out: Path, edit: Edit) -> GgufFile:
    GgufFile(source).write_copy(out, edit)
    return GgufFile(out)


def hparams(path: Path) -> core._HParams:
    return core.DraftModel(str(path)).hparams


def test_a_copy_without_changes_is_the_same_file(pair: tuple[Path, Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    edited(pair[1], copy, Edit())
    assert copy.read_bytes() == pair[1].read_bytes()


def test_a_copy_has_what_was_changed_and_nothing_else(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    source = GgufFile(pair[1])
    edit = Edit(
        values={v.MASK: u32(7), v.WINDOW: None, v.PATTERN: None},
        tensors={v.PREDECESSOR: source.data(v.SUCCESSOR)},
    )
    copy = edited(pair[1], tmp_path / "copy.gguf", edit)
    before, after = hparams(pair[1]), hparams(copy.path)
    changed = {key for key in before if before[key] != after[key]}  # type: ignore[literal-required]
    assert changed == {"mask_token_id", "sliding_window", "is_sliding", "context_window"}
    for name in source.names:
        of = v.SUCCESSOR if name == v.PREDECESSOR else name
        assert np.array_equal(copy.data(name).rows, source.data(of).rows), name


@pytest.mark.parametrize("kind", ["Q4_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "Q3_K", "Q2_K"])
def test_scales_tell_whether_values_are_zero_or_not_finite(kind: str, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(6, 512)).astype(np.float32)
    x[1] = 0
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "test")
    type_id = gguf.GGMLQuantizationType[kind]
    writer.add_tensor("x", core.quantize(x, kind.replace("_K", "_K")), raw_dtype=type_id)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(path)
    assert file.scales("x").any(axis=1).tolist() == [True, False, True, True, True, True]
    assert np.isfinite(file.scales("x")).all()
    assert np.abs(file.floats("x") - x).max() < 2


# --------------------------------------------------------------------------------- static checks


def planted(file: GgufFile, hp: core._HParams, name: str) -> Fault:
    return next(fault for fault in plant(file, hp) if fault.name == name)


@pytest.mark.parametrize(
    "name", ["hidden_norm all ones", "conv taps swapped", "layer 2 all zeros", "F16 overflow"]
)
def test_faults_that_the_values_give_away(
    real_pair: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    hp = hparams(real_pair[1])
    fault = planted(GgufFile(real_pair[1]), hp, name)
    found = static_checks(edited(real_pair[1], tmp_path / "x.gguf", fault.edit), hp)
    assert [f.severity for f in found] == ["fault"]
    assert found[0].stage in fault.stages


def test_a_trained_drafter_passes_the_static_checks(real_pair: tuple[Path, Path]) -> None:
    assert static_checks(GgufFile(real_pair[1]), hparams(real_pair[1])) == []


def test_a_rope_base_that_is_not_the_targets_is_noted(pair: tuple[Path, Path]) -> None:
    hp = hparams(pair[1])
    assert static_checks(GgufFile(pair[1]), hp, hp["rope_freq_base"]) == []
    [found] = static_checks(GgufFile(pair[1]), hp, 10 * hp["rope_freq_base"])
    assert (found.severity, found.stage) == ("note", "rope")


def test_identical_and_dead_codebooks_are_faults(pair: tuple[Path, Path], tmp_path: Path) -> None:
    source = GgufFile(pair[1])
    same = Edit(tensors={v.PREDECESSOR: source.data(v.SUCCESSOR)})
    [found] = static_checks(edited(pair[1], tmp_path / "a.gguf", same), hparams(pair[1]))
    assert "identical" in found.text
    data = source.data(v.SUCCESSOR)
    rows = data.rows.copy()
    rows[: len(rows) * 3 // 4] = 0
    dead = Edit(tensors={v.SUCCESSOR: TensorData(data.type_id, rows)})
    [found] = static_checks(edited(pair[1], tmp_path / "b.gguf", dead), hparams(pair[1]))
    assert found.evidence == "75% of the rows"


# -------------------------------------------------------------------------------------- reference


def test_a_file_equals_the_checkpoint_that_it_was_made_from(real_pair: tuple[Path, Path]) -> None:
    assert compare_with(CHECKPOINT, GgufFile(real_pair[1]), hparams(real_pair[1])) == []


def test_a_checkpoint_shows_what_differs(real_pair: tuple[Path, Path], tmp_path: Path) -> None:
    file = GgufFile(real_pair[1])
    edit = Edit(
        values={
            v.TAPS: i32_array((1, 8, 14, 20, 27)),
            v.ROPE_BASE: f32(1e6),
            v.WINDOW: None,
            v.PATTERN: None,
        },
        tensors={v.PREDECESSOR: file.data(v.SUCCESSOR), v.SUCCESSOR: file.data(v.PREDECESSOR)},
    )
    copy = edited(real_pair[1], tmp_path / "x.gguf", edit)
    texts = [f.text for f in compare_with(CHECKPOINT, copy, hparams(copy.path))]
    assert len(texts) == 5
    assert "[2, 9, 15, 21, 28], the file [1, 8, 14, 20, 27]" in "".join(texts)
    assert "RoPE base: the checkpoint has 100000.0, the file 1000000.0" in "".join(texts)
    assert "sliding window: the checkpoint has 640, the file 0" in "".join(texts)
    assert "it holds candidate_selector.successor_codebook" in "".join(texts)


# ------------------------------------------------------------------------------------- statistics


def trial(overlap: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Trial:
    n = len(overlap)
    flags = np.zeros(overlap.shape, bool)
    place = np.stack([np.arange(n) // 30, np.arange(n) % 30], axis=1)
    return Trial(place, flags, flags, flags, overlap, 0.0)


def test_only_a_significant_and_large_gain_counts() -> None:
    rng = np.random.default_rng(3)
    base = rng.uniform(0.2, 0.6, size=(120, 7))
    noise = rng.normal(0, 0.05, size=base.shape)
    noise -= noise.mean()

    def better(gain: float, n_variants: int = 40) -> bool:
        return compare(trial(base + noise + gain), trial(base)).is_better(n_variants, 7)

    assert better(0.05)
    assert not better(0.0)
    assert not better(0.015)  # significant, but small
    assert not better(-0.05)
    assert compare(trial(base - 0.05 + noise), trial(base)).is_worse
    assert compare(trial(base), trial(base)).p == 0.5


def test_chance_names_a_variant_as_seldom_as_stated() -> None:
    rng = np.random.default_rng(4)
    base = rng.uniform(0.2, 0.6, size=(60, 7))
    n_alarms = 0
    for _ in range(100):
        tries = [trial(base + rng.normal(0, 0.3, size=base.shape)) for _ in range(10)]
        n_alarms += any(compare(t, trial(base)).is_better(10, 7) for t in tries)
    assert n_alarms <= 12  # 5 expected; 13 or more by chance: 1 in 700


# ------------------------------------------------------------------------------------------ text


def test_loops_are_cut_where_they_begin_again() -> None:
    assert passages.cut_loop([*range(20)]) == [*range(20)]
    assert passages.cut_loop([1, 2, 3, *[7, 8, 9] * 5]) == [1, 2, 3, 7, 8, 9]
    assert passages.cut_loop([5] * 40) == [5, 5, 5]
    assert passages.cut_loop([1, 1, 2, 2, 3, 3, 4, 4, 5, 5]) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


# ------------------------------------------------------------------------------------ examination


@pytest.fixture(scope="module")
def doctor(real_pair: tuple[Path, Path]) -> Doctor:
    settings = Settings(
        n_passages=3,
        n_tokens=40,
        n_long=48,
        n_long_judged=16,
        n_lossless=1,
        stride=3,
        topics=frozenset({"selector", "conv"}),
        n_threads=1,
    )
    return Doctor(*real_pair, settings=settings)


def faults_of(found: Examination) -> list[str]:
    return [f.stage for f in found.findings if f.severity == "fault"]


def test_a_trained_drafter_is_healthy(doctor: Doctor, real_pair: tuple[Path, Path]) -> None:
    found = doctor.examine(real_pair[1])
    assert faults_of(found) == []
    assert found.healthy
    assert found.losslessness.n_tokens > 0
    assert [p.bad for p in found.probes] == [0] * len(found.probes)
    assert as_text(found).splitlines()[-1].startswith("healthy: no fault was found")
    result = json.loads(json.dumps(as_json(found)))
    assert result["healthy"] is True
    assert len(result["positions"]) == 7
    assert result["positions"][0]["recall_at_k"] >= result["positions"][0]["recall_at_1"] > 0.3


@pytest.mark.parametrize("name", ["codebooks swapped", "conv before and after swapped"])
def test_the_variant_that_mends_a_fault_names_it(
    doctor: Doctor, real_pair: tuple[Path, Path], tmp_path: Path, name: str
) -> None:
    file = GgufFile(real_pair[1])
    fault = planted(file, hparams(real_pair[1]), name)
    file.write_copy(tmp_path / "x.gguf", fault.edit)
    found = doctor.examine(tmp_path / "x.gguf")
    assert not found.healthy
    assert set(fault.stages) & set(faults_of(found))
    [best] = [f for f in found.findings if f.stage in fault.stages]
    assert "are swapped" in best.text
    assert "not healthy" in as_text(found)


def test_weights_that_overflowed_end_the_examination_early(
    doctor: Doctor, real_pair: tuple[Path, Path], tmp_path: Path
) -> None:
    file = GgufFile(real_pair[1])
    file.write_copy(tmp_path / "x.gguf", planted(file, hparams(real_pair[1]), "F16 overflow").edit)
    found = doctor.examine(tmp_path / "x.gguf")
    assert faults_of(found)[0] == "overflow"
    assert found.tried == []
    assert found.probes[0].bad > 0


def test_a_random_drafter_is_below_the_bands(pair: tuple[Path, Path]) -> None:
    settings = Settings(
        n_passages=4, n_tokens=64, n_long=64, n_lossless=1, topics=frozenset(), n_threads=1
    )
    found = Doctor(*pair, settings=settings).examine(pair[1])
    assert faults_of(found) == ["bands"]
    assert bands.of(found.trial, "selector pick", 1) < 0.2
    assert found.losslessness.divergences == []


# --------------------------------------------------------------------------------------- bad input


def run_doctor(*args: object) -> int:
    try:
        return main(["doctor", "-t", "1", *map(str, args)])
    except SystemExit as e:
        return int(e.code or 0)


def test_bad_input_is_one_line_and_exit_status_1(
    pair: tuple[Path, Path],
    real_pair: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    empty, junk, image = tmp_path / "empty.txt", tmp_path / "junk.gguf", tmp_path / "image.txt"
    empty.write_text("")
    junk.write_text("not a model")
    image.write_bytes(b"\x89PNG\xff\xfe")
    target, draft = pair
    cases = [
        (("-m", target, "-md", draft, "--text", empty), "text: expected 8 tokens or more"),
        (("-m", target, "-md", draft, "--text", image), "image.txt: expected UTF-8 text"),
        (("-m", target, "-md", draft, "--text", tmp_path / "none"), "No such file"),
        (("-m", target, "-md", junk), "junk.gguf"),
        (("-m", target, "-md", target), "not a DFlash drafter"),
        (("-m", target, "-md", real_pair[1]), "does not fit"),
        (("-m", target, "-md", draft, "--reference", tmp_path), "config.json"),
    ]
    for args, expected in cases:
        assert run_doctor(*args) == 1, args
        out, err = capsys.readouterr()
        first, *rest = err.splitlines()
        assert first.startswith("error: ")
        assert expected in first
        assert [line for line in rest if not line.startswith("hint: ")] == []
        assert out == ""


def test_wrong_usage_is_exit_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_doctor("-m", "x") == 2
    assert run_doctor("-m", "x", "-md", "y", "-t", "0") == 2
    assert "--help lists the options" in capsys.readouterr().err
