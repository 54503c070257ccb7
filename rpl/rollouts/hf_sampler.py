"""Sampling with a transformers model: batched, cached across turns, and exact for the weights being trained.

What makes it fast: a prompt that many rows share is run once; the cache is allocated once a turn and written in place;
observations are run in batches of like length; a row that has finished leaves the batch; query heads that share keys
are served together (see `attention`); only the last position's logits exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from inspect import signature
from typing import Any, Literal

import torch
from torch import Tensor

from rpl.errors import ConfigError
from rpl.rollouts.attention import NAME, register
from rpl.rollouts.cache import RowCache
from rpl.rollouts.draws import draw
from rpl.rollouts.sampler import Completion, Sampler, SamplerSession, SamplingParams
from rpl.rollouts.seeds import uniform
from rpl.rollouts.stopping import StopDetector
from rpl.types import FinishReason


class HFSampler(Sampler):
    """Draws from a transformers causal language model with full attention.

    Args:
        dtype: Type of the matrix products: `float32`, or `bfloat16` (autocast, about twice as fast on a CPU with
            bf16 instructions). Use the trainer's, so that both see the same log-probabilities.
        prefill_tokens: Most tokens in one pass over prompts or observations; `None` chooses by device.
    """

    def __init__(self, dtype: Literal["float32", "bfloat16"] = "float32", prefill_tokens: int | None = None) -> None:
        if dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"sampler dtype {dtype!r}: allowed are 'float32' and 'bfloat16'")
        if prefill_tokens is not None and prefill_tokens < 1:
            raise ConfigError(f"sampler prefill_tokens must be at least 1, got {prefill_tokens}")
        self.dtype = dtype
        self.prefill_tokens = prefill_tokens
        self.model: Any = None
        self.tokenizer: Any = None
        self._detectors: dict[tuple[str, ...], StopDetector] = {}

    def connect(self, model: Any, tokenizer: Any) -> None:
        """Sets the policy; weights are read anew in every call, so nothing else is needed after an update.

        Raises:
            ConfigError: The model has layers that do not attend to all earlier tokens.
        """
        kinds = set(getattr(model.config, "layer_types", None) or ())
        if kinds - {"full_attention"}:
            raise ConfigError(
                f"HFSampler handles models with full attention only; {type(model).__name__} has {sorted(kinds)}"
            )
        register()
        self.model, self.tokenizer = model, tokenizer
        self._detectors = {}

    def detector(self, stops: tuple[str, ...]) -> StopDetector:
        """Returns the stop detector of the connected tokenizer, which remembers what it learnt about tokens."""
        if stops not in self._detectors:
            self._detectors[stops] = StopDetector(self.tokenizer, stops)
        return self._detectors[stops]

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> HFSession:
        """Starts a session; see `Sampler.open`."""
        if self.model is None:
            raise ConfigError("the sampler has no model yet: call connect(model, tokenizer) first")
        if len(prompts) != len(seeds):
            raise ConfigError(f"{len(prompts)} prompts but {len(seeds)} seeds")
        if not all(prompts):
            raise ConfigError("every prompt needs at least one token")
        return HFSession(self, prompts, seeds)


class HFSession(SamplerSession):
    """A batch of transcripts with their keys and values. Made by `HFSampler.open`."""

    def __init__(self, sampler: HFSampler, prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> None:
        model = sampler.model
        self._sampler, self._model, self._tokenizer = sampler, model, sampler.tokenizer
        # The name of the argument depends on the version of transformers.
        self._cache_argument = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"
        parameter = next(model.parameters())
        self._device: torch.device = parameter.device
        self._autocast = torch.bfloat16 if sampler.dtype == "bfloat16" and parameter.dtype == torch.float32 else None
        self._mask_dtype = self._autocast or parameter.dtype
        self._budget = sampler.prefill_tokens or (2048 if self._device.type == "cpu" else 16384)
        self._eos = _end_tokens(model, sampler.tokenizer)
        self._cache = RowCache(model.config.num_hidden_layers, self._autocast)
        self._seeds = list(seeds)
        self._draws = [0] * len(prompts)
        self._tokens = [list(prompt) for prompt in prompts]
        self._columns: list[list[int]] = [[] for _ in prompts]  # where in the cache a row's first tokens are
        self._slots: dict[int, int] = {}  # row -> row of the cache
        self._closed = False

    def append(self, row: int, token_ids: Sequence[int]) -> None:
        """Appends an observation to a transcript."""
        self._tokens[row].extend(token_ids)

    def close(self) -> None:
        """Frees the cache."""
        self._cache.allocate(0, 0)
        self._slots.clear()
        self._closed = True

    def sample(self, rows: Sequence[int], params: SamplingParams) -> list[Completion]:
        """Continues each of `rows` by one completion.

        Rows that are left out lose their place in the cache; if they come back, they are run from the start.
        """
        if self._closed:
            raise ConfigError("the session is closed")
        if len(set(rows)) != len(rows):
            raise ConfigError("a row was asked for twice")
        if not rows:
            return []
        with self._forward_mode():
            logits = self._prefill(list(rows), params.max_new_tokens)
            return self._decode(list(rows), logits, params)

    # -- prompts and observations --------------------------------------------------------------------------------

    def _prefill(self, rows: list[int], room: int) -> Tensor:
        """Runs what each row has grown by and leaves the rows in the cache, in order, with `room` free columns.

        Returns:
            The logits after each row's last token, `(rows, vocabulary)`.
        """
        for row in set(range(len(self._tokens))) - set(rows):
            self._columns[row] = []
        first: dict[tuple[int, ...], int] = {}
        if not any(self._columns[row] for row in rows):
            for row in rows:
                first.setdefault(tuple(self._tokens[row]), row)
        if len(first) in (0, len(rows)):
            return self._run_pending(rows, room)
        leaders = list(first.values())
        leader_logits = self._run_pending(leaders, 0)
        sources = [first[tuple(self._tokens[row])] for row in rows]
        for row, source in zip(rows, sources, strict=True):
            self._columns[row] = list(self._columns[source])
        old = [self._slots[source] for source in sources]
        self._arrange(rows, old, [self._cache.window.end] * len(rows), self._cache.window.end, room)
        position = {leader: index for index, leader in enumerate(leaders)}
        return leader_logits[[position[source] for source in sources]]

    def _run_pending(self, rows: list[int], room: int) -> Tensor:
        pending = {row: self._tokens[row][len(self._columns[row]) :] for row in rows}
        order = sorted(rows, key=lambda row: -len(pending[row]))
        batches = list(_batches([len(pending[row]) for row in order], self._budget))
        widths = {row: len(pending[order[top]]) for top, bottom in batches for row in order[top:bottom]}
        end = max(len(self._columns[row]) + widths[row] for row in rows)
        # A row's cached tokens go right before the columns that its batch is about to write.
        if any(self._columns[row] for row in rows):
            old = [self._slots.get(row, 0) for row in order]
            self._arrange(order, old, [end - widths[row] for row in order], end, room)
        else:
            self._cache.allocate(len(order), end + room)
            self._slots = {row: slot for slot, row in enumerate(order)}
        logits = [
            self._run_batch([pending[row] for row in order[top:bottom]], order[top:bottom], top, end)
            for top, bottom in batches
        ]
        place = {row: index for index, row in enumerate(order)}
        return torch.cat(logits)[[place[row] for row in rows]]

    def _arrange(self, rows: list[int], old: list[int], ends: list[int], end: int, room: int) -> None:
        """Moves the cached tokens of `rows` to columns that end right before `ends`, in buffers of `end + room`."""
        columns = torch.zeros(len(rows), end + room, dtype=torch.long)
        for index, row in enumerate(rows):
            have = self._columns[row]
            start = ends[index] - len(have)
            columns[index, start : ends[index]] = torch.tensor(have, dtype=torch.long)
            self._columns[row] = list(range(start, ends[index]))
        self._cache.rebuild(torch.tensor(old, device=self._device), columns.to(self._device))
        self._slots = {row: slot for slot, row in enumerate(rows)}

    def _run_batch(self, pending: list[list[int]], rows: list[int], top: int, end: int) -> Tensor:
        """Runs one batch of pending tokens, aligned at their right ends, into the columns before `end`."""
        width = max(map(len, pending))
        lengths = torch.tensor([len(ids) for ids in pending])
        cached = torch.tensor([len(self._columns[row]) for row in rows])
        left = end - width - int(cached.max())
        tokens = torch.tensor([[0] * (width - len(ids)) + ids for ids in pending])
        step = torch.arange(width)
        positions = (cached[:, None] + step - (width - lengths)[:, None]).clamp_(min=0)
        column = torch.arange(left, end)
        begin = end - width
        old = (column >= (begin - cached)[:, None]) & (column < begin)
        new = column >= (end - lengths)[:, None]
        own = column == (begin + step)[:, None]  # padding sees at least itself, or its softmax would be NaN
        seen = ((old | new)[:, None, :] & (column <= (begin + step)[:, None])) | own
        mask = torch.zeros(seen.shape, dtype=self._mask_dtype).masked_fill_(~seen, float("-inf"))
        window = self._cache.window
        window.top, window.bottom, window.left, window.end = top, top + len(rows), left, end
        logits = self._forward(tokens, positions, mask.unsqueeze(1))
        for row, ids in zip(rows, pending, strict=True):
            self._columns[row] += range(end - len(ids), end)
        return logits

    # -- completions ---------------------------------------------------------------------------------------------

    def _decode(self, rows: list[int], logits: Tensor, params: SamplingParams) -> list[Completion]:
        ids: dict[int, list[int]] = {row: [] for row in rows}
        logprobs: dict[int, list[float]] = {row: [] for row in rows}
        reasons: dict[int, FinishReason] = {}
        stops = self._sampler.detector(params.stop)
        batch = sorted(rows, key=self._slots.__getitem__)  # the rows of the cache's first slots, in order
        place = {row: index for index, row in enumerate(rows)}
        logits = logits[[place[row] for row in batch]]
        end = start = self._cache.window.end
        bias = self._bias(batch, end + params.max_new_tokens)
        while True:
            draws = [uniform(self._seeds[row], self._draws[row]) for row in batch]
            drawn, values = draw(logits, params.temperature, draws)
            for row, token, value in zip(batch, drawn.tolist(), values.tolist(), strict=True):
                if row in reasons:
                    continue
                ids[row].append(token)
                logprobs[row].append(value)
                self._draws[row] += 1
                if token in self._eos:
                    reasons[row] = "eos"
                elif stops.completed(ids[row]):
                    reasons[row] = "stop"
                elif len(ids[row]) == params.max_new_tokens:
                    reasons[row] = "length"
            finished = sum(row in reasons for row in batch)
            if finished == len(batch):
                break
            if finished * 16 >= len(batch):
                batch = self._retire(batch, reasons, bias, end)
            bias[: len(batch), end] = 0.0
            window = self._cache.window
            window.top, window.bottom, window.left, window.end = 0, len(batch), 0, end + 1
            positions = [len(self._tokens[row]) + end - start for row in batch]
            logits = self._forward(
                torch.tensor([[ids[row][-1]] for row in batch]),
                torch.tensor(positions).unsqueeze(1),
                bias[: len(batch), None, None, : end + 1],
            )
            for row in batch:
                if row not in reasons:
                    self._columns[row].append(end)
            end += 1
        for row in rows:
            self._tokens[row] += ids[row]
        return [self._completion(ids[row], logprobs[row], reasons[row]) for row in rows]

    def _bias(self, batch: list[int], columns: int) -> Tensor:
        """Returns the additive attention mask `(rows, columns)` over what the cache holds."""
        bias = torch.full((len(batch), columns), float("-inf"), dtype=self._mask_dtype)
        for slot, row in enumerate(batch):
            bias[slot, self._columns[row]] = 0.0
        return bias.to(self._device)

    def _retire(self, batch: list[int], reasons: dict[int, FinishReason], bias: Tensor, end: int) -> list[int]:
        """Moves finished rows behind the others, where the next passes do not look; their cache stays."""
        alive = sum(row not in reasons for row in batch)
        vacant = [slot for slot in range(alive) if batch[slot] in reasons]
        taken = [slot for slot in range(alive, len(batch)) if batch[slot] not in reasons]
        if vacant:
            first, second = torch.tensor(vacant, device=self._device), torch.tensor(taken, device=self._device)
            self._cache.swap(first, second, end)
            bias[first] = bias[second]
            for a, b in zip(vacant, taken, strict=True):
                batch[a], batch[b] = batch[b], batch[a]
                self._slots[batch[a]], self._slots[batch[b]] = a, b
        return batch[:alive]

    def _completion(self, ids: list[int], logprobs: list[float], reason: FinishReason) -> Completion:
        shown = ids[:-1] if reason == "eos" else ids
        text = self._tokenizer.decode(shown, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return Completion(tuple(ids), tuple(logprobs), text, reason)

    # -- the model -----------------------------------------------------------------------------------------------

    def _forward(self, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        output = self._model(
            input_ids=tokens.to(self._device),
            attention_mask=mask.to(self._device),
            position_ids=positions.to(self._device),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: self._cache},
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    @contextmanager
    def _forward_mode(self) -> Iterator[None]:
        """Evaluation mode, no gradients, the wanted precision and attention; all put back afterwards."""
        model = self._model
        training, attention = model.training, model.config._attn_implementation
        # Under an outer autocast (a trainer's), casts of weights made here would be kept: without gradient, and of
        # weights that are about to change.
        torch.clear_autocast_cache()
        try:
            model.eval()
            model.config._attn_implementation = NAME
            with ExitStack() as stack:
                stack.enter_context(torch.no_grad())
                stack.enter_context(
                    torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._autocast is not None)
                )
                yield
        finally:
            torch.clear_autocast_cache()
            model.config._attn_implementation = attention
            model.train(training)


def _batches(lengths: Sequence[int], budget: int) -> Iterator[tuple[int, int]]:
    """Cuts a falling sequence of lengths into ranges whose padded size stays within the budget (or is one row)."""
    top = 0
    while top < len(lengths):
        bottom = min(len(lengths), top + max(1, budget // lengths[top]))
        yield top, bottom
        top = bottom


def _end_tokens(model: Any, tokenizer: Any) -> frozenset[int]:
    ids = {tokenizer.eos_token_id}
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids.update(configured if isinstance(configured, list) else [configured])
    return frozenset(token for token in ids if token is not None)
