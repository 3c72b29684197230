"""Train with other people's libraries, each a few steps, and print what came of the parameters.

The first word is the backend to ask for: "gloo", "mpi", or "none": what the libraries choose.
They share the process group that the first of them makes: torchrun's store takes one Gloo group.
"""

import os
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

warnings.filterwarnings("ignore")
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
asked = sys.argv[1]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if asked != "none":
    dist.init_process_group(asked)


def report(case: str, model: nn.Module) -> None:
    total = sum(p.detach().double().abs().sum() for p in model.parameters())
    name = dist.get_backend() if dist.is_initialized() else "no group"
    sys.stdout.write(f"\n{case} on {name}, rank {rank} of {size}: {float(total):.17g}\n")
    sys.stdout.flush()


def samples() -> TensorDataset:
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(32, 8, generator=random)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def classifier() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)  # makes the group where there is none
    assert (accelerator.process_index, accelerator.num_processes) == (rank, size)
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(samples(), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for inputs, targets in loader:
        loss = F.cross_entropy(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    losses = accelerator.gather_for_metrics(loss.detach().reshape(1))
    assert losses.shape == (size,)
    report("Accelerate", model)


def tutorial() -> None:
    """As the tutorials of DDP: a trainer class, a sampler and a snapshot of rank 0."""
    local_rank = int(os.environ["LOCAL_RANK"])
    assert local_rank < int(os.environ["LOCAL_WORLD_SIZE"])
    data = samples()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=1)
    model = DistributedDataParallel(classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        if rank == 0:
            torch.save(model.module.state_dict(), f"{folder}/snapshot.pt")
            model.module.load_state_dict(torch.load(f"{folder}/snapshot.pt"))
    dist.barrier()
    report("DDP", model)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.mix(self.first(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(query, key, value, is_causal=True))
        return x + self.mlp(self.second(x))


class LanguageModel(nn.Module):
    def __init__(self, words: int = 23, width: int = 16, length: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight  # tied

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        return self.head(self.blocks(x))


def language_model() -> None:
    """As small GPT trainers: distributed where RANK says so, accumulated gradients, clipping."""
    assert int(os.environ.get("RANK", -1)) != -1, "each rank would train alone"
    torch.manual_seed(3)
    model = DistributedDataParallel(LanguageModel())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    random = torch.Generator().manual_seed(100 + rank)
    for _ in range(4):
        for micro_step in range(2):
            model.require_backward_grad_sync = micro_step == 1
            words = torch.randint(23, (3, 13), generator=random)
            loss = F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
            (loss / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    report("GPT", model)


def hugging_face() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(4)
    config = GPT2Config(vocab_size=31, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(config)
    words = torch.randint(31, (32, 16), generator=torch.Generator().manual_seed(5))
    data = [{"input_ids": row, "labels": row} for row in words]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            max_steps=4,
            per_device_train_batch_size=2,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(model=model, args=arguments, train_dataset=data).train()
    report("Trainer of Transformers", model)


def lightning_trainer() -> None:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = classifier()

        def training_step(self, batch: list[Tensor]) -> Tensor:
            loss = F.cross_entropy(self.model(batch[0]), batch[1])
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    module = Module()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=size,
        strategy=DDPStrategy(process_group_backend=dist.get_backend()),
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    environment = type(trainer.strategy.cluster_environment).__name__
    is_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    assert environment == ("TorchElasticEnvironment" if is_torchrun else "MPIEnvironment")
    trainer.fit(module, DataLoader(samples(), batch_size=4))
    assert trainer.global_step == 32 // 4 // size
    report("Trainer of Lightning", module)


def fabric() -> None:
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy

    strategy = DDPStrategy(process_group_backend=dist.get_backend())
    own = Fabric(accelerator="cpu", devices=size, strategy=strategy)
    own.launch()
    assert (own.global_rank, own.world_size) == (rank, size)
    model = classifier()
    model, optimizer = own.setup(model, torch.optim.Adam(model.parameters(), lr=0.01))
    for inputs, targets in own.setup_dataloaders(DataLoader(samples(), batch_size=4)):
        own.backward(F.cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()
    assert own.all_gather(torch.tensor(rank)).tolist() == list(range(size))
    report("Fabric", model)


for case in (accelerate, tutorial, language_model, hugging_face, lightning_trainer, fabric):
    case()
if dist.is_mpi_available():  # MPI's launcher: mpi4py beside all of them
    from mpi4py import MPI

    assert MPI.COMM_WORLD.allreduce(rank) == sum(range(size))
print(f"rank {rank}: is_mpi_available() is {dist.is_mpi_available()}", flush=True)
dist.destroy_process_group()
