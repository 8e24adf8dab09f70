"""Training: from text to a trained model. Read config.py for the settings, and trainer.py for the training step.

config.py          every setting of a run, and its range
resolve.py         defaults, file and flags to a plan: a new run, or one to resume
fine_tuning.py     settings that fine-tuning takes from the model it starts from
plan.py            a resolved and checked run, before anything of it is written
prepared_text.py   the text of a plan as tokens
own_text.py        the text of an earlier run, found from its run directory
estimate.py        parameters, memory and disk space of a run, before anything is allocated
sizing.py          choose a model for the text, the speed of the machine and the minutes
choice.py          fill in settings that the user left open; --plan, which shows the choice and saves it
run.py             carry out a plan
trainer.py         the training loop, and the step: forward, loss, backward, clip, optimizer
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
