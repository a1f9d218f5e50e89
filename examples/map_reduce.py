"""Explain sixteen pages in a sentence each, all at once, and describe the book that they make.

parrot run examples/map_reduce.py    (or: python examples/map_reduce.py)
"""

from pydoc_data.topics import topics

from parrot_sdk import In, Program, function

NAMES = ["objects", "types", "numeric-types", "typesseq", "typesmapping", "strings", "formatstrings", "execmodel"]
NAMES += ["assignment", "comparisons", "calls", "function", "try", "import", "attribute-access", "debugger"]


@function(max_tokens=60, temperature=0.3, seed=3, stop=[". ", ".\n", "\n\n"], keep_stop=True)
def explain_page(page: In[str]) -> str:
    """
    Here is a page of a book.

    {{ page }}

    In one sentence, what does this page of the book explain?
    """


@function(template="../templates/describe_book.md")
def describe_book(explanations: In[list[str]]) -> str: ...


with Program("map-reduce") as program:
    pages = [topics[name].strip()[:4000] for name in NAMES]
    answer = describe_book(explain_page.map(pages))  # 17 calls; they are sent in one request

print(answer.get())
