"""What a training run will cost, by arithmetic on its settings alone: memory by part, and seconds an iteration.

Nothing is loaded and nothing is measured here. Every part carries its own arithmetic as text, so that a surprising
number can be checked by hand. Bytes are for one process (one device); tokens and seconds are for one iteration.

The activations of a layer are what PyTorch keeps for the backward pass of transformers' decoder layers (two norms,
rotary attention, a gated MLP), counted tensor by tensor; a test compares them with what autograd really keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rpl.core.errors import ConfigError

GIB = 2**30
RUNTIME_BYTES = {"cpu": int(0.6 * GIB), "gpu": int(1.2 * GIB)}
"""Interpreter and libraries (with Atlas and its keyword index) on a CPU; context, libraries and workspaces on a GPU."""
ALLOCATOR_SHARE = {"cpu": 0.2, "gpu": 0.1}
"""What the allocator holds beyond the tensors of an update, as a share of them: measured with SmolLM2 on a CPU."""
LOGIT_BYTES = 16
"""Bytes for each token and vocabulary entry of a chunk: logits, log-probabilities, and as much again going backward."""
TRAIN, PREFILL, DECODE = "train", "prefill", "decode"
SHARES = {False: {TRAIN: 0.75, PREFILL: 0.8, DECODE: 0.5}, True: {TRAIN: 0.5, PREFILL: 0.5, DECODE: 0.3}}
"""Shares of a device's peak (FLOP/s of large matrix products) that training, prefill and batched decoding reach, in
float32 and (`True`) in bfloat16, whose products are so fast that what lies between them counts for more."""


@dataclass(frozen=True)
class TokenCost:
    """What of a policy costs time, whatever its architecture."""

    body: int
    """Weights that every token is multiplied with."""
    head: int
    """Weights of the output layer, which only some tokens meet."""
    attention: int = 0
    """Width of all queries times layers; 0 where it is not known, which leaves out the cost of long contexts."""
    frozen: bool = False
    """Whether only adapters have gradients."""


@dataclass(frozen=True)
class ModelShape:
    """What of a decoder's configuration costs something."""

    parameters: int
    """All, tied weights once."""
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    qk_norm: bool = False
    """Whether queries and keys are normalised head by head (Qwen3)."""
    lora: int = 0
    """Parameters of the adapters; 0 trains all weights."""

    @property
    def queries(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all key heads together."""
        return self.kv_heads * self.head_dim

    @property
    def trained(self) -> int:
        """Parameters with gradients and optimizer state."""
        return self.lora or self.parameters

    @property
    def layer_parameters(self) -> int:
        """Weights of the matrices of one layer."""
        return self.hidden * (2 * self.queries + 2 * self.keys + 3 * self.intermediate)

    @property
    def token_cost(self) -> TokenCost:
        """What of it costs time."""
        head = self.vocab * self.hidden
        return TokenCost(self.layers * self.layer_parameters, head, self.layers * self.queries, bool(self.lora))


@dataclass(frozen=True)
class Settings:
    """How a run computes."""

    devices: int = 1
    """Processes that share the work."""
    sharded: bool = False
    """Whether weights, gradients and optimizer state are shared out over the devices (FSDP2)."""
    device: str = "cpu"
    """`cpu` or `gpu`."""
    mixed: bool = False
    """Whether matrix products are in bfloat16 (`bf16-mixed`)."""
    frozen_bytes: int = 4
    """Bytes of a frozen weight under adapters."""
    optimizer_bytes: int = 8
    """Bytes of optimizer state for each trained parameter: 8 for Adam's two moments."""
    reference: bool = False
    """Whether a frozen start model is held for the KL term."""
    checkpointing: bool = False
    """Whether activations are computed again in the backward pass."""
    packed: bool = True
    """Whether a group's prompt is computed once."""
    tokens_per_micro_batch: int = 3072
    logprob_chunk_tokens: int = 1024
    engine_bytes: int | None = None
    """Memory that a separate engine takes for its copy of the weights and its cache; `None` samples on the model."""

    @property
    def shards(self) -> int:
        """Parts that the model's states are cut into."""
        return self.devices if self.sharded else 1


@dataclass(frozen=True)
class Workload:
    """One iteration on one device."""

    questions: int
    group_size: int = 1
    """Rollouts a question; 1 for SFT, where an example is a transcript that is given."""
    prompt: int = 40
    """Tokens of a prompt."""
    written: int = 96
    """Tokens that the policy writes in a transcript, over all turns."""
    shown: int = 200
    """Tokens of results in a transcript, over all turns."""
    turns: int = 2
    rows: int = 64
    """Most transcripts in flight at a time."""
    samples: bool = True
    """Whether the iteration makes rollouts (RL)."""
    kept: float = 1.0
    """Share of the groups whose rewards differ; the others cost no update."""
    different: float = 1.0
    """Share of a group's transcripts that is left once equal programs and equal results are computed once (packed)."""
    updates: int = 1
    """Optimizer steps an iteration."""
    epochs: int = 1
    """Passes over the iteration's transcripts."""

    def __post_init__(self) -> None:
        for name in ("questions", "group_size", "prompt", "written", "turns", "rows", "updates", "epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"estimate: {name} must be at least 1, got {getattr(self, name)}")
        for name in ("kept", "different"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"estimate: {name} must be in [0, 1], got {getattr(self, name)}")

    @property
    def rollouts(self) -> int:
        """Transcripts an iteration and device."""
        return self.questions * self.group_size

    @property
    def context(self) -> int:
        """Tokens of a whole transcript with its prompt."""
        return self.prompt + self.written + self.shown


@dataclass(frozen=True)
class Part:
    """One line of an estimate."""

    name: str
    amount: float
    """Bytes or seconds."""
    arithmetic: str
    """How it comes about."""
    phases: tuple[str, ...] = ("sample", "update")
    """When it is there."""


def activation_bytes(shape: ModelShape, mixed: bool, packed: bool, prompt: int, transcript: int) -> int:
    """Bytes that autograd keeps for a token and layer.

    In float32: each norm keeps its input, the normalised input and its output (6 h); attention its rotated queries and
    keys, its values and its output (2 q + 2 k); the MLP the gate, its activation, the other branch and their product
    (4 i). Head norms keep input and normalised input (2 q + 2 k). In bfloat16 autocast the stream stays float32, and
    each of the five products that read it keeps a copy of its own in bfloat16. Packed attention keeps its output in two
    orders (q), and keys and values of the prompt for each row.

    Args:
        shape: The policy.
        mixed: Whether matrix products are in bfloat16.
        packed: Whether a group's prompt is computed once.
        prompt: Its tokens.
        transcript: Tokens of a row after the prompt.
    """
    h, q, k, i = shape.hidden, shape.queries, shape.keys, shape.intermediate
    extra = q + 2 * k * prompt // max(1, transcript) if packed else 0
    if mixed:
        return 26 * h + 4 * q + 4 * k + 8 * i + (6 * (q + k) if shape.qk_norm else 0) + 2 * extra
    return 4 * (6 * h + 2 * q + 2 * k + 4 * i + (2 * (q + k) if shape.qk_norm else 0) + extra)


def micro_batch(settings: Settings, work: Workload) -> tuple[int, int]:
    """Returns the tokens of a full micro-batch, and how many of them are trained.

    Transcripts are not cut: as many as fit, at least one, at most those of one update. Packed rollouts of a group bring
    their prompt once.
    """
    row = work.written + work.shown
    shares = settings.packed and work.group_size > 1
    once, row = (work.prompt, row) if shares else (0, work.prompt + row)
    there = max(1, work.rollouts // work.updates)
    rows = min(there, max(1, (settings.tokens_per_micro_batch - once) // row))
    return once + rows * row, rows * work.written


def memory(shape: ModelShape, settings: Settings, work: Workload) -> list[Part]:
    """Estimates the memory of one device, part by part.

    Args:
        shape: The policy.
        settings: How it computes.
        work: What an iteration does.
    """
    n, trained, shards, layers = shape.parameters, shape.trained, settings.shards, shape.layers
    share = f" / {shards}" if shards > 1 else ""
    compute = 2 if settings.mixed else 4
    parts = [Part("runtime", RUNTIME_BYTES[settings.device], "interpreter, libraries, buffers")]
    if shape.lora:
        parts.append(
            Part("frozen weights", n * settings.frozen_bytes / shards, f"{n:,} x {settings.frozen_bytes} B{share}")
        )
        parts.append(Part("adapters", trained * 4 / shards, f"{trained:,} x 4 B{share}"))
    else:
        parts.append(Part("weights", n * 4 / shards, f"{n:,} x 4 B{share}"))
    if settings.optimizer_bytes:
        text = f"{trained:,} x {settings.optimizer_bytes} B{share}"
        parts.append(Part("optimizer state", trained * settings.optimizer_bytes / shards, text))
    if settings.reference and not shape.lora:
        parts.append(Part("reference model", n * 4 / shards, f"{n:,} x 4 B{share}"))
    parts.append(Part("gradients", trained * 4 / shards, f"{trained:,} x 4 B{share}", ("update",)))
    parts += _gathered(shape, settings, compute)

    tokens, trained_tokens = micro_batch(settings, work)
    full = activation_bytes(shape, settings.mixed, settings.packed, work.prompt, work.written + work.shown)
    if settings.checkpointing:
        amount = tokens * (layers * 4 * shape.hidden + 2 * full)
        text = f"{tokens:,} tokens x ({layers} layers x {4 * shape.hidden} B + 2 layers at work x {full:,} B)"
    else:
        amount = tokens * (layers + 1) * full
        text = f"{tokens:,} tokens x ({layers} + 1 layers) x {full:,} B"
    parts.append(Part("activations", amount, text, ("update",)))
    if settings.packed:
        heads = shape.heads // shape.kv_heads
        text = f"{tokens:,} tokens x {heads} heads that share keys x {work.context:,} tokens x {compute} B"
        parts.append(Part("attention masks", tokens * heads * work.context * compute, text, ("update",)))
    chunk = min(settings.logprob_chunk_tokens, trained_tokens)
    text = f"{chunk:,} tokens x {shape.vocab:,} entries x {LOGIT_BYTES} B"
    logits = chunk * shape.vocab * LOGIT_BYTES
    parts.append(Part("logits", logits, text, ("update",)))
    slack = ALLOCATOR_SHARE[settings.device]
    parts.append(Part("allocator", slack * (amount + logits), f"{slack:.0%} of activations and logits", ("update",)))

    if work.samples:
        parts += _sampling(shape, settings, work, compute)
    return parts


def _gathered(shape: ModelShape, settings: Settings, compute: int) -> list[Part]:
    """Copies of weights in the type of computation, or whole from all shards."""
    n, layer = shape.parameters, shape.layer_parameters
    if settings.shards > 1:
        root = n - shape.layers * layer
        text = f"(2 layers x {layer:,} + {root:,}) x {compute} B, whole while in use"
        return [
            Part("gathered layers", (2 * layer + root) * compute, text, ("update",)),
            Part("gathered model", n * compute, f"{n:,} x {compute} B, whole while sampling", ("sample",)),
        ]
    if not settings.mixed or (shape.lora and settings.frozen_bytes == 2):
        return []
    return [Part("bfloat16 weights", n * 2, f"{n:,} x 2 B, cast for the matrix products")]


def _sampling(shape: ModelShape, settings: Settings, work: Workload, compute: int) -> list[Part]:
    if settings.engine_bytes is not None:
        text = "its share of the device: weights in bfloat16 and key-value cache"
        return [Part("sampling engine", settings.engine_bytes, text)]
    rows = min(work.rows, work.rollouts)
    each = shape.layers * 2 * shape.keys * compute
    text = f"{rows} rows x {work.context:,} tokens x {shape.layers} layers x 2 x {shape.keys} x {compute} B"
    logits = f"{rows} rows x {shape.vocab:,} entries x 12 B"
    return [
        Part("key-value cache", rows * work.context * each, text, ("sample",)),
        Part("next-token logits", rows * shape.vocab * 12, logits, ("sample",)),
    ]


def peaks(parts: Sequence[Part]) -> dict[str, float]:
    """Adds up the parts of each phase, in bytes; the largest is what the device must have."""
    phases = {phase for part in parts for phase in part.phases}
    return {
        phase: sum(p.amount for p in parts if phase in p.phases) for phase in ("sample", "update") if phase in phases
    }


def seconds(cost: TokenCost, settings: Settings, work: Workload, peak_flops: float) -> list[Part]:
    """Estimates one iteration, part by part; parts follow one another.

    A forward pass costs 2 FLOP a weight and token, a backward pass twice that (once under adapters, whose frozen
    weights have no gradient), and attention 4 FLOP for each pair of a token and one before it, width of the queries and
    layer. The output layer runs for trained tokens alone.

    Args:
        cost: What a token of the policy costs.
        settings: How it computes.
        work: What an iteration does.
        peak_flops: What large matrix products reach on one device, in FLOP/s.
    """
    body, head, shares = cost.body, cost.head, SHARES[settings.mixed]
    attention = 2 * cost.attention * work.context  # half of the pairs, on average
    parts = []
    if work.samples:
        drawn = work.rollouts * work.written
        read = work.questions * work.prompt + work.rollouts * work.shown
        rate = shares[DECODE] * peak_flops / (2 * (body + head) + attention)
        parts.append(Part("decode", drawn / rate, f"{drawn:,} tokens at {rate:,.0f}/s"))
        rate = shares[PREFILL] * peak_flops / (2 * body + attention)
        parts.append(Part("prefill", read / rate, f"{read:,} tokens at {rate:,.0f}/s (prompts once a group)"))
    groups = work.questions * work.kept
    rows = groups * work.group_size
    prompts = (groups if settings.packed else rows) * work.prompt
    computed = rows * (work.different if settings.packed else 1.0)
    tokens, trained = prompts + computed * (work.written + work.shown), computed * work.written
    forward = tokens * (2 * body + attention) + trained * 2 * head
    passes = 2.0 if cost.frozen else 3.0
    passes += 1.0 if settings.checkpointing else 0.0
    extra = (1.0 if work.updates > 1 and work.samples else 0.0) + (1.0 if settings.reference else 0.0)
    took = forward * (passes * work.epochs + extra) / (shares[TRAIN] * peak_flops)
    rate = tokens / took if took else 0.0
    parts.append(Part("update", took, f"{tokens:,.0f} tokens ({trained:,.0f} trained) at {rate:,.0f}/s"))
    return parts
