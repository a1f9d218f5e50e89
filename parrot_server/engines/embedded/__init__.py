"""The embedded engine: paged attention on OpenVINO with our own step loop, in a process of its own.

EmbeddedEngine (engine.py)          the engine as the server uses it, on asyncio
EngineProcess (engine_process.py)   the process: messages to and from it, its end
------ pipe (messages.py) ------
Child (child.py)                    reads, tokenises, answers
Intake (intake.py)                  a request becomes a Sequence (sequence.py)
StepLoop (step_loop.py)             who computes what in each step
KvCache (kv_cache.py)               seats, prefixes (prefix_tree.py, block_pool.py), pins, host copies (host_store.py)
PagedModel (paged_model.py)         the compiled model and its KV memory
"""

from parrot_server.engines.embedded.engine import EmbeddedEngine

__all__ = ["EmbeddedEngine"]
