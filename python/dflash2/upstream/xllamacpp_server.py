"""llama-server from the package xllamacpp: upstream's server code, the same arguments.

Run by its path, never imported: xllamacpp brings a libllama of its own, and two copies must not
meet in one process.
"""

from __future__ import annotations

import argparse
import signal
import sys


def arguments() -> argparse.Namespace:
    """Those that `server_flags` and `ServerProcess` write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-c", "--ctx-size", type=int, default=0)
    parser.add_argument("-np", "--parallel", type=int, default=1)
    parser.add_argument("-ngl", "--n-gpu-layers", type=layers, default=-1)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("-md", "--model-draft")
    parser.add_argument("--spec-type", choices=["draft-dflash"])
    parser.add_argument("--spec-draft-n-max", type=int)
    parser.add_argument("--spec-synth-rates", type=rates, default=[])
    parser.add_argument("--backend-sampling", action="store_true")
    parser.add_argument("--cache-ram", type=int, default=8192)
    parser.add_argument("-devd", "--device-draft", choices=["none"])
    parser.add_argument("-ngld", "--n-gpu-layers-draft", type=layers, default=-1)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--fit", choices=["on", "off"], default="on")
    parser.add_argument("-lv", "--verbosity", type=int, default=3)
    return parser.parse_args()


def layers(text: str) -> int:
    """llama.cpp's numbers for the words."""
    return {"auto": -1, "all": -2}.get(text) or int(text)


def rates(text: str) -> list[float]:
    return [float(item) for item in text.split(",")]


def main() -> None:
    args = arguments()
    try:
        import xllamacpp as upstream
    except ImportError:
        sys.exit("error: xllamacpp is not installed; run: pip install xllamacpp")
    params = upstream.CommonParams()
    params.model.path = args.model
    params.n_ctx = args.ctx_size
    params.n_parallel = args.parallel
    params.n_gpu_layers = args.n_gpu_layers
    params.fit_params = args.fit == "on"
    params.hostnames = [args.host]
    params.port = args.port
    params.endpoint_metrics = args.metrics
    params.verbosity = args.verbosity
    params.cache_ram_mib = args.cache_ram
    params.sampling.backend_sampling = args.backend_sampling
    params.speculative.synth_rates = args.spec_synth_rates
    draft = params.speculative.draft
    if args.threads is not None:
        for cpu in (params.cpuparams, params.cpuparams_batch):
            cpu.n_threads = args.threads
        for cpu in (draft.cpuparams, draft.cpuparams_batch):
            cpu.n_threads = args.threads
    if args.model_draft:
        draft.mparams.path = args.model_draft
        draft.n_gpu_layers = args.n_gpu_layers_draft
        if args.spec_draft_n_max is not None:
            draft.n_max = args.spec_draft_n_max
        kind = upstream.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH
        params.speculative.types = [kind]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server = upstream.Server(params)  # serves in threads of its own, as long as it lives
        signal.pause()
        del server
    except RuntimeError as e:
        sys.exit(f"error: {e}")
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
