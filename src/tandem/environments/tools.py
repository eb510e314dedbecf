"""The world of tools: a move that calls functions is answered with their results, and a move
without calls is the answer, which ends the episode."""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Annotated

from tandem.contracts import at_least, register_environment, unwrap_partial
from tandem.environments.call_formats import given_format, require_format
from tandem.environments.protocol import About, Move, Said
from tandem.environments.tool_calls import (
    Call,
    Refused,
    as_tool_calls,
    check_arguments,
    strip_thoughts,
)
from tandem.environments.tool_results import Result, announces_picture, result_of
from tandem.rewards.result import NOT_HERE
from tandem.types import Prompt

LONGEST = 200  # characters of an expression
DIGITS = 60  # of a number on the way
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


@register_environment("tools")
class Tools:
    """Functions with type hints and Google-style docstrings, whose schemas go to the chat template.

    A class among them is instantiated per episode, and its methods are tools. `calls` is the
    pattern of a call outside thoughts: its group `call` holds JSON of a name and arguments, or its
    groups are `name` and `arguments`; with a single tool they may be the arguments by name. None:
    as the chat template writes calls. `cost` is subtracted per call from the reward of its move. An
    invalid call is answered with the error. A function set to None is left out.
    """

    def __init__(
        self,
        functions: Mapping[str, Callable | None],
        *,
        calls: str | None = None,
        begun: str | None = None,
        cost: Annotated[float, at_least(0)] = 0.0,
    ) -> None:
        self.functions = {name: one for name, one in functions.items() if one is not None}
        self.cost, made = cost, self.make_tools()
        if not made:
            raise ValueError(
                "environment.world.functions has no tool: keep one, or set environment=none"
            )
        self.calls, self.begun = calls, begun
        self.format = given_format(calls, begun, made)

    def describe(self) -> About:
        shows = any(announces_picture(one["function"].get("return")) for one in self.schemas)
        own = {"tools": self.schemas, "cost": self.cost, "gives_rewards": self.cost > 0}
        return About(**own, shows=shows, learn_calls=self.learn_calls)

    def learn_calls(self, written: Iterable[tuple[str, str]]) -> None:
        """Read calls as the chat template writes them, unless a pattern was given. Raises
        ValueError if they cannot be read."""
        if self.calls is None:
            self.format = require_format(written, self.begun)

    @cached_property
    def schemas(self) -> tuple[Mapping, ...]:
        """The JSON schemas of all tools."""
        return tuple(schema_of(tool) for tool in self.make_tools().values())

    def make_tools(self) -> dict[str, Callable]:
        """The tools of one episode by their names. Raises ValueError for two of one name."""
        found: dict[str, Callable] = {}
        for function in self.functions.values():
            owner, _ = unwrap_partial(function)
            of_it = _methods(function()) if inspect.isclass(owner) else [(owner.__name__, function)]
            for name, tool in of_it:
                if name in found:
                    raise ValueError(f"environment.world.functions: two tools are called {name!r}")
                found[name] = tool
        return found

    def begin(self, prompt: Prompt, key: int) -> ToolUse:
        schemas = {one["function"]["name"]: one["function"]["parameters"] for one in self.schemas}
        shows = self.describe().shows
        return ToolUse(world=self, tools=self.make_tools(), schemas=schemas, shows=shows)


def schema_of(tool: Callable) -> Mapping:
    """In JSON, without what is bound to it already. Raises ValueError for a tool that has none."""
    from transformers.utils.chat_template_utils import (  # slow to import
        DocstringParsingException,
        TypeHintParsingException,
        get_json_schema,
    )

    owner, bound = unwrap_partial(tool)
    if inspect.iscoroutinefunction(owner):
        raise ValueError(
            f"environment.world.functions: {owner.__name__} is async; make it a plain function"
        )
    try:
        schema = get_json_schema(owner)
    except (DocstringParsingException, TypeHintParsingException) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"environment.world.functions: {owner.__name__}: {reason}") from None
    takes = schema["function"]["parameters"]
    takes["properties"] = {n: one for n, one in takes["properties"].items() if n not in bound}
    if "required" in takes:
        takes["required"] = [name for name in takes["required"] if name not in bound]
    return schema


def _methods(made: object) -> Iterator[tuple[str, Callable]]:
    """The methods defined by its classes, including static and class methods, without attributes
    and methods of builtin bases."""
    for name, found in inspect.getmembers_static(type(made)):
        if not name.startswith("_") and inspect.isfunction(inspect.unwrap(found)):
            yield name, getattr(made, name)


@dataclass(slots=True, kw_only=True)
class ToolUse:
    """The tools of one episode."""

    world: Tools
    tools: Mapping[str, Callable]
    schemas: Mapping[str, Mapping]  # of their arguments
    shows: bool  # whether its tools may return pictures

    @property
    def opening(self) -> Said:
        return Said()

    def act(self, move: Move) -> Said:
        text = strip_thoughts(move.text)
        written = [*self.world.format.calls_in(text, self.schemas)]
        if self.world.format.is_cut(text):
            written.append(Refused("a call was begun that does not end, or is in another format"))
        if not written:
            return Said(over=True)
        results, errors = [], 0
        for call in written:
            try:
                results.append(self.answer(call))
            except Refused as refusal:
                results.append(result_of("", f"error: {refusal}", shows=self.shows))
                errors += 1
        return Said(
            messages=[one.message for one in results],
            images=[picture for one in results for picture in one.images],
            reward=-self.world.cost * len(written) if self.world.cost else None,
            counts={"calls": float(len(written)), "tool_errors": float(errors)},
            tool_calls=as_tool_calls(written),
        )

    def answer(self, call: Call | Refused) -> Result:
        """The result of a call. Raises Refused for a fault of the policy."""
        if isinstance(call, Refused):
            raise call
        name, arguments = call
        if name not in self.tools:
            raise Refused(f"there is no tool {name!r}; there are {', '.join(self.tools)}")
        check_arguments(name, arguments, self.schemas[name])
        try:
            value = self.tools[name](**arguments)
        except ValueError as error:  # the tool refuses the arguments
            if NOT_HERE in str(error):
                raise
            raise Refused(str(error)) from error
        return result_of(name, value, shows=self.shows)

    def close(self) -> None:
        pass


def calculator(expression: str) -> str:
    """Value of an arithmetic expression.

    Args:
        expression: Numbers with + - * / and brackets.
    """
    if len(expression) > LONGEST:
        raise ValueError(f"an expression may have up to {LONGEST} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
        value = evaluate(tree.body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("this is not an arithmetic expression") from error
    except ZeroDivisionError as error:
        raise ValueError("division by zero") from error
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"


def evaluate(node: ast.expr) -> Fraction:
    """The value of a tree of numbers and the four operations, and of nothing else."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            value = Fraction(str(number))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            value = OPERATORS[type(op)](evaluate(left), evaluate(right))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            value = OPERATORS[type(op)](evaluate(operand))
        case _:
            raise ValueError("this is not an arithmetic expression")
    if max(abs(value.numerator), value.denominator) > 10**DIGITS:
        raise ValueError(f"a number has more than {DIGITS} digits")
    return value


class KeyValueStore:
    """Texts by their keys, as long as an episode lasts."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def put(self, key: str, value: str) -> str:
        """Remember a text.

        Args:
            key: Name of the text.
            value: The text.
        """
        self._texts[key] = value
        return "stored"

    def get(self, key: str) -> str:
        """Text that was put under a key.

        Args:
            key: Name of the text.
        """
        if key not in self._texts:
            raise ValueError(f"there is no key {key!r}")
        return self._texts[key]
