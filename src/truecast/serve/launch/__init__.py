"""How a checkpoint is started on given GPUs: every flag and variable of the engine, each with its reason."""
