"""Plain Ray actors that do all that a call can be, and what it cannot."""

import asyncio
import os
import threading
from typing import Any

import ray


class Teller:
    """One method at a time. What it has not kept in a state it makes anew."""

    def __init__(self, amount: int = 100) -> None:
        self.amount = amount
        self.peer: Any = None
        self.kept: Any = None
        self.made_by = f"constructor of {os.getpid()}"

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "made_by"}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, made_by="cut")

    def meet(self, peer: Any) -> None:
        self.peer = peer

    def add(self, amount: int) -> int:
        self.amount += amount
        return self.amount

    def fails(self, word: str) -> None:
        self.amount += 1
        raise KeyError(word)

    def looks(self) -> tuple[int, str, int]:
        return self.amount, self.made_by, os.getpid()

    def pid(self) -> int:
        return os.getpid()

    def itself(self) -> Any:
        return ray.get_runtime_context().current_actor

    def gives(self, amount: int) -> None:
        self.amount -= amount
        self.peer.add.remote(amount)

    def asks(self, amount: int) -> object:
        self.amount -= amount
        both = [self.peer.add.remote(amount), ray.put("beside"), self.peer.add.remote(amount=0)]
        return ray.get(both)

    def catches(self) -> list[str]:
        try:
            ray.get(self.peer.fails.remote("word"))
        except KeyError as error:
            return [type(error).__mro__[1].__name__, type(error.cause).__name__, *error.cause.args]  # type: ignore[attr-defined]  # Ray's
        return []

    def passes_on(self) -> bool:
        """A handle that it has of its peer's is as good as its own."""
        got = ray.get(self.peer.itself.remote())
        return bool(got == self.peer and ray.get(got.add.remote(0)) == ray.get(self.peer.add.remote(0)))

    def impatient(self) -> str:
        try:
            return str(ray.get(self.peer.sleeps.remote(5.0), timeout=0.1))
        except ray.exceptions.GetTimeoutError as error:
            return type(error).__name__

    def dawdles(self, seconds: float) -> None:
        ray.get(self.peer.sleeps.remote(seconds))

    def calls(self, method: str, *arguments: object) -> object:
        return ray.get(getattr(self.peer, method).remote(*arguments))

    def gives_up(self, name: str) -> str:
        """Somebody's answer, which takes long."""
        handle: Any = ray.get_actor(name)
        try:
            ray.get(handle.dawdles.remote(60.0), timeout=0.5)
        except ray.exceptions.GetTimeoutError:
            return "given up"
        return "answered"

    def does(self, what: str) -> str:
        """What is an error, and what it says."""
        try:
            getattr(self, what)()
        except ValueError as error:
            return str(error)
        return "nothing"

    def gives_reference(self) -> None:
        self.peer.add.remote(ray.put(1))

    def gives_call(self) -> None:
        self.peer.add.remote(self.peer.add.remote(0))

    def asks_for_two(self) -> None:
        self.peer.add.options(num_returns=2).remote(0)

    def takes_twice(self) -> None:
        call = self.peer.add.remote(0)
        ray.get([call, call])

    def keeps_call(self) -> None:
        self.kept = self.peer.add.remote(0)

    def drops_call(self) -> None:
        self.kept = None


class Desk(Teller):
    """The same with async methods, and so all of it in Ray's loop."""

    async def sleeps(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def asks(self, amount: int) -> object:
        first = self.peer.add.remote(amount)
        got = await asyncio.gather(first, self.peer.add.remote(0))
        self.amount -= amount
        return got

    async def catches(self) -> list[str]:  # type: ignore[override]  # a call of an actor is awaited in any case
        try:
            await self.peer.fails.remote("word")
        except KeyError as error:
            return [type(error).__mro__[1].__name__, type(error.cause).__name__, *error.cause.args]  # type: ignore[attr-defined]  # Ray's
        return []

    async def passes_on(self) -> bool:  # type: ignore[override]  # as well
        got = await self.peer.itself.remote()
        return bool(got == self.peer and await got.add.remote(0) == await self.peer.add.remote(0))

    def gets(self) -> None:
        ray.get(self.peer.add.remote(0))


class Early(Teller):
    """Calls from its constructor."""

    def __init__(self) -> None:
        super().__init__()
        ray.get(ray.get_actor("a").add.remote(1))


class Locked(Teller):
    """Has what cannot be kept."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
