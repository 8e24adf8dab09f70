"""Text in, token ids out.

sources.py              files, folders, globs, stdin, URLs: documents
readers.py              one file: its documents in pieces, or which encoding it is in and how to convert it
tables.py               files whose documents are fields: JSON lines, a JSON array, CSV and TSV
separators.py           what separates the documents inside a text, recognized in a sample of it
python_docs.py          the text that every CPython brings along
train_tokenizer.py      a new SentencePiece tokenizer from any text
tokenizer.py            what a tokenizer is, and SentencePiece's
hf_tokenizer.py         Hugging Face's tokenizer.json, read and written
llama2c_tokenizer.py    llama2.c's tokenizer.bin, read and written
token_cache.py          where tokens and tokenizers are kept, and what no run uses any more
prepare.py              documents to token ids on disk
dataset.py              batches of them
"""
