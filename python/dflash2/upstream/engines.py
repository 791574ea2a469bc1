"""How other engines serve the pair, on one machine and on several.

Flags as of SGLang 0.5.19, vLLM 0.28 and llama.cpp b10658; later releases may rename them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

RANK = "${NODE_RANK:?1, 2, .. of this machine}"
HUB_CACHE = "/huggingface"  # in a container
INIT_PORT = 20000
RPC_PORT = 50052


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """nodes machines with gpus each; head: host name or address of the first; port: of the API."""

    nodes: int = 1
    gpus: int = 1
    head: str = "127.0.0.1"
    port: int = 8080


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Commands by node, and the same in containers.

    Args:
        notes: what to know before.
        image: that holds the program, or a variable with the name of one.
        worker: command of the nodes but the first, in a compose file; None: one node.
        volumes: host paths that the containers read.
    """

    notes: tuple[str, ...]
    image: str
    commands: tuple[tuple[str, ...], ...]
    worker: tuple[str, ...] | None
    volumes: tuple[str, ...]

    def compose(self) -> str:
        """A compose file for all machines, whose profiles say which part runs where."""
        services = {"head": self._service(self.commands[0])}
        if self.worker is not None:
            services["worker"] = self._service(self.worker)
            for name, service in services.items():
                service["profiles"] = [name]
        return str(yaml.safe_dump({"services": services}, sort_keys=False, width=1000))

    def _service(self, command: Sequence[str]) -> dict[str, Any]:
        gpus = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
        return {
            "image": self.image,
            "entrypoint": command[0],
            "command": [arg if arg == RANK else arg.replace("$", "$$") for arg in command[1:]],
            "network_mode": "host",
            "ipc": "host",
            "environment": {"HF_HOME": HUB_CACHE},
            "volumes": list(self.volumes),
            "deploy": {"resources": {"reservations": {"devices": [gpus]}}},
        }

    def text(self) -> str:
        """Everything, in lines of which those that are no command or compose file are comments."""
        lines = [f"# {note}" for note in self.notes]
        for node, command in enumerate(self.commands):
            lines += [f"# node {node}", shlex.join(command)]
        lines.append("# compose.yaml, for all nodes: docker compose up")
        if self.worker is not None:
            rank = "NODE_RANK=1 " if RANK in self.worker else ""
            lines[-1] = "# compose.yaml, for all nodes: docker compose --profile head up"
            lines.append(f"# and on the others: {rank}docker compose --profile worker up")
        return "\n".join([*lines, self.compose()])


def sglang(target: str, draft: str, cluster: Cluster) -> Deployment:
    """target, draft: checkpoints, as folders or names on a hub."""

    def command(rank: int | str) -> tuple[str, ...]:
        args = ["python3", "-m", "sglang.launch_server", "--model-path", target]
        args += ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", draft]
        args += ["--tp", str(cluster.nodes * cluster.gpus)]
        args += ["--host", "0.0.0.0", "--port", str(cluster.port)]
        if cluster.nodes > 1:
            args += ["--nnodes", str(cluster.nodes), "--node-rank", str(rank)]
            args += ["--dist-init-addr", f"{cluster.head}:{INIT_PORT}"]
        return tuple(args)

    return Deployment(
        notes=(
            "SGLang reads the original safetensors checkpoints, not the GGUF files.",
            "DFlash 2 is in releases after 0.5.18, on CUDA, without data-parallel attention and "
            "pipeline parallelism. It drafts the checkpoint's whole block.",
        ),
        image="lmsysorg/sglang:latest",
        commands=tuple(command(rank) for rank in range(cluster.nodes)),
        worker=command(RANK) if cluster.nodes > 1 else None,
        volumes=_checkpoints(target, draft),
    )


def vllm(target: str, draft: str, n_draft: int, cluster: Cluster) -> Deployment:
    """n_draft: of the drafter's block, the anchor left out. Others as for `sglang`."""
    config = {"method": "dflash", "model": draft, "num_speculative_tokens": n_draft}

    def command(rank: int | str) -> tuple[str, ...]:
        args = ["vllm", "serve", target, "--speculative-config", json.dumps(config)]
        args += ["--tensor-parallel-size", str(cluster.nodes * cluster.gpus)]
        if cluster.nodes > 1:
            args += ["--distributed-executor-backend", "mp", "--nnodes", str(cluster.nodes)]
            args += ["--node-rank", str(rank), "--master-addr", cluster.head]
        if rank != 0:
            return (*args, "--headless")
        return (*args, "--host", "0.0.0.0", "--port", str(cluster.port))

    return Deployment(
        notes=(
            "vLLM reads the original safetensors checkpoints, not the GGUF files.",
            "DFlash 2 needs model runner V2 and a release after 2026-08-21; vLLM knows it by the "
            f"drafter's architecture and must draft its whole block, {n_draft} tokens.",
        ),
        image="vllm/vllm-openai:latest",
        commands=tuple(command(rank) for rank in range(cluster.nodes)),
        worker=command(RANK) if cluster.nodes > 1 else None,
        volumes=_checkpoints(target, draft),
    )


def llama_cpp_rpc(flags: Sequence[str], hosts: Sequence[str], cluster: Cluster) -> Deployment:
    """flags: of llama-server, on the first node; hosts: of the other nodes."""
    worker = ("ggml-rpc-server", "-H", "0.0.0.0", "-p", str(RPC_PORT))
    head = ["llama-server", *flags, "--host", "0.0.0.0", "--port", str(cluster.port)]
    if hosts:
        head += ["--rpc", ",".join(f"{host}:{RPC_PORT}" for host in hosts)]
    models = [Path(flags[i + 1]) for i, flag in enumerate(flags) if flag in ("-m", "-md")]
    return Deployment(
        notes=(
            "llama.cpp reads the GGUF files, on the first node only.",
            "Its RPC backend is not in the published images: build with -DGGML_RPC=ON. It has no "
            "authentication: keep its port inside a trusted network.",
            "Layers go to the machines by their free memory (--tensor-split changes that). "
            "Drafting over RPC was not measured by this project.",
        ),
        image="${LLAMA_CPP_IMAGE:?an image of llama.cpp built with -DGGML_RPC=ON}",
        commands=(tuple(head), *((worker,) * len(hosts))),
        worker=worker if hosts else None,
        volumes=tuple(dict.fromkeys(_volume(model.parent) for model in models)),
    )


def _checkpoints(*names: str) -> tuple[str, ...]:
    """Folders as they are; what has a name on a hub is kept in its cache."""
    folders = [_volume(Path(name)) for name in names if Path(name).is_dir()]
    return (*folders, f"~/.cache/huggingface:{HUB_CACHE}")


def _volume(folder: Path) -> str:
    return f"{folder.resolve()}:{folder.resolve()}:ro"
