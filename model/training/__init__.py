"""Training: from text to a trained model. Read train.py first, then trainer.py for the loop and the step.

The files, roughly in the order in which a run uses them:

config.py          every setting of a run: its help, range and default
run.py             where the values come from: defaults, file and flags, or the resumed run
run_text.py        the text of a run as tokens, prepared or found again from the run directory
conversations.py   conversations as tokens, with what the loss counts
choice.py          time models of several sizes on this machine, and choose what the user left open
estimate.py        parameters and memory of a run, before anything is allocated
run_directory.py   make and lock the run directory; weights, optimizer state and progress to resume from
metrics.py         metrics.jsonl and score.json: what a run has measured; runs.py shows it
trainer.py         the training loop and one step: forward, loss, backward, clip, optimizer; the validation
optimizer.py       Muon, AdamW, and the learning rate schedule
distributed.py     several processes: DDP and FSDP
console.py         the terminal: announcement, progress bar, samples, Ctrl-C, summary
"""
