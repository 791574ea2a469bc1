"""Paired measurements of engines on the same prompts: plain decoding, ours, upstream's server."""

from dflash2.bench.contenders import Contender, OurEngine, Run, Server
from dflash2.bench.paired import measure
from dflash2.bench.summary import Summary, summarize

__all__ = ["Contender", "OurEngine", "Run", "Server", "Summary", "measure", "summarize"]
