"""Transcripts of the built-in sampler with their keys and values, decoded together and prefilled in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rpl.core.errors import ConfigError
from rpl.core.machine import fastest_precision
from rpl.core.seeds import uniform
from rpl.sampling.hf.cache import Access, SlotCache
from rpl.sampling.hf.precision import SamplingMode
from rpl.sampling.hf.slots import SlotTable, shared_length, worthwhile
from rpl.sampling.sampler import Completion, SamplingParams
from rpl.sampling.stopping import end_tokens
from rpl.sampling.token_choice import draw
from rpl.sampling.transcripts import Draft, Transcript, TranscriptSession

if TYPE_CHECKING:
    from rpl.sampling.hf.sampler import HFSampler

CPU_PASS_TOKENS = 32
"""What a forward pass costs beside its tokens, in tokens; batches are cut so that padding and passes cost least."""
PASS_TOKENS = 1024
"""The same elsewhere, where tokens are cheap and passes are not."""


@dataclass
class _Row(Transcript):
    """While its completion is drawn, all its tokens but the last are in the cache after the prefill."""

    slot: int | None = None

    @property
    def place(self) -> int:
        assert self.slot is not None
        return self.slot


class HFSession(TranscriptSession[_Row]):
    """Transcripts with their keys and values. Made by `HFSampler.open`.

    The cache has as many slots as transcripts were in flight (asked for and not dropped) at the same time.
    """

    def __init__(self, sampler: HFSampler) -> None:
        super().__init__(_Row)
        model = sampler.model
        self._sampler, self._model, self._tokenizer = sampler, model, sampler.tokenizer
        # The name of the argument depends on the version of transformers.
        self._cache_argument = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
        parameter = next(model.parameters())
        self._device: torch.device = parameter.device
        dtype = fastest_precision(self._device.type).dtype if sampler.dtype == "auto" else sampler.dtype
        autocast = torch.bfloat16 if dtype == "bfloat16" and parameter.dtype == torch.float32 else None
        self._mask_dtype = autocast or parameter.dtype
        self._mode = SamplingMode(model, autocast)
        self._budget = sampler.prefill_tokens or (2048 if self._device.type == "cpu" else 16384)
        self._pass_tokens = CPU_PASS_TOKENS if self._device.type == "cpu" else PASS_TOKENS
        self._eos = end_tokens(model, sampler.tokenizer)
        self._cache = SlotCache(model.config.num_hidden_layers, autocast)
        self._table = SlotTable()

    # -- transcripts ---------------------------------------------------------------------------------------------

    def submit(self, row: int, params: SamplingParams) -> None:
        """Asks for one completion of a transcript."""
        self._idle(row).draft = Draft(params, self._sampler.detector(params.stop), self._eos)

    def drop(self, row: int) -> None:
        """Ends a transcript; its slot goes to the next one that needs a place."""
        dropped = self._known(row)
        if dropped.slot is not None:
            self._table.release(dropped.slot)
        del self._rows[row]

    def close(self) -> None:
        """Frees cache and cast weights."""
        self._cache.free()
        self._mode.close()
        self._rows.clear()
        self._closed = True

    # -- completions ---------------------------------------------------------------------------------------------

    def advance(self) -> list[tuple[int, Completion]]:
        """Runs what transcripts have grown by, then decodes `stride` steps; see `SamplerSession.advance`."""
        self._check_open()
        asked = [row for row in self._rows.values() if row.draft is not None]
        if not asked:
            return []
        with self._mode():
            self._place(asked)
            finished = self._prefill(asked)
            for _ in range(self._sampler.stride):
                batch = [row for row in asked if row.draft is not None]
                if not batch:
                    break
                finished += self._step(batch)
        return finished

    def _place(self, asked: list[_Row]) -> None:
        """Gives a slot to each row that has none, and room for its completion to each."""
        homeless = [row for row in asked if row.slot is None]
        self._table.grow(len(homeless))
        for row in homeless:
            row.slot = self._table.take(row.number, row.tokens)
        limit = self._sampler.max_positions
        # One column more than the longest transcript: rows without a token of their own write there.
        longest = max(
            len(row.tokens) - len(row.draft.ids) + row.draft.params.max_new_tokens for row in asked if row.draft
        )
        if limit is not None and longest > limit:
            raise ConfigError(
                f"a transcript of {longest} tokens, completion included, is longer than the {limit} positions that "
                f"{type(self._model).__name__} reads"
            )
        self._cache.reserve(len(self._table.slots), longest + 1)

    def _step(self, batch: list[_Row]) -> list[tuple[int, Completion]]:
        """Runs the last token of each row and draws the next one."""
        self._close_ranks(batch)
        top = max(row.place for row in batch) + 1
        # Slots in between that are not decoded run along; what they write is past what they hold.
        columns = [slot.cached for slot in self._table.slots[:top]]
        tokens = [0] * top
        for row in batch:
            tokens[row.place] = row.tokens[-1]
        width = max(columns[row.place] for row in batch) + 1
        logits = self._forward([[token] for token in tokens], torch.tensor(columns).unsqueeze(1), None, width)
        for row in batch:
            self._table.slots[row.place].cached += 1
        places = [row.place for row in batch]
        return self._draw(batch, logits if places == list(range(top)) else logits[places])

    def _close_ranks(self, batch: list[_Row]) -> None:
        """Moves rows to the first slots, if too many slots before the last row would run along for nothing."""
        size = len(batch)
        if max(row.place for row in batch) + 1 - size <= size // 8:
            return
        movers = [row for row in batch if row.place >= size]
        occupied = {row.place for row in batch}
        vacant = [number for number in range(size) if number not in occupied]
        slots = self._table.slots
        self._cache.swap(
            [row.place for row in movers], vacant, max(slots[n].cached for n in [*vacant, *(r.place for r in movers)])
        )
        for row, number in zip(movers, vacant, strict=True):
            other = slots[number].row
            if other is not None:
                self._rows[other].slot = row.place
            self._table.swap(row.place, number)
            row.slot = number

    def _draw(self, rows: list[_Row], logits: Tensor) -> list[tuple[int, Completion]]:
        """Draws a token for each row and returns the completions that it finishes."""
        groups: dict[float, list[int]] = {}
        for index, row in enumerate(rows):
            assert row.draft is not None
            groups.setdefault(row.draft.params.temperature, []).append(index)
        finished: dict[int, Completion] = {}
        for temperature, members in groups.items():
            uniforms = [uniform(rows[i].seed, rows[i].drawn) for i in members]
            drawn, values = draw(logits if len(groups) == 1 else logits[members], temperature, uniforms)
            for index, token, value in zip(members, drawn.tolist(), values.tolist(), strict=True):
                done = self._extend(rows[index], token, value)
                if done is not None:
                    finished[index] = done
        return [(rows[index].number, finished[index]) for index in sorted(finished)]

    def _extend(self, row: _Row, token: int, logprob: float) -> Completion | None:
        draft = row.draft
        assert draft is not None
        row.tokens.append(token)
        row.drawn += 1
        if not draft.feed(token, logprob):
            return None
        row.draft = None
        return draft.completion(self._tokenizer)

    # -- prompts and observations --------------------------------------------------------------------------------

    def _prefill(self, asked: list[_Row]) -> list[tuple[int, Completion]]:
        """Brings the cache up to each row's last token and draws a token for the rows that had to be run for it.

        Rows that will find most of what they lack in the slot of another one wait until that one was run.
        """
        finished = []
        waiting = [row for row in asked if self._missing(row) > 0]
        while waiting:
            self._copy_shared(waiting)
            now: list[_Row] = []
            later: list[_Row] = []
            for row in waiting:
                if self._missing(row) > 0:
                    (later if any(self._would_share(row, other) for other in now) else now).append(row)
            now.sort(key=self._missing, reverse=True)
            for top, bottom in _batches([self._missing(row) + 1 for row in now], self._budget, self._pass_tokens):
                finished += self._run(now[top:bottom])
            waiting = later
        return finished

    def _missing(self, row: _Row) -> int:
        """Tokens before the last one that are not in the cache."""
        return len(row.tokens) - 1 - self._table.slots[row.place].cached

    def _would_share(self, row: _Row, other: _Row) -> bool:
        cached = self._table.slots[row.place].cached
        length = shared_length(row.tokens, other.tokens, min(len(row.tokens) - 1, len(other.tokens)))
        return worthwhile(length - cached, self._missing(row), least=self._pass_tokens)

    def _copy_shared(self, rows: list[_Row]) -> None:
        jobs: dict[tuple[int, int, int], list[int]] = {}
        for row in rows:
            found = self._table.source(row.place)
            if found is not None:
                source, length = found
                jobs.setdefault((source, self._table.slots[row.place].cached, length), []).append(row.place)
        for (source, start, end), targets in jobs.items():
            self._cache.copy(source, targets, start, end)
            for number in targets:
                self._table.slots[number].cached = end

    def _run(self, rows: list[_Row]) -> list[tuple[int, Completion]]:
        """Runs all that the cache lacks of each row, aligned at the right ends, and draws."""
        cached = [self._table.slots[row.place].cached for row in rows]
        lengths = [len(row.tokens) - have for row, have in zip(rows, cached, strict=True)]
        longest = max(lengths)
        pending = [
            [0] * (longest - length) + row.tokens[have:]
            for row, have, length in zip(rows, cached, lengths, strict=True)
        ]
        ends = torch.tensor([len(row.tokens) for row in rows]).unsqueeze(1)
        columns = ends - longest + torch.arange(longest)
        # Padding writes to the column after the transcript, where the next token will be.
        columns = torch.where(columns >= torch.tensor(cached).unsqueeze(1), columns, ends)
        places = torch.tensor([row.place for row in rows])
        logits = self._forward(pending, columns, places, int(ends.max()))
        for row in rows:
            self._table.slots[row.place].cached = len(row.tokens)
        self.prefilled_tokens += sum(lengths)
        return self._draw(rows, logits)

    # -- the model -----------------------------------------------------------------------------------------------

    def _forward(self, tokens: list[list[int]], columns: Tensor, slots: Tensor | None, width: int) -> Tensor:
        """Runs tokens at the columns of their slots, which are their positions too; each sees what is before it.

        Returns:
            The logits after the last token of each row, `(rows, vocabulary)`.
        """
        columns = columns.to(self._device)
        hidden = torch.arange(width, device=self._device) > columns[:, :, None]
        mask = torch.zeros(hidden.shape, dtype=self._mask_dtype, device=self._device)
        mask.masked_fill_(hidden, float("-inf"))
        self._cache.access = Access(None if slots is None else slots.to(self._device), columns, width)
        output = self._model(
            input_ids=torch.tensor(tokens, device=self._device),
            attention_mask=mask.unsqueeze(1),
            position_ids=columns,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: self._cache},
        )
        logits: Tensor = output.logits[:, -1]
        return logits


def _batches(lengths: Sequence[int], budget: int, pass_tokens: int) -> Iterator[tuple[int, int]]:
    """Cuts a falling sequence of lengths into ranges whose padded size stays within the budget (or is one row).

    Of all such cuts it takes one that costs least, where a range costs its padded size and `pass_tokens`.
    """
    costs, starts = [0.0], [0]
    for bottom in range(1, len(lengths) + 1):
        options = [
            (costs[top] + pass_tokens + (bottom - top) * lengths[top], top)
            for top in range(bottom)
            if bottom - top == 1 or (bottom - top) * lengths[top] <= budget
        ]
        cost, start = min(options)
        costs.append(cost)
        starts.append(start)
    cuts = [len(lengths)]
    while cuts[-1] > 0:
        cuts.append(starts[cuts[-1]])
    cuts.reverse()
    yield from pairwise(cuts)
