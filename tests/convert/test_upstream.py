"""llama.cpp itself as the oracle: its quantizer, its vocabulary loader."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import pre_tokenizers
import pytest
import tiny_drafter
from convert_error import ConvertError
from drafter_convert import convert
from hf_weights import read_checkpoint
from type_choice import FILE_TYPES
from verify_gguf import Reader

DRAFTER = Path(__file__).parents[2] / "models" / "smollm2-135m-dflash2"
QUANTIZED = [name for name in FILE_TYPES if name not in ("f32", "f16", "bf16")]


@pytest.fixture(scope="module", autouse=True)
def quiet_llama() -> Any:
    """No log lines of libllama."""

    @llama_cpp.llama_log_callback
    def drop(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
        pass

    llama_cpp.llama_log_set(drop, ctypes.c_void_p(0))
    yield
    llama_cpp.llama_log_set(llama_cpp.llama_log_callback(0), ctypes.c_void_p(0))


def quantize(source: Path, out: Path, outtype: str) -> dict[str, gguf.ReaderTensor]:
    """What llama-quantize makes of a file."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = 1
    params.ftype = int(FILE_TYPES[outtype])
    code = llama_cpp.llama_model_quantize(str(source).encode(), str(out).encode(), params)
    assert code == 0
    return {t.name: t for t in Reader(out).tensors}


def assert_same_tensors(ours: Path, theirs: dict[str, gguf.ReaderTensor]) -> None:
    found = {t.name: t for t in Reader(ours).tensors}
    assert {n: t.tensor_type for n, t in found.items()} == {
        n: t.tensor_type for n, t in theirs.items()
    }
    for name, tensor in found.items():
        assert tensor.data.tobytes() == theirs[name].data.tobytes(), name


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Eight layers, so that every layer-dependent choice is met, and an own embedding and head.

    Returns (drafter, target).
    """
    cfg = tiny_drafter.config(
        num_hidden_layers=8,
        layer_types=["sliding_attention"] * 8,
        intermediate_size=256,
        num_attention_heads=4,
        num_key_value_heads=1,
    )
    tensors: dict[str, Any] = dict(tiny_drafter.weights(cfg, seed=3))
    for name in ("embed_tokens.weight", "lm_head.weight"):
        tensors[name] = np.random.default_rng(4).normal(size=(96, 256)).astype(np.float32)
    folder = tmp_path_factory.mktemp("wide")
    return (
        tiny_drafter.write_drafter(folder / "d", cfg, tensors),
        tiny_drafter.write_target(folder / "t.gguf"),
    )


@pytest.fixture(scope="module")
def wide_f32(wide: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wide drafter as an F32 file."""
    return convert(*wide, outtype="f32", outfile=tmp_path_factory.mktemp("f32")).outfile


@pytest.mark.parametrize("outtype", QUANTIZED)
def test_types_and_bytes_are_those_of_llama_quantize(
    outtype: str, wide: tuple[Path, Path], wide_f32: Path, tmp_path: Path
) -> None:
    ours = convert(*wide, outtype=outtype, outfile=tmp_path / "ours.gguf", threads=1).outfile
    assert_same_tensors(ours, quantize(wide_f32, tmp_path / "theirs.gguf", outtype))


def test_keys_are_those_of_llama_quantize(
    wide: tuple[Path, Path], wide_f32: Path, tmp_path: Path
) -> None:
    ours = convert(*wide, outtype="q4_k_m", outfile=tmp_path / "ours.gguf", threads=1).outfile
    theirs = tmp_path / "theirs.gguf"
    quantize(wide_f32, theirs, "q4_k_m")
    one, other = gguf.GGUFReader(ours).fields, gguf.GGUFReader(theirs).fields
    keys = {k for k in one if not k.startswith("GGUF.")}
    assert keys == {k for k in other if not k.startswith("GGUF.")}
    for key in keys:
        assert (one[key].types, one[key].contents()) == (other[key].types, other[key].contents())


