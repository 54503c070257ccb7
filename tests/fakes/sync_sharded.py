"""One rank with a sharded policy that shares a server with the other; a process of `test_vllm_weights.py`."""

import os
import traceback
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from rpl.core.errors import SamplerError
from rpl.policy.loading import load_policy
from rpl.policy.weights.sharding import shard
from rpl.sampling.vllm.sampler import VLLMSampler


def sync(rank, port, url, connection):
    """Sends what the sampler did; waits for a word, changes the weights, and sends how it failed then."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    try:
        _sync(url, connection)
    except BaseException:
        connection.send(traceback.format_exc())
        raise


def _sync(url, connection):
    dist.init_process_group("gloo")
    model, tokenizer = load_policy("tiny")
    shard(model, init_device_mesh("cpu", (2, 1), mesh_dim_names=("data_parallel", "tensor_parallel")))
    sampler = VLLMSampler(server_urls=[url], dtype="float32", max_gap=1e-4)
    sampler.connect(model, tokenizer)
    sampler.connect(model, tokenizer)
    connection.send(f"synced {sampler.syncs}, gap {'small' if sampler.last_gap < 1e-4 else sampler.last_gap}")
    connection.recv()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    try:
        sampler.connect(model, tokenizer)
    except SamplerError as error:
        connection.send(str(error))
    dist.destroy_process_group()
