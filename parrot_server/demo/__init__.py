"""The demos: two programs written with the SDK as a user would, real documents to run them on, and what they report.

documents.py    the texts: topics of Python's own reference, or the files of a folder
map_reduce.py   one call a page, and one that reads them all
chain.py        calls that each read everything before them
report.py       the answer, and what each call took
"""
