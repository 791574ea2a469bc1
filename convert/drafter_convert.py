"""convert(): a drafter checkpoint and its target in, a checked GGUF file out."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from convert_error import ConvertError
from dflash2.gguf_write import check_outfile, sync, temporary_file
from gguf_emit import PlannedTensor, file_bytes, memory_bytes, write_gguf
from gguf_metadata import build_metadata
from head_tensors import MASK_EMBEDDING_NAME, complete_head
from hf_config import LAYOUTS, DrafterConfig, parse_config
from hf_target import read_hf_target
from hf_weights import checkpoint_name, read_checkpoint
from imatrix import Imatrix, read_imatrix
from json_values import load_json
from target_info import Target, check_pair, read_gguf_target
from tensor_map import MappedTensor, map_tensors
from tensor_types import PLAIN
from type_choice import FILE_TYPES, choose_types, parse_override
from verify_gguf import TensorError, verify_gguf

MAX_THREADS = 32  # each holds a chunk of a tensor in several forms

# on_progress(step, bytes just done, bytes of the step)
OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class TensorReport:
    """One tensor of the file; errors are None in a dry run."""

    name: str
    shape: tuple[int, ...]  # ggml order, ne[0] first
    source_dtype: str
    type: str
    n_bytes: int
    max_error: float | None
    rms_error: float | None
    relative_rms: float | None


@dataclass(frozen=True)
class ConversionResult:
    """What was written (or would be, in a dry run)."""

    outfile: Path
    outtype: str
    dry_run: bool
    architecture: str
    source_name: str
    target: Path
    target_name: str
    vocab_hash: int
    block_size: int
    n_bytes: int
    n_params: int
    source_bytes: int
    memory_bytes: int  # about the most that the conversion takes
    warnings: tuple[str, ...]
    tensors: tuple[TensorReport, ...]
    seconds: float


def default_outfile(target: Target, outtype: str) -> str:
    """A name that llama.cpp discovers as the target's draft sidecar."""
    return f"dflash-{target.name}-{outtype.upper()}.gguf"


def _reports(
    plan: list[PlannedTensor], errors: list[TensorError] | None
) -> tuple[TensorReport, ...]:
    reports = []
    for i, planned in enumerate(plan):
        error = errors[i] if errors else None
        reports.append(
            TensorReport(
                name=planned.tensor.name,
                shape=planned.tensor.shape[::-1],
                source_dtype=planned.tensor.source.dtype,
                type=planned.type,
                n_bytes=planned.n_bytes,
                max_error=error.max_error if error else None,
                rms_error=error.rms_error if error else None,
                relative_rms=error.relative_rms if error else None,
            )
        )
    return tuple(reports)


def _drafter_folder(path: Path) -> Path:
    """The folder of the drafter: path, or its dflash/ where a target's repository carries one."""
    if not path.is_dir():
        raise ConvertError(f"{path}: expected a drafter folder with config.json, found none")
    inner = path / "dflash"
    if not (inner / "config.json").is_file():
        return path
    names = load_json(path / "config.json").get("architectures")
    is_drafter = isinstance(names, list) and any(name in LAYOUTS for name in names)
    return path if is_drafter else inner


def _read_inputs(
    drafter: Path, target: Path, pre_tokenizer: str | None
) -> tuple[DrafterConfig, Target]:
    where = str(drafter / "config.json")
    config = parse_config(load_json(drafter / "config.json"), where)
    if target.is_dir():
        info = read_hf_target(target, pre_tokenizer=pre_tokenizer)
    elif pre_tokenizer is not None:
        raise ConvertError(f"pre_tokenizer: {target}: expected a Hugging Face folder, got a file")
    else:
        info = read_gguf_target(target)
    check_pair(config, info, where)
    return config, info


def _check_not_input(path: Path, inputs: Iterable[Path]) -> None:
    """Whatever --force says: overwriting a model that took days to download helps nobody."""
    for given in inputs:
        # converted files may lie in the folder of a checkpoint
        files = [f for f in given.iterdir() if f.suffix != ".gguf"] if given.is_dir() else [given]
        if path.exists() and any(f.exists() and path.samefile(f) for f in files):
            raise ConvertError(f"{path}: expected another outfile; the conversion reads this one")


