"""What surrounds the decode loop of generation.py: the network it runs, how tokens are sampled, how texts reach people.

batches.py         generate: prompts of unequal length as one batch, with its cache
endless.py         texts longer than the context
network.py         the decoding network: the same weights, built for one token of each text, and compiled
sampling.py        from logits to a token
prompts.py         where prompts come from: flags, a file, a pipe
samples.py         from tokens to texts, stop strings, and how fast it went
chat.py            messages as the tokens an instruct checkpoint was trained on: its chat template
template.py        renders such a template, in a process of its own
conversation.py    a text in turns
terminal.py        what a person types: line editing, commands
"""
