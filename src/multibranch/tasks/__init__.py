"""Which data, model, loss, decoding and metric belong together, task by task."""
