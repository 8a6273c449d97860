"""A PyTorch program as its users write it: gradients of one step, averaged by DistributedDataParallel over Gloo."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
model(torch.full((1, 1), float(rank))).sum().backward()
print(f"rank {rank} of {size}: gradient {model.module.weight.grad.item():g}", flush=True)
dist.barrier()  # who leaves while another still talks to it makes that one abort
dist.destroy_process_group()
