"""`dflash2 serve`: llama.cpp's own server for a pair, with the flags that fit this machine."""

from __future__ import annotations

import argparse
import os
import shlex
import socket
from pathlib import Path
from typing import Any

from dflash2.cli import options
from dflash2.cli.ui import Ui
from dflash2.errors import DFlash2Error, IncompatibleModelsError
from dflash2.gguf_info import GgufInfo
from dflash2.pairing import check_pair
from dflash2.tune.result import Saved, saved_path
from dflash2.upstream import engines
from dflash2.upstream.command import XLLAMACPP, find_server, server_flags

HELP = "start llama-server for a pair, or print how other engines serve it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="target GGUF")
    parser.add_argument("draft", metavar="DRAFT", help="drafter GGUF")
    parser.epilog = "What follows -- is given to llama-server as it is."
    group = parser.add_argument_group("server")
    group.add_argument(
        "--server",
        metavar="PATH",
        help="llama-server (default: on PATH; xllamacpp: the one inside that package)",
    )
    group.add_argument("--host", default="127.0.0.1", help="(default: 127.0.0.1)")
    group.add_argument(
        "--port", metavar="N", type=options.positive, default=8080, help="(default: 8080)"
    )
    group.add_argument(
        "--print", dest="only_print", action="store_true", help="print the command, start nothing"
    )
    group.add_argument("-q", "--quiet", action="store_true", help="no notes")
    group = parser.add_argument_group("models; what is not given is taken from dflash2 tune")
    group.add_argument(
        "-c", "--ctx-size", metavar="N", type=options.positive, help="of a request (else 4096)"
    )
    group.add_argument("-np", "--parallel", metavar="N", type=options.positive, default=1)
    group.add_argument("-t", "--threads", metavar="N", type=options.positive)
    group.add_argument(
        "-ngl",
        "--n-gpu-layers",
        metavar="N",
        type=int,
        help="target layers on the GPU (0; -1: all)",
    )
    group.add_argument("-devd", "--device-draft", metavar="NAME", help="device of the drafter")
    group.add_argument(
        "--spec-draft-n-max",
        metavar="N",
        type=options.positive,
        help="tokens drafted per round (3)",
    )
    group = parser.add_argument_group("other engines")
    group.add_argument(
        "--engine",
        choices=["llama.cpp", "llama.cpp-rpc", "sglang", "vllm"],
        default="llama.cpp",
        help="others than llama.cpp: print their commands and a compose file",
    )
    group.add_argument(
        "--nodes", metavar="N", type=options.positive, default=1, help="machines (default: 1)"
    )
    group.add_argument(
        "--gpus", metavar="N", type=options.positive, default=1, help="of each (default: 1)"
    )
    group.add_argument(
        "--node-hosts", metavar="HOST,..", help="of the machines, the first one in front"
    )
    group.add_argument("--target-checkpoint", metavar="DIR", help="safetensors, or a hub's name")
    group.add_argument("--draft-checkpoint", metavar="DIR", help="safetensors, or a hub's name")


def run(args: argparse.Namespace) -> int:
    ui = Ui(quiet=args.quiet)
    n_draft = check(args.target, args.draft)
    if args.engine in ("sglang", "vllm"):
        print(other_engine(args, n_draft).text())
        return 0
    if args.engine == "llama.cpp-rpc":  # containers see whole paths only
        args.target, args.draft = (str(Path(file).resolve()) for file in (args.target, args.draft))
    flags = choose_flags(args, n_draft, ui)
    if args.engine == "llama.cpp-rpc":
        flags += args.extra
        hosts = node_hosts(args)
        print(engines.llama_cpp_rpc(flags, hosts[1:], cluster(args, hosts)).text())
        return 0
    program = list(XLLAMACPP) if args.server == "xllamacpp" else [server(args)]
    command = [*program, *flags, "--host", args.host, "--port", str(args.port), *args.extra]
    if args.only_print:
        print(shlex.join(command))
        return 0
    require_free(args.host, args.port)
    os.execv(command[0], command)


