"""One rank of a sharded run with an engine of its own; started by `test_vllm_real.py`."""

import copy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

sys.path.insert(0, str(Path(__file__).parent))
from test_vllm_real import ENGINE, check_against_the_model, perturb

from rpl.policy.loading import load_policy
from rpl.policy.weights.sharding import gathered, shard
from rpl.sampling.vllm.sampler import VLLMSampler


def tell(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    whole, tokenizer = load_policy(sys.argv[1])
    model = copy.deepcopy(whole)
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data_parallel", "tensor_parallel"))
    shard(model, mesh)
    sampler = VLLMSampler(**ENGINE, gpu_memory_utilization=0.2)
    sampler.connect(model, tokenizer)
    tell(f"rank {dist.get_rank()}: gap {sampler.last_gap:.2e} after the first synchronisation")
    check_against_the_model(sampler, whole, tokenizer)
    perturb(whole)
    perturb(model)
    before = sampler.measure_gap(model)
    sampler.connect(model, tokenizer)
    tell(f"rank {dist.get_rank()}: gap {before:.4f} before, {sampler.last_gap:.2e} after the second")
    assert before > 0.05
    with gathered(model):
        check_against_the_model(sampler, whole, tokenizer)
    dist.barrier()
    tell("both ranks agree")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
