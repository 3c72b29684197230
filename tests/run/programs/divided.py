"""Programs whose model is divided among the ranks, each of which saves its parameters.

Words: a folder for the results; names of cases.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, Optimizer

import phalanx

# The last global batch of an epoch has 5 samples; the last epoch is left before it.
SAMPLES, BATCH, STEPS = 53, 16, 7


class Block(nn.Module):
    """Attention of four heads, and two layers; dropout where every rank has all features."""

    def __init__(self, width: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.mix = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        inputs = self.norm(hidden)
        heads = [
            layer(inputs).unflatten(2, (-1, 4)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        hidden = hidden + self.dropout(self.mix(mixed.transpose(1, 2).flatten(2)))
        return hidden + self.dropout(self.down(F.gelu(self.up(hidden))))


class Language(nn.Module):
    """A small GPT, which says itself how tensor parallelism splits its layers."""

    parallelize_plan: ClassVar = {
        "blocks.*.query": "column", "blocks.*.key": "column", "blocks.*.value": "column",
        "blocks.*.mix": "row", "blocks.*.up": "column", "blocks.*.down": "row",
    }  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 16), nn.Embedding(8, 16)
        self.blocks = nn.ModuleList([Block(16) for _ in range(2)])
        self.head = nn.Linear(16, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden)
        return logits


def language(**options: Any) -> dict[str, Tensor]:
    """Micro-batches count by their tokens; the rate follows a schedule; norms are clipped."""
    texts = torch.randint(1, 11, (SAMPLES, 9))
    texts[torch.arange(9) > torch.randint(2, 9, (SAMPLES, 1))] = 0
    model = Language()
    optimizer = AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    run = phalanx.start(
        model,
        optimizer,
        (texts[:, :-1], texts[:, 1:]),
        batch_size=BATCH,
        micro_batches=5,
        epochs=2,
        clip_norm=0.5,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5),
        **{"steps": STEPS, **options},
    )
    losses, scores = [], []
    for batch in run:
        tokens = int((batch.targets > 0).sum())
        loss = loss_of(run.model, (batch.inputs, batch.targets)) / max(1, tokens)
        run.backward(loss, weight=tokens)
        if batch.ends_step:
            losses.append(run.step_loss)
        if batch.ends_epoch:
            scores.append(run.evaluate(loss_of, (texts[:, :-1], texts[:, 1:]), reduction="sum"))
    return {**run.state_dict(), "losses": torch.tensor(losses), "scores": torch.tensor(scores)}


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    logits = model(batch[0])
    return F.cross_entropy(
        logits.flatten(0, 1), batch[1].flatten(), ignore_index=0, reduction="sum"
    )


momentum = partial(SGD, lr=0.1, momentum=0.9)


def layers(rule: Callable[..., Optimizer] = momentum, **options: Any) -> dict[str, Tensor]:
    """A plan of the program's own, and a frozen layer; one micro-batch a rank."""
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.Linear(8, 3))
    model[2].requires_grad_(False)
    data = torch.randn(SAMPLES, 6), torch.randint(3, (SAMPLES,))
    trained = [p for p in model.parameters() if p.requires_grad]
    run = phalanx.start(
        model, rule(trained), data, batch_size=BATCH, epochs=2, steps=STEPS, **options
    )
    for batch in run:
        run.backward(F.cross_entropy(run.model(batch.inputs), batch.targets))
    return run.state_dict()


class Words(nn.Module):
    """Tokens and their places."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 16), nn.Embedding(8, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden: Tensor = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        return hidden


class Stages(nn.Module):
    """A GPT whose layers are called one after the other, without a name for that of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = Words(), nn.Linear(16, 11)
        self.blocks = nn.ModuleList([Block(16, dropout=0) for _ in range(3)])

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.words(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(hidden)
        return logits


def stages(**options: Any) -> dict[str, Tensor]:
    """Whole steps, by a loss over the tokens of a text, of which the texts have unequally many."""
    texts = torch.randint(1, 11, (SAMPLES, 9))
    texts[torch.arange(9) > torch.randint(2, 9, (SAMPLES, 1))] = 0
    data = texts[:, :-1], texts[:, 1:]
    model = Stages()
    optimizer = AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    run = phalanx.start(
        model,
        optimizer,
        data,
        batch_size=BATCH,
        epochs=2,
        scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5),
        **{"steps": STEPS, **options},
    )
    is_weighed = options.get("strategy") != "server" and not options.get("bitwise")
    weight = {"weight": tokens_of} if is_weighed else {}
    losses, scores = [], []
    for epoch in run.epochs():
        for batch in epoch:
            outputs = run.step(batch, mean_over_tokens if is_weighed else mean_over_texts, **weight)
            assert outputs is None or not outputs.requires_grad
            losses.append(run.step_loss)
        scores.append(run.evaluate(loss_of, data, reduction="sum"))
        losses.append(run.training_loss())
    if not is_weighed:
        return {**run.state_dict(), "scores": torch.tensor(scores)}
    return {**run.state_dict(), "losses": torch.tensor(losses), "scores": torch.tensor(scores)}


