"""Text in, token ids out.

sources.py              files, folders, globs, stdin, URLs: documents
readers.py              one file, read in chunks, split into documents
tables.py               documents in the fields of JSON lines, JSON arrays, CSV and TSV
separators.py           the separator between documents, recognized in a sample of the text
python_docs.py          the documentation bundled with CPython, the default training text
train_tokenizer.py      train a SentencePiece tokenizer on any text
tokenizer.py            the tokenizer interface, and SentencePiece
hf_tokenizer.py         Hugging Face's tokenizer.json, read and written
sentencepiece_model.py  what a tokenizer.model says about its pieces
token_cache.py          the cache of token ids, tokenizers, downloads and compiled code
prepare.py              documents to token ids on disk
dataset.py              batches of token ids
"""
