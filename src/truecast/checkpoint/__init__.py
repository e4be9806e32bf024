"""Checkpoints as files: safetensors headers, sharded sources, the streaming shard writer, index, journal."""
