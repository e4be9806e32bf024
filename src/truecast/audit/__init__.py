"""What a cast costs: documents, layer-streamed forward passes, exact KL and its error bars."""
