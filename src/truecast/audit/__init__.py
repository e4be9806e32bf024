"""What a cast costs in nats per token: the layer-streamed audit and its statistics."""