def tokens_of(targets: Tensor) -> int:
    return int((targets > 0).sum())


def mean_over_tokens(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)


def mean_over_texts(logits: Tensor, targets: Tensor) -> Tensor:
    losses = F.cross_entropy(logits.transpose(1, 2), targets, ignore_index=0, reduction="none")
    return losses.sum(1).mean()


LAYERS = {"pipeline_stages": ["words", "blocks.*", "head"]}
PLAN = {"0": "column", "2": "row"}
lars = partial(layers, partial(phalanx.LARS, lr=0.5, trust_coefficient=0.1, weight_decay=0.01))
lamb = partial(layers, partial(phalanx.LAMB, lr=0.05, weight_decay=0.01))
TENSOR = {"strategy": "tensor"}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "language tensor": (language, TENSOR),
    "language zero 2": (language, {"strategy": "zero", "strategy_options": {"zero_stage": 2}}),
    "language zero 3": (language, {"strategy": "zero", "strategy_options": {"zero_stage": 3}}),
    "layers tensor": (layers, {**TENSOR, "strategy_options": {"tensor_plan": PLAN}}),
    "layers zero 3": (layers, {"strategy": "zero", "strategy_options": {"zero_stage": 3}}),
    "lars tensor": (lars, {**TENSOR, "strategy_options": {"tensor_plan": PLAN}}),
    "lars zero 3": (lars, {"strategy": "zero", "strategy_options": {"zero_stage": 3}}),
    "lamb tensor": (lamb, {**TENSOR, "strategy_options": {"tensor_plan": PLAN}}),
    "lamb zero 2": (lamb, {"strategy": "zero", "strategy_options": {"zero_stage": 2}}),
    "stages pipeline": (stages, {"strategy": "pipeline", "strategy_options": LAYERS}),
    "stages rounds": (
        stages,
        {
            "strategy": "pipeline",
            "micro_batches": 8,
            "strategy_options": {
                **LAYERS,
                "pipeline_schedule": "interleaved",
                "stages_per_rank": 2,
            },
        },
    ),
    "stages dp=2,pp=2": (stages, {"strategy_options": LAYERS}),
    "stages zero 3": (stages, {"strategy": "zero", "strategy_options": {"zero_stage": 3}}),
    "stages mpi": (stages, {"strategy": "mpi"}),
    "texts server": (stages, {"strategy": "server"}),
    "texts bitwise": (
        stages,
        {"strategy": "pipeline", "bitwise": True, "strategy_options": LAYERS},
    ),
    "language dp=2,tp=2": (language, {}),
    "language shard=2,tp=2": (language, {}),
    "language dp=2,shard=2": (language, {}),
}


def trained(name: str, **more: Any) -> dict[str, Tensor]:
    program, options = CASES[name]
    if "," in name:
        mesh = {"mesh": name.split()[1], **options.get("strategy_options", {})}
        options = {"strategy": "mesh", "strategy_options": mesh}
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    try:
        result = program(**options, **more)
        return {key: value.clone() for key, value in result.items()}
    finally:
        torch.set_default_dtype(torch.float32)


class Halves(nn.Module):
    """Softmax over all features between two layers, of which a rank has some."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 16), nn.Linear(16, 3)
        self.shift = nn.Module()
        self.shift.amount = nn.Parameter(torch.zeros(3))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.down(self.up(inputs).softmax(1)) + self.shift.amount
        return outputs


class Dropping(Halves):
    """Dropout between two layers of a pair, where each rank would draw for its own features."""

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.dropout(self.up(inputs), 0.5, training=self.training)
        outputs: Tensor = self.down(hidden) + self.shift.amount
        return outputs


class Twice(nn.Module):
    """Layers whose slope by the inputs is what is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.layers(inputs)
        return outputs


