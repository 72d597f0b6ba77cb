"""Plain Ray actors that hand tokens to each other. `Bank` runs beside Ray's own way of saving as well as in a fleet, and knows nothing of it."""

import asyncio
import os
import random
import time
from typing import Any

import ray

from snapline.adapters.ray import changed

TOKENS = 100


class Bank:
    """Passes what it gets on, to whom it likes: by calls whose answers nobody awaits. It remembers how much it gave to whom, and took from whom."""

    def __init__(self, name: str, names: list[str]) -> None:
        self.name, self.others = name, [each for each in names if each != name]
        self.balance = TOKENS
        self.given = dict.fromkeys(self.others, 0)
        self.taken = dict.fromkeys(self.others, 0)
        self.is_silent = False

    def tok(self, amount: int, giver: str) -> None:
        self.balance += amount
        self.taken[giver] += amount
        if not self.is_silent:
            self.kick()

    def kick(self) -> None:
        """Begin, or go on."""
        peer, amount = random.choice(self.others), min(self.balance, random.randint(1, 5))
        self.balance -= amount
        self.given[peer] += amount
        handle: Any = ray.get_actor(peer)
        handle.tok.remote(amount, self.name)

    def silence(self) -> None:
        self.is_silent = True

    def pid(self) -> int:
        return os.getpid()

    def save(self) -> tuple[int, dict[str, int], dict[str, int]]:
        """Ray's documented way: the actor gives its state to whoever asks."""
        time.sleep(0.002)
        return self.balance, dict(self.given), dict(self.taken)


class Asker:
    """Waits in `ray.get` in the midst of its changes."""

    def __init__(self, name: str, keeper: str) -> None:
        self.name, self.keeper = name, keeper
        self.balance, self.turns = TOKENS, 0
        self.is_silent = False

    def kick(self) -> None:
        """Begin, or go on."""
        handle: Any = ray.get_actor(self.name)
        handle.turn.remote()

    def turn(self) -> None:
        """Hand some on, keep what comes back, take a bit more of it, and go on."""
        self.turns += 1
        amount = min(self.balance, 2 + self.turns % 5)
        self.balance -= amount
        keeper: Any = ray.get_actor(self.keeper)
        self.balance += amount - ray.get(keeper.keep.remote(amount))["kept"]
        self.balance += sum(each["back"] for each in ray.get([keeper.back.remote(1), keeper.back.remote(2)]))
        if not self.is_silent:
            self.kick()

    def silence(self) -> None:
        self.is_silent = True

    def pid(self) -> int:
        return os.getpid()


class Keeper:
    """An async actor: it changes when it has all answers, and says so where it calls after that."""

    def __init__(self, name: str, other: str) -> None:
        self.name, self.other = name, other
        self.balance = TOKENS
        self.is_silent = False

    async def keep(self, amount: int) -> dict[str, int]:
        await asyncio.sleep(0.001)
        kept = amount // 2
        self.balance += kept
        return {"kept": kept}

    async def back(self, amount: int) -> dict[str, int]:
        amount = max(0, min(self.balance, amount))
        self.balance -= amount
        return {"back": amount}

    async def kick(self) -> None:
        """Begin, or go on."""
        handle: Any = ray.get_actor(self.name)
        handle.round.remote()

    async def round(self) -> None:
        """Take some of the other one's, hand some on, and go on."""
        other: Any = ray.get_actor(self.other)
        first = other.back.remote(3)
        kept, back = await asyncio.gather(other.keep.remote(4), first)
        self.balance += back["back"] - kept["kept"] - 2
        changed()
        if not self.is_silent:
            await self.kick()
        await other.take.remote(2)

    async def take(self, amount: int) -> None:
        self.balance += amount

    async def silence(self) -> None:
        self.is_silent = True

    async def pid(self) -> int:
        return os.getpid()
