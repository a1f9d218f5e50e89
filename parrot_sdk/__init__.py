"""The Parrot client SDK: LLM programs as ordinary Python, sent to the server as graphs.

from parrot_sdk import In, Program, function

@function(max_tokens=250)
def summarize(chapter: In[str]) -> str:
    '''Summarise the chapter below in three sentences.

    {{ chapter }}'''

with Program("book") as program:
    short = [summarize(chapter) for chapter in chapters]
print(short[0].get())
"""

from parrot_sdk.client import Client
from parrot_sdk.errors import (
    CallCancelled,
    CallFailed,
    FunctionError,
    ParrotError,
    ProgramError,
    RequestRefused,
    ServerGone,
    StreamReset,
    TemplateError,
    UnresolvedError,
    WaitTimeout,
)
from parrot_sdk.function import Function, function
from parrot_sdk.holes import In, Out
from parrot_sdk.program import Program
from parrot_sdk.variable import Variable

__all__ = [
    "CallCancelled",
    "CallFailed",
    "Client",
    "Function",
    "FunctionError",
    "In",
    "Out",
    "ParrotError",
    "Program",
    "ProgramError",
    "RequestRefused",
    "ServerGone",
    "StreamReset",
    "TemplateError",
    "UnresolvedError",
    "Variable",
    "WaitTimeout",
    "function",
]
