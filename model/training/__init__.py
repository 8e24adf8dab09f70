"""From text to a trained model. Read config.py for what can be set, and trainer.py for the one training step.

config.py          every setting of a run, and its range
resolve.py         defaults, file and flags to a plan: a new run, or one to go on with
fine_tuning.py     the settings that the model to start from decides
plan.py            a run that is resolved and checked, and of which nothing is written yet
prepared_text.py   a plan's text as tokens
own_text.py        the text of a run, found again from its directory
estimate.py        parameters, memory and disk of a run, before anything is allocated
sizing.py          which model to train, from the text, the machine's speed and the minutes
choice.py          what the user left open, chosen; --plan, which shows the choice and keeps it for the run
run.py             the plan, carried out
trainer.py         the training loop, and the step: forward, loss, backward, clip, optimizer
optimizer.py       Muon and AdamW, and the learning rate over a run
evaluation.py      the loss, its mean on validation text, and what guessing costs
distributed.py     several processes as one: DDP and FSDP
run_directory.py   the lock, the latest state, metrics.jsonl
console.py         the terminal: progress bar, samples, summary
pace.py            how long the run will still take
summary.py         what is said of a run before and after it
plot.py            loss.png
signals.py         Ctrl-C and SIGTERM end a run after a step
"""
