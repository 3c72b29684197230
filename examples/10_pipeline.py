"""A pipeline: each rank has some layers, and micro-batches flow from rank to rank.

    mpiexec -n 2 python examples/10_pipeline.py

Different from 09: the model is cut between layers, not through them. While the last rank works on
the first of six micro-batches, the first rank works on the next. With p ranks and m micro-batches a
rank idles for (p-1)/(m+p-1) of a step: more micro-batches, less waiting.
"""

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.functional import cross_entropy

EPOCHS, BATCH, MICRO_BATCHES, RATE = 15, 60, 6, 0.3
torch.set_num_threads(1)
dist.init_process_group("mpi")
rank, size = dist.get_rank(), dist.get_world_size()

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32)
labels = torch.tensor(labels)
num_train = 1500

torch.manual_seed(0)
widths = [64, *[32] * (size - 1), 10]
stages = [
    nn.Sequential(nn.ReLU() if i else nn.Identity(), nn.Linear(widths[i], widths[i + 1]))
    for i in range(size)
]
mine = stages[rank]
stage = PipelineStage(mine, rank, size, torch.device("cpu"))
schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=cross_entropy)
optimizer = torch.optim.SGD(mine.parameters(), lr=RATE)

order = torch.Generator().manual_seed(1)
for _ in range(EPOCHS):
    for batch in torch.randperm(num_train, generator=order).split(BATCH):
        optimizer.zero_grad()
        given = (images[batch],) if rank == 0 else ()
        wanted = {"target": labels[batch]} if rank == size - 1 else {}
        schedule.step(*given, **wanted)
        optimizer.step()

# The last rank gets all stages, and evaluates the model.
for number, part in enumerate(stages):
    for parameter in part.parameters():
        dist.broadcast(parameter.data, src=number)
right = (nn.Sequential(*stages)(images[num_train:]).argmax(1) == labels[num_train:]).float().mean()
if rank == size - 1:
    print(f"{right:.1%} of digits never seen are read right, by a pipeline of {size} stages")
dist.destroy_process_group()