KINDS: dict[str, Any] = {"dropout": Dropping, "differentiates twice": Twice}
TO_HALVES = {"up": "column", "down": "row"}
BAD_PLAN = {"tensor_plan": TO_HALVES}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "needs a plan": (TENSOR, "the model has no plan for tensor parallelism"),
    "wrong plan": (
        {**TENSOR, "strategy_options": BAD_PLAN},
        "outputs change when it is split by its plan",
    ),
    "dropout": (
        {**TENSOR, "strategy_options": BAD_PLAN},
        "and draw no random numbers (no dropout)",
    ),
    "used without a call": (
        {"strategy": "zero", "strategy_options": {"zero_stage": 3}},
        "a parameter is used without a call of its module",
    ),
    "differentiates twice": (
        {"strategy": "zero", "strategy_options": {"zero_stage": 2}},
        "needs full parameters, which zero_stage=2 and 3 release after",
    ),
    "other ranks": (
        {"strategy": "mesh", "strategy_options": {"mesh": "dp=3"}},
        "= 3, but there are 2 ranks",
    ),
    "stages": (
        {"strategy": "pipeline"},
        "Halves cannot be split into stages: make it an nn.Sequential, or give it "
        "`pipeline_stages`",
    ),
    "other stages": (
        {"strategy": "pipeline", "strategy_options": {"pipeline_stages": ["up", "down", "shift"]}},
        "Module [Module] is missing",
    ),
    "few samples": (
        {"strategy": "pipeline", "micro_batches": 17},
        "batch_size=16 is less than the pipeline's 17 micro-batches",
    ),
    "stages by text": (
        {"strategy": "pipeline", "strategy_options": {"pipeline_stages": "up"}},
        "pipeline_stages='up' is not a list of the names of layers",
    ),
    "a stream in stages": (
        {"strategy": "pipeline", "sharded": True},
        "a pipeline splits the model by the shape of its inputs",
    ),
    "micro-batches elsewhere": (
        {"strategy": "pipeline", "strategy_options": {"micro_batches": 4}},
        "micro_batches= is an argument of phalanx.start",
    ),
    "no workers": (
        {"strategy": "server", "strategy_options": {"servers": 2}},
        "servers=2 of 2 ranks leaves no worker",
    ),
    "clipped slices": (
        {"strategy": "server", "clip_norm": 1.0},
        "clip_norm=1 needs the norm of all gradients",
    ),
    "no room": (
        {
            "strategy": "mesh",
            "strategy_options": {"mesh": "pp=2", "pipeline_schedule": "1f1b"},
            "micro_batches": 1,
        },
        "needs a micro-batch for each of its 2 ranks",
    ),
    "no mesh": ({"strategy": "mesh"}, 'strategy_options={"mesh": "dp=2,tp=2"} need each other'),
    "a plan for nobody": ({"strategy_options": BAD_PLAN}, "tensor_plan= is for"),
    "a mesh for nobody": (
        {"strategy_options": {"mesh": "dp=2"}},
        'is for strategy="zero", tensor',
    ),
    "own batches": (
        {"strategy": "tensor", "sharded": True, **{"strategy_options": BAD_PLAN}},
        "leave it out",
    ),
    "bitwise": (
        {"strategy": "tensor", "bitwise": True},
        'bitwise=True and strategy="tensor" exclude each other: it splits the sums within layers',
    ),
}


def refusal(options: dict[str, Any], *, kind: Any = Halves) -> str:
    """Return what a program is told; one with dropout evaluates its model first."""
    torch.manual_seed(1)
    model = kind()
    data: Any = torch.randn(SAMPLES, 6), torch.randint(3, (SAMPLES,))
    if options.get("sharded"):
        data = [(torch.randn(4, 6), torch.randint(3, (4,)))]
    optimizer = SGD(model.parameters(), lr=0.1)
    try:
        run = phalanx.start(model, optimizer, data, batch_size=BATCH, **options)
    except phalanx.UserError as error:
        return str(error)
    if kind is Dropping:
        run.evaluate(lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), data)
    for batch in run:
        inputs = batch.inputs.requires_grad_(kind is Twice)
        loss = F.cross_entropy(run.model(inputs), batch.targets)
        if kind is Twice:
            loss = torch.autograd.grad(loss, inputs, create_graph=True)[0].square().mean()
        run.backward(loss)
    return "not refused"


IN_THE_LOOP = ("wrong plan", "dropout", "used without a call", "differentiates twice")

if __name__ == "__main__":
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    if names[0] == "refused":
        for name in names[1:] or [name for name in REFUSED if name not in IN_THE_LOOP]:
            options, words = REFUSED[name]
            said = refusal(options, kind=KINDS.get(name, Halves))
            assert words in said, (name, said)
        print(f"{names[1:]}: all refused", flush=True)
    elif names[0] == "resumed":  # within an epoch, under each from the one before
        torch.manual_seed(1)
        for number, name in enumerate(names[1:], 1):
            last = {} if number == len(names) - 1 else {"steps": 2 * number - 1}
            place = {"checkpoint_dir": folder / "checkpoints", "resume": True}
            result = trained(name, **place, **last)
            del result["losses"], result["scores"]
        torch.save({names[-1]: result}, folder / f"{os.environ['RANK']}.pt")
    else:
        results = {name: trained(name) for name in names}
        torch.save(results, folder / f"{os.environ['RANK']}.pt")