def test_smollm2_pair_is_quantized_as_llama_quantize_does_it(smollm2: Path, tmp_path: Path) -> None:
    full = convert(DRAFTER, smollm2, outtype="bf16", outfile=tmp_path / "bf16.gguf").outfile
    ours = convert(DRAFTER, smollm2, outtype="q4_k_m", outfile=tmp_path / "o.gguf", threads=1)
    assert_same_tensors(ours.outfile, quantize(full, tmp_path / "theirs.gguf", "q4_k_m"))
    assert len(ours.tensors) == len(read_checkpoint(DRAFTER))


def vocabulary(path: Path) -> Any:
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    assert model is not None, f"libllama does not load the vocabulary of {path}"
    return model


def test_libllama_reads_the_vocabulary_of_the_target_from_the_drafter(
    smollm2: Path, tmp_path: Path
) -> None:
    ours = convert(DRAFTER, smollm2, outtype="q8_0", outfile=tmp_path / "x.gguf", threads=1)
    models = vocabulary(ours.outfile), vocabulary(smollm2)
    one, other = (llama_cpp.llama_model_get_vocab(m) for m in models)
    n_vocab = llama_cpp.llama_vocab_n_tokens(other)
    assert llama_cpp.llama_vocab_n_tokens(one) == n_vocab == 49152
    for token in range(n_vocab):
        for getter in (llama_cpp.llama_vocab_get_text, llama_cpp.llama_vocab_get_attr):
            assert getter(one, token) == getter(other, token)
    assert llama_cpp.llama_vocab_mask(one) == 4
    for model in models:
        llama_cpp.llama_model_free(model)


def weights(cfg: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**tiny_drafter.weights(cfg), **more}


def ones(*shape: int) -> Any:
    return tiny_drafter.to_bf16(np.ones(shape, np.float32))


MIMO = {"use_swa": True, "swa_window_size": 64, "attention_value_scale": 0.6}
FULL = {"layer_types": ["full_attention", "full_attention"]}
MIXED = {"layer_types": ["sliding_attention", "full_attention"]}
DFLASH1 = tiny_drafter.dflash1()
SINKS = {f"layers.{i}.self_attn.sinks": ones(4) for i in range(2)}
EMBEDDING = {"embed_tokens.weight": ones(96, 256), "lm_head.weight": ones(96, 256)}
REDUCED = {"lm_head.weight": ones(16, 256), "d2t": np.arange(16) * 3}

# name -> (config, tensors)
LOADABLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "published": (tiny_drafter.CONFIG, weights(tiny_drafter.CONFIG)),
    "full attention": (tiny_drafter.config(**FULL), weights(tiny_drafter.CONFIG)),
    "mixed layers": (tiny_drafter.config(**MIXED), weights(tiny_drafter.CONFIG)),
    "own embedding and head": (tiny_drafter.CONFIG, weights(tiny_drafter.CONFIG, **EMBEDDING)),
    "reduced head": (
        tiny_drafter.config(draft_vocab_size=16),
        weights(tiny_drafter.CONFIG, **REDUCED),
    ),
    "small codebooks": (
        tiny_drafter.config(dflash_config={"selector_vocab_size": 80}),
        weights(tiny_drafter.config(dflash_config={"selector_vocab_size": 80})),
    ),
    "DFlash 1": (DFLASH1, weights(DFLASH1)),
    "MiMo": (
        tiny_drafter.dflash1(partial_rotary_factor=0.5, dflash_config=MIMO),
        weights(DFLASH1, **SINKS),
    ),
}


@pytest.mark.parametrize("outtype", ["bf16", "q4_k_m"])
@pytest.mark.parametrize("case", LOADABLE)
def test_libllama_loads_every_layout(case: str, outtype: str, target: Path, tmp_path: Path) -> None:
    drafter = tiny_drafter.write_drafter(tmp_path / "d", *LOADABLE[case])
    result = convert(drafter, target, outtype=outtype, outfile=tmp_path / "x.gguf", threads=1)
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(result.outfile).encode(), params)
    assert model is not None
    assert llama_cpp.llama_model_n_params(model) == result.n_params
    llama_cpp.llama_model_free(model)


