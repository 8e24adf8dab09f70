"""Text in, token ids out. Nothing in this room needs torch.

tokenizer.py    SentencePiece, and the names of the other tokenizers
trainer.py      a new SentencePiece tokenizer from any text
stream.py       text as the tokens come, equal to the text decoded at once
hf.py           Hugging Face's tokenizer.json
llama2c.py      llama2.c's tokenizer.bin
sources.py      files, directories, globs, stdin, URLs: documents
corpus.py       the text that every CPython brings along
dataset.py      documents to token ids on disk; batches of them
"""
