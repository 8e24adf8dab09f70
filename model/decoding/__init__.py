"""Everything around the decode loop of generation.py: prompts, the network that runs, sampling, streaming, chat.

batches.py         generate: prompts of unequal length as one batch, with its cache
endless.py         texts longer than the context
network.py         the decoding network: the same weights, fast for one token of each text, optionally compiled
sampling.py        from logits to a token
prompts.py         prompts from flags, a file or a pipe
samples.py         from tokens to text, stop strings, and tokens per second
chat.py            messages to tokens, by the chat template of an instruct checkpoint
template.py        renders a chat template in a separate process
conversation.py    a conversation in turns, with one cache
terminal.py        user input: line editing, commands
"""
