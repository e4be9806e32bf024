"""Bodies of requests, as OpenAI's API and the open engines' additions to it have them."""

from __future__ import annotations

from reprlib import repr as short
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, model_validator

from truecast.models.kimi_k3.chat import EFFORTS

MAX_CHOICES = 64
MAX_TOP = 20
MAX_PROMPT_TOP = 1000
_NOT_HERE = ("frequency_penalty", "presence_penalty", "logit_bias", "suffix", "functions", "function_call", "audio",
             "top_k", "min_p", "repetition_penalty", "guided_json", "structured_outputs")  # fmt: skip
_AS_IF_ABSENT: dict[str, tuple[object, ...]] = {"top_k": (-1, 0), "repetition_penalty": (1, 1.0)}

# lists end at their first fault: a report of each of a million would take minutes and gigabytes
Token = Annotated[int, Field(strict=True, ge=0)]
Tokens = Annotated[list[Token], Field(min_length=1, fail_fast=True)]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
Count = Annotated[int, Field(strict=True, ge=1, le=1 << 31)]
Text = Annotated[StrictStr, Field(min_length=1)]


class StreamOptions(BaseModel):
    """What a stream adds."""

    include_usage: StrictBool = False


class _Request(BaseModel):
    """What both kinds of request share. Fields that would change the result and are not built are refused."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: StrictStr
    n: Annotated[int, Field(strict=True, ge=1, le=MAX_CHOICES)] = 1
    temperature: Annotated[float, Field(strict=True, ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(strict=True, gt=0, le=1)] | None = None
    seed: StrictInt | None = None
    stop: Text | Annotated[list[Text], Field(max_length=16, fail_fast=True)] | None = None
    stream: StrictBool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: StrictBool | None = False

    @model_validator(mode="after")
    def _refuse(self) -> _Request:
        for name in _NOT_HERE:
            value = (self.model_extra or {}).get(name)
            if value and value not in _AS_IF_ABSENT.get(name, ()):
                raise ValueError(f"{name} is not built into this server")
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options goes with stream")
        return self

    @property
    def stops(self) -> list[str]:
        """Stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def with_usage(self) -> bool:
        """Does a stream end with the usage?"""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(_Request):
    """``/v1/completions``. ``logprobs`` is how many alternatives to give with each token, 0 for none but itself.

    ``prompt_logprobs`` is the same for the tokens of the prompt, by id, in the form of vLLM.
    """

    prompt: (
        StrictStr
        | Tokens
        | Annotated[list[StrictStr], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)]
        | Annotated[list[Tokens], Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)]
    )
    max_tokens: Annotated[int, Field(strict=True, ge=0, le=1 << 31)] | None = None
    echo: StrictBool | None = False
    logprobs: Annotated[int, Field(strict=True, ge=0, le=MAX_TOP)] | None = None
    prompt_logprobs: Annotated[int, Field(strict=True, ge=0, le=MAX_PROMPT_TOP)] | None = None

    @model_validator(mode="after")
    def _whole_only(self) -> CompletionRequest:
        if self.prompt_logprobs is not None and self.stream:
            raise ValueError("prompt_logprobs does not go with stream")
        return self


class TemplateOptions(BaseModel):
    """``chat_template_kwargs``: what Kimi-K3's format can be asked for."""

    model_config = ConfigDict(extra="forbid")

    thinking: StrictBool | None = None
    enable_thinking: StrictBool | None = None
    thinking_effort: Literal["low", "high", "max"] | None = None


class NamedTool(BaseModel):
    """The name in a ``tool_choice``."""

    name: Text


class NamedChoice(BaseModel):
    """A ``tool_choice`` that names a function."""

    type: Literal["function"]
    function: NamedTool


class ChatRequest(_Request):
    """``/v1/chat/completions``."""

    messages: Annotated[Objects, Field(min_length=1, fail_fast=True)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    tools: Objects | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedChoice | None = None
    response_format: dict[str, Any] | None = None
    logprobs: StrictBool | None = False
    top_logprobs: Annotated[int, Field(strict=True, ge=0, le=MAX_TOP)] | None = None
    reasoning_effort: StrictStr | None = None
    chat_template_kwargs: TemplateOptions | None = None

    @model_validator(mode="after")
    def _agree(self) -> ChatRequest:
        if self.reasoning_effort is not None and self.reasoning_effort not in EFFORTS:
            raise ValueError(f"reasoning_effort {short(self.reasoning_effort)} is none of {', '.join(EFFORTS)}")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs goes with logprobs")
        for tool in self.tools or ():
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise ValueError("a tool has no function with a name")
        if isinstance(self.tool_choice, NamedChoice) and not self.chosen_tools:
            raise ValueError("tool_choice names a function that is not among the tools")
        if self.tool_choice == "required" and not self.tools:
            raise ValueError("tool_choice required needs tools")
        return self

    @property
    def chosen_tools(self) -> list[dict[str, Any]] | None:
        """The tools to declare: only the one that ``tool_choice`` names, if it does."""
        if not isinstance(self.tool_choice, NamedChoice):
            return self.tools
        name = self.tool_choice.function.name
        return [t for t in self.tools or () if t["function"]["name"] == name]

    @property
    def choice(self) -> str | None:
        """``auto``, ``none``, ``required`` or None."""
        return "required" if isinstance(self.tool_choice, NamedChoice) else self.tool_choice

    @property
    def thinking(self) -> bool:
        """Does the model think first? It does unless told otherwise."""
        options = self.chat_template_kwargs or TemplateOptions()
        return options.thinking is not False and options.enable_thinking is not False

    @property
    def effort(self) -> str | None:
        """How much to think, if said."""
        options = self.chat_template_kwargs
        return self.reasoning_effort or (options.thinking_effort if options else None)

    @property
    def limit(self) -> int | None:
        """Tokens to make at most, if said."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
