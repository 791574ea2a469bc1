"""Results on disk: one JSON line per request, appended as they come, so that a run can go on."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from dflash2.errors import DFlash2Error
from dflash2.measure.tally import Tally


@dataclass(frozen=True, kw_only=True)
class Record:
    """What one request gave.

    Args:
        key: of the traffic line and the run's settings.
        line: number of the traffic line.
        labels: the user's fields.
        temperature: the answer was generated at.
        n_prompt, n_answer: tokens.
        n_likeliest: answer's tokens after the first that are the target's most likely ones.
        generated: the answer, when it was not recorded.
        num_drafts, accepted_per_pos: counters of that generation.
        tallies: rounds, found by replaying the answer.
    """

    key: str
    line: int
    labels: dict[str, str]
    temperature: float
    n_prompt: int = 0
    n_answer: int = 0
    n_likeliest: int = 0
    generated: str | None = None
    num_drafts: int = 0
    accepted_per_pos: tuple[int, ...] = ()
    tallies: tuple[Tally, ...] = ()

    @classmethod
    def parse(cls, raw: bytes) -> Record:
        """Raises ValueError, KeyError or TypeError for what `as_line` did not write."""
        fields = json.loads(raw)
        tallies = [
            Tally(**{**tally, "survivors": tuple(tally["survivors"])})
            for tally in fields["tallies"]
        ]
        per_pos = tuple(fields["accepted_per_pos"])
        return cls(**{**fields, "tallies": tuple(tallies), "accepted_per_pos": per_pos})

    def as_line(self) -> bytes:
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False).encode() + b"\n"


class Store:
    """Appends records to a file and finds them by key; only their places are held in memory.

    Opening cuts off a last line that was not finished.

    Raises:
        OSError: the file cannot be read or written.
        DFlash2Error: a line is not a record.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, int] = {}
        self._file = path.open("a+b")
        try:
            self._file.seek(0)
            self._file.truncate(self._scan())
        except BaseException:
            self._file.close()
            raise

    def _scan(self) -> int:
        """Where the last whole line ends."""
        end = 0
        for number, raw in enumerate(self._file, start=1):
            if not raw.endswith(b"\n"):
                break
            try:
                self._places[Record.parse(raw).key] = end
            except (ValueError, KeyError, TypeError) as e:
                raise DFlash2Error(
                    f"{self._path}:{number}: expected a record of dflash2 measure, got {e!r}; "
                    "remove the line, or choose another --out"
                ) from e
            end += len(raw)
        return end

    def add(self, record: Record) -> None:
        self._file.seek(0, os.SEEK_END)
        self._places[record.key] = self._file.tell()
        self._file.write(record.as_line())
        self._file.flush()

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __getitem__(self, key: str) -> Record:
        self._file.seek(self._places[key])
        return Record.parse(self._file.readline())

    def write_parquet(self, path: Path) -> None:
        """The records as a Parquet file for other tools.

        Raises:
            DFlash2Error: pyarrow is not installed.
        """
        try:
            from pyarrow import json as arrow_json
            from pyarrow import parquet
        except ImportError as e:
            raise DFlash2Error(
                "Parquet needs pyarrow; run: pip install 'ggml-dflash2[measure]'"
            ) from e
        parquet.write_table(arrow_json.read_json(self._path), path)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
