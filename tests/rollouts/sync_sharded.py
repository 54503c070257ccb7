"""One rank with a sharded policy that shares a server with the other; started by `test_vllm_weights.py`."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from rpl.errors import SamplerError
from rpl.modules.sharding import shard
from rpl.rollouts.models import load_policy
from rpl.rollouts.vllm_sampler import VLLMSampler


def tell(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main():
    dist.init_process_group("gloo")
    model, tokenizer = load_policy("tiny")
    shard(model, init_device_mesh("cpu", (2, 1), mesh_dim_names=("data_parallel", "tensor_parallel")))
    sampler = VLLMSampler(server_urls=[sys.argv[1]], dtype="float32", max_gap=1e-4)
    sampler.connect(model, tokenizer)
    sampler.connect(model, tokenizer)
    tell(f"synced {sampler.syncs}, gap {'small' if sampler.last_gap < 1e-4 else sampler.last_gap}")
    sys.stdin.readline()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    try:
        sampler.connect(model, tokenizer)
    except SamplerError as error:
        tell(str(error))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
