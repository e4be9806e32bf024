"""What a cast costs: a layer-streamed comparison of two checkpoints, with error bars."""
