"""The four things nano-K3 learns to do, one conversation at a time: add, multiply, echo an identifier, call a tool.

What a task asks is named by a key (the two numbers, the identifier, the call's arguments). A key's hash alone decides
whether it is held out, so training and held-out items never share a content.
"""

from __future__ import annotations

import hashlib
import json
import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HELD_OUT_IN = 20

MODES: tuple[tuple[bool, str | None], ...] = ((True, "low"), (True, "high"), (True, "max"), (False, None))
"""Thinking and its effort."""

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's request and the messages that answer it. ``expect`` says what a judge looks for, at each stage.

    ``stages[i]`` is what is expected of the i-th assistant message among ``answers``.
    """

    task: str
    key: str
    user: str
    answers: list[Message]
    stages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


def held_out(key: str) -> bool:
    """Is this content kept out of training?"""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % HELD_OUT_IN == 0


def turn(rng: random.Random, task: str, mode: tuple[bool, str | None], wanted_held_out: bool) -> Turn:
    """Draw until the content is held out, or is not, as wanted."""
    while True:
        drawn = TASKS[task](rng, mode)
        if held_out(drawn.key) == wanted_held_out:
            return drawn


def _answer(mode: tuple[bool, str | None], think: dict[str, str], content: str, **more: Any) -> Message:
    """An assistant message; ``think`` has a text for each effort."""
    thinking, effort = mode
    message: Message = {"role": "assistant", "content": content, **more}
    if thinking:
        assert effort is not None
        message["reasoning_content"] = think[effort]
    return message


def add(rng: random.Random, mode: tuple[bool, str | None]) -> Turn:
    """Two numbers of up to three digits; with effort, column by column; with most effort, checked."""
    digits = rng.choice((1, 2, 2, 3, 3, 3))
    a, b = rng.randrange(10**digits), rng.randrange(10 ** rng.randint(1, digits))
    if rng.random() < 0.5:
        a, b = b, a
    steps, carry = [], 0
    for place in range(max(len(str(a)), len(str(b)))):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y + carry
        parts = f"{x} + {y} + {carry}" if carry else f"{x} + {y}"
        carry = total // 10
        steps.append(f"{parts} = {total}" + (f", carry {carry}" if carry else ""))
    high = "\n".join([*steps, f"{a} + {b} = {a + b}"])
    think = {"low": "", "high": high, "max": f"{high}\nCheck: {a + b} - {b} = {a}. Correct."}
    user = rng.choice(
        ("What is {a} + {b}?", "{a} + {b}", "Add {a} and {b}.", "How much is {a} plus {b}?", "Compute {a} + {b}.",
         "What is the sum of {a} and {b}?", "{a}+{b}=", "Please add {a} and {b}.")
    ).format(a=a, b=b)  # fmt: skip
    low, large = sorted((a, b))
    return Turn(
        "add", f"add {low} {large}", user, [_answer(mode, think, f"{a} + {b} = {a + b}")],
        [{"kind": "number", "value": a + b}],
    )  # fmt: skip


def multiply(rng: random.Random, mode: tuple[bool, str | None]) -> Turn:
    """Up to two digits times one digit: tens, ones, their sum. Without a think channel the answer shows the two parts."""
    a, b = rng.randint(2, 99), rng.randint(2, 9)
    tens, ones, product = a // 10 * 10, a % 10, a * b
    parts = [f"{part} * {b} = {part * b}" for part in (tens, ones) if part]
    split = f"{tens * b} + {ones * b}" if tens and ones else ""
    high = "\n".join([*parts, *([f"{split} = {product}"] if split else [])])
    think = {"low": split, "high": high, "max": f"{high}\nCheck: {product} / {b} = {a}. Correct."}
    first, second = (a, b) if rng.random() < 0.5 else (b, a)
    user = rng.choice(
        ("What is {a} * {b}?", "{a} * {b}", "Multiply {a} by {b}.", "How much is {a} times {b}?", "Compute {a} x {b}.",
         "What is the product of {a} and {b}?", "{a}*{b}=", "Please multiply {a} and {b}.")
    ).format(a=first, b=second)  # fmt: skip
    shown = f" = {split}" if split and not mode[0] else ""
    return Turn(
        "multiply", f"multiply {a} {b}", user, [_answer(mode, think, f"{first} * {second}{shown} = {product}")],
        [{"kind": "number", "value": product}],
    )  # fmt: skip


def identifier(rng: random.Random) -> str:
    """A random name of one of several kinds."""
    hexadecimal, plain, upper = "0123456789abcdef", string.ascii_lowercase, string.ascii_uppercase

    def some(alphabet: str, low: int, high: int) -> str:
        return "".join(rng.choices(alphabet, k=rng.randint(low, high)))

    kind = rng.randrange(6)
    if kind == 0:
        return some(hexadecimal, 8, 16)
    if kind == 1:
        return some(upper + string.digits, 6, 12)
    if kind == 2:
        return "-".join(some(plain + string.digits, 3, 5) for _ in range(rng.randint(2, 4)))
    if kind == 3:
        return "_".join(some(plain, 3, 7) for _ in range(rng.randint(2, 3))) + some(string.digits, 0, 3)
    if kind == 4:
        return some(upper, 2, 4) + "-" + some(string.digits, 3, 6) + rng.choice(("", "/" + some(upper, 1, 2)))
    return some(plain + upper + string.digits, 8, 14)


def echo(rng: random.Random, mode: tuple[bool, str | None]) -> Turn:
    """Say an identifier again, and nothing else."""
    name = identifier(rng)
    user = rng.choice(
        ("Repeat this identifier: {}", "Echo {}", "Say {} back to me.", "Repeat exactly: {}", "Please repeat {}",
         "Reply with the identifier {} only.", "Return {} unchanged.")
    ).format(name)  # fmt: skip
    high = f"The identifier is {name}"
    think = {"low": "", "high": high, "max": f"{high}\nI repeat it and change nothing."}
    return Turn("echo", f"echo {name}", user, [_answer(mode, think, name)], [{"kind": "text", "value": name}])


@dataclass(frozen=True, slots=True)
class _Use:
    """One use of a tool: its arguments, how the user asks, what the tool says, what the answer is."""

    tool: str
    arguments: dict[str, Any]
    user: str
    result: dict[str, Any]
    final: str
    found: list[str]
    """What the final answer must hold."""


_CITIES = [
    "Oslo",
    "Paris",
    "Rome",
    "Cairo",
    "Lima",
    "Tokyo",
    "Delhi",
    "Berlin",
    "Madrid",
    "Vienna",
    "Dublin",
    "Athens",
    "Lisbon",
    "Prague",
    "Warsaw",
    "Helsinki",
    "Nairobi",
    "Boston",
    "Denver",
    "Austin",
    "Seattle",
    "Toronto",
    "Sydney",
    "Seoul",
    "Bergen",
    "Geneva",
    "Zurich",
    "Munich",
    "Naples",
    "Porto",
    "Quito",
    "Accra",
]
_ROOMS = [
    "kitchen",
    "hall",
    "bedroom",
    "bathroom",
    "office",
    "garage",
    "cellar",
    "attic",
    "library",
    "garden",
    "workshop",
    "nursery",
]
_THINGS = [
    "milk",
    "eggs",
    "bread",
    "tea",
    "rice",
    "soap",
    "salt",
    "oil",
    "paint",
    "wood",
    "nails",
    "rope",
    "paper",
    "ink",
    "wool",
    "lamp",
    "chair",
    "fence",
    "boat",
    "stone",
    "pasta",
    "coffee",
    "laundry",
    "homework",
    "meeting",
    "garden",
    "dentist",
    "train",
]
_MONEY = ["EUR", "USD", "GBP", "JPY", "CHF", "NOK", "SEK", "CAD", "AUD", "INR"]
_WEATHER = ["sunny", "cloudy", "rain", "snow", "fog", "windy", "storm"]
_STATES = ("shipped", "delivered", "packed", "on hold", "returned", "paid")


def _weather(rng: random.Random) -> _Use:
    city, days, degrees, sky = rng.choice(_CITIES), rng.randint(1, 14), rng.randint(0, 39), rng.choice(_WEATHER)
    user = rng.choice(
        ("What will the weather be in {} for the next {} days?", "Weather in {}, {} days", "I need a forecast for {} for {} days.")
    ).format(city, days)  # fmt: skip
    result = {"sky": sky, "degrees": degrees}
    return _Use(
        "get_weather", {"city": city, "days": days}, user, result,
        f"The forecast for {city}: {sky}, {degrees} degrees.", [sky, str(degrees)],
    )  # fmt: skip


def _timer(rng: random.Random) -> _Use:
    minutes, label, ident = rng.randint(1, 180), rng.choice(_THINGS), f"t{rng.randint(100, 9999)}"
    user = rng.choice(
        ("Set a timer of {m} minutes called {x}.", "Start a {m} minute timer named {x}", "Timer for {x}, {m} minutes please.")
    ).format(m=minutes, x=label)  # fmt: skip
    return _Use(
        "set_timer", {"minutes": minutes, "label": label}, user, {"id": ident},
        f"Timer {ident} is set for {minutes} minutes.", [ident],
    )  # fmt: skip


def _order(rng: random.Random) -> _Use:
    ident = f"{''.join(rng.choices(string.ascii_uppercase, k=2))}-{rng.randint(1000, 99999)}"
    status = rng.choice(_STATES)
    user = rng.choice(("Where is order {}?", "What is the status of order {}?", "Look up order {}.")).format(ident)
    return _Use(
        "find_order", {"order_id": ident}, user, {"status": status}, f"Order {ident}: {status}.", [ident, status]
    )


def _light(rng: random.Random) -> _Use:
    room, on, level = rng.choice(_ROOMS), rng.random() < 0.5, rng.randint(1, 100)
    state = "on" if on else "off"
    user = rng.choice(
        ("Turn the light in the {r} {s}, level {v}.", "Light in the {r} {s}, level {v}",
         "Please switch the {r} light {s} at level {v}.")
    ).format(r=room, s=state, v=level)  # fmt: skip
    return _Use(
        "set_light", {"room": room, "on": on, "level": level}, user, {"ok": True},
        f"The light in the {room} is {state}.", [room, state],
    )  # fmt: skip


def _money(rng: random.Random) -> _Use:
    amount, (source, target), got = rng.randint(1, 999), rng.sample(_MONEY, 2), rng.randint(1, 9999)
    user = rng.choice(
        ("Convert {a} {s} to {t}.", "How many {t} are {a} {s}?", "Change {a} {s} into {t} please.")
    ).format(a=amount, s=source, t=target)  # fmt: skip
    return _Use(
        "convert_money", {"amount": amount, "source": source, "target": target}, user, {"amount": got},
        f"{amount} {source} is {got} {target}.", [str(got), target],
    )  # fmt: skip


def _tags(rng: random.Random) -> _Use:
    note, *tags = rng.sample(_THINGS, rng.randint(2, 4))
    listed = tags[0] if len(tags) == 1 else ", ".join(tags[:-1]) + " and " + tags[-1]
    user = rng.choice(("Tag the note {} with {}.", "Add to note {} the tags {}.")).format(note, listed)
    return _Use(
        "tag_note", {"note": note, "tags": tags}, user, {"count": len(tags)},
        f"The note {note} has {len(tags)} new tags.", [note, str(len(tags))],
    )  # fmt: skip


_USES: tuple[Callable[[random.Random], _Use], ...] = (_weather, _timer, _order, _light, _money, _tags)


def _declare(name: str, description: str, **properties: Any) -> dict[str, Any]:
    schema = {key: kind if isinstance(kind, dict) else {"type": kind} for key, kind in properties.items()}
    parameters = {"type": "object", "properties": schema, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


DECLARED = {
    tool["function"]["name"]: tool
    for tool in (
        _declare("get_weather", "Forecast for a city", city="string", days="integer"),
        _declare("set_timer", "Start a timer", minutes="integer", label="string"),
        _declare("find_order", "Status of an order", order_id="string"),
        _declare("set_light", "Switch a light", room="string", on="boolean", level="integer"),
        _declare("convert_money", "Convert an amount", amount="number", source="string", target="string"),
        _declare("tag_note", "Tag a note", note="string", tags={"type": "array", "items": {"type": "string"}}),
    )
}


def tool(rng: random.Random, mode: tuple[bool, str | None]) -> Turn:
    """A call with typed arguments, the tool's result, the answer. One or two other tools may be declared beside it."""
    use = rng.choice(_USES)(rng)
    others = rng.sample([name for name in DECLARED if name != use.tool], rng.choice((0, 0, 1, 2)))
    declared = [DECLARED[name] for name in (use.tool, *others)]
    rng.shuffle(declared)
    said = ", ".join(f"{key} {json.dumps(value)}" for key, value in use.arguments.items())
    first = f"I call {use.tool} with {said}"
    result = json.dumps(use.result)
    call = {
        "id": f"call_{use.tool}_0",
        "type": "function",
        "function": {"name": use.tool, "arguments": json.dumps(use.arguments)},
    }
    answers = [
        _answer(mode, {"low": "", "high": first, "max": f"{first}\nAll arguments are given."}, "", tool_calls=[call]),
        {"role": "tool", "tool_call_id": call["id"], "content": result},
        _answer(
            mode, {"low": "", "high": f"The result is {result}", "max": f"The result is {result}\nI say so."}, use.final
        ),
    ]
    stages = [
        {"kind": "call", "name": use.tool, "arguments": use.arguments},
        {"kind": "contains", "values": use.found},
    ]
    key = f"tool {use.tool} {json.dumps(use.arguments, sort_keys=True)}"
    return Turn("tool", key, use.user, answers, stages, declared)


def talk(rng: random.Random, mode: tuple[bool, str | None]) -> Turn:
    """A greeting, or a question about the model itself. Never held out: there is nothing to generalise."""
    able = "I can add and multiply small numbers, repeat an identifier, and call a tool."
    user, content = rng.choice(
        (("Hello", f"Hello. {able}"), ("Hi!", f"Hello. {able}"), ("Who are you?", f"I am nano-K3, a small test model. {able}"),
         ("What can you do?", able), ("Thanks", "You are welcome."), ("Thank you!", "You are welcome."))
    )  # fmt: skip
    think = {"low": "", "high": "No numbers, no identifier, no tool.", "max": "No numbers, no identifier, no tool."}
    return Turn("talk", f"talk {user}", user, [_answer(mode, think, content)], [{"kind": "text", "value": content}])


TASKS: dict[str, Callable[[random.Random, tuple[bool, str | None]], Turn]] = {
    "add": add, "multiply": multiply, "echo": echo, "tool": tool,
}  # fmt: skip
