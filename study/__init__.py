"""The course about RoPE, ``python -m study TOPIC``: each topic is a function whose parameters are its options.

__main__.py            the program
topics.py              the topics by name, and their options, from the signatures of their functions
topic.py               shared by all topics: tables, pictures, opening a trained model and its text
chinese.py             tables and pictures in Chinese, with the phrases of chinese.toml
word_order.py          order: attention without positions ignores word order
rotation_examples.py   rotate and relative: five vectors rotated; one score at many positions
arrows.py              pairs drawn as arrows and arcs
clocks.py              the frequencies of a head as clocks
lookback.py            a head that looks five tokens back, by its W_q and W_k
decay.py               scores over distance
form_table.py          the ways to write RoPE, side by side
trace.py               one attention call, line by line
kv_cache.py            cache: the slots that each forward call writes and reads
attention_maps.py      the attention weights of a trained model, with and without rotation
extrapolate.py         a trained model past its trained length: scaled, in windows, with a cache that evicts old tokens
compare.py             position encodings trained side by side (scheme_training.py trains one of them)
exercise.py            files with docstrings and no bodies, for the reader to complete; check/ judges them
page/                  one HTML file that runs the reader's model
positions/             other position encodings
check/                 judges the reader's own functions

This file imports nothing, because __main__.py must set environment variables before PyTorch is imported.
"""
