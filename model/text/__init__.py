"""Text in, token ids out.

sources.py              files, folders, globs, stdin
readers.py              one file: the documents of a text, or the texts or conversations of its rows
rows.py                 what becomes of each field of a row that is a conversation
tables.py               the rows of CSV and TSV files, and of Parquet and Arrow files by pyarrow
python_docs.py          the documentation bundled with CPython, the default training text
train_tokenizer.py      train a SentencePiece tokenizer on any text
tokenizer.py            the tokenizer interface, and SentencePiece
hf_tokenizer.py         Hugging Face's tokenizer.json, read and written
sentencepiece_model.py  the kinds of pieces in a tokenizer.model, and a new one
tokenize.py             documents to token ids on disk, divided into training and validation text
dataset.py              these tokens, and batches of them
"""
