"""Learn energies and forces of molecules by messages between their atoms.

The molecules are made here: atoms of two kinds at random places, 3 to 12 of them, whose energy is
a Morse potential between each two. Forces are minus the derivative of the energy by the positions,
of the potential and of the network alike, so that a step differentiates twice.
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

NUM_TEST = 100
CUTOFF = 4.0


class Graphs(NamedTuple):
    """Molecules put together: atoms one after another, and which two are neighbours."""

    positions: Tensor  # (atoms, 3)
    kinds: Tensor  # (atoms,)
    pairs: Tensor  # (2, neighbours): from which atom to which
    molecules: Tensor  # (atoms,): to which molecule an atom belongs
    sizes: Tensor  # (molecules,): number of atoms


Sample = tuple[Tensor, Tensor, Tensor, Tensor]  # positions, kinds, energy, forces


def morse(positions: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
    """Return the energy of a molecule, and the forces (atoms, 3)."""
    positions = positions.clone().requires_grad_()
    one, other = torch.triu_indices(len(kinds), len(kinds), offset=1)
    distances = (positions[one] - positions[other]).norm(dim=1)
    depths = torch.tensor([[1.0, 0.6], [0.6, 0.3]])[kinds[one], kinds[other]]
    energy = (depths * ((1 - torch.exp(1.2 - distances)) ** 2 - 1)).sum()
    return energy.detach(), -torch.autograd.grad(energy, positions)[0]


class Molecules(Dataset[Sample]):
    """Molecules that are no lattice and no gas: points of a grid, moved a little."""

    def __init__(self, number: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        grid = 1.3 * torch.cartesian_prod(*[torch.arange(3.0, dtype=torch.get_default_dtype())] * 3)
        self.samples: list[Sample] = []
        for _ in range(number):
            size = int(torch.randint(3, 13, (), generator=generator))
            places = grid[torch.randperm(27, generator=generator)[:size]]
            positions = places + 0.15 * torch.randn(places.shape, generator=generator)
            kinds = torch.randint(2, (size,), generator=generator)
            self.samples.append((positions, kinds, *morse(positions, kinds)))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Sample:
        return self.samples[number]


def collate(samples: list[Sample]) -> tuple[Graphs, Tensor, Tensor]:
    """Put molecules together: their graphs, energies (molecules,), and forces (atoms, 3)."""
    positions, kinds, energies, forces = zip(*samples, strict=True)
    sizes = torch.tensor([len(molecule) for molecule in positions])
    pairs, first = [], 0
    for molecule in positions:
        near = torch.cdist(molecule, molecule) < CUTOFF
        pairs.append(first + near.fill_diagonal_(False).nonzero().T)
        first += len(molecule)
    molecules = torch.arange(len(sizes)).repeat_interleave(sizes)
    graphs = Graphs(
        torch.cat(positions), torch.cat(kinds), torch.cat(pairs, dim=1), molecules, sizes
    )
    return graphs, torch.stack(energies), torch.cat(forces)


class MessagePassing(nn.Module):
    """Energies of molecules, as sums over their atoms, which have heard from their neighbours."""

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.kind = nn.Embedding(2, width)
        self.centres = nn.Buffer(torch.linspace(0.5, CUTOFF, 16))
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(rounds)
        )
        self.updates = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(rounds)
        )
        self.energy = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, graphs: Graphs) -> Tensor:
        source, target = graphs.pairs
        distances = (graphs.positions[source] - graphs.positions[target]).norm(dim=1)
        fade = (torch.cos(torch.pi * distances / CUTOFF) + 1).unsqueeze(1) / 2
        shells = torch.exp(-10 * (distances.unsqueeze(1) - self.centres) ** 2) * fade
        atoms = self.kind(graphs.kinds)
        for filtered, update in zip(self.filters, self.updates, strict=True):
            messages = filtered(shells) * atoms[source]
            atoms = atoms + update(torch.zeros_like(atoms).index_add(0, target, messages))
        energies = self.energy(atoms).squeeze(1)
        return energies.new_zeros(len(graphs.sizes)).index_add(0, graphs.molecules, energies)


def predict(model: nn.Module, graphs: Graphs) -> tuple[Tensor, Tensor]:
    """Return energies (molecules,) and forces (atoms, 3), which can be differentiated again."""
    with torch.enable_grad():
        graphs = graphs._replace(positions=graphs.positions.clone().requires_grad_())
        energies = model(graphs)
        (slopes,) = torch.autograd.grad(energies.sum(), graphs.positions, create_graph=True)
    return energies, -slopes


def loss_of(model: nn.Module, graphs: Graphs, energies: Tensor, forces: Tensor) -> Tensor:
    """Return the mean over the atoms: of the error of the force, and of the energy per atom."""
    found_energies, found_forces = predict(model, graphs)
    per_atom = ((found_energies - energies) / graphs.sizes) ** 2
    return F.mse_loss(found_forces, forces) + per_atom[graphs.molecules].mean()


def test(model: nn.Module, samples: tuple[Graphs, Tensor, Tensor]) -> Tensor:
    """Return the mean over molecules of the mean error of their forces."""
    graphs, _, forces = samples
    errors = (predict(model, graphs)[1].detach() - forces).norm(dim=1)
    sums = torch.zeros(len(graphs.sizes)).index_add(0, graphs.molecules, errors)
    return (sums / graphs.sizes).mean()


def train(args: argparse.Namespace) -> nn.Module:
    """Return the trained network."""
    torch.manual_seed(args.seed)
    train_set, test_set = Molecules(args.samples, seed=1), Molecules(NUM_TEST, seed=2)
    model = MessagePassing(args.width, args.rounds)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    loader = DataLoader(train_set, args.batch_size, shuffle=True, collate_fn=collate)
    for epoch in range(args.epochs):
        for graphs, energies, forces in loader:
            optimizer.zero_grad()
            loss = loss_of(model, graphs, energies, forces)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: error of a force {test(model, collate(test_set)):.4f}")
    return model


def main(words: Sequence[str] | None = None) -> nn.Module:
    """Train by the options in `words`; None: those of the command line."""
    parser = argparse.ArgumentParser(description="energies and forces of molecules")
    parser.add_argument("--samples", type=int, default=1000, help="molecules to train with")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2, help="of messages")
    parser.add_argument("--batch-size", type=int, default=25)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    return train(parser.parse_args(words))


if __name__ == "__main__":
    main()
