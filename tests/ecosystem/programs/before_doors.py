"""Put before the fragments of docs/torch_engines.md: their model, data and folder."""

import os
import sys
import warnings

import torch
from torch import Tensor  # noqa: F401  for what follows

warnings.filterwarnings("ignore")
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
torch.set_default_dtype(torch.float64)
random = torch.Generator().manual_seed(3)
inputs = torch.randn(32, 8, generator=random)
targets = torch.randint(4, (32,), generator=random)
kept = torch.arange(32) < 21  # most tokens of rank 0 count, few of rank 1
prompt = torch.arange(1, 9)[None]
folder = sys.argv[1]
