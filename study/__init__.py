"""The course about RoPE, ``python -m study TOPIC``: each topic is a function whose parameters are its options.

topics.py              the topics: the step of the walk, the module and a sentence of each
program.py             runs one: its options are the parameters of the topic's function
topic.py               shared by all topics: tables, pictures, opening a trained model and its text
chinese.py             tables and pictures in Chinese, with the phrases of chinese.toml
arrows.py              pairs drawn as arrows and arcs
scheme_training.py     trains a small model with one of the position encodings
page/                  one HTML file that runs the reader's model
article/               the walk as web pages; its live figures
positions/             other position encodings
check/                 judges the reader's own functions

This file imports nothing, because __main__.py must set environment variables before PyTorch is imported.
"""
