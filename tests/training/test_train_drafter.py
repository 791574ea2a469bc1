"""The command on a tiny target: train, go on, evaluate, ablate, count, refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-training")

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own

SIZES = [
    *("--layers", "1", "--ffn", "64", "--taps", "2", "--rows", "16", "--length", "64"),
    *("--batch", "8", "--passes", "5", "--n-anchor", "8", "--max-tokens", "8"),
]
HELD_OUT = [("explain", "Why?"), ("explain", "How?"), ("lists", "Name two."), ("code", "Write it.")]


@pytest.fixture(scope="module", autouse=True)
def small_runs():
    """One thread, and few prompts in the exact loop."""
    from training import ablation, commands, exact_loop

    patch = pytest.MonkeyPatch()
    for module in (ablation, exact_loop):
        patch.setattr(module, "held_out_prompts", lambda: HELD_OUT)
    patch.setattr(commands, "N_VALIDATION", 4)
    patch.setattr(commands, "N_POOL", 200)
    patch.setattr(ablation, "MAX_TOKENS", 8)
    patch.setattr(exact_loop, "SCALE_TOKENS", 8)
    torch.set_num_threads(1)
    yield
    patch.undo()


def command(*args: object) -> int:
    from train_drafter import main

    return main([str(arg) for arg in args])


@pytest.fixture(scope="module")
def trained(target_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    assert command("train", target_file, out, "--steps", 30, *SIZES) == 0
    return out


def test_loss_falls(trained: Path) -> None:
    curve = json.loads((trained / "metrics.json").read_text())["curve"]
    assert curve[-1]["loss"] < 0.9 * curve[0]["loss"]
    assert curve[-1]["selector"] < curve[0]["selector"]


def test_held_out_lengths_are_reported(trained: Path) -> None:
    lengths = json.loads((trained / "metrics.json").read_text())["held_out"]
    assert {"T=0", "T=0.7", "T=1", "T=1 no selector"} <= set(lengths)
    assert all(1 <= length <= 8 for length in lengths.values())


def test_checkpoint_converts(trained: Path, target_file: Path, tmp_path: Path) -> None:
    import gguf
    from dflash2_to_gguf import convert

    convert(trained, target_file, outfile=tmp_path / "d.gguf", outtype="f32")
    names = {t.name for t in gguf.GGUFReader(tmp_path / "d.gguf").tensors}
    assert {"fc.weight", "selector_successor.weight", "blk.0.ffn_conv_proj.weight"} <= names


def test_checkpoint_loads_in_the_reference(trained: Path) -> None:
    from dflash.model import DFlash2DraftModel

    _, info = DFlash2DraftModel.from_pretrained(str(trained), output_loading_info=True)
    assert not any(info.values())


def test_head_counts_are_what_the_converter_reads(trained: Path, target_file: Path) -> None:
    from head_tensors import read_counts
    from training.target_weights import load_weights

    counts = read_counts(trained / "head-counts.txt", load_weights(target_file).config.n_vocab)
    assert (counts > 0).sum() > 100


def test_run_goes_on(trained: Path, target_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("train", target_file, trained, "--steps", 40, "--no-evaluation")
    assert command(*more, *SIZES) == 0
    assert "resumed at step 30" in capsys.readouterr().err
    assert command(*more, *SIZES, "--rank", 16) == 1
    assert "other settings" in capsys.readouterr().err


def test_starts_from_a_checkpoint(
    trained: Path, target_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = SIZES[SIZES.index("--rows") :]  # the drafter's own stay those of the checkpoint
    start = ("train", target_file, tmp_path / "run", "--init-from", trained, "--steps", 10)
    assert command(*start, "--no-evaluation", *sizes) == 0
    first, second = (
        json.loads((run / "metrics.json").read_text())["curve"][0]["loss"]
        for run in (trained, tmp_path / "run")
    )
    assert second < 0.95 * first
    configs = [(run / "config.json").read_text() for run in (trained, tmp_path / "run")]
    assert configs[0] == configs[1]
    capsys.readouterr()
    assert command(*start, *sizes, "--rank", 32, "--layers", 2) == 1
    assert "--layers, --rank: --init-from keeps the checkpoint's sizes" in capsys.readouterr().err
    assert command(*start, *sizes, "--length", 8, "--n-anchor", 4) == 1
    assert "--length: expected more than the block size 8" in capsys.readouterr().err


def test_a_drafter_of_another_target_is_refused(
    trained: Path, target_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    config = (other / "config.json").read_text()
    (other / "config.json").write_text(
        config.replace('"num_target_layers": 4', '"num_target_layers": 5')
    )
    run = ("train", target_file, tmp_path / "run", "--steps", 1, "--init-from", other)
    assert command(*run) == 1
    assert "expected a drafter of this target" in capsys.readouterr().err


def test_weights_follow_the_chance_of_getting_there() -> None:
    from training.trainer import Recipe, label_weights

    overlap = torch.tensor([[[0.5, 1.0, 0.2], [1.0, 0.25, 1.0]]])  # (row, anchor, k)
    valid = torch.tensor([[[True, True, True], [True, True, False]]])
    recipe = Recipe(decay=2.0, reach=0.5)
    depth = torch.exp(torch.tensor([0.0, -0.5, -1.0]))
    kept = torch.tensor([[1.0, 0.5, 0.5], [1.0, 1.0, 0.25]])
    expected = depth * (0.5 + 0.5 * kept) * valid
    assert torch.allclose(label_weights(overlap, valid, recipe), expected / expected.sum())


def test_gradient_of_the_head_is_that_of_autograd() -> None:
    from training.loss import head_loss

    torch.manual_seed(0)
    head = torch.randn(40, 8, dtype=torch.float64)
    hidden = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)
    truth, labels = torch.randn(5, 8, dtype=torch.float64), torch.randint(40, (5,))
    soft, weights = torch.linspace(0, 1, 5), torch.rand(5)
    out = head_loss(hidden, truth, head, labels, soft, 4)
    (weights * out.losses).sum().backward()
    own, hidden.grad = hidden.grad, None
    p = torch.softmax(truth @ head.T, -1)
    label = soft[:, None] * p + (1 - soft)[:, None] * torch.eye(40)[labels]
    q = torch.softmax(hidden @ head.T, -1)
    (weights * -(label * q.log()).sum(-1)).sum().backward()
    assert torch.allclose(own, hidden.grad, rtol=1e-4, atol=1e-6)
    assert torch.allclose(out.overlap.double(), torch.minimum(label, q).sum(-1), atol=1e-5)


def test_own_texts(target_file: Path, tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Good day. " * 9}]
    line = json.dumps({"messages": chat})
    (tmp_path / "chat.jsonl").write_text(f"{line}\n{json.dumps({'text': 'one two ' * 20})}\n")
    texts = ("--texts", tmp_path / "chat.jsonl", "--no-evaluation")
    assert command("train", target_file, tmp_path / "run", "--steps", 20, *texts, *SIZES) == 0
    curve = json.loads((tmp_path / "run" / "metrics.json").read_text())["curve"]
    assert curve[-1]["loss"] < curve[0]["loss"]


def test_ablation_reports_each_variant(
    target_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from training.ablation import VARIANTS

    names = ["base", "without conv", "labels: written tokens", "block 16"]
    patch = pytest.MonkeyPatch()
    patch.setattr("training.commands.VARIANTS", [v for v in VARIANTS if v.name in names])
    assert command("ablate", target_file, tmp_path, "--steps", 2, *SIZES) == 0
    patch.undo()
    lines = capsys.readouterr().err.splitlines()
    assert [line[:28].strip() for line in lines] == names


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--layers", 9, "--layers: expected 1 to 4"),
        ("--conv-group", 7, "--conv-group: expected a divisor of"),
        ("--top-k", 40, "--top-k: expected"),
        ("--mask-token", "no such token", "--mask-token: expected"),
        ("--length", 100000, "--length: expected at most"),
        ("--n-anchor", 64, "--n-anchor: expected fewer"),
    ],
)
def test_wrong_sizes_are_refused(
    target_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    option: str,
    value: object,
    message: str,
) -> None:
    args = ("train", target_file, tmp_path / "x", "--steps", 1, *SIZES, option, value)
    assert command(*args) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_files_that_are_no_target_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF\3\0\0\0" + b"\xff" * 64)
    for path in (tmp_path / "x.gguf", tmp_path / "missing.gguf", tmp_path):
        assert command("train", path, tmp_path / "out", "--steps", 1) == 1
        assert capsys.readouterr().err.startswith(f"error: {path}")
