"""The draft graph against the published torch implementation, stage by stage.

PyPI `dflash` runs the checkpoint in F32 with the target's dequantized embedding and the same
features. What differs is the rounding of the file's tensors, or a bug.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from dflash2._native import core
from dflash2.doctor.finding import Finding, fault, note
from dflash2.doctor.gguf_file import Floats, GgufFile
from dflash2.doctor.masks import EMBEDDING
from dflash2.doctor.trial import Bench
from dflash2.replay import Block, Reading

MAX_ERROR = 0.3  # relative RMS; SmolLM2's drafter in Q4_K_M has 0.09, unrelated states 1.4
N_BLOCKS, STRIDE = 4, 4


def has_torch() -> bool:
    return all(importlib.util.find_spec(name) for name in ("torch", "dflash"))


def compare_graph(
    folder: Path, file: GgufFile, hparams: core._HParams, bench: Bench, drafter: core.GraphDrafter
) -> list[Finding]:
    """Errors of torch and transformers when they cannot load the checkpoint are OSError."""
    source = file if EMBEDDING in file.names else GgufFile(bench.target.path)
    oracle = _Oracle(folder, source, hparams)
    names = [f"layer_out-{i}" for i in range(hparams["n_layer"])] + ["hidden"]
    ours: dict[str, list[Floats]] = {name: [] for name in names}
    theirs: dict[str, list[Floats]] = {name: [] for name in names}
    columns = [bench.layers.index(layer) for layer in hparams["target_layers"]]
    drafter.watch(names)
    alone = Bench(bench.target, bench.readings[:1], bench.layers, bench.device)
    for _, block in zip(range(N_BLOCKS), alone.blocks(drafter, STRIDE), strict=False):
        expected = oracle.stages(bench.readings[0], columns, block)
        for name, data in drafter.watched().items():
            rows = data.reshape(-1, hparams["n_embd"])[-len(block.text) :]
            ours[name].append(rows)
            theirs[name].append(expected[name])
    drafter.watch([])
    errors = {n: _error(np.array(ours[n]), np.array(theirs[n])) for n in names}
    listed = ", ".join(f"{name} {error:.2f}" for name, error in errors.items())
    bad = [name for name, error in errors.items() if not error <= MAX_ERROR]
    if bad:
        text = f"the draft graph differs from the torch reference from {bad[0]} on"
        return [fault("reference", text, f"relative RMS errors: {listed}")]
    text = f"intermediates agree with the torch reference, relative RMS errors: {listed}"
    return [note("reference", text)]


class _Oracle:
    def __init__(self, folder: Path, embedding: GgufFile, hparams: core._HParams) -> None:
        import torch
        import transformers
        from dflash.model import DFlash2DraftModel

        transformers.utils.logging.disable_progress_bar()
        self.torch = torch
        self.model = DFlash2DraftModel.from_pretrained(str(folder), dtype=torch.float32).eval()
        self.embedding = embedding
        self.scale = hparams["embedding_scale"]
        self.captured: dict[str, Any] = {}
        for i, layer in enumerate(self.model.layers):
            layer.register_forward_hook(self._keep(f"layer_out-{i}"))

    def _keep(self, name: str) -> Any:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            self.captured[name] = output[0] if isinstance(output, tuple) else output

        return hook

    def stages(self, reading: Reading, columns: list[int], block: Block) -> dict[str, Floats]:
        """(n_draft, n_embd) each, the anchor's row left out. columns: of the taps."""
        torch, n = self.torch, len(block.text)
        ids = [int(reading.tokens[block.position]), *[self.model.mask_token_id] * n]
        rows = self.embedding.floats(EMBEDDING, ids) * np.float32(self.scale)
        context = reading.features[: block.position, columns].reshape(block.position, -1)
        with torch.inference_mode():
            hidden = self.model(
                target_hidden=torch.from_numpy(context)[None],
                noise_embedding=torch.from_numpy(rows)[None],
                position_ids=torch.arange(block.position + n + 1)[None],
                past_key_values=None,
                use_cache=False,
            )
        stages = {**self.captured, "hidden": hidden}
        return {name: np.asarray(x[0, 1:], np.float32) for name, x in stages.items()}


def _error(ours: Floats, theirs: Floats) -> float:
    difference = np.mean((ours.astype(np.float64) - theirs) ** 2)
    return float(np.sqrt(difference / np.mean(theirs.astype(np.float64) ** 2)))
