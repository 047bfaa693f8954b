"""One rank of a trainer whose weights are gathered by collectives: `python rank.py RANK RENDEZVOUS_FILE ENGINE_URL`.

Rank 0 pushes and prints what became of it, every rank prints how many tensors it took part in.
"""

import asyncio
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from miles_sync.push import NoEngineError, WeightPusher
from miles_sync.receivers.endpoint import EngineEndpoint
from miles_sync.transports import SharedMemoryConfig

NUM_TENSORS = 12


def weights(rank, gathered):
    for number in range(NUM_TENSORS):
        shard = torch.full((4, 8), float(10 * number + rank))
        shards = [torch.empty_like(shard) for _ in range(2)]
        dist.all_gather(shards, shard)
        gathered.append(number)
        yield f"layer.{number}", torch.cat(shards)


def main(rank, rendezvous, url):
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2, timeout=timedelta(seconds=30)
    )
    gathered = []
    if rank == 0:
        pusher = WeightPusher(SharedMemoryConfig(bucket_bytes=600), [EngineEndpoint(url)])
        try:
            report = asyncio.run(pusher.push(weights(rank, gathered), 1))
            print("acknowledged", *report.acknowledged)
        except NoEngineError:
            print("no engine")
    else:
        for _ in weights(rank, gathered):
            pass
    print("gathered", len(gathered))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