def _check_disk(path: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < n_bytes:
        raise ConvertError(
            f"{path.parent}: expected {n_bytes / 1e6:,.1f} MB of free disk space, "
            f"got {free / 1e6:,.1f} MB"
        )


def _plan(
    tensors: Sequence[MappedTensor], types: Sequence[str], imatrix: Imatrix | None
) -> tuple[list[PlannedTensor], tuple[str, ...]]:
    """(tensors of the file, warnings)."""
    importances = imatrix.importances(tensors) if imatrix else [None] * len(tensors)
    plan = [PlannedTensor(*of_one) for of_one in zip(tensors, types, importances, strict=True)]
    quantized = [p for p in plan if p.type not in (*PLAIN, "i64")]
    without = [p.tensor.name for p in quantized if p.importance is None]
    if imatrix is None or not without:
        return plan, ()
    return plan, (
        f"{imatrix.path}: no data for {len(without)} of {len(quantized)} quantized tensors, "
        f"such as {without[0]}; they are quantized without",
    )


def convert(
    drafter: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    outtype: str = "q4_k_m",
    outfile: str | os.PathLike[str] | None = None,
    dry_run: bool = False,
    force: bool = False,
    threads: int | None = None,
    pre_tokenizer: str | None = None,
    tensor_type: Sequence[str] = (),
    recipe: str | None = None,
    imatrix: str | os.PathLike[str] | None = None,
    head_rows: int | None = None,
    head_counts: str | os.PathLike[str] | None = None,
    on_progress: OnProgress | None = None,
) -> ConversionResult:
    """Converts a drafter checkpoint to a GGUF file that llama.cpp and dflash2 load.

    Args:
        drafter: folder with config.json and *.safetensors.
        target: the target model's GGUF file, or its Hugging Face folder (config and tokenizer).
        outtype: a key of FILE_TYPES.
        outfile: file or folder to write; a default name in the current folder when None.
        dry_run: only plan.
        force: overwrite outfile.
        threads: at most MAX_THREADS; as many as there are cores when None.
        pre_tokenizer: llama.cpp's name for it, for Hugging Face folders whose own is unknown.
        tensor_type: REGEX=TYPE overrides, as llama-quantize takes them.
        recipe: a key of RECIPES: tensors to keep at more bits.
        imatrix: importance matrix in llama.cpp's GGUF format, for quantized types.
        head_rows: write a reduced head with this many rows.
        head_counts: how often each token occurs, for head_rows: .npy or one integer a line.
        on_progress: called as on_progress(step, bytes just done, bytes of the step).

    Raises:
        ConvertError: with one line that names what is wrong; nothing is left behind.
        OSError: from the file system.
    """
    begin = time.monotonic()
    if outtype not in FILE_TYPES:
        raise ConvertError(f"outtype: expected one of {', '.join(FILE_TYPES)}, got {outtype!r}")
    if threads is not None and threads < 1:
        raise ConvertError(f"threads: expected 1 or more, got {threads}")
    given, target = Path(drafter), Path(target)
    drafter = _drafter_folder(given)
    config, info = _read_inputs(drafter, target, pre_tokenizer)
    checkpoint = read_checkpoint(drafter)
    tensors = complete_head(
        map_tensors(checkpoint, config, str(drafter)),
        config,
        info,
        mask_embedding=drafter / MASK_EMBEDDING_NAME,
        head_rows=head_rows,
        head_counts=Path(head_counts) if head_counts is not None else None,
    )
    if imatrix is not None and outtype in PLAIN:
        raise ConvertError(f"imatrix: expected a quantized outtype with it, got {outtype}")
    importance = read_imatrix(Path(imatrix)) if imatrix is not None else None
    types = choose_types(
        tensors,
        outtype,
        config,
        recipe=recipe,
        overrides=[parse_override(text) for text in tensor_type],
        has_imatrix=importance is not None,
    )
    plan, warnings = _plan(tensors, types, importance)
    n_params = sum(math.prod(t.shape) for t in tensors)
    name = checkpoint_name(given)
    values = build_metadata(config, info, source_name=name, outtype=outtype, n_params=n_params)
    if importance is not None:
        values |= importance.values()

    path = Path(outfile) if outfile is not None else Path.cwd()
    if path.is_dir():
        path /= default_outfile(info, outtype)
    options = [Path(given) for given in (imatrix, head_counts) if given is not None]
    _check_not_input(path, [drafter, target, *options])
    check_outfile(path, force=force)
    n_threads = max(1, min(threads or os.cpu_count() or 1, MAX_THREADS))
    errors = None
    if not dry_run:
        _check_disk(path, file_bytes(values, plan))
        data_bytes = sum(p.n_bytes for p in plan)
        report = on_progress or (lambda step, done, total: None)
        with temporary_file(path, force=force) as temporary, temporary.open("xb") as f:
            write_gguf(
                f,
                values,
                plan,
                n_threads=n_threads,
                on_bytes=lambda n: report("write", n, data_bytes),
            )
            f.flush()
            with ThreadPoolExecutor(1) as disk:
                synced = disk.submit(sync, f)  # the disk writes while the file is read back
                errors = verify_gguf(
                    temporary,
                    values,
                    plan,
                    n_threads=n_threads,
                    on_bytes=lambda n: report("verify", n, data_bytes),
                )
                synced.result()
    return ConversionResult(
        outfile=path,
        outtype=outtype,
        dry_run=dry_run,
        architecture=config.architecture,
        source_name=name,
        target=target,
        target_name=info.name,
        vocab_hash=info.vocab_hash,
        block_size=config.block_size,
        n_bytes=file_bytes(values, plan),
        n_params=n_params,
        source_bytes=sum(path.stat().st_size for path in {t.path for t in checkpoint.values()}),
        memory_bytes=memory_bytes(values, plan, n_threads),
        warnings=config.warnings + warnings,
        tensors=_reports(plan, errors),
        seconds=time.monotonic() - begin,
    )
