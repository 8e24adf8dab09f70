"""Everything around the decode loop of generation.py: prompts, sampling, streaming, chat, and scoring.

options.py         the flags that generate.py, chat.py and evaluate.py share: for the model, and for sampling
opened_model.py    the model that they choose: opened first, and loaded later
batches.py         prompts in batches: token ids (generate), or texts with stop strings and their end (continue_samples)
endless.py         texts longer than the context
prompts.py         the prompts of generate.py, from flags, files and stdin
sampling.py        from logits to a token
chat.py            messages to tokens, by the chat template of an instruct checkpoint
template.py        compiles a chat template with jinja2
examples.py        conversations to train on and to score: their tokens, and which of them count
conversation.py    a conversation in turns, with one cache
terminal.py        user input: line editing, commands
scoring.py         how well a model predicts texts, for evaluate.py
"""
