"""Runs prompts through upstream's llama-server (PyPI xllamacpp) and reports its counters.

Own process, because xllamacpp brings its own libllama: two copies must never meet in one.
Reads one JSON object from stdin, writes one to stdout:

    {"target": PATH, "draft": PATH or null, "n_draft_max": 7, "n_ctx": 1024, "n_threads": 1,
     "max_tokens": 96, "prompts": [[token ids], ...]}
    {"texts": [..], "num_tokens": .., "seconds": ..,            seconds: generation only
     "num_drafts": .., "num_draft_tokens": .., "num_accepted_tokens": .., "accepted_per_pos": [..],
     "drafts": [..], "accepted": [..]}                          of each prompt
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

COUNTER = re.compile(r'^llamacpp:spec_decode_num_(\w+)_total(?:{position="(\d+)"})? (\S+)$', re.M)


def serve(job: dict[str, Any]) -> dict[str, Any]:
    import xllamacpp as upstream

    params = upstream.CommonParams()
    params.model.path = job["target"]
    params.n_ctx = job["n_ctx"]
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.fit_params = False
    params.endpoint_metrics = True
    params.verbosity = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job["n_threads"]
    if job["draft"]:
        draft = params.speculative.draft
        draft.mparams.path = job["draft"]
        draft.n_max = job["n_draft_max"]
        draft.n_gpu_layers = 0
        draft.cpuparams.n_threads = draft.cpuparams_batch.n_threads = job["n_threads"]
        params.speculative.types = [
            upstream.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH
        ]
    server = upstream.Server(params)
    texts, num_tokens, seconds = [], 0, 0.0
    totals = [counters(server.handle_metrics())]
    for prompt in job["prompts"]:
        answer = server.handle_completions(
            {
                "prompt": prompt,
                "n_predict": job["max_tokens"],
                "temperature": 0.0,
                "cache_prompt": False,
            }
        )
        texts.append(answer["choices"][0]["text"])
        num_tokens += answer["timings"]["predicted_n"]
        seconds += answer["timings"]["predicted_ms"] / 1000
        totals.append(counters(server.handle_metrics()))
    steps = list(itertools.pairwise(totals))
    return {
        "texts": texts,
        "num_tokens": num_tokens,
        "seconds": seconds,
        "drafts": [b["num_drafts"] - a["num_drafts"] for a, b in steps],
        "accepted": [b["num_accepted_tokens"] - a["num_accepted_tokens"] for a, b in steps],
        **totals[-1],
    }


def counters(metrics: str) -> dict[str, Any]:
    """The speculative counters of the server's Prometheus text."""
    out: dict[str, Any] = {"accepted_per_pos": []}
    for name, position, value in COUNTER.findall(metrics):
        if position:
            out["accepted_per_pos"].append(int(float(value)))
        else:
            out[f"num_{name}"] = int(float(value))
    return out


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Runs `job` in a process of its own. Raises RuntimeError with the server's last words."""
    child = subprocess.run(
        [sys.executable, str(Path(__file__))],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        raise RuntimeError(f"upstream's server: status {child.returncode}\n{child.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    print(json.dumps(serve(json.load(sys.stdin))))
