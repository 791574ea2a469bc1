"""Text that the target writes itself, as many rows at once as memory allows.

Every row follows a script: tokens that are given, then free writing until an end token, then the
next script. Open user turns let the target write the user's text too, at temperature 1, so that no
data set is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from training.graph import captured
from training.prompt_pool import SYSTEMS, TEXT_STARTS
from training.target import StepCache, Target
from training.vocabulary import Vocabulary
from training.wave import ASSISTANT, FORCED, USER, Wave, empty_wave, loops

MAX_SCRIPT = 96  # tokens; longer prompts are left out

# how a row starts
OPEN_TURN, OTHER_SYSTEM, POOL_PROMPT, RAW_TEXT = 0.46, 0.08, 0.36, 0.10
N_TURN_DRAW = 16  # draws of next turns for a row of a wave
NEXT_IS_OPEN = 0.55  # a next user turn that the target writes; else one of the pool

# temperatures of answers and their shares
TEMPERATURES = ((0.0, 0.5), (0.3, 0.1), (0.7, 0.2), (1.0, 0.2))


@dataclass
class Scripts:
    """table (script, MAX_SCRIPT + 1), padded with -1; modes: what is written after each."""

    table: torch.Tensor
    modes: torch.Tensor
    starts: torch.Tensor  # probabilities as the first script
    turns: torch.Tensor  # probabilities as the script after an answer
    answer: int  # the script after an open user turn


def make_scripts(vocabulary: Vocabulary, prompts: Sequence[str], device: torch.device) -> Scripts:
    chat = vocabulary.chat
    texts: list[tuple[str, int, float, float]] = []  # text, mode, share of starts, of turns
    texts.append((chat.after_user, ASSISTANT, 0.0, 0.0))
    texts.append((chat.before_user, USER, OPEN_TURN, 0.0))
    texts.append((chat.before_next_user, USER, 0.0, NEXT_IS_OPEN))
    for system in SYSTEMS:
        share = OTHER_SYSTEM / len(SYSTEMS)
        texts.append((vocabulary.with_system(system), USER, share, 0.0))
    for start in TEXT_STARTS:
        texts.append((start, ASSISTANT, RAW_TEXT / len(TEXT_STARTS), 0.0))
    for prompt in prompts:
        turn = prompt + chat.before_answer
        texts.append((chat.before_user + turn, ASSISTANT, POOL_PROMPT / len(prompts), 0.0))
        share = (1 - NEXT_IS_OPEN) / len(prompts)
        texts.append((chat.before_next_user + turn, ASSISTANT, 0.0, share))
    ids = vocabulary.encode_all([text for text, *_ in texts])
    fitting = [(row, *rest) for row, (_, *rest) in zip(ids, texts, strict=True)]
    fitting = [item for item in fitting if len(item[0]) <= MAX_SCRIPT]
    table = torch.full((len(fitting), MAX_SCRIPT + 1), -1, dtype=torch.int32)
    for i, (row, *_) in enumerate(fitting):
        table[i, : len(row)] = torch.tensor(row)
    columns = [
        torch.tensor(column, device=device)
        for column in zip(*(f[1:] for f in fitting), strict=True)
    ]
    return Scripts(table.to(device), columns[0], columns[1], columns[2], answer=0)


class Writer:
    """Writes waves of n_row rows of `length` tokens. There is one wave, filled again and again."""

    def __init__(
        self, target: Target, scripts: Scripts, eog: Sequence[int], n_row: int, length: int
    ) -> None:
        self.target, self.scripts = target, scripts
        self.eog = torch.tensor(eog, device=target.device)
        self.cache = StepCache(target, n_row, length)
        self.wave = empty_wave(target, n_row, length)
        # state of the rows, (row,)
        self.token = torch.zeros(n_row, dtype=torch.long, device=target.device)
        self.script, self.offset = torch.zeros_like(self.token), torch.zeros_like(self.token)
        self.mode, self.kind = torch.zeros_like(self.token), torch.zeros_like(self.token)
        self.turns = self.token.repeat(N_TURN_DRAW, 1)
        on_cuda = target.device.type == "cuda"
        self._pick = torch.compile(_pick, dynamic=False) if on_cuda else _pick
        self._replay = self._step
        if on_cuda:
            self._replay = captured(self._step, self._begin)

    @torch.no_grad()
    def write(self) -> Wave:
        self._begin()
        for _ in range(self.wave.tokens.shape[1]):
            self._replay()
        self.wave.looped.copy_(loops(self.wave.tokens))
        return self.wave

    def _begin(self) -> None:
        scripts, n_row = self.scripts, len(self.token)
        values, shares = zip(*TEMPERATURES, strict=True)
        draw = torch.multinomial(torch.tensor(shares), n_row, replacement=True)
        self.wave.temperatures.copy_(torch.tensor(values)[draw])
        drawn = torch.multinomial(scripts.turns, self.turns.numel(), replacement=True)
        self.turns.copy_(drawn.view_as(self.turns))
        self.script.copy_(torch.multinomial(scripts.starts, n_row, replacement=True))
        self.mode.copy_(scripts.modes[self.script])
        self.token.copy_(scripts.table[self.script, 0])
        self.kind.fill_(FORCED)
        self.offset.fill_(1)
        self.cache.position.zero_()

    @torch.no_grad()
    def _step(self) -> None:
        """Processes the current tokens and chooses the next ones; no value comes to the host."""
        scripts, target, wave, position = self.scripts, self.target, self.wave, self.cache.position
        tokens = self.token[:, None]
        features, hidden = target.run(tokens, position.expand_as(tokens), self.cache.attend)
        wave.tokens.index_copy_(1, position, tokens)
        wave.kinds.index_copy_(1, position, self.kind[:, None])
        wave.features.index_copy_(1, position, features)
        wave.hidden.index_copy_(1, position, hidden)

        given = scripts.table[self.script, self.offset].long()
        forced = given >= 0
        temperature = torch.where(self.mode == USER, 1.0, wave.temperatures)
        written = self._pick(target.logits(hidden[:, 0]), temperature)
        self.token.copy_(torch.where(forced, given, written))
        self.kind.copy_(self.mode * ~forced)  # FORCED is 0
        ended = ~forced & torch.isin(self.token, self.eog)
        turn = self.turns.index_select(0, position % N_TURN_DRAW)[0]
        following = torch.where(self.mode == USER, scripts.answer, turn)
        self.script.copy_(torch.where(ended, following, self.script))
        self.offset.add_(forced).mul_(~ended)
        self.mode.copy_(torch.where(ended, scripts.modes[self.script], self.mode))
        position.add_(1)


def _pick(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """A token of each row (Gumbel noise; temperature 0 takes the best)."""
    # a uniform of exactly 0 would be infinite noise, which over 200 million draws a step does occur
    uniform = torch.rand_like(logits).clamp(min=2.0**-25)
    noise = -torch.log(-torch.log1p(-uniform.clamp(max=1 - 2.0**-24)))
    return (logits + temperature[:, None] * noise).argmax(dim=-1)
