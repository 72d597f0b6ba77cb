"""Four actors of Ray that pass messages to each other; nobody waits for an answer."""

import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import ray

UNDER_WAY = 16
"""For each actor: more fill queues, and make nothing faster."""


@ray.remote
class Passer:
    def __init__(self, path):
        sys.path.insert(0, path)
        from counting import counter

        self.counter = counter()

    def meet(self, others):
        self.others = others

    def token(self, hops, padding):
        self.counter[0] += 1
        random.choice(self.others).token.remote(hops + 1, padding)


def main():
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    actors = [Passer.remote(str(Path(__file__).parent)) for _ in range(4)]
    ray.get([each.meet.remote([other for other in actors if other is not each]) for each in actors])
    for actor in actors:
        for _ in range(UNDER_WAY):
            actor.token.remote(0, bytes(48))
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
