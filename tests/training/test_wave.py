"""Text that a tiny target writes, and the blocks that are cut from it."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-training")

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own


@pytest.fixture(scope="module")
def wave(target_file: Path):
    from training.target import Target
    from training.target_weights import load_weights
    from training.vocabulary import load_vocabulary
    from training.writer import Writer, make_scripts

    torch.manual_seed(0)
    vocabulary = load_vocabulary(target_file)
    target = Target(load_weights(target_file), (1, 2), torch.device("cpu"), torch.float32)
    scripts = make_scripts(vocabulary, ["Hi", "Sum 1 and 2."], target.device)
    return target, vocabulary, Writer(target, scripts, vocabulary.eog, 12, 80).write()


def test_cached_steps_equal_whole_rows(wave) -> None:
    target, _, written = wave
    features, hidden = target.rows(written.tokens)
    torch.testing.assert_close(written.features, features, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(written.hidden, hidden, rtol=1e-3, atol=1e-3)


def test_greedy_answers_are_the_argmax(wave) -> None:
    target, _, written = wave
    best = target.logits(written.hidden.flatten(0, 1)).view(*written.tokens.shape, -1).argmax(-1)
    cold = (written.temperatures == 0)[:, None] & (written.kinds[:, 1:] == 1)
    assert cold.sum() > 20
    assert (written.tokens[:, 1:] == best[:, :-1])[cold].all()


def test_rows_begin_as_the_template_says(wave) -> None:
    _, vocabulary, written = wave
    texts = [vocabulary.decode(row.tolist()) for row in written.tokens]
    assert any(text.startswith(vocabulary.chat.before_user) for text in texts)
    assert not any("<|im_end|><|im_end|>\n" in text for text in texts)


def test_loops_are_found_after_the_repeats() -> None:
    from training.wave import loops

    text = torch.cat([torch.arange(100, 140), torch.tensor([1, 2, 3]).repeat(20)])[None]
    looped = loops(text)[0]
    assert not looped[: 40 + 3 + 23].any()
    assert looped[40 + 3 + 24 :].all()


def test_labels_end_at_given_text(wave) -> None:
    from training.blocks import draw_blocks

    _, _, written = wave
    blocks = draw_blocks(written, torch.arange(12), 16, 8)
    labels = blocks.take(written.labels, blocks.labels)
    assert blocks.valid.any()
    assert (labels | ~blocks.valid).all()
    assert (blocks.valid[..., 1:] <= blocks.valid[..., :-1]).all()