def check(target: str, draft: str) -> int:
    """The most that the drafter drafts.

    Raises:
        OSError, DFlash2Error: a file is missing, not what it should be, or they do not fit.
    """
    for path in (target, draft):
        if not Path(path).exists():
            raise FileNotFoundError(f"{path}: no such file")
    info, of_target = GgufInfo(draft), GgufInfo(target)
    if info.family not in ("DFlash 1", "DFlash 2"):
        raise IncompatibleModelsError(f"{draft}: expected a DFlash drafter, got a {info.kind}")
    if of_target.family:
        raise IncompatibleModelsError(f"{target}: expected a target, got a {of_target.kind}")
    check_pair(info.draft_facts(), of_target.target_facts())
    return info.integer("dflash.block_size") - 1


def server(args: argparse.Namespace) -> str:
    """To print a command, the program need not be here."""
    try:
        return find_server(args.server)
    except FileNotFoundError:
        if args.only_print and args.server is None:
            return "llama-server"
        raise


def choose_flags(args: argparse.Namespace, n_draft: int, ui: Ui) -> list[str]:
    """What was asked for, else what tune saved for this pair on this machine, else defaults."""
    saved = Saved.load(saved_path(args.target, args.draft))
    settings = saved.settings if saved is not None else {}
    n = args.spec_draft_n_max
    if n is None and saved is not None:
        n = saved.n_draft_max
        ui.note(f"dflash2 tune: {saved.reason}")
    elif n is None:
        n = min(3, n_draft)
        ui.note(
            f"drafting {n} tokens a round, as llama-server does: dflash2 tune was not run here; "
            f"run: {shlex.join(['dflash2', 'tune', '-m', args.target, '-md', args.draft])}"
        )
    if n == 0:
        ui.warn(
            "serving without the drafter, which tune found slower; --spec-draft-n-max N forces it"
        )
    if n > n_draft:
        ui.warn(f"--spec-draft-n-max {n}: the drafter can {n_draft}")
        n = n_draft

    def pick(given: Any, name: str, default: Any = None) -> Any:
        return given if given is not None else settings.get(name, default)

    n_gpu_layers = pick(args.n_gpu_layers, "n_gpu_layers", 0)
    if args.engine == "llama.cpp-rpc" and args.n_gpu_layers is None:
        n_gpu_layers = -1  # what stays off the devices stays off the other machines
    return server_flags(
        args.target,
        args.draft if n else None,
        n_draft_max=n or None,
        n_ctx=pick(args.ctx_size, "n_ctx", 4096),
        n_parallel=args.parallel,
        n_threads=pick(args.threads, "n_threads"),
        n_gpu_layers=n_gpu_layers,
        draft_device=pick(args.device_draft, "draft_device"),
    )


def other_engine(args: argparse.Namespace, n_draft: int) -> engines.Deployment:
    if args.target_checkpoint is None or args.draft_checkpoint is None:
        args.usage_error(
            f"--engine {args.engine}: expected --target-checkpoint and --draft-checkpoint: it "
            "reads the original safetensors checkpoints, not the GGUF files"
        )
    of = cluster(args, node_hosts(args))
    target, draft = (
        str(Path(name).resolve()) if Path(name).is_dir() else name
        for name in (args.target_checkpoint, args.draft_checkpoint)
    )
    if args.engine == "sglang":
        return engines.sglang(target, draft, of)
    return engines.vllm(target, draft, n_draft, of)


def node_hosts(args: argparse.Namespace) -> list[str]:
    hosts = args.node_hosts.split(",") if args.node_hosts else []
    if args.nodes > 1 and len(hosts) != args.nodes:
        args.usage_error(f"--nodes {args.nodes}: expected --node-hosts with {args.nodes} hosts")
    return hosts


def cluster(args: argparse.Namespace, hosts: list[str]) -> engines.Cluster:
    head = hosts[0] if hosts else args.host
    return engines.Cluster(nodes=args.nodes, gpus=args.gpus, head=head, port=args.port)


def require_free(host: str, port: int) -> None:
    """Raises DFlash2Error: somebody listens there, or the host is not of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError as e:
            raise DFlash2Error(
                f"{host}:{port}: expected a free port, got: {e.strerror}; choose another --port"
            ) from e
