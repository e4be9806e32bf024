"""What a deployment will do before it is started: memory on each GPU, tokens a second, time until ready."""
