"""Twenty notes on twenty pages, each written with all pages and notes before it in view.

parrot run examples/chain.py    (or: python examples/chain.py)
"""

from pydoc_data.topics import topics

from parrot_sdk import In, Program, Variable, function

QUESTION = "Explain this page to a beginner in one long paragraph."


@function(template="../templates/continue_notes.md")
def continue_notes(so_far: In[list[str]]) -> str: ...


text = topics["types"].strip()
pages = [text[:7000], *(text[at : at + 700] for at in range(7000, 7000 + 19 * 700, 700))]

with Program("chain") as program:  # 20 calls, sent in one request
    history: list[str | Variable[str]] = []
    for step, page in enumerate(pages):
        history.append(f"{page}\n\n{QUESTION}")
        note = continue_notes.using(seed=step)(history)  # a list in one hole: its elements are joined
        history.append(note)

print(note.get())
