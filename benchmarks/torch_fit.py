"""The same work in PyTorch: ``python torch_fit.py PROCESSES BATCH EPOCHS`` prints JSON (peer of benchmarks/peers.py).

One process on both cores, or DistributedDataParallel on Gloo with one thread a process. Data: the IDX files beside the
package, resident as bytes; a batch is gathered and scaled at once, in a new order each epoch, the last short batch
included.
"""

import gzip
import json
import os
import socket
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

MNIST = Path(__file__).resolve().parent.parent / "tfmp" / "data" / "mnist"


def load(name: str, offset: int) -> torch.Tensor:
    """An IDX file's content as a tensor of bytes."""
    return torch.from_numpy(np.frombuffer(gzip.open(MNIST / name).read(), np.uint8, offset=offset).copy())


def train(rank: int, processes: int, batch: int, epochs: int, port: int, out: str) -> None:
    """Train as one process; rank 0 writes the result."""
    torch.manual_seed(0)
    torch.set_num_threads(1 if processes > 1 else 2)
    images = load("train-images-idx3-ubyte.gz", 16).reshape(-1, 784)
    labels = load("train-labels-idx1-ubyte.gz", 8).long()
    model = torch.nn.Sequential(torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    if processes > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=processes)
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_of = torch.nn.CrossEntropyLoss()
    seconds = []
    for epoch in range(epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        began = time.perf_counter()
        correct = torch.zeros((), dtype=torch.long)
        for start in range(0, len(images), batch):
            share = order[start : start + batch][rank::processes]
            x, y = images[share].float() / 255, labels[share]
            optimizer.zero_grad(set_to_none=True)
            predicted = model(x)
            loss_of(predicted, y).backward()
            optimizer.step()
            correct += (predicted.argmax(1) == y).sum()
        seconds.append(time.perf_counter() - began)
    if processes > 1:
        dist.barrier()  # who leaves while another still talks to it makes that one abort
        dist.destroy_process_group()
    if rank == 0:
        Path(out).write_text(json.dumps({"samples_per_second": len(images) / statistics.median(seconds[1:])}))


def main() -> None:
    """Parse, start the processes, print."""
    processes, batch, epochs = map(int, sys.argv[1:4])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    out = f"/tmp/torch-fit-{os.getpid()}.json"
    if processes == 1:
        train(0, 1, batch, epochs, port, out)
    else:
        mp.spawn(train, (processes, batch, epochs, port, out), nprocs=processes)
    print(Path(out).read_text())
    Path(out).unlink()


if __name__ == "__main__":
    main()
