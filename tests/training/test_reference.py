"""Our target and drafter against transformers and the published torch implementation."""

from __future__ import annotations

from pathlib import Path

import pytest
from make_tiny_models import make_tiny_checkpoint

torch = pytest.importorskip("torch", reason="needs torch: make test-training")

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own


@pytest.fixture(scope="module")
def weights(target_file: Path):
    from training.target_weights import load_weights

    return load_weights(target_file)


@pytest.fixture(scope="module")
def hf_target(weights):
    from training.target_weights import LAYER_TENSORS
    from transformers import LlamaConfig, LlamaForCausalLM

    c = weights.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=c.n_vocab,
            hidden_size=c.n_embd,
            intermediate_size=c.n_ff,
            num_hidden_layers=c.n_layer,
            num_attention_heads=c.n_head,
            num_key_value_heads=c.n_head_kv,
            head_dim=c.head_dim,
            rms_norm_eps=c.rms_eps,
            rope_parameters={"rope_theta": c.rope_theta, "rope_type": "default"},
        )
    )
    state = {"model.embed_tokens.weight": weights.embed, "model.norm.weight": weights.norm}
    state["lm_head.weight"] = weights.head
    for i, layer in enumerate(weights.layers):
        state |= {f"model.layers.{i}.{hf}": layer[name] for name, _, hf in LAYER_TENSORS}
    model.load_state_dict(state)
    return model.eval()


def test_features_and_logits_equal_transformers(weights, hf_target) -> None:
    from training.target import Target

    target = Target(weights, (0, 2), torch.device("cpu"), torch.float32)
    ids = torch.arange(2 * 30).view(2, 30) * 7 % weights.config.n_vocab
    features, hidden = target.rows(ids)
    with torch.no_grad():
        theirs = hf_target(ids, output_hidden_states=True)
    taps = torch.cat([theirs.hidden_states[1], theirs.hidden_states[3]], dim=-1)
    torch.testing.assert_close(features, taps, rtol=1e-4, atol=1e-4)
    logits = target.logits(hidden.flatten(0, 1)).view_as(theirs.logits)
    torch.testing.assert_close(logits, theirs.logits, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:.*past_key_values:FutureWarning")  # of the published loop
@pytest.mark.parametrize("sizes", [{}, {"block_size": 5, "layers": 1}])
def test_greedy_rounds_equal_the_published_loop(
    weights, hf_target, tmp_path: Path, sizes: dict[str, int]
) -> None:
    import dflash.model
    from training.checkpoint import load_checkpoint
    from training.speculate import speculate
    from training.target import Target

    layers = weights.config.n_layer
    directory = make_tiny_checkpoint(
        tmp_path, target_layers=layers, hidden=weights.config.n_embd, **sizes
    )
    ours = load_checkpoint(directory)
    theirs = dflash.model.DFlash2DraftModel.from_pretrained(str(directory), dtype=torch.float32)
    target = Target(weights, ours.config.taps, torch.device("cpu"), torch.float32)
    prompts = [list(range(10, 40)), list(range(50, 57))]
    (result,) = speculate(target, ours, prompts, 0.0, 24, [2])
    for prompt, output in zip(prompts, result.outputs, strict=True):
        reference = dflash.model.dflash_generate(
            theirs.eval(), hf_target, torch.tensor([prompt]), 24, [2]
        )
        assert output == reference[0, len(prompt) :].tolist()
