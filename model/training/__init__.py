"""Training: from text to a trained model. Read config.py for the settings, and trainer.py for the training step.

The files, roughly in the order in which a run uses them:

config.py          every setting of a run, and its range
resolve.py         combine defaults, file and flags into a plan for a new or a resumed run
fine_tuning.py     settings that fine-tuning takes from the model it starts from
plan.py            the settings of a run, resolved and checked, before any file is written
prepared_text.py   the text of a plan as tokens
run_text.py        the text of an earlier run, found from its run directory
estimate.py        parameters, memory and disk space of a run, before anything is allocated
sizing.py          predict the loss of a run; find the size with the lowest loss, its batch size and learning rates
choice.py          fill in what the user left open, with the help of sizing.py; --plan shows and saves it
run.py             carry out a plan: write the run directory, train, print the summary
trainer.py         the training loop and one step: forward, loss, backward, clip, optimizer
optimizer.py       Muon, AdamW, and the learning rate schedule
evaluation.py      the loss, its mean on the validation text, and the losses of n-gram models
distributed.py     several processes: DDP and FSDP
run_directory.py   the lock, the latest state, metrics.jsonl
console.py         the terminal: progress bar, samples, summary
pace.py            estimate the remaining time
summary.py         the texts printed before and after a run
plot.py            loss.png
signals.py         Ctrl-C and SIGTERM end a run after the current step
"""
