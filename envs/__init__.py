"""Streams, cluster state, metrics and the simulator; importing it registers the Gymnasium environments."""

from gymnasium.envs.registration import register, registry

if "dalton/StreamPartition-v0" not in registry:
    register(
        id="dalton/StreamPartition-v0",
        entry_point="dalton.envs.stream_partition:StreamPartitionEnv",
        vector_entry_point="dalton.envs.stream_partition:StreamPartitionVectorEnv",
    )
    register(
        id="dalton/MicroBatchPartition-v0",
        entry_point="dalton.envs.micro_batch:MicroBatchPartitionEnv",
    )
