"""Fragments of programs in README.md and in guides run as they stand, each in a process, and so do
their blocks of commands marked `bash`, page by page in one folder."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from phalanx.jobs.installation import find_mpi
from tests.conftest import ONE_THREAD, forked_python

ROOT = Path(__file__).parents[2]
PAGES = ["README.md"]
PAGES += [f"docs/{name}.md" for name in ("backend", "bitwise", "launching")]
PAGES += [f"docs/{name}.md" for name in ("checkpoints", "strategies", "own_program")]
PRINTED = {
    "data": ["2 classes", "iris.pack"],
    "debug": [
        "rank 0 waited 3 s in the all-reduce of gradients for rank 1",
        "rank 1 is 1 collective behind: it last finished all_reduce of parts number 5",
        "exit code 1",
    ],
}
"""Texts that the commands of a page print; those of tutorials run in tests of their own."""
ELSEWHERE = {
    "phalanx.notebook": "tests/run/test_notebook.py",
    "# majority_vote.py": "tests/run/test_own_strategy.py",
    "# train_by_vote.py": "tests/run/test_own_strategy.py",
    "# my_module.py": "tests/train/test_own_model.py",
    "layout_of(": "tests/parallel/pipeline",
}
"""Fragments with these words, and the tests that run them or what they show."""
COMMANDS = re.compile(r"^```bash\n(.*?)^```", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
PREAMBLE = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adam
import phalanx
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
criterion = nn.functional.cross_entropy
data = validation_data = (torch.randn(40, 4), torch.randint(2, (40,)))
def error(model, batch):
    return (model(batch[0]).argmax(1) != batch[1]).float().mean()
"""
GAN = """
gan = nn.ModuleDict({"generator": nn.Linear(64, 4), "critic": nn.Linear(4, 1)})
gan.generator, gan.critic = gan["generator"], gan["critic"]
images = torch.randn(256, 4)
def critic_loss(gan, real, fake=None):
    fake = gan.generator(torch.randn(len(real), 64)).detach() if fake is None else fake
    return gan.critic(fake).mean() - gan.critic(real).mean()
def generator_loss(gan, fake):
    fake = gan.generator(torch.randn(len(fake), 64))
    return -gan.critic(fake).mean()
optimizers = {n: Adam(gan[n].parameters()) for n in ("generator", "critic")}
"""
BEFORE = {
    "def closure": "dist.init_process_group('mpi'); ddp = DistributedDataParallel(model)\n"
    "inputs, targets = data; optimizer = torch.optim.LBFGS(ddp.parameters(), max_iter=2)",
    "dist.init_process_group": "",
    "optimizers = {": GAN,
    "loss = critic_loss if": GAN + "names = ('critic', 'generator')\n"
    "run = phalanx.start(gan, optimizers, images, batch_size=128, alternate=names)",
    "info_nce": """
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)
    def forward(self, top, bottom):
        return self.inner(top), self.inner(bottom)
def info_nce(top, bottom):
    return nn.functional.cross_entropy(top @ bottom.T, torch.arange(len(top)))
pair = Pair()
run = phalanx.start(pair, Adam(pair.parameters()), (data[0], data[0]), batch_size=20)
""",
    "Compressed": "dist.init_process_group('mpi')\nNet = lambda: nn.Linear(4, 2)",
}
"""What a fragment needs beside the preamble, by words in it."""
AFTER = {"Compressed": "model(data[0]).sum().backward()"}


def fragments() -> list[str]:
    found = []
    for page in PAGES:
        for _, text in BLOCK.findall((ROOT / page).read_text()):
            block = textwrap.dedent(text)
            if any(words in block for words in ELSEWHERE):
                continue
            before = next((code for words, code in BEFORE.items() if words in block), "")
            after = next((code for words, code in AFTER.items() if words in block), "")
            found.append("\n".join((PREAMBLE, before, block, after)))
    return found


def test_fragments_run(tmp_path: Path) -> None:
    found = fragments()
    assert len(found) >= 12
    for number, text in enumerate(found):
        (tmp_path / f"{number}.py").write_text(text)
        folder = tmp_path / str(number)
        folder.mkdir()
        done = subprocess.run(
            [forked_python(), tmp_path / f"{number}.py"],
            cwd=folder,
            env={**os.environ, **ONE_THREAD},
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, text + done.stderr


@pytest.mark.mpi
@pytest.mark.parametrize("page", PRINTED)
def test_commands_run(page: str, tmp_path: Path) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for name, program in NAMED.findall(text):
        (tmp_path / name).write_text(program)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {name: value for name, value in os.environ.items() if not name.startswith("PHALANX_")}
    done = subprocess.run(
        ["bash", "-e", "-c", "".join(COMMANDS.findall(text))],
        cwd=tmp_path,
        env={**own, **ONE_THREAD, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    printed = " ".join(done.stdout.split())
    wanted = PRINTED[page]
    if page == "debug" and find_mpi(os.environ).vendor == "mpich":  # it kills rank 1 at once
        wanted = [*wanted[::2], "rank 1 left no record; rank 0 waited in all_reduce of parts nu"]
    assert not [words for words in wanted if words not in printed], done.stdout
