"""Launch configurations for `accelerate launch`: one process, FSDP2, DeepSpeed."""
