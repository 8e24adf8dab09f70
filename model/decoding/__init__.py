"""What surrounds the decode loop of generation.py: how tokens are read and drawn, and how texts reach people.

settings.py        how the next token is drawn, checked without torch
sampling.py        from logits to a token
reading.py         how the network is fed, with the cache and without
padding.py         a cache for prompts of unequal length
twins.py           the same network, made over for few rows
compiled.py        the decoding step through torch.compile
prompts.py         where prompts come from
stop.py            where a text ends because of what it says
samples.py         tokens to texts, in batches
conversation.py    a text in turns
meter.py           how fast it went
"""