@pytest.mark.parametrize("name", sorted({name for _, _, name in pre_tokenizers.TABLE}))
def test_libllama_knows_every_pre_tokenizer_of_the_table(name: str, tmp_path: Path) -> None:
    path = tiny_drafter.write_target(tmp_path / "t.gguf", pre=name)
    llama_cpp.llama_model_free(vocabulary(path))


def test_libllama_refuses_an_unknown_pre_tokenizer(tmp_path: Path) -> None:
    path = tiny_drafter.write_target(tmp_path / "t.gguf", pre="nonsense")
    with pytest.raises(AssertionError, match="libllama does not load the vocabulary"):
        vocabulary(path)


def types(outfile: Path) -> dict[str, str]:
    return {t.name: t.tensor_type.name for t in gguf.GGUFReader(outfile).tensors}


def test_drafter_recipe_protects_features_selector_and_convolutions_only(
    wide: tuple[Path, Path], tmp_path: Path
) -> None:
    plain = types(convert(*wide, outtype="q4_k_m", outfile=tmp_path / "a.gguf").outfile)
    safe = types(
        convert(*wide, outtype="q4_k_m", recipe="drafter", outfile=tmp_path / "b.gguf").outfile
    )
    changed = {name for name in plain if plain[name] != safe[name]}
    assert changed == {n for n in plain if re.match(r"fc\.|selector_|blk\.\d+\.\w+_conv_proj", n)}
    assert {safe[name] for name in changed} == {"Q8_0"}
    bf16 = convert(*wide, outtype="bf16", recipe="drafter", outfile=tmp_path / "c.gguf")
    assert set(types(bf16.outfile).values()) == {"F32", "BF16"}


def test_tensor_type_overrides_match_in_order_and_fall_back(
    wide: tuple[Path, Path], tmp_path: Path
) -> None:
    result = convert(
        *wide,
        outtype="q4_k_m",
        recipe="drafter",
        tensor_type=[r"^selector_pre=Q6_K", r"blk\.1\.ffn_(up|down)=f16", r"ffn_up=bf16"],
        outfile=tmp_path / "x.gguf",
    )
    found = types(result.outfile)
    assert found["selector_predecessor.weight"] == "Q8_0"  # 32 columns: q6_K falls back
    assert found["blk.1.ffn_up.weight"] == found["blk.1.ffn_down.weight"] == "F16"
    assert found["blk.2.ffn_up.weight"] == "BF16"
    assert found["blk.1.ffn_norm.weight"] == "F32"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("q8_0", "expected REGEX=TYPE"),
        ("=q8_0", "expected REGEX=TYPE"),
        ("fc=q9", "fc: expected a type of .*, got 'q9'"),
        ("(=q8_0", "expected a regular expression"),
        ("nothing=q8_0", "nothing: expected tensors of that name, found none"),
        ("attn_norm=q8_0", "attn_norm: expected tensors of that name, found none"),
    ],
)
def test_bad_override_is_refused(
    override: str, message: str, drafter: Path, target: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConvertError, match=message):
        convert(drafter, target, tensor_type=[override], outfile=tmp_path / "x.gguf")


def test_unknown_recipe_is_refused(drafter: Path, target: Path, tmp_path: Path) -> None:
    with pytest.raises(ConvertError, match="recipe: expected one of drafter, got 'x'"):
        convert(drafter, target, recipe="x", outfile=tmp_path / "x.gguf")


def test_values_beyond_a_types_scale_are_named(target: Path, tmp_path: Path) -> None:
    tensors = tiny_drafter.weights(tiny_drafter.CONFIG)
    tensors["fc.weight"][3, 5] = tiny_drafter.to_bf16(np.full(1, 1e30, np.float32))[0]
    drafter = tiny_drafter.write_drafter(tmp_path / "d", tiny_drafter.CONFIG, tensors)
    with pytest.raises(ConvertError, match=r"fc.weight: "):
        convert(drafter, target, outtype="q8_0", outfile=tmp_path / "x.gguf")
