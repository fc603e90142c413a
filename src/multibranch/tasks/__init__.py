"""Which data, model, loss, decoding and metric belong together, task by task.

translation trains (code too) and evaluation scores; code generates programs and scores them;
understanding fine-tunes encoders, with its configuration, data, GLUE's files, tokens, loop and the
classifier that comes of it in understanding_*; demo shows the whole path, with demo_report its
page.
"""
