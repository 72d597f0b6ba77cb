"""How many checkpoints of Ray actors conserve tokens, if all actors are asked for their states at once while they pass tokens on.

    python benchmarks/ray_tokens.py [--rounds N]

Four actors with 100 tokens each pass tokens to each other without pause. A round calls `save` on all of them at once, and adds up the
tokens in the answers. At the end the actors pass nothing on, and all tokens are counted. Needs snapline[ray]; takes a minute.
"""

import argparse
import random
import statistics
import time
from importlib import import_module
from typing import Any

from snapline.deploy.conformance.local_ray import raylets

ACTORS, TOKENS, GIVEN, PAUSE_S = 4, 100, 5, 0.05
"""Each actor begins with TOKENS, and passes on the first GIVEN of them."""


class Holder:
    """An actor that passes on each token that it gets."""

    def __init__(self) -> None:
        self._tokens = TOKENS
        self._others: list[Any] = []  # Any: handles of Ray

    def begin(self, others: list[Any]) -> None:
        """Pass on the first tokens."""
        self._others = others
        for _ in range(GIVEN):
            self._pass_on()

    def take(self) -> None:
        """Take a token, and pass one on."""
        self._tokens += 1
        if self._others:
            self._pass_on()

    def save(self) -> int:
        """Return the state, as a checkpoint would hold it."""
        return self._tokens

    def end(self) -> None:
        """Keep each token from now on."""
        self._others = []

    def _pass_on(self) -> None:
        self._tokens -= 1
        random.choice(self._others).take.remote()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    ray: Any = import_module("ray")  # Any: Ray's types exist only where Ray is installed
    with raylets(1) as cluster:
        ray.init(address=cluster.address, log_to_driver=False)
        actors = [ray.remote(Holder).options(num_cpus=0).remote() for _ in range(ACTORS)]
        ray.get([actor.begin.remote([x for x in actors if x is not actor]) for actor in actors])
        missing = []
        for _ in range(rounds):
            time.sleep(PAUSE_S)
            missing.append(ACTORS * TOKENS - sum(ray.get([actor.save.remote() for actor in actors])))
        ray.get([actor.end.remote() for actor in actors])
        deadline_s = time.monotonic() + 10.0
        while (left := sum(ray.get([actor.save.remote() for actor in actors]))) < ACTORS * TOKENS:
            if time.monotonic() > deadline_s:
                break
    print(f"Ray {ray.__version__}: {missing.count(0)} of {rounds} checkpoints have all {ACTORS * TOKENS} tokens")
    print(f"missing in a checkpoint: median {statistics.median(missing):g}, {min(missing)} to {max(missing)}")
    print(f"at the end, when nothing is on its way: {left} tokens")


if __name__ == "__main__":
    main()
