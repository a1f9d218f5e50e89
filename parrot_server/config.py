"""The server's settings, from the environment (`PARROT_PORT=9000`) or from the command line."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from parrot_server.core.settings import SchedulerSettings
from parrot_server.runtime import RuntimeSettings
from parrot_server.timeouts import Timeouts

NOT_OURS = ("url", "api_key", "cache")  # other variables of this prefix: of clients, and where models are kept


def unknown_settings(environment: Mapping[str, str]) -> list[str]:
    """What is wrong with variables that look like settings and are none, one sentence each."""
    prefix, known = "PARROT_", [*Settings.model_fields, *NOT_OURS]
    told = []
    for variable in sorted(environment):
        name = variable.removeprefix(prefix).lower()
        if variable.startswith(prefix) and name not in known:
            near = get_close_matches(name, known, 1)
            told.append(f"{variable} is no setting" + (f": did you mean {prefix}{near[0].upper()}?" if near else ""))
    return told


def _split(value: object) -> object:
    return tuple(filter(None, (part.strip() for part in value.split(",")))) if isinstance(value, str) else value


Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Addresses = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
_CORE = SchedulerSettings()
_TIMEOUTS = Timeouts()


class Settings(BaseSettings):
    """What an operator may set.

    Args:
        host, port: where to listen; port 0 takes a free one.
        engine: what runs beside this server on its own; None: the embedded engine (`llamacpp` where only that is installed),
            unless other servers are named.
        sglang, openai: addresses of servers that are used as engines, with commas between them.
        launch_sglang: a model, by id or folder, for which a SGLang server is started and kept up.
        engine_key: sent to those servers as a bearer token.
        tokenizer: folder of the Hugging Face tokenizer of the model that they serve; with it prompts are exact.
        model: for the engine on this machine, a name or a path, for `openai` the name that it serves; empty: the usual one.
        threads, context_tokens, kv_tokens, mode: of the embedded engine, see `engines/embedded/settings.py`; `llamacpp` knows
            threads and kv_tokens.
        templates: a folder of function files that are registered at start.
        api_keys: keys that let in, each with the tenant whose it is; empty: everybody is let in.
        salt_secret: from it the namespaces of tenants' caches are derived; servers that share engines share it.
        policy: how calls are ordered, see `core/policy.py`.
        journal: a new file to record all events in; None: nowhere.
        body_bytes: a request's body may be so long. 16 MiB hold a book of ten million characters, or 10,000 calls.
        value_bytes: a value may be so long, in UTF-8, sent or generated. 4 MiB are about a million tokens, as many as the
            longest context that models have today.
        calls_per_program, depth: a program may have so many calls, and so many on its longest path.
        program_bytes: the values of a program may take about so much memory in all.
        functions: so many can be registered; those that come with a program do not count.
        retained_programs, retained_bytes, retain_s: so many ended programs can still be read, as long as they take no more
            memory, for so long.
        wait_s: a request may wait so long for a value.
        write_timeout_s: a reader of a stream who takes nothing for so long is sent away.
        log_entries: so many events of a program are kept for those who look on.
        start_s, first_token_s, idle_s: how long engines may take, see `Timeouts`.
        shutdown_s: how long open requests may take when the server stops.
    """

    model_config = SettingsConfigDict(env_prefix="PARROT_", extra="ignore", frozen=True)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    engine: Literal["embedded", "llamacpp", "fake", "none"] | None = None
    sglang: Addresses = ()
    openai: Addresses = ()
    launch_sglang: str = ""
    engine_key: str = Field(default="", repr=False)
    tokenizer: Path | None = None
    model: str = ""
    threads: Positive | None = None
    context_tokens: Positive | None = None
    kv_tokens: Positive | None = None
    mode: Literal["fast", "exact"] = "fast"
    templates: Path | None = None
    api_keys: dict[str, str] = Field(default={}, repr=False)
    salt_secret: str = Field(default="", repr=False)
    policy: str = _CORE.policy
    journal: Path | None = None
    body_bytes: Positive = 16 * 2**20
    value_bytes: Positive = 4 * 2**20
    calls_per_program: Positive = _CORE.calls_per_program
    depth: Positive = _CORE.depth
    program_bytes: Positive = _CORE.program_bytes
    functions: Positive = 10_000
    retained_programs: Positive = _CORE.retained_programs
    retained_bytes: Positive = _CORE.retained_bytes
    retain_s: Seconds = _CORE.retain_s
    wait_s: Seconds = 600.0
    write_timeout_s: Seconds = 30.0
    log_entries: Positive = 10_000
    start_s: Seconds = _TIMEOUTS.start_s
    first_token_s: Seconds = _TIMEOUTS.first_token_s
    idle_s: Seconds = _TIMEOUTS.idle_s
    shutdown_s: Seconds = 5.0

    def runtime(self) -> RuntimeSettings:
        """The part that the runtime and the core read."""
        return RuntimeSettings(
            scheduler=SchedulerSettings(
                policy=self.policy,
                calls_per_program=self.calls_per_program,
                depth=self.depth,
                program_bytes=self.program_bytes,
                retained_programs=self.retained_programs,
                retained_bytes=self.retained_bytes,
                retain_s=self.retain_s,
            ),
            timeouts=Timeouts(start_s=self.start_s, first_token_s=self.first_token_s, idle_s=self.idle_s),
            value_bytes=self.value_bytes,
            log_entries=self.log_entries,
            salt_secret=self.salt_secret,
            several_tenants=len(set(self.api_keys.values())) > 1,
        )
