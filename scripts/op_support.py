"""Which ops of the draft graph ggml's backends run, by llama.cpp's own tables.

llama.cpp publishes what each backend answered to its op tests (docs/ops/BACKEND.csv). A node of our
graph and a line of these tables are brought to the same key, such as "MUL_MAT q4_K f32"; the
answers to the keys that we need are kept in tests/data/op-support.json.

    python scripts/op_support.py LLAMA_CPP [KEY ..]     # writes that file anew, with more keys
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

BACKENDS = ("CPU", "CUDA", "Metal", "Vulkan")
TABLE = Path(__file__).resolve().parents[1] / "tests" / "data" / "op-support.json"

# As in core.GraphDrafter.ops: type, ne, contiguous rows; op, result, sources, op_params.
Operand = tuple[str, tuple[int, int, int, int], bool]
Node = tuple[str, Operand, tuple[Operand, ...], tuple[int, ...]]

# Lines whose test differs from what we emit in a way that the keys leave out.
OTHER = {
    "ADD": {"nf": "1"},
    "MUL": {"nf": "1"},
    "TANH": {"v": "0"},
    "PAD": {"circular": "0", "tfrm": "0", "v": "0"},
    "MUL_MAT": {"nr": "[1,1]", "per": "[0,1,2,3]", "k_v": "0", "o": "1"},
    "SET_ROWS": {"type_src": "f32"},
    "ROPE": {"ff": "0", "v": "0", "inplace": "0"},
    "FLASH_ATTN_EXT": {
        "mask": "1",
        "sinks": "0",
        "max_bias": "0.000000",
        "logit_softcap": "0.000000",
        "prec": "f32",
    },
    "CPY": {"permute_src": "[0,0,0,0]", "permute_dst": "[0,0,0,0]", "_src_transpose": "0"},
}
MAX_TOP_K = 256  # of a drafter


def node_key(node: Node) -> str:
    """What a node asks of a backend."""
    permuted = any(not contiguous_rows for _, _, contiguous_rows in node[2])
    return _node_key(*node) + (" permuted" if permuted else "")


def _node_key(op: str, dst: Operand, src: tuple[Operand, ...], params: tuple[int, ...]) -> str:
    types = [s[0] for s in src]
    if op == "MUL_MAT":
        batched = src[0][1][2] * src[0][1][3] > 1
        return f"{op} {types[0]} {types[1]}{' batched' if batched else ''}"
    if op == "GET_ROWS":
        return f"{op} {types[0]}{' batched' if src[1][1][1] > 1 else ''}"
    if op == "SET_ROWS":
        return f"{op} {dst[0]} {types[1]}"
    if op == "CPY":
        return f"{op} {types[0]} {dst[0]}"
    if op == "ROPE":
        return f"{op} {types[0]} mode {params[2]}"
    if op == "PAD":
        return f"{op} {types[0]}{' left' if any(params[0:8:2]) else ''}"
    if op == "FLASH_ATTN_EXT":
        if len(src) != 4 or params[1] or params[2]:
            raise ValueError(f"{op}: no key for sinks, bias or softcap")
        return f"{op} {types[1]} head {src[1][1][0]}"
    return f"{op} {types[0] if src else dst[0]}"


def line_key(op: str, p: dict[str, str]) -> str | None:
    """The key of a line with these parameters; None: a test of something that we do not emit."""
    if any(p.get(name, value) != value for name, value in OTHER.get(op, {}).items()):
        return None
    if op == "MUL_MAT":
        return f"{op} {p['type_a']} {p['type_b']}{'' if p['bs'] == '[1,1]' else ' batched'}"
    if op == "GET_ROWS":
        return f"{op} {p['type']}{' batched' if p['be1'] != '1' else ''}"
    if op == "SET_ROWS":
        return f"{op} {p.get('type', p.get('type_dst'))} {p['type_idx']}"
    if op == "CPY":
        return f"{op} {p['type_src']} {p['type_dst']}"
    if op == "ROPE":
        return f"{op} {p['type']} mode {p['mode']}"
    if op == "PAD":
        left = any(p.get(f"lp{i}", "0") != "0" for i in range(4))
        return f"{op} {p['type']}{' left' if left else ''}"
    if op == "FLASH_ATTN_EXT":
        k, v = (p.get("type_KV", p.get(name)) for name in ("type_K", "type_V"))
        return f"{op} {k} head {p['hsk']}" if k == v and p["hsk"] == p["hsv"] else None
    if op == "POOL_2D":
        return f"{op} {p['type_input']}" if p["pool_type"] == "max" else None
    if op == "TOP_K" and int(p["k"]) > MAX_TOP_K:
        return None
    permuted = " permuted" if p.get("perm1", "0") != "0" else ""
    return f"{op} {p['type']}{permuted}" if "type" in p else None


def answers(llama_cpp: Path, backend: str) -> dict[str, str]:
    """A backend's answer to every key: "yes", "no", or "some" where its lines differ."""
    found: dict[str, set[str]] = {}
    with (llama_cpp / "docs" / "ops" / f"{backend}.csv").open(newline="") as f:
        for line in csv.DictReader(f):
            if line["test_mode"] != "support":
                continue
            params = dict(re.findall(r"(\w+)=(\[[^\]]*\]|[^,]*)", line["op_params"]))
            key = line_key(line["op_name"], params)
            if key is not None:
                found.setdefault(key, set()).add(line["error_message"])
    return {key: "some" if len(both) > 1 else both.pop() for key, both in found.items()}


def table(llama_cpp: Path, keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """By key and backend; "untested" where a table has no such line."""
    by_backend = {backend: answers(llama_cpp, backend) for backend in BACKENDS}
    return {
        key: {backend: by_backend[backend].get(key, "untested") for backend in BACKENDS}
        for key in sorted(keys)
    }


def load() -> dict[str, Any]:
    """source; support: by key and backend; newer: "BACKEND: KEY" -> why it runs all the same."""
    loaded: dict[str, Any] = json.loads(TABLE.read_text())
    return loaded


def missing(keys: Iterable[str]) -> Iterator[str]:
    """ "BACKEND: KEY: ANSWER" of what a backend is not known to run."""
    known = load()
    for key in sorted(keys):
        for backend in BACKENDS:
            answer = known["support"].get(key, {}).get(backend, "not in op-support.json")
            if answer != "yes" and f"{backend}: {key}" not in known["newer"]:
                yield f"{backend}: {key}: {answer}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("llama_cpp", type=Path, help="a checkout, or the sdist's vendor/llama.cpp")
    parser.add_argument("keys", nargs="*", metavar="KEY", help="as the test names what is missing")
    args = parser.parse_args()
    known = load()
    known["support"] = table(args.llama_cpp, {*known["support"], *args.keys})
    TABLE.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
